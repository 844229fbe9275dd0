#!/usr/bin/env python
# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Print a language model's loss, perplexity and bits per byte on a test file.

python scripts/evaluate_language_model.py --model DIR --test_file F.jsonl
"""

import json
from dataclasses import dataclass, field
from pathlib import Path

from transformers import AutoModelForCausalLM

import hf_scratch  # noqa: F401  registers the models
from hf_scratch.data.loading import load_splits
from hf_scratch.data.texts import take_texts
from hf_scratch.errors import command, preparation
from hf_scratch.evaluation.arguments import check_evaluation
from hf_scratch.evaluation.language_modeling import (
    check_answers,
    choose_windows,
    evaluate_answers,
    evaluate_language_model,
)
from hf_scratch.loading import check_fits, check_json_files, load_checkpoint, load_tokenizer
from hf_scratch.tokenization import report_unknown
from hf_scratch.training.parsing import parse_arguments


@dataclass
class EvaluationArguments:
    """What to evaluate, and how."""

    model: str = field(metadata={"help": "A folder or Hub id."})
    test_file: str = field(metadata={"help": 'JSON lines: {"text": ...}.'})
    text_column: str = field(default="text", metadata={"help": "The column with the text."})
    block_size: int | None = field(default=None, metadata={"help": "Tokens at a time. Default: the model's longest."})
    stride: int | None = field(default=None, metadata={"help": "Of the windows. Default: half of block_size."})
    answer_after: str | None = field(
        default=None, metadata={"help": "Texts are a question, this and an answer: count the right answers."}
    )
    batch_size: int = field(default=32, metadata={"help": "Windows at a time."})
    max_samples: int | None = field(default=None, metadata={"help": "Evaluate on so many rows only."})
    device: str = field(default="cpu", metadata={"help": "cpu, cuda, ..."})
    dtype: str = field(default="float32", metadata={"help": "float32, bfloat16 or float16."})
    json: str | None = field(default=None, metadata={"help": "Write the figures here."})


@command
def main():
    with preparation():
        (args,), _ = parse_arguments(EvaluationArguments)
        check_evaluation(args, "block_size", "stride")
        rows = take_texts(load_splits(test_file=args.test_file)["test"], args.text_column, args.test_file)
        if args.max_samples is not None:
            rows = rows.select(range(min(args.max_samples, len(rows))))
        check_json_files(args.model)
        model = load_checkpoint(AutoModelForCausalLM, args.model, dtype=args.dtype).to(args.device)
        tokenizer = load_tokenizer(args.model)
        check_fits(tokenizer, model.config)
        choose_windows(model.config, args.block_size, args.stride)
        if args.answer_after is not None:
            check_answers(rows["text"], args.answer_after, args.test_file)
    report_unknown(tokenizer, rows["text"], args.test_file)
    result = evaluate_language_model(model, tokenizer, rows["text"], args.batch_size, args.block_size, args.stride)
    if args.answer_after is not None:
        result |= evaluate_answers(model, tokenizer, rows["text"], args.answer_after)
    print(json.dumps(result, indent=2), flush=True)  # before the files: their disk may be full
    if args.json:
        Path(args.json).write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
