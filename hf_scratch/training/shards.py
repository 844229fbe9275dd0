# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Checkpoints whose weights FSDP2 has saved in shards, by torch.distributed.checkpoint: their shapes and values."""

import warnings
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint import FileSystemReader, load
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from ..loading import SHARDS

PREFIX = "model."  # of each weight's name in the shards


def has_shards(checkpoint: str | Path) -> bool:
    """Return whether a checkpoint holds its weights in shards (torch.distributed.checkpoint)."""
    return Path(checkpoint, SHARDS).is_dir()


def state_dict_type(checkpoint: str | Path) -> str | None:
    """Return the form in which FSDP saved a checkpoint, by its name in accelerate; None without FSDP."""
    if has_shards(checkpoint):
        return "SHARDED_STATE_DICT"
    return "FULL_STATE_DICT" if Path(checkpoint, f"{SHARDS.removesuffix('_0')}.bin").is_file() else None


def shapes_of_shards(checkpoint: str | Path) -> dict[str, tuple[int, ...]]:
    """Return the whole shape of each weight of a checkpoint of shards."""
    return {name: tuple(entry.size) for name, entry in _entries(checkpoint).items()}


def _entries(checkpoint: str | Path) -> dict[str, TensorStorageMetadata]:
    entries = FileSystemReader(Path(checkpoint, SHARDS)).read_metadata().state_dict_metadata
    return {
        name.removeprefix(PREFIX): entry for name, entry in entries.items() if isinstance(entry, TensorStorageMetadata)
    }


def read_shards(checkpoint: str | Path, like: dict[str, torch.Tensor] | None = None) -> dict[str, torch.Tensor]:
    """Read the weights of a checkpoint of shards.

    Args:
        checkpoint: the checkpoint's folder.
        like: the weights of a model that FSDP2 shards. Each process then reads its part of them alone, and all
            processes must call this. Default: whole weights.

    Returns:
        New tensors, sharded as `like`, or whole.
    """
    if like is not None:
        weights = {name: torch.empty_like(tensor) for name, tensor in like.items()}
    else:
        entries = _entries(checkpoint)
        weights = {name: torch.empty(entry.size, dtype=entry.properties.dtype) for name, entry in entries.items()}
    state: dict[str, Any] = {f"{PREFIX}{name}": tensor for name, tensor in weights.items()}
    with warnings.catch_warnings():  # torch says that one process reads alone, which is what is wanted
        warnings.filterwarnings("ignore", "torch.distributed is disabled")
        load(state, storage_reader=FileSystemReader(Path(checkpoint, SHARDS)), no_dist=like is None)
    return weights
