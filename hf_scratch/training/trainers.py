# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Trainer and Seq2SeqTrainer with token-budget batches, R-Drop, unsmoothed evaluation losses and exact resuming."""

import math
from typing import Any, cast

import torch
from transformers import Seq2SeqTrainer, Trainer

from ..data.sampling import TokenBudgetBatchSampler, UpdateBatchSampler, check_longest, round_up
from .resuming import row_facts
from .trainer_mixin import ScratchTrainerMixin, data_seed


class LanguageModelTrainer(ScratchTrainerMixin, Trainer):
    """Trainer for ScratchGPT.

    Args:
        r_drop_alpha: weight of R-Drop's divergence in the loss (Liang et al. 2021). Above 0, a step sees each row
            twice.
        teacher_models: models of the same inputs and vocabulary, whose mean prediction is learnt as well (Hinton et
            al. 2015). They are not trained. Default: none.
        distillation_alpha: the share of that in the loss, from 0 to 1. The labels have the rest.
        muon: train the layers' matrices with Muon, and the rest with AdamW (see `MuonAdamW`).
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
        r_drop_alpha, teacher_models, distillation_alpha, muon: as for LanguageModelTrainer.
        max_tokens_per_update: at most this many tokens in a step, of all processes together, counted on the pairs'
            longer side with padding, also by the collator's `pad_to_multiple_of`. It replaces
            `per_device_train_batch_size` and `train_sampling_strategy`, and needs a column "length" in the training
            set. The gradient accumulation steps follow from `max_tokens_per_batch`, if that is given; otherwise
            there is one.
        max_tokens_per_batch: at most this many tokens in a batch on one device, for its memory. Without
            `max_tokens_per_update`, a step has as many for each process and gradient accumulation step.

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
        if (max_tokens_per_update or max_tokens_per_batch) is not None:
            share = self._share_rows if self.stream is None else self._share_stream
            self.args.gradient_accumulation_steps = share()

    def _share_rows(self) -> int:
        """Make the sampler, and return the gradient accumulation steps."""
        args = self.args
        options: Any = {"seed": data_seed(args), "pad_to_multiple_of": self._multiple()}
        tokens, limit, lengths = self.max_tokens_per_update, self.max_tokens_per_batch, self.row_lengths()
        if tokens is not None:
            self.batch_sampler = TokenBudgetBatchSampler(lengths, tokens, **options)
            return self.batch_sampler.share(args.world_size, limit)
        parts, per_batch = args.world_size * args.gradient_accumulation_steps, cast(int, limit)
        self.batch_sampler = TokenBudgetBatchSampler(lengths, per_batch * parts, parts, limit, **options)
        return args.gradient_accumulation_steps

    def _share_stream(self) -> int:
        """Batch the stream by tokens, and return the gradient accumulation steps."""
        stream: Any = self.stream
        size: Any = self.max_tokens_per_batch
        option, steps = "max_tokens_per_batch", self.args.gradient_accumulation_steps
        if self.max_tokens_per_update is not None:
            option, tokens = "max_tokens_per_update", self.max_tokens_per_update / self.args.world_size
            steps = math.ceil(tokens / size) if size else 1
            size = int(tokens / steps)
        check_longest(round_up(max(stream.encode.limits), self._multiple()), size, option)
        stream.max_tokens, stream.pad_to_multiple_of = size, self._multiple()
        return steps

    def _multiple(self) -> int | None:
        return getattr(self.data_collator, "pad_to_multiple_of", None)

    def make_batch_sampler(self) -> UpdateBatchSampler | None:
        """Make the sampler, by tokens if there is a budget of them."""
        return self.batch_sampler or super().make_batch_sampler()

    def get_total_train_batch_size(self, args) -> int:
        """As stock; with a budget of tokens, the mean number of rows, for `train_samples_per_second`."""
        if self.batch_sampler is None:
            return super().get_total_train_batch_size(args)
        return round(self.batch_sampler.update_sizes().mean())

    def batch_facts(self) -> dict[str, int | str | None]:
        """As `row_facts`, with the budgets of tokens, which are None where batches are counted in rows."""
        facts = row_facts(self)
        if self.batch_sampler is not None:
            tokens = self.batch_sampler.max_tokens
        elif self.stream is not None and self.stream.max_tokens is not None:
            tokens = self.stream.max_tokens * self.args.world_size * self.args.gradient_accumulation_steps
        else:
            return facts | {"tokens_per_update": None}
        per_batch = self.max_tokens_per_batch if self.max_tokens_per_update is None else None
        return facts | {"rows_per_update": None, "tokens_per_update": tokens, "tokens_per_batch": per_batch}
