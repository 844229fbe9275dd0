# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""The scripts' arguments: HfArgumentParser over dataclasses, with a YAML or JSON recipe that flags override."""

import difflib
import math
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import (
    HfArgumentParser,
    PreTrainedConfig,
    Seq2SeqTrainingArguments,
    Trainer,
    TrainingArguments,
    get_scheduler,
)

from .errors import is_first_process
from .models.generation import MAX_LOG_LENGTH_FACTOR
from .recipes import convert_value, parse_pairs, read_recipe
from .tokenization import KINDS

LONGEST_BLOCK = 2**20  # tokens: even the last row is filled up to a block
DTYPES = ("float32", "bfloat16", "float16")
PATHS = (
    *("model_name_or_path", "tokenizer_name", "cache_dir", "dataset_name", "train_file", "validation_file"),
    *(
        "test_file",
        "output_dir",
        "resume_from_checkpoint",
        "model",
        "input",
        "output_file",
        "json",
        "data",
        "articles",
    ),
)


def check_at_least(arguments: Any, smallest: float, *names: str) -> None:
    """Raise ValueError for the first of these arguments that is below `smallest`, or not a finite number.

    None, where it is a default, passes.
    """
    for name in names:
        value = getattr(arguments, name)
        if value is not None and not (value >= smallest and math.isfinite(value)):
            raise ValueError(f"`{name}` must be {smallest} or more, got {value}.")


def check_length_penalty(arguments: Any, longest: int) -> None:
    """Raise ValueError where `length_penalty` would take a beam's score, of up to `longest` tokens, out of float32."""
    penalty = arguments.length_penalty
    if arguments.num_beams > 1 and abs(penalty) * math.log(longest) > MAX_LOG_LENGTH_FACTOR:
        raise ValueError(f"`length_penalty` is {penalty}, too large for {longest} tokens. Usual are 0.6 to 2.")


def check_finite(arguments: Any, *names: str) -> None:
    """Raise ValueError for the first of these arguments that is nan or infinite."""
    check_at_least(arguments, -sys.float_info.max, *names)


@dataclass
class ModelArguments:
    """What to train: a new model, or one to go on with."""

    config_overrides: str | None = field(
        default=None,
        metadata={"help": "Fields of the model's config: a=1,b=2 or JSON; a mapping in a recipe, whose others stay."},
    )
    model_name_or_path: str | None = field(
        default=None, metadata={"help": "A folder or Hub id to start from, in place of a new model."}
    )
    tokenizer_name: str | None = field(
        default=None, metadata={"help": "A tokenizer to use. Default: the model's, or a new one."}
    )
    tokenizer_kind: str | None = field(
        default=None, metadata={"help": "How the new tokenizer cuts text.", "choices": list(KINDS)}
    )
    vocab_size: int = field(default=8000, metadata={"help": "The new tokenizer's largest vocabulary."})
    attn_implementation: str | None = field(
        default=None, metadata={"help": "eager, sdpa, flash_attention_2 or flex_attention. Default: sdpa."}
    )
    cache_dir: str | None = field(default=None, metadata={"help": "Where downloads are kept."})

    def __post_init__(self):
        check_at_least(self, 1, "vocab_size")


@dataclass
class DataArguments:
    """What to train on."""

    dataset_name: str | None = field(
        default=None,
        metadata={"help": "A Hub id, a folder laid out like one, embedded:numbers or embedded:stories."},
    )
    dataset_config_name: str | None = field(default=None, metadata={"help": "The Hub dataset's configuration."})
    train_file: str | None = field(default=None, metadata={"help": "JSON lines to train on."})
    validation_file: str | None = field(default=None, metadata={"help": "JSON lines to validate on."})
    test_file: str | None = field(default=None, metadata={"help": "JSON lines to test on at the end."})
    max_train_samples: int | None = field(default=None, metadata={"help": "Train on so many rows only."})
    max_eval_samples: int | None = field(default=None, metadata={"help": "Validate on so many rows only."})
    max_predict_samples: int | None = field(default=None, metadata={"help": "Test on so many rows only."})
    preprocessing_num_workers: int | None = field(default=None, metadata={"help": "Processes that tokenise."})
    average_checkpoints: int = field(
        default=0,
        metadata={"help": "At the end, average so many last checkpoints, and keep that if its loss is lower."},
    )
    early_stopping_patience: int | None = field(
        default=None,
        metadata={"help": "Stop after so many evaluations without a better one. Needs load_best_model_at_end."},
    )
    r_drop_alpha: float = field(
        default=0.0,
        metadata={
            "help": "Each row is seen twice an update, and R-Drop's divergence counts so much (Liang et al.: 5)."
        },
    )
    max_minutes: float | None = field(default=None, metadata={"help": "Stop training after so many minutes."})

    def __post_init__(self):
        check_at_least(self, 1, "max_train_samples", "max_eval_samples", "max_predict_samples")
        check_at_least(self, 1, "preprocessing_num_workers", "early_stopping_patience")
        check_at_least(self, 0, "average_checkpoints", "r_drop_alpha")
        if self.max_minutes is not None and not self.max_minutes > 0:
            raise ValueError(f"`max_minutes` must be above 0, got {self.max_minutes}.")


