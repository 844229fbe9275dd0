#!/usr/bin/env python
# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Measure the speed and memory of hf_scratch against its peers: Markdown tables and benchmark.json.

python scripts/benchmark/benchmark.py [--data DIR] [--only train_gpt,growth] [--output_dir runs/benchmark]
python scripts/benchmark/benchmark.py --data DIR --write true

A ratio is the peer's median over ours: 1.4 means that the peer takes 1.4 times as long for the same work, or 1.4 times
as much memory. The start-up rows are seconds.

Peers have the same dimensions, weights, data, dtype and threads. They take turns with ours in one process, so other
load on the machine affects both. Memory is measured in a separate process for each: the peak of three steps, with
gradients and the optimiser's moments, above what was in use before the first step.
"""

import itertools
import os
import statistics
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from benchmark_tables import finish, format_measured
from cases import (
    BF16,
    SIZES,
    STOCK_CALL,
    BenchmarkArguments,
    Case,
    compare_memory,
    compare_training,
    compare_translation,
    generate_gpt,
    generate_gpt_article,
    import_time,
    load_time,
    run_alone,
    train_end_to_end,
)
from datasets import disable_progress_bars
from peers import GPT2, OURS
from report import Report
from turns import take_turns

from hf_scratch.errors import command, preparation
from hf_scratch.training.arguments import parse_arguments

# for each row: what is measured, and what makes its case, or returns None if something is missing here
TABLE: dict[str, tuple[str, Callable[[BenchmarkArguments], Case | None]]] = {
    "train_transformer": ("training step, encoder-decoder, fp32", partial(compare_training, "transformer", OURS)),
    "train_gpt": ("training step, GPT, fp32", partial(compare_training, "gpt", OURS)),
    "train_transformer_bf16": ("training step, encoder-decoder, bf16", partial(compare_training, "transformer", BF16)),
    "train_gpt_bf16": ("training step, GPT, bf16", partial(compare_training, "gpt", BF16)),
    "train_transformer_stock": (
        "encoder-decoder, called as by stock Trainer",
        partial(compare_training, "transformer", STOCK_CALL),
    ),
    "train_gpt_stock": ("GPT, called as by stock Trainer", partial(compare_training, "gpt", STOCK_CALL)),
    "memory_transformer": ("peak memory, encoder-decoder, fp32", partial(compare_memory, "transformer")),
    "memory_gpt": ("peak memory, GPT, fp32", partial(compare_memory, "gpt")),
    "train_end_to_end": ("Trainer, recipe multi30k_tiny, target tokens", train_end_to_end),
    "generate_gpt": ("200 tokens, greedy, batch 1", generate_gpt),
    "generate_gpt_article": ("200 tokens, greedy, batch 1", generate_gpt_article),
    "translate_marian": ("1,000 test sentences, 5 beams", compare_translation),
    "import_time": ("`import hf_scratch` itself", import_time),
    "load_time": ("`from_pretrained` of 10 MB", load_time),
}


def spread(measures: list[float], others: list[float]) -> float:
    """The interquartile range of the rounds' ratios, over their median; 0 for fewer than three rounds."""
    if len(measures) < 3:
        return 0.0
    ratios = [other / own for other, own in zip(others, measures, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return (high - low) / middle


def measure_row(name: str, args: BenchmarkArguments) -> list[dict[str, Any]]:
    """The row of the report; none if something is missing here."""
    torch.manual_seed(0)
    what, make_case = TABLE[name]
    load_before, case = os.getloadavg()[0], make_case(args)
    if case is None:
        return []
    take_turns(case.functions, case.warmups)
    seconds, outputs = take_turns(case.functions, min(args.rounds, case.rounds))
    measures = seconds if case.timed else outputs
    medians = {who: statistics.median(values) for who, values in measures.items()}
    ours, peer = [*case.functions, None][:2]
    row = {"name": name, "what": what, "ours": ours, "peer": peer, "unit": case.unit}
    row |= {
        "ratio": medians[peer] / medians[ours] if peer else None,
        "measures": measures,
        "medians": medians,
        "rounds": len(measures[ours]),
        "spread": spread(measures[ours], measures[peer]) if peer else 0.0,
        "load": [round(load, 1) for load in (load_before, os.getloadavg()[0])],
        "note": case.note(*(values[-1] for values in outputs.values())),
    }
    print(f"{name}: {medians}", file=sys.stderr, flush=True)
    return [row]


def measure_growth(args: BenchmarkArguments) -> list[dict[str, Any]]:
    """Measure seconds and peak memory of a two-layer GPT and of GPT-2, without dropout, each in its own process.

    Returns:
        The growth of the report.
    """
    points = [("length", length, 4096 // length, length, 256) for length in (128, 256, 512, 1024, 2048, 4096)]
    points += [("width", width, 4, 256, width) for width in (64, 128, 256, 512, 1024)]
    points += [("batch", rows, rows, 256, 256) for rows in (1, 2, 4, 8, 16, 32)]
    results = []
    for axis, value, rows, length, width in points:
        results.append({"axis": axis, "value": value, "rows": rows, "length": length, "width": width})
        sizes = {"width": width, "heads": max(width // 64, 1), "inner": 4 * width, "positions": length}
        size = replace(SIZES["gpt"], layers=2, dropout=0.0, **sizes)
        for mode, who in itertools.product(("training", "inference"), (OURS, GPT2)):
            seconds, mib = run_alone("gpt", who, size, rows, length, mode == "training", 4, args.threads)
            results[-1].setdefault(mode, {})[who] = {"seconds": seconds, "MiB": mib}
        print(f"growth: {axis} {value}", file=sys.stderr, flush=True)
    return results


@command
def main():
    with preparation():
        (args,), _ = parse_arguments(BenchmarkArguments)
        only = args.choose([*TABLE, "growth"])
    output_dir = Path(args.output_dir)
    output_dir.mkdir(parents=True, exist_ok=True)
    disable_progress_bars()
    report = Report(args.threads, "Multi30k" if args.data else "synthetic sentences about as long as Multi30k's")
    for name in TABLE:
        if name in only:
            report.figures["rows"] += measure_row(name, args)
            report.save(output_dir / "benchmark.json")  # so that a failure of a later row loses nothing
    report.figures["growth"] = measure_growth(args) if "growth" in only else []
    finish(report, args, "benchmark", format_measured)


if __name__ == "__main__":
    main()
