# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Average weights over the steps of a training or over its last checkpoints, and keep those with the lowest loss."""

import logging
import math
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from safetensors.torch import load_file, save_file
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.optim.swa_utils import get_ema_multi_avg_fn
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer import TRAINER_STATE_NAME

from ..errors import UserError
from ..loading import require_output_dir
from ..manifest import MANIFEST, write_manifest
from .checkpoints import is_early, step_of
from .fsdp import has_shards, read_shards
from .main_process import on_main_process

logger = logging.getLogger(__name__)
MOVING_AVERAGE = "moving_average.safetensors"  # of a checkpoint


class MovingAverage(TrainerCallback):
    """Keeps `decay` of the average after each step, and adds the rest of the new weights.

    After n steps, the decay is at most (1 + n) / (10 + n), so that the initial weights are soon forgotten. The
    average is in float32, and takes as much memory as the weights. The training itself does not change.

    Args:
        decay: above 0 and below 1. The average reaches back over about 1 / (1 - decay) steps.

    Raises:
        ValueError: `decay` is outside.
    """

    def __init__(self, decay: float):
        if not 0 < decay < 1:
            raise ValueError(f"`ema_decay` must be above 0 and below 1, got {decay}.")
        self.decay = decay
        self.weights: dict[str, torch.Tensor] = {}

    def on_train_begin(self, args, state, control, **kwargs):
        """Begin with a copy of the weights, or with the average of the checkpoint.

        Raises:
            UserError: the weights are split among processes.
        """
        weights = dict(kwargs["model"].named_parameters())
        if any(isinstance(weight, DTensor) for weight in weights.values()):
            raise UserError(
                f"`ema_decay` is {self.decay}, but the weights are split among processes. Set `average_checkpoints`, "
                "or do not split them."
            )
        before = self.weights or weights
        copies = {name: before[name].detach().to(weight.device, torch.float32) for name, weight in weights.items()}
        self.weights = {name: copy.clone() for name, copy in copies.items()}

    def on_step_end(self, args, state, control, **kwargs):
        """Move the average towards the weights."""
        decay = min(self.decay, (1 + state.global_step) / (10 + state.global_step))
        weights = {name: weight.detach().float() for name, weight in kwargs["model"].named_parameters()}
        averages = [self.weights[name] for name in weights]
        get_ema_multi_avg_fn(decay)(averages, list(weights.values()), state.global_step)

    def save(self, checkpoint: Path) -> None:
        """Write the average into a checkpoint's folder, on the main process."""
        if PartialState().is_main_process:
            save_file(self.weights, checkpoint / MOVING_AVERAGE)

    def load(self, checkpoint: Path | None) -> None:
        """Read the average from a checkpoint's folder. A new run, and a checkpoint without one, begin their own."""
        is_there = checkpoint is not None and (checkpoint / MOVING_AVERAGE).is_file()
        self.weights = load_file(checkpoint / MOVING_AVERAGE) if is_there else {}


def average_checkpoints(folders: Sequence[str | Path]) -> dict[str, torch.Tensor]:
    """Average the weights of checkpoints (Vaswani et al. 2017, section 6.1).

    Args:
        folders: the checkpoints, of one model. Each holds a `model.safetensors`, or the shards of FSDP2.

    Returns:
        The mean of each weight, whole, under its name and in its dtype.

    Raises:
        FileNotFoundError: a folder holds neither (but an adapter, or weights in several files).
    """
    totals: dict[str, torch.Tensor] = {}
    for folder in folders:
        state = read_shards(folder) if has_shards(folder) else load_file(Path(folder, "model.safetensors"))
        for name, tensor in state.items():
            # summed in float64, so that the mean of equal checkpoints equals them bit for bit
            totals[name] = totals.get(name, 0) + tensor.double()
    return {name: (total / len(folders)).to(state[name].dtype) for name, total in totals.items()}


