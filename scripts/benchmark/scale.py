#!/usr/bin/env python
# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Measure the start of trainings on large data, the memory of evaluations, and the gain of a second process.

python scripts/benchmark/scale.py [--output_dir runs/scale] [--only texts,sampler] [--write true]

Each row is one or more whole processes on an idle machine, imports included. The data are invented: words of a fixed
vocabulary, as often as Zipf's law says, in sentences about as long as TinyStories' and Multi30k's.
"""

import itertools
import json
import multiprocessing
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from benchmark_tables import ROOT, finish, format_scale
from datasets import Dataset
from invented import draw_pairs
from report import Report, ReportArguments, measure_peak
from transformers import TrainingArguments

from hf_scratch import ScratchGPTConfig, ScratchGPTForCausalLM
from hf_scratch.data.cache import load_prepared
from hf_scratch.data.columns import count_ids
from hf_scratch.data.sampling import TokenBudgetBatchSampler
from hf_scratch.errors import UserError, command, preparation
from hf_scratch.evaluation.language_modeling import evaluate_language_model
from hf_scratch.recipes import read_recipe
from hf_scratch.tokenization import train_tokenizer
from hf_scratch.training.arguments import parse_arguments
from hf_scratch.training.trainers import LanguageModelTrainer

SCRIPTS = ROOT / "scripts"
# of training scripts that train for a moment
QUICK = {"eval_strategy": "no", "save_strategy": "no", "load_best_model_at_end": "false", "average_checkpoints": 0}
QUICK |= {"use_cpu": "true"}


@dataclass(kw_only=True)
class ScaleArguments(ReportArguments):
    """The options of scale.py."""

    output_dir: str = field(default="runs/scale", metadata={"help": "Folder for scale.json and for the data."})
    megabytes: int = field(default=200, metadata={"help": "Of text for the language model."})
    pairs: int = field(default=1_000_000, metadata={"help": "Pairs for the translator."})


def write_rows(path: Path, rows: Iterable[dict[str, str]], megabytes: float = float("inf")) -> Path:
    """Write rows as JSON lines until there are this many megabytes of them."""
    size = 0
    with path.open("w", encoding="utf-8") as file:
        for row in rows:
            if size >= megabytes * 1e6:
                break
            size += file.write(json.dumps(row) + "\n")
    return path


def run_script(cache: Path, output_dir: Path, script: str, recipe: str, processes: int = 1, **options: Any) -> dict:
    """Run a training script as a whole process, with one thread per process. torchrun starts two or more processes.

    Returns:
        "wall" and "cpu" in seconds, and "memory": the highest sum of all processes' memory, in MB. Pages that they
        share count once, and those of files, which the system can drop, not at all.
    """
    shutil.rmtree(output_dir, ignore_errors=True)
    options["output_dir"] = output_dir
    words = [str(word) for name, value in options.items() for word in (f"--{name}", value)]
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    start, before, peak = time.perf_counter(), os.times(), 0
    process = subprocess.Popen(
        [sys.executable, *(launcher if processes > 1 else []), SCRIPTS / script, SCRIPTS / "recipes" / recipe, *words],
        env={**os.environ, "HF_DATASETS_CACHE": str(cache), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    errors = None
    while errors is None:
        try:
            _, errors = process.communicate(timeout=0.5)
        except subprocess.TimeoutExpired:
            peak = max(peak, measure_memory(process.pid))
    if process.returncode:
        raise UserError(f"{script} ended with status {process.returncode}: {errors[-500:]}")
    after = os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return {"wall": time.perf_counter() - start, "cpu": cpu, "memory": peak / 1e6}


def measure_memory(pid: int) -> int:
    """The bytes of a process and of those that it started, without the pages of files."""
    total = 0
    with suppress(psutil.Error, OSError):  # one has just ended
        parent = psutil.Process(pid)
        for process in (parent, *parent.children(recursive=True)):
            memory = Path(f"/proc/{process.pid}/smaps_rollup").read_text(encoding="utf-8")
            total += sum(int(kilobytes) << 10 for kilobytes in re.findall(r"Pss_Anon: +(\d+)", memory))
    return total


def measure_texts(args: ScaleArguments, folder: Path) -> dict[str, float]:
    """Train a GPT for one update on large data, twice."""
    sentences = (pair["en"] for pair in draw_pairs())
    texts = ({"text": " ".join(itertools.islice(sentences, 15))} for _ in itertools.count())
    options = {**QUICK, "max_steps": 1, "vocab_size": 16_000}
    options["train_file"] = write_rows(folder / "texts.jsonl", texts, args.megabytes)
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
    options = {**QUICK, "max_steps": 1, "source_lang": "en", "target_lang": "de"}
    options["train_file"] = write_rows(folder / "pairs.jsonl", itertools.islice(draw_pairs(), args.pairs))
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
    """Measure the larger of both evaluations' memory in a new process."""
    # maps each large tensor by itself, so that what the C library's heap keeps does not count
    os.environ["MALLOC_MMAP_THRESHOLD_"] = str(2**20)
    try:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            return {"evaluation_memory": pool.apply(weigh_evaluations)}
    finally:
        del os.environ["MALLOC_MMAP_THRESHOLD_"]


