#!/usr/bin/env python
# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Measure the start of trainings on large data, the memory of evaluations, and the gain of a second process.

python scripts/benchmark/scale.py [--output_dir runs/scale] [--only texts,sampler] [--write true]

Each row is one or more whole processes on an idle machine, imports included. The data are invented: words of a fixed
vocabulary, as often as Zipf's law says, in sentences about as long as TinyStories' and Multi30k's.
"""

import itertools
import json
import os
import random
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from machine import read_machine
from tables import FOLDER, SCALE_RESULTS, describe_machine, file_name, format_scale, update_readmes

from hf_scratch.data.columns import count_ids
from hf_scratch.data.preparation import load_prepared
from hf_scratch.data.sampling import TokenBudgetBatchSampler
from hf_scratch.errors import UserError, command, preparation
from hf_scratch.training.parsing import parse_arguments

SCRIPTS = FOLDER.parent
MEASURES = {  # name: the work, its target, the unit
    "texts": ("200 MB of text, GPT, vocabulary 16,000: start to first update", 75, "s"),
    "texts_cpu": ("the same, CPU time of all processes", None, "s"),
    "texts_memory": ("the same, peak memory of all processes, without the files' pages", 1000, "MB"),
    "texts_again": ("the same in a new output_dir, beyond the imports", 12, "s"),
    "token_bytes": ("disk for the packed rows, per token", 2, "bytes"),
    "pairs": ("1 million pairs: start to first update", 100, "s"),
    "sampler": ("batch sampler, 4 million pairs: init, len, one epoch's order", 1.5, "s"),
    "evaluation_memory": ("evaluation memory, over one logits tensor of 32 x 512 x 16,000", 0.3, ""),
    "two_processes": ("2 processes of 1 thread against 1, rows per second", 1.8, ""),
}
QUICK = {"max_steps": 1, "eval_strategy": "no", "save_strategy": "no", "use_cpu": "true"}


@dataclass
class ScaleArguments:
    """The options of scale.py."""

    output_dir: str = field(default="runs/scale", metadata={"help": "Folder for scale.json and for the data."})
    only: str | None = field(default=None, metadata={"help": f"Some of the rows: {', '.join(MEASURES)}."})
    megabytes: int = field(default=200, metadata={"help": "Of text for the language model."})
    pairs: int = field(default=1_000_000, metadata={"help": "Pairs for the translator."})
    write: bool = field(default=False, metadata={"help": "Keep the figures in results/scale, and write the table."})


def make_words(seed: int = 0, count: int = 30_000) -> tuple[list[str], list[float]]:
    """Invent words, and the cumulative weights with which they are drawn."""
    rng = random.Random(seed)
    syllables = ["".join(pair) for pair in itertools.product("bdfgklmnprstvw", "aeiou")]
    words = ["".join(rng.choices(syllables, k=rng.randint(1, 4))) for _ in range(count)]
    return words, list(itertools.accumulate(1 / rank for rank in range(1, count + 1)))


def draw_sentences(words: list[str], weights: list[float], seed: int) -> Iterator[str]:
    """Draw sentences of 4 to 20 words, without end."""
    rng = random.Random(seed)
    while True:
        yield " ".join(rng.choices(words, cum_weights=weights, k=rng.randint(4, 20))) + "."


def write_texts(path: Path, megabytes: int) -> None:
    """Write texts of 15 sentences until there are this many megabytes of them."""
    sentences, size = draw_sentences(*make_words(), 0), 0
    with path.open("w", encoding="utf-8") as file:
        while size < megabytes * 1e6:
            text = " ".join(itertools.islice(sentences, 15))
            size += len(text)
            file.write(json.dumps({"text": text}) + "\n")


def write_pairs(path: Path, pairs: int) -> None:
    """Write pairs of sentences."""
    sides = [draw_sentences(*make_words(seed), seed) for seed in (1, 2)]
    with path.open("w", encoding="utf-8") as file:
        for en, de in itertools.islice(zip(*sides, strict=True), pairs):
            file.write(json.dumps({"en": en, "de": de}) + "\n")


def run_script(cache: Path, output_dir: Path, script: str, recipe: str, processes: int = 1, **options: Any) -> dict:
    """Run a training script as a whole process, with one thread per process.

    Args:
        cache: the cache of datasets.
        output_dir: the run's folder, which is emptied first.
        script: the script's name.
        recipe: the recipe's.
        processes: how many `accelerate launch` starts; 1 starts none.
        options: the other arguments.

    Returns:
        "wall" and "cpu" in seconds, and "memory": the highest sum of all processes' memory, in MB. Pages that they
        share count once, and those of files, which the system can drop, not at all.
    """
    shutil.rmtree(output_dir, ignore_errors=True)
    options["output_dir"] = output_dir
    words = [str(word) for name, value in options.items() for word in (f"--{name}", value)]
    launcher = ["-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", str(processes)]
    launcher += [
        "--num_machines",
        "1",
        "--mixed_precision",
        "no",
        "--dynamo_backend",
        "no",
        "--main_process_port",
        "0",
    ]
    start, before, peak = time.perf_counter(), os.times(), 0
    process = subprocess.Popen(
        [sys.executable, *(launcher if processes > 1 else []), SCRIPTS / script, SCRIPTS / "recipes" / recipe, *words],
        env={**os.environ, "HF_DATASETS_CACHE": str(cache), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    while True:
        try:
            _, errors = process.communicate(timeout=0.5)
            break
        except subprocess.TimeoutExpired:
            peak = max(peak, sum(map(_memory, [process.pid, *_children(process.pid)])))
    if process.returncode:
        raise UserError(f"{script} ended with status {process.returncode}: {errors[-500:]}")
    after = os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return {"wall": time.perf_counter() - start, "cpu": cpu, "memory": peak / 1e6}


def _children(pid: int) -> list[int]:
    try:
        return [child.pid for child in psutil.Process(pid).children(recursive=True)]
    except psutil.Error:
        return []


def _memory(pid: int) -> int:
    try:
        memory = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8")
    except OSError:  # it has ended
        return 0
    return sum(int(kilobytes) << 10 for kilobytes in re.findall(r"Pss_Anon: +(\d+)", memory))


def measure_texts(args: ScaleArguments, folder: Path) -> dict[str, float]:
    """Train a GPT for one update on large data, twice."""
    file = folder / "texts.jsonl"
    write_texts(file, args.megabytes)
    options = {**QUICK, "train_file": file, "vocab_size": 16_000, "average_checkpoints": 0}
    options |= {"early_stopping_patience": None, "load_best_model_at_end": "false"}
    options = {name: value for name, value in options.items() if value is not None}
    cache, script, recipe = folder / "cache", "train_language_model.py", "tinystories_article.yaml"
    first = run_script(cache, folder / "run", script, recipe, **options)
    again = run_script(cache, folder / "run2", script, recipe, **options)
    start = time.perf_counter()
    subprocess.run([sys.executable, SCRIPTS / script, "--help"], stdout=subprocess.DEVNULL, check=True)
    imports = time.perf_counter() - start
    (prepared,) = (cache / "hf_scratch").glob("rows-*[!k]")
    rows = load_prepared(prepared)[0]["train"]
    size = sum(Path(file["filename"]).stat().st_size for file in rows.cache_files)
    figures = {"texts": first["wall"], "texts_cpu": first["cpu"], "texts_memory": first["memory"]}
    return figures | {"texts_again": again["wall"] - imports, "token_bytes": size / count_ids(rows)}


def measure_pairs(args: ScaleArguments, folder: Path) -> dict[str, float]:
    """Train a translator for one update on large data."""
    file = folder / "pairs.jsonl"
    write_pairs(file, args.pairs)
    options = {**QUICK, "train_file": file, "source_lang": "en", "target_lang": "de", "average_checkpoints": 0}
    done = run_script(folder / "cache", folder / "run", "train_translation.py", "multi30k_tiny.yaml", **options)
    return {"pairs": done["wall"]}


def measure_sampler(args: ScaleArguments, folder: Path) -> dict[str, float]:
    """Order 4 million pairs into updates of 4,096 tokens."""
    lengths = np.clip(np.random.default_rng(0).lognormal(3.2, 0.5, 4_000_000).astype(int), 1, 128)
    start = time.perf_counter()
    sampler = TokenBudgetBatchSampler(lengths, 4096)
    assert sum(1 for _ in sampler) == len(sampler)
    return {"sampler": time.perf_counter() - start}


def measure_evaluation(args: ScaleArguments, folder: Path) -> dict[str, float]:
    """Measure the larger of both evaluations' memory."""
    command = [sys.executable, FOLDER / "evaluation_memory.py"]
    report = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    ratios = [figures["over_one_logits_tensor"] for figures in report.values() if "over_one_logits_tensor" in figures]
    return {"evaluation_memory": max(ratios)}


