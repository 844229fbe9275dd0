# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""The training scripts' own arguments, and checks of values that several commands share."""

import math
from dataclasses import dataclass, field
from typing import Any

from transformers import PreTrainedTokenizerBase

from ..data.embedded import describe_embedded
from ..models.generation import MAX_LOG_LENGTH_FACTOR
from ..tokenization import KINDS, target_size

TASK_METADATA = {  # of the option `task` of an encoder-decoder's scripts
    "help": "What the pairs are; summaries are scored with ROUGE.",
    "choices": ["translation", "summarization"],
}
DTYPES = ("float32", "bfloat16", "float16")


def check_at_least(arguments: Any, smallest: float, *names: str) -> None:
    """Check that arguments are finite numbers, and not below a limit. None passes.

    Args:
        arguments: the object that has the arguments.
        smallest: the limit.
        names: the arguments' names.

    Raises:
        ValueError: naming the first argument that is not.
    """
    for name in names:
        value = getattr(arguments, name)
        if value is not None and not (value >= smallest and math.isfinite(value)):
            raise ValueError(f"`{name}` must be {smallest} or more, got {value}.")


def check_between(arguments: Any, *names: str) -> None:
    """Raise ValueError for the first of these arguments that is not above 0 and below 1. None passes."""
    for name in names:
        value = getattr(arguments, name)
        if value is not None and not 0 < value < 1:
            raise ValueError(f"`{name}` must be above 0 and below 1, got {value}.")


def check_length_penalty(arguments: Any, longest: int) -> None:
    """Raise ValueError unless `length_penalty` keeps the scores of `num_beams` beams within float32.

    Args:
        arguments: have both.
        longest: the longest output, in tokens.
    """
    penalty = arguments.length_penalty
    if arguments.num_beams > 1 and not abs(penalty) * math.log(longest) <= MAX_LOG_LENGTH_FACTOR:
        raise ValueError(f"`length_penalty` is {penalty}, too large for {longest} tokens. Usual are 0.6 to 2.")


