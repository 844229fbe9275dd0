# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Load files and folders of rows with datasets; where that fails, say which file and line is at fault."""

import codecs
import gzip
import json
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import datasets
from datasets import DatasetDict, load_dataset

from ..errors import describe
from ..recipes import parse_json

TEXT_FILES = (".json", ".jsonl", ".csv", ".tsv", ".txt")
LONGEST_EXCERPT = 40  # characters of a faulty line
_SURROGATE = "has half of a surrogate pair, such as \\ud800, which is no character"


def load_files(files: dict[str, str], cache_dir: str | None = None) -> DatasetDict:
    """Load JSON or JSON-lines files, which may be compressed by gzip.

    Args:
        files: the file of each split.

    Raises:
        ValueError: a file that is not UTF-8, not JSON, or empty; with its line.
        FileNotFoundError: a file that is not there.
    """
    files = {split: str(Path(file).expanduser()) for split, file in files.items()}
    for split, file in files.items():
        path = Path(file)
        if path.is_dir():
            raise ValueError(f"`{split}_file` is {file!r}, which is a folder: give it as `dataset_name`.")
        if not path.is_file():
            raise FileNotFoundError(f"`{split}_file` is {file!r}, but there is no such file.")
        if path.stat().st_size == 0:
            raise ValueError(f"`{split}_file` ({file}) is empty.")
        if fault := find_first_fault(path):
            raise ValueError(f"`{split}_file` ({file}): {fault}.")
    splits = DatasetDict()
    for split, file in files.items():
        with _quiet():
            try:
                # one by one: read after a file of text, a file of dates would become "2024-01-01 00:00:00"
                splits[split] = load_dataset("json", data_files={split: file}, split=split, cache_dir=cache_dir)
            except Exception as error:  # of whatever library reads the file
                fault = find_fault(Path(file)) or _explain(error, [Path(file)])
                raise ValueError(f"`{split}_file` ({file}): {fault.rstrip('.')}.") from error
    return splits


def load_folder(folder: str, config_name: str | None = None, cache_dir: str | None = None) -> DatasetDict:
    """Load a folder that is laid out like a Hub dataset: its splits are known by their files' names.

    Raises:
        ValueError: a folder without data files, or with a file that cannot be read.
    """
    paths = sorted(path for path in Path(folder).rglob("*") if path.is_file() and path.suffix in TEXT_FILES)
    for path in paths:
        if fault := find_first_fault(path, path.suffix in (".json", ".jsonl")):
            raise ValueError(f"`dataset_name` ({folder}), {path.relative_to(folder)}: {fault}.")
    with _quiet():
        try:
            return load_dataset(folder, config_name, cache_dir=cache_dir)
        except Exception as error:  # of whatever library reads the files
            paths = [path for path in paths if path.suffix in (".json", ".jsonl")]
            for path in paths:
                if fault := find_fault(path):
                    raise ValueError(f"`dataset_name` ({folder}), {path.relative_to(folder)}: {fault}.") from error
            raise ValueError(f"`dataset_name` ({folder}): {_explain(error, paths)}") from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the library's own log of what it cannot read."""
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
        return f"The files have different columns: {columns}. Give all the same."
    if "corresponds to no data" in message:
        return "There are no rows."
    return message


def find_first_fault(path: Path, is_json: bool = True) -> str | None:
    """What of a file must not reach its reader: text that is not UTF-8, which the readers do not all look for, and
    `null` for a row, on which pyarrow's JSON reader ends the process.
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
    """What is wrong with a JSON or JSON-lines file that cannot be read, e.g. "line 3 is not one JSON object: 'a'"."""
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
    """The columns of all rows, each with the kinds of its values: "text (str)"."""
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
