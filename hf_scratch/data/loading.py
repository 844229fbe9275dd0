# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Load a dataset's splits from the Hub, a folder, files, or one of the embedded sets."""

from datasets import Dataset, DatasetDict, load_dataset

from ..loading import find_folder
from .embedded import EMBEDDED, describe_embedded
from .files import load_files, load_folder


def load_splits(
    dataset_name: str | None = None,
    dataset_config_name: str | None = None,
    train_file: str | None = None,
    validation_file: str | None = None,
    test_file: str | None = None,
    cache_dir: str | None = None,
) -> DatasetDict:
    """Load the splits "train", "validation" and "test", as many of them as there are.

    Args:
        dataset_name: a Hub id; a folder with the layout of a Hub dataset, whose file names tell the splits; or the
            name of an embedded set (see `EMBEDDED`).
        dataset_config_name: the configuration of the Hub dataset or of the embedded set.
        train_file: a JSON or JSON-lines file; the three files are given in place of `dataset_name`.
        validation_file: likewise.
        test_file: likewise.
        cache_dir: where datasets keeps what it has read. Default: its own cache.

    Raises:
        ValueError: neither or both kinds of source are given, there is no such folder or embedded set, a split is
            empty, or a file cannot be read. The message names the file's first line at fault.
        FileNotFoundError: a file does not exist.
    """
    files = {"train": train_file, "validation": validation_file, "test": test_file}
    files = {split: file for split, file in files.items() if file is not None}
    if files and dataset_name is None:
        splits = load_files(files, cache_dir)
    elif files or dataset_name is None:
        raise ValueError("Give either `dataset_name`, or `train_file`, `validation_file` and `test_file`.")
    elif not dataset_name.strip():
        raise ValueError("`dataset_name` is empty.")
    elif dataset_name.startswith("embedded:"):
        if dataset_name not in EMBEDDED:
            raise ValueError(f"`dataset_name` is {dataset_name!r}; the embedded sets are {describe_embedded()}.")
        splits = _make_embedded(dataset_name, dataset_config_name)
    elif (folder := find_folder(dataset_name, "dataset_name")) is not None:
        splits = load_folder(folder, dataset_config_name, cache_dir)
    else:
        splits = load_dataset(dataset_name, dataset_config_name, cache_dir=cache_dir)
    for split, rows in splits.items():
        if len(rows) == 0:
            raise ValueError(f"The split {split!r} of {dataset_name or files[str(split)]} has no rows.")
    return splits


def _make_embedded(name: str, config_name: str | None) -> DatasetDict:
    embedded = EMBEDDED[name]
    if config_name is None:
        return embedded.make()
    if config_name not in embedded.configs:
        known = f"it has {', '.join(embedded.configs)}" if embedded.configs else "it has none"
        raise ValueError(f"`dataset_config_name` is {config_name!r}, which {name!r} does not have: {known}.")
    return embedded.configs[config_name]()


def load_from_arguments(args, cache_dir: str | None = None) -> DatasetDict:
    """Load the splits that a script's `DataArguments` name, cut to `max_{train,eval,predict}_samples` rows.

    Args:
        args: the script's `DataArguments`.
        cache_dir: see `load_splits`.

    Raises:
        ValueError: there is no training data; or see `load_splits`.
        FileNotFoundError: see `load_splits`.
    """
    splits = load_splits(
        args.dataset_name,
        args.dataset_config_name,
        args.train_file,
        args.validation_file,
        args.test_file,
        cache_dir,
    )
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
