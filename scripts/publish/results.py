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
from readme_tables import (
    LARGER,
    MODEL_CARDS,
    TRANSLATOR,
    WAY_BACK,
    WRITER,
    article_blocks,
    index_blocks,
    readme_blocks,
)
from translation_card import reference_figures, translation_figures

from hf_scratch.errors import command, preparation

sys.path.append(str(Path(__file__).parents[1] / "benchmark"))
from benchmark_tables import ROOT, measured_blocks, replace_blocks, update_file

TEMPLATES = Path(__file__).parent / "cards"
CARDS = {
    TRANSLATOR: ("multi30k", reference_figures),
    LARGER: ("multi30k", translation_figures),
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


def make_card(name: str, dataset: str) -> str:
    """A published model's card, with the figures that its files and the data compute."""
    template = Template((TEMPLATES / f"{name}.md").read_text(encoding="utf-8"))
    return template.substitute(CARDS[name][1](MODEL_CARDS / name, dataset), checked=checked_versions())


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
        update_file(MODEL_CARDS / name / "README.md", make_card(name, getattr(args, dataset)), args.write)
        for name, (dataset, _) in CARDS.items()
        if args.only in (None, name)
    ]
    if args.only in (None, "tables"):
        tables = list_tables().items()
        results += [update_file(path, replace_blocks(path, blocks), args.write) for path, blocks in tables]
    return int(False in results)


if __name__ == "__main__":
    sys.exit(main())