def check_beams(num_beams: int, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise ValueError if there are more beams than the target has tokens."""
    if num_beams > target_size(tokenizer):
        raise ValueError(f"`num_beams` is {num_beams}, but there are only {target_size(tokenizer)} tokens.")


def check_masking_and_answers(arguments: Any, *not_of_encoders: str) -> None:
    """Check the options of masked language modelling and of questions with answers.

    Args:
        arguments: have `mlm_probability`, `prompt_column` and `answer_after`.
        not_of_encoders: further options that an encoder does not take.

    Raises:
        ValueError: a value is wrong, or two options do not go together.
    """
    check_between(arguments, "mlm_probability")
    names = ("prompt_column", "answer_after", *not_of_encoders)
    others = [name for name in names if getattr(arguments, name) not in (None, False)]
    if arguments.mlm_probability is not None and others:
        raise ValueError(f"`mlm_probability` and `{others[0]}` do not go together. Leave one of them out.")
    if arguments.answer_after == "":
        raise ValueError("`answer_after` must not be empty.")
    if arguments.answer_after is not None and arguments.prompt_column is not None:
        raise ValueError("`answer_after` and `prompt_column` both say where answers begin. Give one of them.")


@dataclass
class ModelArguments:
    """The model and the tokenizer to train with, new or loaded."""

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
        default=None, metadata={"help": "A model to start from, instead of a new one: a folder or Hub id."}
    )
    tokenizer_name: str | None = field(
        default=None, metadata={"help": "A tokenizer: a folder or Hub id. Default: the model's, or a new one."}
    )
    tokenizer_kind: str | None = field(
        default=None,
        metadata={
            "help": "Kind of the new tokenizer. For translation, separate and word have two vocabularies.",
            "choices": list(KINDS),
        },
    )
    vocab_size: int = field(
        default=8000, metadata={"help": "Tokens of the new tokenizer at most, in each of its vocabularies."}
    )
    min_frequency: int = field(
        default=1, metadata={"help": "A new word tokenizer knows words that occur at least this often."}
    )
    tokenizer_sample_mb: float = field(
        default=100.0,
        metadata={"help": "A new tokenizer is trained on texts of this many megabytes at most, evenly spaced."},
    )
    attn_implementation: str | None = field(
        default=None, metadata={"help": "eager, sdpa, flash_attention_2 or flex_attention. Default: sdpa."}
    )
    cache_dir: str | None = field(default=None, metadata={"help": "Folder for downloads."})

    def __post_init__(self):
        check_at_least(self, 1, "vocab_size", "min_frequency")
        check_at_least(self, 0.001, "tokenizer_sample_mb")
        if self.preset_hyperparameters is not None and self.preset is None:
            raise ValueError("`preset_hyperparameters` needs a `preset`.")


@dataclass
class DataArguments:
    """The data to train on, and the options of both training scripts."""

    dataset_name: str | None = field(
        default=None,
        metadata={"help": f"A Hub id, a folder with the layout of one, or an embedded set: {describe_embedded()}."},
    )
    dataset_config_name: str | None = field(default=None, metadata={"help": "The Hub dataset's configuration."})
    train_file: str | None = field(default=None, metadata={"help": "JSON lines to train on."})
    validation_file: str | None = field(default=None, metadata={"help": "JSON lines to validate on."})
    test_file: str | None = field(default=None, metadata={"help": "JSON lines to test on at the end."})
    max_train_samples: int | None = field(default=None, metadata={"help": "Train on at most this many rows."})
    max_eval_samples: int | None = field(default=None, metadata={"help": "Validate on at most this many rows."})
    max_predict_samples: int | None = field(default=None, metadata={"help": "Test on at most this many rows."})
    preprocessing_num_workers: int | None = field(
        default=None, metadata={"help": "Processes that tokenise. Default: all cores."}
    )
    streaming: bool = field(
        default=False,
        metadata={"help": "Read the training data while they are used, without a copy on the disk. Needs max_steps."},
    )
    shuffle_buffer_size: int = field(
        default=10_000,
        metadata={
            "help": "Rows of a stream that are shuffled together: rows further apart never meet. 0: rows and files "
            "keep their order."
        },
    )
    global_batch_size: int | None = field(
        default=None,
        metadata={
            "help": "Rows of an update, on all processes together; per_device_train_batch_size is then the most that "
            "a device can hold, and gradient_accumulation_steps follow."
        },
    )
    average_checkpoints: int = field(
        default=0,
        metadata={"help": "Average this many last checkpoints at the end; keep the average if its loss is lower."},
    )
    ema_decay: float | None = field(
        default=None,
        metadata={
            "help": "Keep an exponential moving average of the weights with this decay, e.g. 0.999; take it at the "
            "end if its loss is lower."
        },
    )
    early_stopping_patience: int | None = field(
        default=None,
        metadata={"help": "Stop after this many evaluations without improvement. Needs load_best_model_at_end."},
    )
    r_drop_alpha: float = field(
        default=0.0,
        metadata={"help": "Weight of R-Drop's divergence between two passes over each row (Liang et al. 2021 use 5)."},
    )
    teacher_models: list[str] = field(
        default_factory=list,
        metadata={"help": "Models whose mean prediction is learnt as well: folders or Hub ids, with this tokenizer."},
    )
    distillation_alpha: float = field(
        default=0.5, metadata={"help": "Share of the teachers' predictions in the loss; the labels have the rest."}
    )
    max_minutes: float | None = field(default=None, metadata={"help": "Stop training after this many minutes."})
    show_batch: bool = field(
        default=False, metadata={"help": "Print a training batch as the model sees it, and stop before training."}
    )

    def __post_init__(self):
        check_at_least(self, 1, "max_train_samples", "max_eval_samples", "max_predict_samples")
        check_at_least(self, 1, "preprocessing_num_workers", "early_stopping_patience", "global_batch_size")
        check_at_least(self, 0, "average_checkpoints", "r_drop_alpha", "shuffle_buffer_size")
        check_between(self, "ema_decay")
        if self.distillation_alpha != type(self).distillation_alpha and not self.teacher_models:
            raise ValueError(f"`distillation_alpha` is {self.distillation_alpha}, but there are no `teacher_models`.")


@dataclass
class TranslationArguments(DataArguments):
    """The options of train_translation.py."""

    task: str = field(default="translation", metadata=TASK_METADATA)
    source_lang: str | None = field(default=None, metadata={"help": "The source language's column, e.g. en."})
    target_lang: str | None = field(default=None, metadata={"help": "The target language's column, e.g. de."})
    max_source_length: int = field(default=128, metadata={"help": "Sources are cut to this many tokens."})
    max_target_length: int = field(default=128, metadata={"help": "Targets are cut to this many tokens."})
    max_tokens_per_update: int | None = field(
        default=None,
        metadata={
            "help": "Tokens of an update at most, on all processes together, counted on the pairs' longer side with "
            "padding. It replaces global_batch_size."
        },
    )
    max_tokens_per_batch: int | None = field(
        default=None,
        metadata={
            "help": "Tokens of a batch at most, on each device. Beside max_tokens_per_update, it is what a device can "
            "hold, and gradient_accumulation_steps follow."
        },
    )
    bpe_dropout: float = field(
        default=0.0,
        metadata={"help": "BPE-dropout: share of merges left out of the training text at random."},
    )
    num_beams: int = field(default=5, metadata={"help": "Beams for the final test; saved in the generation config."})
    length_penalty: float = field(
        default=1.0, metadata={"help": "Length penalty for beam search; saved in the generation config."}
    )

    def __post_init__(self):
        super().__post_init__()
        check_at_least(self, 2, "max_source_length", "max_target_length")  # a token, and the end token
        check_at_least(self, 1, "max_tokens_per_update", "max_tokens_per_batch", "num_beams")
        if self.global_batch_size is not None and self.max_tokens_per_update is not None:
            raise ValueError("`global_batch_size` and `max_tokens_per_update` both size an update. Give one of them.")
        if not 0 <= self.bpe_dropout < 1:
            raise ValueError(f"`bpe_dropout` must be 0 or more, and below 1, got {self.bpe_dropout}.")


@dataclass
class LanguageModelArguments(DataArguments):
    """The options of train_language_model.py."""

    text_column: str = field(default="text", metadata={"help": "The column with the text."})
    prompt_column: str | None = field(
        default=None,
        metadata={"help": "The column with prompts, which the texts answer. They have no loss; right answers count."},
    )
    block_size: int = field(default=256, metadata={"help": "Tokens per training row, and positions of a new model."})
    packing: bool = field(
        default=True,
        metadata={
            "help": "Put texts end to end into rows of block_size. If not, each text begins a row: only longer texts "
            "are cut, and rows are padded; see also train_sampling_strategy."
        },
    )
    attend_across_texts: bool = field(
        default=False, metadata={"help": "Let the texts in a row see each other, as in GPT-2's training."}
    )
    decay_all_parameters: bool = field(
        default=False, metadata={"help": "Apply weight decay to biases and LayerNorms too, as torch's AdamW does."}
    )
    decay_embeddings: bool = field(
        default=True, metadata={"help": "Apply weight decay to token and position embeddings."}
    )
    mlm_probability: float | None = field(
        default=None,
        metadata={"help": "Mask this share of tokens and predict them; needs is_causal=false. BERT masks 0.15."},
    )
    answer_after: str | None = field(
        default=None,
        metadata={"help": "What separates question and answer: report the share of right answers."},
    )
    sample_prompt: str | None = field(
        default=None, metadata={"help": "Print a continuation of this text before and after training."}
    )

    def __post_init__(self):
        super().__post_init__()
        check_at_least(self, 2, "block_size")
        check_masking_and_answers(self, "sample_prompt", "attend_across_texts")
        if self.attend_across_texts and not self.packing:
            raise ValueError("`attend_across_texts` needs `packing`: without it, a row holds one text.")
