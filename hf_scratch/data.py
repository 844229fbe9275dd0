# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""From a dataset's name to batches: load, check, tokenise, pack, and group by a budget of tokens."""

import copy
import logging
import math
import os
import random
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, chain
from pathlib import Path

import torch
from datasets import Dataset, DatasetDict, load_dataset
from torch.utils.data import Sampler

from .data_files import load_files, load_folder
from .embedded_data import EMBEDDED, make_multiplication, make_numbers, make_stories  # noqa: F401  public here

logger = logging.getLogger(__name__)


def load_splits(
    dataset_name: str | None = None,
    dataset_config_name: str | None = None,
    train_file: str | None = None,
    validation_file: str | None = None,
    test_file: str | None = None,
    cache_dir: str | None = None,
) -> DatasetDict:
    """Load the splits "train", "validation" and "test", as many as there are.

    Args:
        dataset_name: a Hub id, a folder laid out like one (splits known by their file names), or one of the embedded
            sets, which need no network: "embedded:numbers" (en, de), "embedded:stories" and
            "embedded:multiplication" (text).
        dataset_config_name: the Hub dataset's configuration.
        train_file, validation_file, test_file: JSON or JSON-lines files, in place of `dataset_name`.

    Raises:
        ValueError: neither or both kinds of source, an unknown embedded set, an empty split, or a file that cannot be
            read, with its first line at fault.
        FileNotFoundError: a file or folder that is not there.
    """
    files = {"train": train_file, "validation": validation_file, "test": test_file}
    files = {split: file for split, file in files.items() if file is not None}
    if (dataset_name is None) == (not files):
        raise ValueError("Give either `dataset_name`, or `train_file`, `validation_file` and `test_file`.")
    if dataset_name is not None and dataset_name.startswith("embedded:"):
        if dataset_name not in EMBEDDED:
            raise ValueError(f"`dataset_name` is {dataset_name!r}; the embedded sets are {', '.join(EMBEDDED)}.")
        splits = EMBEDDED[dataset_name]()
    elif dataset_name is not None:
        folder = Path(dataset_name).expanduser()
        if dataset_name.startswith((".", "/", "~")) and not folder.is_dir():
            raise FileNotFoundError(f"`dataset_name` is {dataset_name!r}, but there is no such folder.")
        if not dataset_name.strip():
            raise ValueError("`dataset_name` is empty.")
        if folder.is_dir():
            splits = load_folder(str(folder), dataset_config_name, cache_dir)
        else:
            splits = load_dataset(dataset_name, dataset_config_name, cache_dir=cache_dir)
    else:
        splits = load_files(files, cache_dir)
    for split, rows in splits.items():
        if len(rows) == 0:
            raise ValueError(f"The split {split!r} of {dataset_name or files[split]} has no rows.")
    return splits


def load_from_arguments(args, cache_dir: str | None = None) -> DatasetDict:
    """`load_splits` of a script's DataArguments, cut to its `max_{train,eval,predict}_samples`."""
    splits = load_splits(
        args.dataset_name,
        args.dataset_config_name,
        args.train_file,
        args.validation_file,
        args.test_file,
        cache_dir,
    )
    if "train" not in splits:
        raise ValueError(f"There is no training data: the splits are {', '.join(splits)}.")
    limits = {"train": args.max_train_samples, "validation": args.max_eval_samples, "test": args.max_predict_samples}
    for name, limit in limits.items():
        if limit is not None and name in splits:
            splits[name] = splits[name].select(range(min(limit, len(splits[name]))))
    return splits


def describe_split(args, split: str) -> str:
    """What an error calls a split: its file, or its name in the dataset."""
    return getattr(args, f"{split}_file", None) or split


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
            _check_texts([pair.get(lang) for pair in pairs], lang, name)
        else:
            _check_not_dates(rows, lang, name)
            _check_texts(rows[lang], lang, name)
    return rows.map(
        take,
        remove_columns=rows.column_names,
        num_proc=_processes(num_proc, len(rows)),
        desc=f"{name}: {source_lang}-{target_lang} pairs",
    )


def take_texts(rows: Dataset, text_column: str = "text", name: str = "the data") -> Dataset:
    """The column "text" out of `rows`.

    Raises:
        ValueError: no such column, or a row with no text or something else in it.
    """
    if text_column not in rows.column_names:
        raise ValueError(
            f"`text_column` is {text_column!r}, but the columns of {name} are {', '.join(rows.column_names)}."
        )
    _check_not_dates(rows, text_column, name)
    texts = rows.select_columns([text_column]).rename_column(text_column, "text") if text_column != "text" else rows
    texts = texts.select_columns(["text"])
    _check_texts(texts["text"], text_column, name)
    return texts


def _check_not_dates(rows: Dataset, column: str, name: str) -> None:
    # the JSON reader takes a column in which every text is a date for times
    kind = getattr(rows.features[column], "dtype", "")
    if kind.startswith(("timestamp", "date", "time")):
        raise ValueError(
            f"The column {column!r} of {name} was read as {kind}, since every row of it is a date. Its text cannot be "
            "had back: give the data as a folder with CSV files, by `dataset_name`."
        )


def _check_texts(values: Sequence, column: str, name: str) -> None:
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


def _processes(num_proc: int | None, rows: int) -> int | None:
    """For `map`: at most one for each core and row; None, which starts no process, for one."""
    processes = min(num_proc or 1, rows, os.cpu_count() or 1)
    return processes if processes > 1 else None


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
        num_proc=_processes(num_proc, len(pairs)),
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


