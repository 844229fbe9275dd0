# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Samplers of training rows: batches by a budget of tokens, and an order that depends on the seed alone."""

import random
from collections.abc import Iterator, Sequence

import torch
from torch.utils.data import RandomSampler, Sampler
from transformers.trainer_pt_utils import LengthGroupedSampler


class TokenBudgetBatchSampler(Sampler[list[int]]):
    """Batches of rows of similar length, in a new order each epoch.

    Args:
        lengths: tokens of each row; of pairs, the longer side.
        max_tokens: tokens of a batch at most, padding included: rows times the longest row.
        num_processes: the number of batches is made a multiple of this, so that no process waits for another.
        seed: decides the order, together with the epoch.

    Raises:
        ValueError: a row is longer than `max_tokens`. While iterating: the batches cannot be shared evenly.
    """

    def __init__(self, lengths: Sequence[int], max_tokens: int, num_processes: int = 1, seed: int = 42):
        if max(lengths) > max_tokens:
            raise ValueError(
                f"`max_tokens_per_batch` is {max_tokens}, but the longest row has {max(lengths)} tokens. Raise it, or "
                "lower `max_source_length` and `max_target_length`."
            )
        self.lengths = list(lengths)
        self.max_tokens = max_tokens
        self.num_processes = num_processes
        self.seed = seed
        self.epoch = 0
        self.batch_size = None  # accelerate reads it: the batches have no common size
        self.drop_last = False
        self.sampler = self  # accelerate looks here for `set_epoch` when it shares batches among processes

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch's order. Trainer and accelerate call this at the start of each epoch."""
        self.epoch = epoch

    def _batches(self, rng: random.Random) -> list[list[int]]:
        order = list(range(len(self.lengths)))
        rng.shuffle(order)
        order.sort(key=self.lengths.__getitem__)  # stable: rows of one length stay shuffled
        batches, batch = [], []
        for row in order:  # ascending, so this row is the longest of its batch so far
            if batch and (len(batch) + 1) * self.lengths[row] > self.max_tokens:
                batches.append(batch)
                batch = []
            batch.append(row)
        batches.append(batch)
        while len(batches) % self.num_processes:
            largest = max(range(len(batches)), key=lambda i: len(batches[i]))
            batch = batches.pop(largest)
            if len(batch) == 1:
                raise ValueError(
                    f"{len(self.lengths)} rows in batches of at most {self.max_tokens} tokens cannot be dealt evenly "
                    f"to {self.num_processes} processes. Raise `max_tokens_per_batch`, or use fewer processes."
                )
            batches += [batch[::2], batch[1::2]]
        rng.shuffle(batches)
        return batches

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self._batches(random.Random(self.seed + self.epoch)))

    def __len__(self) -> int:
        return len(self._batches(random.Random(0)))  # the number depends on the lengths alone


class SeededSampler(Sampler[int]):
    """A torch sampler whose order depends on the seed and the epoch alone.

    With torch's global random numbers, the order would differ after resuming, and between processes.

    Args:
        sampler: draws from its attribute `generator`.
        seed: decides the order, together with the epoch.
    """

    def __init__(self, sampler: RandomSampler | LengthGroupedSampler, seed: int):
        self.sampler, self.seed, self.epoch = sampler, seed, 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch's order."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        self.sampler.generator = torch.Generator().manual_seed(self.seed + self.epoch)
        return iter(self.sampler)

    def __len__(self) -> int:
        return len(self.sampler)
