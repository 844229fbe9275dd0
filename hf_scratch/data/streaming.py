# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Training data that are read while they are used: they are not copied to the disk.

A stream has no end: pass follows pass. Its shards (for most data, files) are assigned to the processes, and become
rows of token ids on the way. A position in the stream is a few numbers, from which another process can continue.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, groupby, islice
from pathlib import Path
from typing import Any, NamedTuple

import datasets
import numpy as np
import pyarrow as pa
import torch
from datasets import Dataset, DatasetDict, load_dataset
from datasets.distributed import split_dataset_by_node
from transformers import TrainerCallback

from ..errors import UserError
from .cache import content_cache, find_data_folder, list_files
from .columns import TEXTS_AT_ONCE, count_bytes
from .sampling import TokenBudgetBatchSampler
from .splits import load_file, load_splits, reading, take_first, text_options

POSITION = "stream_position"  # the key of a batch's position, beside its tensors


class Row(NamedTuple):
    """A row of a table, and where it comes from: its reader's n-th shard, and the texts before its batch of texts."""

    table: pa.Table
    row: int
    shard: int
    text: int
    number_of_pass: int


class RowStream(torch.utils.data.IterableDataset, TrainerCallback):
    """An endless stream of training rows, and the positions in it that each checkpoint keeps.

    The shards of all passes are one sequence, of which each reader has every n-th: each process, or each worker of its
    data loader. Where there are fewer shards than readers, each reader reads all shards and takes every n-th text.
    Readers never end, so no process waits for another at the end of a pass.

    Rows are shuffled in blocks: `buffer_size` rows of a pass are given out in random order, while the next block is
    read. So a position is that of a block's first row, and the number of items that were given out of the block. To
    resume, a reader tokenises at most two blocks again. Of the shard that it was in, the texts before are read, but
    not tokenised.

    Each batch brings along the position after it, whatever the data loader and its workers have read ahead. Each
    process writes the positions of its own readers to a checkpoint.

    Args:
        texts: the texts, as datasets streams them.
        take: takes the columns of text out of rows, and checks them. It gets the rows, and what errors call them.
        encode: makes rows of token ids of a batch of texts.
        buffer_size: rows of a block. 0: rows and shards keep their order.
        name: what errors call the data.

    Attributes:
        max_tokens: tokens of a batch at most, padding included. Rows of similar length of a block are batched
            together, and an item of the stream is a batch. Default: an item is a row. Needs a column "length".
        pad_to_multiple_of: see `TokenBudgetBatchSampler`.
        positions: where the readers of this process begin, the next first. Empty at the start of the stream.

    Raises:
        UserError: while it is read, a shard cannot be read, has a row without text, or a reader finds no rows.
    """

    def __init__(
        self,
        texts: datasets.IterableDataset,
        take: Callable[[Dataset, str], Dataset],
        encode: Callable[[dict], pa.Table],
        buffer_size: int,
        name: str = "train",
    ):
        self.texts, self.take, self.encode, self.buffer_size, self.name = texts, take, encode, buffer_size, name
        self.num_shards = texts.num_shards
        self.max_tokens: int | None = None
        self.pad_to_multiple_of: int | None = None
        self.positions: list[dict[str, int]] = []
        self.used: dict[int, dict[str, int]] = {}  # by reader: the positions after the batches that were used
        self.assign_shard(0, 1, 0)

    def assign_shard(self, process_index: int, num_processes: int, seed: int, num_workers: int = 0) -> None:
        """Choose a process's part of the stream. The seed decides the order of shards and rows, with the pass."""
        self.process_index, self.num_processes, self.seed = process_index, num_processes, seed
        self.num_workers = num_workers

    def __iter__(self) -> Iterator[tuple[list[dict[str, Any]], dict[str, int]]]:
        """Yield items: a list of rows, and the position after them."""
        worker = torch.utils.data.get_worker_info()
        index, workers = (worker.id, worker.num_workers) if worker else (0, 1)
        position = dict(self.positions[index]) if self.positions else start_position(index)
        reader, given = self.process_index * workers + position["reader"], position["given"]
        rows = self._read_rows(position["shard"], position["text"], reader, self.num_processes * workers)
        blocks = self._divide(islice(rows, position["row"], None))  # without the rows of the block before
        block = list(next(blocks))
        while True:
            first, following, begun = block[0], next(blocks), []
            position |= {"shard": first.shard, "text": first.text, "row": first.row}
            for number, items in enumerate(self._order(block, reader)):
                if number >= given:
                    values = [block[i].table.slice(block[i].row, 1).to_pylist()[0] for i in items]
                    yield values, position | {"given": number + 1}
                begun += islice(following, len(items))  # little by little, so that no step waits for a whole block
            block, given = [*begun, *following], 0

    def _divide(self, rows: Iterator[Row]) -> Iterator[Iterator[Row]]:
        """Yield the rows of each block. A block ends with its pass."""
        for _, of_pass in groupby(rows, key=lambda row: row.number_of_pass):
            for first in of_pass:
                yield chain([first], islice(of_pass, max(self.buffer_size, 1) - 1))  # noqa: B031

    def _order(self, block: list[Row], reader: int) -> Iterator[Sequence[int]]:
        """Yield the rows of each item, by their indices in the block."""
        first = block[0]
        generator = np.random.default_rng([self.seed % 2**63, reader, first.shard, first.text, first.row])
        if self.max_tokens is not None:
            lengths = [row.table["length"][row.row].as_py() for row in block]
            seed, multiple = int(generator.integers(2**62)), self.pad_to_multiple_of
            return iter(TokenBudgetBatchSampler(lengths, self.max_tokens, seed=seed, pad_to_multiple_of=multiple))
        order = generator.permutation(len(block)).tolist() if self.buffer_size else range(len(block))
        return ([i] for i in order)

    def _read_rows(self, shard: int, text: int, reader: int, readers: int) -> Iterator[Row]:
        """Yield a reader's rows from its n-th shard on, without the batches of texts before `text`."""
        empty = 0
        while empty <= self.num_shards:
            empty += 1
            place = shard if self.num_shards < readers else shard * readers + reader
            for begin, texts in self._read_texts(place, text, reader, readers):
                table, empty = self.encode(texts[:]), 0
                for row in range(len(table)):
                    yield Row(table, row, shard, begin, place // self.num_shards)
            shard, text = shard + 1, 0
        raise UserError(
            f"{self.name} has no rows for reader {reader}, counted from 0, of {readers}: processes times "
            "`dataloader_num_workers`. Use fewer of them, or leave out `streaming`."
        )

    def _read_texts(self, place: int, text: int, reader: int, readers: int) -> Iterator[tuple[int, Dataset]]:
        """Yield the batches of texts of the shard at a place in the sequence, each with the texts before it."""
        number_of_pass, number = divmod(place, self.num_shards)
        if self.buffer_size:
            order = np.random.default_rng([self.seed % 2**63, number_of_pass]).permutation(self.num_shards)
            number = int(order[number])
        rows, begin = self.texts.shard(self.num_shards, number), 0
        if self.num_shards < readers:
            rows = split_dataset_by_node(rows, reader, readers)
        tables = rows.with_format("arrow").iter(TEXTS_AT_ONCE)
        while True:
            with reading(f"{self.name}, shard {number}, from text {begin:,} on"):
                table = next(tables, None)
                texts = self.take(Dataset(table), "this part") if table is not None and begin >= text else None
            if table is None:
                return
            if texts is not None:
                yield begin, texts
            begin += len(table)

    def first_texts(self, megabytes: float = 0.0) -> Dataset:
        """Return the texts at the start of the stream, in the shards' own order: at least this many, if there are."""
        found, size = [], 0
        ordered = RowStream(self.texts, self.take, self.encode, 0, self.name)
        for _, texts in (batch for shard in range(self.num_shards) for batch in ordered._read_texts(shard, 0, 0, 1)):
            found.append(texts)
            size += count_bytes(texts.data, [name for name in ("text", "source", "target") if name in texts.features])
            if size >= megabytes * 1e6:
                break
        if not found:
            raise UserError(f"{self.name} has no rows.")
        return datasets.concatenate_datasets(found)

    def first_rows(self) -> Dataset:
        """Return the rows of the stream's first texts, by which two streams can be compared."""
        return Dataset(self.encode(self.first_texts()[:]))

    def facts(self) -> dict[str, int]:
        """Return what the positions depend on, beside the data."""
        return {
            "train_shards": self.num_shards,
            "shuffle_buffer_size": self.buffer_size,
            "dataloader_num_workers": self.num_workers,
            "num_processes": self.num_processes,
        }

    def note(self, batches: list[dict[str, Any]]) -> None:
        """Take the positions out of batches that are about to be used."""
        for batch in batches:
            position = batch.pop(POSITION)
            self.used.pop(position["reader"])  # the next reader comes first
            self.used[position["reader"]] = position

    def save(self, checkpoint: Path) -> None:
        """Write the positions of this process into a checkpoint's folder."""
        self._file(checkpoint).write_text(json.dumps(list(self.used.values())), encoding="utf-8")

    def load(self, checkpoint: Path | None) -> None:
        """Read the positions of this process, or begin at the start of the stream."""
        self.positions = [start_position(reader) for reader in range(max(self.num_workers, 1))]
        if checkpoint is not None and self._file(checkpoint).is_file():
            self.positions = json.loads(self._file(checkpoint).read_text(encoding="utf-8"))
        self.used = {position["reader"]: position for position in self.positions}

    def _file(self, checkpoint: Path) -> Path:
        return checkpoint / f"stream_position_{self.process_index}.json"

    def on_step_end(self, args, state, control, **kwargs):
        """Set the state's epoch to the share of the steps done: Trainer counts anew in a resumed run."""
        state.epoch = state.global_step / state.max_steps


def start_position(reader: int) -> dict[str, int]:
    """Return the position at which a reader starts.

    Returns:
        `reader`: the reader's number in its process.
        `shard`: shards that it has read before.
        `text`: texts of this shard before the batch of texts from which the first row of the block was made.
        `row`: rows of that batch which belong to the block before.
        `given`: items of the block that were given out.
    """
    return {"reader": reader, "shard": 0, "text": 0, "row": 0, "given": 0}


class StreamCollator:
    """Makes a batch of items of a `RowStream`, with the position after them; `collator` batches their rows."""

    def __init__(self, collator: Any):
        self.collator = collator

    def __call__(self, items: Sequence[tuple[list[Any], dict[str, int]]]):
        """Make a batch."""
        if hasattr(self.collator, "set_epoch"):  # no shard is read twice in a pass
            self.collator.set_epoch(items[-1][1]["shard"])
        batch = self.collator([row for rows, _ in items for row in rows])
        batch[POSITION] = items[-1][1]
        return batch


def load_stream(args, cache_dir: str | None = None) -> tuple[datasets.IterableDataset, DatasetDict]:
    """Open the training data that a script's `DataArguments` name as a stream, and load the other splits.

    Raises:
        ValueError: there is no training data, or a file or folder cannot be read; or see `load_splits`.
    """
    name, config_name = args.dataset_name, args.dataset_config_name
    limits = {"validation": args.max_eval_samples, "test": args.max_predict_samples}
    files = {f"{split}_file": getattr(args, f"{split}_file") for split in ("train", *limits)}
    files = {option: file for option, file in files.items() if file is not None}
    train, others = None, {}
    if "train_file" in files and not name:
        train = load_file(files.pop("train_file"), "train", cache_dir, args.sample_by, streaming=True)
        others = load_splits(**files, cache_dir=cache_dir, sample_by=args.sample_by) if files else {}
    elif files or not name or name.startswith("embedded:"):
        others = load_splits(name, config_name, **files, cache_dir=cache_dir)
        train = others.pop("train").to_iterable_dataset() if "train" in others else None
    else:
        folder = find_data_folder(name)
        with reading(f"`dataset_name` ({name})"):
            files = None if folder is None else list_files(folder, config_name)
            cache = cache_dir if files is None else content_cache(files, cache_dir, streaming=True)
            options = text_options(args.sample_by)
            splits: Any = load_dataset(folder or name, config_name, cache_dir=cache, streaming=True, **options)
            train = splits.pop("train", None)
            others = {split: _read(splits[split], limits[split]) for split in limits if split in splits}
    if train is None:
        raise ValueError(f"There is no training data: the splits are {', '.join(map(str, others))}.")
    return train, DatasetDict({split: take_first(rows, limits[str(split)]) for split, rows in others.items()})


def _read(rows: datasets.IterableDataset, limit: int | None) -> Dataset:
    tables = (rows if limit is None else rows.take(limit)).with_format("arrow").iter(TEXTS_AT_ONCE)
    return Dataset(pa.concat_tables(tables, promote_options="default"))
