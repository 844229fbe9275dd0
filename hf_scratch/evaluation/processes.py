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
    """Return which of an evaluation's batches this process computes: whole ones, every n-th of n processes."""
    state = PartialState()
    return slice(state.process_index, None, state.num_processes)


def gather_results(results: Iterable[tuple[int, R]]) -> list[R]:
    """Gather the results of all processes, all of which must call this.

    Args:
        results: this process's, each with its place among all, counted from 0.

    Returns:
        All results, in the order of their places.
    """
    return [result for _, result in sorted(dict(gather_object(list(results))).items())]


def compute_batches(rows: Sequence[B], batch_size: int, compute: Callable[[Sequence[B]], R], what: str) -> list[R]:
    """Call `compute` on each batch of rows, on one of the processes, all of which must call this.

    Args:
        rows: all rows, the same on all processes.
        batch_size: rows per batch.
        compute: makes a batch's result, which can be pickled.
        what: what the progress bar says.

    Returns:
        The results of all batches, in their order.
    """
    batches = [rows[begin : begin + batch_size] for begin in range(0, len(rows), batch_size)]
    own = range(len(batches))[own_batches()]
    bar = logging.tqdm(own, desc=what, unit=" batches", disable=not PartialState().is_main_process)
    return gather_results((i, compute(batches[i])) for i in bar)
