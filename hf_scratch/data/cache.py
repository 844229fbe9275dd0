# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Cached folders, named by a hash of what determines them, and folders of prepared data."""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import datasets
import tokenizers
from datasets import Dataset, DatasetDict, load_dataset_builder
from datasets.config import HF_DATASETS_CACHE
from filelock import FileLock

from ..errors import UserError
from ..loading import find_folder
from ..manifest import MANIFEST, DamagedFolderError, check_manifest, hash_file, write_manifest

FORMAT = 2  # raised when the same options give other rows
FILES = ("train_file", "validation_file", "test_file")
LIMITS = ("max_train_samples", "max_eval_samples", "max_predict_samples")


def cache_folder(cache_dir: str | None = None) -> Path:
    """Return the folder in which prepared data are kept: in `cache_dir`, by default in the cache of datasets."""
    return Path(cache_dir or HF_DATASETS_CACHE).expanduser() / "hf_scratch"


def make_once(folder: Path, make: Callable[[Path], None]) -> Path:
    """Make a folder, unless it exists. One process makes it, and the others wait, however long it takes.

    `make` fills a new, empty folder, which appears under its name when it is complete.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = folder.with_name(folder.name + ".unfinished")
    with FileLock(f"{folder}.lock"):
        if folder.is_dir():
            return folder
        shutil.rmtree(unfinished, ignore_errors=True)  # of a process that was killed
        unfinished.mkdir()
        try:
            make(unfinished)
            unfinished.rename(folder)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    return folder


def describe_source(args, cache_dir: str | None = None) -> dict[str, Any]:
    """Describe the data that a script's `DataArguments` name, without loading them.

    Returns:
        The names and limits; for files, what identifies their content; for a Hub dataset, its commit.
    """
    names = ("dataset_name", "dataset_config_name", *FILES, *LIMITS, "sample_by", "streaming")
    source: dict[str, Any] = {name: getattr(args, name) for name in names}
    name, config_name = args.dataset_name, args.dataset_config_name
    files = [Path(source[file]).expanduser() for file in FILES if source[file] is not None]
    if name and not name.startswith("embedded:"):
        folder = find_data_folder(name)
        if folder is None:
            source["commit"] = load_dataset_builder(name, config_name, cache_dir=cache_dir).cache_dir
        else:
            files += list_files(folder, config_name)
    source["files"] = _identify((path for path in files if path.is_file()), args.streaming)
    return source


def find_data_folder(dataset_name: str) -> str | None:
    """Return the path of a folder, or None for a Hub id. It is absolute: datasets has loaders named "json", "text"."""
    if os.path.isfile(os.path.expanduser(dataset_name)):
        raise UserError(
            f"`dataset_name` ({dataset_name}) is a file. Give it as `--train_file`; or its folder, with a file "
            "`train.*` in it, as `--dataset_name`."
        )
    folder = find_folder(dataset_name, "dataset_name")
    return None if folder is None else os.path.abspath(folder)


def list_files(folder: str, config_name: str | None = None) -> list[Path]:
    """List the files that datasets reads in a folder, or that the folder's card names."""
    with suppress(Exception):  # loading the data says what is wrong with them
        files = load_dataset_builder(folder, config_name).config.data_files or {}
        return sorted({Path(file) for paths in files.values() for file in paths})
    return []


def _identify(paths: Iterable[Path], streaming: bool) -> list[list]:
    """Return each file's path and SHA-256; for streamed files, which are not read in advance, their size and times."""

    def state(path: Path) -> list:
        if not streaming:
            return [hash_file(path)]
        return [path.stat().st_size, path.stat().st_mtime_ns, path.stat().st_ctime_ns]  # no copy keeps the last

    return [[str(path.resolve()), *state(path)] for path in paths]


def content_cache(paths: Iterable[Path], cache_dir: str | None = None, streaming: bool = False) -> str:
    """Return a cache of datasets for these files with their present content.

    In one cache, datasets tells a changed file by its modification time alone, which `cp -p` and `rsync -a` keep.
    """
    return str(cache_folder(cache_dir) / f"files-{hash_options({'files': _identify(paths, streaming)})}")


def hash_options(options: dict[str, Any]) -> str:
    """Hash what determines a preparation, and the versions of the format and of the libraries."""
    versions = {"format": FORMAT, "datasets": datasets.__version__, "tokenizers": tokenizers.__version__}
    return hashlib.sha256(json.dumps({**options, **versions}, sort_keys=True).encode()).hexdigest()[:32]


def hash_tokenizer(tokenizer) -> str:
    """Hash what determines the ids of a text: the vocabulary and the rules, also of a second vocabulary."""
    parts: list[Any] = [type(tokenizer).__name__, tokenizer.all_special_ids]
    for name in ("backend_tokenizer", "target_tokenizer"):
        if (backend := getattr(tokenizer, name, None)) is not None:
            rules = json.loads(backend.to_str())
            parts.append({key: value for key, value in rules.items() if key not in ("padding", "truncation")})
    if len(parts) == 2:  # a tokenizer in pure Python
        parts.append(tokenizer.get_vocab())
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def is_prepared(folder: str | None) -> bool:
    """Return whether this is a folder that `save_prepared` has filled."""
    manifest = Path(folder or "", MANIFEST).expanduser()
    return bool(folder) and manifest.is_file() and "options" in json.loads(manifest.read_text(encoding="utf-8"))


def save_prepared(
    folder: Path,
    texts: DatasetDict,
    encode: Callable[[Dataset, str, str], Dataset],
    tokenizer,
    options: dict[str, Any],
    **facts: Any,
) -> None:
    """Fill an empty folder with prepared data.

    `encode` makes the rows of a split, from its texts, its name, and the name of a file to write them to. The texts of
    "train" are not kept.
    """
    work = folder / "work"
    work.mkdir()
    for name, split in texts.items():
        if name != "test":  # it is scored uncut
            encode(split, str(name), str(work / f"{name}.arrow")).save_to_disk(folder / "rows" / str(name))
        if name != "train":
            split.save_to_disk(folder / "texts" / str(name))
    shutil.rmtree(work)
    tokenizer.save_pretrained(folder / "tokenizer")
    write_manifest(folder, options=options, **facts)


def load_prepared(folder: str | Path) -> tuple[DatasetDict, DatasetDict, dict[str, Any]]:
    """Load a folder of prepared data.

    Returns:
        The tokenised rows of "train" and "validation"; the texts of "validation" and "test"; and the facts.

    Raises:
        UserError: a file is missing or damaged.
    """
    folder = Path(folder).expanduser()
    try:
        facts = check_manifest(folder) or {}
    except DamagedFolderError as error:
        raise UserError(f"{error}. Remove the folder {folder}, and prepare the data again.") from error
    rows, texts = DatasetDict(), DatasetDict()
    for name in ("train", "validation", "test"):
        for kind, splits in (("rows", rows), ("texts", texts)):
            if (path := folder / kind / name).is_dir():
                splits[name] = Dataset.load_from_disk(str(path))
    return rows, texts, facts
