# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""A folder's manifest: its files with their sizes and SHA-256.

The manifest is written last, so a folder that has one was saved completely.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

MANIFEST = "manifest.json"


class DamagedFolderError(ValueError):
    """A file is missing, or its content is not what was saved. The message names the file."""


def write_manifest(folder: str | Path, names: Iterable[str] | None = None, **facts: Any) -> None:
    """Write the manifest of `folder`, replacing an earlier one.

    Args:
        folder: all its files must have been written.
        names: the files to list, relative to the folder. Default: all files, including those in subfolders.
        facts: stored beside the list, for example `step=100`.
    """
    folder = Path(folder)
    if names is None:
        paths = (path for path in folder.rglob("*") if path.is_file())
        names = sorted(path.relative_to(folder).as_posix() for path in paths if path.name != MANIFEST)
    files = {name: {"size": (folder / name).stat().st_size, "sha256": hash_file(folder / name)} for name in names}
    write_json({**facts, "files": files}, folder / MANIFEST)


def write_json(values: Mapping[str, Any], path: Path) -> None:
    """Write a file of JSON atomically: a kill leaves the earlier file, or none."""
    part = path.with_name(f"{path.name}.part")
    part.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")
    os.replace(part, path)


def check_manifest(folder: str | Path) -> dict[str, Any] | None:
    """Compare each listed file with the manifest.

    Args:
        folder: the folder that holds `manifest.json`.

    Returns:
        The manifest's facts, or None for a folder without a manifest.

    Raises:
        DamagedFolderError: a file is missing, or has another size or SHA-256.
    """
    path = Path(folder, MANIFEST)
    if not path.is_file():
        return None
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        files = manifest.pop("files")
    except (ValueError, KeyError) as error:
        raise DamagedFolderError(f"{path} is damaged ({type(error).__name__}: {error})") from error
    for name, saved in files.items():
        file = Path(folder, name)
        if not file.is_file():
            raise DamagedFolderError(f"{file} is missing")
        if file.stat().st_size != saved["size"] or hash_file(file) != saved["sha256"]:
            raise DamagedFolderError(f"{file} is not what was saved: its SHA-256 differs from {MANIFEST}")
    return manifest


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
