# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""How a recorded command differs from its recipe."""

import shlex
from pathlib import Path

from hf_scratch.recipes import read_recipe

ROOT = Path(__file__).parents[2]
MADE = "runs/"  # where the data of diversify.py are
IGNORED = (
    "dataset_name", "output_dir", "use_cpu", "bf16", "disable_tqdm", "eval_steps", "save_steps", "save_total_limit",
)  # fmt: skip


def format_changes(command: str) -> str:
    """Flags that override the recipe, ignoring output, precision, save/eval intervals, and data outside of `MADE`.

    Args:
        command: a record's command. Of several lines only the last counts.
    """
    recipe, *words = shlex.split(command.splitlines()[-1])[2:]
    flags: dict[str, list[str]] = {}
    for word in words:
        if word.startswith("--"):
            flags[word] = []
        else:
            flags[list(flags)[-1]].append(word)
    for name in IGNORED:
        if not (name == "dataset_name" and flags.get("--dataset_name", [""])[0].startswith(MADE)):
            flags.pop(f"--{name}", None)
    for name, value in read_recipe(ROOT / recipe).items():
        if flags.get(f"--{name}") == [str(value)]:
            del flags[f"--{name}"]
    return " ".join(f"`{' '.join([name, *values])}`" for name, values in flags.items())
