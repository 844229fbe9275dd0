# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Trainer and Seq2SeqTrainer with token-budget batches, R-Drop, plain evaluation losses and exact resuming."""

import math
from typing import Any

import torch
from transformers import Seq2SeqTrainer, Trainer

from ..data.sampling import (
    TokenBudgetBatchSampler,
    UpdateBatchSampler,
    check_longest,
    round_up,
)
from ..data.streaming import RowStream
from .trainer_mixin import ScratchTrainerMixin, data_seed


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
        modules = [] if self.decay_embeddings else model.named_modules()
        embeddings = {f"{name}.weight" for name, module in modules if isinstance(module, torch.nn.Embedding)}
        return [name for name in super().get_decay_parameter_names(model) if name not in embeddings]


class TranslationTrainer(ScratchTrainerMixin, Seq2SeqTrainer):
    """Seq2SeqTrainer for ScratchTransformer.

    Args:
        r_drop_alpha, teacher_models, distillation_alpha, ema_decay: as for LanguageModelTrainer.
        max_tokens_per_update: at most this many tokens in an update, of all processes together, counted on the pairs'
            longer side with padding, also by the collator's `pad_to_multiple_of`. It replaces
            `per_device_train_batch_size` and `train_sampling_strategy`, and needs a column "length" in the training
            set. The steps of gradient accumulation follow from `max_tokens_per_batch`, if that is given; otherwise
            there is one.
        max_tokens_per_batch: at most this many tokens in a batch on one device, for its memory. Without
            `max_tokens_per_update`, an update has as many for each process and step of gradient accumulation.

    Raises:
        ValueError: a budget is less than the longest row.
    """

    def __init__(
        self,
        *args,
        max_tokens_per_update: int | None = None,
        max_tokens_per_batch: int | None = None,
        **kwargs,
    ):
        self.max_tokens_per_update, self.max_tokens_per_batch = max_tokens_per_update, max_tokens_per_batch
        self.batch_sampler: TokenBudgetBatchSampler | None = None
        super().__init__(*args, **kwargs)
        if (max_tokens_per_update or max_tokens_per_batch) is None:
            return
        if isinstance(self.train_dataset, RowStream):
            self._share_stream(self.train_dataset)
        else:
            self.batch_sampler = self._make_budget_sampler()

    def _make_budget_sampler(self) -> TokenBudgetBatchSampler:
        """Make the sampler, and set the steps of gradient accumulation."""
        args = self.args
        options: Any = {"seed": data_seed(args), "pad_to_multiple_of": self._multiple()}
        tokens, limit, lengths = self.max_tokens_per_update, self.max_tokens_per_batch, self.row_lengths()
        if tokens is None:
            parts = args.world_size * args.gradient_accumulation_steps
            per_batch: Any = limit
            return TokenBudgetBatchSampler(lengths, per_batch * parts, parts, limit, **options)
        sampler = TokenBudgetBatchSampler(lengths, tokens, **options)
        args.gradient_accumulation_steps = sampler.share(args.world_size, limit)
        return sampler

    def _multiple(self) -> int | None:
        return getattr(self.data_collator, "pad_to_multiple_of", None)

    def _share_stream(self, stream: RowStream) -> None:
        """Batch a stream of pairs by tokens, and set the steps of gradient accumulation."""
        args, option = self.args, "max_tokens_per_batch"
        size: Any = self.max_tokens_per_batch
        if self.max_tokens_per_update is not None:
            option, share = "max_tokens_per_update", self.max_tokens_per_update / args.world_size
            args.gradient_accumulation_steps = math.ceil(share / size) if size else 1
            size = int(share / args.gradient_accumulation_steps)
        pairs: Any = stream.encode
        check_longest(round_up(max(pairs.limits), self._multiple()), size, option)
        stream.max_tokens, stream.pad_to_multiple_of = size, self._multiple()

    def make_batch_sampler(self) -> UpdateBatchSampler | None:
        """Make the sampler, by tokens if there is a budget of them."""
        return self.batch_sampler or super().make_batch_sampler()

    def set_initial_training_values(self, args, dataloader):
        """As stock, with the rows that a training by tokens sees, for `train_samples_per_second`."""
        values: Any = super().set_initial_training_values(args, dataloader)
        epochs, updates_per_epoch, num_examples, num_samples, *others, max_steps = values
        if self.batch_sampler is not None:
            num_samples = num_examples * max_steps / updates_per_epoch
        return (epochs, updates_per_epoch, num_examples, num_samples, *others, max_steps)

    def batch_facts(self) -> dict[str, int | str | None]:
        """As the mixin's, with the budgets of tokens, which are None where batches are counted in rows."""
        facts, rows = super().batch_facts(), self.train_dataset
        if self.batch_sampler is not None:
            tokens = self.batch_sampler.max_tokens
        elif isinstance(rows, RowStream) and rows.max_tokens is not None:
            tokens = rows.max_tokens * self.args.world_size * self.args.gradient_accumulation_steps
        else:
            return facts | {"tokens_per_update": None}
        per_batch = self.max_tokens_per_batch if self.max_tokens_per_update is None else None
        return facts | {"rows_per_update": None, "tokens_per_update": tokens, "tokens_per_batch": per_batch}
