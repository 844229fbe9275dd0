#!/usr/bin/env python
# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Measure the speed and memory of hf_scratch against its peers: Markdown tables, benchmark.json and pictures.

python scripts/benchmark/benchmark.py [--data DIR] [--only train_gpt,growth] [--output_dir runs/benchmark]
python scripts/benchmark/benchmark.py --data DIR --write true

A ratio is the peer's median over ours: 1.4 means that the peer takes 1.4 times as long for the same work. The rows
with matrix products show which share of our step its matrix products alone would take. Rows whose target says "<" are
better when lower: memory is ours over the peer's, and the start-up rows are seconds.

Peers have the same dimensions, weights, data, dtype and threads. They take turns with ours in one process, so other
load on the machine affects both. Memory is measured in a separate process for each: the peak of three steps, with
gradients and the optimiser's moments, above what was in use before the first step.
"""

import itertools
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from datasets import disable_progress_bars
from generation_cases import (
    check_scores,
    check_tokens,
    compare_translation,
    compare_translation_options,
    count_equal,
    generate_gpt,
    generate_gpt_article,
    generate_gpt_options,
    import_seconds,
    import_time,
    load_time,
)
from hf_scratch.models.kernels import describe_kernels
from machine import read_machine
from plots import plot_growth, plot_ratios
from tables import RESULTS, describe_machine, file_name, format_growth, format_rows, update_readmes
from training_cases import (
    ARTICLE,
    CTRANSLATE2,
    GPT2,
    LENGTH,
    LONGEST,
    MARIAN,
    OURS,
    OURS_BF16,
    OURS_STOCK,
    PRODUCTS,
    ROWS,
    TEXTS,
    BenchmarkArguments,
    Case,
    compare_loss_curves,
    compare_memory,
    run_alone,
    train_end_to_end,
    train_gpt,
    train_transformer,
)

from hf_scratch.errors import UserError, command, preparation
from hf_scratch.training.parsing import parse_arguments


@dataclass
class Row:
    """A row of the table: `ours` against `peer`, two functions of a case.

    Args:
        name: the row's name for `--only`.
        what: the work that is measured.
        case: makes the functions.
        peer: the other function; None if the measure itself is the figure.
        target: the ratio to reach.
        ours: our function.
        at_most: the target is an upper limit, and the ratio is ours over the peer's.
        note: makes a remark from what the two functions returned last.
    """

    name: str
    what: str
    case: Callable[[BenchmarkArguments], Case]
    peer: str | None
    target: float
    ours: str = OURS
    at_most: bool = False
    note: Callable[[Any, Any], str] = lambda *_: ""


MEMORY_TRANSFORMER = partial(compare_memory, "transformer", "marian", MARIAN, ROWS, LONGEST)
MEMORY_GPT = partial(compare_memory, "gpt", "gpt2", GPT2, TEXTS, LENGTH)
# fmt: off
TABLE = [
    Row("train_transformer", "training step, encoder-decoder, fp32", train_transformer, MARIAN, 1.5),
    Row("train_gpt", "training step, GPT, fp32", train_gpt, GPT2, 1.4),
    Row("train_transformer_bf16", "training step, encoder-decoder, bf16", train_transformer, OURS, 1.5, OURS_BF16,
        note=partial(compare_loss_curves, "transformer", ROWS // 4, LONGEST)),
    Row("train_gpt_bf16", "training step, GPT, bf16", train_gpt, OURS, 1.5, OURS_BF16,
        note=partial(compare_loss_curves, "gpt", TEXTS // 4, LENGTH)),
    Row("train_transformer_stock", "encoder-decoder, called as by stock Trainer", train_transformer, MARIAN, 1.4,
        OURS_STOCK),
    Row("train_gpt_stock", "GPT, called as by stock Trainer", train_gpt, GPT2, 1.3, OURS_STOCK),
    Row("memory_transformer", "peak memory, encoder-decoder, fp32", MEMORY_TRANSFORMER, MARIAN, 0.5, at_most=True),
    Row("memory_gpt", "peak memory, GPT, fp32", MEMORY_GPT, GPT2, 0.5, at_most=True),
    Row("train_end_to_end", "Trainer, recipe multi30k_tiny, target tokens", train_end_to_end, MARIAN, 2.0),
    Row("generate_gpt", "200 tokens, greedy, batch 1", generate_gpt, GPT2, 2.5, note=check_tokens),
    Row("generate_gpt_options", "the same with three processors, scores returned", generate_gpt_options, GPT2, 2.0,
        note=check_scores),
    Row("generate_gpt_article", "200 tokens, greedy, batch 1", generate_gpt_article, ARTICLE, 6.0, note=check_tokens),
    Row("translate_marian", "1,000 test sentences, 5 beams", compare_translation, MARIAN, 4.0, note=count_equal),
    Row("translate_ctranslate2", "1,000 test sentences, 5 beams", compare_translation, CTRANSLATE2, 0.8,
        note=count_equal),
    Row("translate_options", "256 test sentences, 5 beams, two processors", compare_translation_options, MARIAN, 2.5,
        note=count_equal),
    Row("matmul_transformer", "encoder-decoder's step, fp32, its limit", train_transformer, PRODUCTS, 0.7),
    Row("matmul_gpt", "GPT's step, fp32, its limit", train_gpt, PRODUCTS, 0.7),
    Row("import_time", "`import hf_scratch` itself, seconds", import_time, None, 0.3, at_most=True,
        note=lambda *_: f"{import_seconds():.1f} s with the modules of transformers that it imports"),
    Row("load_time", "`from_pretrained` of 10 MB, seconds", load_time, None, 0.2, at_most=True),
]
# fmt: on


LARGEST_SPREAD = 0.05  # of a ratio, at which no further rounds are needed


def measure(case: Case, names: list[str], rounds: int) -> tuple[dict[str, list[float]], dict[str, Any]]:
    """Call functions of a case in turns, until their ratios spread little or three times as many rounds are done.

    Args:
        case: the case.
        names: which of its functions.
        rounds: how often to call each at first.

    Returns:
        For each name its measures, and its last output.
    """
    for name in names * case.warmups:
        case.functions[name]()
    measures, outputs = {name: [] for name in names}, {}
    fewest = min(rounds, case.rounds)
    for number in range(3 * fewest):
        if number >= fewest and all(spread(measures[name], measures[names[0]]) < LARGEST_SPREAD for name in names):
            break
        for name in names:
            start = time.perf_counter()
            outputs[name] = case.functions[name]()
            seconds = time.perf_counter() - start
            measures[name].append(seconds if case.timed else outputs[name])
    return measures, outputs


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
        The rows of the report.
    """
    torch.manual_seed(0)
    case, load_before = rows[0].case(args), os.getloadavg()[0]
    wanted = {name for row in rows for name in (row.ours, row.peer)}
    measures, outputs = measure(case, [name for name in case.functions if name in wanted], args.rounds)
    results = []
    for row in rows:
        result = {name: getattr(row, name) for name in ("name", "what", "ours", "peer", "target", "at_most")}
        result |= {"unit": case.unit, "missing": case.missing}
        if not case.missing:
            ours, peer = (statistics.median(measures[name]) if name else 1.0 for name in (row.ours, row.peer))
            result["ratio"] = ours / peer if row.at_most else peer / ours
            result["measures"] = {name: measures[name] for name in (row.ours, row.peer) if name}
            result["medians"] = {name: statistics.median(values) for name, values in result["measures"].items()}
            result["rounds"] = len(measures[row.ours])
            result["spread"] = spread(measures[row.ours], measures[row.peer]) if row.peer else 0.0
            result["load"] = [round(load, 1) for load in (load_before, os.getloadavg()[0])]
            result["note"] = row.note(outputs[row.ours], outputs.get(row.peer))
            print(f"{row.name}: {result['ratio']:.2f}", file=sys.stderr, flush=True)
        results.append(result)
    return results


