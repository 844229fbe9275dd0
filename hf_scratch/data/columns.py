# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Checks of a dataset's columns, before they are tokenised."""

import os
from collections.abc import Sequence

from datasets import Dataset


def check_not_dates(rows: Dataset, column: str, name: str) -> None:
    """Raise ValueError for a column of dates: the JSON reader converts a column in which every text is a date."""
    kind = getattr(rows.features[column], "dtype", "")
    if kind.startswith(("timestamp", "date", "time")):
        raise ValueError(
            f"The column {column!r} of {name} was read as {kind}, since every row of it is a date. Its text cannot be "
            "had back: give the data as a folder with CSV files, by `dataset_name`."
        )


def check_texts(values: Sequence, column: str, name: str) -> None:
    """Raise ValueError for the first row that is not text, and for rows without text."""
    other = next(((i, value) for i, value in enumerate(values) if not isinstance(value, str | None)), None)
    if other is not None:
        row, value = other
        raise ValueError(
            f"{name}: row {row}, counted from 0, has in column {column!r} no text, but {type(value).__name__} "
            f"({str(value)[:40]}). Put it in quotes, or remove the row."
        )
    empty = [i for i, value in enumerate(values) if value is None or not value.strip()]
    if empty:
        rows = ", ".join(str(i) for i in empty[:5]) + (", ..." if len(empty) > 5 else "")
        raise ValueError(
            f"{name} has {len(empty)} of {len(values)} rows with no text in column {column!r} (rows {rows}, counted "
            "from 0). Remove or fill them."
        )


def count_processes(num_proc: int | None, rows: int) -> int | None:
    """For `map`: at most one for each core and row; None, which starts no process, for one."""
    processes = min(num_proc or 1, rows, os.cpu_count() or 1)
    return processes if processes > 1 else None
