# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Timing in turns, so that other load on the machine affects all that is compared."""

import time
from collections.abc import Callable
from statistics import median
from typing import Any


def take_turns(
    functions: dict[str, Callable[[], Any]], turns: int
) -> tuple[dict[str, list[float]], dict[str, list[Any]]]:
    """Call functions in turns.

    Returns:
        For each name the seconds of its calls, and what they returned.
    """
    seconds, outputs = {name: [] for name in functions}, {name: [] for name in functions}
    for _ in range(turns):
        for name, function in functions.items():
            start = time.perf_counter()
            outputs[name].append(function())
            seconds[name].append(time.perf_counter() - start)
    return seconds, outputs


def compare(peer: list[float], ours: list[float]) -> dict[str, float]:
    """The median over rounds of the peer's time over ours, and the range of these ratios over their median."""
    ratios = [other / own for other, own in zip(peer, ours, strict=True)]
    return {"ratio": median(ratios), "spread": (max(ratios) - min(ratios)) / median(ratios)}
