# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Markdown tables, and the marked places of a README into which commands write them."""

import difflib
from collections.abc import Iterable, Sequence
from pathlib import Path
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


def replace_block(text: str, name: str, content: str) -> str:
    """Replace what stands between `<!-- name -->` and `<!-- /name -->`.

    Args:
        text: a whole Markdown file.
        name: the marker's name, for example "results".
        content: the new text between the markers, without blank lines around it.

    Raises:
        ValueError: the two markers are not there exactly once each, in this order.
    """
    begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        raise ValueError(f"it needs the lines {begin} and {end} around the place of the table")
    before, after = text.split(begin)[0], text.split(end)[1]
    return f"{before}{begin}\n{content}\n{end}{after}"


def update_blocks(path: Path, blocks: dict[str, str], write: bool) -> bool | None:
    """Compare the marked blocks of a README with `blocks`, or write them, and print what was found or done.

    Args:
        path: the README.
        blocks: the content for each marker's name.
        write: write the blocks instead of comparing them.

    Returns:
        Whether the README now holds `blocks`; None if it lacks a marker, and was left as it is.
    """
    stored = path.read_text(encoding="utf-8")
    computed = stored
    try:
        for name, content in blocks.items():
            computed = replace_block(computed, name, content)
    except ValueError as error:
        print(f"tables: skipped {path}: {error}")
        return None
    if write:
        path.write_text(computed, encoding="utf-8")
        print(f"tables: wrote {', '.join(blocks)} into {path}")
        return True
    is_same = stored == computed
    state = "equal to" if is_same else "NOT equal to"
    print("\n".join([*compare_lines(stored, computed), f"tables: {path} is {state} its figures"]))
    return is_same


def compare_lines(stored: str, computed: str) -> list[str]:
    """The lines in which two texts differ: "-" as stored, "+" as computed."""
    lines = difflib.unified_diff(stored.splitlines(), computed.splitlines(), lineterm="", n=0)
    return [line for line in lines if line[0] in "-+" and not line.startswith(("---", "+++"))]