def pack_texts(
    texts: Dataset,
    tokenizer,
    block_size: int,
    attend_across_texts: bool = False,
    name: str = "the data",
    num_proc: int | None = None,
) -> Dataset:
    """The column "text", each text as `<s> text </s>`, end to end in rows of `block_size` tokens: nothing is dropped.

    A row begins with the token that the row before ended in, so that every token is predicted exactly once. The last
    row is padded.

    Args:
        attend_across_texts: False gives `position_ids` that start again at 0 with each text, from which transformers
            keeps packed texts from seeing each other, and never asks for a text's first token. True gives plain rows.
        num_proc: processes; the result does not depend on them.

    Returns:
        Rows of `input_ids`, `labels` (-100 where nothing is predicted) and, unless `attend_across_texts`,
        `position_ids`; each a list of `block_size` ints.
    """
    if block_size < 2:
        raise ValueError(f"`block_size` must be at least 2, got {block_size}.")

    def pack(batch: dict) -> dict:
        rows = tokenizer(batch["text"], verbose=False)["input_ids"]  # texts may be longer than a row: no warning
        ids = [[*row, tokenizer.eos_token_id] for row in rows]
        stream = list(chain.from_iterable(ids))
        first = set(accumulate((len(row) for row in ids[:-1]), initial=0))
        rows = {"input_ids": [], "labels": [], "position_ids": []}
        for begin in range(0, max(len(stream) - 1, 1), block_size - 1):
            row = stream[begin : begin + block_size]
            new_text = [begin + i in first for i in range(len(row))]
            position, positions = -1, []
            for is_new in new_text:
                position = 0 if is_new else position + 1
                positions.append(position)
            hidden = [
                -100 if is_new and not attend_across_texts else i for is_new, i in zip(new_text, row, strict=True)
            ]
            padding = block_size - len(row)
            rows["input_ids"].append(row + [tokenizer.pad_token_id] * padding)
            rows["labels"].append(hidden + [-100] * padding)
            rows["position_ids"].append(positions + [0] * padding)
        if attend_across_texts:
            del rows["position_ids"]
        return rows

    # rows are closed after each 1,000 texts, so that a large set streams through memory
    size, description = 1000, f"{name}: packing"
    processes = _processes(num_proc, math.ceil(len(texts) / size))
    if processes is None:
        return texts.map(pack, batched=True, batch_size=size, remove_columns=texts.column_names, desc=description)
    # `map` would deal the texts out in equal parts, which are no multiples of 1,000: deal out the thousands instead
    begins = Dataset.from_dict({"begin": range(0, len(texts), size)})
    return begins.map(
        lambda batch: pack(texts[batch["begin"][0] : batch["begin"][0] + size]),
        batched=True,
        batch_size=1,
        remove_columns=["begin"],
        num_proc=processes,
        desc=description,
    )


class TokenBudgetBatchSampler(Sampler[list[int]]):
    """Batches of similar lengths that hold at most `max_tokens` tokens, padding included, in a new order each epoch.

    Args:
        lengths: tokens of each row; the longer side for pairs.
        max_tokens: the most `rows * longest row` of a batch.
        num_processes: the number of batches is made a multiple of it, so that no process waits for another.
        seed: of the order.

    Raises:
        ValueError: a row that is longer than `max_tokens`.
    """

    def __init__(self, lengths: Sequence[int], max_tokens: int, num_processes: int = 1, seed: int = 42):
        if max(lengths) > max_tokens:
            raise ValueError(
                f"`max_tokens_per_batch` is {max_tokens}, but the longest row has {max(lengths)} tokens. Raise it, or "
                "lower `max_source_length` and `max_target_length`."
            )
        self.lengths = list(lengths)
        self.max_tokens = max_tokens
        self.num_processes = num_processes
        self.seed = seed
        self.epoch = 0
        self.batch_size = None  # accelerate reads it: the batches have no common size
        self.drop_last = False
        self.sampler = self  # where accelerate looks for `set_epoch` when it deals batches out to processes

    def set_epoch(self, epoch: int) -> None:
        """Choose the order; Trainer and accelerate call this at the start of each epoch."""
        self.epoch = epoch

    def _batches(self, rng: random.Random) -> list[list[int]]:
        order = list(range(len(self.lengths)))
        rng.shuffle(order)
        order.sort(key=self.lengths.__getitem__)  # stable: rows of one length stay shuffled
        batches, batch = [], []
        for row in order:  # ascending, so the row at hand is the longest yet
            if batch and (len(batch) + 1) * self.lengths[row] > self.max_tokens:
                batches.append(batch)
                batch = []
            batch.append(row)
        batches.append(batch)
        while len(batches) % self.num_processes:
            largest = max(range(len(batches)), key=lambda i: len(batches[i]))
            batch = batches.pop(largest)
            if len(batch) == 1:
                raise ValueError(
                    f"{len(self.lengths)} rows in batches of at most {self.max_tokens} tokens cannot be dealt evenly "
                    f"to {self.num_processes} processes. Raise `max_tokens_per_batch`, or use fewer processes."
                )
            batches += [batch[::2], batch[1::2]]
        rng.shuffle(batches)
        return batches

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self._batches(random.Random(self.seed + self.epoch)))

    def __len__(self) -> int:
        return len(self._batches(random.Random(0)))  # lengths alone decide how many
