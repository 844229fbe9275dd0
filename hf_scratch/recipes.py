# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Recipes, which are YAML or JSON files of arguments, and the notation `a=1,b=2`."""

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from .errors import extra

with extra("train"):
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

# the package's recipes: in the wheel, and in a clone
RECIPES = tuple(Path(__file__).parents[level] / "scripts" / "recipes" for level in (0, 1))
SIZES = "sizes"  # a recipe's key that is no option: options by the size of the training data


def parse_yaml(text: str) -> Any:
    """Parse YAML 1.2, in which `1e-3` is a number and `no` a word.

    Raises:
        ValueError: the text is not YAML, has a key twice, or has a tag that would make a Python object.
    """
    try:
        return YAML(typ="safe", pure=True).load(text)
    except YAMLError as error:
        raise ValueError(str(error)) from error


def parse_pairs(pairs: str | dict | None, name: str) -> dict[str, Any]:
    """Parse `a=1,b=2` or a JSON object.

    Args:
        pairs: the text; None for no pairs; a dictionary is returned unchanged.
        name: the argument's name, for the error.

    Raises:
        ValueError: the text has neither form, or has a key twice.
    """
    if not isinstance(pairs, str):
        return pairs or {}
    try:
        return parse_yaml(pairs if pairs.startswith("{") else "{" + pairs.replace("=", ": ") + "}")
    except ValueError as error:
        raise ValueError(f"`{name}` must be JSON or a=1,b=2; got {pairs!r} ({error}).") from error


def find_recipe(word: str) -> Path:
    """Return the path of a recipe: a file, or the name of one of the package's."""
    path = Path(word).expanduser()
    if not path.is_file() and path.name == word:
        path = next((folder / f"{path.stem}.yaml" for folder in RECIPES if folder.is_dir()), path)
    return path


def list_recipes(names: Collection[str]) -> list[str]:
    """List the names of the package's recipes whose arguments are all among `names`."""
    files = sorted(file for folder in RECIPES for file in folder.glob("*.yaml"))
    return [file.stem for file in files if read_recipe(file).keys() <= {*names, SIZES}]


def read_recipe(path: Path) -> dict[str, Any]:
    """Read a recipe's mapping of argument names to values.

    Raises:
        ValueError: the file is not YAML or JSON, or holds no mapping.
        OSError: the file cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
        values = json.loads(text) if path.suffix == ".json" else parse_yaml(text)
    except ValueError as error:
        raise ValueError(f"The recipe {str(path)!r} cannot be read: {error}") from error
    if not isinstance(values, dict):
        raise ValueError(f"The recipe {str(path)!r} must be a mapping of argument names to values.")
    return values


def recipe_to_flags(recipe: dict[str, Any]) -> list[str]:
    """Write a recipe's arguments as the words of a command line. An argument without a value keeps its default."""
    words = []
    for name, value in recipe.items():
        if isinstance(value, list):
            words += [f"--{name}", *map(str, value)]
        elif value is not None:
            text = json.dumps(value, default=str) if isinstance(value, dict) else str(value)
            words.append(f"--{name}={text}")
    return words
