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
    the caller's number, which is set again at the end. New threads of Python get the caller's number all the time.

    The number stays as it is if it is 1, if the environment sets `OMP_NUM_THREADS`, and under
    `torch.use_deterministic_algorithms(True)`; and from where something else sets it in between.

    Args:
        weights: the number of weights by which a step multiplies each row.
        rows: the number of rows of the first step.
    """

    def __init__(self, weights: int, rows: int):
        self.weights, self.rows = weights, rows

    def __enter__(self) -> "DecodingThreads":
        self.most = self.number = torch.get_num_threads()
        is_fixed = "OMP_NUM_THREADS" in os.environ or torch.are_deterministic_algorithms_enabled()
        self.chooses, self.search = self.most > 1 and not is_fixed, None
        if self.chooses:
            self._set(self._search(self.rows).number)
        return self

    def __exit__(self, *exception) -> None:
        if self.chooses and torch.get_num_threads() == self.number:
            torch.set_num_threads(self.most)

    def tick(self, rows: int) -> None:
        """To be called at the start of each step, with its number of rows."""
        if not self.chooses:
            return
        if torch.get_num_threads() != self.number:  # somebody else has set it, a logits processor for example
            self.chooses = False
            return
        now = time.perf_counter()
        if self.search is not None:
            self.search.record((now - self.start) / self.rows, self.most)
        self.search, self.start, self.rows = self._search(rows), now, rows
        self._set(self.search.trial or self.search.number)

    def _search(self, rows: int) -> "Search":
        return _FOUND.searches[(self.weights * rows).bit_length()]  # one for each power of two

    def _set(self, number: int) -> None:
        number = min(number, self.most)
        if number == self.number:
            return
        torch.set_num_threads(number)
        self.number = number
        # torch gives the number set last, by any thread of Python, to each new one: that is to be the caller's. A new
        # thread that works before this one has run keeps the other number
        last = threading.Thread(target=torch.set_num_threads, args=(self.most,))
        last.start()
        last.join()


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


class _Found(threading.local):
    """What a thread of Python has found. Each has its own number of threads of torch."""

    def __init__(self):
        self.searches: dict[int, Search] = defaultdict(Search)


_FOUND = _Found()
