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
        ValueError: the two markers are not there in this order.
    """
    before, begin, rest = text.partition(f"<!-- {name} -->\n")
    _, end, after = rest.partition(f"<!-- /{name} -->")
    if not end:
        raise ValueError(f"The table needs a place between the lines <!-- {name} --> and <!-- /{name} -->.")
    return f"{before}{begin}{content}\n{end}{after}"


def update_blocks(path: Path, blocks: dict[str, str], write: bool) -> bool:
    """Compare the marked blocks of a README with `blocks`, or write them, and print what was found or done.

    Args:
        path: the README.
        blocks: the content for each marker's name.
        write: write the blocks instead of comparing them.

    Returns:
        Whether the README now holds `blocks`.
    """
    stored = computed = path.read_text(encoding="utf-8")
    for name, content in blocks.items():
        computed = replace_block(computed, name, content)
    if write:
        path.write_text(computed, encoding="utf-8")
        print(f"tables: wrote {', '.join(blocks)} into {path}")
        return True
    differences = compare_lines(stored, computed)
    print("\n".join([*differences, f"tables: {path} is {'NOT ' if differences else ''}equal to its figures"]))
    return not differences


def compare_lines(stored: str, computed: str) -> list[str]:
    """The lines in which two texts differ: "-" as stored, "+" as computed."""
    lines = difflib.unified_diff(stored.splitlines(), computed.splitlines(), lineterm="", n=0)
    return [line for line in lines if line[0] in "-+" and not line.startswith(("---", "+++"))]
