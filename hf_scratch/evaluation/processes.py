# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""An evaluation shared out over all processes. Its result is that of one process, and every process gets it."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from accelerate import PartialState
from accelerate.utils import broadcast, broadcast_object_list, gather_object
from torch import nn
from torch.distributed.tensor import DTensor
from tqdm.auto import tqdm
from transformers import PreTrainedModel

B = TypeVar("B")
R = TypeVar("R")


def is_sharded(model: Any) -> bool:
    """Return whether the processes hold parts of the model's weights (FSDP2, tensor parallelism)."""
    return isinstance(model, nn.Module) and any(isinstance(weight, DTensor) for weight in model.parameters())


def own_batches(model: Any) -> slice:
    """Return which of an evaluation's batches this process computes: every n-th of n processes.

    Whole batches are dealt out, so that each is made of the same rows as on one process. A model whose weights are
    sharded computes every batch on all processes, because each of its steps needs all of them.
    """
    if is_sharded(model):
        return slice(None)
    state = PartialState()
    return slice(state.process_index, None, state.num_processes)


def gather_results(results: Iterable[tuple[int, R]]) -> list[R]:
    """Gather the results of all processes. All of them must call this.

    Args:
        results: this process's, each with its place among all, counted from 0.

    Returns:
        All results, in the order of their places.
    """
    return [result for _, result in sorted(dict(gather_object(list(results))).items())]


def compute_batches(model: Any, batches: Sequence[B], compute: Callable[[B], R], description: str) -> list[R]:
    """Call `compute` on each batch, on one of the processes. All of them must call this.

    Args:
        model: what `compute` runs.
        batches: all batches, the same on all processes.
        compute: makes a batch's result, which can be pickled.
        description: what the progress bar says.

    Returns:
        The result of each batch.
    """
    own = range(len(batches))[own_batches(model)]
    bar = tqdm(own, desc=description, unit=" batches", disable=not PartialState().is_main_process)
    return gather_results((i, compute(batches[i])) for i in bar)


def load_on_each_process(auto_class: Any, folder: str, device: Any) -> PreTrainedModel:
    """Load a saved model on all processes. All of them must call this.

    The main process reads the folder and sends the weights to the others. On another machine, the folder may be
    missing, or hold an earlier run's weights.

    Args:
        auto_class: the Auto class that loads the model.
        folder: the model's.
        device: the process's own.

    Returns:
        The model, in evaluation mode.
    """
    state = PartialState()
    model: Any = auto_class.from_pretrained(folder).to(device) if state.is_main_process else None
    if state.num_processes > 1:
        facts = [None] if model is None else [(model.config, model.generation_config, model.dtype)]
        config, generation_config, dtype = broadcast_object_list(facts)[0]
        if model is None:
            model = auto_class.from_config(config, dtype=dtype).to(device)
            model.generation_config = generation_config
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.data = broadcast(tensor.data.to(state.device)).to(device)
    return model.eval()
