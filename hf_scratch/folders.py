# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""A run's folder, and what a published text may say of folders: nothing of the machine's own."""

import os

from transformers import TrainingArguments


def require_output_dir(args: TrainingArguments) -> str:
    """The run's folder; ValueError if it is not given."""
    if not args.output_dir:
        raise ValueError("`output_dir` must be given.")
    return args.output_dir


def public_name(name: str) -> str:
    """A Hub id as it is; of a path only the last part."""
    return os.path.basename(os.path.normpath(name)) if os.path.exists(name) else name


def hide_folders(word: str) -> str:
    """A word of a command line, with paths outside the working folder cut to their last part."""
    flag, sign, path = word.rpartition("=")
    if os.path.isabs(path) or path.startswith(os.pardir):
        path = os.path.basename(os.path.normpath(path))
    return flag + sign + path
