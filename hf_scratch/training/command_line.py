# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""The command line: a YAML or JSON recipe, and the flags that override it, fill the dataclasses of `arguments`."""

import copy
import difflib
import logging
import math
import sys
from argparse import SUPPRESS
from collections.abc import Collection, Iterable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Self

import torch
from transformers import HfArgumentParser, PreTrainedConfig, TrainerCallback, TrainingArguments, set_seed

from ..data.cache import FILES, is_prepared, load_prepared
from ..data.splits import load_from_arguments
from ..errors import UserError, disable_bars, without_option
from ..recipes import SIZES, find_recipe, list_recipes, parse_pairs, read_recipe, recipe_to_flags
from .arguments import DEFAULT_MINUTES, ModelArguments
from .main_process import on_main_process

logger = logging.getLogger(__name__)
LENGTHS = ("max_steps", "num_train_epochs")
PAIRS = ("config_overrides", "preset_hyperparameters")  # a flag changes some of a recipe's pairs, and keeps the others
REPLACED_BY = (  # flags, and what they replace in a recipe
    (FILES, ("dataset_name", "dataset_config_name")),
    (("dataset_name",), FILES),
    (LENGTHS, ("budget_minutes",)),
    (("budget_minutes",), LENGTHS),
    (("num_train_epochs",), ("max_steps",)),
    (("global_batch_size",), ("max_tokens_per_update",)),
    (("max_tokens_per_update",), ("global_batch_size",)),
)
NOT_A_NEW_MODEL = {"model_name_or_path", "preset", "streaming"}  # flags beside which `own_recipe` is not the default

# set in TrainingArguments unless the user gives them
OUR_DEFAULTS = {
    "logging_nan_inf_filter": False,  # it waits for the device in every step, to hide a loss that is nan
    "ddp_find_unused_parameters": False,  # each step uses all parameters of our models
    "ddp_broadcast_buffers": False,  # ours never change
    "dataloader_pin_memory": torch.cuda.is_available(),  # without a GPU, torch warns
}
HELP_OF_TRANSFORMERS = (
    "All options of transformers' TrainingArguments work, too: --output_dir, which is needed; --num_train_epochs, "
    "--max_steps, --learning_rate, --warmup_steps, --eval_strategy, --save_steps, --bf16, --use_cpu, --seed, "
    "--resume_from_checkpoint last, --disable_tqdm and others. They are described at "
    "https://huggingface.co/docs/transformers/main_classes/trainer and listed by --help_all."
)


class _Parser(HfArgumentParser):
    """An HfArgumentParser whose errors end a command as its other ones do.

    The help of a training leaves out the options of transformers' TrainingArguments; `--help_all` lists them, too.
    """

    def __init__(self, dataclass_types: Sequence[Any], words: Sequence[str]):
        self.names = [field.name for cls in dataclass_types for field in fields(cls)]
        of_transformers = [cls for cls in dataclass_types if issubclass(cls, TrainingArguments)]
        self.is_training = bool(of_transformers)
        self.hidden = {field.name for cls in of_transformers for field in fields(cls) if "--help_all" not in words}
        super().__init__(dataclass_types, usage="%(prog)s [recipe] [--flag value ...]", allow_abbrev=False)
        if self.is_training:
            description = "show the options of transformers' TrainingArguments, too"
            self.add_argument("--help_all", action="help", help=description)

    def add_argument(self, *names, **kwargs):
        """Add an option without HfArgumentParser's second spelling: --a-b of --a_b."""
        name, *others = [name for name in names if "-" not in name.lstrip("-")]
        if name.lstrip("-").removeprefix("no_") in self.hidden:
            kwargs["help"] = SUPPRESS
        if name == "--output_dir":
            kwargs["required"] = True  # transformers' default is trainer_output
        return super().add_argument(name, *others, **kwargs)

    def format_help(self) -> str:
        """Name the recipes that fit, and where the other options are described."""
        if self.is_training:
            self.description = f"Recipes: {', '.join(list_recipes(self.names))}; or a YAML or JSON file of flags."
            self.epilog = HELP_OF_TRANSFORMERS
        return super().format_help()

    def error(self, message: str):
        raise UserError(message)


