# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Trainer and Seq2SeqTrainer with token-budget batches, R-Drop, plain evaluation losses and exact resuming."""

import copy
import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import datasets
import numpy as np
import torch
from torch.utils.data import DataLoader, RandomSampler
from transformers import PreTrainedModel, Seq2SeqTrainer, Trainer
from transformers.trainer_pt_utils import LengthGroupedSampler
from transformers.trainer_utils import seed_worker

from ..data.columns import read_numbers
from ..data.sampling import (
    EmptyPartCollator,
    RowBatchSampler,
    SeededSampler,
    TokenBudgetBatchSampler,
    UpdateBatchSampler,
)
from ..folders import public_name
from ..models.loss import Teacher
from ..models.modeling_scratch_gpt import ScratchGPTForCausalLM
from ..models.modeling_scratch_transformer import ScratchTransformerForConditionalGeneration
from .callbacks import TrainingTime
from .moving_average import MovingAverage
from .resuming import show_sampler
from .sharding import ShardedTrainerMixin
from .streaming import StreamingTrainerMixin
from .training_arguments import data_seed


class ScratchTrainerMixin(StreamingTrainerMixin, ShardedTrainerMixin):
    """What both of our trainers add to transformers' trainers.

    - With `ema_decay`, `moving_average` follows the weights, and `evaluate_and_select_weights` may choose it.
    - A training step computes no logits (`skip_logits`), smooths labels in the model, and adds R-Drop if
      `r_drop_alpha` is above 0. With `teacher_models`, part of the loss is the cross-entropy with their predictions.
      All three need a model of ours: others would ignore them, so they are refused.
    - An update sees the same rows on any number of processes, also at the end of an epoch, where stock trainers fill
      up the processes' last batches with other rows. `train_sampling_strategy="batch_rebalance"`, `dispatch_batches`,
      `split_batches` and iterable datasets other than a `RowStream` are stock.
    - An evaluation reports the cross-entropy without label smoothing. Stock trainers smooth the evaluation labels too.
      It computes no logits either, unless they are what it predicts. On several processes its loss is that of one.
    - The saved config and generation config are the model's own. Stock trainers write `use_cache: false` into the
      config, and Seq2SeqTrainer's evaluation fills in every default of the generation config.
    """

    def __init__(
        self,
        *args,
        r_drop_alpha: float = 0.0,
        teacher_models: Sequence[PreTrainedModel] = (),
        distillation_alpha: float = 0.5,
        ema_decay: float | None = None,
        **kwargs,
    ):
        if not r_drop_alpha >= 0:
            raise ValueError(f"`r_drop_alpha` must be 0 or more, got {r_drop_alpha}.")
        if not 0 <= distillation_alpha <= 1:
            raise ValueError(f"`distillation_alpha` must be from 0 to 1, got {distillation_alpha}.")
        model = kwargs.get("model", args[0] if args else None)
        use_cache = getattr(getattr(model, "config", None), "use_cache", None)
        super().__init__(*args, **kwargs)
        if use_cache is not None:
            self.model.config.use_cache = use_cache
        self.r_drop_alpha = r_drop_alpha
        self.distillation_alpha = distillation_alpha if teacher_models else 0.0
        self.teacher_models = [teacher.to(self.args.device).eval().requires_grad_(False) for teacher in teacher_models]
        self.label_smoother = None
        wanted = {
            "label_smoothing_factor": self.args.label_smoothing_factor,
            "r_drop_alpha": r_drop_alpha,
            "teacher_models": self.distillation_alpha,
        }
        ignored = [name for name, value in wanted.items() if value and not hasattr(self.model, "take_loss_kwargs")]
        if ignored:
            raise ValueError(
                f"`{ignored[0]}` is set, but {type(self.model).__name__} is no model of hf_scratch and would ignore "
                "it. Leave it out, or train a ScratchTransformerForConditionalGeneration or ScratchGPTForCausalLM."
            )
        self.add_callback(TrainingTime())
        self.moving_average = None if ema_decay is None else MovingAverage(ema_decay)
        if self.moving_average is not None:
            self.add_callback(self.moving_average)

    def _argument_facts(self) -> dict[str, int | float | str | None]:
        own: dict[str, float | None] = {
            "r_drop_alpha": self.r_drop_alpha,
            "distillation_alpha": self.distillation_alpha,
        }
        own["ema_decay"] = None if self.moving_average is None else self.moving_average.decay
        teachers = [public_name(teacher.name_or_path) for teacher in self.teacher_models]
        return {**super()._argument_facts(), **own, "teacher_models": " ".join(teachers) or None}

    def _save_rng_state(self, output_dir: str) -> None:
        super()._save_rng_state(output_dir)
        if self.moving_average is not None and self.args.should_save:
            self.moving_average.save(output_dir)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if self.moving_average is not None and checkpoint is not None:
            self.moving_average.load(checkpoint, self.args.device)

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        inputs = {**inputs, "use_cache": False}  # with a cache, packed texts would see each other
        if torch.is_tensor(num_items_in_batch):
            num_items_in_batch = num_items_in_batch.long()  # FSDP2 would round a float to bfloat16
        if model.training:
            teachers = self._ask_teachers(inputs) if self.distillation_alpha else []
            if self.r_drop_alpha:
                teachers = [Teacher(torch.cat([states, states]), head) for states, head in teachers]
                inputs = {name: torch.cat([x, x]) if torch.is_tensor(x) else x for name, x in inputs.items()}
                num_items_in_batch = num_items_in_batch and 2 * num_items_in_batch
            inputs |= {"skip_logits": True, "label_smoothing": self.args.label_smoothing_factor}
            inputs["r_drop_alpha"] = self.r_drop_alpha
            inputs |= {"teachers": teachers, "distillation_alpha": self.distillation_alpha}
        elif self.accelerator.num_processes > 1:
            num_items_in_batch = None  # each batch counts by its own mean, as on one process
        return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)

    @torch.no_grad()
    def _ask_teachers(self, inputs: dict[str, Any]) -> list[Teacher]:
        """What the teachers predict for a batch. The heads of our own models are still to be applied."""
        inputs = {name: x for name, x in inputs.items() if name not in ("labels", "shift_labels")}
        teachers = []
        with self.accelerator.autocast():
            for teacher in self.teacher_models:
                if type(teacher) in (ScratchGPTForCausalLM, ScratchTransformerForConditionalGeneration):
                    states = teacher.base_model(**inputs, return_dict=True).last_hidden_state
                    teachers.append(Teacher(states, teacher.get_output_embeddings()))
                else:  # whose logits may be scaled, capped or shifted behind the head
                    teachers.append(Teacher(teacher(**inputs, return_dict=True).logits, torch.nn.Identity()))
        return teachers

    def make_batch_sampler(self) -> UpdateBatchSampler | None:
        """Make the sampler of the training set, or None where Trainer's own is used.

        Raises:
            ValueError: `dataloader_drop_last` leaves no row.
        """
        args, config = self.args, self.accelerator.dataloader_config
        rows: Any = self.train_dataset
        is_stock = config.dispatch_batches or config.split_batches or not hasattr(rows, "__len__")
        if is_stock or args.train_sampling_strategy == "batch_rebalance":
            return None
        parts = args.gradient_accumulation_steps * args.world_size
        rows_per_update = self._train_batch_size * parts
        order: Any = self._get_train_sampler()
        if args.train_sampling_strategy == "group_by_length":  # Trainer's groups depend on the number of processes
            order = LengthGroupedSampler(rows_per_update, lengths=self.row_lengths().tolist())
        if isinstance(order, LengthGroupedSampler | RandomSampler):
            order = SeededSampler(order, data_seed(args))
        sampler = RowBatchSampler(order, rows_per_update, parts, args.dataloader_drop_last)
        if not len(sampler):
            raise ValueError(
                f"There is nothing to train: an update has {rows_per_update:,} rows, but there are {len(rows):,}, and "
                "`dataloader_drop_last` leaves them out."
            )
        return sampler

    def row_lengths(self) -> np.ndarray:
        """Return the training rows' lengths: their column "length", or else the tokens of `input_ids`."""
        rows: Any = self.train_dataset
        column = self.args.length_column_name
        if not isinstance(rows, datasets.Dataset):
            return np.asarray(rows[column])
        if column in rows.column_names:
            return read_numbers(rows, column)
        return np.array([len(ids) for ids in rows["input_ids"]])

    def get_train_dataloader(self) -> DataLoader:
        """As stock, with the batches of `make_batch_sampler`."""
        batch_sampler = self.make_batch_sampler()
        if batch_sampler is None:
            return super().get_train_dataloader()
        args, rows = self.args, self.train_dataset
        collator: Any = copy.copy(self.data_collator)  # an evaluation's has no epoch
        batch_sampler.collator = collator
        if isinstance(rows, datasets.Dataset):
            rows = self._remove_unused_columns(rows, description="training")
        else:
            collator = self._get_collator_with_removed_columns(collator, description="training")
        dataset: Any = rows  # torch reads a `datasets.Dataset` as its own
        dataloader = DataLoader(
            dataset,
            batch_sampler=batch_sampler,
            collate_fn=EmptyPartCollator(collator, dataset),
            num_workers=args.dataloader_num_workers,
            pin_memory=args.dataloader_pin_memory,
            persistent_workers=args.dataloader_persistent_workers,
            multiprocessing_context=args.dataloader_multiprocessing_context,
            prefetch_factor=args.dataloader_prefetch_factor,
            in_order=args.dataloader_in_order,
            worker_init_fn=partial(seed_worker, num_workers=args.dataloader_num_workers, rank=args.process_index),
        )
        # accelerate cannot even out batches of different sizes; their number is a multiple of the processes'
        dataloader_config = self.accelerator.dataloader_config
        even_batches, dataloader_config.even_batches = dataloader_config.even_batches, False
        try:
            return show_sampler(self.accelerator.prepare(dataloader))
        finally:
            dataloader_config.even_batches = even_batches  # evaluation needs it

    def prediction_step(self, model, inputs, prediction_loss_only, ignore_keys=None, **generate_kwargs):
        inputs = self._hide_repeated_rows(inputs)
        if prediction_loss_only:
            inputs = {**inputs, "skip_logits": True}
        elif getattr(self.args, "predict_with_generate", False):
            model = partial(model, skip_logits=True)  # Seq2SeqTrainer calls it for the loss alone
        step = super().prediction_step
        return step(model, inputs, prediction_loss_only, ignore_keys, **generate_kwargs)  # ty: ignore[invalid-argument-type]

    def _hide_repeated_rows(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Hide the labels of the rows with which accelerate fills up the last batches of several processes.

        Their predictions are dropped when they are gathered, but not their share of a batch's loss. The loss of a
        batch that consists of them alone is dropped, too.
        """
        state, index = self.accelerator.gradient_state, self.accelerator.process_index
        if self.accelerator.num_processes == 1 or not state.end_of_dataloader or state.remainder <= 0:
            return inputs
        labels = {name: inputs[name] for name in ("labels", "shift_labels") if inputs.get(name) is not None}
        for name, tensor in labels.items():
            first = state.remainder - index * len(tensor)  # the first row that is repeated
            if first > 0:
                is_repeated = torch.arange(len(tensor), device=tensor.device) >= first
                labels[name] = tensor.masked_fill(is_repeated[:, None], -100)
        return {**inputs, **labels}

    def evaluation_loop(self, *args, **kwargs):
        generation_config = copy.deepcopy(self.model.generation_config)
        try:
            return super().evaluation_loop(*args, **kwargs)
        finally:
            self.model.generation_config = generation_config


class LanguageModelTrainer(ScratchTrainerMixin, Trainer):
    """Trainer for ScratchGPT.

    Args:
        r_drop_alpha: weight of R-Drop's divergence in the loss (Liang et al. 2021). Above 0, an update sees each row
            twice.
        teacher_models: models of the same inputs and vocabulary, whose mean prediction is learnt as well (Hinton et
            al. 2015). They are not trained. Default: none.
        distillation_alpha: the share of that in the loss, from 0 to 1. The labels have the rest.
        ema_decay: keep an exponential moving average of the weights (see `MovingAverage`). Default: none.
        decay_all_parameters: apply weight decay to biases and LayerNorms too, as torch's AdamW does by itself.
            Default: as stock, without them.
        decay_embeddings: apply weight decay to token and position embeddings, as stock. gpt-playground does not.
    """

    def __init__(self, *args, decay_all_parameters: bool = False, decay_embeddings: bool = True, **kwargs):
        self.decay_all_parameters, self.decay_embeddings = decay_all_parameters, decay_embeddings
        super().__init__(*args, **kwargs)

    def get_decay_parameter_names(self, model) -> list[str]:
        """Return the names of the parameters with weight decay."""
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
        r_drop_alpha, teacher_models, distillation_alpha, ema_decay: as for LanguageModelTrainer.
        max_tokens_per_update: at most this many tokens in an update, of all processes together, counted on the pairs'
            longer side with padding. It replaces `per_device_train_batch_size`, and needs a column "length" in the
            training set. The steps of gradient accumulation follow from `max_tokens_per_batch`, if that is given;
            otherwise there is one.
        max_tokens_per_batch: at most this many tokens in a batch on one device, for its memory. Without
            `max_tokens_per_update`, an update has as many for each process and step of gradient accumulation.

    Raises:
        ValueError: a budget is less than the longest row, or beside an option that it would overrule.
    """

    def __init__(
        self,
        *args,
        max_tokens_per_update: int | None = None,
        max_tokens_per_batch: int | None = None,
        **kwargs,
    ):
        self.max_tokens_per_update, self.max_tokens_per_batch = max_tokens_per_update, max_tokens_per_batch
        self.batch_sampler = None
        super().__init__(*args, **kwargs)
        if max_tokens_per_update is None and max_tokens_per_batch is None:
            return
        if self.stream is not None:
            self.share_tokens(self.stream, max_tokens_per_update, max_tokens_per_batch)
        else:
            self.batch_sampler = self._make_budget_sampler()

    def _make_budget_sampler(self) -> TokenBudgetBatchSampler:
        """Make the sampler, and set the steps of gradient accumulation."""
        args, lengths, seed = self.args, self.row_lengths(), data_seed(self.args)
        tokens, limit = self.max_tokens_per_update, self.max_tokens_per_batch
        option = "max_tokens_per_batch" if tokens is None else "max_tokens_per_update"
        for name, is_given in {
            f"train_sampling_strategy={args.train_sampling_strategy}": args.train_sampling_strategy != "random",
            "dataloader_drop_last": args.dataloader_drop_last,
            "dispatch_batches of accelerator_config": self.accelerator.dataloader_config.dispatch_batches,
            "split_batches of accelerator_config": self.accelerator.dataloader_config.split_batches,
        }.items():
            if is_given:
                raise ValueError(f"`{option}` does not go together with `{name}`. Leave one of them out.")
        if tokens is None:
            parts = args.world_size * args.gradient_accumulation_steps
            sampler = TokenBudgetBatchSampler(lengths, limit * parts, parts, limit, seed)
        else:
            sampler = TokenBudgetBatchSampler(lengths, tokens, seed=seed)
            args.gradient_accumulation_steps = sampler.share(args.world_size, limit)
        return sampler

    def make_batch_sampler(self) -> UpdateBatchSampler | None:
        """Make the sampler, by tokens if there is a budget of them."""
        return self.batch_sampler or super().make_batch_sampler()

    def set_initial_training_values(self, args, dataloader):
        """As stock, with the rows that a training by tokens sees, for `train_samples_per_second`."""
        values = super().set_initial_training_values(args, dataloader)
        if self.batch_sampler is None:
            return values
        epochs, updates_per_epoch, num_examples, _, *others, max_steps = values
        return (
            epochs,
            updates_per_epoch,
            num_examples,
            num_examples * max_steps / updates_per_epoch,
            *others,
            max_steps,
        )

    def _get_eval_sampler(self, eval_dataset) -> None:
        """Evaluate rows in their order, also with `train_sampling_strategy`: references come in this order."""

    def evaluation_loop(self, *args, **kwargs):
        if self.accelerator.num_processes > 1:
            self.gather_function = self._gather_as_one_process
        return super().evaluation_loop(*args, **kwargs)

    def _gather_as_one_process(self, values: Any) -> Any:
        """Gather losses (batch size) or predictions, and drop what one process would not have.

        On one process, Seq2SeqTrainer counts a last batch as a full one in the loss, even if it is smaller.
        """
        state, is_loss = self.accelerator.gradient_state, torch.is_tensor(values) and values.dim() == 1
        if not is_loss or not state.end_of_dataloader or state.remainder <= 0:
            return self.accelerator.gather_for_metrics(values)
        size = len(values)
        return self.accelerator.gather(values)[: math.ceil(state.remainder / size) * size]

    def batch_facts(self) -> dict[str, int | str | None]:
        """As ResumableTrainerMixin's, with the budgets of tokens, which are None where batches are counted in rows."""
        facts = super().batch_facts()
        per_batch = self.max_tokens_per_batch if self.max_tokens_per_update is None else None
        if self.batch_sampler is not None:
            tokens = {"tokens_per_update": self.batch_sampler.max_tokens, "tokens_per_batch": per_batch}
        elif self.stream is not None and self.stream.max_tokens is not None:
            steps = self.args.world_size * self.args.gradient_accumulation_steps
            tokens = {"tokens_per_update": self.stream.max_tokens * steps, "tokens_per_batch": per_batch}
        else:
            return facts | {"tokens_per_update": None}
        return facts | tokens | {"rows_per_update": None}
