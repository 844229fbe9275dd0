# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""The commands, as modules: `python -m hf_scratch.scripts.train_translation multi30k_tiny`.

The wheel has their files here. In a clone they are in its folder `scripts`.
"""

import sys
from importlib.util import find_spec
from pathlib import Path

TRAIN = ("sacrebleu", "sacremoses", "matplotlib", "ruamel.yaml")  # the extra `train`


def is_missing(module: str) -> bool:
    """Whether a module is not installed."""
    try:
        return find_spec(module) is None
    except ModuleNotFoundError:  # the package that it is in
        return True


if missing := list(filter(is_missing, TRAIN)):
    sys.exit(f"The commands need {', '.join(missing)}: pip install 'hf-scratch[train]'")
if not Path(__file__).with_name("recipes").is_dir():
    __path__.append(str(Path(__file__).parents[2] / "scripts"))
