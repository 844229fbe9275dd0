#!/usr/bin/env python
# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Translate a test file and print BLEU and chrF.

python scripts/evaluate_translation.py --model DIR --test_file F.jsonl --source_lang en --target_lang de --num_beams 5
"""

import json
from dataclasses import dataclass, field
from pathlib import Path

from transformers import AutoModelForSeq2SeqLM

import hf_scratch  # noqa: F401  registers the models
from hf_scratch.arguments import parse_arguments
from hf_scratch.checkpoints import load_checkpoint
from hf_scratch.data import load_splits, take_pairs
from hf_scratch.errors import command, preparation
from hf_scratch.evaluation import evaluate_translation, write_lines
from hf_scratch.tokenization import check_fits, load_tokenizer


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


@command
def main():
    with preparation():
        (args,), _ = parse_arguments(EvaluationArguments)
        rows = load_splits(test_file=args.test_file)["test"]
        rows = take_pairs(rows, args.source_lang, args.target_lang, args.test_file)
        if args.max_samples is not None:
            rows = rows.select(range(min(args.max_samples, len(rows))))
        model = load_checkpoint(AutoModelForSeq2SeqLM, args.model, dtype=args.dtype).to(args.device).eval()
        tokenizer = load_tokenizer(args.model)
        check_fits(tokenizer, model.config)
    result, hypotheses = evaluate_translation(
        model,
        tokenizer,
        rows["source"],
        rows["target"],
        args.batch_size,
        num_beams=args.num_beams,
        length_penalty=args.length_penalty,
    )
    if args.output_file:
        write_lines(Path(args.output_file), hypotheses)
    if args.json:
        Path(args.json).write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
