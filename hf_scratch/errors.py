# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""How the commands in scripts/ end on a user's mistake: one or two lines on stderr, exit status 2, no trace.

```python
@command
def main():
    with preparation():
        args = parse_arguments(...)
        model, data = load(args)
    train(model, data)
```

Inside `preparation()`, every error that a wrong argument, file or configuration can cause is the user's. Outside it,
only `UserError` and errors of a named file are: anything else is a bug, and shows its trace. With HF_SCRATCH_TRACE=1
in the environment, a user's mistake shows its trace too.
"""

import functools
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from datasets.exceptions import DatasetsError
from huggingface_hub.errors import StrictDataclassError, StrictDataclassFieldValidationError
from safetensors import SafetensorError
from tqdm.auto import tqdm

SECONDS_BEFORE_OTHERS_PRINT = 10.0
LONGEST_MESSAGE = 600  # characters, of other libraries' messages
USERS_ERRORS = (ValueError, OverflowError, OSError, ImportError, StrictDataclassError, DatasetsError, SafetensorError)


class UserError(ValueError):
    """A mistake in what the user gave. Its message names the argument, file and row, and says what to do."""


@contextmanager
def preparation() -> Iterator[None]:
    """Turn the errors that arguments, data, models and tokenizers cause into `UserError`. Also a decorator.

    Raises:
        UserError: from any of `USERS_ERRORS`.
    """
    try:
        yield
    except UserError:
        raise
    except USERS_ERRORS as error:
        raise UserError(describe(error)) from error


def command(main: Callable) -> Callable:
    """Decorate a script's `main` so that a user's mistake ends it with a line on stderr and exit status 2.

    Where several processes run, the first one on each machine prints, and another only an error of its own.
    """

    @functools.wraps(main)
    def run(*args, **kwargs):
        try:
            return main(*args, **kwargs)
        except (UserError, OSError) as error:
            is_users = isinstance(error, UserError) or error.filename is not None
            if not is_users or os.environ.get("HF_SCRATCH_TRACE") == "1":
                raise
            exit_with(describe(error))

    return run


def is_first_process() -> bool:
    """Whether this is the only process, or the first one that torchrun or `accelerate launch` started here."""
    return int(os.environ.get("LOCAL_RANK", 0)) == 0


def exit_with(message: str) -> None:
    """Print `script.py: error: message` on the first process of a machine, and exit with status 2.

    The first process has most errors too, and the launcher ends the others after it. One that is still there after a
    while has an error of its own, and prints it.
    """
    name = "error"
    if not is_first_process():
        time.sleep(SECONDS_BEFORE_OTHERS_PRINT)
        name = f"error of process {os.environ['LOCAL_RANK']}"
    text = f"{Path(sys.argv[0]).name}: {name}: {message}"
    # lone surrogates, in a file name for example, cannot be printed
    tqdm.write(text.encode(errors="backslashreplace").decode(), file=sys.stderr)  # beside a progress bar, if any
    raise SystemExit(2)


def describe(error: BaseException) -> str:
    """An error's message on one line; of a config's validation, what the check itself said."""
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, StrictDataclassError) and error.__cause__ is not None:
        message = describe(error.__cause__)
        if isinstance(error, StrictDataclassFieldValidationError):
            field = str(error).partition("'")[2].partition("'")[0]
            return message if f"'{field}'" in message else f"`{field}`: {message}"
        return message
    message = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, OSError) and error.filename is not None and error.strerror is not None:
        message = f"{error.strerror}: {error.filename}"
    return message if len(message) <= LONGEST_MESSAGE else message[: LONGEST_MESSAGE - 4] + " ..."
