# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Progress bars: on a terminal, of the first process, unless they are turned off."""

import sys
from collections.abc import Iterable
from typing import Any

from transformers.utils import logging


def disable_bars() -> None:
    """Turn off the bars of this package, of datasets, of downloads, and of models that are loaded."""
    logging.disable_progress_bar()
    if "datasets" in sys.modules:  # which a machine that only computes may lack
        sys.modules["datasets"].disable_progress_bars()


def show_progress(iterable: Iterable[Any] | None = None, description: str = "", **options: Any) -> Any:
    """Show a bar on a terminal, from the second second on. `options` are tqdm's."""
    return logging.tqdm(iterable, desc=description, delay=1, disable=None, **options)
