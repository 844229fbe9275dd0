# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Training under FSDP2, which splits weights, gradients and optimiser state among the processes."""

import logging
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, StateDictType, fully_shard

from ..errors import UserError
from .resuming import ResumableTrainerMixin
from .shards import state_dict_type

logger = logging.getLogger(__name__)


class ShardedTrainerMixin(ResumableTrainerMixin):
    """What FSDP2 needs besides accelerate and Trainer. Without FSDP2, nothing changes.

    - All processes begin with the first one's weights, whatever `fsdp_cpu_ram_efficient_loading` says.
    - Weights that several modules share, such as tied embeddings, are gathered together.
    - In bfloat16, gradients are summed in float32, and the loss keeps its float32. accelerate rounds both.
    - A checkpoint of shards has the config and the tokenizer too. `save_model` writes a whole model.

    Raises:
        ValueError: FSDP1 is configured.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        plugin = self._fsdp_plugin()
        if plugin is None:
            if os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true":
                logger.warning(
                    f"FSDP is configured, but accelerate shards on several accelerators only. Here, each of "
                    f"{self.args.world_size} processes on {self.args.device.type} holds the whole model (DDP)."
                )
            return
        if plugin.fsdp_version != 2:
            raise ValueError(
                f"`fsdp_version` is {plugin.fsdp_version}, and only FSDP2 is supported. Set `fsdp_version: 2` in "
                "accelerate's configuration, as scripts/accelerate/fsdp2.yaml does."
            )
        plugin.cpu_ram_efficient_loading = False
        os.environ["FSDP_CPU_RAM_EFFICIENT_LOADING"] = "false"  # read whenever a model is loaded
        if plugin.mixed_precision_policy is not None:
            plugin.mixed_precision_policy = replace(
                plugin.mixed_precision_policy, reduce_dtype=torch.float32, output_dtype=None
            )

    def _fsdp_plugin(self) -> Any:
        """accelerate's settings for FSDP; None where it does not shard."""
        return getattr(self.accelerator.state, "fsdp_plugin", None)

    def create_optimizer(self, *args, **kwargs) -> torch.optim.Optimizer:
        """As stock. Under FSDP2, it shards shared weights first: accelerate shards the rest after this."""
        model: Any = self.model
        if self._fsdp_plugin() is not None and not isinstance(model, FSDPModule):
            broadcast_weights(model, self.args.device)
            if self.accelerator.mixed_precision != "no":
                model.float()  # accelerate cannot do it for weights that are sharded already
            shard_shared_weights(model, self.accelerator)
        return super().create_optimizer(*args, **kwargs)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """As stock, and the whole model also where checkpoints have shards. All processes must call this.

        Trainer calls it for a checkpoint's folder too. Its weights are in shards beside what is saved here.
        """
        plugin = self._fsdp_plugin()
        if plugin is None or plugin.state_dict_type != StateDictType.SHARDED_STATE_DICT:
            super().save_model(output_dir, _internal_call)
        elif _internal_call and output_dir is not None:
            self._save(output_dir, state_dict={})
        else:
            plugin.set_state_dict_type("FULL_STATE_DICT")
            try:
                super().save_model(output_dir, _internal_call)
            finally:
                plugin.set_state_dict_type("SHARDED_STATE_DICT")

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        try:
            super()._load_optimizer_and_scheduler(checkpoint)
        except (CheckpointException, IndexError) as error:
            problem = "it groups its parameters otherwise"  # for which the schedule raises IndexError
            if isinstance(error, CheckpointException):
                problem = str(next(iter(error.failures.values()))[0]).rstrip(".")
            raise UserError(
                f"The optimiser state in {checkpoint} does not fit this run ({problem}). Resume with the optimiser "
                "and weight decay options that the run was begun with."
            ) from error

    def _save(self, output_dir: str | None = None, state_dict: dict | None = None) -> None:
        """As stock, but gathered weights that are tied are saved once. Stock knows them by the memory they share."""
        model: Any = self.model
        tied = getattr(model, "all_tied_weights_keys", {}) if state_dict else {}
        state_dict = state_dict and {name: tensor for name, tensor in state_dict.items() if name not in tied}
        super()._save(output_dir, state_dict)

    def check_same_run(self, checkpoint: str | Path) -> None:
        """As ResumableTrainerMixin's. Also, FSDP must save this run's checkpoints as it saved that one.

        Raises:
            UserError: as there; or one is saved by FSDP and the other is not, or in another form.
        """
        plugin = self._fsdp_plugin()
        now = None if plugin is None else StateDictType(plugin.state_dict_type).name
        saved = state_dict_type(checkpoint)
        if saved != now:
            ways = [f"by FSDP as `{kind}`" if kind else "without FSDP" for kind in (saved, now)]
            raise UserError(
                f"{checkpoint} was saved {ways[0]}, and this run saves {ways[1]}. Resume with the configuration of "
                "accelerate that the run was begun with (`fsdp_state_dict_type`)."
            )
        super().check_same_run(checkpoint)


def broadcast_weights(model: nn.Module, device: torch.device) -> None:
    """Give all processes the first process's weights and buffers, as DDP does.

    Args:
        model: on any device.
        device: the device that communicates.
    """
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.data.copy_(broadcast(tensor.data.to(device)))


def shard_shared_weights(model: nn.Module, accelerator: Accelerator) -> None:
    """Shard each weight that several modules share, together with these modules.

    accelerate does so only for an input embedding that is tied to the head. FSDP2 needs it for all: a weight must
    belong to one group.

    Args:
        model: a model on which `fully_shard` has not been called yet.
        accelerator: its FSDP settings are used.
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
