# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Load files and folders of rows with datasets, and save a folder. An error names the file and the line at fault."""

import codecs
import gzip
import json
import os
import re
import tempfile
import zlib
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

import datasets
from datasets import Dataset, DatasetDict, Features, load_dataset

from ..errors import UserError, describe
from .columns import is_date, refuse_dates
from .json_text import parse_json
from .preparation import content_cache, list_files

JSON_FILES = (".json", ".jsonl")
TEXT_FILES = (*JSON_FILES, ".csv", ".tsv", ".txt")
LONGEST_EXCERPT = 40  # characters of a faulty line
DATES_START = 2**20  # bytes of a file that are searched for a date
_SURROGATE = "has half of a surrogate pair, such as \\ud800, which is no character"


def load_files(files: dict[str, str], cache_dir: str | None = None) -> DatasetDict:
    """Load JSON or JSON-lines files. They may be compressed with gzip.

    Args:
        files: the file of each split; "~" stands for the home folder.
        cache_dir: where datasets keeps what it has read. Default: its own cache.

    Raises:
        ValueError: a file is empty, not UTF-8 or not JSON. The message names the first line at fault.
        FileNotFoundError: a file does not exist.
    """
    files = {split: check_file(split, file) for split, file in files.items()}
    for split, file in files.items():
        path = Path(file)
        if fault := find_first_fault(path):
            raise ValueError(f"`{split}_file` ({file}): {fault}.")
    splits = DatasetDict()
    for split, file in files.items():
        with quiet_datasets():
            try:
                # One by one, so that a file of dates shows as such: see `_find_rewritten_column`.
                cache = content_cache([Path(file)], cache_dir)
                splits[split] = load_dataset("json", data_files={split: file}, split=split, cache_dir=cache)
            except Exception as error:  # of whatever library reads the file
                fault = find_fault(Path(file)) or _explain(error, [Path(file)])
                raise ValueError(f"`{split}_file` ({file}): {fault.rstrip('.')}.") from error
    return splits


def check_file(split: str, file: str) -> str:
    """Check that the file of a split exists and is not empty.

    Returns:
        Its path, in which "~" no longer stands for the home folder.

    Raises:
        ValueError: it is empty, or a folder.
        FileNotFoundError: it does not exist.
    """
    path = Path(file).expanduser()
    if path.is_dir():
        raise ValueError(f"`{split}_file` is {str(path)!r}, which is a folder: give it as `dataset_name`.")
    if not path.is_file():
        raise FileNotFoundError(f"`{split}_file` is {str(path)!r}, but there is no such file.")
    if path.stat().st_size == 0:
        raise ValueError(f"`{split}_file` ({path}) is empty.")
    return str(path)


def load_folder(folder: str, config_name: str | None = None, cache_dir: str | None = None) -> DatasetDict:
    """Load a folder with the layout of a Hub dataset, whose file names tell the splits.

    Args:
        folder: the folder.
        config_name: the dataset's configuration, if it has several.
        cache_dir: where datasets keeps what it has read. Default: its own cache.

    Raises:
        ValueError: the folder has no data files, a file cannot be read, or every text in a file's column is a date.
    """
    files = list_files(folder, config_name)
    paths = [path for path in files if path.with_name(path.name.removesuffix(".gz")).suffix in TEXT_FILES]
    json_paths = [path for path in paths if path.with_name(path.name.removesuffix(".gz")).suffix in JSON_FILES]
    for path in paths:
        if fault := find_first_fault(path, path in json_paths):
            raise ValueError(f"`dataset_name` ({folder}), {os.path.relpath(path, folder)}: {fault}.")
    cache_dir = content_cache(files, cache_dir)
    with quiet_datasets():
        try:
            splits = load_dataset(folder, config_name, cache_dir=cache_dir)
        except Exception as error:  # of whatever library reads the files
            for path in json_paths:
                if fault := find_fault(path):
                    raise ValueError(
                        f"`dataset_name` ({folder}), {os.path.relpath(path, folder)}: {fault}."
                    ) from error
            raise ValueError(f"`dataset_name` ({folder}): {_explain(error, json_paths)}") from error
        for path in json_paths:
            if column := _find_rewritten_column(path, next(iter(splits.values())).features, cache_dir):
                raise refuse_dates(column, f"{os.path.relpath(path, folder)} in `dataset_name` ({folder})")
    return splits


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
    """Write each split into a file of JSON lines in a new folder, which appears when it is complete.

    Args:
        splits: by "train", "validation" and "test".
        folder: it must not exist.

    Raises:
        UserError: it has come to exist.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"{folder.name}.unfinished-", dir=folder.parent) as unfinished:
        whole = Path(unfinished, folder.name)
        whole.mkdir()
        for name, rows in splits.items():
            rows.to_json(whole / f"{name}.jsonl", force_ascii=False, date_format="iso")
        if os.path.lexists(folder):
            raise UserError(f"{folder} exists by now: another command has made it. Choose a new folder.")
        whole.rename(folder)


def _find_rewritten_column(path: Path, features: Features, cache_dir: str | None) -> str | None:
    """Find a column in which datasets has rewritten a file's dates, "2024-01-01" to "2024-01-01 00:00:00".

    The JSON reader makes timestamps of a file's column if every text in it is a date. If the same column has other
    texts in an earlier file, datasets turns these timestamps back into text, in another form.

    Args:
        path: a JSON file of the folder.
        features: those of the loaded folder.
        cache_dir: see `load_folder`.
    """
    with _open(path) as file:
        if not re.search(rb'"\d{4}-\d\d-\d\d', file.read(DATES_START)):
            return None
    columns = features.flatten()  # "translation.de" for a nested column
    alone = load_dataset("json", data_files=str(path), split="train", cache_dir=cache_dir).features.flatten()
    rewritten = (
        column
        for column, feature in alone.items()
        if is_date(feature) and getattr(columns.get(column), "dtype", "") == "string"
    )
    return next(rewritten, None)


@contextmanager
def quiet_datasets() -> Generator[None]:
    """Suppress the library's own log of what it cannot read."""
    verbosity = datasets.logging.get_verbosity()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    try:
        yield
    finally:
        datasets.logging.set_verbosity(verbosity)


