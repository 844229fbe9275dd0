# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Several processes and machines: which of them save a run, and whether they see one folder.

By default, the first process saves, and all machines share `output_dir`. With `save_on_each_node`, the first process
of each machine saves, and each machine has an `output_dir` of its own.
"""

import os
import socket
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from accelerate import PartialState
from accelerate.utils import broadcast_object_list, gather_object
from transformers import TrainingArguments

from ..errors import UserError
from .training_arguments import require_output_dir

SECONDS_TO_APPEAR = 20.0  # a new file on a network file system may appear late on another machine
T = TypeVar("T")


class Place(NamedTuple):
    """A process, for error messages: its rank, the name of its machine, and its `output_dir`."""

    rank: int
    machine: str
    output_dir: str

    def __str__(self) -> str:
        return f"process {self.rank} on {self.machine}"


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


def from_all_processes(args: TrainingArguments, value: T) -> list[tuple[Place, T]]:
    """Return each process's place and `value`, in the order of ranks. All processes must call this."""
    place = Place(args.process_index, socket.gethostname(), os.path.abspath(require_output_dir(args)))
    return gather_object([(place, value)])


def on_saving_processes(args: TrainingArguments, make: Callable[[], T]) -> list[tuple[Place, T]]:
    """Call `make` on the processes that save. All processes must call this.

    Args:
        args: the training arguments; `save_on_each_node` says which processes save.
        make: what to call.

    Returns:
        On each process, the places and results of those that save, in the order of ranks.

    Raises:
        Exception: the first one that `make` raised, on all processes. Of several machines, a UserError names the one.
    """
    outcome: dict[str, Any] = {}
    if args.should_save:
        try:
            outcome["result"] = make()
        except Exception as error:
            outcome["error"] = error
    outcomes = [(place, found) for place, found in from_all_processes(args, outcome) if found]
    for place, found in outcomes:
        if isinstance(error := found.get("error"), UserError) and len(outcomes) > 1:
            raise UserError(f"{place}: {error}")
        if error is not None:
            raise error
    return [(place, found["result"]) for place, found in outcomes]


def write_files_of_all(args: TrainingArguments, folder: str | Path, name: str, content: bytes) -> None:
    """Write one file of each process into a folder. All processes must call this.

    The processes that save write all files. So each machine's folder is complete, whichever machine comes first in a
    resumed run, and a process that does not save writes nothing.

    Args:
        args: the training arguments.
        folder: a folder that each process that saves has made.
        name: the name of this process's file.
        content: what is in it.
    """
    files = from_all_processes(args, (name, content))
    if args.should_save:
        for _, (file, data) in files:
            Path(folder, file).write_bytes(data)


def check_folders(args: TrainingArguments) -> None:
    """Check that the machines share `output_dir`, or have folders of their own with `save_on_each_node`.

    The first process, which must have made its `output_dir`, writes a file there, and the others look for it.

    Raises:
        UserError: a process does not see the file without `save_on_each_node`; one on another machine sees it with
            `save_on_each_node`; or FSDP is on with `save_on_each_node`.
    """
    if args.world_size == 1:
        return
    has_own_folder = args.save_on_each_node and args.process_index != args.local_process_index
    name = on_main_process(lambda: _make_file(require_output_dir(args)))
    file, end = Path(require_output_dir(args), name), time.monotonic() + SECONDS_TO_APPEAR
    while not has_own_folder and not file.is_file() and time.monotonic() < end:
        time.sleep(0.2)
    found = from_all_processes(args, (has_own_folder, file.is_file()))
    on_main_process(file.unlink)
    first = found[0][0]
    for place, (has_own_folder, is_seen) in found:
        if has_own_folder and is_seen:
            raise UserError(
                f"`save_on_each_node` is true, but {first} and {place} share `output_dir` ({place.output_dir}), where "
                "both would write the same files. Leave `save_on_each_node` out, or give each machine its own folder."
            )
        if not has_own_folder and not is_seen:
            raise UserError(
                f"`output_dir` of {place} ({place.output_dir}) is not the folder of {first} ({first.output_dir}). "
                "Give all machines one shared folder; or set `--save_on_each_node true`, if each has its own."
            )
    is_sharded = os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true"
    if is_sharded and any(has_own_folder for _, (has_own_folder, _) in found):
        raise UserError(
            "`save_on_each_node` is true, but a checkpoint of FSDP has parts from all machines. Leave it out, and "
            "give all machines one shared `output_dir`."
        )


def _make_file(folder: str) -> str:
    """Make an empty hidden file, and return its name."""
    name = f".{uuid.uuid4().hex}"
    Path(folder, name).touch()
    return name
