# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Samplers of training rows: the rows of each step, the same on any number of processes.

A sampler chooses the rows of a step, and divides them into parts: one for each process and each gradient
accumulation step. So a step's rows depend on the seed and the epoch, and not on the number of processes. In code, a
step is an update, as in `max_tokens_per_update`.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import RandomSampler, Sampler, SequentialSampler
from transformers.trainer_pt_utils import LengthGroupedSampler


class UpdateBatchSampler(Sampler[list[int]]):
    """Base of the samplers: yields the parts of each step one after the other, or one process's parts.

    A part has every n-th row, so that the parts have as many rows each, or one more. Parts of a step with fewer
    rows than parts are empty (see `EmptyPartCollator`), or left out.

    Args:
        parts: parts of a step: the processes times the gradient accumulation steps.

    Attributes:
        process_index, num_processes: the process whose parts are yielded. Default: all parts.
    """

    def __init__(self, parts: int = 1):
        self.parts = parts
        self.process_index, self.num_processes = 0, 1
        self.epoch = 0
        self.batch_size = None  # accelerate reads it: the parts have no common size
        self.drop_last = False
        self.sampler = self  # accelerate looks here for `set_epoch` after it has skipped batches
        self.collator: Any = None  # the batches' collator, which may draw random numbers by the epoch

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch's order. Trainer and accelerate call this at the start of each epoch."""
        self.epoch = epoch
        if hasattr(self.collator, "set_epoch"):
            self.collator.set_epoch(epoch)

    def update_sizes(self) -> np.ndarray:
        """Return how many rows each step of an epoch has, in no order of the steps."""
        raise NotImplementedError

    def updates(self) -> Iterator[np.ndarray]:
        """Yield the rows of each step of the epoch."""
        raise NotImplementedError

    def part_counts(self, sizes: np.ndarray) -> np.ndarray:
        """Return how many parts updates of these sizes have: equally many for each process."""
        return np.full_like(sizes, self.parts)

    def __iter__(self) -> Iterator[list[int]]:
        for rows in self.updates():
            count = int(self.part_counts(np.array(len(rows))))
            for part in range(self.process_index, count, self.num_processes):
                yield rows[part :: self.parts].tolist()

    def __len__(self) -> int:
        return int(self.part_counts(self.update_sizes()).sum()) // self.num_processes


