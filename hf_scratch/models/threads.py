# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""How many of torch's threads decode fastest, found by timing the steps of `generate()`.

A step of a small model is little work for many threads. While other processes use the cores, the threads of a step
wait for each other, and two can be ten times slower than one. So no number is right for a machine.
"""

import os
import threading
import time
from collections import defaultdict
from statistics import median

import torch

STEPS = 4  # that are timed with a number of threads
PAYS_OFF = 0.95  # another number has to take less than this share of the time
LONGEST_WAIT = 256  # steps between two trials


class DecodingThreads:
    """Sets torch's number of threads within a `with` statement, in which `tick` is called at each step.

    The number begins at 1, or at what the caller's thread found before for as much work. Twice or half as many threads
    are tried for a few steps, rarely where it was in vain, and kept where they are faster. There are never more than
    the caller's number, which is set again at the end.

    The number stays as it is if it is 1, if the environment sets `OMP_NUM_THREADS`, and under
    `torch.use_deterministic_algorithms(True)`.

    Args:
        weights: the number of weights by which a step multiplies each row.
        rows: the number of rows of the first step.
    """

    def __init__(self, weights: int, rows: int):
        self.weights, self.rows = weights, rows

    def __enter__(self) -> "DecodingThreads":
        self.most = _CALLER.enter()
        is_fixed = "OMP_NUM_THREADS" in os.environ or torch.are_deterministic_algorithms_enabled()
        self.chooses, self.search = self.most > 1 and not is_fixed, None
        if self.chooses:
            torch.set_num_threads(min(self._search(self.rows).number, self.most))
        return self

    def __exit__(self, *exception) -> None:
        if self.chooses:
            torch.set_num_threads(self.most)
        _CALLER.leave()

    def tick(self, rows: int) -> None:
        """To be called at the start of each step, with its number of rows."""
        if not self.chooses:
            return
        now = time.perf_counter()
        if self.search is not None:
            self.search.record((now - self.start) / self.rows, self.most)
        self.search, self.start, self.rows = self._search(rows), now, rows
        torch.set_num_threads(min(self.search.trial or self.search.number, self.most))

    def _search(self, rows: int) -> "Search":
        return _CALLER.searches[(self.weights * rows).bit_length()]  # one for each power of two


class Search:
    """A search for the number of threads with the shortest steps: the best so far, and one that is tried or None."""

    def __init__(self):
        self.number, self.trial, self.is_upward = 1, None, True
        self.usual, self.wait, self.times = 0.0, STEPS, []

    def record(self, seconds: float, most: int) -> None:
        """Take the time of a step with `trial`, or else `number`, threads. No more than `most` will be tried."""
        self.times.append(seconds)
        if self.trial is None:
            if len(self.times) >= self.wait:
                self.usual, self.times = median(self.times[-STEPS:]), []
                self.is_upward = self.number == 1 or (self.is_upward and self.number < most)
                self.trial = min(2 * self.number, most) if self.is_upward else self.number // 2
        elif len(self.times) == STEPS or seconds > 2 * self.usual:
            if len(self.times) == STEPS and median(self.times) < PAYS_OFF * self.usual:
                self.number, self.wait = self.trial, STEPS
            else:
                self.is_upward, self.wait = not self.is_upward, min(2 * self.wait, LONGEST_WAIT)
            self.trial, self.times = None, []


class _Caller(threading.local):
    """A thread of Python that generates, with its own number of threads of torch.

    torch gives the number set last to each new thread of Python. While another one generates, that is the search's.
    """

    lock, generating, number = threading.Lock(), 0, 1  # of the class: shared by all callers
    is_new = True

    def __init__(self):
        self.searches: dict[int, Search] = defaultdict(Search)

    def enter(self) -> int:
        with self.lock:
            if not _Caller.generating:
                _Caller.number = torch.get_num_threads()
            elif self.is_new:
                torch.set_num_threads(_Caller.number)
            _Caller.generating += 1
        self.is_new = False
        return torch.get_num_threads()

    def leave(self) -> None:
        with self.lock:
            _Caller.generating -= 1


_CALLER = _Caller()
