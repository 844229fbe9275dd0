# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""A data set's splits: load them from the Hub, a folder, files, or one of the embedded sets; save them as a folder."""

import codecs
import csv
import glob
import gzip
import io
import json
import logging
import os
import re
import tempfile
import warnings
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import datasets
from datasets import Dataset, DatasetDict, Features, Value, load_dataset
from datasets.exceptions import DatasetGenerationError

from ..errors import UserError, describe
from ..progress import show_progress
from .cache import content_cache, find_data_folder, list_files
from .embedded import make_embedded

logger = logging.getLogger(__name__)
JSON_FILES = (".json", ".jsonl")
READERS = {".csv": "csv", ".tsv": "csv", ".txt": "text", ".parquet": "parquet"}  # all other files are read as JSON


def load_splits(
    dataset_name: str | None = None,
    dataset_config_name: str | None = None,
    train_file: str | None = None,
    validation_file: str | None = None,
    test_file: str | None = None,
    cache_dir: str | None = None,
    sample_by: str | None = None,
) -> DatasetDict:
    """Load the splits "train", "validation" and "test", as many of them as there are.

    Args:
        dataset_name: a Hub id; a folder with the layout of a Hub dataset, whose file names tell the splits; or the
            name of an embedded set (see `EMBEDDED`).
        dataset_config_name: the configuration of the Hub dataset or of the embedded set.
        train_file: a file of JSON, JSON lines, CSV, TSV, plain text (.txt) or Parquet, maybe compressed with gzip; the
            three files are given in place of `dataset_name`.
        validation_file: likewise.
        test_file: likewise.
        cache_dir: where datasets keeps what it has read. Default: its own cache.
        sample_by: what is one text in plain text: "line" (the default), "paragraph" (blank lines divide the texts) or
            "document" (the file).

    Raises:
        ValueError: neither or both kinds of source are given, there is no such file, folder or embedded set, a split
            is empty, or a file cannot be read. The message names the first line that is no JSON object.
    """
    files = {"train": train_file, "validation": validation_file, "test": test_file}
    files = {split: file for split, file in files.items() if file is not None}
    if bool(files) == bool(dataset_name):
        raise ValueError("Give either `dataset_name`, or `train_file`, `validation_file` and `test_file`.")
    if not dataset_name:
        splits = DatasetDict()
        for split, file in files.items():  # one by one: together, datasets would cast all to the columns of the first
            splits[split] = load_file(file, split, cache_dir, sample_by)
    elif dataset_name.startswith("embedded:"):
        splits = make_embedded(dataset_name, dataset_config_name)
    elif (folder := find_data_folder(dataset_name)) is not None:
        splits = _load_folder(folder, dataset_config_name, cache_dir, sample_by)
    else:
        with reading(f"`dataset_name` ({dataset_name})"):
            splits = load_dataset(dataset_name, dataset_config_name, cache_dir=cache_dir, **text_options(sample_by))
    for split, rows in splits.items():
        if len(rows) == 0:
            raise ValueError(f"The split {split!r} of {dataset_name or files[str(split)]} has no rows.")
    return splits


def load_from_arguments(args, cache_dir: str | None = None) -> DatasetDict:
    """Load the splits that a script's `DataArguments` name, cut to `max_{train,eval,predict}_samples` rows.

    Raises:
        ValueError: there is no training data; or see `load_splits`.
    """
    files = args.train_file, args.validation_file, args.test_file
    splits = load_splits(args.dataset_name, args.dataset_config_name, *files, cache_dir, args.sample_by)
    if "train" not in splits:
        raise ValueError(f"There is no training data: the splits are {', '.join(map(str, splits))}.")
    limits = {"train": args.max_train_samples, "validation": args.max_eval_samples, "test": args.max_predict_samples}
    return DatasetDict({split: take_first(rows, limits.get(split)) for split, rows in splits.items()})


def take_first(rows: Dataset, limit: int | None) -> Dataset:
    """The first `limit` rows, or all of them if there are fewer or `limit` is None."""
    return rows if limit is None else rows.select(range(min(limit, len(rows))))


