# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Read recipes (YAML or JSON files of arguments) and `a=1,b=2`, and say what is wrong with them in one line."""

import json
import re
from argparse import Action, ArgumentTypeError
from pathlib import Path
from typing import Any

import yaml
from transformers import TrainingArguments

MAPPINGS = ("config_overrides", "hyperparameters", "preset_hyperparameters", *TrainingArguments._VALID_DICT_FIELDS)
LISTS = ("report_to", "optim_target_modules", "fsdp")  # besides the arguments that take several words


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader with the numbers and booleans of YAML 1.2, in which `1e-3` is a number and `no` a word.

    A key that stands twice is an error: PyYAML would take the last.
    """

    def construct_mapping(self, node, deep=False):
        pairs = node.value if isinstance(node, yaml.MappingNode) else []
        keys = [key.value for key, _ in pairs if isinstance(key, yaml.ScalarNode)]
        for i, key in enumerate(keys):
            if key in keys[:i]:
                raise yaml.constructor.ConstructorError(None, None, f"{key!r} is given twice", pairs[i][0].start_mark)
        return super().construct_mapping(node, deep)


_KINDS = ("null", "bool", "int", "float", "str", "seq", "map")
_Loader.yaml_constructors = {
    tag: constructor
    for tag, constructor in yaml.SafeLoader.yaml_constructors.items()
    if tag is None or tag.removeprefix("tag:yaml.org,2002:") in _KINDS
}
_Loader.yaml_implicit_resolvers = {}
for tag, pattern, first in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?(?:0|[1-9][0-9_]*|0x[0-9a-fA-F_]+)", list("-+0123456789")),
    ("float", r"[-+]?(?:\.[0-9]+|[0-9][0-9_]*(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?", list("-+.0123456789")),
    ("float", r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)", list("-+.")),
    ("merge", r"<<", ["<"]),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{tag}", re.compile(f"^(?:{pattern})$"), first)


def parse_yaml(text: str) -> Any:
    """What YAML text stands for. Tags that would make Python objects are refused.

    Raises:
        ValueError: text that is not YAML, with the line.
    """
    try:
        return yaml.load(text, _Loader)
    except yaml.MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark is not None else ""
        if "could not determine a constructor" in error.problem:
            tag = error.problem.split("'")[1].replace("tag:yaml.org,2002:", "!!")
            raise ValueError(f"{line}the tag {tag} is not allowed") from error
        raise ValueError(f"{line}{error.problem}") from error
    except yaml.reader.ReaderError as error:
        raise ValueError(f"YAML does not allow the character at position {error.position}") from error
    except KeyError as error:
        raise ValueError(f"{error} does not fit its tag") from error
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def parse_json(text: str) -> Any:
    """What JSON text stands for.

    Raises:
        ValueError: text that is not JSON, or a key that stands twice.
    """

    def refuse_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        mapping = dict(pairs)
        if len(mapping) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for i, name in enumerate(names) if name in names[:i])
            raise ValueError(f"{twice!r} is given twice")
        return mapping

    try:
        return json.loads(text, object_pairs_hook=refuse_twice)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def parse_pairs(pairs: str | dict | None, name: str) -> dict[str, Any]:
    """`a=1,b=2`, JSON, or a dictionary as it is, as a dictionary. `name` is the argument's, for the error.

    Raises:
        ValueError: text that is neither form.
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
    """The mapping in a recipe's file.

    Raises:
        ValueError: a file that holds something else, or that cannot be read; without the file's name.
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
    """A recipe's value as the argument's flag would give it.

    Raises:
        ValueError: a value that the argument does not take.
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
    kind = action.type or str
    try:
        converted = kind(str(value))
    except (ValueError, TypeError, ArgumentTypeError) as error:
        wanted = {"int": "a whole number", "float": "a number", "string_to_bool": "true or false"}
        wanted = wanted.get(kind.__name__, kind.__name__)
        raise ValueError(f"`{action.dest}` must be {wanted}, got {value!r:.80}") from error
    if action.choices is not None and converted not in action.choices:
        choices = ", ".join(str(choice) for choice in action.choices)
        raise ValueError(f"`{action.dest}` must be one of {choices}; got {value!r:.80}")
    return converted
