# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""FSDP2, which splits weights, gradients and optimizer state among the processes: what accelerate leaves to do."""

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import nn
from torch.distributed.checkpoint import FileSystemReader, load
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from ..loading import SHARDS

PREFIX = "model."  # of each weight's name in the shards


def fsdp_plugin(accelerator: Accelerator) -> Any:
    """accelerate's settings for FSDP; None where it does not shard."""
    return getattr(accelerator.state, "fsdp_plugin", None)


def prepare_fsdp(accelerator: Accelerator) -> None:
    """Check accelerate's settings for FSDP, and keep gradient sums and the loss in float32; bfloat16 rounds both.

    Raises:
        ValueError: FSDP1 is configured, or weights that only the first process loads.
    """
    plugin = fsdp_plugin(accelerator)
    if plugin is None:
        return
    if plugin.fsdp_version != 2 or plugin.cpu_ram_efficient_loading:
        raise ValueError(
            "FSDP needs `fsdp_version: 2` and `fsdp_cpu_ram_efficient_loading: false` in accelerate's configuration: "
            "see scripts/accelerate/fsdp2.yaml."
        )
    policy = plugin.mixed_precision_policy
    if policy is not None:
        plugin.mixed_precision_policy = replace(policy, reduce_dtype=torch.float32, output_dtype=None)


def shard_shared_weights(model: nn.Module, accelerator: Accelerator) -> None:
    """Shard each weight that several modules share, together with these modules; accelerate shards the rest later.

    FSDP2 needs it: a weight must belong to one group. accelerate does so only for an input embedding that is tied to
    the head. Without FSDP2, or for a model that is sharded already, do nothing.
    """
    plugin = fsdp_plugin(accelerator)
    if plugin is None or isinstance(model, FSDPModule):
        return
    if plugin.mixed_precision_policy is not None:
        model.float()  # accelerate cannot do it for weights that are sharded already
    parallelism: Any = accelerator.parallelism_config  # None unless weights are both split and copied
    mesh = accelerator.torch_device_mesh
    modules_of: dict[nn.Parameter, list[nn.Module]] = {}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            modules_of.setdefault(parameter, []).append(module)
    for modules in modules_of.values():
        if len(modules) > 1:
            fully_shard(
                modules,
                mesh=None if mesh is None else mesh[tuple(parallelism.fsdp_dim_names)],
                reshard_after_forward=False,  # used first and last in a forward pass
                mp_policy=plugin.mixed_precision_policy or MixedPrecisionPolicy(),
                offload_policy=plugin.cpu_offload,
            )


def read_shards(checkpoint: str | Path) -> dict[str, torch.Tensor]:
    """Read the whole weights of a checkpoint of shards, in this process alone."""
    reader = FileSystemReader(Path(checkpoint, SHARDS))
    state: dict[str, Any] = {
        name: torch.empty(entry.size, dtype=entry.properties.dtype)
        for name, entry in reader.read_metadata().state_dict_metadata.items()
        if isinstance(entry, TensorStorageMetadata)
    }
    with warnings.catch_warnings():  # torch says that one process reads alone, which is what is wanted
        warnings.filterwarnings("ignore", "torch.distributed is disabled")
        load(state, storage_reader=reader, no_dist=True)
    return {name.removeprefix(PREFIX): weight for name, weight in state.items()}
