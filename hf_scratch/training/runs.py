# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""A training run's folder: one run at a time, and the command that resumes it."""

import os
import shlex
import signal
import sys
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from accelerate import PartialState
from accelerate.utils import gather_object
from filelock import FileLock, Timeout
from tqdm.auto import tqdm
from transformers import TrainingArguments

from ..errors import UserError, command_words, without_option
from ..loading import hide_folders, require_output_dir
from .checkpoints import choose_checkpoint, whole_checkpoints
from .main_process import on_main_process

LOCK = ".lock"
# for a killed run's children to release its lock, and for a network file system to show it to another machine
SECONDS_TO_WAIT = 20.0


@contextmanager
def open_run(args: TrainingArguments) -> Generator[str | None]:
    """Lock `args.output_dir` for this run, and give all processes the checkpoint to resume from.

    The first process holds a file lock in the folder; the system releases it however the process ends. If an error
    ends the run, the command that resumes it is printed.

    Yields:
        The checkpoint's folder, or None for a new run.

    Raises:
        UserError: another run holds the folder; not all processes see it; or `args.resume_from_checkpoint` does not
            fit what is in it (see `choose_checkpoint`).
        SystemExit: 130 after Ctrl-C.
    """
    folder = Path(require_output_dir(args))
    with ExitStack() as stack:
        on_main_process(lambda: _lock(folder, stack))
        _check_shared(folder)
        checkpoint = on_main_process(lambda: choose_checkpoint(args))
        # Trainer adds each result to this file, which a killed run may have left half written
        on_main_process(lambda: (folder / "all_results.json").unlink(missing_ok=True))
        try:
            yield checkpoint
        except (UserError, FloatingPointError):
            raise
        except (Exception, KeyboardInterrupt) as error:
            if PartialState().is_main_process:
                tqdm.write(resume_hint(folder), file=sys.stderr)  # does not break the progress bar
            if isinstance(error, KeyboardInterrupt):
                raise SystemExit(128 + signal.SIGINT) from None
            raise


def _lock(folder: Path, stack: ExitStack) -> None:
    """Make the folder, and hold its lock until the stack is closed. A new folder is removed if it stays empty."""
    if not folder.is_dir():
        stack.callback(_remove_empty, folder)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        stack.enter_context(FileLock(folder / LOCK, timeout=SECONDS_TO_WAIT))
    except Timeout:
        raise UserError(
            f"`output_dir` ({folder}) is in use by another run. Wait for its end, or choose another folder."
        ) from None
    stack.callback((folder / LOCK).unlink, missing_ok=True)  # while it is still held


def _remove_empty(folder: Path) -> None:
    with suppress(OSError):
        folder.rmdir()


def _check_shared(folder: Path) -> None:
    """Raise UserError if a process does not see the main process's folder: each writes its part of a checkpoint."""
    end = time.monotonic() + SECONDS_TO_WAIT
    while not (folder / LOCK).is_file() and time.monotonic() < end:
        time.sleep(0.2)
    is_seen = gather_object([(folder / LOCK).is_file()])
    if not all(is_seen):
        raise UserError(
            f"Process {is_seen.index(False)} does not see `output_dir` ({folder}) of the main process. Give all "
            "machines one shared folder."
        )


def resume_hint(output_dir: str | Path) -> str:
    """Return a sentence that names the last whole checkpoint of `output_dir`, and the command that resumes from it."""
    checkpoints = whole_checkpoints(output_dir)
    if not checkpoints:
        return f"There is no whole checkpoint in {output_dir} yet: empty the folder and start again."
    words = [*command_words(), *without_option(sys.argv[1:], "resume_from_checkpoint")]
    command = shlex.join([*words, "--resume_from_checkpoint", "last"])
    if PartialState().num_processes > 1:
        command += " (with the same launcher)"
    return f"The last whole checkpoint is {checkpoints[-1]}. Resume with:\n{command}"


def describe_command(args: TrainingArguments) -> str:
    """Return this command for the run's card: without the machine's folders, and without the flag that resumes."""
    *words, script = command_words()
    if script.endswith(".py"):
        script = os.path.join("scripts", os.path.basename(script))
    options = without_option(getattr(args, "words", sys.argv[1:]), "resume_from_checkpoint")
    return shlex.join([*words, script, *map(hide_folders, options)])
