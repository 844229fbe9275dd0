# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Trainer and Seq2SeqTrainer with what our recipes need on top: token-budget batches, honest losses, averaging."""

import copy
import logging
import shutil
from collections.abc import Iterator, Mapping, Sequence, Sized
from pathlib import Path

import datasets
import torch
from accelerate.data_loader import BatchSamplerShard
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict
from torch.utils.data import DataLoader, Sampler
from transformers import EarlyStoppingCallback, Seq2SeqTrainer, Trainer, TrainingArguments
from transformers.trainer_pt_utils import LengthGroupedSampler
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from .callbacks import SaveAfterEvaluation, StopOnSignal, TrainingTime
from .checkpoints import average_checkpoints, delete_old_checkpoints, find_best_checkpoint, is_early, whole_checkpoints
from .data import TokenBudgetBatchSampler
from .errors import UserError
from .manifest import MANIFEST, DamagedFolderError, check_manifest, write_manifest

logger = logging.getLogger(__name__)


def prepare_arguments(args: TrainingArguments) -> None:
    """Messages of the main process at "info", of the others from "error" on; tokens and tokens a second in the log.

    Where a default of Trainer's would only warn on this machine or with our models, it is set.
    """
    args.include_num_input_tokens_seen = "non_padding"  # the command line can only say true or false
    if args.ddp_find_unused_parameters is None:
        args.ddp_find_unused_parameters = False  # our models use all of theirs
    args.dataloader_pin_memory &= torch.cuda.is_available()  # torch warns of it without one
    logging.basicConfig(format="%(asctime)s %(name)s: %(message)s", datefmt="%H:%M:%S", level=logging.WARNING)
    level = logging.INFO if args.should_log else logging.ERROR
    for name in ("hf_scratch", "train_translation", "train_language_model"):
        logging.getLogger(name).setLevel(level)


def check_validation_data(args: TrainingArguments, splits: Mapping, metrics: Sequence[str] = ()) -> None:
    """Raise ValueError where evaluations are asked for and there is nothing to evaluate on, or where the best one is
    to be found by a metric that they do not have.

    Args:
        metrics: what an evaluation has besides the loss.
    """
    if args.eval_strategy != "no" and "validation" not in splits:
        raise ValueError(
            f"`eval_strategy` is {args.eval_strategy.value!r}, but there is no validation data: the splits are "
            f"{', '.join(splits)}. Give `--validation_file`, or set `--eval_strategy no`."
        )
    best = args.metric_for_best_model
    names = ("loss", *metrics, *("runtime", "samples_per_second", "steps_per_second"))
    if args.eval_strategy != "no" and best is not None and best.removeprefix("eval_") not in names:
        raise ValueError(
            f"`metric_for_best_model` is {best!r}, but the metrics of an evaluation are {', '.join(names)}."
            + (" BLEU needs `--predict_with_generate true`." if "bleu" in best and not metrics else "")
        )


def data_seed(args: TrainingArguments) -> int:
    """What the order of the rows follows."""
    return args.data_seed if args.data_seed is not None else args.seed


def check_average(args: TrainingArguments, num_checkpoints: int) -> None:
    """Raise ValueError where fewer checkpoints are kept than are to be averaged."""
    limit = args.save_total_limit
    if num_checkpoints > 1 and (args.save_strategy == "no" or (limit is not None and limit < num_checkpoints)):
        kept = "saves none" if args.save_strategy == "no" else f"keeps {limit} (`save_total_limit`)"
        raise ValueError(
            f"`average_checkpoints` is {num_checkpoints}, but the run {kept}. Keep as many, or average fewer."
        )


