# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""The commands' flags: HfArgumentParser over dataclasses, with a YAML or JSON recipe that the flags override."""

import difflib
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from transformers import HfArgumentParser, PreTrainedConfig, TrainingArguments, set_seed

from ..errors import is_first_process
from ..recipes import convert_value, parse_pairs, read_recipe
from .script_arguments import DTYPES, DataArguments, ModelArguments
from .stream_position import check_streaming
from .training_arguments import check_processes, check_training_arguments, prepare_arguments, share_global_batch

# arguments in which "~" stands for the home folder: a shell leaves `--output_dir=~/runs` as it is
PATHS = ("model_name_or_path", "tokenizer_name", "cache_dir", "dataset_name", "train_file", "validation_file",
         "test_file", "output_dir", "resume_from_checkpoint", "model", "input", "output_file", "json", "data",
         "articles")  # fmt: skip


# the package's recipes: in the wheel, and in a clone
RECIPES = tuple(Path(__file__).parents[level] / "scripts" / "recipes" for level in (1, 2))


class _Parser(HfArgumentParser):
    """An HfArgumentParser that prints its errors on the first process only."""

    def error(self, message: str):
        """Print the usage and the message, and exit with status 2."""
        if not is_first_process():
            raise SystemExit(2)
        super().error(" ".join(message.split()))


def given_arguments(args: list[str] | None = None) -> set[str]:
    """Return the names of the arguments that a recipe and the flags give.

    Args:
        args: the words of the command line. Default: this process's.
    """
    args = list(sys.argv[1:] if args is None else args)
    names = {word.lstrip("-").partition("=")[0] for word in args if word.startswith("--")}
    if args and not args[0].startswith("-"):
        with suppress(ValueError):  # `parse_arguments` says what is wrong
            names |= read_recipe(_find_recipe(args[0])).keys()
    return names


def parse_arguments(*dataclass_types: Any, args: list[str] | None = None) -> tuple[tuple, str]:
    """Parse `[recipe.yaml] [--flag value ...]`.

    Args:
        dataclass_types: the dataclasses to fill.
        args: the words of the command line. Default: this process's.

    Returns:
        The filled dataclasses, and the recipe's name ("" without a recipe).

    Raises:
        SystemExit: bad usage, with status 2.
        ValueError: a value out of its range.
    """
    args = list(sys.argv[1:] if args is None else args)
    usage = "%(prog)s [recipe.yaml] [--flag value ...]    (--help lists the flags)"
    parser = _Parser(dataclass_types, usage=usage)
    recipe, values = "", {}
    if args and not args[0].startswith("-"):
        recipe = args.pop(0)
        values = _read_recipe(parser, recipe)
        parser.set_defaults(**values)
    try:
        results: tuple[Any, ...] = parser.parse_args_into_dataclasses(args, return_remaining_strings=True)
    except TypeError as error:  # an unknown key in a mapping that TrainingArguments passes on to accelerate
        raise ValueError(str(error)) from error
    *parsed, unknown = results
    if unknown:
        names = [action.dest for action in parser._actions]
        parser.error(f"unexpected: {unknown[0]}{_nearest(unknown[0].lstrip('-').split('=')[0], names, '--')}")
    for group in parsed:
        for name in PATHS:
            if isinstance(path := getattr(group, name, None), str) and path.startswith("~"):
                setattr(group, name, os.path.expanduser(path))
        if isinstance(group, TrainingArguments):
            check_training_arguments(group)
        for name, mapping in values.items():
            if isinstance(mapping, dict) and isinstance(flag := getattr(group, name, None), str):
                setattr(group, name, {**mapping, **parse_pairs(flag, name)})  # a flag changes some of the recipe's
    _share_update(parsed, values.keys() | given_arguments(args))
    return tuple(parsed), Path(recipe).stem


def _share_update(parsed: list, given: set[str]) -> None:
    """Work out the batches of a device from an update's size. `given`: the names in the recipe and the flags."""
    data_args = next((group for group in parsed if isinstance(group, DataArguments)), None)
    training_args = next((group for group in parsed if isinstance(group, TrainingArguments)), None)
    if data_args is None or training_args is None:
        return
    for name in ("global_batch_size", "max_tokens_per_update"):
        if getattr(data_args, name, None) is not None and "gradient_accumulation_steps" in given:
            raise ValueError(
                f"`gradient_accumulation_steps` follows from `{name}`, the processes and what a device can hold. "
                "Leave one of them out."
            )
    if data_args.global_batch_size is not None:
        most = training_args.per_device_train_batch_size if "per_device_train_batch_size" in given else None
        share_global_batch(training_args, data_args.global_batch_size, most)