class RowBatchSampler(UpdateBatchSampler):
    """Steps of a fixed number of rows. The last step of an epoch has the rows that are left, without the gradient
    accumulation steps in which no process has a row.

    A `LengthGroupedSampler` gives rows by falling length, up to 50 steps at a time. Here their steps are shuffled,
    so that a training does not end each round on short rows; the one with the longest row still comes first.

    Args:
        sampler: gives the order of the rows.
        rows_per_update: rows of a step, on all processes together.
        parts: see `UpdateBatchSampler`.
        drop_last: leave out what does not fill a step.
        seed: decides a random order, together with the epoch. With torch's global random numbers, it would differ
            after resuming, and between processes.
    """

    def __init__(
        self,
        sampler: RandomSampler | LengthGroupedSampler | SequentialSampler,
        rows_per_update: int,
        parts: int = 1,
        drop_last: bool = False,
        seed: int = 42,
    ):
        super().__init__(parts)
        self.order, self.rows_per_update, self.leave_out_rest, self.seed = sampler, rows_per_update, drop_last, seed

    def update_sizes(self) -> np.ndarray:
        """Return how many rows each step has, the first step's first."""
        full, rest = divmod(len(self.order), self.rows_per_update)
        sizes = np.full(full, self.rows_per_update)
        return np.append(sizes, rest) if rest and not self.leave_out_rest else sizes

    def part_counts(self, sizes: np.ndarray) -> np.ndarray:
        """Return how many parts updates of these sizes have: no process has a row in those left out."""
        return np.minimum(self.parts, round_up(sizes, self.num_processes))

    def updates(self) -> Iterator[np.ndarray]:
        """Yield the rows of each step of the epoch."""
        if not isinstance(self.order, SequentialSampler):
            self.order.generator = torch.Generator().manual_seed(self.seed + self.epoch)
        rows = np.fromiter(self.order, dtype=np.int64)
        begins = np.arange(0, len(rows), self.rows_per_update)[: len(self.update_sizes())]
        if isinstance(self.order, LengthGroupedSampler):
            rng = np.random.default_rng([self.seed % 2**63, self.epoch])
            rng.shuffle(begins[1 : len(rows) // self.rows_per_update])  # a last step with fewer rows stays the last
        for begin in begins.tolist():
            yield rows[begin : begin + self.rows_per_update]


class TokenBudgetBatchSampler(UpdateBatchSampler):
    """Steps of rows of similar length, by a budget of tokens, in a new order each epoch.

    Args:
        lengths: tokens of each row; of pairs, the longer side.
        max_tokens: tokens of a step at most, padding included: rows times the longest row.
        parts: see `UpdateBatchSampler`.
        max_tokens_per_part: tokens of a part at most. Default: a step's, shared among the parts; if the rows do not
            divide evenly, a part has a row more than another.
        seed: decides the order, together with the epoch.
        pad_to_multiple_of: the collator's, to which each length is rounded up. Default: rows are not padded further.

    Raises:
        ValueError: a row is longer than `max_tokens` or `max_tokens_per_part`.
    """

    def __init__(
        self,
        lengths: Sequence[int] | np.ndarray,
        max_tokens: int,
        parts: int = 1,
        max_tokens_per_part: int | None = None,
        seed: int = 42,
        pad_to_multiple_of: int | None = None,
    ):
        super().__init__(parts)
        lengths = round_up(np.asarray(lengths), pad_to_multiple_of)
        longest = int(lengths.max())
        self.lengths = lengths.astype(np.min_scalar_type(longest))  # numpy sorts small integers faster
        self.max_tokens, self.seed = max_tokens, seed
        if max_tokens_per_part is not None:
            check_longest(longest, max_tokens_per_part, "max_tokens_per_batch")
        check_longest(longest, max_tokens, "max_tokens_per_update")
        self.bounds = _fill_updates(np.sort(self.lengths), self._capacity(max_tokens_per_part))

    def _capacity(self, max_tokens_per_part: int | None) -> np.ndarray:
        """Rows that a step may have, by the length of its longest row; for length 0, it is not used."""
        lengths = np.maximum(np.arange(int(self.lengths.max()) + 1), 1)
        capacity = self.max_tokens // lengths
        if max_tokens_per_part is None:
            return capacity
        return np.minimum(capacity, max_tokens_per_part // lengths * self.parts)

    def share(self, num_processes: int, max_tokens_per_part: int | None) -> int:
        """Choose the number of parts: one for each process, or as many as the budget of a part asks for.

        Args:
            num_processes: the processes.
            max_tokens_per_part: tokens of a part at most. Default: no limit.

        Returns:
            The gradient accumulation steps.

        Raises:
            ValueError: a row is longer than `max_tokens_per_part`.
        """
        sizes, longest = np.diff(self.bounds), np.sort(self.lengths)[self.bounds[1:] - 1].astype(np.int64)
        steps = 1
        if max_tokens_per_part is not None:
            check_longest(int(longest[-1]), max_tokens_per_part, "max_tokens_per_batch")
            rows = max_tokens_per_part // np.maximum(longest, 1)  # of a part
            steps = int(np.ceil(sizes / (rows * num_processes)).max())
        self.parts = num_processes * steps
        return steps

    def update_sizes(self) -> np.ndarray:
        """Return how many rows each step has, that of the shortest rows first."""
        return np.diff(self.bounds)

    def updates(self) -> Iterator[np.ndarray]:
        """Yield the rows of each step of the epoch."""
        rng = np.random.default_rng([self.seed % 2**63, self.epoch])
        rows = rng.permutation(len(self.lengths))
        rows = rows[np.argsort(self.lengths[rows], kind="stable")]  # rows of one length stay shuffled
        for update in rng.permutation(len(self.bounds) - 1).tolist():
            yield rows[self.bounds[update] : self.bounds[update + 1]]


def round_up(number: Any, multiple: int | None) -> Any:
    """Round a number, or the numbers of an array, up to a multiple; None leaves them as they are."""
    return number if multiple is None else (number + multiple - 1) // multiple * multiple


def check_longest(longest: int, limit: int, option: str) -> None:
    """Raise ValueError if the longest row, in tokens, is over an option's limit."""
    if longest > limit:
        raise ValueError(
            f"`{option}` is {limit}, but the longest row has {longest} tokens. Raise it, or lower `max_source_length` "
            "and `max_target_length`."
        )


def _fill_updates(lengths: np.ndarray, capacity: np.ndarray) -> np.ndarray:
    """Fill one step after the other with rows of ascending length.

    Args:
        lengths: the rows' lengths, ascending.
        capacity: rows that a step may have, by the length of its longest row.

    Returns:
        Where the steps begin, and at last the number of rows.
    """
    bounds, begin = [np.zeros(1, dtype=np.int64)], 0  # `begin`: of the step that is being filled
    values, counts = np.unique(lengths, return_counts=True)
    ends = counts.cumsum()
    for length, start, end in zip(values.tolist(), (ends - counts).tolist(), ends.tolist(), strict=True):
        size, filled = int(capacity[length]), start - begin
        if filled >= size:  # the step cannot take a row of this length
            begin += filled
            bounds.append(np.array([begin]))
        full = np.arange(begin + size, end, size)
        if len(full):
            bounds.append(full)
            begin = int(full[-1])
    bounds.append(np.array([len(lengths)]))
    return np.concatenate(bounds)


class EmptyPartCollator:
    """Makes a batch of an empty part too: a row without labels, from which nothing is learnt.

    All processes must take part in each step.

    Args:
        collator: makes the batches of the other parts.
        rows: the data set; its first row is taken.
    """

    def __init__(self, collator: Callable[[list[Any]], dict[str, Any]], rows: Any):
        self.collator, self.rows = collator, rows

    def __call__(self, rows: list[Any]) -> dict[str, Any]:
        """Make a batch of rows."""
        if rows:
            return self.collator(rows)
        batch = self.collator([self.rows[0]])
        return batch | {
            name: torch.full_like(batch[name], -100) for name in ("labels", "shift_labels") if name in batch
        }
