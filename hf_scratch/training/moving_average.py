# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""An exponential moving average of the weights over a training's updates."""

from pathlib import Path

import torch
from accelerate import PartialState
from safetensors.torch import load_file, save_file
from torch.distributed.tensor import DTensor
from torch.optim.swa_utils import get_ema_multi_avg_fn
from transformers import TrainerCallback

from ..errors import UserError

FILE = "moving_average.safetensors"  # of a checkpoint


class MovingAverage(TrainerCallback):
    """Keeps `decay` of the average after each update, and adds the rest of the new weights.

    After n updates, the decay is at most (1 + n) / (10 + n), so that the initial weights are soon forgotten. The
    average is in float32, and takes as much memory as the weights. The training itself does not change.

    Args:
        decay: above 0 and below 1. The average reaches back over about 1 / (1 - decay) updates.

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
            save_file(self.weights, checkpoint / FILE)

    def load(self, checkpoint: Path | None) -> None:
        """Read the average from a checkpoint's folder. A new run, and a checkpoint without one, begin their own."""
        is_there = checkpoint is not None and (checkpoint / FILE).is_file()
        self.weights = load_file(checkpoint / FILE) if is_there else {}
