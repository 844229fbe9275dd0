# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Logits a block of tokens at a time. All logits of a batch at once would be an evaluation's largest tensor."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from ..models.scratch_loss import rows_of_a_block


def iterate_logits(
    model: PreTrainedModel, inputs: dict[str, torch.Tensor], targets: torch.Tensor
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Compute the logits of all positions that have a target, a block of positions at a time.

    The model runs once, and its head then reads the hidden states of a block at a time. This works for every model
    whose logits are what the module `get_output_embeddings()` returns, also with an adapter or quantised weights. Of
    any other model, such as one that scales its logits, all logits are computed at once.

    Args:
        model: a model with a head.
        inputs: of its `forward`, with `input_ids` (batch, length).
        targets: (batch, length), int64, the token that each position predicts; -100 is left out.

    Yields:
        Logits (positions, vocabulary) in float32 and their targets (positions), both on one device. Positions come in
        the order of the rows, and by place in the row.
    """
    head: Any = model.get_output_embeddings()
    states, vocabulary = (None, 0) if head is None else _read_head_input(model, head, inputs)
    if states is None:
        states, head = model(**inputs, use_cache=False).logits, nn.Identity()
        states = states[:, -targets.shape[1] :]  # a tuned prompt of PEFT stands before the tokens
        vocabulary = states.shape[-1]
    targets = targets.to(states.device)
    rows, places = (targets != -100).nonzero(as_tuple=True)
    size = rows_of_a_block(states.device.type, vocabulary)
    for part in zip(rows.split(size), places.split(size), strict=True):
        logits = head(states[part]).float()
        yield logits, targets[part].to(logits.device)


def _read_head_input(
    model: PreTrainedModel, head: nn.Module, inputs: dict[str, torch.Tensor]
) -> tuple[torch.Tensor | None, int]:
    """Return the hidden states (batch, length, width) that the head reads, and the size of the vocabulary.

    The head computes the last position alone. Its result is compared with the model's logits there. If they differ,
    more than the head makes the logits, and the hidden states are None.
    """
    read = []

    def keep_last_position(module: nn.Module, args: tuple) -> tuple | None:
        if not args or args[0].shape[:-1] != inputs["input_ids"].shape:
            return None
        read.append(args[0])
        return args[0][:, -1:], *args[1:]

    with head.register_forward_pre_hook(keep_last_position):
        last = model(**inputs, use_cache=False).logits
    if len(read) == 1 and torch.equal(last.float(), head(read[0][:, -1:]).float()):
        return read[0], last.shape[-1]
    return None, last.shape[-1]
