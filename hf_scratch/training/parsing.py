# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""The commands' flags: HfArgumentParser over dataclasses, with a YAML or JSON recipe that the flags override."""

import difflib
import logging
import math
import sys
from argparse import SUPPRESS
from collections.abc import Collection, Iterable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from transformers import HfArgumentParser, PreTrainedConfig, TrainingArguments, set_seed

from ..data.cache import FILES, is_prepared, load_prepared
from ..data.splits import load_from_arguments
from ..errors import UserError, disable_bars
from ..recipes import parse_pairs, read_recipe, recipe_to_flags
from .machines import on_main_process
from .script_arguments import ModelArguments
from .stream_position import check_streaming
from .training_arguments import check_training_arguments, prepare_arguments, share_global_batch

logger = logging.getLogger(__name__)
SIZES = "sizes"  # a recipe's key that is no option: see `choose_size`
# the package's recipes: in the wheel, and in a clone
RECIPES = tuple(Path(__file__).parents[level] / "scripts" / "recipes" for level in (1, 2))

OF_TRANSFORMERS = "transformers' TrainingArguments"
FIRST_OF_GROUPS = {  # of a training's help: the option that begins a group
    "preset": "model", "dataset_name": "data", "global_batch_size": "training", "task": "data", "text_column": "data",
    "max_tokens_per_update": "training", "decay_all_parameters": "training", "output_dir": OF_TRANSFORMERS,
}  # fmt: skip
HELP_OF_TRANSFORMERS = (
    "All options of transformers' TrainingArguments work, too: --output_dir, which is needed; --num_train_epochs, "
    "--max_steps, --learning_rate, --warmup_steps, --eval_strategy, --save_steps, --bf16, --use_cpu, --seed, "
    "--resume_from_checkpoint last, --disable_tqdm and others. They are described at "
    "https://huggingface.co/docs/transformers/main_classes/trainer and listed by --help_all."
)


class _Parser(HfArgumentParser):
    """An HfArgumentParser whose errors end a command as its other ones do.

    The help of a training has groups, and leaves out the options of transformers' TrainingArguments; `--help_all`
    lists them, too.
    """

    def __init__(self, dataclass_types: Sequence[Any], words: Sequence[str]):
        self.names = [field.name for cls in dataclass_types for field in fields(cls)]
        self.is_training = any(issubclass(cls, TrainingArguments) for cls in dataclass_types)
        self.lists_all = "--help_all" in words
        self.group, self.groups = "options", {}
        super().__init__(dataclass_types, usage="%(prog)s [recipe] [--flag value ...]", allow_abbrev=False)
        if self.is_training:
            description = "show the options of transformers' TrainingArguments, too"
            self.groups["options"].add_argument("--help_all", action="help", help=description)

    def add_argument(self, *names, **kwargs):
        """Add an option to its group, without HfArgumentParser's second spelling: --a-b of --a_b."""
        names = [name for name in names if "-" not in name.lstrip("-")]
        if self.is_training:
            self.group = FIRST_OF_GROUPS.get(names[0].lstrip("-"), self.group)
            if self.group == OF_TRANSFORMERS and not self.lists_all:
                kwargs["help"] = SUPPRESS
        if self.group not in self.groups:
            self.groups[self.group] = self.add_argument_group(self.group)
        return self.groups[self.group].add_argument(*names, **kwargs)

    def format_help(self) -> str:
        """Name the recipes that fit, and where the other options are described."""
        if self.is_training:
            self.description = f"Recipes: {', '.join(list_recipes(self.names))}; or a YAML or JSON file of flags."
            self.epilog = HELP_OF_TRANSFORMERS
        return super().format_help()

    def error(self, message: str):
        raise UserError(message)


def list_recipes(names: Collection[str]) -> list[str]:
    """List the names of the package's recipes whose arguments are all among `names`."""
    files = sorted(file for folder in RECIPES for file in folder.glob("*.yaml"))
    return [file.stem for file in files if read_recipe(file).keys() <= {*names, SIZES}]


