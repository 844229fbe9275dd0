# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Columns of text: check them, tokenise them into rows, and read numbers back."""

import gc
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset, Features, Value

from ..tokenization import target_size

ROWS_AT_ONCE = 10_000  # of a column that is checked or counted
ROWS_PER_PROCESS = 10_000  # fewer are not worth another process
TEXTS_AT_ONCE = 1000  # that an encoder gets


def check_columns(columns: Iterable[str], name: str, **wanted: str | None) -> None:
    """Check that data called `name` have the columns that options choose, e.g. `text_column="text"`.

    Raises:
        ValueError: naming the option, and the columns that there are.
    """
    for option, column in wanted.items():
        if column not in columns:
            raise ValueError(
                f"`{option}` is {column!r}, but the columns of {name} are {', '.join(columns)}. Set `--{option}`; "
                "or, if these are a row, put a line with the columns' names before it."
            )


def check_texts(rows: Dataset, column: str, name: str) -> None:
    """Raise ValueError if a row has no text in a column, something else, or bytes that are not UTF-8.

    Errors call the rows `name`.
    """
    feature = rows.features[column]
    if getattr(feature, "dtype", None) not in ("string", "large_string", "null"):
        raise ValueError(f"{name}: column {column!r} holds {feature}, not text. Write all of its values as strings.")
    blank = []
    for i, table in enumerate(rows.select_columns([column]).with_format("arrow").iter(ROWS_AT_ONCE)):
        texts = table[column].cast("string").fill_null("")
        try:
            texts.validate(full=True)
        except pa.ArrowInvalid as error:
            raise ValueError(f"{name}: save it as UTF-8 ({error} in column {column!r}).") from error
        trimmed = pc.call_function("utf8_trim_whitespace", [texts])
        lengths = pc.call_function("binary_length", [trimmed]).to_numpy()
        blank += (np.flatnonzero(lengths == 0) + i * ROWS_AT_ONCE).tolist()
    if blank:
        first = ", ".join(map(str, blank[:5])) + (", ..." if len(blank) > 5 else "")
        raise ValueError(
            f"{name} has {len(blank)} of {len(rows)} rows with no text in column {column!r} (rows {first}, counted "
            "from 0). Remove or fill them."
        )


class Encoder(ABC):
    """Makes rows of token ids of a batch of texts. `features` describe their columns."""

    features: Features

    @abstractmethod
    def __call__(self, batch: dict) -> pa.Table:
        """Return the rows of a batch of texts."""


def encode_rows(
    texts: Dataset, encode: Encoder, name: str, num_proc: int | None = None, cache_file_name: str | None = None
) -> Dataset:
    """Make rows of token ids of texts, 1,000 texts at a time. The number of processes does not change the result.

    By default there is one process for every `ROWS_PER_PROCESS` texts, up to the cores.
    """
    options = {"batched": True, "features": encode.features, "cache_file_name": cache_file_name}
    options["desc"] = f"{name}: tokenising"
    processes = min(num_proc or math.ceil(len(texts) / ROWS_PER_PROCESS), os.cpu_count() or 1)
    if processes <= 1:
        return texts.map(encode, batch_size=TEXTS_AT_ONCE, remove_columns=texts.column_names, **options)
    # `map` would give each process an equal share of the texts, which is no multiple of 1,000: share the thousands.
    begins = Dataset.from_dict({"begin": range(0, len(texts), TEXTS_AT_ONCE)})
    gc.freeze()  # else a process that collects garbage copies the memory that it shares with the others
    try:
        return begins.map(
            lambda batch: encode(texts[batch["begin"][0] : batch["begin"][0] + TEXTS_AT_ONCE]),
            batch_size=1,
            remove_columns=["begin"],
            num_proc=min(processes, len(begins)),
            **options,
        )
    finally:
        gc.unfreeze()


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
        for batch in rows.select_columns([column]).iter(ROWS_AT_ONCE):
            yield from batch[column]


def count_bytes(table: pa.Table, columns: Sequence[str]) -> int:
    """Count the bytes of the texts in some columns."""
    return sum(pc.call_function("binary_length", [table[c]]).to_numpy().sum(dtype=np.int64) for c in columns)


def sample_rows(rows: Dataset, columns: Sequence[str], megabytes: float) -> Dataset:
    """Take evenly spaced rows with at most `megabytes` (1,000,000 bytes each) of text in these columns."""
    tables = rows.select_columns(list(columns)).with_format("arrow").iter(ROWS_AT_ONCE)
    step = sum(count_bytes(table, columns) for table in tables) / (megabytes * 1e6)
    if step <= 1:
        return rows
    return rows.select(np.unique((np.arange(int(len(rows) / step) or 1) * step).astype(np.int64)))


def id_type(tokenizer) -> Value:
    """The type in which a tokenizer's ids are stored: two bytes, or four for a large vocabulary."""
    return Value("uint16" if max(len(tokenizer), target_size(tokenizer)) <= 2**16 else "int32")
