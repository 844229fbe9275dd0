# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""The commands' arguments: dataclasses, which `command_line` fills from a recipe and flags."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from transformers import TrainingArguments

from ..data.embedded import describe_embedded
from ..tokenization import KINDS

TASK_METADATA = {  # of the option `task` of an encoder-decoder's scripts
    "help": "What the pairs are; summaries are scored with ROUGE.",
    "choices": ["translation", "summarization"],
}
SAMPLE_BY_METADATA = {
    "help": "How to split a plain-text file into texts. Blank lines separate paragraphs. Default: line.",
    "choices": ["line", "paragraph", "document"],
}
DTYPES = ("float32", "bfloat16", "float16")
DEFAULT_MINUTES = 20.0  # of a training whose length is not given


def option(default: Any, description: str, **metadata: Any) -> Any:
    """Make the field of an option of the command line. `metadata`: arguments of argparse's `add_argument`."""
    return field(default=default, metadata={"help": description, **metadata})


def check_not_both(arguments: Any, name: str, *others: str) -> None:
    """Raise ValueError if an argument is given beside one of the others: one of the two would be ignored."""
    for other in others:
        if getattr(arguments, name) and getattr(arguments, other):
            raise ValueError(f"`{name}` and `{other}` do not go together. Leave one of them out.")


@dataclass
class ModelArguments:
    """The model and the tokenizer to train with, new or loaded."""

    preset: str | None = option(None, "The name of an article's model in hf_scratch/convert/presets.py.")
    preset_hyperparameters: dict[str, Any] | str | None = option(
        None, "The arguments of the article's own constructor: a=1,b=2 or JSON."
    )
    config_overrides: dict[str, Any] | str | None = option(
        None, "Fields of the model's config: a=1,b=2 or JSON. They override the preset's and the recipe's."
    )
    model_name_or_path: str | None = option(None, "A model to start from, instead of a new one: a folder or Hub id.")
    tokenizer_name: str | None = option(None, "A tokenizer: a folder or Hub id. Default: the model's, or a new one.")
    tokenizer_kind: str | None = option(
        None,
        "Kind of the new tokenizer. For translation, separate and word have two vocabularies.",
        choices=list(KINDS),
    )
    vocab_size: int = option(8000, "Tokens of the new tokenizer at most, in each of its vocabularies.")
    min_frequency: int = option(1, "Minimum frequency of a word in a new word tokenizer.")
    tokenizer_sample_mb: float = option(
        100.0, "A new tokenizer is trained on texts of this many megabytes at most, evenly spaced."
    )
    pad_vocab_to_multiple_of: int | None = option(
        None,
        "Round the number of a new model's embeddings up to a multiple of this, e.g. 64 on a GPU.",
    )
    attn_implementation: str | None = option(
        None,
        "eager, sdpa, flex_attention or, of a GPT, flash_attention_2. Default: sdpa; in half precision on a GPU, "
        "flex_attention for packed texts.",
    )
    cache_dir: str | None = option(None, "Folder for downloads.")


@dataclass
class DataArguments:
    """The data to train on, and the options of both training scripts."""

    dataset_name: str | None = option(
        None, f"A Hub id, a folder with the layout of one, or an embedded set: {describe_embedded()}."
    )
    dataset_config_name: str | None = option(None, "The Hub dataset's configuration.")
    train_file: str | None = option(None, "A file to train on: JSON lines, CSV, TSV, plain text (.txt) or Parquet.")
    validation_file: str | None = option(None, "A file to validate on.")
    test_file: str | None = option(None, "A file to test on at the end.")
    sample_by: str | None = field(default=None, metadata=SAMPLE_BY_METADATA)
    max_train_samples: int | None = option(None, "Train on at most this many rows.")
    max_eval_samples: int | None = option(None, "Validate on at most this many rows.")
    max_predict_samples: int | None = option(None, "Use at most this many test rows.")
    preprocessing_num_workers: int | None = option(None, "Processes that tokenise. Default: all cores.")
    streaming: bool = option(False, "Stream the training data, without a copy on disk. Needs max_steps.")
    shuffle_buffer_size: int = option(
        10_000,
        "Shuffle a stream within a buffer of this many rows. 0: neither rows nor files are shuffled.",
    )
    global_batch_size: int | None = option(
        None,
        "Rows of a step over all processes. per_device_train_batch_size then only limits the batch on a device, and "
        "gradient_accumulation_steps is computed.",
    )
    average_checkpoints: int = option(
        0, "Average this many last checkpoints at the end; keep the average if its loss is lower."
    )
    early_stopping_patience: int | None = option(
        None, "Stop after this many evaluations without improvement. Needs load_best_model_at_end."
    )
    r_drop_alpha: float = option(
        0.0, "Weight of R-Drop's divergence between two passes over each row (Liang et al. 2021 use 5)."
    )
    teacher_models: list[str] = field(
        default_factory=list,
        metadata={"help": "Teachers for distillation: folders or Hub ids, with the trained model's tokenizer."},
    )
    distillation_alpha: float = option(
        0.5, "Share of the teachers' predictions in the loss; the labels have the rest."
    )
    muon: bool = option(False, "Train the layers' matrices with Muon (Jordan et al. 2024), and the rest with AdamW.")
    budget_minutes: float | None = option(
        None,
        "Fit steps, warm-up, a cosine schedule, evaluations and final scores into this time. The record has the "
        f"plain flags that were chosen, which repeat the training. Default, without max_steps and num_train_epochs: "
        f"{DEFAULT_MINUTES:g}.",
    )
    license: str | None = option(
        None, "The licence of the trained weights, for their card: e.g. apache-2.0. Default: not stated."
    )
    max_minutes: float | None = option(None, "Stop training after this many minutes, with a checkpoint.")


