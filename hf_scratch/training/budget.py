# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Fit a training into a time: measure some steps, then choose schedule and evaluations as plain options."""

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
from transformers.utils import is_torch_bf16_gpu_available

from ..errors import UserError
from .arguments import check_validation_data
from .callbacks import StopCallback, highest_of_processes
from .command_line import TrainingCommand
from .main_process import on_main_process

PLAN = ".budget.json"  # in the run's folder: the options that were chosen
TIMED_FRACTION, MAX_TIMED_FRACTION = 0.01, 0.05  # of the time, for the first steps, and as much for the timed ones
MIN_TIMED_STEPS = 5  # unless they take longer than MAX_TIMED_FRACTION
MAX_EVALUATIONS, MIN_EVALUATIONS, EVALUATION_FRACTION = 10, 4, 0.1  # the last: of the time, for all of them
WARMUP_FRACTION = 1 / 8  # of the steps
RESERVED_FRACTION = 0.03  # of the time, for checkpoints and the card
SAMPLE_ROWS = 128  # that are scored to measure how long that takes
MEASURING = {  # the options of the training that is measured
    "max_steps": sys.maxsize,
    "learning_rate": 0.0,  # without a warm-up, the weights might go astray
    "lr_scheduler_type": "constant",
    "eval_strategy": "no",
    "logging_strategy": "no",
    "save_strategy": "no",
    "load_best_model_at_end": False,
    "predict_with_generate": False,
    "push_to_hub": False,
    "report_to": "none",
    "disable_tqdm": True,
    "average_checkpoints": 0,
    "early_stopping_patience": None,
}


@dataclass
class Speed:
    """What was measured of a training, in seconds.

    Attributes:
        step: of a step.
        epochs: passes over the training data in a step; no time.
        row: to evaluate a document or pair of the validation data; 0 without evaluations.
        rows: documents or pairs of the validation data.
        scoring: of the final scores of the validation and test data.
    """

    step: float
    epochs: float
    row: float
    rows: int
    scoring: float