class CommandLine:
    """A command's words: `[recipe.yaml] [--flag value ...]`. Flags override the recipe.

    Args:
        words: the words. Default: this process's.
        own_recipe: the recipe that is taken for a new model on files of one's own, if none is given.

    Attributes:
        words: the words, with the recipe that was taken; flags are spelled --a_b.
        recipe: the recipe's options, without those that flags replace (`REPLACED_BY`), and its `sizes`.
        name: the recipe's name; "" without a recipe.
        flags: the names of the options that the flags give.
        smaller_models: `config_overrides` of the two sizes before the one that was chosen, the larger one first. They
            should halve the width: the first has twice the `learning_rate` of the chosen one, the second four times.
        given: the names of the options that the flags or the recipe give.
        values: the value of each option, once it is parsed.

    Raises:
        ValueError: the recipe cannot be read.
        OSError: there is no such recipe.
    """

    def __init__(self, words: list[str] | None = None, own_recipe: str | None = None):
        words = [_spell(word) for word in (sys.argv[1:] if words is None else words)]
        flags = _names(words)
        has_recipe = bool(words) and not words[0].startswith("-")
        if own_recipe and not has_recipe and "train_file" in flags and not flags & NOT_A_NEW_MODEL:
            words = [own_recipe, *([] if "validation_file" in flags else ["--eval_strategy=no"]), *words]
            has_recipe = True
        self.words, self.flags, self.recipe, self.name = words, _names(words), {}, ""
        self.replaced = {name for flags, names in REPLACED_BY if self.flags & {*flags} for name in names}
        if has_recipe:
            path = find_recipe(words[0])
            self.recipe = {name: value for name, value in read_recipe(path).items() if name not in self.replaced}
            self.name = path.stem
        self.given = self.flags | self.recipe.keys() - {SIZES}

    def parse(self, *dataclass_types: Any) -> tuple:
        """Parse the recipe and the flags, and return the filled dataclasses.

        Raises:
            UserError: bad usage.
            ValueError: two options do not go together.
        """
        recipe = recipe_to_flags({name: value for name, value in self.recipe.items() if name != SIZES})
        words = [*map(_spell, recipe), *self.words[1 if self.name else 0 :]]
        parser = _Parser(dataclass_types, words)
        of_sizes = [name for size in self.recipe.get(SIZES, {}).values() for name in size if name != "megabytes"]
        namespace, unknown = parser.parse_known_args(words)
        unknown += [name for name in of_sizes if name not in parser.names]  # would have no effect
        if unknown:
            option = unknown[0].lstrip("-").partition("=")[0]
            place = f" in the recipe {self.name!r}" if option in {*self.recipe, *of_sizes} else ""
            parser.error(f"unexpected{place}: {unknown[0]}{_nearest(option, parser.names)}")
        self.types, self.values = dataclass_types, vars(namespace)
        self.pairs = {name: value for name, value in self.values.items() if name in PAIRS and name in self.flags}
        self._merge_pairs(self.recipe)
        if self.values.get("disable_tqdm"):
            disable_bars()
        try:
            return self.fill()
        except TypeError as error:  # an unknown key in a mapping that TrainingArguments passes on to accelerate
            raise ValueError(str(error)) from error

    def fill(self) -> tuple:
        """Return the dataclasses, filled with `values`."""
        return tuple(
            cls(**{each.name: self.values[each.name] for each in fields(cls) if each.init}) for cls in self.types
        )

    def choose_size(self, model_args: ModelArguments, data_args: Any) -> None:
        """Take over the options of one of the recipe's `sizes`, if it has them. Flags override them.

        It is the first size whose `megabytes` hold the training text; the last one has no `megabytes`. Of prepared
        data, it is the size whose vocabulary they were prepared with.

        Raises:
            ValueError: no size has that vocabulary.
        """
        sizes: dict[str, dict[str, Any]] = self.recipe.get(SIZES, {})

        def choose() -> str:
            if is_prepared(data_args.dataset_name):
                _, _, found = load_prepared(Path(data_args.dataset_name).expanduser())
                vocab_size = found["settings"]["vocab_size"]
                names = [name for name, size in sizes.items() if size.get("vocab_size") == vocab_size]
                if not names:  # a small model for large data would be no error
                    raise ValueError(f"No size of the recipe has the vocabulary of the prepared data, {vocab_size}.")
                return names[0]
            text = load_from_arguments(data_args, model_args.cache_dir)["train"].data.nbytes / 1e6
            return next(name for name, size in sizes.items() if text <= size.get("megabytes", math.inf))

        self.smaller_models = []
        if sizes:
            name = on_main_process(choose)
            logger.info(f"The size of model and vocabulary: {name}")
            smaller = [*sizes.values()][: [*sizes].index(name)]
            if not (model_args.model_name_or_path or model_args.preset):
                rate = float((self.values | sizes[name])["learning_rate"])  # YAML reads 4e-3 as text
                self.smaller_models = [
                    ({} if "learning_rate" in self.flags else {"learning_rate": 2**halvings * rate})
                    | {"config_overrides": self._merged("config_overrides", self.recipe, size)}
                    for halvings, size in enumerate(reversed(smaller[-2:]), 1)
                ]
            size = {option: value for option, value in sizes[name].items() if option not in self.replaced}
            size.pop("megabytes", None)
            layers = [self.recipe, size]
            if model_args.model_name_or_path:  # has a config; a new model's rate would undo its training
                size, layers = {name: size[name] for name in size.keys() - {"learning_rate"}}, []
            self.values |= {option: value for option, value in size.items() if option not in self.flags}
            self._merge_pairs(*layers)
            self.given = self.given | size.keys()

    def _merge_pairs(self, *layers: dict[str, Any]) -> None:
        """Set the options that are pairs: the last of the layers, and the flag after them, counts for each key."""
        self.values |= {name: self._merged(name, *layers) for name in self.values.keys() & {*PAIRS}}

    def _merged(self, name: str, *layers: dict[str, Any]) -> dict[str, Any]:
        layered = [parse_pairs(layer.get(name), name) for layer in (*layers, self.pairs)]
        return {key: value for pairs in layered for key, value in pairs.items()}


