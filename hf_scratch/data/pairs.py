# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Sentence pairs for translation: take the two columns, tokenise, count what was cut."""

import copy
import logging
from collections.abc import Mapping, Sequence

import torch
from datasets import Dataset

from .columns import check_not_dates, check_texts, count_processes

logger = logging.getLogger(__name__)


def take_pairs(
    rows: Dataset, source_lang: str, target_lang: str, name: str = "the data", num_proc: int | None = None
) -> Dataset:
    """The columns "source" and "target" (strings) out of `{"en": ..., "de": ...}` or `{"translation": {...}}` rows.

    Args:
        name: what errors call the data.
        num_proc: processes; the result does not depend on them.

    Raises:
        ValueError: a language that the rows do not have, or a row with an empty side or something else than text.
    """
    first = rows[0]
    nested = isinstance(first.get("translation"), dict)
    languages = first["translation"] if nested else first
    for option, lang in (("source_lang", source_lang), ("target_lang", target_lang)):
        if lang not in languages:
            raise ValueError(f"`{option}` is {lang!r}, but the columns of {name} are {', '.join(languages)}.")

    def take(row: Mapping) -> dict:
        pair = row["translation"] if nested else row
        return {"source": pair[source_lang], "target": pair[target_lang]}

    for lang in (source_lang, target_lang):
        if nested:
            pairs = (pair if isinstance(pair, dict) else {} for pair in rows["translation"])
            check_texts([pair.get(lang) for pair in pairs], lang, name)
        else:
            check_not_dates(rows, lang, name)
            check_texts(rows[lang], lang, name)
    return rows.map(
        take,
        remove_columns=rows.column_names,
        num_proc=count_processes(num_proc, len(rows)),
        desc=f"{name}: {source_lang}-{target_lang} pairs",
    )


def tokenize_pairs(
    pairs: Dataset,
    tokenizer,
    max_source_length: int,
    max_target_length: int,
    name: str,
    num_proc: int | None = None,
) -> Dataset:
    """ "source" and "target" to `input_ids`, `attention_mask`, `labels`, `length` (the longer side, in tokens) and
    `source_cut` and `target_cut`: whether a side was longer than its limit.

    What is longer is cut, with the end token kept, as run_translation.py does.

    Args:
        num_proc: processes; the result does not depend on them.
    """

    def encode(batch: dict) -> dict:
        encoded = _encode_pairs(batch, tokenizer, max_source_length, max_target_length)
        sides = zip(encoded["input_ids"], encoded["labels"], strict=True)
        encoded["length"] = [max(len(source), len(target)) for source, target in sides]
        for side, column, limit in (
            ("source", "input_ids", max_source_length),
            ("target", "labels", max_target_length),
        ):
            # a row that is full may just fit
            full = [i for i, ids in enumerate(encoded[column]) if len(ids) >= limit]
            texts = [batch[side][i] for i in full]
            rows = (
                (tokenizer(texts, verbose=False) if side == "source" else tokenizer(text_target=texts)) if full else {}
            )
            cut = {i for i, ids in zip(full, rows.get("input_ids", []), strict=True) if len(ids) > limit}
            encoded[f"{side}_cut"] = [i in cut for i in range(len(batch[side]))]
        return encoded

    return pairs.map(
        encode,
        batched=True,
        remove_columns=pairs.column_names,
        num_proc=count_processes(num_proc, len(pairs)),
        desc=f"{name}: tokenising",
    )


def count_cut(encoded: Dataset, name: str, max_source_length: int, max_target_length: int) -> str:
    """How many sides of `tokenize_pairs`' rows were cut, logged where there are some; for the card.

    Returns:
        "" for none; else for example "3 of 100 sources at 128 tokens".
    """
    limits = {"source": max_source_length, "target": max_target_length}
    counts = {side: sum(encoded[f"{side}_cut"]) for side in limits}
    parts = [f"{n:,} of {len(encoded):,} {side}s at {limits[side]} tokens" for side, n in counts.items() if n]
    if parts:
        logger.warning(f"{name}: cut {' and '.join(parts)}.")
    return " and ".join(parts)


def check_lengths(lengths: Sequence[int], longest: int | None, what: str, advice: str) -> None:
    """Raise ValueError where rows need more positions than a model has, before anything is trained or translated.

    Args:
        lengths: the tokens of each row.
        longest: the model's positions; None, for a model that names none, passes.
        what: what the rows are, e.g. "sources of test".
    """
    too_long = [i for i, length in enumerate(lengths) if longest is not None and length > longest]
    if too_long:
        raise ValueError(
            f"{len(too_long):,} of {len(lengths):,} {what} are longer than the model's {longest} positions "
            f"(`max_position_embeddings`); the first is row {too_long[0]}, counted from 0, with "
            f"{lengths[too_long[0]]} tokens. {advice}"
        )


def count_tokens(texts: Sequence[str], tokenizer) -> list[int]:
    """The tokens of each text, uncut."""
    return [len(ids) for ids in tokenizer(list(texts), verbose=False)["input_ids"]]


def _encode_pairs(batch: dict, tokenizer, max_source_length: int, max_target_length: int) -> dict:
    encoded = tokenizer(batch["source"], max_length=max_source_length, truncation=True)
    targets = tokenizer(text_target=batch["target"], max_length=max_target_length, truncation=True)
    return {**encoded, "labels": targets["input_ids"]}


class PairsWithBPEDropout(torch.utils.data.Dataset):
    """Pairs cut into pieces anew each time, with merges left out at random (BPE-dropout, Provilkov et al. 2020).

    The draws are the tokenizers library's own, which takes no seed: a run cannot be repeated to the bit.

    Args:
        pairs: the columns "source" and "target".
        encoded: what `tokenize_pairs` made of them; its "length", without dropout, is what batches are counted by.
        tokenizer: a BPE tokenizer; it is copied, not changed.
        dropout: the share of merges left out, between 0 and 1.
    """

    def __init__(
        self,
        pairs: Dataset,
        encoded: Dataset,
        tokenizer,
        dropout: float,
        max_source_length: int,
        max_target_length: int,
    ):
        if not 0 < dropout < 1:
            raise ValueError(f"`bpe_dropout` must be between 0 and 1, got {dropout}.")
        self.tokenizer = copy.deepcopy(tokenizer)
        model = self.tokenizer.backend_tokenizer.model
        if not hasattr(model, "dropout"):
            raise ValueError(f"`bpe_dropout` needs a BPE tokenizer, but this one is {type(model).__name__}.")
        model.dropout = dropout
        self.pairs, self.encoded = pairs, encoded
        self.max_source_length, self.max_target_length = max_source_length, max_target_length

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, key: int | str):
        """A row, or a column of the rows without dropout."""
        return self.encoded[key] if isinstance(key, str) else self.__getitems__([key])[0]

    def __getitems__(self, indices: list[int]) -> list[dict]:
        """Several rows: torch's loader asks for a batch at a time."""
        rows = self.pairs[indices]
        encoded = _encode_pairs(rows, self.tokenizer, self.max_source_length, self.max_target_length)
        return [{name: column[i] for name, column in encoded.items()} for i in range(len(indices))]
