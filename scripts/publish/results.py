#!/usr/bin/env python
# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Compute every figure of the published model cards again, and fail where a card says something else.

python scripts/publish/results.py --multi30k bentrevett/multi30k --tinystories roneneldan/TinyStories
"""

import argparse
import difflib
import sys
from collections.abc import Sequence
from pathlib import Path
from string import Template

from language_model_card import language_model_figures
from translation_card import translation_figures

from hf_scratch.errors import command, preparation

FOLDER = Path(__file__).parent
CARDS = {
    "scratch-transformer-multi30k-en-de": ("multi30k", translation_figures),
    "scratch-gpt-tinystories": ("tinystories", language_model_figures),
}


def compare(stored: str, computed: str) -> list[str]:
    """The lines in which two cards differ: "-" as stored, "+" as computed."""
    lines = difflib.unified_diff(stored.splitlines(), computed.splitlines(), lineterm="", n=0)
    return [line for line in lines if line[0] in "-+" and not line.startswith(("---", "+++"))]


@command
@preparation()
def main(args: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--multi30k", default="bentrevett/multi30k", help="a Hub id or a folder")
    parser.add_argument("--tinystories", default="roneneldan/TinyStories", help="a Hub id or a folder")
    parser.add_argument("--cards", type=Path, default=FOLDER.parents[1] / "model_cards", help="the published folders")
    parser.add_argument("--only", choices=list(CARDS), help="one card")
    parser.add_argument("--write", action="store_true", help="write the cards in place of comparing")
    options = parser.parse_args(args)
    wrong = 0
    for name, (dataset, compute) in CARDS.items():
        if options.only not in (None, name):
            continue
        folder = options.cards / name
        template = Template((FOLDER / "cards" / f"{name}.md").read_text(encoding="utf-8"))
        card = template.substitute(compute(folder, getattr(options, dataset)))
        path = folder / "README.md"
        if options.write:
            path.write_text(card, encoding="utf-8")
            print(f"results: wrote {path}")
            continue
        differences = compare(path.read_text(encoding="utf-8"), card)
        wrong += bool(differences)
        print("\n".join([*differences, f"results: {name} is {'NOT ' if differences else ''}what its files compute"]))
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
