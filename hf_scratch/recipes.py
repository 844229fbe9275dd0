# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Read recipes (YAML or JSON files of arguments) and `a=1,b=2`; each error says in one line what is wrong."""

from argparse import Action, ArgumentTypeError
from pathlib import Path
from typing import Any

from transformers import TrainingArguments

from .data.json_text import parse_json
from .extras import extra

with extra("train"):
    from ruamel.yaml import YAML
    from ruamel.yaml.constructor import DuplicateKeyError, SafeConstructor
    from ruamel.yaml.error import MarkedYAMLError
    from ruamel.yaml.reader import ReaderError

MAPPINGS = ("config_overrides", "hyperparameters", "preset_hyperparameters", *TrainingArguments._VALID_DICT_FIELDS)
LISTS = ("report_to", "optim_target_modules", "fsdp")  # may be lists, as the arguments with several words may
JSON_KINDS = ("null", "bool", "int", "float", "str", "seq", "map")
_TAG = "tag:yaml.org,2002:"


class _Constructor(SafeConstructor):
    """Makes only what JSON can hold: no sets and no bytes; a date such as 2024-01-01 stays text."""


_Constructor.yaml_constructors = {
    **{_TAG + kind: SafeConstructor.yaml_constructors[_TAG + kind] for kind in JSON_KINDS},
    **dict.fromkeys((_TAG + "timestamp", _TAG + "value"), SafeConstructor.construct_yaml_str),
    None: SafeConstructor.construct_undefined,
}


def parse_yaml(text: str) -> Any:
    """Parse YAML 1.2, in which `1e-3` is a number and `no` a word.

    Raises:
        ValueError: the text is not YAML, has a key twice, or has a tag that would make a Python object. The message
            names the line.
    """
    yaml = YAML(typ="safe", pure=True)
    yaml.Constructor = _Constructor
    try:
        return yaml.load(text)
    except MarkedYAMLError as error:
        problem, mark = error.problem, error.problem_mark or error.context_mark
        if isinstance(error, DuplicateKeyError):
            problem = "{!r} is given twice".format(problem.split('"')[1])
        elif "could not determine a constructor" in problem:
            problem = "the tag {} is not allowed".format(problem.split("'")[1].replace(_TAG, "!!"))
        raise ValueError(f"line {mark.line + 1}: {problem}") from error
    except ReaderError as error:
        raise ValueError(f"YAML does not allow the character at position {error.position}") from error
    except KeyError as error:
        raise ValueError(f"{error} does not fit its tag") from error
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


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
        if pairs.lstrip().startswith("{"):
            return parse_json(pairs)
        parts = [pair.partition("=") for pair in pairs.split(",")]
        if not all(equals and key.strip() for key, equals, _ in parts):
            raise ValueError("lists need JSON" if "[" in pairs else "each pair needs a name and a value")
        keys = [key.strip() for key, _, _ in parts]
        twice = next((key for i, key in enumerate(keys) if key in keys[:i]), None)
        if twice is not None:
            raise ValueError(f"{twice!r} is given twice")
        return {key: parse_yaml(value) for key, (_, _, value) in zip(keys, parts, strict=True)}
    except ValueError as error:
        raise ValueError(f"`{name}` must be JSON or a=1,b=2; got {pairs!r} ({error}).") from error


def read_recipe(path: Path) -> dict[str, Any]:
    """Read a recipe's mapping of argument names to values.

    Raises:
        ValueError: the file cannot be read, or holds no mapping. The message leaves the file's name out.
    """
    if path.is_dir():
        raise ValueError("is a folder")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"cannot be read: it is not UTF-8 text (byte {error.start})") from error
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror}") from error
    try:
        values = parse_json(text) if path.suffix == ".json" else parse_yaml(text)
    except ValueError as error:
        raise ValueError(f"cannot be read: {error}") from error
    if not isinstance(values, dict):
        raise ValueError("must be a mapping of argument names to values")
    return values


def convert_value(action: Action, value: Any) -> Any:
    """Convert a recipe's value to what the argument's flag would give.

    Args:
        action: the argument, from the parser.
        value: the value in the recipe.

    Raises:
        ValueError: the argument does not take this value.
    """
    name = action.dest
    if value is None:
        if action.default is not None:
            raise ValueError(f"`{name}` has no value")
        return None
    if isinstance(value, dict):
        if name not in MAPPINGS:
            raise ValueError(f"`{name}` takes one value, not a mapping")
        return value
    if isinstance(value, list):
        if (action.nargs != "+" and name not in LISTS) or not all(
            isinstance(item, str | int | float) for item in value
        ):
            raise ValueError(f"`{name}` takes {'words' if name in LISTS else 'one value'}, not this list")
        return [_convert_word(action, item) for item in value]
    word = _convert_word(action, value)
    return [word] if action.nargs == "+" else word


def _convert_word(action: Action, value: Any) -> Any:
    if action.type is int and isinstance(value, float) and value.is_integer():
        value = int(value)
    kind = action.type if callable(action.type) else str
    try:
        converted = kind(str(value))
    except (ValueError, TypeError, ArgumentTypeError) as error:
        wanted = {"int": "a whole number", "float": "a number", "string_to_bool": "true or false"}
        name = getattr(kind, "__name__", str(kind))
        raise ValueError(f"`{action.dest}` must be {wanted.get(name, name)}, got {value!r:.80}") from error
    if action.choices is not None and converted not in action.choices:
        choices = ", ".join(str(choice) for choice in action.choices)
        raise ValueError(f"`{action.dest}` must be one of {choices}; got {value!r:.80}")
    return converted
