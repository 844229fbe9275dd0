# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Load a dataset's splits: from the Hub, a folder, files, or one of the embedded sets."""

from pathlib import Path

from datasets import DatasetDict, load_dataset

from .embedded import EMBEDDED
from .files import load_files, load_folder


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
