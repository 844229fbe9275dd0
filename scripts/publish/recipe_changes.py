# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""How a recorded command differs from its recipe."""

import shlex
from pathlib import Path

from hf_scratch.recipes import read_recipe

ROOT = Path(__file__).parents[2]
IGNORED = ("dataset_name", "output_dir", "use_cpu", "bf16", "eval_steps", "save_steps", "save_total_limit")


def format_changes(command: str) -> str:
    """Flags that override the recipe, ignoring data, output, precision and save/eval intervals.

    Args:
        command: a record's command. Of several lines only the last counts.
    """
    recipe, *words = shlex.split(command.splitlines()[-1])[2:]
    flags = dict(zip(words[::2], words[1::2], strict=True))
    for name in IGNORED:
        flags.pop(f"--{name}", None)
    for name, value in read_recipe(ROOT / recipe).items():
        if flags.get(f"--{name}") == str(value):
            del flags[f"--{name}"]
    return " ".join(f"`{name} {value}`" for name, value in flags.items())
