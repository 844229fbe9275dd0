# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""The work that benchmark.py measures beside busy processes."""

import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from statistics import median

import torch
from cases import NEW_TOKENS, SIZES, VOCABULARY, BenchmarkArguments, Case, make_batch
from measuring import take_turns
from peers import OURS, list_builders, make_step

ASLEEP, SPINNING = "hf_scratch, threads sleep", "torch's default"


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
            command, folder = [sys.executable, "-c", code], Path(__file__).parent
            options = {"capture_output": True, "text": True, "cwd": folder, "env": plain | settings}
            return float(subprocess.run(command, check=True, **options).stdout)
        finally:
            for other in others:
                other.kill()
                other.wait()

    functions = {ASLEEP: partial(measure, {"OMP_WAIT_POLICY": "PASSIVE"}), SPINNING: partial(measure, {})}
    alone = partial(measure, {}, busy=0)
    return Case(functions, warmups=0, rounds=3, timed=False, note=lambda *_: f"{alone():.3f} s alone, by default")