@dataclass
class TranslationArguments(DataArguments):
    """What to translate, and how."""

    source_lang: str | None = field(default=None, metadata={"help": "The source language's column, e.g. en."})
    target_lang: str | None = field(default=None, metadata={"help": "The target language's column, e.g. de."})
    max_source_length: int = field(default=128, metadata={"help": "Sources are cut to so many tokens."})
    max_target_length: int = field(default=128, metadata={"help": "Targets are cut to so many tokens."})
    max_tokens_per_batch: int | None = field(
        default=None, metadata={"help": "Tokens of a batch on one device, in place of per_device_train_batch_size."}
    )
    bpe_dropout: float = field(
        default=0.0, metadata={"help": "Cut training text anew each time, leaving out so many merges (BPE-dropout)."}
    )
    num_beams: int = field(default=5, metadata={"help": "Beams of the final test, saved as the model's default."})
    length_penalty: float = field(default=1.0, metadata={"help": "Beam search's, saved as the model's default."})

    def __post_init__(self):
        super().__post_init__()
        check_at_least(self, 2, "max_source_length", "max_target_length")  # a token, and the end token
        check_at_least(self, 1, "max_tokens_per_batch", "num_beams")
        check_finite(self, "length_penalty")
        if not 0 <= self.bpe_dropout < 1:
            raise ValueError(f"`bpe_dropout` must be 0 or more, and below 1, got {self.bpe_dropout}.")


@dataclass
class LanguageModelArguments(DataArguments):
    """What to model, and how."""

    text_column: str = field(default="text", metadata={"help": "The column with the text."})
    block_size: int = field(default=256, metadata={"help": "Tokens of a training row, and the model's longest input."})
    attend_across_texts: bool = field(
        default=False, metadata={"help": "Let packed texts see each other, as GPT-2's training does."}
    )
    decay_all_parameters: bool = field(
        default=False, metadata={"help": "Weight decay on biases and LayerNorms too, as torch's AdamW does by itself."}
    )
    answer_after: str | None = field(
        default=None, metadata={"help": "Texts are a question, this and an answer: report how many answers are right."}
    )

    def __post_init__(self):
        super().__post_init__()
        check_at_least(self, 2, "block_size")
        if self.block_size > LONGEST_BLOCK:
            raise ValueError(f"`block_size` must be {LONGEST_BLOCK} or less, got {self.block_size}.")
        if self.answer_after == "":
            raise ValueError("`answer_after` must not be empty.")


def check_training_arguments(args: TrainingArguments) -> None:
    """Check what TrainingArguments leaves to the training itself, which would fail late or learn nothing.

    Raises:
        ValueError: a number out of its range, or an optimiser or schedule that cannot be made.
    """
    if not args.output_dir:
        raise ValueError("`output_dir` must be given.")
    check_at_least(args, 1, "per_device_train_batch_size", "per_device_eval_batch_size", "gradient_accumulation_steps")
    check_at_least(args, 1, "save_total_limit", "eval_accumulation_steps")
    check_at_least(args, 0, "learning_rate", "warmup_steps", "weight_decay", "max_grad_norm", "adam_epsilon")
    check_at_least(args, 0, "num_train_epochs", "dataloader_num_workers", "eval_delay")
    check_at_least(args, 0, "neftune_noise_alpha")
    if args.data_seed is not None and not abs(args.data_seed) < 2**62:
        raise ValueError(f"`data_seed` must be below 2**62, got {args.data_seed}.")
    if args.dataloader_persistent_workers and args.dataloader_num_workers == 0:
        raise ValueError("`dataloader_persistent_workers` needs `dataloader_num_workers` of 1 or more.")
    for name in ("logging", "eval", "save"):
        if getattr(args, f"{name}_strategy") == "steps" and not getattr(args, f"{name}_steps") > 0:
            raise ValueError(f"`{name}_steps` must be above 0, got {getattr(args, f'{name}_steps')}.")
    if args.max_steps <= 0 and args.num_train_epochs == 0:
        raise ValueError("There is nothing to train: `num_train_epochs` is 0.")
    for name in ("adam_beta1", "adam_beta2", "label_smoothing_factor"):
        if not 0 <= getattr(args, name) < 1:
            raise ValueError(f"`{name}` must be 0 or more, and below 1, got {getattr(args, name)}.")
    if isinstance(args, Seq2SeqTrainingArguments):
        check_at_least(args, 1, "generation_num_beams", "generation_max_length")
    try:
        Trainer.get_optimizer_cls_and_kwargs(args)  # names the package that is missing
    except (TypeError, ValueError) as error:
        raise ValueError(f"`optim` {args.optim}, `optim_args` {args.optim_args!r}: {error}.") from error
    if args.lr_scheduler_kwargs is not None and not isinstance(args.lr_scheduler_kwargs, dict):
        raise ValueError(f"`lr_scheduler_kwargs` must be JSON or a mapping; got {args.lr_scheduler_kwargs!r}.")
    try:
        get_scheduler(
            args.lr_scheduler_type,
            torch.optim.SGD([torch.zeros(1)], lr=1.0),
            num_warmup_steps=1,
            num_training_steps=10,
            scheduler_specific_kwargs=args.lr_scheduler_kwargs,
        )
    except (TypeError, ValueError) as error:
        raise ValueError(f"`lr_scheduler_type` {args.lr_scheduler_type.value}: {error}.") from error


