# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""A training run's folder: one run at a time, and the command that resumes it."""

import os
import shlex
import signal
import sys
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress

from accelerate import PartialState
from filelock import FileLock, Timeout
from tqdm.auto import tqdm
from transformers import TrainingArguments

from ..errors import UserError, command_words, without_option
from ..loading import hide_folders, require_output_dir
from .checkpoints import choose_checkpoint, whole_checkpoints
from .machines import check_shared_folder, on_main_process

LOCK = ".lock"
SECONDS_FOR_LOCK = 20.0  # that what is left of a killed run may still hold it: its children, a network file system


@contextmanager
def open_run(args: TrainingArguments) -> Generator[str | None]:
    """Lock `args.output_dir` for this run, and give all processes the checkpoint to resume from.

    The first process holds a file lock in the folder; the system releases it however the process ends. A folder that
    the run created is removed again if nothing was written into it. If an error ends the run, the command that resumes
    it is printed.

    Yields:
        The checkpoint's folder, or None for a new run.

    Raises:
        UserError: another run holds the folder; not all processes see it; or `args.resume_from_checkpoint` does not
            fit what is in it (see `choose_checkpoint`).
        SystemExit: 130 after Ctrl-C.
    """
    output_dir = require_output_dir(args)
    with ExitStack() as stack:
        on_main_process(lambda: _lock(output_dir, stack))
        check_shared_folder(output_dir)
        checkpoint = on_main_process(lambda: choose_checkpoint(args))
        # Trainer adds each result to this file, which a killed run may have left half written
        on_main_process(lambda: _remove(os.path.join(output_dir, "all_results.json")))
        try:
            yield checkpoint
        except (UserError, FloatingPointError):
            raise
        except (Exception, KeyboardInterrupt) as error:
            if PartialState().is_main_process:
                tqdm.write(how_to_go_on(output_dir), file=sys.stderr)  # does not break the progress bar
            if isinstance(error, KeyboardInterrupt):
                raise SystemExit(128 + signal.SIGINT) from None
            raise


def _lock(output_dir: str, stack: ExitStack) -> None:
    """Hold the folder until the stack is closed."""
    if not os.path.isdir(output_dir):
        stack.callback(_remove, output_dir)
    os.makedirs(output_dir, exist_ok=True)
    lock = FileLock(os.path.join(output_dir, LOCK))
    try:
        lock.acquire(timeout=SECONDS_FOR_LOCK, poll_interval=0.2)
    except Timeout:
        raise UserError(
            f"`output_dir` ({output_dir}) is in use by another run. Wait for its end, or choose another folder."
        ) from None
    stack.callback(lock.release)
    stack.callback(_remove, lock.lock_file)  # while it is still held


def _remove(path: str) -> None:
    """Remove a file or an empty folder, if it is there."""
    with suppress(OSError):
        (os.rmdir if os.path.isdir(path) else os.remove)(path)


def how_to_go_on(output_dir: str) -> str:
    """Return a sentence that names the last whole checkpoint of `output_dir`, and the command that resumes from it."""
    checkpoints = whole_checkpoints(output_dir)
    if not checkpoints:
        return f"There is no whole checkpoint in {output_dir} yet: empty the folder and start again."
    words = [*command_words(), *without_option(sys.argv[1:], "resume_from_checkpoint")]
    command = shlex.join([*words, "--resume_from_checkpoint", "last"])
    if PartialState().num_processes > 1:
        command += " (with the same launcher)"
    return f"The last whole checkpoint is {checkpoints[-1]}; go on with:\n{command}"


def describe_command() -> str:
    """Return this command for the run's card: without the machine's folders, and without the flag that resumes."""
    *words, script = command_words()
    if script.endswith(".py"):
        script = os.path.join("scripts", os.path.basename(script))
    options = without_option(sys.argv[1:], "resume_from_checkpoint")
    return shlex.join([*words, script, *map(hide_folders, options)])
