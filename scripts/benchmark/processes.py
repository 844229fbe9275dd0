# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""The work that benchmark.py measures in processes of their own: beside busy ones, imports, an evaluation's memory."""

import multiprocessing
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from statistics import median

import torch
from cases import NEW_TOKENS, SIZES, VOCABULARY, BenchmarkArguments, Case, make_batch
from measuring import ROOT, measure_peak, take_turns
from peers import OURS, list_builders, make_step

from hf_scratch import ScratchGPTConfig, ScratchGPTForCausalLM
from hf_scratch.evaluation.language_modeling import evaluate_language_model
from hf_scratch.recipes import read_recipe
from hf_scratch.tokenization import train_tokenizer

SCRIPTS = ROOT / "scripts"
ASLEEP, SPINNING = "hf_scratch, threads sleep", "torch's default"


def run_python(code: str, environment: dict[str, str] | None = None) -> str:
    """What a new process prints, started in this folder."""
    command, folder = [sys.executable, "-c", code], Path(__file__).parent
    return subprocess.run(command, check=True, capture_output=True, text=True, cwd=folder, env=environment).stdout


# a busy machine


def time_work(family: str, threads: int) -> float:
    """The median seconds of a training step, or of 200 tokens of a GPT, in this process."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    model = list_builders(family, SIZES[family])[OURS]()
    if family == "transformer":
        work = make_step(model, make_batch(family))
    else:
        prompt = torch.randint(3, VOCABULARY, (1, 8))
        work = partial(model.eval().generate, prompt, max_new_tokens=NEW_TOKENS, do_sample=False)
    seconds, _ = take_turns({"": work}, 4)
    return median(seconds[""][1:])


def beside_busy_processes(family: str, args: BenchmarkArguments) -> Case:
    """OpenMP's threads that sleep while they wait, as our commands choose on a busy machine, against its default."""
    code = f"from processes import time_work; print(time_work({family!r}, {args.threads}))"
    plain = {name: value for name, value in os.environ.items() if name not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")}

    def measure(settings: dict[str, str], busy: int = 2) -> float:
        others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(busy)]
        try:
            return float(run_python(code, plain | settings))
        finally:
            for other in others:
                other.kill()
                other.wait()

    functions = {ASLEEP: partial(measure, {"OMP_WAIT_POLICY": "PASSIVE"}), SPINNING: partial(measure, {})}
    alone = partial(measure, {}, busy=0)
    return Case(functions, warmups=0, rounds=3, timed=False, note=lambda *_: f"{alone():.3f} s alone, by default")


# start


def import_time(args: BenchmarkArguments) -> Case:
    """Seconds of `import hf_scratch` in a new process, after the modules of transformers that it imports."""
    code = "import sys, hf_scratch\nprint(*[name for name in sys.modules if name.startswith('transformers.')])"
    imports = "\n".join(f"import {name}" for name in ("time", "transformers", *run_python(code).split()))
    code = f"{imports}\nstart = time.perf_counter()\nimport hf_scratch\nprint(time.perf_counter() - start)"
    return Case({OURS: lambda: float(run_python(code))}, warmups=1, timed=False)


# memory


def weigh_scoring(rows: int = 32, length: int = 512, vocabulary: int = 16_000) -> float:
    """The peak memory of scoring texts with tinystories_full's model, over one tensor of all logits in float32."""
    torch.set_num_threads(1)
    fields = read_recipe(SCRIPTS / "recipes" / "tinystories_full.yaml")["config_overrides"]
    config = ScratchGPTConfig(**fields, vocab_size=vocabulary, max_position_embeddings=length)
    model = ScratchGPTForCausalLM(config).eval()
    tokenizer = train_tokenizer(["ab"], "char", 10, length, show_progress=False)

    def score(count: int) -> None:
        evaluate_language_model(model, tokenizer, ["a" * (length - 2)] * count, rows)  # with <s> and </s>: `length`

    score(1)  # loads the libraries' own pages, which are not part of the peak
    return measure_peak(partial(score, rows)) / (4 * rows * length * vocabulary / 2**20)


def measure_scoring(args: BenchmarkArguments) -> Case:
    """In new processes, whose C library maps each large tensor by itself: what its heap keeps does not count."""

    def measure() -> float:
        os.environ["MALLOC_MMAP_THRESHOLD_"] = str(2**20)
        try:
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                return pool.apply(weigh_scoring)
        finally:
            del os.environ["MALLOC_MMAP_THRESHOLD_"]

    return Case({OURS: measure}, warmups=0, rounds=3, timed=False, unit="times")
