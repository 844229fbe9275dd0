# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""A training run's folder: one run at a time, an orderly end when it is stopped, and the command that resumes it."""

import errno
import logging
import os
import pickle
import shlex
import signal
import sys
import threading
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress

from accelerate import PartialState
from filelock import BaseFileLock, FileLock, Timeout
from tqdm.auto import tqdm
from transformers import TrainingArguments

from ..errors import UserError, command_words
from ..folders import require_output_dir
from .checkpoints import OPTIMIZER_PREFIXES, choose_checkpoint, whole_checkpoints
from .machines import check_shared_folder, on_main_process

logger = logging.getLogger(__name__)

LOCK = ".lock"
SECONDS_FOR_LOCK = 120.0  # a network file system may keep a dead machine's locks for 90 seconds
NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Terminated(SystemExit):
    """SIGTERM came."""


@contextmanager
def open_run(args: TrainingArguments) -> Generator[str | None]:
    """Lock `args.output_dir` for this run, and give all processes the checkpoint to resume from.

    The first process holds a file lock in the folder; the system releases it however the process ends. A folder that
    the run created is removed again if nothing was written into it.

    A run that a launcher restarts, or with `resume_from_checkpoint` "auto", waits up to two minutes for the lock.

    Yields:
        The checkpoint's folder, or None for a new run.

    Raises:
        UserError: another run holds the folder; not all processes see it; `args.resume_from_checkpoint` does not fit
            what is in it (see `choose_checkpoint`), or holds code; or the disk became full during the run.
        SystemExit: 143 after SIGTERM, 130 after Ctrl-C. The command that resumes the run is printed.
    """
    output_dir = require_output_dir(args)
    with ExitStack() as stack:
        stack.enter_context(_exit_on_sigterm())
        on_main_process(lambda: _claim(args, stack))
        check_shared_folder(output_dir)
        checkpoint = choose_checkpoint(args)
        try:
            yield checkpoint
        except (KeyboardInterrupt, Terminated) as stop:
            if PartialState().is_main_process:
                tqdm.write(how_to_go_on(output_dir), file=sys.stderr)  # does not break the progress bar
            raise SystemExit(128 + (signal.SIGTERM if isinstance(stop, Terminated) else signal.SIGINT)) from None
        except pickle.UnpicklingError:  # torch's own message advises to run the code
            raise UserError(
                f"A file of the checkpoint {checkpoint} is a pickle that holds more than tensors. It is refused, "
                "because loading it could run code. Resume from a checkpoint that you trained yourself."
            ) from None
        except Exception as error:
            if not is_disk_full(error):
                raise
            message = (
                f"There is no space left on the disk of `output_dir` ({output_dir}), or a quota or a limit on the "
                "size of files is reached. Free some space, or raise the limit."
            )
            raise UserError(f"{message} {how_to_go_on(output_dir)}") from error


def _claim(args: TrainingArguments, stack: ExitStack) -> None:
    """Hold the folder until the stack is closed.

    A run that nobody watches waits for the lock. What is left of a killed run may still hold it when its launcher
    starts it again: the killed process's own children, or a dead machine's lock on a network file system.
    """
    output_dir = require_output_dir(args)
    is_new = not os.path.isdir(output_dir)
    lock = FileLock(os.path.join(output_dir, LOCK))
    is_restarted = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0)) > 0
    waits = is_restarted or str(args.resume_from_checkpoint).lower() == "auto"
    try:
        try:
            _acquire(lock, output_dir, waits)
        except (FileExistsError, FileNotFoundError):  # another run has just removed the folder, which was empty
            _acquire(lock, output_dir, waits)
    except Timeout:
        raise UserError(
            f"`output_dir` ({output_dir}) is in use by another run. Wait for its end, or choose another folder."
        ) from None
    if is_new:
        stack.callback(_remove, output_dir)
    stack.callback(lock.release)
    stack.callback(_remove, lock.lock_file)  # while it is still held


def _acquire(lock: BaseFileLock, output_dir: str, waits: bool) -> None:
    os.makedirs(output_dir, exist_ok=True)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        if not waits:
            raise
        logger.warning(f"{output_dir} is still in use. Waiting for at most {SECONDS_FOR_LOCK:.0f} seconds.")
        lock.acquire(timeout=SECONDS_FOR_LOCK, poll_interval=0.2)


def _remove(path: str) -> None:
    """Remove a file or an empty folder, if it is there."""
    with suppress(OSError):
        (os.rmdir if os.path.isdir(path) else os.remove)(path)


@contextmanager
def _exit_on_sigterm() -> Generator[None]:
    """Turn SIGTERM into an exception, so that locks are released."""
    if threading.current_thread() is not threading.main_thread():  # only the main thread may set handlers
        yield
        return

    def stop(number, frame):
        raise Terminated(128 + number)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def how_to_go_on(output_dir: str) -> str:
    """Return a sentence that names the last whole checkpoint of `output_dir`, and the command that resumes from it."""
    checkpoints = whole_checkpoints(output_dir)
    if not checkpoints:
        return f"There is no whole checkpoint in {output_dir} yet: empty the folder and start again."
    if not any(path.name.startswith(OPTIMIZER_PREFIXES) for path in checkpoints[-1].iterdir()):
        return (
            f"{checkpoints[-1]} has no optimiser state (`save_only_model`), so this run cannot be resumed. A new run "
            "can start from its weights, with `--model_name_or_path`."
        )
    words = command_words()
    skip = False
    for word in sys.argv[1:]:
        if not skip and not word.startswith("--resume_from_checkpoint"):
            words.append(word)
        skip = word == "--resume_from_checkpoint"
    command = shlex.join([*words, "--resume_from_checkpoint", "last"])
    if PartialState().num_processes > 1:
        command += " (with the same launcher)"
    return f"The last whole checkpoint is {checkpoints[-1]}; go on with:\n{command}"


def is_disk_full(error: BaseException) -> bool:
    """Return whether `error`, or an exception that caused it, says that there is no space left to write.

    That is so on a full disk, over a quota, and over the process's limit for a file's size. safetensors, which is
    written in Rust, gives the error number as text. torch's file writer only says that it failed.
    """
    seen, cause = set(), error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        if isinstance(cause, OSError) and cause.errno in NO_SPACE:
            return True
        text = str(cause)
        if "inline_container.cc" in text or any(f"os error {number})" in text for number in NO_SPACE):
            return True
        cause = cause.__cause__ or cause.__context__
    return False