def measure_growth(args: BenchmarkArguments) -> list[dict]:
    """Measure seconds and peak memory of a two-layer GPT and of GPT-2, without dropout, each in its own process.

    Returns:
        The growth of the report.
    """
    points = [("length", length, 4096 // length, length, 256) for length in (128, 256, 512, 1024, 2048, 4096)]
    points += [("width", width, 4, LENGTH, width) for width in (64, 128, 256, 512, 1024)]
    points += [("batch", rows, rows, LENGTH, 256) for rows in (1, 2, 4, 8, 16, 32)]
    results = []
    for axis, value, rows, length, width in points:
        results.append({"axis": axis, "value": value, "rows": rows, "length": length, "width": width})
        fields = {"width": width, "layers": 2, "dropout": 0.0, "positions": length}
        for mode, (model, name) in itertools.product(("training", "inference"), ((OURS, "gpt"), (GPT2, "gpt2"))):
            seconds, mib = run_alone(name, rows, length, mode == "training", 4, args.threads, **fields)
            results[-1].setdefault(mode, {})[model] = {"seconds": seconds, "MiB": mib}
        print(f"growth: {axis} {value}", file=sys.stderr, flush=True)
    return results


@command
def main():
    with preparation():
        (args,), _ = parse_arguments(BenchmarkArguments)
    names = [*(row.name for row in TABLE), "growth"]
    only = args.only.split(",") if args.only else names
    if unknown := [name for name in only if name not in names]:
        raise UserError(f"`only` has {', '.join(unknown)}; the rows are {', '.join(names)}.")
    if args.write and args.only:
        raise UserError("`write` keeps the figures of one whole run: leave out `only`.")
    output_dir = Path(args.output_dir)
    output_dir.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(args.threads)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    disable_progress_bars()

    start, rows = time.perf_counter(), [row for row in TABLE if row.name in only]
    data = "Multi30k" if args.data else "synthetic sentences about as long as Multi30k's"
    report = {"machine": read_machine(args.threads, data), "rows": [], "growth": []}

    def save(path: Path):
        report["machine"]["minutes"] = round((time.perf_counter() - start) / 60, 1)
        path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")

    for case in dict.fromkeys(row.case for row in rows):
        report["rows"] += fill_rows([row for row in rows if row.case is case], args)
        report["rows"].sort(key=lambda result: names.index(result["name"]))
        save(output_dir / "benchmark.json")  # after each case, so that a failure of a later one loses nothing
    if "growth" in only:
        report["growth"] = measure_growth(args)
        save(output_dir / "benchmark.json")
    report["kernels"] = describe_kernels()
    save(output_dir / "benchmark.json")
    if report["rows"]:
        plot_ratios(report["rows"], output_dir / "benchmark.png")
        print(f"\n{format_rows(report['rows'])}")
    if report["growth"]:
        plot_growth(report["growth"], output_dir / "growth.png")
        print(f"\n{format_growth(report['growth'])}")
    print(f"\n{describe_machine(report['machine'])}")
    if args.write:
        save(RESULTS / file_name(report["machine"]))
        update_readmes(write=True)


if __name__ == "__main__":
    main()
