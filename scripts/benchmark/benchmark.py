#!/usr/bin/env python
# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Measure hf_scratch's speed and memory against its peers: a Markdown table, benchmark.json and pictures.

python scripts/benchmark/benchmark.py [--data DIR] [--only train_gpt,growth] [--output_dir runs/benchmark]

How to read a ratio: the peer's median over ours, so that 1.4 is "the peer takes 1.4 times as long on the same work".
Against the matrix products alone it is the share of our step that they would take, each at its full size. Where the
target says "<", less is better: memory is ours over the peer's, and the start-up rows are plain seconds.

Peers have the same dimensions, weights, data, dtype and threads, and take turns with ours in one process, so that what
else the machine does meets both. Memory is measured in a process for each: the peak of three steps, with gradients and
the optimiser's moments, above what was there before the first.
"""

import itertools
import json
import os
import platform
import re
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import torch
import transformers
from datasets import disable_progress_bars
from generation_cases import (
    check_tokens,
    compare_translation,
    count_equal,
    generate_gpt,
    generate_gpt_article,
    import_seconds,
    import_time,
    load_time,
)
from training_cases import (
    ARTICLE,
    CTRANSLATE2,
    GPT2,
    LENGTH,
    LONGEST,
    MARIAN,
    OURS,
    OURS_BF16,
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

SHOW = {"s": "{:.3f} s".format, "MiB": "{:,.0f} MiB".format, "s a token": lambda s: f"{1 / s:,.0f} tokens/s"}


@dataclass
class Row:
    """A line of the table: `ours` against `peer`, two functions of a case.

    Args:
        peer: None leaves ours as it is.
        at_most: the target is a limit from above, and the ratio is ours over the peer's.
        note: of what the two functions returned last.
    """

    name: str
    what: str
    case: Callable[[BenchmarkArguments], Case]
    peer: str | None
    target: float
    ours: str = OURS
    at_most: bool = False
    note: Callable[[Any, Any], str] = lambda *_: ""


# the table

MEMORY_TRANSFORMER = partial(compare_memory, "transformer", "marian", MARIAN, ROWS, LONGEST)
MEMORY_GPT = partial(compare_memory, "gpt", "gpt2", GPT2, TEXTS, LENGTH)
# fmt: off
TABLE = [
    Row("train_transformer", "training step, encoder-decoder, fp32", train_transformer, MARIAN, 1.4),
    Row("train_gpt", "training step, GPT, fp32", train_gpt, GPT2, 1.3),
    Row("train_transformer_bf16", "training step, encoder-decoder, bf16", train_transformer, OURS, 1.5, OURS_BF16,
        note=partial(compare_loss_curves, "transformer", ROWS // 4, LONGEST)),
    Row("train_gpt_bf16", "training step, GPT, bf16", train_gpt, OURS, 1.5, OURS_BF16,
        note=partial(compare_loss_curves, "gpt", TEXTS // 4, LENGTH)),
    Row("memory_transformer", "peak memory, encoder-decoder, fp32", MEMORY_TRANSFORMER, MARIAN, 0.5, at_most=True),
    Row("memory_gpt", "peak memory, GPT, fp32", MEMORY_GPT, GPT2, 0.5, at_most=True),
    Row("train_end_to_end", "Trainer, recipe multi30k_tiny, target tokens", train_end_to_end, MARIAN, 2.0),
    Row("generate_gpt", "200 tokens, greedy, batch 1", generate_gpt, GPT2, 2.5, note=check_tokens),
    Row("generate_gpt_article", "the same", generate_gpt_article, ARTICLE, 6.0, note=check_tokens),
    Row("translate_marian", "1,000 test sentences, 5 beams", compare_translation, MARIAN, 2.0, note=count_equal),
    Row("translate_ctranslate2", "the same", compare_translation, CTRANSLATE2, 0.5, note=count_equal),
    Row("matmul_transformer", "encoder-decoder's step, fp32, its limit", train_transformer, PRODUCTS, 0.7),
    Row("matmul_gpt", "GPT's step, fp32, its limit", train_gpt, PRODUCTS, 0.7),
    Row("import_time", "`import hf_scratch` itself, seconds", import_time, None, 0.3, at_most=True,
        note=lambda *_: f"{import_seconds():.1f} s with the modules of transformers that it imports"),
    Row("load_time", "`from_pretrained` of 10 MB, seconds", load_time, None, 0.2, at_most=True),
]
# fmt: on


def measure(case: Case, names: list[str], rounds: int) -> tuple[dict[str, list[float]], dict[str, Any]]:
    """The measures and the last output of each function of `names`, called in turns."""
    for name in names * case.warmups:
        case.functions[name]()
    measures, outputs = {name: [] for name in names}, {}
    for _, name in itertools.product(range(min(rounds, case.rounds)), names):
        start = time.perf_counter()
        outputs[name] = case.functions[name]()
        seconds = time.perf_counter() - start
        measures[name].append(seconds if case.timed else outputs[name])
    return measures, outputs


def fill_rows(rows: list[Row], args: BenchmarkArguments) -> list[dict]:
    """What is printed and saved of the rows of one case."""
    torch.manual_seed(0)
    case = rows[0].case(args)
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
            result["note"] = row.note(outputs[row.ours], outputs.get(row.peer))
            print(f"{row.name}: {result['ratio']:.2f}", file=sys.stderr, flush=True)
        results.append(result)
    return results


def score(result: dict) -> float:
    """How much of its target a row reaches; above 1, it is reached."""
    share = result["ratio"] / result["target"]
    return 1 / share if result["at_most"] else share


def format_table(results: list[dict]) -> str:
    lines = ["| ratio | target | reached | work | ours | peer | rounds | |", "|---" * 8 + "|"]
    for result in results:
        target = f"{'< ' if result['at_most'] else ''}{result['target']:.1f}"
        work = f"`{result['name']}`: {result['what']}"
        if result["missing"]:
            lines.append(f"| | {target} | | {work} | | {result['peer']} | | not measured: {result['missing']} |")
            continue
        rounds, show = len(result["measures"][result["ours"]]), SHOW[result["unit"]]
        ours, peer = [*(f"{who} {show(statistics.median(m))}" for who, m in result["measures"].items()), ""][:2]
        reached = "yes" if score(result) >= 1 else "no"
        ratio = f"**{result['ratio']:.2f}**"
        lines.append(f"| {ratio} | {target} | {reached} | {work} | {ours} | {peer} | {rounds} | {result['note']} |")
    return "\n".join(lines)


def plot_ratios(results: list[dict], path: Path, longest: float = 2.5) -> None:
    """A bar a row, as long as its ratio is against its target."""
    results = [result for result in results if not result["missing"]][::-1]
    figure, axis = plt.subplots(figsize=(8, 1 + 0.34 * len(results)), layout="constrained")
    for i, result in enumerate(results):
        length = min(score(result), longest)
        axis.barh(i, length, color="tab:green" if length >= 1 else "tab:orange", height=0.7)
        text = f"{result['ratio']:.2f} ({'<' if result['at_most'] else '≥'} {result['target']:g})"
        text += f" against {result['peer']}" if result["peer"] else " seconds"
        axis.text(max(length, 1) + 0.03, i, text, va="center", fontsize=8)
    axis.axvline(1, color="black", linewidth=1)
    axis.set_yticks(range(len(results)), [result["name"] for result in results])
    axis.set_xticks([0, 0.5, 1, 1.5, 2, longest], ["0", "0.5", "target", "1.5", "2", f"≥ {longest}"])
    axis.set_xlim(0, longest + 1.5)
    axis.set_xlabel("share of the target that is reached")
    axis.set_axisbelow(True)
    axis.grid(axis="x", alpha=0.3)
    figure.savefig(path, dpi=120)


# growth


def measure_growth(args: BenchmarkArguments) -> list[dict]:
    """Seconds and peak memory of a GPT of two layers and of GPT-2, without dropout, each in a process of its own."""
    points = [("length", length, 4096 // length, length, 256) for length in (128, 256, 512, 1024, 2048, 4096)]
    points += [("width", width, 4, LENGTH, width) for width in (64, 128, 256, 512, 1024)]
    points += [("batch", rows, rows, LENGTH, 256) for rows in (1, 2, 4, 8, 16, 32)]
    results = []
    for axis, value, rows, length, width in points:
        results.append({"axis": axis, "value": value, "rows": rows, "length": length, "width": width})
        fields = {"width": width, "layers": 2, "dropout": 0.0, "positions": length}
        for mode, (who, name) in itertools.product(("training", "inference"), ((OURS, "gpt"), (GPT2, "gpt2"))):
            seconds, mib = run_alone(name, rows, length, mode == "training", 4, args.threads, **fields)
            results[-1][f"{who}, {mode}"] = {"seconds": seconds, "MiB": mib}
        print(f"growth: {axis} {value}", file=sys.stderr, flush=True)
    return results


def format_growth(results: list[dict]) -> str:
    columns = [(mode, key) for mode in ("training", "inference") for key in ("seconds", "MiB")]
    heads = [f"{mode}: {key}, {OURS} / {GPT2}" for mode, key in columns]
    lines = [f"| | rows x length, width | {' | '.join(heads)} |", "|---" * 6 + "|"]
    for result in results:
        cells = [f"{result['axis']} {result['value']:,}", f"{result['rows']} x {result['length']}, {result['width']}"]
        for mode, key in columns:
            values = [result[f"{who}, {mode}"][key] for who in (OURS, GPT2)]
            cells.append(" / ".join(f"{value:.3f}" if key == "seconds" else f"{value:,.0f}" for value in values))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def plot_growth(results: list[dict], path: Path) -> None:
    titles = {
        "length": "4,096 tokens, 256 wide",
        "width": "4 rows of 256 tokens",
        "batch": "rows of 256 tokens, 256 wide",
    }
    figure, axes = plt.subplots(2, 3, figsize=(11, 6), sharex="col", sharey="row", layout="constrained")
    for (row, key), (column, name) in itertools.product(enumerate(("seconds", "MiB")), enumerate(titles)):
        axis, points = axes[row, column], [result for result in results if result["axis"] == name]
        for who, mode in itertools.product((OURS, GPT2), ("training", "inference")):
            style = {"color": "tab:blue" if who == OURS else "tab:orange", "marker": "o", "markersize": 4}
            style |= {"linestyle": "-" if mode == "training" else "--", "label": f"{who}, {mode}"}
            axis.plot([point["value"] for point in points], [p[f"{who}, {mode}"][key] for p in points], **style)
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.set_xticks([point["value"] for point in points], [f"{point['value']:,}" for point in points])
        axis.grid(alpha=0.3)
        if row == 0:
            axis.set_title(titles[name])
        else:
            axis.set_xlabel(name)
    axes[0, 0].set_ylabel("seconds a step")
    axes[1, 0].set_ylabel("peak memory [MiB]")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    figure.savefig(path, dpi=120)


def describe_machine(args: BenchmarkArguments) -> dict[str, Any]:
    cpu = re.search(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text(encoding="utf-8"))
    return {
        "cpu": cpu[1] if cpu else platform.machine(),
        "cores": os.cpu_count(),
        "threads": args.threads,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "date": time.strftime("%Y-%m-%d"),
        "data": args.data or "synthetic sentences about as long as Multi30k's",
    }


@command
def main():
    with preparation():
        (args,), _ = parse_arguments(BenchmarkArguments)
    names = [*(row.name for row in TABLE), "growth"]
    only = args.only.split(",") if args.only else names
    if unknown := [name for name in only if name not in names]:
        raise UserError(f"`only` has {', '.join(unknown)}; the rows are {', '.join(names)}.")
    output_dir = Path(args.output_dir)
    output_dir.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(args.threads)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    disable_progress_bars()

    start, rows = time.perf_counter(), [row for row in TABLE if row.name in only]
    report = {"machine": describe_machine(args), "rows": [], "growth": []}

    def save():  # after each case: what is measured is kept if a later one fails
        report["machine"]["minutes"] = round((time.perf_counter() - start) / 60, 1)
        (output_dir / "benchmark.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")

    for case in dict.fromkeys(row.case for row in rows):
        report["rows"] += fill_rows([row for row in rows if row.case is case], args)
        save()
    if "growth" in only:
        report["growth"] = measure_growth(args)
        save()
    results, growth = sorted(report["rows"], key=lambda result: names.index(result["name"])), report["growth"]
    if results:
        plot_ratios(results, output_dir / "benchmark.png")
        print(f"\n{format_table(results)}")
    if growth:
        plot_growth(growth, output_dir / "growth.png")
        print(f"\n{format_growth(growth)}")
    print("\n" + ", ".join(f"{name} {value}" for name, value in report["machine"].items()))


if __name__ == "__main__":
    main()