def _explain(error: BaseException, paths: list[Path]) -> str:
    cause = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    message = describe(cause)
    if "column names don't match" in message or "Couldn't cast" in message:
        columns = "; ".join(f"{path.name} has {', '.join(_columns(path))}" for path in paths)
        return f"The files have different columns: {columns}. Give all files the same columns."
    if "corresponds to no data" in message:
        return "There are no rows."
    return message


def find_first_fault(path: Path, is_json: bool = True) -> str | None:
    """Find what must not reach a file's reader.

    That is text other than UTF-8, since not all readers check the encoding, and the row `null`, since pyarrow's JSON
    reader ends the process on it.

    Args:
        path: the file.
        is_json: whether it holds JSON or JSON lines.

    Returns:
        The fault as the end of a sentence, e.g. "line 3 is null", or None.
    """
    try:
        with _open(path) as file:
            is_array = False
            for number, line in enumerate(file, start=1):
                try:
                    line.decode("utf-8")
                except UnicodeDecodeError as error:
                    if number == 1 and line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
                        return "it is UTF-16 text. Save it as UTF-8"
                    return f"line {number} is not UTF-8 text (byte {error.start} of it). Save the file as UTF-8"
                start = line[:16].removeprefix(codecs.BOM_UTF8).lstrip()
                is_array = is_array or (number == 1 and start.startswith(b"["))
                if is_json and not is_array and b"null".startswith(start[:4] or b"-"):
                    return f"line {number} {_find_fault_in_line(line.decode().strip()) or 'is null'}"
    except (OSError, EOFError, zlib.error) as error:
        return f"it cannot be read ({describe(error)})"
    return find_fault(path) if is_json and is_array else None


def find_fault(path: Path) -> str | None:
    """Find what is wrong with a JSON or JSON-lines file that could not be read.

    Returns:
        The fault as the end of a sentence, e.g. "line 3 is not one JSON object: 'a'", or None.
    """
    with _open(path) as file:
        start = file.read(1)
        if start == b"[":
            return _find_fault_in_json(start + file.read())
    with _open(path) as file:
        rows = 0
        for number, line in enumerate(file, start=1):
            line = line.decode("utf-8-sig").strip()
            if line and (fault := _find_fault_in_line(line)):
                return f"line {number} {fault}"
            rows += bool(line.strip("{} "))
        return None if rows else "it has no rows"


def _open(path: Path):
    with path.open("rb") as file:
        compressed = file.read(2) == b"\x1f\x8b"
    return gzip.open(path) if compressed else path.open("rb")


def _find_fault_in_json(content: bytes) -> str | None:
    try:
        rows = parse_json(content.decode("utf-8"))
    except ValueError as error:
        return f"it is not JSON ({error})"
    kinds = str if rows and isinstance(rows[0], str) else dict  # texts without a name of their own are "text"
    fault = next((i for i, row in enumerate(rows) if not isinstance(row, kinds)), None)
    if fault is not None:
        return f'row {fault}, counted from 0, is not an object such as {{"text": "..."}}'
    broken = next((i for i, row in enumerate(rows) if _has_lone_surrogate(row)), None)
    return f"row {broken}, counted from 0, {_SURROGATE}" if broken is not None else None


def _find_fault_in_line(text: str) -> str | None:
    try:
        row = parse_json(text)
    except ValueError as error:
        reason = f"{error.msg}, column {error.colno}" if isinstance(error, json.JSONDecodeError) else error
        excerpt = text if len(text) <= LONGEST_EXCERPT else text[:LONGEST_EXCERPT] + "..."
        return f"is not one JSON object: {excerpt!r} ({reason})"
    if not isinstance(row, dict):
        return f'is not a JSON object such as {{"text": "..."}}: {text[:LONGEST_EXCERPT]!r}'
    return _SURROGATE if _has_lone_surrogate(row) else None


def _has_lone_surrogate(value) -> bool:
    if isinstance(value, dict):
        return any(_has_lone_surrogate(item) for pair in value.items() for item in pair)
    if isinstance(value, list):
        return any(_has_lone_surrogate(item) for item in value)
    return isinstance(value, str) and any("\ud800" <= char <= "\udfff" for char in value)


def _columns(path: Path) -> list[str]:
    """List the columns of a file's rows, each with the types of its values: "text (str)"."""
    with _open(path) as file:
        content = file.read().decode("utf-8-sig")
    try:
        rows = (
            parse_json(content)
            if content.startswith("[")
            else [parse_json(s) for s in content.split("\n") if s.strip()]
        )
    except ValueError:  # JSON over several lines
        return ["others"]
    rows = rows[0] if len(rows) == 1 and isinstance(rows[0], list) else rows
    kinds = {}
    for row in rows:
        for name, value in row.items() if isinstance(row, dict) else ():
            kinds.setdefault(name, set()).add(type(value).__name__)
    return [f"{name} ({' or '.join(sorted(values))})" for name, values in kinds.items()]
