# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Checks of a dataset's columns, made before the rows are tokenised."""

import math
import os
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset, Value

ROWS_AT_ONCE = 10_000  # of a column that is checked or counted
ROWS_PER_PROCESS = 10_000  # fewer are not worth another process


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
        ValueError: a row has no text or something else there, or bytes that are not UTF-8; or all rows have dates.
    """
    if is_date(rows.features[column]):
        raise refuse_dates(column, name)
    if getattr(rows.features[column], "dtype", None) not in ("string", "large_string"):
        check_text_values(rows[column], column, name)
        return
    blank = [np.empty(0, dtype=np.int64)]
    for i, table in enumerate(rows.select_columns([column]).with_format("arrow").iter(ROWS_AT_ONCE)):
        try:
            table[column].validate(full=True)
        except pa.ArrowInvalid as error:
            row = i * ROWS_AT_ONCE + next(j for j, text in enumerate(table[column]) if not _is_utf8(text))
            raise ValueError(
                f"{name}: row {row}, counted from 0, is not UTF-8 text, in column {column!r}. Save the data as UTF-8."
            ) from error
        trimmed = pc.call_function("utf8_trim_whitespace", [table[column].fill_null("")])
        lengths = pc.call_function("binary_length", [trimmed]).to_numpy()
        blank.append(np.flatnonzero(lengths == 0) + i * ROWS_AT_ONCE)
    refuse_blank(np.concatenate(blank).tolist(), len(rows), column, name)


def _is_utf8(text: pa.Scalar) -> bool:
    try:
        text.as_py()
    except UnicodeDecodeError:
        return False
    return True


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
    blank = [i for i, value in enumerate(values) if value is None or not value.strip()]
    refuse_blank(blank, len(values), column, name)


def refuse_blank(blank: Sequence[int], count: int, column: str, name: str) -> None:
    """Raise ValueError if there are rows without text.

    Args:
        blank: their indices.
        count: how many rows there are in all.
        column: the column's name.
        name: what the error calls the rows.
    """
    if blank:
        rows = ", ".join(str(i) for i in blank[:5]) + (", ..." if len(blank) > 5 else "")
        raise ValueError(
            f"{name} has {len(blank)} of {count} rows with no text in column {column!r} (rows {rows}, counted "
            "from 0). Remove or fill them."
        )


def count_processes(num_proc: int | None, rows: int) -> int | None:
    """The `num_proc` for `Dataset.map`: at most one process per core and per row.

    Args:
        num_proc: the processes asked for. Default: all cores, but one process for every `ROWS_PER_PROCESS` rows.
        rows: how many rows, or groups of rows, there are to share.

    Returns:
        None in place of 1, so that `map` starts no process.
    """
    processes = min(num_proc or math.ceil(rows / ROWS_PER_PROCESS), rows, os.cpu_count() or 1)
    return processes if processes > 1 else None


def read_numbers(rows: Dataset, column: str) -> np.ndarray:
    """Return a column of numbers."""
    return np.asarray(rows.with_format("numpy")[column][:])


def count_ids(rows: Dataset) -> int:
    """Count the token ids of tokenised rows, in all columns of them."""
    total = 0
    for table in rows.with_format("arrow").iter(ROWS_AT_ONCE):
        lists = [table[column] for column in ("input_ids", "labels") if column in table.column_names]
        total += sum(int(pc.call_function("list_value_length", [ids]).to_numpy().sum()) for ids in lists)
    return total


def iterate_texts(rows: Dataset, *columns: str) -> Iterator[str]:
    """Yield the texts of a column, and then of the next one, without holding all of them in memory."""
    for column in columns:
        for batch in rows.select_columns([column]).iter(ROWS_PER_PROCESS):
            yield from batch[column]


def sample_rows(rows: Dataset, columns: Sequence[str], megabytes: float) -> Dataset:
    """Take rows, evenly spaced, that have at most this many megabytes of text. Fewer rows are taken as they are.

    Args:
        rows: the rows.
        columns: the columns whose texts count.
        megabytes: of 1,000,000 bytes.
    """
    total = 0
    for table in rows.select_columns(list(columns)).with_format("arrow").iter(ROWS_AT_ONCE):
        total += sum(pc.call_function("binary_length", [table[c]]).to_numpy().sum(dtype=np.int64) for c in columns)
    step = total / (megabytes * 1e6)
    if step <= 1:
        return rows
    return rows.select(np.unique((np.arange(int(len(rows) / step) or 1) * step).astype(np.int64)))


def id_type(tokenizer) -> Value:
    """The type in which a tokenizer's ids are stored: two bytes, or four for a large vocabulary."""
    vocabularies = [tokenizer.get_vocab()]
    if hasattr(tokenizer, "target_tokenizer"):
        vocabularies.append(tokenizer.target_tokenizer.get_vocab())
    largest = max(max(vocabulary.values()) for vocabulary in vocabularies)
    return Value("uint16" if largest < 2**16 else "int32")


def make_lists(rows: Sequence[Sequence], item: Value) -> pa.ListArray:
    """Make a column of lists, e.g. of token ids.

    Args:
        rows: the lists.
        item: the type of their items.
    """
    offsets = np.zeros(len(rows) + 1, dtype=np.int32)
    np.cumsum([len(row) for row in rows], out=offsets[1:])
    values = np.fromiter(chain.from_iterable(rows), dtype=item.dtype, count=int(offsets[-1]))
    return pa.ListArray.from_arrays(offsets, values)