def measure_two_processes(args: ScaleArguments, folder: Path) -> dict[str, float]:
    """Train the recipe tinystories_article with 64 rows per update, on one process and on two by turns."""
    options = {**QUICK, "dataset_name": "embedded:stories", "max_steps": 150, "average_checkpoints": 0}
    options |= {"load_best_model_at_end": "false", "global_batch_size": 64}
    speeds = {1: 0.0, 2: 0.0}
    for _, processes in itertools.product(range(2), speeds):
        folders = folder / "cache", folder / f"processes{processes}"
        run_script(*folders, "train_language_model.py", "tinystories_article.yaml", processes, **options)
        results = json.loads((folders[1] / "train_results.json").read_text(encoding="utf-8"))
        speeds[processes] += results["train_samples_per_second"]
    return {"two_processes": speeds[2] / speeds[1]}


CASES: dict[Callable[[ScaleArguments, Path], dict[str, float]], tuple[str, ...]] = {
    measure_texts: ("texts", "texts_cpu", "texts_memory", "texts_again", "token_bytes"),
    measure_pairs: ("pairs",),
    measure_sampler: ("sampler",),
    measure_evaluation: ("evaluation_memory",),
    measure_two_processes: ("two_processes",),
}


@command
def main():
    with preparation():
        (args,), _ = parse_arguments(ScaleArguments)
    only = args.only.split(",") if args.only else list(MEASURES)
    if unknown := [name for name in only if name not in MEASURES]:
        raise UserError(f"`only` has {', '.join(unknown)}; the rows are {', '.join(MEASURES)}.")
    if args.write and args.only:
        raise UserError("`write` keeps the figures of one whole run: leave out `only`.")
    folder = Path(args.output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    start, figures = time.perf_counter(), {}
    data = f"{args.megabytes} MB of invented text, {args.pairs:,} invented pairs"
    report: dict[str, Any] = {"machine": read_machine(1, data), "load_before": os.getloadavg()[0], "rows": []}
    for case, names in CASES.items():
        if any(name in only for name in names):
            measured = case(args, folder)
            print({name: round(value, 3) for name, value in measured.items()}, file=sys.stderr)
            figures |= measured
    for name, (what, target, unit) in MEASURES.items():
        if name in figures:
            report["rows"].append(
                {"name": name, "what": what, "target": target, "unit": unit, "figure": figures[name]}
            )
    report["machine"]["minutes"] = round((time.perf_counter() - start) / 60, 1)
    text = json.dumps(report, indent=2) + "\n"
    (folder / "scale.json").write_text(text, encoding="utf-8")
    if args.write:
        (SCALE_RESULTS / file_name(report["machine"])).write_text(text, encoding="utf-8")
        update_readmes(write=True)
    print(f"{format_scale(report)}\n\n{describe_machine(report['machine'])}")


if __name__ == "__main__":
    main()
