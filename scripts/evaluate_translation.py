#!/usr/bin/env python
# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Translate a test file and print BLEU and chrF, or summarise it and print ROUGE.

python scripts/evaluate_translation.py --model DIR --test_file F.jsonl --source_lang en --target_lang de --num_beams 5
"""

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import hf_scratch_launcher  # noqa: F401  before torch, whose OpenMP it sets
from accelerate import PartialState
from transformers import AutoModelForSeq2SeqLM

import hf_scratch  # noqa: F401  registers the models
from hf_scratch.data.pairs import take_pairs
from hf_scratch.errors import command, preparation
from hf_scratch.evaluation.commands import EvaluationArguments, load_for_evaluation, report
from hf_scratch.evaluation.translation import evaluate_translation, write_lines
from hf_scratch.training.arguments import TASK_METADATA, option
from hf_scratch.training.command_line import parse_arguments


@dataclass(kw_only=True)
class TranslationEvaluationArguments(EvaluationArguments):
    """The options of evaluate_translation.py."""

    source_lang: str = field(metadata={"help": "The source language's column."})
    target_lang: str = field(metadata={"help": "The target language's column."})
    task: str = field(default="translation", metadata=TASK_METADATA)
    num_beams: int = option(5, "Beams; 1 is greedy.")
    length_penalty: float = option(1.0, "Length penalty for beam search; above 0 favours long translations.")
    batch_size: int = option(64, "Sentences per batch.")
    output_file: str | None = option(None, "File for the translations, one per line.")


@command
@preparation()
def main():
    (args,), _ = parse_arguments(TranslationEvaluationArguments)
    take = partial(take_pairs, source_lang=args.source_lang, target_lang=args.target_lang, name=args.test_file)
    rows, model, tokenizer = load_for_evaluation(args, AutoModelForSeq2SeqLM, take, args.output_file)
    scores, translations = evaluate_translation(
        model,
        tokenizer,
        rows["source"],
        rows["target"],
        args.batch_size,
        args.target_lang,
        args.task,
        num_beams=args.num_beams,
        length_penalty=args.length_penalty,
    )
    report(scores, args.json)
    if args.output_file is not None and PartialState().is_main_process:
        write_lines(Path(args.output_file), translations)


if __name__ == "__main__":
    main()