@dataclass
class TranslationArguments(DataArguments):
    """The options of train_translation.py."""

    task: str = field(default="translation", metadata=TASK_METADATA)
    source_lang: str | None = option(None, "The source language's column, e.g. en.")
    target_lang: str | None = option(None, "The target language's column, e.g. de.")
    max_source_length: int = option(128, "Sources are cut to this many tokens.")
    max_target_length: int = option(128, "Targets are cut to this many tokens.")
    max_tokens_per_update: int | None = option(
        None,
        "Tokens of a step at most, on all processes together, counted on the pairs' longer side with padding. It "
        "replaces global_batch_size.",
    )
    max_tokens_per_batch: int | None = option(
        None,
        "Tokens of a batch at most, on each device. With max_tokens_per_update, gradient_accumulation_steps is "
        "computed from both.",
    )
    pad_to_multiple_of: int | None = option(
        None, "Pad both sides of a batch to a multiple of this, e.g. 8 on a GPU: batches then have few shapes."
    )
    num_beams: int = option(5, "Beams for the final test; saved in the generation config.")
    length_penalty: float = option(1.0, "Length penalty for beam search; saved in the generation config.")

    def __post_init__(self):
        check_not_both(self, "global_batch_size", "max_tokens_per_update")
        if self.source_lang is not None and self.source_lang == self.target_lang:
            raise ValueError(f"`source_lang` and `target_lang` are both {self.source_lang!r}.")


@dataclass
class LanguageModelArguments(DataArguments):
    """The options of train_language_model.py."""

    text_column: str = option("text", "The column with the text.")
    prompt_column: str | None = option(
        None,
        "The column with prompts. The loss is that of the answers alone, but at the end that of the whole texts; the "
        "accuracy is that of greedy answers.",
    )
    block_size: int = option(256, "Tokens per training row, and positions of a new model.")
    packing: bool = option(
        True,
        "Put texts end to end into rows of block_size. If false, each row has one text: longer texts are split, "
        "shorter ones padded; see also train_sampling_strategy.",
    )
    attend_across_texts: bool = option(
        False, "Let tokens attend to earlier texts in the same row, as in GPT-2's training."
    )
    decay_all_parameters: bool = option(
        False, "Apply weight decay to biases and LayerNorms too, as torch's AdamW does."
    )
    decay_embeddings: bool = option(True, "Apply weight decay to token and position embeddings.")
    mlm_probability: float | None = option(
        None, "Mask this share of tokens and predict them; needs is_causal=false. BERT masks 0.15."
    )
    sample_prompt: str | None = option(None, "Print a continuation of this text before and after training.")

    def __post_init__(self):
        check_not_both(self, "mlm_probability", "prompt_column", "sample_prompt", "attend_across_texts")


def check_validation_data(args: TrainingArguments, splits: Collection[str], metrics: Sequence[str] = ()) -> None:
    """Check, before data are prepared, that evaluations have data and the metric that selects the best.

    `metrics` are an evaluation's metrics besides the loss.

    Raises:
        ValueError: there is no validation data, or `metric_for_best_model` is no metric.
    """
    if args.eval_strategy == "no":
        return
    if "validation" not in splits:
        raise ValueError(
            f"There is no validation data for `eval_strategy`: the splits are {', '.join(splits)}. Give "
            "`--validation_file`, or set `--eval_strategy no`."
        )
    best = args.metric_for_best_model
    if best is not None and best.removeprefix("eval_") not in ("loss", *metrics):
        raise ValueError(
            f"`metric_for_best_model` is {best!r}, but the metrics are {', '.join(('loss', *metrics))}."
            " Others need `--predict_with_generate true`."
        )
