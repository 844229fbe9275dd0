#!/usr/bin/env python
# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Translate a test file and print BLEU and chrF.

python scripts/evaluate_translation.py --model DIR --test_file F.jsonl --source_lang en --target_lang de --num_beams 5
"""

import json
import logging
from dataclasses import dataclass, field
from pathlib import Path

from transformers import AutoModelForSeq2SeqLM

import hf_scratch  # noqa: F401  registers the models
from hf_scratch.data.loading import load_splits
from hf_scratch.data.pairs import check_lengths, count_tokens, take_pairs
from hf_scratch.errors import command, preparation
from hf_scratch.evaluation.arguments import check_evaluation
from hf_scratch.evaluation.translation import evaluate_translation, write_lines
from hf_scratch.loading import check_fits, check_json_files, load_checkpoint, load_tokenizer
from hf_scratch.training.arguments import check_finite, check_length_penalty
from hf_scratch.training.parsing import parse_arguments

logger = logging.getLogger("evaluate_translation")


@dataclass
class EvaluationArguments:
    """What to evaluate, and how."""

    model: str = field(metadata={"help": "A folder or Hub id."})
    test_file: str = field(metadata={"help": 'JSON lines: {"en": ..., "de": ...} or {"translation": {...}}.'})
    source_lang: str = field(metadata={"help": "The source language's column."})
    target_lang: str = field(metadata={"help": "The target language's column."})
    num_beams: int = field(default=5, metadata={"help": "Beams; 1 is greedy."})
    length_penalty: float = field(default=1.0, metadata={"help": "Beam search's: above 0 favours long translations."})
    batch_size: int = field(default=64, metadata={"help": "Sentences at a time."})
    max_samples: int | None = field(default=None, metadata={"help": "Evaluate on so many rows only."})
    device: str = field(default="cpu", metadata={"help": "cpu, cuda, ..."})
    dtype: str = field(default="float32", metadata={"help": "float32, bfloat16 or float16."})
    output_file: str | None = field(default=None, metadata={"help": "Write the translations here, one a line."})
    json: str | None = field(default=None, metadata={"help": "Write the figures here."})


def warn_of_other_languages(config, source_lang: str, target_lang: str) -> None:
    """Log a warning where the model was trained on another pair, or source and target are one language."""
    trained = (getattr(config, "source_lang", None), getattr(config, "target_lang", None))
    if None not in trained and trained != (source_lang, target_lang):
        logger.warning(f"The model translates {'-'.join(trained)}, but is evaluated as {source_lang}-{target_lang}.")
    if source_lang == target_lang:
        logger.warning(f"`source_lang` and `target_lang` are both {source_lang!r}.")


@command
def main():
    with preparation():
        (args,), _ = parse_arguments(EvaluationArguments)
        check_evaluation(args, "num_beams")
        check_finite(args, "length_penalty")
        rows = load_splits(test_file=args.test_file)["test"]
        rows = take_pairs(rows, args.source_lang, args.target_lang, args.test_file)
        if args.max_samples is not None:
            rows = rows.select(range(min(args.max_samples, len(rows))))
        check_json_files(args.model)
        model = load_checkpoint(AutoModelForSeq2SeqLM, args.model, dtype=args.dtype).to(args.device).eval()
        tokenizer = load_tokenizer(args.model)
        check_fits(tokenizer, model.config)
        if args.num_beams > len(tokenizer):
            raise ValueError(f"`num_beams` is {args.num_beams}, but there are only {len(tokenizer)} tokens.")
        warn_of_other_languages(model.config, args.source_lang, args.target_lang)
        longest = getattr(model.config, "max_position_embeddings", None)
        lengths = count_tokens(rows["source"], tokenizer)
        check_lengths(lengths, longest, f"sources of {args.test_file}", "Shorten or remove them.")
        check_length_penalty(args, model.generation_config.max_length or longest or 1)
    result, hypotheses = evaluate_translation(
        model,
        tokenizer,
        rows["source"],
        rows["target"],
        args.batch_size,
        args.target_lang,
        num_beams=args.num_beams,
        length_penalty=args.length_penalty,
    )
    print(json.dumps(result, indent=2), flush=True)  # before the files: their disk may be full
    if args.output_file:
        write_lines(Path(args.output_file), hypotheses)
    if args.json:
        Path(args.json).write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
