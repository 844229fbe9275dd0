# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""A training's tokenizer and data: prepared by one process, cached, and loaded by all."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import datasets
from datasets import Dataset, DatasetDict
from transformers import PreTrainedTokenizerBase

from ..data.cache import (
    FILES,
    LIMITS,
    cache_folder,
    describe_source,
    hash_options,
    hash_tokenizer,
    is_prepared,
    load_prepared,
    make_once,
    save_prepared,
)
from ..data.columns import Encoder, encode_rows, iterate_texts, sample_rows
from ..data.pairs import PairEncoder, take_pairs
from ..data.splits import describe_split, load_from_arguments
from ..data.streaming import RowStream, load_stream
from ..data.texts import TextPacker, take_texts
from ..errors import UserError
from ..loading import check_same_vocabulary, load_tokenizer
from ..tokenization import MASK, describe_unknown, train_tokenizer
from .arguments import LanguageModelArguments, ModelArguments, TranslationArguments

logger = logging.getLogger(__name__)
TOKENIZER_OPTIONS = ("tokenizer_kind", "vocab_size", "min_frequency", "tokenizer_sample_mb")


class Preparation(ABC):
    """Tokenises the data of a training, once.

    The token ids are kept in the cache of datasets, in a folder whose name follows from the data, the tokenizer and
    the options. A `dataset_name` that `prepare_data.py` has written is such a folder. With `streaming`, the training
    data are not prepared, but read while they are used; the other splits are prepared.

    Args:
        model_args: the script's arguments.
        data_args: likewise.
        checkpoint: the folder that the run is resumed from, or None.

    Attributes:
        tokenizer: the training's tokenizer.
        rows: the tokenised rows of "train", unless it is streamed, and of "validation", if there is one.
        stream: the training rows of a stream, or None.
        texts: the texts of "validation" and "test".
    """

    tokenizer: PreTrainedTokenizerBase
    rows: DatasetDict
    texts: DatasetDict
    columns: tuple[str, ...]  # of text
    lengths: tuple[str, ...]  # the options that limit the tokens of a row
    other_options: tuple[str, ...]  # that determine the rows
    default_kind: str  # of a new tokenizer

    def __init__(self, model_args: ModelArguments, data_args, checkpoint: str | None = None):
        self.model_args, self.data_args, self.checkpoint = model_args, data_args, checkpoint
        self.loaded: DatasetDict | None = None
        self.stream: RowStream | None = None

    @property
    def splits(self) -> list[str]:
        """The names of the data's splits."""
        streamed = ["train"] if self.stream is not None else []
        return [str(name) for name in dict.fromkeys([*streamed, *self.rows, *self.texts])]

    @property
    def train_rows(self) -> Dataset | RowStream:
        """The rows to train on."""
        return self.rows["train"] if self.stream is None else self.stream

    @abstractmethod
    def take(self, rows: Dataset, name: str) -> Dataset:
        """Take the columns of text out of the rows of a split, and check them."""

    @abstractmethod
    def row_encoder(self) -> Encoder:
        """Return a function that makes rows of a batch of texts."""

    def options(self) -> dict[str, Any]:
        """Return what determines the rows, beside the data and the tokenizer."""
        return {name: getattr(self.data_args, name) for name in (*self.other_options, *self.lengths)}

    def complete(self, tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
        """Return the tokenizer with what the training needs added to it."""
        return tokenizer

    def run(self, check_splits: Callable[[Collection[str]], None], folder: str | None = None) -> None:
        """Choose the tokenizer, and prepare and load the data. Sets `tokenizer`, `rows` and `texts`.

        Args:
            check_splits: called with the names of the splits, before anything is tokenised.
            folder: where the prepared data are kept. Default: in the cache.

        Raises:
            UserError: the prepared data were made with other options or another tokenizer, or are damaged.
            ValueError: the data cannot be read, or lack a column or text.
        """
        self.check_splits = check_splits
        name, cache = self.data_args.dataset_name, cache_folder(self.model_args.cache_dir)
        if is_prepared(name):
            path = Path(name).expanduser()
            self.tokenizer = self.complete(self._given_tokenizer() or load_tokenizer(path / "tokenizer"))
        else:
            source = describe_source(self.data_args, self.model_args.cache_dir)
            if self.data_args.streaming:
                self._load_texts()
            self.tokenizer = self.complete(self._given_tokenizer() or self._new_tokenizer(cache, source))
            if self.stream is not None:
                self.stream.encode = self.row_encoder()
            path = Path(folder or cache / f"rows-{hash_options(self._facts() | source)}")
            make_once(path, lambda unfinished: self._prepare(unfinished, source))
        self.rows, self.texts, found = load_prepared(path)
        check_splits(self.splits)
        if is_prepared(name):
            self._check_prepared(found)
        for warning in found["warnings"]:
            logger.warning(warning)

    def _facts(self) -> dict[str, Any]:
        """Return what determines the rows, beside the data."""
        return {"options": self.options(), "tokenizer_sha256": hash_tokenizer(self.tokenizer)}

    def _load_texts(self) -> DatasetDict:
        """Load the texts of all splits, or open the stream and load the others; the second call returns the same."""
        if self.loaded is None:
            args, cache_dir = self.data_args, self.model_args.cache_dir
            if args.streaming:
                train, splits = load_stream(args, cache_dir)
                name = describe_split(args, "train")
                self.stream = RowStream(train, self.take, lambda texts: {}, args.shuffle_buffer_size, name)
                self.stream.first_texts()  # now, for its errors
            else:
                splits = load_from_arguments(args, cache_dir)
            self.check_splits([*map(str, splits), *(["train"] if args.streaming else [])])
            texts = {split: self.take(rows, describe_split(args, str(split))) for split, rows in splits.items()}
            self.loaded = DatasetDict(texts)
        return self.loaded

    def _prepare(self, unfinished: Path, source: dict[str, Any]) -> None:
        """Tokenise the texts into a new folder."""
        texts, encode, workers = self._load_texts(), self.row_encoder(), self.data_args.preprocessing_num_workers
        warnings = []
        for split, rows in texts.items():
            for column in self.columns:
                values, is_target = iterate_texts(rows, column), column == "target"
                warnings += describe_unknown(self.tokenizer, values, f"{split}, {column}", is_target)
        arguments = vars(self.data_args) | vars(self.model_args)
        save_prepared(
            unfinished,
            texts,
            lambda split, name, file: encode_rows(split, encode, name, workers, file),
            self.tokenizer,
            **self._facts(),
            warnings=warnings,
            settings={option: arguments[option] for option in (*LIMITS, *TOKENIZER_OPTIONS)},
            source=source,
        )

    def _given_tokenizer(self) -> PreTrainedTokenizerBase | None:
        """Load the checkpoint's tokenizer, or else `tokenizer_name`, or else that of `model_name_or_path`."""
        name, model = self.model_args.tokenizer_name, self.model_args.model_name_or_path
        path = self.checkpoint or name or model
        if path is None:
            return None
        tokenizer = load_tokenizer(path)
        if path == name and model is not None:
            check_same_vocabulary(tokenizer, model, name)
        return tokenizer

    def _new_tokenizer(self, cache: Path, source: dict[str, Any]) -> PreTrainedTokenizerBase:
        """Train a tokenizer, once, on some of the training texts."""
        args = self.model_args
        kind = args.tokenizer_kind or self.default_kind

        def make(unfinished: Path) -> None:
            texts = self._load_texts()
            logger.info(f"training a tokenizer of the kind {kind!r}")
            if self.stream is not None:
                sample = self.stream.first_texts(args.tokenizer_sample_mb)
            else:
                sample = sample_rows(texts["train"], self.columns, args.tokenizer_sample_mb)
            sources, targets = list(self.columns), None
            if "target" in sources and kind in ("separate", "word"):
                targets = iterate_texts(sample, sources.pop())
            train_tokenizer(
                iterate_texts(sample, *sources),
                kind,
                args.vocab_size,
                max(getattr(self.data_args, length) for length in self.lengths),
                add_eos="target" in self.columns,
                show_progress=not datasets.utils.are_progress_bars_disabled(),
                target_texts=targets,
                min_frequency=args.min_frequency,
            ).save_pretrained(unfinished)

        options = self.options() | {option: getattr(args, option) for option in TOKENIZER_OPTIONS}
        return load_tokenizer(make_once(cache / f"tokenizer-{hash_options(options | source)}", make))

    def _check_prepared(self, found: dict[str, Any]) -> None:
        """Raise UserError where prepared data are not what this run's options would make."""
        arguments, facts = vars(self.data_args) | vars(self.model_args), self._facts()
        names = ["dataset_config_name", *FILES, *LIMITS, "sample_by", "streaming"]
        if not (self.model_args.tokenizer_name or self.model_args.model_name_or_path):
            names += TOKENIZER_OPTIONS
        wanted = {name: arguments[name] for name in names} | facts["options"]
        wanted["tokenizer_sha256"] = facts["tokenizer_sha256"]
        before = found | found["options"] | found["settings"]
        for option, value in wanted.items():
            if (before.get(option) or None) != (value or None):
                raise UserError(
                    f"The data in `dataset_name` ({self.data_args.dataset_name}) were prepared with `{option}` "
                    f"{before.get(option)}, and this run has {value}. Use the options and the tokenizer of the "
                    "preparation, or prepare the data again."
                )


class TextPreparation(Preparation):
    """Tokenises texts for a language model: packed into rows, or for masked language modelling split into rows."""

    data_args: LanguageModelArguments
    columns, default_kind = ("text",), "bpe"
    lengths, other_options = ("block_size",), ("text_column", "prompt_column", "packing")

    def options(self) -> dict[str, Any]:
        return super().options() | {"masked": self.data_args.mlm_probability is not None}

    def take(self, rows: Dataset, name: str) -> Dataset:
        return take_texts(rows, self.data_args.text_column, name, self.data_args.prompt_column)

    def complete(self, tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
        """Add the mask token that masked language modelling needs."""
        if self.data_args.mlm_probability is not None and tokenizer.mask_token is None:
            tokenizer.add_special_tokens({"mask_token": MASK})
        return tokenizer

    def row_encoder(self) -> Encoder:
        args = self.data_args
        if args.mlm_probability is not None:
            return TextPacker(self.tokenizer, args.block_size, packing=False, overlap=0)
        return TextPacker(self.tokenizer, args.block_size, args.prompt_column is not None, args.packing)


class PairPreparation(Preparation):
    """Tokenises pairs for an encoder-decoder."""

    data_args: TranslationArguments
    columns, default_kind = ("source", "target"), "joint"
    lengths, other_options = ("max_source_length", "max_target_length"), ("source_lang", "target_lang")

    def take(self, rows: Dataset, name: str) -> Dataset:
        args: Any = self.data_args  # the script has checked that both languages are given
        return take_pairs(rows, args.source_lang, args.target_lang, name)

    def row_encoder(self) -> Encoder:
        return PairEncoder(self.tokenizer, self.data_args.max_source_length, self.data_args.max_target_length)
