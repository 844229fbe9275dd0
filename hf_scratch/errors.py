# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""User errors: the commands in scripts/ print one or two lines on stderr, and exit with status 2.

```python
@command
def main():
    with preparation():
        args = parse_arguments(...)
        model, data = load(args)
    train(model, data)
```

Inside `preparation()`, every error that a wrong argument, file or configuration can cause counts as a user error.
Outside it, only `UserError` and an OSError that names a file do. A FloatingPointError, by which a diverged training
ends, is printed in the same way, with status 1. Any other error is a bug, and shows its traceback.
With HF_SCRATCH_TRACE=1 in the environment, a user error shows its traceback too.
"""

import functools
import gc
import os
import sys
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from pathlib import Path

from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from tqdm.auto import tqdm
from transformers.utils import logging

SECONDS_BEFORE_OTHERS_PRINT = 10.0
PROGRAM = "hf-scratch"  # in a command that it runs, it begins sys.argv[0]
LONGEST_MESSAGE = 600  # characters; longer messages of other libraries are cut
USERS_ERRORS = (ValueError, OverflowError, OSError, ImportError, StrictDataclassError, SafetensorError)


class UserError(ValueError):
    """An error in the user's input. The message names the argument, file and row, and says what to do."""


@contextmanager
def extra(name: str) -> Generator[None]:
    """Import optional dependencies within this block: what an extra of the package installs.

    Raises:
        ImportError: one is not installed; the message says how to.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise ImportError(
            f"{error.name} is not installed: pip install 'hf-scratch[{name}]'", name=error.name
        ) from error


def disable_bars() -> None:
    """Turn off the progress bars of this package, of datasets, of downloads, and of models that are loaded."""
    logging.disable_progress_bar()
    if "datasets" in sys.modules:  # which a machine that only computes may lack
        sys.modules["datasets"].disable_progress_bars()


@contextmanager
def preparation() -> Generator[None]:
    """Turn the errors that arguments, data, models and tokenizers cause into `UserError`.

    It also works as a decorator.

    Raises:
        UserError: instead of any of `USERS_ERRORS`.
    """
    try:
        yield
    except UserError:
        raise
    except USERS_ERRORS as error:
        raise UserError(describe(error)) from error


def command(main: Callable) -> Callable:
    """Decorate a script's `main`: print a user error on stderr, and exit with status 2.

    With several processes, the first on each machine prints at once. Most errors occur on all processes, and the
    launcher ends the others when the first one exits. A process that still runs after `SECONDS_BEFORE_OTHERS_PRINT`
    has an error of its own, and prints it. At the end, each leaves the process group. Only the first process shows
    progress bars, and only on a terminal.
    """

    @functools.wraps(main)
    def run(*args, **kwargs):
        if not sys.stderr.isatty() or os.environ.get("LOCAL_RANK", "0") != "0":
            disable_bars()
        try:
            result = main(*args, **kwargs)
        except (UserError, FloatingPointError, OSError) as error:
            is_users = not isinstance(error, OSError) or error.filename is not None
            if not is_users or os.environ.get("HF_SCRATCH_TRACE") == "1":
                raise
            rank, name = os.environ.get("LOCAL_RANK", "0"), "error"
            if rank != "0":
                time.sleep(SECONDS_BEFORE_OTHERS_PRINT)
                name = f"error of process {rank}"
            text = f"{Path(sys.argv[0]).name}: {name}: {describe(error)}"
            tqdm.write(text, file=sys.stderr)  # does not break a progress bar
            raise SystemExit(1 if isinstance(error, FloatingPointError) else 2) from error
        distributed = sys.modules.get("torch.distributed")
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            # A thread of the group that is left when Python ends may abort the process. Nothing else may refer to the
            # group: models do, and they lie in cycles of references
            gc.collect()
            distributed.destroy_process_group()
        return result

    return run


def command_words() -> list[str]:
    """The words before the arguments of this command: `hf-scratch NAME`, the script's file, or its module."""
    if sys.argv[0].startswith(f"{PROGRAM} "):
        return sys.argv[0].split()
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is not None and spec.name.startswith("hf_scratch.scripts."):
        return ["python", "-m", spec.name]
    return ["python", sys.argv[0]]


def without_option(words: Iterable[str], name: str) -> list[str]:
    """Return the words of a command line without an option, in either spelling (--a_b, --a-b), and its value."""
    kept, rest = [], iter(words)
    for word in rest:
        flag, sign, _ = word.partition("=")
        if flag.replace("-", "_") != f"__{name}":
            kept.append(word)
        elif not sign:
            next(rest, None)
    return kept


def describe(error: BaseException) -> str:
    """Return an error's message on one line; of an OSError, the file too."""
    if isinstance(error, UserError):
        return str(error)
    message = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, OSError) and error.filename is not None and error.strerror is not None:
        message = f"{error.strerror}: {error.filename}"
    return message if len(message) <= LONGEST_MESSAGE else message[: LONGEST_MESSAGE - 4] + " ..."
