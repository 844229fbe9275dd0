# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""FSDP2, which splits weights, gradients and optimiser state among the processes, and its checkpoints of shards."""

import os
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast
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
    """Change accelerate's settings for FSDP2, if it shards.

    All processes begin with the first one's weights. In bfloat16, gradients are summed in float32, and the loss keeps
    its float32; accelerate rounds both.

    Raises:
        ValueError: FSDP1 is configured.
    """
    plugin = fsdp_plugin(accelerator)
    if plugin is None:
        return
    if plugin.fsdp_version != 2:
        raise ValueError(f"`fsdp_version` is {plugin.fsdp_version}, and only FSDP2 is supported. Set it to 2.")
    plugin.cpu_ram_efficient_loading = False
    os.environ["FSDP_CPU_RAM_EFFICIENT_LOADING"] = "false"  # read whenever a model is loaded
    if plugin.mixed_precision_policy is not None:
        plugin.mixed_precision_policy = replace(
            plugin.mixed_precision_policy, reduce_dtype=torch.float32, output_dtype=None
        )


def start_sharding(model: Any, accelerator: Accelerator) -> None:
    """Give all processes the first one's weights, and shard the shared ones; accelerate shards the rest after this.

    Without FSDP2, or for a model that is sharded already, do nothing.
    """
    if fsdp_plugin(accelerator) is None or isinstance(model, FSDPModule):
        return
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.data.copy_(broadcast(tensor.data.to(accelerator.device)))
    if accelerator.mixed_precision != "no":
        model.float()  # accelerate cannot do it for weights that are sharded already
    shard_shared_weights(model, accelerator)


def shard_shared_weights(model: nn.Module, accelerator: Accelerator) -> None:
    """Shard each weight that several modules share, together with these modules.

    accelerate does so only for an input embedding that is tied to the head. FSDP2 needs it for all: a weight must
    belong to one group.
    """
    plugin: Any = accelerator.state.fsdp_plugin
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


def gather_weights(model: Any, accelerator: Accelerator) -> dict[str, torch.Tensor]:
    """Gather the whole weights, tied ones once. All processes must call this; the first one gets them."""
    tied = getattr(model, "all_tied_weights_keys", {})
    return {name: weight for name, weight in accelerator.get_state_dict(model).items() if name not in tied}


def has_shards(checkpoint: str | Path) -> bool:
    """Return whether a checkpoint holds its weights in shards (torch.distributed.checkpoint)."""
    return Path(checkpoint, SHARDS).is_dir()


def read_shards(checkpoint: str | Path, like: dict[str, torch.Tensor] | None = None) -> dict[str, torch.Tensor]:
    """Read the weights of a checkpoint of shards.

    Args:
        checkpoint: the checkpoint's folder.
        like: the weights of a model that FSDP2 shards. Each process then reads its part of them alone, and all
            processes must call this. Default: whole weights.

    Returns:
        New tensors, sharded as `like`, or whole.
    """
    reader = FileSystemReader(Path(checkpoint, SHARDS))
    if like is not None:
        weights = {name: torch.empty_like(tensor) for name, tensor in like.items()}
    else:
        weights = {
            name.removeprefix(PREFIX): torch.empty(entry.size, dtype=entry.properties.dtype)
            for name, entry in reader.read_metadata().state_dict_metadata.items()
            if isinstance(entry, TensorStorageMetadata)
        }
    state: dict[str, Any] = {f"{PREFIX}{name}": tensor for name, tensor in weights.items()}
    with warnings.catch_warnings():  # torch says that one process reads alone, which is what is wanted
        warnings.filterwarnings("ignore", "torch.distributed is disabled")
        load(state, storage_reader=reader, no_dist=like is None)
    return weights
