# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""A training's tokenizer and data: prepared by one process, cached, and loaded by all."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from datasets import Dataset, DatasetDict
from transformers import PreTrainedTokenizerBase

from ..data.columns import iterate_texts, sample_rows
from ..data.loading import describe_split, load_from_arguments
from ..data.masking import TextSplitter, split_texts
from ..data.pairs import PairEncoder, take_pairs, tokenize_pairs
from ..data.preparation import (
    FILES,
    LIMITS,
    cache_folder,
    check_whole,
    describe_source,
    hash_options,
    hash_tokenizer,
    is_prepared,
    load_prepared,
    make_once,
    save_prepared,
)
from ..data.streaming import RowStream, load_stream
from ..data.texts import TextPacker, pack_texts, take_texts
from ..errors import UserError
from ..loading import check_same_vocabulary, load_tokenizer
from ..manifest import write_manifest
from ..tokenization import MASK, describe_unknown, train_tokenizer
from .script_arguments import LanguageModelArguments, ModelArguments, TranslationArguments

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
        texts: the texts of "validation" and "test"; of "train" too if the options need them.
    """

    tokenizer: PreTrainedTokenizerBase
    rows: DatasetDict
    texts: DatasetDict

    def __init__(self, model_args: ModelArguments, data_args, checkpoint: str | None = None):
        self.model_args, self.data_args, self.checkpoint = model_args, data_args, checkpoint
        self.raw: DatasetDict | None = None
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
    def options(self) -> dict[str, Any]:
        """Return what determines the rows, beside the data and the tokenizer."""

    @abstractmethod
    def take(self, rows: Dataset, name: str) -> Dataset:
        """Take the columns of text out of the rows of a split, and check them."""

    @abstractmethod
    def encode(self, texts: Dataset, name: str, file: str | None = None) -> Dataset:
        """Make the rows of a split, in a file."""

    @abstractmethod
    def row_encoder(self) -> Callable[[dict], pa.Table]:
        """Return a function that makes rows of a batch of texts, as `encode` does."""

    @abstractmethod
    def train_tokenizer(self, texts: Dataset) -> PreTrainedTokenizerBase:
        """Train a new tokenizer on some of the training texts."""

    @abstractmethod
    def describe_unknown(self, texts: Dataset, name: str) -> list[str]:
        """Say what of a split the tokenizer does not know."""

    def needs_train_texts(self) -> bool:
        """Return whether the training reads texts, beside token ids."""
        return False

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
            ValueError: the data cannot be read, or lack a column or text; or a new tokenizer cannot be trained.
        """
        name, cache = self.data_args.dataset_name, cache_folder(self.model_args.cache_dir)
        prepared = Path(name).expanduser() if is_prepared(name) else None
        if prepared is not None:
            self._refuse_other_sources(prepared)
        source = {} if prepared else describe_source(self.data_args, self.model_args.cache_dir)
        if self.data_args.streaming:
            if prepared is not None:
                raise UserError(f"`dataset_name` ({name}) has prepared data, which need no `streaming`. Leave it out.")
            source["streaming"] = True

        def load_texts() -> DatasetDict:
            if self.raw is None:
                if self.data_args.streaming:
                    splits = self._open_stream()
                else:
                    splits = load_from_arguments(self.data_args, self.model_args.cache_dir)
                check_splits([str(split) for split in splits] + ["train"] * (self.stream is not None))
                names = {split: describe_split(self.data_args, str(split)) for split in splits}
                self.raw = DatasetDict({split: self.take(rows, names[split]) for split, rows in splits.items()})
            return self.raw

        if self.data_args.streaming:
            load_texts()
        self.tokenizer = self.complete(self._choose_tokenizer(cache, prepared, source, load_texts))
        if self.stream is not None:
            self.stream.encode = self.row_encoder()
        options: dict[str, Any] = {**self.options(), "train_texts": self.needs_train_texts()}
        facts = {"options": options, "tokenizer_sha256": hash_tokenizer(self.tokenizer)}

        def make(unfinished: Path) -> None:
            texts = load_texts()
            warnings = [text for split, rows in texts.items() for text in self.describe_unknown(rows, str(split))]
            limits = {limit: getattr(self.data_args, limit) for limit in LIMITS}
            new = {option: getattr(self.model_args, option) for option in TOKENIZER_OPTIONS}
            save_prepared(
                unfinished,
                texts,
                self.encode,
                self.tokenizer,
                self.needs_train_texts(),
                **facts,
                warnings=warnings,
                settings=limits | new,
                source=source,
            )

        path = prepared or make_once(Path(folder or cache / f"rows-{hash_options({**facts, **source})}"), make)
        self.rows, self.texts, found = load_prepared(path)
        if prepared is not None:
            self._check_prepared(f"`dataset_name` ({prepared})", found, facts)
            check_splits(self.splits)
        elif folder is not None:  # another command may have filled it in the meantime
            self._check_prepared(f"`output_dir` ({folder})", found, facts)
            if found["source"] != source:
                raise UserError(f"`output_dir` ({folder}) holds other data than these. Choose another folder.")
        elif self.raw is None:
            check_splits(self.splits)
        for warning in found["warnings"]:
            logger.warning(warning)

    def _open_stream(self) -> DatasetDict:
        """Open the training data as a stream, and return the other splits."""
        texts, splits = load_stream(self.data_args, self.model_args.cache_dir)
        name = describe_split(self.data_args, "train")
        self.stream = RowStream(texts, self.take, lambda texts: {}, self.data_args.shuffle_buffer_size, name)
        self.stream.first_texts()  # now, for its errors
        return splits

    def _choose_tokenizer(
        self, cache: Path, prepared: Path | None, source: dict[str, Any], load_texts: Callable[[], DatasetDict]
    ) -> PreTrainedTokenizerBase:
        """Load the first of these that is given, or else train a new tokenizer, once.

        That is the checkpoint's tokenizer, `tokenizer_name`, the tokenizer of `model_name_or_path`, and that of the
        prepared data.
        """
        name, model = self.model_args.tokenizer_name, self.model_args.model_name_or_path
        path = self.checkpoint or name or model
        if path is None and prepared is not None:
            path = str(prepared / "tokenizer")
        if path is None:

            def make(unfinished: Path) -> None:
                megabytes = self.model_args.tokenizer_sample_mb
                if self.stream is not None:
                    sample = self.stream.first_texts(megabytes)
                else:
                    texts = load_texts()["train"]
                    columns = [column for column in ("text", "source", "target") if column in texts.column_names]
                    sample = sample_rows(texts, columns, megabytes)
                self.train_tokenizer(sample).save_pretrained(unfinished)
                write_manifest(unfinished)

            options = {option: getattr(self.model_args, option) for option in TOKENIZER_OPTIONS}
            folder = cache / f"tokenizer-{hash_options({**self.options(), **options, **source})}"
            path = make_once(folder, make)
            check_whole(path)
            return load_tokenizer(str(path))
        tokenizer = load_tokenizer(path)
        if path == name and model is not None:
            check_same_vocabulary(tokenizer, model, name)
        return tokenizer

    def _refuse_other_sources(self, prepared: Path) -> None:
        """Raise UserError where an option names data beside those that are prepared."""
        for option in ("dataset_config_name", *FILES):
            if (value := getattr(self.data_args, option)) is not None:
                raise UserError(
                    f"`dataset_name` ({prepared}) has prepared data, beside which `{option}` ({value}) would not be "
                    "read. Leave it out, or give it to prepare_data.py."
                )

    def _check_prepared(self, what: str, found: dict[str, Any], facts: dict[str, Any]) -> None:
        """Raise UserError where prepared data are not what this run's options would make."""
        if found["tokenizer_sha256"] != facts["tokenizer_sha256"]:
            raise UserError(
                f"The data in {what} were prepared with another tokenizer. Use the tokenizer in that folder, or "
                "prepare the data again."
            )
        settings = {limit: getattr(self.data_args, limit) for limit in LIMITS}
        if self.model_args.tokenizer_name is None and self.model_args.model_name_or_path is None:
            settings |= {option: getattr(self.model_args, option) for option in TOKENIZER_OPTIONS}
        before = found["options"] | found["settings"]
        for option, now in (facts["options"] | settings).items():
            if before.get(option) != now and not (option == "train_texts" and before[option]):
                raise UserError(
                    f"The data in {what} were prepared with `{option}` {before.get(option)}, and this run has {now}. "
                    "Use the options of the preparation, or prepare the data again."
                )