def choose_options(speed: Speed, seconds: float) -> dict[str, Any]:
    """Choose the schedule of a training that ends, with its evaluations, after `seconds`.

    After a warm-up of an eighth of the steps, a cosine falls to zero. Evaluations take a tenth of the time at
    most: ten, or fewer, down to four. If four take longer, they see the first `max_eval_samples` rows alone.

    Raises:
        UserError: there is no time for ten steps.
    """
    evaluations, rows, one = MAX_EVALUATIONS, speed.rows, 0.0
    if speed.row:
        allowed = EVALUATION_FRACTION * seconds
        rows = min(rows, math.ceil(allowed / MIN_EVALUATIONS / speed.row))
        one = rows * speed.row
        evaluations = min(MAX_EVALUATIONS, max(MIN_EVALUATIONS, int(allowed / one)))
    left = seconds * (1 - RESERVED_FRACTION) - speed.scoring - evaluations * one
    interval = int(left / speed.step / evaluations)  # steps between evaluations
    if interval * evaluations < 10:
        raise UserError(
            f"`budget_minutes` leaves no time for ten steps of {speed.step:.1f} s: {seconds:.0f} s are left, of "
            f"which {evaluations} evaluations take {evaluations * one:.0f} s, and the final scores {speed.scoring:.0f}"
            f" s (`max_eval_samples` and `max_predict_samples` make them shorter)."
        )
    steps = interval * evaluations
    options: dict[str, Any] = {
        "max_steps": steps,
        "lr_scheduler_type": "cosine",
        "warmup_steps": math.ceil(WARMUP_FRACTION * steps),
        "logging_steps": max(1, steps // 50),
        "save_strategy": "steps",
        "save_steps": interval,
    }
    if speed.row:
        options |= {"eval_strategy": "steps", "eval_steps": interval}
        if rows < speed.rows:
            options["max_eval_samples"] = rows
    return options


class _StepClock(TrainerCallback):
    """Stops a training as soon as enough of its steps are timed. As many come before, which are slower.

    It waits for the device only where it begins to count and where it ends: host and device work side by side.
    """

    def __init__(self, seconds: float):
        self.seconds, self.is_warm = seconds, False
        self.start: float | None = None
        self.steps = 0  # since then
        self.seconds_per_step = math.nan  # the mean of the timed ones

    def on_step_end(self, args, state, control, **kwargs):
        if self.start is not None:
            self.steps += 1
            limit = self.seconds * (1 if self.steps >= MIN_TIMED_STEPS else MAX_TIMED_FRACTION / TIMED_FRACTION)
            if not highest_of_processes(int(time.monotonic() - self.start > limit)):
                return
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()
        now = time.monotonic()
        if self.start is not None and self.is_warm:
            self.seconds_per_step = (now - self.start) / self.steps
            control.should_training_stop = True
        self.is_warm = self.start is not None
        self.start, self.steps = now, 0


def fit_budget(
    arguments: TrainingCommand,
    checkpoint: str | None,
    begin: float,
    prepare: Callable[[TrainingCommand, str | None], tuple],
    time_scoring: Callable[..., tuple[float, float]],
) -> TrainingCommand:
    """Return the arguments of a plain training that takes `budget_minutes`; without a budget, these arguments.

    The record has the options that were chosen as flags, which repeat the training exactly. A resumed run takes the
    options that its first part chose. All processes must call this.

    Args:
        arguments: the training's.
        checkpoint: the folder that the run is resumed from, or None.
        begin: when the time began, by `time.monotonic()`.
        prepare: called with arguments and None, it returns a trainer and other things. The trainer is trained for a
            few steps, and thrown away.
        time_scoring: called with the arguments and all that `prepare` returns, returns the seconds to generate for a
            validation row in an evaluation, and the seconds of the scores at the end.

    Raises:
        UserError: the run that is resumed was begun without a budget, or see `choose_options`.
    """
    minutes = arguments.data_args.budget_minutes
    if minutes is None:
        return arguments
    file = Path(arguments.args.output_dir if checkpoint is None else Path(checkpoint).parent, PLAN)
    if checkpoint is not None:
        return arguments.change(on_main_process(lambda: read_plan(file)))
    if arguments.args.should_save:
        print("Measuring steps, evaluations and scores", flush=True)
    fixed: dict[str, Any] = {} if arguments.given & {"bf16", "fp16"} else choose_precision(arguments.args)
    if arguments.args.lr_scheduler_kwargs:  # of another schedule than the one that is chosen
        fixed["lr_scheduler_kwargs"] = {}
    logging.disable(logging.INFO)
    speed = measure_speed(arguments, arguments.change(MEASURING | fixed), prepare, time_scoring)
    logging.disable(logging.NOTSET)
    end = begin + 60 * minutes

    def choose() -> dict[str, Any]:
        options = choose_options(speed, end - time.monotonic()) | fixed
        file.write_text(json.dumps(options), encoding="utf-8")
        print(describe_plan(options, speed, end), flush=True)
        return options

    return arguments.change(on_main_process(choose))


def read_plan(file: Path) -> dict[str, Any]:
    """Read the options that the first part of a run chose."""
    if not file.is_file():
        raise UserError(f"{file.parent} was begun without a budget. Give its `max_steps` or `num_train_epochs`.")
    return json.loads(file.read_text(encoding="utf-8"))


def choose_precision(args: TrainingArguments) -> dict[str, bool]:
    """Return the options of bfloat16, where the GPU or the CPU has instructions for it."""
    if args.device.type != "cpu":
        return {"bf16": True} if is_torch_bf16_gpu_available() else {}
    capabilities = getattr(torch.cpu, "get_capabilities", dict)()  # torch 2.13 has it
    has_bf16 = any(value for name, value in capabilities.items() if name.endswith("bf16"))
    return {"bf16": True, "use_cpu": True} if has_bf16 else {}


def measure_speed(
    arguments: TrainingCommand, measuring: TrainingCommand, prepare: Callable, time_scoring: Callable
) -> Speed:
    """Train for a few steps with the arguments `measuring`, evaluate some rows, and score some. See `fit_budget`."""
    trainer, data, *others = prepare(measuring, None)
    if trainer.eval_dataset is None:
        check_validation_data(arguments.args, ["train"])
    clock = _StepClock(60 * TIMED_FRACTION * arguments.data_args.budget_minutes)
    trainer.add_callback(clock)
    trainer.remove_callback(StopCallback)  # it would leave a checkpoint of this training
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    trainer.model.eval()
    trainer.remove_autocast()
    count, row = 0 if arguments.args.eval_strategy == "no" else len(data["validation"]), 0.0
    if count:
        rows: Any = trainer.eval_dataset  # of token ids; documents may share one
        sample = every_nth(rows)
        row = trainer.evaluate(sample)["eval_runtime"] / len(sample) * len(rows) / count
    generation, scoring = time_scoring(arguments, trainer, data, *others)
    return Speed(
        step=clock.seconds_per_step,
        epochs=float(trainer.state.epoch or 0) / trainer.state.global_step,
        row=row + generation if count else 0.0,
        rows=count,
        scoring=scoring,
    )


def every_nth(rows: Dataset) -> Dataset:
    """About `SAMPLE_ROWS` rows, evenly spaced."""
    return rows.select(range(0, len(rows), math.ceil(len(rows) / SAMPLE_ROWS)))


def describe_plan(options: dict[str, Any], speed: Speed, end: float) -> str:
    """Return the plan in words, e.g. "2,310 steps of 0.45 s (19.4 epochs), ..., done at 14:32"."""
    steps = options["max_steps"]
    done = datetime.now() + timedelta(seconds=end - time.monotonic())
    parts = [f"{steps:,} steps of {speed.step:.3g} s ({steps * speed.epochs:.1f} epochs)"]
    if "eval_steps" in options:
        rows = options.get("max_eval_samples", speed.rows)
        parts.append(f"{steps // options['eval_steps']} evaluations of {rows:,} rows")
    if speed.scoring:
        parts.append(f"{speed.scoring:.0f} s of final scores")
    return f"{', '.join(parts)}; done at {done:%H:%M}."