def _names(words: Iterable[str]) -> set[str]:
    return {word[2:].partition("=")[0] for word in words if word.startswith("--")}


def _spell(word: str) -> str:
    """Write the flag --a-b=c as --a_b=c."""
    flag, sign, value = word.partition("=")
    is_flag = word.startswith("--") and " " not in flag  # else it is a text, as argparse sees it
    return f"--{flag[2:].replace('-', '_')}{sign}{value}" if is_flag else word


def _nearest(name: str, names: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.75)
    return f". Did you mean `{close[0]}`?" if close else ""


def parse_arguments(*dataclass_types: Any, args: list[str] | None = None) -> tuple[tuple, str]:
    """Return the filled dataclasses, and the recipe's name. `args` and errors: see `CommandLine`."""
    line = CommandLine(args)
    return line.parse(*dataclass_types), line.name


class TrainingCommand(CommandLine):
    """The arguments of a training. Making it sets up the logging, and seeds all random numbers.

    Args:
        data_class: the script's subclass of `DataArguments`.
        training_class: TrainingArguments or a subclass.
        config_class: the config whose fields `preset` and `config_overrides` may set.
        words: see `CommandLine`.
        own_recipe: see `CommandLine`.
        unsupported: options of `data_class` that the script lacks.

    Attributes:
        model_args: the `ModelArguments`.
        data_args: a `data_class`.
        args: a `training_class`. Its attribute `words` has the words that repeat the training.
        model_fields: the fields of the config that the options set.

    Raises:
        ValueError, OSError: an unsupported option is given, options do not go together, or see `CommandLine`,
            `share_global_batch` and `read_model_fields`.
    """

    model_args: ModelArguments
    data_args: Any
    args: Any
    model_fields: dict[str, Any]
    callbacks: Sequence[TrainerCallback] = ()  # of the training

    def __init__(
        self,
        data_class: type,
        training_class: type,
        config_class: type[PreTrainedConfig],
        words: list[str] | None = None,
        own_recipe: str | None = None,
        unsupported: Collection[str] = (),
    ):
        super().__init__(words, own_recipe)
        model_args, data_args, args = self.parse(ModelArguments, data_class, training_class)
        self.values |= {name: value for name, value in OUR_DEFAULTS.items() if name not in self.given}
        if refused := self.given & {*unsupported}:
            raise ValueError(f"`{min(refused)}` is not an option of this script. Leave it out.")
        minutes, lengths = data_args.budget_minutes, self.given & {*LENGTHS}
        if lengths and "budget_minutes" in self.given:
            raise ValueError(f"`budget_minutes` and `{min(lengths)}` do not go together. Leave one of them out.")
        if minutes is not None and minutes <= 0:
            raise ValueError(
                f"`budget_minutes` is {minutes:g}. Leave it out, and give `max_steps` or `num_train_epochs`."
            )
        if not lengths and not {"budget_minutes"} & {*self.given, *unsupported}:
            self.values["budget_minutes"] = DEFAULT_MINUTES
            if args.should_save:
                print(f"Training for {DEFAULT_MINUTES:g} minutes. Set --budget_minutes or --max_steps to change that.")
        if args.should_save and not self.given & {"dataset_name", "validation_file", "test_file"}:
            print("Nothing will be scored: overfitting stays unseen. Put a part of the rows into a --validation_file.")
        prepare_logging(args)
        self.choose_size(model_args, data_args)
        self.config_class = config_class
        self._complete()

    def change(self, options: dict[str, Any]) -> Self:
        """Return this command with other values of some options. As flags, they replace `budget_minutes` in its words.

        Options that the command does not have are ignored.
        """
        changed = copy.copy(self)
        changed.values = self.values | options
        changed.words = [*without_option(self.words, "budget_minutes"), *recipe_to_flags(options)]
        changed._complete()
        return changed

    def _complete(self) -> None:
        self.model_args, self.data_args, self.args = self.fill()
        self.args.accelerator_config.non_blocking |= self.args.dataloader_pin_memory
        check_options(self.data_args, self.args)
        share_global_batch(self.args, self.data_args, self.given)
        set_seed(self.args.seed)
        self.args.words = self.words
        self.model_fields = read_model_fields(self.model_args, self.config_class)