def _read_command_line(
    args: list[str] | None, size: dict[str, Any] | None = None
) -> tuple[list[str], dict[str, Any], str]:
    """Return all arguments as flags, the recipe's first; the recipe, with the options of a size; and its name.

    Files that are given replace the recipe's data set, and a data set replaces its files.
    """
    args = [_spell(word) for word in (sys.argv[1:] if args is None else args)]
    if not args or args[0].startswith("-"):
        return args, {}, ""
    path = Path(args[0]).expanduser()
    if not path.exists() and path.name == args[0]:  # one of the package's
        path = next((folder / f"{path.stem}.yaml" for folder in RECIPES if folder.is_dir()), path)
    recipe = read_recipe(path)
    for option, value in (size or {}).items():
        recipe[option] = {**recipe.get(option, {}), **value} if isinstance(value, dict) else value
    replaced = ()
    if (given := _names(args)) & {*FILES}:
        replaced = ("dataset_name", "dataset_config_name")
    elif "dataset_name" in given:
        replaced = FILES
    recipe = {name: value for name, value in recipe.items() if name not in replaced}
    flags = recipe_to_flags({name: value for name, value in recipe.items() if name != SIZES})
    return [*map(_spell, flags), *args[1:]], recipe, path.stem


def _spell(word: str) -> str:
    """Write the flag --a-b=c as --a_b=c."""
    flag, sign, value = word.partition("=")
    is_flag = word.startswith("--") and " " not in flag  # else it is a text, as argparse sees it
    return f"--{flag[2:].replace('-', '_')}{sign}{value}" if is_flag else word


def _names(words: list[str]) -> set[str]:
    return {word[2:].partition("=")[0] for word in words if word.startswith("--")}


def given_arguments(args: list[str] | None = None) -> set[str]:
    """Return the names of the arguments that a recipe and the flags give.

    Args:
        args: the words of the command line. Default: this process's.
    """
    return _names(_read_command_line(args)[0])


