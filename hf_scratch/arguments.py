# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""The scripts' arguments: HfArgumentParser over dataclasses, with a YAML or JSON recipe that flags override."""

import difflib
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from transformers import HfArgumentParser

from .errors import is_first_process
from .tokenization import KINDS


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


class _Parser(HfArgumentParser):
    """HfArgumentParser whose errors are printed by the first of several processes alone."""

    def error(self, message: str):
        """Print the usage and the message, and exit with status 2."""
        if not is_first_process():
            raise SystemExit(2)
        super().error(" ".join(message.split()))


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
        values = _read_recipe(parser, recipe, names)
        parser.set_defaults(**values)
    *parsed, unknown = parser.parse_args_into_dataclasses(args, return_remaining_strings=True)
    for flag in unknown:
        if flag.startswith("--"):
            parser.error(f"there is no argument {flag}{_nearest(flag.lstrip('-').split('=')[0], names, '--')}")
    if unknown:
        parser.error(f"unexpected: {' '.join(unknown)}")
    for group in parsed:
        for name, mapping in values.items():
            if isinstance(mapping, dict) and isinstance(flag := getattr(group, name, None), str):
                setattr(group, name, {**mapping, **parse_pairs(flag, name)})  # a flag changes some of the recipe's
    return tuple(parsed), Path(recipe).stem


def _read_recipe(parser: HfArgumentParser, recipe: str, names: list[str]) -> dict[str, Any]:
    path = Path(recipe)
    if path.suffix not in (".yaml", ".yml", ".json"):
        parser.error(f"the recipe {recipe!r} must be a .yaml or .json file")
    if not path.is_file():
        known = sorted(file.stem for file in path.parent.glob("*.yaml")) if path.parent.is_dir() else []
        parser.error(f"there is no recipe {recipe!r}{_nearest(path.stem, known)}")
    try:
        values = yaml.safe_load(path.read_text())  # JSON is YAML
    except yaml.YAMLError as error:
        parser.error(f"the recipe {recipe!r} cannot be read: {error}")
    if not isinstance(values, dict):
        parser.error(f"the recipe {recipe!r} must be a mapping of argument names to values")
    for name in values:
        if name not in names:
            parser.error(f"the recipe {recipe!r} has the key {name!r}, which no argument has{_nearest(name, names)}")
    return values


def _nearest(name: str, names: list[str], prefix: str = "") -> str:
    close = difflib.get_close_matches(name, names, n=1)
    return f". Did you mean {prefix}{close[0]}?" if close else ""


def parse_pairs(pairs: str | dict | None, name: str) -> dict[str, Any]:
    """`a=1,b=2`, JSON, or a dictionary as it is, as a dictionary. `name` is the argument's, for the error.

    Raises:
        ValueError: text that is neither form.
    """
    if not isinstance(pairs, str):
        return pairs or {}
    if pairs.lstrip().startswith("{"):
        return json.loads(pairs)
    parts = [pair.partition("=") for pair in pairs.split(",")]
    if not all(equals for _, equals, _ in parts):
        raise ValueError(f"`{name}` must be JSON or a=1,b=2; got {pairs!r}.")
    return {key.strip(): yaml.safe_load(value) for key, _, value in parts}


def parse_overrides(overrides: str | dict | None, config_class: type) -> dict[str, Any]:
    """`config_overrides` as a dictionary of the config's fields.

    Raises:
        ValueError: a field that the config does not have (with the nearest name), or text that is neither form.
    """
    overrides = parse_pairs(overrides, "config_overrides")
    fields = list(config_class.__dataclass_fields__) + list(config_class.attribute_map)
    for name in overrides:
        if name not in fields:
            raise ValueError(
                f"`config_overrides` has {name!r}, which {config_class.__name__} does not{_nearest(name, fields)}"
            )
    return overrides
