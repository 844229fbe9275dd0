# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Several processes and machines: work of the main process alone, and the folder that all of them must see."""

import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from accelerate import PartialState
from accelerate.utils import broadcast_object_list, gather_object

from ..errors import UserError

SECONDS_TO_APPEAR = 20.0  # a new file on a network file system may appear late on another machine
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


def check_shared_folder(folder: str) -> None:
    """Check that all processes see the folder that the main process has made: each writes its part of a checkpoint.

    Raises:
        UserError: a process does not see a new file in it.
    """
    if PartialState().num_processes == 1:
        return
    file = Path(folder, on_main_process(lambda: f".{uuid.uuid4().hex}"))
    on_main_process(file.touch)
    end = time.monotonic() + SECONDS_TO_APPEAR
    while not file.is_file() and time.monotonic() < end:
        time.sleep(0.2)
    is_seen = gather_object([file.is_file()])
    on_main_process(file.unlink)
    if not all(is_seen):
        raise UserError(
            f"Process {is_seen.index(False)} does not see `output_dir` ({folder}) of the main process. Give all "
            "machines one shared folder."
        )