def check_averages(
    args: TrainingArguments, average_checkpoints: int, ema_decay: float | None, splits: Collection[str]
) -> None:
    """Raise ValueError if averages are wanted, but fewer checkpoints are kept or there is no validation data."""
    kept = 0 if args.save_strategy == "no" else args.save_total_limit or average_checkpoints
    if kept < average_checkpoints:
        raise ValueError(
            f"`average_checkpoints` is {average_checkpoints}, but the run keeps {kept} (`save_strategy`, "
            "`save_total_limit`). Keep that many, or average fewer."
        )
    if (average_checkpoints > 1 or ema_decay is not None) and "validation" not in splits:
        raise ValueError(
            "`average_checkpoints` and `ema_decay` need validation data, by which the weights are chosen. Give "
            "`--validation_file`, or leave them out."
        )


def save_final_model(trainer: Trainer) -> None:
    """Save the model, its tokenizer and the trainer's state in `output_dir`.

    A manifest lists the weights and the tokenizer. Config files are not in it, because users may edit them.
    """
    folder = Path(require_output_dir(trainer.args))
    if trainer.args.should_save:
        (folder / MANIFEST).unlink(missing_ok=True)
    trainer.save_model()
    if trainer.args.should_save:
        trainer.state.save_to_json(str(folder / TRAINER_STATE_NAME))
        names = (path.name for path in folder.iterdir())
        write_manifest(folder, sorted(n for n in names if n.endswith(".safetensors") or n == "tokenizer.json"))
    trainer.accelerator.wait_for_everyone()  # all processes load the model next


def evaluate_and_select_weights(trainer: Any, num_checkpoints: int) -> dict:
    """Keep the weights with the lowest validation loss in the model: the trained ones, or an average.

    Candidates are the average of the last checkpoints and the trainer's `moving_average`. The loss decides, because
    greedy BLEU on a thousand sentences is too noisy. `bf16_full_eval` and `fp16_full_eval` are ignored: they would
    round the model's weights.

    Args:
        trainer: one of ours, after `train()`; its model holds the last weights, or the best with
            `load_best_model_at_end`. It has one evaluation set.
        num_checkpoints: how many to average. Below 2, no checkpoints are averaged.

    Returns:
        The evaluation of the weights that were kept, with "weights": "trained", or e.g. "averaged over 10
        checkpoints" or "moving average (decay 0.999)".

    Raises:
        FileNotFoundError: a checkpoint cannot be averaged (see `average_checkpoints`).
    """
    model = trainer.model
    state: dict[str, Any] = get_model_state_dict(model)  # under FSDP2, this process's part of each weight
    candidates: dict[str, dict[str, Any]] = {}
    # early ones, which an uninterrupted run lacks, are left out, except where a time limit has ended the run
    last, saved = trainer.state.global_step, on_main_process(trainer.checkpoints.saved)
    folders = [folder for folder in saved if not is_early(folder) or step_of(folder) == last][-num_checkpoints:]
    if num_checkpoints > 1 and len(folders) > 1:
        candidates[f"averaged over {len(folders)} checkpoints"] = average_checkpoints(folders)
    if (moving := trainer.moving_average) is not None:
        candidates[f"moving average (decay {moving.decay:g})"] = moving.weights
    kept, metrics = "trained", _evaluate(trainer)
    if candidates:
        best = {name: tensor.clone() for name, tensor in state.items()}
        for name, weights in candidates.items():
            load_weights(model, weights)
            others = _evaluate(trainer)
            logger.info(f"eval_loss: {kept} {metrics['eval_loss']:.4f}; {name} {others['eval_loss']:.4f}")
            if math.isnan(metrics["eval_loss"]) or others["eval_loss"] < metrics["eval_loss"]:
                best, kept, metrics = weights, name, others
        load_weights(model, best)
    return {**metrics, "weights": kept}


def _evaluate(trainer: Trainer) -> dict:
    args = trainer.args
    before = args.bf16_full_eval, args.fp16_full_eval
    args.bf16_full_eval = args.fp16_full_eval = False
    try:
        return trainer.evaluate()
    finally:
        args.bf16_full_eval, args.fp16_full_eval = before


def load_weights(model: torch.nn.Module, weights: dict[str, torch.Tensor]) -> None:
    """Load whole or sharded weights into a model. Of tied weights, one name is enough."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()  # a forward pass leaves the root whole
    options = StateDictOptions(full_state_dict=not any(isinstance(w, DTensor) for w in weights.values()), strict=False)
    set_model_state_dict(model, dict(weights), options=options)  # a copy: torch puts shards into it