def describe_split(args, split: str) -> str:
    """What errors call a split: its file's path, or the split's name in the dataset."""
    return getattr(args, f"{split}_file", None) or split


@contextmanager
def reading(what: str) -> Generator[None]:
    """Turn whatever error a library raises while it reads data into a UserError that names the data."""
    verbosity = datasets.logging.get_verbosity()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)  # it logs what it cannot read, and then raises
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message="Length of header or names")  # of pandas, which drops cells
            yield
    except Exception as error:
        cause = error.__cause__ if type(error) is DatasetGenerationError else None  # which does not say what happened
        raise UserError(f"{what}: {describe(cause or error)}") from error
    finally:
        datasets.logging.set_verbosity(verbosity)


def refuse_pattern(path: str | Path) -> None:
    """Raise ValueError for a path that datasets takes for a pattern: it would read other files, or several."""
    path = os.path.realpath(path) if os.path.isdir(path) else os.path.abspath(path)  # as datasets does
    if glob.escape(path) != path:
        raise ValueError(f"datasets takes `*`, `?` and `[` in {path} for a pattern. Rename the file or folder.")


def text_options(sample_by: str | None) -> dict[str, Any]:
    """The option of datasets' reader of plain text, if it is given: other readers refuse it."""
    return {} if sample_by is None else {"sample_by": sample_by}


def load_file(
    file: str, split: str, cache_dir: str | None = None, sample_by: str | None = None, streaming: bool = False
) -> Any:
    """Load a split's file, or open it as a stream. The extension chooses the reader: see `load_splits`.

    Raises:
        UserError: the file cannot be read.
    """
    path = Path(file).expanduser()
    extension = Path(path.name.lower().removesuffix(".gz")).suffix
    reader = READERS.get(extension, "json")
    options: dict[str, Any] = {}
    with reading(f"`{split}_file` ({file})"):
        refuse_pattern(path)
        if reader == "csv":
            options = _csv_options(path, extension)
        elif reader == "text":
            options = {"sample_by": sample_by or "line"}
        json_files = [path] if reader == "json" and not streaming else []
        options |= {"cache_dir": content_cache([path], cache_dir, streaming), "streaming": streaming}
        rows = _load(json_files, reader, data_files={split: str(path)}, split=split, **options)
        if reader != "text":
            return rows
        texts = rows.map(_drop_blank, batched=True, features=Features({"text": Value("string")}))
    found = "texts" if streaming else f"{len(texts):,} texts"
    logger.info(f"{file}: {found}, one per {options['sample_by']} (--sample_by {options['sample_by']})")
    if not streaming and options["sample_by"] == "line" and (blank := len(rows) - len(texts)):
        logger.info(f"{blank:,} blank lines are left out. If they divide the texts, give --sample_by paragraph")
    return texts


def _csv_options(path: Path, extension: str) -> dict[str, Any]:
    """Read each cell as the text that stands there: by default, pandas reads 007 as 7, and NA as nothing.

    A TSV file has no quotes: there, they are characters of the text.
    """
    sep, quoting = ("\t", csv.QUOTE_NONE) if extension == ".tsv" else (",", csv.QUOTE_MINIMAL)
    with io.TextIOWrapper(_open(path), encoding="utf-8-sig", newline="") as file:
        columns = next(filter(None, csv.reader(file, delimiter=sep, quoting=quoting)), [])
    features = Features({column: Value("string") for column in columns if column})
    # otherwise pandas takes the first cells of a row with too many for its name
    return {"sep": sep, "quoting": quoting, "features": features, "keep_default_na": False, "index_col": False}


def _drop_blank(batch: dict) -> dict:
    return {"text": [text.removeprefix("\ufeff").strip("\n") for text in batch["text"] if text.strip()]}


