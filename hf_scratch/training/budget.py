# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Fit a training into a time: measure some updates, then choose schedule and evaluations as plain flags."""

import copy
import json
import logging
import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import PrinterCallback, TrainerCallback, TrainingArguments
from transformers.trainer_utils import IntervalStrategy, SaveStrategy
from transformers.utils import is_torch_bf16_gpu_available

from ..errors import UserError, without_option
from ..loading import require_output_dir
from .callbacks import StopCallback, highest_of_processes
from .machines import on_main_process
from .parsing import given_arguments
from .training_arguments import check_validation_data

PLAN = ".budget.json"  # in the run's folder: the flags that were chosen
SHARE, MOST = 0.01, 0.05  # of the time, to warm up and to measure each; of the time, for each at most
FEWEST = 5  # updates to warm up, and to measure; fewer if they take longer than that
MOST_EVALUATIONS, FEWEST_EVALUATIONS, EVALUATION_SHARE = 10, 4, 0.1
WARMUP_SHARE, RESERVE = 1 / 8, 0.03  # of the updates; of the time, for checkpoints and the card
SAMPLE = 128  # texts or rows that are scored to measure how long that takes


@dataclass
class Speed:
    """What was measured of a training, in seconds.

    Attributes:
        update: of an update.
        epochs: passes over the training data in an update; no time.
        row: to evaluate a text or pair of the validation data; 0 without evaluations.
        rows: texts or pairs of the validation data.
        scoring: of the final scores of the validation and test data.
    """

    update: float
    epochs: float
    row: float
    rows: int
    scoring: float


