# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""From a dataset's name to batches: load, check, tokenise, pack, and group by a budget of tokens."""

import copy
import random
from collections.abc import Iterator, Sequence
from itertools import accumulate, chain
from pathlib import Path

import torch
from datasets import Dataset, DatasetDict, load_dataset
from torch.utils.data import Sampler


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
        ValueError: neither or both kinds of source, an unknown embedded set, an empty split.
        FileNotFoundError: a file or folder that is not there.
    """
    files = {"train": train_file, "validation": validation_file, "test": test_file}
    files = {split: file for split, file in files.items() if file is not None}
    if (dataset_name is None) == (not files):
        raise ValueError("Give either `dataset_name`, or `train_file`, `validation_file` and `test_file`.")
    if dataset_name is not None and dataset_name.startswith("embedded:"):
        embedded = {
            "embedded:numbers": make_numbers,
            "embedded:stories": make_stories,
            "embedded:multiplication": make_multiplication,
        }
        if dataset_name not in embedded:
            raise ValueError(f"`dataset_name` is {dataset_name!r}; the embedded sets are {', '.join(embedded)}.")
        splits = embedded[dataset_name]()
    elif dataset_name is not None:
        if dataset_name.startswith((".", "/", "~")) and not Path(dataset_name).expanduser().is_dir():
            raise FileNotFoundError(f"`dataset_name` is {dataset_name!r}, but there is no such folder.")
        splits = load_dataset(dataset_name, dataset_config_name, cache_dir=cache_dir)
    else:
        for split, file in files.items():
            if not Path(file).is_file():
                raise FileNotFoundError(f"`{split}_file` is {file!r}, but there is no such file.")
            if Path(file).stat().st_size == 0:
                raise ValueError(f"`{split}_file` ({file}) is empty.")
        splits = load_dataset("json", data_files=files, cache_dir=cache_dir)
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


def take_pairs(rows: Dataset, source_lang: str, target_lang: str, name: str = "the data") -> Dataset:
    """The columns "source" and "target" (strings) out of `{"en": ..., "de": ...}` or `{"translation": {...}}` rows.

    Raises:
        ValueError: a language that the rows do not have, or a row with an empty side.
    """
    first = rows[0]
    languages = first["translation"] if isinstance(first.get("translation"), dict) else first
    for option, lang in (("source_lang", source_lang), ("target_lang", target_lang)):
        if lang not in languages:
            raise ValueError(f"`{option}` is {lang!r}, but the columns of {name} are {', '.join(languages)}.")

    def take(row: dict) -> dict:
        pair = row["translation"] if languages is not first else row
        return {"source": pair[source_lang], "target": pair[target_lang]}

    pairs = rows.map(take, remove_columns=rows.column_names, desc=f"{name}: {source_lang}-{target_lang} pairs")
    for option, column in (("source", source_lang), ("target", target_lang)):
        _check_no_empty(pairs[option], column, name)
    return pairs


def take_texts(rows: Dataset, text_column: str = "text", name: str = "the data") -> Dataset:
    """The column "text" out of `rows`.

    Raises:
        ValueError: no such column, or a row with no text.
    """
    if text_column not in rows.column_names:
        raise ValueError(
            f"`text_column` is {text_column!r}, but the columns of {name} are {', '.join(rows.column_names)}."
        )
    texts = rows.select_columns([text_column]).rename_column(text_column, "text") if text_column != "text" else rows
    texts = texts.select_columns(["text"])
    _check_no_empty(texts["text"], text_column, name)
    return texts


def _check_no_empty(values: Sequence[str | None], column: str, name: str) -> None:
    empty = [i for i, value in enumerate(values) if not isinstance(value, str) or not value.strip()]
    if empty:
        rows = ", ".join(str(i) for i in empty[:5]) + (", ..." if len(empty) > 5 else "")
        raise ValueError(
            f"{name} has {len(empty)} of {len(values)} rows with no text in column {column!r} (rows {rows}, counted "
            "from 0). Remove or fill them."
        )


def tokenize_pairs(pairs: Dataset, tokenizer, max_source_length: int, max_target_length: int, name: str) -> Dataset:
    """ "source" and "target" to `input_ids`, `attention_mask`, `labels` and `length` (the longer side, in tokens).

    Sides longer than their limit are cut, with the end token kept, as run_translation.py does.
    """

    def encode(batch: dict) -> dict:
        encoded = _encode_pairs(batch, tokenizer, max_source_length, max_target_length)
        sides = zip(encoded["input_ids"], encoded["labels"], strict=True)
        encoded["length"] = [max(len(source), len(target)) for source, target in sides]
        return encoded

    return pairs.map(encode, batched=True, remove_columns=pairs.column_names, desc=f"{name}: tokenising")


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
    texts: Dataset, tokenizer, block_size: int, attend_across_texts: bool = False, name: str = "the data"
) -> Dataset:
    """The column "text", each text as `<s> text </s>`, end to end in rows of `block_size` tokens: nothing is dropped.

    A row begins with the token that the row before ended in, so that every token is predicted exactly once. The last
    row is padded.

    Args:
        attend_across_texts: False gives `position_ids` that start again at 0 with each text, from which transformers
            keeps packed texts from seeing each other, and never asks for a text's first token. True gives plain rows.

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
    return texts.map(pack, batched=True, batch_size=1000, remove_columns=texts.column_names, desc=f"{name}: packing")


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


