# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""What only some of the code needs: the models need torch and seven packages of Hugging Face alone."""

from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def extra(name: str) -> Generator[None]:
    """Import, within this block, what an extra of the package installs.

    Raises:
        ImportError: it is not installed; the message says how to.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise ImportError(
            f"{error.name} is not installed: pip install 'hf-scratch[{name}]'", name=error.name
        ) from error
