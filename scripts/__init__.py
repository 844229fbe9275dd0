# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""The commands. The wheel holds them as a package: `python -m hf_scratch.scripts.train_translation multi30k_tiny`."""

import sys
from importlib.util import find_spec

TRAIN = ("sacrebleu", "sacremoses", "matplotlib", "ruamel.yaml")  # the extra `train`


def is_missing(module: str) -> bool:
    try:
        return find_spec(module) is None
    except ModuleNotFoundError:  # the package that it is in
        return True


if __name__.startswith("hf_scratch") and (missing := list(filter(is_missing, TRAIN))):
    sys.exit(f"The commands need {', '.join(missing)}: pip install 'hf-scratch[train]'")