def choose_flags(speed: Speed, seconds: float) -> dict[str, Any]:
    """Choose the schedule of a training that ends, with its evaluations, after `seconds`.

    After a warm-up of an eighth of the updates, a cosine falls to zero. Evaluations take a tenth of the time at
    most: ten, or fewer, down to four. If four take longer, they see the first `max_eval_samples` rows alone.

    Raises:
        UserError: there is no time for ten updates.
    """
    evaluations, rows, one = MOST_EVALUATIONS, speed.rows, 0.0
    if speed.row:
        allowed = EVALUATION_SHARE * seconds
        rows = min(rows, math.ceil(allowed / FEWEST_EVALUATIONS / speed.row))
        one = rows * speed.row
        evaluations = min(MOST_EVALUATIONS, max(FEWEST_EVALUATIONS, int(allowed / one)))
    left = seconds * (1 - RESERVE) - speed.scoring - evaluations * one
    interval = int(left / speed.update / evaluations)  # updates between evaluations
    if interval * evaluations < 10:
        raise UserError(
            f"`budget_minutes` leaves no time for ten updates of {speed.update:.1f} s: {seconds:.0f} s are left, of "
            f"which {evaluations} evaluations take {evaluations * one:.0f} s, and the final scores {speed.scoring:.0f}"
            f" s (`max_eval_samples` and `max_predict_samples` make them shorter)."
        )
    updates = interval * evaluations
    flags: dict[str, Any] = {
        "max_steps": updates,
        "lr_scheduler_type": "cosine",
        "warmup_steps": math.ceil(WARMUP_SHARE * updates),
        "logging_steps": max(1, updates // 50),
        "save_strategy": "steps",
        "save_steps": interval,
    }
    if speed.row:
        flags |= {"eval_strategy": "steps", "eval_steps": interval}
        if rows < speed.rows:
            flags["max_eval_samples"] = rows
    return flags


class _UpdateClock(TrainerCallback):
    """Stops a training as soon as enough of its updates are timed. As many come before, which are slower.

    It waits for the device only where it begins to count and where it ends: host and device work side by side.
    """

    def __init__(self, seconds: float):
        self.seconds, self.is_warm = seconds, False
        self.start: float | None = None
        self.updates = 0  # since then
        self.seconds_per_update = math.nan  # the mean of those that count

    def on_step_end(self, args, state, control, **kwargs):
        if self.start is not None:
            self.updates += 1
            limit = self.seconds * (1 if self.updates >= FEWEST else MOST / SHARE)
            if not highest_of_processes(int(time.monotonic() - self.start > limit)):
                return
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()
        now = time.monotonic()
        if self.start is not None and self.is_warm:
            self.seconds_per_update = (now - self.start) / self.updates
            control.should_training_stop = True
        self.is_warm = self.start is not None
        self.start, self.updates = now, 0


def fit_budget(
    data_args,
    args: TrainingArguments,
    checkpoint: str | None,
    begin: float,
    start: Callable[[list[str]], tuple],
    prepare: Callable[..., tuple],
    time_scoring: Callable[..., tuple[float, float]],
) -> None:
    """Replace `--budget_minutes` on this process's command line by the flags of a training that takes so long.

    The rest of the command then sees a plain training, whose record has the plain flags: they repeat it exactly. A
    resumed run takes the flags that its first part chose. All processes must call this.

    Args:
        data_args: a script's DataArguments.
        args: the training arguments.
        checkpoint: the folder that the run is resumed from, or None.
        begin: when the time began, by `time.monotonic()`.
        start: reads a command line, as `start_training_command`.
        prepare: called with what `start` returns, it returns a trainer and other things. The trainer is trained for a
            few updates, and thrown away.
        time_scoring: called with `start`'s data and training arguments and all that `prepare` returns, returns the
            seconds to generate for a validation row in an evaluation, and those of the scores at the end.

    Raises:
        UserError: see `choose_flags`.
    """
    words = sys.argv[1:]
    file = Path(require_output_dir(args) if checkpoint is None else Path(checkpoint).parent, PLAN)
    end = begin + 60 * data_args.budget_minutes
    fixed: dict[str, Any] = {} if given_arguments() & {"bf16", "fp16"} else choose_precision(args)
    if args.lr_scheduler_kwargs:  # of another schedule than the one that is chosen
        fixed["lr_scheduler_kwargs"] = "{}"
    speed = None
    if checkpoint is None:
        if args.should_save:
            print("Measuring updates, evaluations and scores", flush=True)
        arguments = start([*words, *(f"--{name}={value}" for name, value in fixed.items())])
        logging.disable(logging.INFO)
        speed = measure_speed(arguments, prepare, time_scoring)
        logging.disable(logging.NOTSET)

    def choose() -> dict[str, Any]:
        if speed is None:
            return json.loads(file.read_text(encoding="utf-8"))
        flags = choose_flags(speed, end - time.monotonic()) | fixed
        file.write_text(json.dumps(flags), encoding="utf-8")
        print(describe_plan(flags, speed, end), flush=True)
        return flags

    chosen = [f"--{name}={value}" for name, value in on_main_process(choose).items()]
    plain = without_option(words, "budget_minutes")
    if "budget_minutes" in given_arguments(plain):  # it is in the recipe
        chosen.append("--budget_minutes=0")
    sys.argv[1:] = [*plain, *chosen]


def choose_precision(args: TrainingArguments) -> dict[str, bool]:
    """Return the flags of bfloat16, where the GPU or the CPU has instructions for it."""
    if args.device.type != "cpu":
        return {"bf16": True} if is_torch_bf16_gpu_available() else {}
    capabilities = getattr(torch.cpu, "get_capabilities", dict)()  # torch 2.13 has it
    has_bf16 = any(value for name, value in capabilities.items() if name.endswith("bf16"))
    return {"bf16": True, "use_cpu": True} if has_bf16 else {}


def measure_speed(arguments: tuple, prepare: Callable, time_scoring: Callable) -> Speed:
    """Train for a few updates, evaluate some rows, and score some texts. See `fit_budget`."""
    model_args, data_args, args, config_overrides, _ = arguments
    data_args, short = copy.copy(data_args), copy.copy(args)
    data_args.average_checkpoints, data_args.early_stopping_patience = 0, None
    short.max_steps, short.report_to, short.disable_tqdm = sys.maxsize, [], True
    short.learning_rate = 0.0  # without a warm-up, the weights might go astray
    short.eval_strategy = short.logging_strategy = IntervalStrategy.NO
    short.save_strategy = SaveStrategy.NO
    short.load_best_model_at_end = short.push_to_hub = False
    vars(short).pop("predict_with_generate", None)  # whose default is False
    trainer, texts, *others = prepare(model_args, data_args, short, config_overrides, None)
    if trainer.eval_dataset is None:
        check_validation_data(args, ["train"])
    clock = _UpdateClock(60 * SHARE * data_args.budget_minutes)
    trainer.add_callback(clock)
    trainer.remove_callback(StopCallback)  # it would leave a checkpoint of this training
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    trainer.model.eval()
    trainer.remove_autocast()
    count, row = 0 if args.eval_strategy == IntervalStrategy.NO else len(texts["validation"]), 0.0
    if count:
        rows: Any = trainer.eval_dataset  # of token ids; texts may share one
        sample = every_nth(rows)
        row = trainer.evaluate(sample)["eval_runtime"] / len(sample) * len(rows) / count
    generation, scoring = time_scoring(data_args, args, trainer, texts, *others)
    return Speed(
        update=clock.seconds_per_update,
        epochs=float(trainer.state.epoch or 0) / trainer.state.global_step,
        row=row + generation if count else 0.0,
        rows=count,
        scoring=scoring,
    )


def every_nth(rows: Dataset) -> Dataset:
    """About `SAMPLE` rows, evenly spaced."""
    return rows.select(range(0, len(rows), math.ceil(len(rows) / SAMPLE)))


def describe_plan(flags: dict[str, Any], speed: Speed, end: float) -> str:
    """Return the plan in words, e.g. "2,310 updates of 0.45 s (19.4 epochs), ..., done at 14:32"."""
    updates = flags["max_steps"]
    done = datetime.now() + timedelta(seconds=end - time.monotonic())
    parts = [f"{updates:,} updates of {speed.update:.3g} s ({updates * speed.epochs:.1f} epochs)"]
    if "eval_steps" in flags:
        rows = flags.get("max_eval_samples", speed.rows)
        parts.append(f"{updates // flags['eval_steps']} evaluations of {rows:,} rows")
    if speed.scoring:
        parts.append(f"{speed.scoring:.0f} s of final scores")
    return f"{', '.join(parts)}; done at {done:%H:%M}."
