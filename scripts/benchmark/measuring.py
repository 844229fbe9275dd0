# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""What the benchmarks share: timing in turns, peak memory, the machine, and a run's figures as JSON."""

import ctypes
import gc
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch
import transformers

from hf_scratch.errors import UserError
from hf_scratch.reporting.records import name_cpu

ROOT = Path(__file__).resolve().parents[2]
RESULTS = Path(__file__).parent / "results"  # the figures that are kept: a folder per command, a file per machine
CARDS = ROOT / "model_cards"
TRANSLATOR, STORYTELLER = CARDS / "scratch-transformer-multi30k-en-de", CARDS / "scratch-gpt-tinystories"
Figures = dict[str, Any]


@dataclass(kw_only=True)
class ReportArguments:
    """The options that the benchmarks have in common."""

    only: str | None = field(default=None, metadata={"help": "Some of the rows: name,name. Default: all."})
    write: bool = field(
        default=False, metadata={"help": "Keep the figures in scripts/benchmark/results, and write the tables."}
    )

    def choose(self, names: Iterable[str]) -> list[str]:
        """The rows that `only` lists, or all of `names`. UserError: there is no such row."""
        names = list(names)
        chosen = self.only.split(",") if self.only else names
        if unknown := [name for name in chosen if name not in names]:
            raise UserError(f"`only` has {', '.join(unknown)}; the rows are {', '.join(names)}.")
        return chosen


def take_turns(
    functions: dict[str, Callable[[], Any]], turns: int
) -> tuple[dict[str, list[float]], dict[str, list[Any]]]:
    """Call functions in turns, so that other load on the machine affects all that is compared.

    Returns:
        For each name the seconds of its calls, and what they returned.
    """
    seconds, outputs = {name: [] for name in functions}, {name: [] for name in functions}
    for _ in range(turns):
        for name, function in functions.items():
            start = time.perf_counter()
            outputs[name].append(function())
            seconds[name].append(time.perf_counter() - start)
    return seconds, outputs


def compare(peer: list[float], ours: list[float]) -> dict[str, float]:
    """The median, lowest and highest of the rounds' ratios, each the peer's measure over ours."""
    ratios = [other / own for other, own in zip(peer, ours, strict=True)]
    return {"ratio": median(ratios), "lowest": min(ratios), "highest": max(ratios)}


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


def describe_conditions(threads: int, data: str = "") -> Figures:
    """What a row was measured with: each row has its own, so that single rows can be measured again."""
    return {
        "date": time.strftime("%Y-%m-%d"),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "threads": threads,
        "data": data,
        "load": round(os.getloadavg()[0], 1),  # before the row
    }


def name_machine() -> str:
    """The CPU with its features and cores, for example "AMD EPYC (AVX-512), 2 cores"."""
    return f"{name_cpu()}, {os.cpu_count()} cores"


def keep_rows(command: str, rows: list[Figures], names: Iterable[str] | None = None) -> None:
    """Put a command's rows into `results/`, each in place of an earlier one of its name.

    `names` are all rows of the command, in order: other rows are dropped. Default: all are kept.
    """
    machine = name_machine()
    path = RESULTS / command / (re.sub(r"[^a-z0-9.]+", "-", machine.lower()).strip("-") + ".json")
    kept = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.exists() else []
    merged = {row["name"]: row for row in [*kept, *rows]}
    save_rows(path, [merged[name] for name in names or merged if name in merged], machine)


def save_rows(path: Path, rows: list[Figures], machine: str | None = None) -> None:
    """Write rows with their machine's name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figures = {"machine": machine or name_machine(), "rows": rows}
    path.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


def write_tables() -> None:
    """Write the tables of `results/` into the READMEs."""
    subprocess.run(
        [sys.executable, ROOT / "scripts" / "publish" / "results.py", "--only", "tables", "--write"], check=True
    )
