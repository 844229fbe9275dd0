# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Checks of the evaluation scripts' arguments."""

import os
from typing import Any

import torch

from ..training.arguments import DTYPES, check_at_least


def check_evaluation(args: Any, *positive: str) -> None:
    """Check an evaluation script's arguments: what it would fail on only after all is evaluated, too.

    Args:
        positive: more arguments that must be 1 or more.

    Raises:
        ValueError: a number out of its range, an unknown device or dtype, or a file that cannot be written.
    """
    check_at_least(args, 1, "batch_size", "max_samples", *positive)
    if args.dtype not in DTYPES:
        raise ValueError(f"`dtype` must be one of {', '.join(DTYPES)}; got {args.dtype!r}.")
    try:
        torch.zeros(1, device=args.device).item()
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"`device` is {args.device!r}: {str(error).splitlines()[0]}") from error
    for name in ("json", "output_file"):
        path = getattr(args, name, None)
        if path is not None and (os.path.isdir(path) or not os.path.isdir(os.path.dirname(path) or ".")):
            raise ValueError(f"`{name}` is {path!r}, but there is no folder for it, or it is a folder itself.")
        if path is not None and not os.access(path if os.path.exists(path) else os.path.dirname(path) or ".", os.W_OK):
            raise ValueError(f"`{name}` is {path!r}, which cannot be written.")
    if args.json is not None and os.path.realpath(args.json) == os.path.realpath(
        getattr(args, "output_file", None) or ""
    ):
        raise ValueError(f"`json` and `output_file` are both {args.json!r}.")
