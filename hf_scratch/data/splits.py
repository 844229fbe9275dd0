# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""A data set's splits: load them from the Hub, a folder, files, or one of the embedded sets; save them as a folder."""

import csv
import gzip
import logging
import os
import tempfile
import warnings
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import datasets
from datasets import Dataset, DatasetDict, Features, Value, load_dataset
from datasets.exceptions import DatasetGenerationError

from ..errors import UserError, describe
from .cache import content_cache, find_data_folder, list_files
from .embedded import make_embedded

logger = logging.getLogger(__name__)
READERS = {".csv": "csv", ".tsv": "csv", ".txt": "text", ".parquet": "parquet"}  # all other files are read as JSON
EMPTY = "it has no rows: add some after the line of column names, if it has one"
UNQUOTED = "put cells that hold a comma into double quotes, or name a table with tabs .tsv"
ADVICE = {  # a part of what libraries say, and what to do
    "codec can't decode": "save it as UTF-8",
    "Invalid UTF-8": "save it as UTF-8",
    "StopIteration": EMPTY,
    "No columns to parse": EMPTY,
    "at least one example": EMPTY,
    "corresponds to no data": EMPTY,
    "JSON parse error": "write one JSON object on each line, or name the file .csv, .tsv or .txt if it is one",
    "does not match length of data": UNQUOTED,
    "fields in line": UNQUOTED,
}


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
        train_file: a file of JSON, JSON lines, CSV, TSV, plain text (.txt) or Parquet, or one of them compressed
            with gzip. Give the three files instead of `dataset_name`.
        validation_file: as `train_file`.
        test_file: as `train_file`.
        cache_dir: where datasets keeps what it has read. Default: its own cache.
        sample_by: what is one text in plain text: "line" (the default), "paragraph" (blank lines divide the texts) or
            "document" (the file).

    Raises:
        ValueError: neither or both kinds of source are given, there is no such file, folder or embedded set, a split
            is empty, or a file cannot be read.
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
    else:
        folder, options = find_data_folder(dataset_name), text_options(sample_by)
        with reading(f"`dataset_name` ({dataset_name})"):
            cache = cache_dir if folder is None else content_cache(list_files(folder, dataset_config_name), cache_dir)
            splits = load_dataset(folder or dataset_name, dataset_config_name, cache_dir=cache, **options)
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
    """Turn whatever error a library raises while it reads data into a UserError that names the data and the remedy."""
    verbosity = datasets.logging.get_verbosity()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)  # it logs what it cannot read, and then raises
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message="Length of header or names")  # of pandas, which drops cells
            yield
    except Exception as error:
        if type(error) is DatasetGenerationError and error.__cause__ is not None:  # it does not say what happened
            error = error.__cause__
        said = describe(error)
        advice = next((f"{advice} (" for part, advice in ADVICE.items() if part in said), "")
        raise UserError(f"{what}: {advice}{said}{')' if advice else ''}") from error
    finally:
        datasets.logging.set_verbosity(verbosity)


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
        if reader == "csv":
            options = _csv_options(path, extension)
        elif reader == "text":
            options = {"sample_by": sample_by or "line"}
        cache = content_cache([path], cache_dir, streaming)
        rows: Any = load_dataset(
            reader, data_files={split: str(path)}, split=split, cache_dir=cache, streaming=streaming, **options
        )
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

    A TSV file has no quotes: there, they are characters of the text. A CSV file may have semicolons for commas.
    """
    opener = gzip.open if path.suffix.lower() == ".gz" else open
    with opener(path, "rt", encoding="utf-8-sig", newline="") as file:
        header = next(filter(str.strip, file), "")
    sep, quoting = ("\t", csv.QUOTE_NONE) if extension == ".tsv" else (",", csv.QUOTE_MINIMAL)
    if extension == ".csv" and header.count(";") > header.count(","):
        sep = ";"
        logger.info(f"{path}: its columns are divided by semicolons")
    columns = next(csv.reader([header], delimiter=sep, quoting=quoting), [])
    features = Features({column: Value("string") for column in columns if column})
    # otherwise pandas takes the first cells of a row with too many for its name
    return {"sep": sep, "quoting": quoting, "features": features, "keep_default_na": False, "index_col": False}


def _drop_blank(batch: dict) -> dict:
    return {"text": [text.removeprefix("\ufeff").strip("\n") for text in batch["text"] if text.strip()]}


def check_new_folder(output_dir: str, dataset_name: str) -> Path:
    """Return the path of a new folder for data made from another folder or a Hub dataset.

    Raises:
        UserError: the folder exists; or it is inside the other folder, so that its files would be read as data there.
    """
    folder = Path(os.path.abspath(output_dir))
    if os.path.lexists(folder):
        raise UserError(f"`output_dir` ({output_dir}) exists. Choose a new folder.")
    if os.path.isdir(dataset_name) and Path(dataset_name).resolve() in folder.resolve().parents:
        raise UserError(
            f"Choose an `--output_dir` outside `dataset_name` ({dataset_name}): in {output_dir}, its files would be "
            "read as data of that folder."
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