def start_training_command(
    data_class: type,
    training_class: type,
    config_class: type[PreTrainedConfig],
    args: list[str] | None = None,
    unsupported: Sequence[str] = (),
) -> tuple[ModelArguments, Any, Any, dict[str, Any], str]:
    """Parse a training script's command line, set up its logging, and seed all random numbers.

    Args:
        data_class: the script's subclass of `DataArguments`.
        training_class: TrainingArguments or a subclass.
        config_class: the config whose fields `preset` and `config_overrides` may set.
        args: the words of the command line. Default: this process's.
        unsupported: options of `data_class` that the script lacks.

    Returns:
        The model's, the data's and the training's arguments; the fields that they set; the recipe's name.

    Raises:
        SystemExit, ValueError: see `parse_arguments` and `read_model_fields`.
        ValueError: an unsupported option is given.
    """
    (model_args, data_args, training_args), recipe = parse_arguments(
        ModelArguments, data_class, training_class, args=args
    )
    for name in unsupported:
        if getattr(data_args, name) != getattr(data_class(), name):
            raise ValueError(f"`{name}` is not an option of this script. Leave it out.")
    check_streaming(data_args, training_args)
    check_processes(training_args)
    prepare_arguments(training_args)
    set_seed(training_args.seed)
    fields = read_model_fields(model_args, config_class)
    return model_args, data_args, training_args, fields, recipe


def _find_recipe(recipe: str) -> Path:
    path = Path(os.path.expanduser(recipe))
    if path.name == recipe and path.suffix in ("", ".yaml") and not path.exists():  # one of the package's
        path = next((folder / f"{path.stem}.yaml" for folder in RECIPES if folder.is_dir()), path)
    return path


def _read_recipe(parser: HfArgumentParser, recipe: str) -> dict[str, Any]:
    path = _find_recipe(recipe)
    if not path.is_dir() and path.suffix not in (".yaml", ".yml", ".json"):
        parser.error(f"the recipe {recipe!r} must be a .yaml or .json file")
    if not path.exists():
        known = sorted(file.stem for file in path.parent.glob("*.yaml")) if path.parent.is_dir() else []
        parser.error(f"there is no recipe {recipe!r}{_nearest(path.stem, known)}")
    actions = {action.dest: action for action in reversed(parser._actions) if action.dest != "help"}
    values = {}
    try:
        for name, value in read_recipe(path).items():
            if name not in actions:
                mend = _nearest(str(name), list(actions)) or ". Is the recipe for another command?"
                raise ValueError(f"has the key {name!r}, which no argument of {parser.prog} has{mend}")
            try:
                values[name] = convert_value(actions[name], value)
            except ValueError as error:
                raise ValueError(f"cannot be used: {error}") from error
    except ValueError as error:
        parser.error(f"the recipe {recipe!r} {error}")
    return values


def _nearest(name: str, names: list[str], prefix: str = "") -> str:
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.75)
    return f". Did you mean {prefix}{close[0]}?" if close else ""


def read_model_fields(model_args: ModelArguments, config_class: type[PreTrainedConfig]) -> dict[str, Any]:
    """The fields of the model's config that the preset and `config_overrides` set; the overrides win.

    Args:
        model_args: a script's.
        config_class: the class of the model that is trained.

    Raises:
        ValueError: as `preset_fields` and `parse_overrides`.
    """
    fields = {}
    if model_args.preset is not None:
        from ..convert.presets import preset_fields  # the converters import transformers' GPT-2 and Marian

        hyperparameters = parse_pairs(model_args.preset_hyperparameters, "preset_hyperparameters")
        fields = preset_fields(model_args.preset, config_class, **hyperparameters)
    return fields | parse_overrides(model_args.config_overrides, config_class)


def parse_overrides(overrides: str | dict | None, config_class: type[PreTrainedConfig]) -> dict[str, Any]:
    """Parse `config_overrides`, and check that the config has these fields.

    Args:
        overrides: `a=1,b=2`, JSON, or a dictionary.
        config_class: the config's class.

    Returns:
        The fields and their values; a name in the config's `attribute_map` is replaced by the field's own.

    Raises:
        ValueError: the config does not have a field (the message has the nearest name), a field is not for the user to
            set (`architectures`, `auto_map`, ...), or the text cannot be parsed.
    """
    overrides = parse_pairs(overrides, "config_overrides")
    general = set(PreTrainedConfig.__dataclass_fields__) - {"dtype"}
    fields = [name for name in config_class.__dataclass_fields__ if name not in general]
    fields += list(config_class.attribute_map)
    for name in overrides:
        if name in config_class.__dataclass_fields__ and name not in fields:
            raise ValueError(f"`config_overrides` has {name!r}, which is not for the user to set.")
        if name not in fields:
            raise ValueError(
                f"`config_overrides` has {name!r}, which {config_class.__name__} does not{_nearest(str(name), fields)}"
            )
    if overrides.get("dtype", "float32") not in DTYPES:
        raise ValueError(f"`config_overrides` has the dtype {overrides['dtype']!r}; it must be {', '.join(DTYPES)}.")
    # the config's validation skips names that are not the fields' own
    return {config_class.attribute_map.get(name, name): value for name, value in overrides.items()}