def weigh_evaluations(rows: int = 32, length: int = 512, vocabulary: int = 16_000) -> float:
    """The peak memory of an evaluation of tinystories_full's model, over one tensor of all logits in float32."""
    torch.set_num_threads(1)
    sizes = {"vocab_size": vocabulary, "max_position_embeddings": length}
    fields = read_recipe(SCRIPTS / "recipes" / "tinystories_full.yaml")["config_overrides"]
    model = ScratchGPTForCausalLM(ScratchGPTConfig(**fields, **sizes)).eval()
    tokenizer = train_tokenizer(["ab"], "char", 10, length, show_progress=False)

    def score(count: int) -> None:
        evaluate_language_model(model, tokenizer, ["a" * (length - 2)] * count, rows)  # with <s> and </s>: `length`

    with tempfile.TemporaryDirectory() as folder:
        quiet = {"report_to": "none", "disable_tqdm": True, "use_cpu": True}
        trainer = LanguageModelTrainer(model, TrainingArguments(folder, per_device_eval_batch_size=rows, **quiet))

        def validate(count: int) -> None:
            ids = [[5] * length] * count
            trainer.evaluate(Dataset.from_dict({"input_ids": ids, "labels": ids}))

        peaks = []
        for work in (score, validate):
            work(1)  # loads the libraries' own pages, which are not part of the peak
            peaks.append(measure_peak(lambda work=work: work(rows)))
    return max(peaks) / (4 * rows * length * vocabulary / 2**20)


def measure_two_processes(args: ScaleArguments, folder: Path) -> dict[str, float]:
    """Train the recipe tinystories_article with 64 rows per update, on one process and on two by turns."""
    options = {**QUICK, "dataset_name": "embedded:stories", "max_steps": 150, "global_batch_size": 64}
    speeds = {1: 0.0, 2: 0.0}
    for _, processes in itertools.product(range(2), speeds):
        folders = folder / "cache", folder / f"processes{processes}"
        run_script(*folders, "train_language_model.py", "tinystories_article.yaml", processes, **options)
        results = json.loads((folders[1] / "train_results.json").read_text(encoding="utf-8"))
        speeds[processes] += results["train_samples_per_second"]
    return {"two_processes": speeds[2] / speeds[1]}


# for each function the rows that it measures: name, work and unit
CASES: dict[Callable[[ScaleArguments, Path], dict[str, float]], dict[str, tuple[str, str]]] = {
    measure_texts: {
        "texts": ("200 MB of text, GPT, vocabulary 16,000: start to first update", "s"),
        "texts_cpu": ("the same, CPU time of all processes", "s"),
        "texts_memory": ("the same, peak memory of all processes, without the files' pages", "MB"),
        "texts_again": ("the same in a new output_dir, beyond the imports", "s"),
        "token_bytes": ("disk for the packed rows, per token", "bytes"),
    },
    measure_pairs: {"pairs": ("1 million pairs: start to first update", "s")},
    measure_sampler: {"sampler": ("batch sampler, 4 million pairs: init, len, one epoch's order", "s")},
    measure_evaluation: {"evaluation_memory": ("evaluation memory, over one logits tensor of 32 x 512 x 16,000", "")},
    measure_two_processes: {"two_processes": ("2 processes of 1 thread against 1, rows per second", "")},
}


@command
def main():
    with preparation():
        (args,), _ = parse_arguments(ScaleArguments)
        only = args.choose(name for rows in CASES.values() for name in rows)
    folder = Path(args.output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    report = Report(1, f"{args.megabytes} MB of invented text, {args.pairs:,} invented pairs")
    for case, rows in CASES.items():
        if rows.keys() & only:
            figures = case(args, folder)
            print({name: round(figure, 3) for name, figure in figures.items()}, file=sys.stderr)
            report.figures["rows"] += [
                {"name": name, "what": what, "unit": unit, "figure": figures[name]}
                for name, (what, unit) in rows.items()
            ]
    finish(report, args, "scale", format_scale)


if __name__ == "__main__":
    main()
