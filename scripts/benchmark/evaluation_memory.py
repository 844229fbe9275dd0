#!/usr/bin/env python
# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Measure the peak memory of evaluations, as a multiple of one tensor of all logits of a batch in float32.

python scripts/benchmark/evaluation_memory.py [--rows 32] [--length 512] [--vocabulary 16000]

The model is that of the recipe tinystories_full, with random weights. Memory counts above what was in use before, and
each large tensor is mapped by itself, so that what the C library's heap keeps does not count. It can add half as much.
"""

import contextlib
import ctypes
import gc
import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from datasets import Dataset
from training_cases import QUIET, ROOT, read_status
from transformers import TrainingArguments

from hf_scratch import ScratchGPTConfig, ScratchGPTForCausalLM
from hf_scratch.errors import command, preparation
from hf_scratch.evaluation.language_modeling import evaluate_language_model
from hf_scratch.recipes import read_recipe
from hf_scratch.tokenization import train_tokenizer
from hf_scratch.training.parsing import parse_arguments
from hf_scratch.training.trainers import LanguageModelTrainer

M_MMAP_THRESHOLD = -3  # of mallopt
RECIPE = ROOT / "scripts" / "recipes" / "tinystories_full.yaml"


@dataclass
class MemoryArguments:
    """The batch's sizes."""

    rows: int = field(default=32, metadata={"help": "Rows per batch."})
    length: int = field(default=512, metadata={"help": "Tokens per row."})
    vocabulary: int = field(default=16_000, metadata={"help": "Tokens in the vocabulary."})
    threads: int = field(default=1, metadata={"help": "CPU threads."})


def measure_peak(work: Callable[[int], object], rows: int) -> float:
    """Return the peak memory of `work(rows)` in MiB, above what was in use before."""
    work(1)  # loads the libraries' own pages, which are not part of the peak
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    before = read_status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # resets VmHWM, the peak
    work(rows)
    return read_status("VmHWM") - before


@command
def main():
    with preparation():
        (args,), _ = parse_arguments(MemoryArguments)
    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 2**20)
    torch.set_num_threads(args.threads)
    tokenizer = train_tokenizer(["ab"], "char", 10, args.length, show_progress=False)
    sizes = {"vocab_size": args.vocabulary, "max_position_embeddings": args.length}
    model = ScratchGPTForCausalLM(ScratchGPTConfig(**read_recipe(RECIPE)["config_overrides"], **sizes)).eval()
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(folder, per_device_eval_batch_size=args.rows, use_cpu=True, **QUIET)
        trainer = LanguageModelTrainer(model=model, args=arguments)

        def score(rows: int) -> None:
            texts = ["a" * (args.length - 2)] * rows  # with <s> and </s>, rows of `length` tokens
            evaluate_language_model(model, tokenizer, texts, args.rows)

        def validate(rows: int) -> None:
            ids = [[5] * args.length] * rows
            trainer.evaluate(Dataset.from_dict({"input_ids": ids, "labels": ids}))

        with contextlib.redirect_stdout(sys.stderr):  # standard output holds the report alone
            peaks = {"evaluate_language_model": measure_peak(score, args.rows)}
            peaks["Trainer.evaluate"] = measure_peak(validate, args.rows)
    logits = 4 * args.rows * args.length * args.vocabulary / 2**20
    report = {
        name: {"MiB": round(peak), "over_one_logits_tensor": round(peak / logits, 3)} for name, peak in peaks.items()
    }
    print(json.dumps({"logits": {"MiB": round(logits)}, **report}, indent=2))


if __name__ == "__main__":
    main()
