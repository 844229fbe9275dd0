# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Markdown tables."""

from collections.abc import Iterable, Sequence
from typing import Any


def format_table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A Markdown table. Floats get two decimals; every other cell is written as `str` gives it.

    Args:
        header: the columns' titles.
        rows: as many cells per row as the header has.
    """
    lines = [header, ["---"] * len(header), *rows]
    cells = [[f"{cell:.2f}" if isinstance(cell, float) else str(cell) for cell in line] for line in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)