class _Parser(HfArgumentParser):
    """HfArgumentParser whose errors are printed by the first of several processes alone."""

    def error(self, message: str):
        """Print the usage and the message, and exit with status 2."""
        if not is_first_process():
            raise SystemExit(2)
        super().error(" ".join(message.split()))


def check_evaluation(args: Any, *positive: str) -> None:
    """Check an evaluation script's arguments: what it would fail on only after all is evaluated, too.

    Args:
        positive: more arguments that must be 1 or more.

    Raises:
        ValueError: a number out of its range, an unknown device or dtype, or a file that cannot be written.
    """
    check_at_least(args, 1, "batch_size", "max_samples", *positive)
    if args.dtype not in DTYPES:
        raise ValueError(f"`dtype` must be one of {', '.join(DTYPES)}; got {args.dtype!r}.")
    try:
        torch.zeros(1, device=args.device).item()
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"`device` is {args.device!r}: {str(error).splitlines()[0]}") from error
    for name in ("json", "output_file"):
        path = getattr(args, name, None)
        if path is not None and (os.path.isdir(path) or not os.path.isdir(os.path.dirname(path) or ".")):
            raise ValueError(f"`{name}` is {path!r}, but there is no folder for it, or it is a folder itself.")
        if path is not None and not os.access(path if os.path.exists(path) else os.path.dirname(path) or ".", os.W_OK):
            raise ValueError(f"`{name}` is {path!r}, which cannot be written.")
    if args.json is not None and os.path.realpath(args.json) == os.path.realpath(
        getattr(args, "output_file", None) or ""
    ):
        raise ValueError(f"`json` and `output_file` are both {args.json!r}.")


def parse_arguments(*dataclass_types: type, args: list[str] | None = None) -> tuple[tuple, str]:
    """Parse `[recipe.yaml] [--flag value ...]`.

    Args:
        dataclass_types: what HfArgumentParser is to fill.
        args: the command line. Default: this process's.

    Returns:
        The filled dataclasses, and the recipe's name ("" without one).

    Raises:
        SystemExit: bad usage, with a line that says what and the nearest name for a misspelt one.
    """
    args = list(sys.argv[1:] if args is None else args)
    usage = "%(prog)s [recipe.yaml] [--flag value ...]    (--help lists the flags)"
    parser = _Parser(dataclass_types, usage=usage)
    names = [action.dest for action in parser._actions]
    recipe, values = "", {}
    if args and not args[0].startswith("-"):
        recipe = args.pop(0)
        values = _read_recipe(parser, recipe)
        parser.set_defaults(**values)
    try:
        *parsed, unknown = parser.parse_args_into_dataclasses(args, return_remaining_strings=True)
    except TypeError as error:  # an unknown key of what TrainingArguments passes on to accelerate
        raise ValueError(str(error)) from error
    for flag in unknown:
        if flag.startswith("--"):
            parser.error(f"there is no argument {flag}{_nearest(flag.lstrip('-').split('=')[0], names, '--')}")
    if unknown:
        parser.error(f"unexpected: {' '.join(unknown)}")
    for group in parsed:
        for name in PATHS:
            if isinstance(path := getattr(group, name, None), str) and path.startswith("~"):
                setattr(group, name, os.path.expanduser(path))  # the shell leaves `--output_dir=~/runs` as it is
        if isinstance(group, TrainingArguments):
            check_training_arguments(group)
        for name, mapping in values.items():
            if isinstance(mapping, dict) and isinstance(flag := getattr(group, name, None), str):
                setattr(group, name, {**mapping, **parse_pairs(flag, name)})  # a flag changes some of the recipe's
    return tuple(parsed), Path(recipe).stem


def _read_recipe(parser: HfArgumentParser, recipe: str) -> dict[str, Any]:
    path = Path(recipe).expanduser()
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
                raise ValueError(f"has the key {name!r}, which no argument has{_nearest(str(name), list(actions))}")
            try:
                values[name] = convert_value(actions[name], value)
            except ValueError as error:
                raise ValueError(f"cannot be used: {error}") from error
    except ValueError as error:
        parser.error(f"the recipe {recipe!r} {error}")
    return values


def _nearest(name: str, names: list[str], prefix: str = "") -> str:
    close = difflib.get_close_matches(name, names, n=1)
    return f". Did you mean {prefix}{close[0]}?" if close else ""


def parse_overrides(overrides: str | dict | None, config_class: type) -> dict[str, Any]:
    """`config_overrides` as a dictionary of the config's fields.

    Raises:
        ValueError: a field that the config does not have (with the nearest name), one that is not the user's to set
            (`architectures`, `auto_map`, ...), or text that is neither form.
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
    # under the field's own name: the config's validation leaves other names out
    return {config_class.attribute_map.get(name, name): value for name, value in overrides.items()}
