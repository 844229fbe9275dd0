# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""How a recorded command differs from its recipe."""

import os
import shlex
from itertools import dropwhile
from pathlib import Path
from typing import Any

from hf_scratch.recipes import read_recipe
from hf_scratch.reporting.records import Record

RECIPES = Path(__file__).parents[1] / "recipes"
MADE = "runs/"  # where the data of diversify.py are
IGNORED = (
    "dataset_name", "output_dir", "use_cpu", "bf16", "disable_tqdm", "eval_steps", "save_steps", "save_total_limit",
    "resume_from_checkpoint",
)  # fmt: skip


def format_changes(record: Record) -> str:
    """Flags that override the recipe, ignoring output, precision, save/eval intervals, and data outside of `MADE`.

    Of consecutive runs only the last one's command counts.
    """
    words = shlex.split(record["command"].splitlines()[-1])
    flags: dict[str, list[str]] = {}
    name = ""
    for word in dropwhile(lambda word: not word.startswith("--"), words):
        if word.startswith("--"):
            name, *value = word.removeprefix("--").split("=", 1)
            name = name.replace("-", "_")
            flags[name] = value  # the last of several counts
        else:
            flags[name].append(word)
    is_made = os.path.normpath(flags.get("dataset_name", [""])[0]).startswith(MADE)
    ignored = {*IGNORED} - ({"dataset_name"} if is_made else set())
    recipe = read_recipe(RECIPES / f"{record['recipe']}.yaml") if record["recipe"] else {}
    return " ".join(
        f"`{' '.join([f'--{name}', *values])}`"
        for name, values in flags.items()
        if name not in ignored and not (name in recipe and (values or ["true"]) == _as_words(recipe[name]))
    )


def _as_words(value: Any) -> list[str]:
    """A recipe's value as a command line has it."""
    if isinstance(value, bool):
        return [str(value).lower()]
    return list(map(str, value)) if isinstance(value, list) else [str(value)]
