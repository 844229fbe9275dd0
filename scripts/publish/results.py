#!/usr/bin/env python
# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Recompute the figures of the model cards and of every README's tables, and fail if one of them differs.

python scripts/publish/results.py --multi30k bentrevett/multi30k --tinystories folder/of/tinystories
python scripts/publish/results.py --only tables --write
"""

import argparse
import sys
from pathlib import Path
from string import Template

from language_model_card import language_model_figures
from readme_tables import MODEL_CARDS, TRANSLATOR, WAY_BACK, WRITER, article_blocks, index_blocks, readme_blocks
from translation_card import reference_figures, translation_figures

from hf_scratch.errors import command, preparation
from hf_scratch.reporting.tables import compare_lines, update_blocks

sys.path.append(str(Path(__file__).parents[1] / "benchmark"))
from benchmark_tables import measured_blocks

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
CARDS = {
    TRANSLATOR: ("multi30k", reference_figures),
    WAY_BACK: ("multi30k", translation_figures),
    WRITER: ("tinystories", language_model_figures),
}


def list_tables() -> dict[Path, dict[str, str]]:
    """For each README its marked blocks."""
    tables = {ROOT / readme: blocks for readme, blocks in measured_blocks().items()}
    tables[ROOT / "README.md"] |= readme_blocks()
    tables[ROOT / "hf_scratch" / "convert" / "README.md"] |= article_blocks()
    return tables | {MODEL_CARDS / "README.md": index_blocks()}


def checked_versions() -> str:
    """The versions that this repository's tests run with: "transformers 5.24.0 and torch 2.13.0"."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    versions = dict(line.split("==") for line in lines)
    return " and ".join(f"{name} {versions[name]}" for name in ("transformers", "torch"))


def update_card(name: str, dataset: str, write: bool) -> bool:
    """Compare a published model's card with its figures, or write it. Returns whether they are equal now."""
    _, compute = CARDS[name]
    path = MODEL_CARDS / name / "README.md"
    template = Template((FOLDER / "cards" / f"{name}.md").read_text(encoding="utf-8"))
    card = template.substitute(compute(MODEL_CARDS / name, dataset), checked=checked_versions())
    if write:
        path.write_text(card, encoding="utf-8")
        print(f"results: wrote {path}")
        return True
    differences = compare_lines(path.read_text(encoding="utf-8"), card)
    print("\n".join([*differences, f"results: {name} is {'NOT ' if differences else ''}what its files compute"]))
    return not differences


@command
@preparation()
def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--multi30k", default="bentrevett/multi30k", help="a Hub id or a folder")
    parser.add_argument("--tinystories", default="roneneldan/TinyStories", help="a Hub id or a folder")
    parser.add_argument("--only", choices=[*CARDS, "tables"], help="one card, or the tables of the READMEs")
    parser.add_argument("--write", action="store_true", help="write cards and tables instead of comparing them")
    args = parser.parse_args()
    results = [
        update_card(name, getattr(args, dataset), args.write)
        for name, (dataset, _) in CARDS.items()
        if args.only in (None, name)
    ]
    if args.only in (None, "tables"):
        results += [update_blocks(path, blocks, args.write) for path, blocks in list_tables().items()]
    return int(False in results)


if __name__ == "__main__":
    sys.exit(main())
