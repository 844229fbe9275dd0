# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""An evaluation shared out over all processes. Its result is that of one process, and every process gets it."""

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from accelerate import PartialState
from accelerate.utils import gather_object
from transformers.utils import logging

B = TypeVar("B")
R = TypeVar("R")


def own_batches() -> slice:
    """Return which of an evaluation's batches this process computes: every n-th of n processes.

    Whole batches are dealt out, so that each is made of the same rows as on one process.
    """
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


def compute_batches(batches: Sequence[B], compute: Callable[[B], R], description: str) -> list[R]:
    """Call `compute` on each batch, on one of the processes. All of them must call this.

    Args:
        batches: all batches, the same on all processes.
        compute: makes a batch's result, which can be pickled.
        description: what the progress bar says.

    Returns:
        The result of each batch.
    """
    own = range(len(batches))[own_batches()]
    bar = logging.tqdm(own, desc=description, unit=" batches", disable=not PartialState().is_main_process)
    return gather_results((i, compute(batches[i])) for i in bar)
