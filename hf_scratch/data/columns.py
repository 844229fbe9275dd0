# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Checks of a dataset's columns, made before the rows are tokenised."""

import os
from collections.abc import Sequence
from typing import Any

from datasets import Dataset


def is_date(feature: Any) -> bool:
    """Whether the JSON reader has made dates or times of a column's texts.

    Args:
        feature: the column's entry in `Dataset.features`.
    """
    return getattr(feature, "dtype", "").startswith(("timestamp", "date", "time"))


def refuse_dates(column: str, name: str) -> ValueError:
    """The error for a column of dates: the JSON reader converts a column if every text in it is a date.

    Args:
        column: the column's name.
        name: what to call the data.
    """
    return ValueError(
        f"The column {column!r} of {name} was read as timestamps, because every text in it is a date, and the texts "
        "themselves are lost. Give the data as CSV files, in a folder named by `dataset_name`."
    )


def check_texts(rows: Dataset, column: str, name: str) -> None:
    """Check that each row has text in a column.

    Args:
        rows: the rows.
        column: the column's name.
        name: what the error calls the rows.

    Raises:
        ValueError: a row has no text or something else there, or all rows have dates.
    """
    if is_date(rows.features[column]):
        raise refuse_dates(column, name)
    check_text_values(rows[column], column, name)


def check_text_values(values: Sequence, column: str, name: str) -> None:
    """Check that each value is a string with more than white space in it.

    Args:
        values: a column's values.
        column: the column's name.
        name: what the error calls the rows.

    Raises:
        ValueError: naming the first row that is not text, or the rows without text.
    """
    other = next(((i, value) for i, value in enumerate(values) if not isinstance(value, str | None)), None)
    if other is not None:
        row, value = other
        raise ValueError(
            f"{name}: row {row}, counted from 0, has no text, but {type(value).__name__} ({str(value)[:40]}), in "
            f"column {column!r}. Put it in quotes, or remove the row."
        )
    empty = [i for i, value in enumerate(values) if value is None or not value.strip()]
    if empty:
        rows = ", ".join(str(i) for i in empty[:5]) + (", ..." if len(empty) > 5 else "")
        raise ValueError(
            f"{name} has {len(empty)} of {len(values)} rows with no text in column {column!r} (rows {rows}, counted "
            "from 0). Remove or fill them."
        )


def count_processes(num_proc: int | None, rows: int) -> int | None:
    """The `num_proc` for `Dataset.map`: at most one process per core and per row.

    Args:
        num_proc: the processes asked for.
        rows: how many rows, or groups of rows, there are to share.

    Returns:
        None in place of 1, so that `map` starts no process.
    """
    processes = min(num_proc or 1, rows, os.cpu_count() or 1)
    return processes if processes > 1 else None
