# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Trainer and Seq2SeqTrainer with what our recipes need on top: token-budget batches, honest losses, averaging."""

import copy
import logging
import os
import time

import datasets
import torch
from accelerate.utils import broadcast_object_list
from torch.utils.data import DataLoader
from transformers import EarlyStoppingCallback, Seq2SeqTrainer, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from .checkpoints import average_checkpoints
from .data import TokenBudgetBatchSampler

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


class _LeanLoss:
    """A training step without the logits, with R-Drop if asked for, and an evaluation that reports the cross-entropy.

    Stock trainers smooth labels outside the model, on all of its logits, and in the evaluation too. Theirs also fills
    the model's generation config with every default.
    """

    def __init__(self, *args, r_drop_alpha: float = 0.0, **kwargs):
        if r_drop_alpha < 0:
            raise ValueError(f"`r_drop_alpha` must be 0 or more, got {r_drop_alpha}.")
        super().__init__(*args, **kwargs)
        self.r_drop_alpha = r_drop_alpha
        self.label_smoother = None
        self.add_callback(TrainingTime())

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        if model.training:
            if self.r_drop_alpha:
                inputs = {name: torch.cat([tensor, tensor]) for name, tensor in inputs.items()}
                num_items_in_batch = num_items_in_batch and 2 * num_items_in_batch
            inputs = {**inputs, "skip_logits": True, "label_smoothing": self.args.label_smoothing_factor}
            inputs["r_drop_alpha"] = self.r_drop_alpha
        return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)

    def evaluation_loop(self, *args, **kwargs):
        generation_config = copy.deepcopy(self.model.generation_config)
        try:
            return super().evaluation_loop(*args, **kwargs)
        finally:
            self.model.generation_config = generation_config


class LanguageModelTrainer(_LeanLoss, Trainer):
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


class TranslationTrainer(_LeanLoss, Seq2SeqTrainer):
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
                seed=self.args.data_seed if self.args.data_seed is not None else self.args.seed,
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
        )
        # accelerate cannot even out batches that have no common size; the sampler has made their number even
        dataloader_config = self.accelerator.dataloader_config
        even_batches, dataloader_config.even_batches = dataloader_config.even_batches, False
        try:
            return self.accelerator.prepare(dataloader)
        finally:
            dataloader_config.even_batches = even_batches  # evaluation needs it


class TrainingTime(TrainerCallback):
    """Writes the minutes since the start of training into the log; a resumed run goes on from its last entry."""

    def on_train_begin(self, args, state, control, **kwargs):
        """Start the clock."""
        before = [entry["minutes"] for entry in state.log_history if "minutes" in entry]
        self.start = time.monotonic() - 60 * (before[-1] if before else 0.0)

    def on_log(self, args, state, control, **kwargs):
        """Read it."""
        if state.log_history and hasattr(self, "start"):
            state.log_history[-1]["minutes"] = (time.monotonic() - self.start) / 60


class TimeLimit(TrainerCallback):
    """Stop after `minutes`, with a last evaluation and checkpoint. A resumed run starts a new count."""

    def __init__(self, minutes: float):
        if minutes <= 0:
            raise ValueError(f"`max_minutes` must be above 0, got {minutes}.")
        self.seconds = 60 * minutes

    def on_train_begin(self, args, state, control, **kwargs):
        """Start the clock."""
        self.start = time.monotonic()

    def on_step_end(self, args, state, control, **kwargs):
        """Stop when it is time."""
        is_over = [time.monotonic() - self.start > self.seconds]
        broadcast_object_list(is_over)  # the main process's clock: all have to stop at the same step
        if is_over[0]:
            control.should_training_stop = control.should_evaluate = control.should_save = True


def stopping_callbacks(data_args, args: TrainingArguments) -> list[TrainerCallback]:
    """What `max_minutes` and `early_stopping_patience` of a script's DataArguments ask for.

    Raises:
        ValueError: early stopping without evaluations, or without the best model at the end.
    """
    callbacks = []
    if data_args.max_minutes is not None:
        callbacks.append(TimeLimit(data_args.max_minutes))
    if data_args.early_stopping_patience is not None:
        if args.eval_strategy == "no" or not args.load_best_model_at_end:
            raise ValueError(
                f"`early_stopping_patience` is {data_args.early_stopping_patience}, which needs "
                "`load_best_model_at_end` and an `eval_strategy` of steps or epoch. Set them, or leave it out."
            )
        callbacks.append(EarlyStoppingCallback(data_args.early_stopping_patience))
    return callbacks


def last_checkpoints(output_dir: str, count: int) -> list[str]:
    """The folders of the last `count` checkpoints, oldest first."""
    prefix = PREFIX_CHECKPOINT_DIR + "-"
    steps = [int(name[len(prefix) :]) for name in os.listdir(output_dir) if name.startswith(prefix)]
    return [os.path.join(output_dir, f"{prefix}{step}") for step in sorted(steps)[max(len(steps) - count, 0) :]]


def keep_better_weights(trainer: Trainer, num_checkpoints: int) -> dict:
    """Evaluate the average of the last checkpoints against the weights at hand, and keep the one of lower loss in the
    model. Greedy BLEU on a thousand sentences is too noisy to choose by.

    Args:
        trainer: after `train()`; its model holds the last weights, or the best with `load_best_model_at_end`.
        num_checkpoints: how many to average.

    Returns:
        The evaluation of what was kept, with `weights` saying "averaged" or "trained".
    """
    model = trainer.accelerator.unwrap_model(trainer.model)
    trained = trainer.evaluate()
    folders = last_checkpoints(trainer.args.output_dir, num_checkpoints)
    if len(folders) < 2:  # the average of one is no other
        return {**trained, "weights": "trained"}
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model.load_state_dict(average_checkpoints(folders), strict=False)  # tied weights are saved under one name
    averaged = trainer.evaluate()
    before_loss, loss = trained["eval_loss"], averaged["eval_loss"]
    logger.info(f"eval_loss: {before_loss:.4f}; averaged over {len(folders)} checkpoints {loss:.4f}")
    if loss < before_loss:
        return {**averaged, "weights": f"averaged over {len(folders)} checkpoints"}
    model.load_state_dict(before)
    return {**trained, "weights": "trained"}
