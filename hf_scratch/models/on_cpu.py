# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Where the package's folder `cpu` puts in faster ways to compute the same on a CPU. Saved folders do without.

Importing hf_scratch fills `ON_CPU`:

    "dropout": dropout in training, in place of torch's;
    "attention": the attention function "sdpa" in training, in place of transformers';
    "decoding_loop": (model, options of `generate()`) to a `custom_generate` callable, or None for transformers' loop.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

ON_CPU: dict[str, Callable[..., Any]] = {}


def apply_dropout(hidden_states: torch.Tensor, p: float, training: bool) -> torch.Tensor:
    """Zero each element with probability `p` in training, and scale the others by 1 / (1 - p)."""
    if not training or p == 0.0:
        return hidden_states
    dropout = nn.functional.dropout
    if hidden_states.device.type == "cpu":
        dropout = ON_CPU.get("dropout", dropout)
    return dropout(hidden_states, p)
