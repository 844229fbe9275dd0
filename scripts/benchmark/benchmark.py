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
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from benchmark_tables import finish, format_measured
from cases import (
    ARTICLE,
    BF16,
    SIZES,
    STOCK_CALL,
    BenchmarkArguments,
    Case,
    check_tokens,
    compare_loss_curves,
    compare_memory,
    compare_training,
    compare_translation,
    count_equal,
    generate_gpt,
    generate_gpt_article,
    import_time,
    load_time,
    run_alone,
    train_end_to_end,
)
from datasets import disable_progress_bars
from peers import GPT2, MARIAN, OURS
from report import Report
from turns import take_turns

from hf_scratch.convert import to_gpt2, to_marian
from hf_scratch.errors import command, preparation
from hf_scratch.training.parsing import parse_arguments

LARGEST_SPREAD = 0.05  # of a ratio, at which no further rounds are needed


@dataclass
class Row:
    """A row of the table: `ours` against `peer`, two functions of a case.

    Args:
        name: the row's name for `--only`.
        what: the work that is measured.
        case: makes the functions, or returns None if something is missing here.
        peer: the other function; None if the measure itself is the figure.
        ours: our function.
        note: makes a remark from what the two functions returned last.
    """

    name: str
    what: str
    case: Callable[[BenchmarkArguments], Case | None]
    peer: str | None
    ours: str = OURS
    note: Callable[[Any, Any], str] = lambda *_: ""


# fmt: off
TRAIN_TRANSFORMER = partial(compare_training, "transformer", to_marian, MARIAN)
TRAIN_GPT = partial(compare_training, "gpt", to_gpt2, GPT2)
TABLE = [
    Row("train_transformer", "training step, encoder-decoder, fp32", TRAIN_TRANSFORMER, MARIAN),
    Row("train_gpt", "training step, GPT, fp32", TRAIN_GPT, GPT2),
    Row("train_transformer_bf16", "training step, encoder-decoder, bf16", TRAIN_TRANSFORMER, OURS, BF16,
        partial(compare_loss_curves, "transformer")),
    Row("train_gpt_bf16", "training step, GPT, bf16", TRAIN_GPT, OURS, BF16, partial(compare_loss_curves, "gpt")),
    Row("train_transformer_stock", "encoder-decoder, called as by stock Trainer", TRAIN_TRANSFORMER, MARIAN,
        STOCK_CALL),
    Row("train_gpt_stock", "GPT, called as by stock Trainer", TRAIN_GPT, GPT2, STOCK_CALL),
    Row("memory_transformer", "peak memory, encoder-decoder, fp32", partial(compare_memory, "transformer", MARIAN),
        MARIAN),
    Row("memory_gpt", "peak memory, GPT, fp32", partial(compare_memory, "gpt", GPT2), GPT2),
    Row("train_end_to_end", "Trainer, recipe multi30k_tiny, target tokens", train_end_to_end, MARIAN),
    Row("generate_gpt", "200 tokens, greedy, batch 1", generate_gpt, GPT2, note=check_tokens),
    Row("generate_gpt_article", "200 tokens, greedy, batch 1", generate_gpt_article, ARTICLE, note=check_tokens),
    Row("translate_marian", "1,000 test sentences, 5 beams", compare_translation, MARIAN, note=count_equal),
    Row("import_time", "`import hf_scratch` itself", import_time, None),
    Row("load_time", "`from_pretrained` of 10 MB", load_time, None),
]
# fmt: on


def measure(case: Case, names: list[str], rounds: int) -> tuple[dict[str, list[float]], dict[str, Any]]:
    """Call functions of a case in turns, until their ratios spread little or three times as many rounds are done.

    Returns:
        For each name its measures, and its last output.
    """
    functions = {name: case.functions[name] for name in names}
    take_turns(functions, case.warmups)
    measures, fewest, done = {name: [] for name in names}, min(rounds, case.rounds), 0
    while done < 3 * fewest:
        found = take_turns(functions, 1 if done else fewest)
        for name, values in found[0 if case.timed else 1].items():
            measures[name] += values
        done = len(measures[names[0]])
        if all(spread(values, measures[names[0]]) < LARGEST_SPREAD for values in measures.values()):
            break
    return measures, {name: values[-1] for name, values in found[1].items()}


def spread(measures: list[float], others: list[float]) -> float:
    """The interquartile range of the rounds' ratios, over their median; 0 for fewer than three rounds."""
    if len(measures) < 3:
        return 0.0
    ratios = [other / own for other, own in zip(others, measures, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return (high - low) / middle


def fill_rows(rows: list[Row], args: BenchmarkArguments) -> list[dict]:
    """Measure the rows of one case.

    Returns:
        The rows of the report; none if something is missing here.
    """
    torch.manual_seed(0)
    case, load_before = rows[0].case(args), os.getloadavg()[0]
    if case is None:
        return []
    wanted = {name for row in rows for name in (row.ours, row.peer)}
    measures, outputs = measure(case, [name for name in case.functions if name in wanted], args.rounds)
    results = []
    for row in rows:
        own = {name: measures[name] for name in (row.ours, row.peer) if name}
        medians = {name: statistics.median(values) for name, values in own.items()}
        result = {name: getattr(row, name) for name in ("name", "what", "ours", "peer")}
        result |= {
            "unit": case.unit,
            "ratio": medians[row.peer] / medians[row.ours] if row.peer else None,
            "measures": own,
            "medians": medians,
            "rounds": len(measures[row.ours]),
            "spread": spread(measures[row.ours], measures[row.peer]) if row.peer else 0.0,
            "load": [round(load, 1) for load in (load_before, os.getloadavg()[0])],
            "note": row.note(outputs[row.ours], outputs.get(row.peer)),
        }
        print(f"{row.name}: {medians}", file=sys.stderr, flush=True)
        results.append(result)
    return results


def measure_growth(args: BenchmarkArguments) -> list[dict]:
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
        names = [*(row.name for row in TABLE), "growth"]
        only = args.choose(names)
    Path(args.output_dir).mkdir(parents=True, exist_ok=True)
    disable_progress_bars()
    report = Report(args.threads, "Multi30k" if args.data else "synthetic sentences about as long as Multi30k's")
    figures, rows = report.figures, [row for row in TABLE if row.name in only]
    for case in dict.fromkeys(row.case for row in rows):
        figures["rows"] += fill_rows([row for row in rows if row.case is case], args)
        figures["rows"].sort(key=lambda result: names.index(result["name"]))
        report.save(Path(args.output_dir, "benchmark.json"))  # so that a failure of a later case loses nothing
    figures["growth"] = measure_growth(args) if "growth" in only else []
    finish(report, args, "benchmark", format_measured)


if __name__ == "__main__":
    main()
