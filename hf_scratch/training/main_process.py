# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Work of the main process alone, whose result or error all processes get."""

from collections.abc import Callable
from typing import Any, TypeVar

from accelerate import PartialState
from accelerate.utils import broadcast_object_list

T = TypeVar("T")


def on_main_process(make: Callable[[], T]) -> T:
    """Call `make` on the main process alone. Each process gets its result, or raises its exception."""
    outcome: list[Any] = [None, None]
    if PartialState().is_main_process:
        try:
            outcome[0] = make()
        except Exception as error:
            outcome[1] = error
    result, error = broadcast_object_list(outcome)
    if error is not None:
        raise error
    return result