def parse_arguments(
    *dataclass_types: Any, args: list[str] | None = None, size: dict[str, Any] | None = None
) -> tuple[tuple, str]:
    """Parse `[recipe.yaml] [--flag value ...]`.

    Args:
        dataclass_types: the dataclasses to fill.
        args: the words of the command line. Default: this process's.
        size: options that are added to the recipe's. Default: see `choose_size`, if the recipe has `sizes`.

    Returns:
        The filled dataclasses, and the recipe's name ("" without a recipe).

    Raises:
        UserError: bad usage.
        ValueError: the recipe cannot be read, or two options do not go together.
        OSError: there is no such recipe.
    """
    words, recipe, name = _read_command_line(args, size)
    parser = _Parser(dataclass_types, words)
    try:
        results: tuple[Any, ...] = parser.parse_args_into_dataclasses(words, return_remaining_strings=True)
    except TypeError as error:  # an unknown key in a mapping that TrainingArguments passes on to accelerate
        raise ValueError(str(error)) from error
    *parsed, unknown = results
    if unknown:
        option = unknown[0].lstrip("-").split("=")[0]
        place, hint = "", _nearest(option, parser.names)
        if option in recipe:
            place, hint = f" in the recipe {name!r}", hint or ". Is it a recipe of another command?"
        parser.error(f"unexpected{place}: {unknown[0]}{hint}")
    for group in parsed:
        if getattr(group, "disable_tqdm", False):
            disable_bars()
        for key, mapping in recipe.items():
            if isinstance(mapping, dict) and isinstance(pairs := getattr(group, key, None), str):
                setattr(group, key, {**mapping, **parse_pairs(pairs, key)})  # a flag changes some of the recipe's
    if size is None and SIZES in recipe:
        size = on_main_process(lambda: choose_size(recipe[SIZES], *parsed[:2]))
        return parse_arguments(*dataclass_types, args=args, size=size)
    return tuple(parsed), name


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
        ValueError, OSError: an unsupported option is given, or see `parse_arguments`, `check_training_arguments`,
            `share_global_batch` and `read_model_fields`.
    """
    (model_args, data_args, training_args), recipe = parse_arguments(
        ModelArguments, data_class, training_class, args=args
    )
    for name in unsupported:
        if getattr(data_args, name) != getattr(data_class(), name):
            raise ValueError(f"`{name}` is not an option of this script. Leave it out.")
    check_streaming(data_args, training_args)
    check_training_arguments(training_args)
    share_global_batch(training_args, data_args, given_arguments(args))
    prepare_arguments(training_args)
    set_seed(training_args.seed)
    return model_args, data_args, training_args, read_model_fields(model_args, config_class), recipe


def choose_size(sizes: dict[str, dict[str, Any]], model_args: ModelArguments, data_args) -> dict[str, Any]:
    """Return the options of the first of a recipe's `sizes` whose `megabytes` hold the training text.

    The last size has no `megabytes`. Of prepared data, it is the size whose vocabulary they were prepared with.

    Raises:
        ValueError: no size has that vocabulary.
    """
    if is_prepared(data_args.dataset_name):
        _, _, found = load_prepared(Path(data_args.dataset_name).expanduser())
        vocab_size = found["settings"]["vocab_size"]
        names = [name for name, size in sizes.items() if size["vocab_size"] == vocab_size]
        if not names:  # a small model for large data would be no error
            raise ValueError(f"No size of the recipe has the vocabulary of the prepared data, {vocab_size} tokens.")
        name = names[0]
    else:
        text = load_from_arguments(data_args, model_args.cache_dir)["train"].data.nbytes / 1e6
        name = next(name for name, size in sizes.items() if text <= size.get("megabytes", math.inf))
    logger.info(f"The size of model and vocabulary: {name}")
    return {option: value for option, value in sizes[name].items() if option != "megabytes"}


def _nearest(name: str, names: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.75)
    return f". Did you mean `{close[0]}`?" if close else ""


def read_model_fields(model_args: ModelArguments, config_class: type[PreTrainedConfig]) -> dict[str, Any]:
    """The fields of the model's config that the preset and `config_overrides` set; the overrides win.

    Args:
        model_args: a script's.
        config_class: the class of the model that is trained.

    Raises:
        ValueError: as `preset_fields` and `parse_overrides`.
    """
    fields = {}
    if model_args.preset or model_args.preset_hyperparameters:
        from ..convert.presets import preset_fields  # the converters import transformers' GPT-2 and Marian

        hyperparameters = parse_pairs(model_args.preset_hyperparameters, "preset_hyperparameters")
        fields = preset_fields(str(model_args.preset), config_class, **hyperparameters)
    return fields | parse_overrides(model_args.config_overrides, config_class)


def parse_overrides(overrides: str | dict | None, config_class: type[PreTrainedConfig]) -> dict[str, Any]:
    """Parse `config_overrides`, and check that the config has these fields: it takes any other name as well.

    Args:
        overrides: `a=1,b=2`, JSON, or a dictionary.
        config_class: the config's class.

    Returns:
        The fields and their values; a name in the config's `attribute_map` is replaced by the field's own.

    Raises:
        ValueError: the config does not have a field (the message has the nearest name), or the text cannot be parsed.
    """
    overrides = parse_pairs(overrides, "config_overrides")
    known = [*config_class.__dataclass_fields__, *config_class.attribute_map]
    for name in overrides:
        if name not in known:
            raise ValueError(
                f"`config_overrides` has {name!r}, which {config_class.__name__} does not{_nearest(name, known)}"
            )
    # the config's validation skips names that are not the fields' own
    return {config_class.attribute_map.get(name, name): value for name, value in overrides.items()}
