# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Trainer and Seq2SeqTrainer with what our recipes need on top: token-budget batches, honest losses, averaging."""

import copy
import shutil
from collections.abc import Sized
from pathlib import Path

import datasets
import torch
from accelerate.data_loader import BatchSamplerShard
from torch.utils.data import DataLoader, Sampler
from transformers import EarlyStoppingCallback, Seq2SeqTrainer, Trainer
from transformers.trainer_pt_utils import LengthGroupedSampler
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from ..data.sampling import SeededSampler, TokenBudgetBatchSampler
from ..errors import UserError
from ..manifest import MANIFEST, check_manifest, write_manifest
from .arguments import data_seed
from .callbacks import SaveAfterEvaluation, StopOnSignal, TrainingTime
from .checkpoints import delete_old_checkpoints, find_best_checkpoint


class ResumableTrainerMixin:
    """Checkpoints that a killed run can be resumed from, for any Trainer.

    - A checkpoint has a manifest, written last. Older ones are deleted only then.
    - A run on several processes that is resumed within an epoch reads this epoch's order.
    - A run that is resumed at its last update makes no further one.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.add_callback(SaveAfterEvaluation())  # after those that ask for checkpoints

    def get_train_dataloader(self) -> DataLoader:
        """As stock, with the sampler at hand for `set_epoch`."""
        return show_sampler(super().get_train_dataloader())

    def get_eval_dataloader(self, *args, **kwargs) -> DataLoader:
        """As stock, but with all rows: `dataloader_drop_last` is for training."""
        drop_last, self.args.dataloader_drop_last = self.args.dataloader_drop_last, False
        try:
            return super().get_eval_dataloader(*args, **kwargs)
        finally:
            self.args.dataloader_drop_last = drop_last

    def _get_train_sampler(self, *args, **kwargs) -> Sampler | None:
        sampler = super()._get_train_sampler(*args, **kwargs)
        return SeededSampler(sampler, data_seed(self.args)) if isinstance(sampler, LengthGroupedSampler) else sampler

    def train(self, resume_from_checkpoint=None, *args, **kwargs):
        """As stock, but old checkpoints are deleted in `_save_checkpoint`, not in Trainer's two places.

        `eval_on_start` is for the start alone: a resumed run has had that evaluation.
        """
        self.save_total_limit, self.args.save_total_limit = self.args.save_total_limit, None
        eval_on_start = self.args.eval_on_start
        self.args.eval_on_start = eval_on_start and not resume_from_checkpoint
        try:
            return super().train(resume_from_checkpoint, *args, **kwargs)
        finally:
            self.args.save_total_limit, self.args.eval_on_start = self.save_total_limit, eval_on_start

    def _init_training_state(self, *args, **kwargs):
        result = super()._init_training_state(*args, **kwargs)
        if self.args.load_best_model_at_end:
            find_best_checkpoint(self.state, self.args.output_dir)
        return result

    def _run_epoch(self, *args, **kwargs):
        stoppers = [c for c in self.callback_handler.callbacks if isinstance(c, EarlyStoppingCallback)]
        has_stopped = any(c.early_stopping_patience_counter >= c.early_stopping_patience for c in stoppers)
        if has_stopped or self.state.global_step >= self.state.max_steps:
            self.control.should_training_stop = True
        else:
            super()._run_epoch(*args, **kwargs)

    def _save_checkpoint(self, model, trial):
        run_dir = self._get_output_dir(trial)
        folder = Path(run_dir, f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}")
        if self.args.should_save:
            (folder / MANIFEST).unlink(missing_ok=True)
        try:
            super()._save_checkpoint(model, trial)
            self.accelerator.wait_for_everyone()  # each process has written its random state
            if self.args.should_save:
                facts = {"step": self.state.global_step, "num_processes": self.args.world_size}
                is_early = any(isinstance(c, StopOnSignal) and c.saves_early for c in self.callback_handler.callbacks)
                if is_early and self.state.best_global_step != self.state.global_step:
                    facts["is_early"] = True
                write_manifest(folder, **facts, **self.batch_facts())
        except Exception:
            if self.args.should_save:
                shutil.rmtree(folder, ignore_errors=True)  # half a checkpoint only takes space
            raise
        if self.args.should_save:
            delete_old_checkpoints(run_dir, self.save_total_limit, self.state.best_model_checkpoint)

    def batch_facts(self) -> dict[str, int | None]:
        """What the rows of an update follow from: kept in a checkpoint's manifest, and compared on resuming.

        `rows_per_update` counts those of all processes; it is None where batches are counted in tokens.
        """
        rows = self.args.train_batch_size * self.args.gradient_accumulation_steps * self.args.world_size
        num_rows = len(self.train_dataset) if isinstance(self.train_dataset, Sized) else None
        return {"rows_per_update": rows, "train_rows": num_rows}

    def check_same_batches(self, checkpoint: str) -> None:
        """Raise UserError where the checkpoint comes from other training data, or batches of another size.

        The number of processes and the rows per update are compared by `choose_checkpoint`, before the data are read.
        """
        facts = check_manifest(checkpoint) or {}
        for name, now in self.batch_facts().items():
            if name != "rows_per_update" and facts.get(name, now) != now and not self.args.ignore_data_skip:
                raise UserError(
                    f"{checkpoint} was saved with {name} {facts[name]}, and this run has {now}: it would go on at "
                    "other rows. Resume with the data and options it was begun with; or start anew, "
                    "`--model_name_or_path` naming the checkpoint."
                )


def show_sampler(dataloader: DataLoader) -> DataLoader:
    """Put the sampler where accelerate looks for it to set the epoch, also after batches were skipped.

    On several processes it is hidden behind accelerate's `BatchSamplerShard`, which does not pass `set_epoch` on.
    """
    if isinstance(dataloader.batch_sampler, BatchSamplerShard):
        dataloader.batch_sampler.sampler = dataloader.batch_sampler.batch_sampler.sampler
    return dataloader


class ScratchTrainerMixin(ResumableTrainerMixin):
    """What both trainers add to transformers' own.

    - A training step computes no logits (`skip_logits`), smooths labels in the model, and adds R-Drop if asked for.
      An evaluation reports the plain cross-entropy; stock trainers smooth its labels too.
    - The saved config and generation config are the model's own. Stock trainers write `use_cache: false` into the
      one, and Seq2SeqTrainer's evaluation all defaults into the other.
    """

    def __init__(self, *args, r_drop_alpha: float = 0.0, **kwargs):
        if not r_drop_alpha >= 0:
            raise ValueError(f"`r_drop_alpha` must be 0 or more, got {r_drop_alpha}.")
        model = kwargs.get("model", args[0] if args else None)
        use_cache = getattr(getattr(model, "config", None), "use_cache", None)
        super().__init__(*args, **kwargs)
        if use_cache is not None:
            self.model.config.use_cache = use_cache
        self.r_drop_alpha = r_drop_alpha
        self.label_smoother = None
        self.add_callback(TrainingTime())

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        inputs = {**inputs, "use_cache": False}  # with a cache, packed texts would see each other
        if model.training:
            if self.r_drop_alpha:
                inputs = {name: torch.cat([x, x]) if torch.is_tensor(x) else x for name, x in inputs.items()}
                num_items_in_batch = num_items_in_batch and 2 * num_items_in_batch
            inputs |= {"skip_logits": True, "label_smoothing": self.args.label_smoothing_factor}
            inputs["r_drop_alpha"] = self.r_drop_alpha
        return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)

    def evaluation_loop(self, *args, **kwargs):
        generation_config = copy.deepcopy(self.model.generation_config)
        try:
            return super().evaluation_loop(*args, **kwargs)
        finally:
            self.model.generation_config = generation_config


class LanguageModelTrainer(ScratchTrainerMixin, Trainer):
    """Trainer for ScratchGPT.

    Args:
        r_drop_alpha: how much R-Drop's divergence counts (Liang et al. 2021). Above 0, an update sees each row twice.
        decay_all_parameters: weight decay on biases and LayerNorms too, as torch's AdamW does (tinystories-notes).
            Default: not on them, as stock.
        decay_embeddings: weight decay on token and position embeddings, as stock. gpt-playground has none on them.
    """

    def __init__(self, *args, decay_all_parameters: bool = False, decay_embeddings: bool = True, **kwargs):
        self.decay_all_parameters, self.decay_embeddings = decay_all_parameters, decay_embeddings
        super().__init__(*args, **kwargs)

    def get_decay_parameter_names(self, model) -> list[str]:
        """The names of the parameters that decay."""
        if self.decay_all_parameters:
            return [name for name, _ in model.named_parameters()]
        embeddings = set() if self.decay_embeddings else _embedding_names(model)
        return [name for name in super().get_decay_parameter_names(model) if name not in embeddings]


def _embedding_names(model: torch.nn.Module) -> set[str]:
    modules = [name for name, module in model.named_modules() if isinstance(module, torch.nn.Embedding)]
    return {f"{name}.weight" for name in modules}


class TranslationTrainer(ScratchTrainerMixin, Seq2SeqTrainer):
    """Seq2SeqTrainer for ScratchTransformer.

    Args:
        r_drop_alpha: as LanguageModelTrainer's.
        max_tokens_per_batch: a batch (on one device) has at most so many tokens on its longer side, padding included,
            in place of `per_device_train_batch_size` rows. The training set needs a column "length". None: stock.
    """

    def __init__(self, *args, max_tokens_per_batch: int | None = None, **kwargs):
        super().__init__(*args, **kwargs)
        self.batch_sampler = None
        if max_tokens_per_batch is not None:
            self.batch_sampler = TokenBudgetBatchSampler(
                self.train_dataset["length"],
                max_tokens_per_batch,
                num_processes=self.accelerator.num_processes,
                seed=data_seed(self.args),
            )

    def get_train_dataloader(self) -> DataLoader:
        """Batches by token budget, dealt out to the processes."""
        if self.batch_sampler is None:
            return super().get_train_dataloader()
        dataset = self.train_dataset
        if isinstance(dataset, datasets.Dataset):
            dataset = self._remove_unused_columns(dataset, description="training")
        dataloader = DataLoader(
            dataset,
            batch_sampler=self.batch_sampler,
            collate_fn=self.data_collator,
            num_workers=self.args.dataloader_num_workers,
            pin_memory=self.args.dataloader_pin_memory,
            persistent_workers=self.args.dataloader_persistent_workers,
            prefetch_factor=self.args.dataloader_prefetch_factor,
        )
        # accelerate cannot even out batches that have no common size; the sampler has made their number even
        dataloader_config = self.accelerator.dataloader_config
        even_batches, dataloader_config.even_batches = dataloader_config.even_batches, False
        try:
            return show_sampler(self.accelerator.prepare(dataloader))
        finally:
            dataloader_config.even_batches = even_batches  # evaluation needs it

    def batch_facts(self) -> dict[str, int | None]:
        """As ResumableTrainerMixin's, with the budget of tokens."""
        if self.batch_sampler is None:
            return super().batch_facts()
        accumulation = self.args.gradient_accumulation_steps
        budget = {"max_tokens_per_batch": self.batch_sampler.max_tokens, "gradient_accumulation_steps": accumulation}
        return super().batch_facts() | {"rows_per_update": None, **budget}