class TextPreparation(Preparation):
    """Tokenises texts for a language model: packed into rows, or for masked language modelling split into rows."""

    data_args: LanguageModelArguments

    def options(self) -> dict[str, Any]:
        """Return what determines the rows, beside the data and the tokenizer."""
        args = self.data_args
        options: dict[str, Any] = {
            name: getattr(args, name) for name in ("text_column", "prompt_column", "block_size", "packing")
        }
        return options | {"masked": args.mlm_probability is not None}

    def take(self, rows: Dataset, name: str) -> Dataset:
        """Take the texts, and their prompts if there are any."""
        return take_texts(rows, self.data_args.text_column, name, self.data_args.prompt_column)

    def train_tokenizer(self, texts: Dataset) -> PreTrainedTokenizerBase:
        """Train a tokenizer on texts."""
        args = self.model_args
        return train_tokenizer(
            iterate_texts(texts, "text"),
            args.tokenizer_kind or "bpe",
            args.vocab_size,
            self.data_args.block_size,
            add_eos=False,
            min_frequency=args.min_frequency,
        )

    def complete(self, tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
        """Add the mask token that masked language modelling needs."""
        if self.data_args.mlm_probability is not None and tokenizer.mask_token is None:
            tokenizer.add_special_tokens({"mask_token": MASK})
        return tokenizer

    def encode(self, texts: Dataset, name: str, file: str | None = None) -> Dataset:
        """Pack texts into rows, or split them into rows."""
        args = self.data_args
        make_rows = split_texts
        if args.mlm_probability is None:
            make_rows = partial(pack_texts, packing=args.packing)
        return make_rows(texts, self.tokenizer, args.block_size, name, args.preprocessing_num_workers, file)

    def row_encoder(self) -> Callable[[dict], pa.Table]:
        """Return a function that packs or splits a batch of texts."""
        args = self.data_args
        if args.mlm_probability is not None:
            return TextSplitter(self.tokenizer, args.block_size)
        return TextPacker(self.tokenizer, args.block_size, args.prompt_column is not None, args.packing)

    def describe_unknown(self, texts: Dataset, name: str) -> list[str]:
        """Say what of a split the tokenizer does not know."""
        return describe_unknown(self.tokenizer, iterate_texts(texts, "text"), name)


class PairPreparation(Preparation):
    """Tokenises pairs for an encoder-decoder."""

    data_args: TranslationArguments

    def options(self) -> dict[str, Any]:
        """Return what determines the rows, beside the data and the tokenizer."""
        names = ("source_lang", "target_lang", "max_source_length", "max_target_length")
        return {name: getattr(self.data_args, name) for name in names}

    def needs_train_texts(self) -> bool:
        """BPE-dropout tokenises the texts anew."""
        return self.data_args.bpe_dropout > 0

    def take(self, rows: Dataset, name: str) -> Dataset:
        """Take the pairs."""
        args: Any = self.data_args  # the script has checked that both languages are given
        return take_pairs(rows, args.source_lang, args.target_lang, name)

    def train_tokenizer(self, texts: Dataset) -> PreTrainedTokenizerBase:
        """Train a tokenizer on both languages together, or one on each."""
        args = self.model_args
        kind = args.tokenizer_kind or "joint"
        longest = max(self.data_args.max_source_length, self.data_args.max_target_length)
        sources: Iterable[str] = iterate_texts(texts, "source", "target")
        targets = None
        if kind in ("separate", "word"):
            sources, targets = iterate_texts(texts, "source"), iterate_texts(texts, "target")
        return train_tokenizer(
            sources,
            kind,
            args.vocab_size,
            longest,
            add_eos=True,
            target_texts=targets,
            min_frequency=args.min_frequency,
        )

    def encode(self, texts: Dataset, name: str, file: str | None = None) -> Dataset:
        """Tokenise pairs."""
        args, limits = self.data_args, (self.data_args.max_source_length, self.data_args.max_target_length)
        return tokenize_pairs(texts, self.tokenizer, *limits, name, args.preprocessing_num_workers, file)

    def row_encoder(self) -> Callable[[dict], pa.Table]:
        """Return a function that tokenises a batch of pairs."""
        return PairEncoder(self.tokenizer, self.data_args.max_source_length, self.data_args.max_target_length)

    def describe_unknown(self, texts: Dataset, name: str) -> list[str]:
        """Say what of a split the tokenizer does not know."""
        args = self.data_args
        if not hasattr(self.tokenizer, "target_tokenizer"):
            return describe_unknown(self.tokenizer, iterate_texts(texts, "source", "target"), name)
        return [
            text
            for column, lang in (("source", args.source_lang), ("target", args.target_lang))
            for text in describe_unknown(
                self.tokenizer, iterate_texts(texts, column), f"{name}, {lang}", column == "target"
            )
        ]
