#!/usr/bin/env python
# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Print a language model's loss, perplexity and bits per byte on a test file.

python scripts/evaluate_language_model.py --model DIR --test_file F.jsonl
"""

import logging
from dataclasses import dataclass, field
from functools import partial

import hf_scratch_launcher  # noqa: F401  before torch, whose OpenMP it sets
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

import hf_scratch  # noqa: F401  registers the models
from hf_scratch.data.texts import take_texts
from hf_scratch.errors import command, preparation
from hf_scratch.evaluation.commands import EvaluationArguments, load_for_evaluation, report
from hf_scratch.evaluation.language_modeling import score_texts
from hf_scratch.tokenization import describe_unknown
from hf_scratch.training.arguments import SAMPLE_BY_METADATA, check_not_both, option
from hf_scratch.training.command_line import parse_arguments

logger = logging.getLogger("evaluate_language_model")


@dataclass(kw_only=True)
class LanguageModelEvaluationArguments(EvaluationArguments):
    """The options of evaluate_language_model.py."""

    sample_by: str | None = field(default=None, metadata=SAMPLE_BY_METADATA)
    text_column: str = option("text", "The column with the text.")
    block_size: int | None = option(None, "Tokens per window. Default: the model's longest.")
    prompt_column: str | None = option(
        None, "The column with prompts, which the texts answer: count the right answers."
    )
    mlm_probability: float | None = option(None, "For an encoder: mask this share of tokens and predict them.")
    batch_size: int = option(32, "Windows per batch.")

    def __post_init__(self):
        check_not_both(self, "mlm_probability", "prompt_column")


@command
@preparation()
def main():
    (args,), _ = parse_arguments(LanguageModelEvaluationArguments)
    columns = {"text_column": args.text_column, "prompt_column": args.prompt_column}
    take = partial(take_texts, name=args.test_file, **columns)
    auto_class = AutoModelForCausalLM if args.mlm_probability is None else AutoModelForMaskedLM
    rows, model, tokenizer = load_for_evaluation(args, auto_class, take)
    for text in describe_unknown(tokenizer, rows["text"], args.test_file):
        logger.warning(text)
    result = score_texts(model, tokenizer, rows, args.mlm_probability, args.batch_size, args.block_size)
    report(result, args.json)


if __name__ == "__main__":
    main()