class SeededSampler(Sampler[int]):
    """A sampler with `generator`, whose order depends on the seed and the epoch alone.

    With torch's global random numbers, a resumed run reads another order, and each process one of its own.
    """

    def __init__(self, sampler: Sampler, seed: int):
        self.sampler, self.seed, self.epoch = sampler, seed, 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the order."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        self.sampler.generator = torch.Generator().manual_seed(self.seed + self.epoch)
        return iter(self.sampler)

    def __len__(self) -> int:
        return len(self.sampler)


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
    """

    def __init__(self, *args, decay_all_parameters: bool = False, **kwargs):
        self.decay_all_parameters = decay_all_parameters
        super().__init__(*args, **kwargs)

    def get_decay_parameter_names(self, model) -> list[str]:
        """The names of the parameters that decay."""
        if self.decay_all_parameters:
            return [name for name, _ in model.named_parameters()]
        return super().get_decay_parameter_names(model)


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


def save_final_model(trainer: Trainer) -> None:
    """Save the model, its tokenizer and the trainer's state in `output_dir`, and a manifest of weights and tokenizer.

    Config files are not in the manifest: they may be edited.
    """
    folder = Path(trainer.args.output_dir)
    if trainer.args.should_save:
        (folder / MANIFEST).unlink(missing_ok=True)
    trainer.save_model()
    trainer.save_state()
    if trainer.args.should_save:
        names = (path.name for path in folder.iterdir())
        write_manifest(folder, sorted(n for n in names if n.endswith(".safetensors") or n == "tokenizer.json"))


def last_checkpoints(output_dir: str, count: int, up_to: int | None = None) -> list[str]:
    """The folders of the last `count` whole checkpoints, oldest first, of which none is later than update `up_to`.

    Those that a signal asked for do not count: a run that was not stopped has none of them.
    """
    folders = [str(path) for path in whole_checkpoints(output_dir) if not is_early(path)]
    folders = [path for path in folders if up_to is None or int(path.rpartition("-")[2]) <= up_to]
    return folders[max(len(folders) - count, 0) :]


def evaluate_and_select_weights(trainer: Trainer, num_checkpoints: int) -> dict:
    """Keep the average of the last checkpoints in the model if its validation loss is lower than the trained weights'.

    Greedy BLEU on a thousand sentences is too noisy to choose by.

    Args:
        trainer: after `train()`; its model holds the last weights, or the best with `load_best_model_at_end`.
        num_checkpoints: how many to average. Below 2, nothing is averaged.

    Returns:
        The evaluation of what was kept, with `weights` saying "averaged" or "trained".
    """
    trained = _evaluation_of_training(trainer) or trainer.evaluate()
    folders = last_checkpoints(trainer.args.output_dir, num_checkpoints, trainer.state.global_step)
    folders = [folder for folder in folders if _is_intact(folder)]
    if len(folders) < 2:
        return {**trained, "weights": "trained"}
    before = get_model_state_dict(trainer.model, options=StateDictOptions(full_state_dict=True))
    before = {name: tensor.clone() for name, tensor in before.items()}
    load_weights(trainer.model, average_checkpoints(folders))
    averaged = trainer.evaluate()
    before_loss, loss = trained["eval_loss"], averaged["eval_loss"]
    logger.info(f"eval_loss: {before_loss:.4f}; averaged over {len(folders)} checkpoints {loss:.4f}")
    if loss < before_loss:
        return {**averaged, "weights": f"averaged over {len(folders)} checkpoints"}
    load_weights(trainer.model, before)
    return {**trained, "weights": "trained"}


def _is_intact(checkpoint: str) -> bool:
    try:
        check_manifest(checkpoint)
    except DamagedFolderError as error:
        logger.warning(f"{error}. It is left out of the average.")
        return False
    return True


def load_weights(model: torch.nn.Module, weights: dict[str, torch.Tensor]) -> None:
    """Put whole tensors into a model, sharded by FSDP2 or not. Tied weights may stand under one of their names."""
    options = StateDictOptions(full_state_dict=True, strict=False)
    set_model_state_dict(model, dict(weights), options=options)  # a copy: torch puts shards into it


def _evaluation_of_training(trainer: Trainer) -> dict | None:
    """The evaluation that training has already made of the weights at hand, if there is one."""
    state = trainer.state
    has_best = trainer.args.load_best_model_at_end and state.best_model_checkpoint is not None
    step = state.best_global_step if has_best else state.global_step
    # of a resumed run, the evaluations before may have seen other data
    clock = next((c for c in trainer.callback_handler.callbacks if isinstance(c, TrainingTime)), None)
    for entry in reversed(state.log_history[clock.entries_before if clock else 0 :]):
        if entry["step"] == step and "eval_loss" in entry:
            return {key: value for key, value in entry.items() if key == "epoch" or key.startswith("eval_")}
    return None
