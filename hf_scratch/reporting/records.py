# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Records of training runs: what was trained, how, and what it reached, as numbers and names.

Each training writes its record to `run.json`; the published folders keep the records of all runs they report. The
model cards format these values and nothing reads a card back.
"""

import json
import os
import platform
import re
from collections.abc import Sized
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import torch
from transformers import Trainer

from ..loading import public_name

INTERRUPTED = "interrupted"  # ended before its last update and never evaluated on the test set
# the names in /proc/cpuinfo of the instructions that decide the speed of matrix products
CPU_FEATURES = {"avx2": "AVX2", "avx512f": "AVX-512", "amx_tile": "AMX"}


class Record(TypedDict):
    """One run, or several consecutive runs joined by `join_records`.

    Attributes:
        command: the command line; one line per run, and one for each other command with which a run was resumed.
        recipe: the recipe's name, "" without one.
        parameters: the model's number of parameters.
        data: the data set's Hub id, or the last part of its path.
        updates: optimiser steps.
        epochs: passes over the training data; None if unknown.
        train_rows: rows of the training data, pairs or blocks of text. Absent for a stream, and in older records.
        input_tokens: tokens seen, without padding.
        minutes: duration of the training, without the evaluations after it, and without what a killed run did after
            its last checkpoint; None if unknown.
        date: of the end; older records lack it.
        seed: of weights, dropout and data order.
        hardware: what it was computed on: the number of training `processes`, one device each; `device`, the GPU's or
            CPU's name; `threads` of each process, which older records lack; and `cpu_cores` of the machine.
        software: version of each package that matters.
        weights: which weights were kept, for example "averaged over 10 checkpoints".
        metrics: for each split the metrics of the kept weights: `loss` in nats per token, `bits_per_byte`,
            `perplexity`, `bleu` and its relatives (0 to 100), `exact_match` and `accuracy` (0 to 1), ...
        log: `trainer.state.log_history`.
        cut: for each split with texts longer than their limit, how many were cut.
        stopped: `INTERRUPTED`. Absent of a run that ended by itself.
    """

    command: str
    recipe: str
    parameters: int
    data: str
    updates: int
    epochs: float | None
    train_rows: NotRequired[int]
    input_tokens: int
    minutes: float | None
    date: NotRequired[str]
    seed: int
    hardware: dict[str, Any]
    software: NotRequired[dict[str, str]]
    weights: NotRequired[str]
    metrics: dict[str, dict[str, Any]]
    log: list[dict[str, Any]]
    cut: NotRequired[dict[str, str]]
    stopped: NotRequired[str]


def name_cpu() -> str:
    """The CPU with its features, for example "AMD EPYC (AVX-512)"."""
    file = Path("/proc/cpuinfo")
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    name = re.search(r"model name\s*: (.+)", text)
    cpu = re.sub(r"\((?:R|TM)\)| CPU| Processor| @.*", "", name[1]).strip() if name else platform.machine()
    features = [label for flag, label in CPU_FEATURES.items() if re.search(rf"\b{flag}\b", text)]
    return f"{cpu} ({', '.join(features)})" if features else cpu


def build_record(
    trainer: Trainer,
    data_args,
    recipe: str,
    metrics: dict[str, dict[str, Any]],
    weights: str = "trained",
    cut: dict[str, str] | None = None,
) -> Record:
    """The record of a finished training.

    Args:
        trainer: after `train()`.
        data_args: the script's data arguments.
        recipe: the recipe's name, "" without one.
        metrics: for each evaluated split its metrics.
        weights: which weights were kept.
        cut: what `count_cut` returned for each split.
    """
    args, state = trainer.args, trainer.state
    # the last entry of the training itself; evaluations come after it
    minutes = next((entry["minutes"] for entry in reversed(state.log_history) if "train_runtime" in entry), None)
    is_gpu = args.device.type == "cuda"
    device = torch.cuda.get_device_name(args.device) if is_gpu else name_cpu()
    # a CheckpointKeeper's: the first command of the run, and others that resumed it
    first, *others = next(each.commands for each in trainer.callback_handler.callbacks if hasattr(each, "commands"))
    hardware = {
        "processes": args.world_size,
        "device": device,
        "threads": torch.get_num_threads(),
        "cpu_cores": os.cpu_count(),
    }
    record: Record = {
        "command": "\n".join([first, *(f"{other} --resume_from_checkpoint last" for other in others)]),
        "recipe": recipe,
        "parameters": trainer.accelerator.unwrap_model(trainer.model).num_parameters(),
        "data": public_name(data_args.dataset_name or data_args.train_file),
        "updates": state.global_step,
        "epochs": None if getattr(data_args, "streaming", False) else state.epoch,
        "input_tokens": state.num_input_tokens_seen,
        "minutes": minutes,
        "date": date.today().isoformat(),
        "seed": args.seed,
        "hardware": hardware,
        "software": {package: version(package) for package in ("torch", "transformers", "hf-scratch")},
        "weights": weights,
        "metrics": {split: values for split, values in metrics.items() if values},
        "log": state.log_history,
    }
    if cut := {split: text for split, text in (cut or {}).items() if text}:
        record["cut"] = cut
    if isinstance(trainer.train_dataset, Sized):
        record["train_rows"] = len(trainer.train_dataset)
    return record


def join_records(records: list[Record]) -> Record:
    """Merge consecutive runs, each of which started from the weights of the previous one.

    Metrics and settings come from the last run; updates, epochs, tokens and minutes are sums, and commands and
    logs are joined. Epochs of different data have no sum: they are None, and the log has none. The flag that resumes
    an interrupted run is left out of the commands.
    """
    log, updates, epochs, tokens = [], 0, 0.0, 0
    minutes = [record["minutes"] for record in records]
    has_epochs = None not in [record["epochs"] for record in records] and len({each["data"] for each in records}) == 1
    for record in records:
        offsets = {"step": updates, "num_input_tokens_seen": tokens}
        if has_epochs:
            offsets["epoch"] = epochs
            epochs += record["epochs"] or 0.0
        for entry in record["log"]:
            entry = {key: value for key, value in entry.items() if has_epochs or key != "epoch"}
            log.append(entry | {key: entry[key] + offset for key, offset in offsets.items() if key in entry})
        updates += record["updates"]
        tokens += record["input_tokens"]
    return records[-1] | {
        "command": "\n".join(
            re.sub(r" --resume_from_checkpoint (last|auto)\b", "", record["command"]) for record in records
        ),
        "updates": updates,
        "epochs": epochs if has_epochs else None,
        "input_tokens": tokens,
        "minutes": None if None in minutes else sum(filter(None, minutes)),
        "log": log,
    }


def read_record(path: Path) -> Record:
    """The record in a `run.json` or in a file of a published folder's `records`."""
    return json.loads(path.read_text(encoding="utf-8"))


def read_records(folder: Path) -> dict[str, Record]:
    """All records of a folder by name, in alphabetical order."""
    return {path.stem: read_record(path) for path in sorted(folder.glob("*.json"))}
