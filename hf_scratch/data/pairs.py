# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Sentence pairs for translation: take their columns, tokenise them, and count what was cut."""

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from datasets import Dataset, Features, List, Translation, Value

from .columns import Encoder, check_columns, check_texts, encode_rows, id_type, read_numbers

logger = logging.getLogger(__name__)


def take_pairs(rows: Dataset, source_lang: str, target_lang: str, name: str = "the data") -> Dataset:
    """Take the two languages out of rows `{"en": ..., "de": ...}` or `{"translation": {"en": ..., "de": ...}}`.

    Args:
        rows: the rows.
        source_lang: the source language's column, or its key in "translation".
        target_lang: the target language's.
        name: what errors call the rows.

    Returns:
        Rows with the columns "source" and "target", both strings.

    Raises:
        ValueError: the rows do not have a language, or a row has no text or something else in it.
    """
    if isinstance(rows.features.get("translation"), dict | Translation):
        rows = rows.select_columns(["translation"]).flatten()  # "translation.en"
        rows = rows.rename_columns({column: column.removeprefix("translation.") for column in rows.column_names})
    check_columns(rows.column_names, name, source_lang=source_lang, target_lang=target_lang)
    for lang in (source_lang, target_lang):
        check_texts(rows, lang, name)
    columns = {source_lang: "source", target_lang: "target"}
    return rows.select_columns([*columns]).rename_columns(columns)


class PairEncoder(Encoder):
    """Tokenises a batch of pairs: see `tokenize_pairs`."""

    def __init__(self, tokenizer, max_source_length: int, max_target_length: int):
        self.tokenizer, self.limits = tokenizer, (max_source_length, max_target_length)
        ids, is_cut = List(id_type(tokenizer)), Value("bool")
        self.features = Features(
            {"input_ids": ids, "labels": ids, "length": Value("int32"), "source_cut": is_cut, "target_cut": is_cut}
        )

    def __call__(self, batch: dict) -> pa.Table:
        """Return the rows of a batch of pairs."""
        rows: dict[str, Any] = {}
        for side, column, limit in zip(("source", "target"), ("input_ids", "labels"), self.limits, strict=True):
            rows[column] = _encode(batch[side], self.tokenizer, side, limit)
            # A side exactly at the limit may or may not have been cut.
            full = [i for i, ids in enumerate(rows[column]) if len(ids) >= limit]
            whole = _encode([batch[side][i] for i in full], self.tokenizer, side) if full else []
            cut = {i for i, ids in zip(full, whole, strict=True) if len(ids) > limit}
            rows[f"{side}_cut"] = [i in cut for i in range(len(rows[column]))]
        sides = zip(rows["input_ids"], rows["labels"], strict=True)
        rows["length"] = [max(len(source), len(target)) for source, target in sides]
        return pa.table(rows, schema=self.features.arrow_schema)


def _encode(texts: list[str], tokenizer, side: str, limit: int | None = None) -> list[list[int]]:
    """Return the token ids of texts, cut to a limit. The collator makes the attention mask."""
    options = {"max_length": limit, "truncation": limit is not None, "verbose": False}
    encoded = tokenizer(texts, **options) if side == "source" else tokenizer(text_target=texts, **options)
    return encoded["input_ids"]


def tokenize_pairs(
    pairs: Dataset,
    tokenizer,
    max_source_length: int,
    max_target_length: int,
    name: str,
    num_proc: int | None = None,
) -> Dataset:
    """Tokenise pairs. A side that is too long is cut, and its end token kept, as in run_translation.py.

    Args:
        pairs: rows with the columns "source" and "target".
        tokenizer: appends the end token.
        max_source_length: tokens of a source at most, the end token included.
        max_target_length: tokens of a target at most, the end token included.
        name: what the progress bar calls the rows.
        num_proc: processes; the result does not depend on them. Default: all cores.

    Returns:
        Rows of `input_ids` and `labels` (lists of ints, of two bytes each where the vocabulary allows), `length`
        (tokens of the longer side), and `source_cut` and `target_cut` (whether the side was cut).
    """
    return encode_rows(pairs, PairEncoder(tokenizer, max_source_length, max_target_length), name, num_proc)


def count_cut(encoded: Dataset, name: str, max_source_length: int, max_target_length: int) -> str:
    """Count the sides that `tokenize_pairs` cut, and log a warning if there are any.

    Returns:
        A phrase for the card, e.g. "3 of 100 sources at 128 tokens"; "" if nothing was cut.
    """
    limits = {"source": max_source_length, "target": max_target_length}
    counts = {side: int(read_numbers(encoded, f"{side}_cut").sum()) for side in limits}
    parts = [f"{n:,} of {len(encoded):,} {side}s at {limits[side]} tokens" for side, n in counts.items() if n]
    if parts:
        logger.warning(f"{name}: cut {' and '.join(parts)}.")
    return " and ".join(parts)


def check_lengths(lengths: Sequence[int] | np.ndarray, longest: int | None, what: str, advice: str) -> None:
    """Check that no row needs more positions than the model has, before anything is trained or translated.

    Args:
        lengths: tokens of each row.
        longest: the model's positions; None for a model without a limit.
        what: what the error calls the rows, e.g. "sources of test".
        advice: the error's last sentence.

    Raises:
        ValueError: some rows are longer; the message counts them and names the first.
    """
    lengths = np.asarray(lengths)
    too_long = np.flatnonzero(lengths > longest) if longest is not None else ()
    if len(too_long):
        raise ValueError(
            f"{len(too_long):,} of {len(lengths):,} {what} are longer than the model's {longest} positions "
            f"(`max_position_embeddings`); the first is row {too_long[0]}, counted from 0, with "
            f"{lengths[too_long[0]]} tokens. {advice}"
        )


def count_tokens(texts: Sequence[str], tokenizer) -> list[int]:
    """The number of tokens of each text, uncut."""
    return [len(ids) for ids in tokenizer(list(texts), verbose=False)["input_ids"]]
