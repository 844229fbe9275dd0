# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""What the benchmarks share: common options, the published models, the machine, a run's figures, and peak memory."""

import ctypes
import gc
import json
import os
import platform
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers

from hf_scratch.errors import UserError

CARDS = Path(__file__).resolve().parents[2] / "model_cards"
TRANSLATOR, STORYTELLER = CARDS / "scratch-transformer-multi30k-en-de", CARDS / "scratch-gpt-tinystories"
# how /proc/cpuinfo calls the instructions that decide the speed of matrix products
CPU_FEATURES = {"avx512f": "AVX-512", "amx_tile": "AMX"}


@dataclass(kw_only=True)
class ReportArguments:
    """The options that the benchmarks have in common."""

    only: str | None = field(default=None, metadata={"help": "Some of the rows: name,name. Default: all."})
    write: bool = field(
        default=False, metadata={"help": "Keep the figures in scripts/benchmark/results, and write the tables."}
    )

    def choose(self, names: Iterable[str]) -> list[str]:
        """The rows that `only` lists, or all of `names`.

        Raises:
            UserError: there is no such row; or `write` would keep a part of the figures.
        """
        names = list(names)
        chosen = self.only.split(",") if self.only else names
        if unknown := [name for name in chosen if name not in names]:
            raise UserError(f"`only` has {', '.join(unknown)}; the rows are {', '.join(names)}.")
        if self.write and self.only:
            raise UserError("`write` keeps the figures of one whole run: leave out `only`.")
        return chosen


class Report:
    """A run's figures: `machine`, what was measured on, and `rows`. Times are in seconds, memory in MiB."""

    def __init__(self, threads: int, data: str):
        torch.set_num_threads(threads)
        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        self.start = time.perf_counter()
        self.figures: dict[str, Any] = {"machine": read_machine(threads, data), "rows": []}

    def save(self, path: Path) -> None:
        """Write what has been measured so far."""
        self.figures["machine"] |= {
            "minutes": round((time.perf_counter() - self.start) / 60, 1),
            "load_after": round(os.getloadavg()[0], 1),
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(self.figures, indent=2) + "\n", encoding="utf-8")


def read_machine(threads: int, data: str) -> dict[str, Any]:
    """The machine's CPU, its load, and the libraries' versions."""
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    name = re.search(r"model name\s*: (.+)", text)
    cpu = re.sub(r"\((?:R|TM)\)| CPU| Processor| @.*", "", name[1]).strip() if name else platform.machine()
    return {
        "cpu": cpu,
        "features": [label for flag, label in CPU_FEATURES.items() if re.search(rf"\b{flag}\b", text)],
        "cores": os.cpu_count(),
        "threads": threads,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "date": time.strftime("%Y-%m-%d"),
        "data": data,
        "load_before": round(os.getloadavg()[0], 1),
    }


def read_sentences(folder: str, count: int) -> list[str]:
    """The first English test sentences of Multi30k."""
    lines = Path(folder, "test.jsonl").read_text(encoding="utf-8").splitlines()[:count]
    return [json.loads(line)["en"] for line in lines]


def measure_peak(work: Callable[[], Any]) -> float:
    """The peak of this process's memory during `work`, in MiB above what was in use before."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    before = _read_status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # resets VmHWM, the peak
    work()
    return _read_status("VmHWM") - before


def _read_status(name: str) -> float:
    return int(re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="utf-8"))[1]) / 1024
