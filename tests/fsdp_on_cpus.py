# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Run a training script under FSDP2 on CPUs, where accelerate would silently run DDP: `fsdp_on_cpus.py SCRIPT ARGS`.

The one difference is the line of accelerate's `AcceleratorState` that chooses FSDP for GPUs only. Everything after it
is what runs on GPUs, with gloo in place of NCCL. After sharding, the first process prints how many parameters are
sharded, for the tests to read.
"""

import functools
import os
import runpy
import sys

from accelerate import Accelerator
from accelerate.state import AcceleratorState, DistributedType, PartialState
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

choose_type, prepare = AcceleratorState.__init__, Accelerator.prepare


@functools.wraps(choose_type)
def choose_fsdp(self, *args, fsdp_plugin=None, **kwargs):
    is_new = not AcceleratorState._shared_state
    choose_type(self, *args, fsdp_plugin=fsdp_plugin, **kwargs)
    if is_new and fsdp_plugin is not None and self.distributed_type == DistributedType.MULTI_CPU:
        self.distributed_type = PartialState._shared_state["distributed_type"] = DistributedType.FSDP
        if self._mixed_precision != "no":
            fsdp_plugin.set_mixed_precision(self._mixed_precision)
        self.fsdp_plugin = fsdp_plugin


@functools.wraps(prepare)
def prepare_and_count(self, *args, **kwargs):
    result = prepare(self, *args, **kwargs)
    for model in result if isinstance(result, tuple | list) else [result]:
        if isinstance(model, FSDPModule):
            parameters = list(model.parameters())
            assert all(isinstance(parameter, DTensor) for parameter in parameters)
            whole, own = (sum(p.numel() for p in each) for each in (parameters, [p.to_local() for p in parameters]))
            assert own < whole
            if self.is_main_process:
                print(f"sharded: {len(parameters)} parameters, {own} of {whole} values on process 0", file=sys.stderr)
    return result


if __name__ == "__main__":
    AcceleratorState.__init__, Accelerator.prepare = choose_fsdp, prepare_and_count
    sys.argv = sys.argv[1:]
    sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
    runpy.run_path(sys.argv[0], run_name="__main__")