def make_numbers(highest: int = 9999, held_out: int = 500, seed: int = 0) -> DatasetDict:
    """Number words, `{"en": "forty-two", "de": "zweiundvierzig"}`, of 0 to `highest`; no number is in two splits."""
    try:
        from num2words import num2words
    except ImportError as error:
        raise ImportError("`embedded:numbers` needs num2words: pip install 'hf-scratch[demo]'.") from error
    numbers = list(range(highest + 1))
    random.Random(seed).shuffle(numbers)
    pairs = [{"en": num2words(n, lang="en"), "de": num2words(n, lang="de")} for n in numbers]
    return _split(pairs, held_out)


_NAMES = ("Anna", "Ben", "Clara", "David", "Emma", "Finn", "Greta", "Hugo", "Ida", "Jonas", "Lena", "Max")
_ANIMALS = ("cat", "dog", "duck", "fox", "frog", "hen", "mouse", "owl", "rabbit", "squirrel")
_ADJECTIVES = ("brave", "clever", "funny", "gentle", "hungry", "little", "shy", "sleepy")
_PLACES = ("in the garden", "by the river", "at the market", "on the hill", "near the old mill", "in the forest")
_THINGS = ("a red ball", "a shiny key", "a warm hat", "a sweet apple", "a small boat", "a blue kite", "a paper star")
_WEATHER = ("The sun was warm.", "It began to rain.", "The wind was strong.", "Snow lay on the ground.")
_WISHES = ("wanted to play", "was looking for a friend", "could not find the way home", "wanted to help")
_ENDINGS = (
    "From that day on they were friends.",
    "They shared it and went home happy.",
    "In the evening they told everyone about it.",
    "They laughed and danced until it was dark.",
)


def make_stories(stories: int = 3000, held_out: int = 150, seed: int = 0) -> DatasetDict:
    """Short stories, `{"text": ...}`, from a small grammar of our own."""
    rng = random.Random(seed)

    def story() -> str:
        name, animal, adjective = rng.choice(_NAMES), rng.choice(_ANIMALS), rng.choice(_ADJECTIVES)
        place, thing = rng.choice(_PLACES), rng.choice(_THINGS)
        opening = rng.choice((f"Once upon a time, {name} was {place}.", f"One day, {name} went for a walk {place}."))
        article = "an" if adjective[0] in "aeiou" else "a"
        meeting = f"{name} met {article} {adjective} {animal}. The {animal} {rng.choice(_WISHES)}."
        middle = rng.choice((f"Together they found {thing}.", f"{name} gave the {animal} {thing}."))
        speech = rng.choice((f'"Thank you," said the {animal}.', f'"Come with me," said {name}.'))
        parts = [opening, rng.choice(_WEATHER), meeting, middle, speech, rng.choice(_ENDINGS)]
        return " ".join(parts)

    unique = list(dict.fromkeys(story() for _ in range(stories)))
    return _split([{"text": text} for text in unique], held_out)


def make_multiplication(digits: int = 2, held_out: int = 500, seed: int = 0) -> DatasetDict:
    """All products of two numbers of `digits` digits, `{"text": "07*12=0084"}`: the task of gpt-playground.

    A product that is held out is so in both orders.
    """
    factors = range(10**digits)
    pairs = [(a, b) for a in factors for b in range(a + 1)]
    random.Random(seed).shuffle(pairs)

    def rows(pairs: list[tuple[int, int]]) -> Dataset:
        orders = [order for a, b in pairs for order in dict.fromkeys(((a, b), (b, a)))]
        texts = [f"{a:0{digits}}*{b:0{digits}}={a * b:0{2 * digits}}" for a, b in orders]
        return Dataset.from_dict({"text": texts})

    parts = {"test": pairs[:held_out], "validation": pairs[held_out : 2 * held_out], "train": pairs[2 * held_out :]}
    return DatasetDict({name: rows(part) for name, part in parts.items()})


def _split(rows: list[dict], held_out: int) -> DatasetDict:
    return DatasetDict(
        train=Dataset.from_list(rows[2 * held_out :]),
        validation=Dataset.from_list(rows[:held_out]),
        test=Dataset.from_list(rows[held_out : 2 * held_out]),
    )