def _load_folder(
    folder: str, config_name: str | None, cache_dir: str | None, sample_by: str | None = None
) -> DatasetDict:
    files = list_files(folder, config_name)
    json_files = [path for path in files if Path(path.name.removesuffix(".gz")).suffix in JSON_FILES]
    with reading(f"`dataset_name` ({folder})"):
        refuse_pattern(folder)
        cache = content_cache(files, cache_dir)
        splits = _load(json_files, folder, config_name, cache_dir=cache, **text_options(sample_by))
        for path in json_files:
            _refuse_rewritten_dates(path, splits, cache)
    return splits


def _load(json_files: Iterable[Path], *args, **kwargs):
    """Call `load_dataset`, and name the line at fault of a JSON file that it cannot read."""
    for path in json_files:
        _refuse_lines(path, _is_null)  # on which pyarrow's reader ends the process
    try:
        return load_dataset(*args, **kwargs)
    except Exception:
        for path in json_files:
            _refuse_lines(path, _is_no_object)
        raise


def _refuse_lines(path: Path, is_fault: Callable[[bytes], bool]) -> None:
    """Raise ValueError for the first faulty line of JSON lines, and for the row `null` of a JSON array."""
    with _open(path) as file:
        for number, line in enumerate(show_progress(file, f"checking {path.name}", unit=" lines"), start=1):
            line = line.removeprefix(codecs.BOM_UTF8).strip()
            if number == 1 and line.startswith(b"["):
                if None in json.loads(line + file.read()):
                    raise ValueError(f"{path.name} has the row null.")
                return
            if is_fault(line):
                excerpt = line[:40].decode(errors="backslashreplace")
                raise ValueError(f"line {number} of {path.name} is no JSON object: {excerpt}")


def _is_null(line: bytes) -> bool:
    return line.startswith(b"null")


def _is_no_object(line: bytes) -> bool:
    try:
        return line != b"" and not isinstance(json.loads(line), dict)
    except ValueError:
        return True


def _refuse_rewritten_dates(path: Path, splits: DatasetDict, cache_dir: str) -> None:
    """Raise ValueError if datasets has rewritten the dates of a JSON file, "2024-01-01" to "2024-01-01 00:00:00".

    Its JSON reader makes timestamps of a column if every text of the file in it is a date. If the same column has
    other texts in an earlier file, datasets turns these timestamps back into text, in another form.
    """
    with _open(path) as file:
        if not re.search(rb'"\d{4}-\d\d-\d\d', file.read(2**20)):
            return
    columns = next(iter(splits.values())).features.flatten()  # "translation.de" for a nested column
    alone = load_dataset("json", data_files=str(path), split="train", cache_dir=cache_dir)
    for column, feature in alone.features.flatten().items():
        if getattr(feature, "dtype", "").startswith("timestamp") and columns.get(column) == Value("string"):
            raise ValueError(
                f"every text of {path.name} in the column {column!r} is a date, and is read as another text. Give the "
                "data as CSV files."
            )


def _open(path: Path):
    with path.open("rb") as file:
        compressed = file.read(2) == b"\x1f\x8b"
    return gzip.open(path) if compressed else path.open("rb")


def check_new_folder(output_dir: str, dataset_name: str) -> Path:
    """The folder that a command is to make out of another folder or a Hub dataset.

    Raises:
        UserError: there is something of that name; or it is in the other folder, whose data it would join.
    """
    folder = Path(os.path.abspath(output_dir))
    if os.path.lexists(folder):
        raise UserError(f"`output_dir` ({output_dir}) exists. Choose a new folder.")
    if os.path.isdir(dataset_name) and Path(dataset_name).resolve() in folder.resolve().parents:
        raise UserError(
            f"`output_dir` ({output_dir}) is in `dataset_name` ({dataset_name}), whose data its files would join. "
            "Choose a folder outside."
        )
    return folder


def save_splits(splits: Mapping[str, Dataset], folder: Path) -> None:
    """Write each split into a file of JSON lines in a new folder, which appears when it is complete."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"{folder.name}.unfinished-", dir=folder.parent) as unfinished:
        whole = Path(unfinished, folder.name)
        whole.mkdir()
        for name, rows in splits.items():
            rows.to_json(whole / f"{name}.jsonl", force_ascii=False, date_format="iso")
        whole.rename(folder)
