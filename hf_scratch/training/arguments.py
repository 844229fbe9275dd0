# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""The training scripts' arguments, and the checks that TrainingArguments leaves out."""

import logging
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import Seq2SeqTrainingArguments, Trainer, TrainingArguments, get_scheduler

from ..models.generation import MAX_LOG_LENGTH_FACTOR
from ..tokenization import KINDS

LONGEST_BLOCK = 2**20  # tokens: even the last row is filled up to a block
DTYPES = ("float32", "bfloat16", "float16")


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

    preset: str | None = field(
        default=None, metadata={"help": "An article whose model is trained, a name in hf_scratch/convert/presets.py."}
    )
    preset_hyperparameters: str | None = field(
        default=None, metadata={"help": "The arguments of the article's own constructor: a=1,b=2 or JSON."}
    )
    config_overrides: str | None = field(
        default=None,
        metadata={
            "help": "Fields of the model's config: a=1,b=2 or JSON. They override the preset's and the recipe's."
        },
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
        if self.preset_hyperparameters is not None and self.preset is None:
            raise ValueError("`preset_hyperparameters` needs a `preset`.")


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


def prepare_arguments(args: TrainingArguments) -> None:
    """Messages of the main process at "info", of the others from "error" on; tokens and tokens a second in the log.

    Where a default of Trainer's would only warn on this machine or with our models, it is set.
    """
    args.include_num_input_tokens_seen = "non_padding"  # the command line can only say true or false
    if args.ddp_find_unused_parameters is None:
        args.ddp_find_unused_parameters = False  # our models use all of theirs
    args.dataloader_pin_memory &= torch.cuda.is_available()  # torch warns of it without one
    logging.basicConfig(format="%(asctime)s %(name)s: %(message)s", datefmt="%H:%M:%S", level=logging.WARNING)
    level = logging.INFO if args.should_log else logging.ERROR
    for name in ("hf_scratch", "train_translation", "train_language_model"):
        logging.getLogger(name).setLevel(level)


def check_validation_data(args: TrainingArguments, splits: Mapping, metrics: Sequence[str] = ()) -> None:
    """Raise ValueError where evaluations are asked for and there is nothing to evaluate on, or where the best one is
    to be found by a metric that they do not have.

    Args:
        metrics: what an evaluation has besides the loss.
    """
    if args.eval_strategy != "no" and "validation" not in splits:
        raise ValueError(
            f"`eval_strategy` is {args.eval_strategy.value!r}, but there is no validation data: the splits are "
            f"{', '.join(splits)}. Give `--validation_file`, or set `--eval_strategy no`."
        )
    best = args.metric_for_best_model
    names = ("loss", *metrics, *("runtime", "samples_per_second", "steps_per_second"))
    if args.eval_strategy != "no" and best is not None and best.removeprefix("eval_") not in names:
        raise ValueError(
            f"`metric_for_best_model` is {best!r}, but the metrics of an evaluation are {', '.join(names)}."
            + (" BLEU needs `--predict_with_generate true`." if "bleu" in best and not metrics else "")
        )


def data_seed(args: TrainingArguments) -> int:
    """What the order of the rows follows."""
    return args.data_seed if args.data_seed is not None else args.seed