def check_options(data_args: Any, args: TrainingArguments) -> None:
    """Check for what would train otherwise than the options say.

    Raises:
        ValueError: one process would use several GPUs (`nn.DataParallel`), which multiplies the batch; or an option
            needs all rows or an end of the data, which a stream does not have.
    """
    if args.n_gpu > 1:
        raise ValueError(
            f"{args.n_gpu} GPUs are visible to one process. Start one process for each, with `accelerate launch` or "
            "torchrun; or choose one GPU, with CUDA_VISIBLE_DEVICES=0."
        )
    refused = {
        "eval_strategy epoch": args.eval_strategy == "epoch",
        "save_strategy epoch": args.save_strategy == "epoch",
        "max_train_samples": data_args.max_train_samples is not None,
    }
    given = [option for option, is_given in refused.items() if is_given]
    if data_args.streaming and given:
        raise ValueError(f"`streaming` does not go together with `{given[0]}`: a stream has no end.")


def share_global_batch(args: TrainingArguments, data_args: Any, given: set[str]) -> None:
    """Set `per_device_train_batch_size` and `gradient_accumulation_steps` so that a step has `global_batch_size`.

    A `per_device_train_batch_size` that is among the `given` options is the most that a device can hold.

    Raises:
        ValueError: the processes cannot share the rows evenly, or `gradient_accumulation_steps` is given too.
    """
    size = data_args.global_batch_size
    if (size or getattr(data_args, "max_tokens_per_update", None)) and "gradient_accumulation_steps" in given:
        raise ValueError(
            "`gradient_accumulation_steps` follows from the size of a step (`global_batch_size` or "
            "`max_tokens_per_update`). Leave one of them out."
        )
    if size is None:
        return
    rows, rest = divmod(size, args.world_size)
    if rest:
        raise ValueError(
            f"`global_batch_size` is {size}, which {args.world_size} processes cannot share evenly. Choose a multiple "
            f"of {args.world_size}."
        )
    most = args.per_device_train_batch_size if "per_device_train_batch_size" in given else rows
    steps = next(n for n in range(1, rows + 1) if rows % n == 0 and rows // n <= most)
    args.per_device_train_batch_size, args.gradient_accumulation_steps = rows // steps, steps


def prepare_logging(args: TrainingArguments) -> None:
    """Let the main process log from "info" on, and the others from "error" on."""
    logging.basicConfig(format="%(asctime)s %(name)s: %(message)s", datefmt="%H:%M:%S", level=logging.WARNING)
    level = logging.INFO if args.should_log else logging.ERROR
    for name in ("hf_scratch", "train_translation", "train_language_model"):
        logging.getLogger(name).setLevel(level)


def read_model_fields(model_args: ModelArguments, config_class: type[PreTrainedConfig]) -> dict[str, Any]:
    """The fields of the model's config that the preset and `config_overrides` set; the overrides win.

    Raises:
        ValueError: see `preset_fields`; or the config, which takes any name, does not have a field of
            `config_overrides` (the message has the nearest name).
    """
    fields = {}
    if model_args.preset or model_args.preset_hyperparameters:
        from ..convert.presets import preset_fields  # the converters import transformers' GPT-2 and Marian

        hyperparameters = parse_pairs(model_args.preset_hyperparameters, "preset_hyperparameters")
        fields = preset_fields(str(model_args.preset), config_class, **hyperparameters)
    known = [*config_class.__dataclass_fields__, *config_class.attribute_map]
    for name, value in parse_pairs(model_args.config_overrides, "config_overrides").items():
        if name not in known:
            raise ValueError(
                f"`config_overrides` has {name!r}, which {config_class.__name__} does not{_nearest(name, known)}"
            )
        # the config's validation skips names that are not the fields' own
        fields[config_class.attribute_map.get(name, name)] = value
    return fields
