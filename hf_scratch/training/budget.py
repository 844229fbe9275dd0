# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Fit a training into a time: measure some steps, then choose model, batch, schedule and evaluations as options."""

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

import numpy as np
import torch
from datasets import Dataset
from torch.optim import SGD
from transformers import PrinterCallback, TrainerCallback, TrainingArguments, get_cosine_schedule_with_warmup
from transformers.utils import is_torch_bf16_gpu_available

from ..data.cache import is_prepared
from ..errors import UserError
from ..manifest import write_json
from ..recipes import SIZES, recipe_to_flags
from .arguments import check_validation_data
from .callbacks import LengthCallback, StopCallback, highest_of_processes
from .command_line import TrainingCommand
from .main_process import on_main_process

PLAN = ".budget.json"  # in the run's folder: the options that were chosen
TIMED_FRACTION, MAX_TIMED_FRACTION = 0.005, 0.02  # of the time, for the first steps, and as much for the timed ones
MIN_STEPS = 100  # of a training, if one of the choices allows it
DIVISORS = (1, 2, 4, 8)  # of the recipe's batch, for the choices
MIN_TIMED_STEPS = 5  # unless they take longer than MAX_TIMED_FRACTION
MIN_EVALUATIONS, EVALUATIONS, MAX_EVALUATIONS = 4, 10, 100
EVALUATION_EPOCHS, EVALUATION_STEPS = 4, 10  # between more than ten evaluations: the larger of both
EVALUATION_FRACTION = 0.1  # of the time, for all evaluations, at most
WARMUP_FRACTION = 1 / 8  # of the steps
DROPOUT_EPOCHS = 6  # of a training whose model has dropout; fewer learn nothing by heart
RESERVED_FRACTION = 0.03  # of the time, for checkpoints and the card
TRAINING_FRACTION = 0.8  # of the time, about, is for steps
DELAY_FRACTION = 0.3  # of the steps that are left, by which a training may be late or early before it is planned again
MODEL_FACTOR, BATCH_FACTOR, REPETITION = 0.5, 2.3, 180  # of `predict_loss`; measured, see scripts/README.md
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
        scored_row: of the final evaluation and score of one of them.
        test: of the final score of the test data.
    """

    step: float
    epochs: float
    row: float
    rows: int
    scored_row: float
    test: float

    def scoring(self, rows: int) -> float:
        """Of the final scores, with as many rows of the validation data."""
        return self.test + self.scored_row * rows


def choose_options(speed: Speed, seconds: float, can_cut: bool = True) -> dict[str, Any]:
    """Choose the schedule of a training that ends, with its evaluations, after `seconds`.

    After a warm-up of an eighth of the steps, a cosine falls to zero. The weights of the best evaluation are kept.
    There are ten, or one in four epochs and at least ten steps if these are more, up to a hundred: a small set is
    soon learnt by heart. They take a tenth of the time at most, or are fewer, down to four. If four take longer and
    rows can be cut, they see `max_eval_samples` rows alone.

    Raises:
        UserError: there is no time for ten steps.
    """
    allowed, rows = EVALUATION_FRACTION * seconds, speed.rows
    if speed.row and can_cut:
        rows = min(rows, math.ceil(allowed / MIN_EVALUATIONS / speed.row))
    one, scoring = rows * speed.row, speed.scoring(rows)
    evaluations, left = EVALUATIONS, seconds * (1 - RESERVED_FRACTION) - scoring
    if speed.row:
        wanted = int(left / speed.step * min(speed.epochs / EVALUATION_EPOCHS, 1 / EVALUATION_STEPS))
        wanted = min(MAX_EVALUATIONS, max(EVALUATIONS, wanted))
        evaluations = min(wanted, max(MIN_EVALUATIONS, int(allowed / one)))
    left -= evaluations * one
    interval = int(left / speed.step / evaluations)  # steps between evaluations
    if interval * evaluations < 10:
        raise UserError(
            f"`budget_minutes` leaves no time for ten steps of {speed.step:.1f} s: {seconds:.0f} s are left, of "
            f"which {evaluations} evaluations take {evaluations * one:.0f} s, and the final scores {scoring:.0f}"
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
        options |= {"eval_strategy": "steps", "eval_steps": interval, "load_best_model_at_end": True}
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


class Replanner(LengthCallback):
    """Plans the rest of a training again where steps or evaluations take another time than measured.

    It then has fewer or more steps. Its schedule is that of a training which was begun with as many in all, but the
    warm-up becomes no longer. The plan and the run's command are written anew: the run is then as one that was resumed
    with these options.

    Args:
        file: the plan's.
        options: the plan's.
        speed: what was measured.
        begin: when the time began.
        end: when it ends.
    """

    def __init__(self, file: Path, options: dict[str, Any], speed: Speed, begin: float, end: float):
        self.file, self.options, self.speed, self.begin, self.end = file, options, speed, begin, end
        self.rows = options.get("max_eval_samples", speed.rows)  # of an evaluation, and of the final scores
        self.evaluation = self.rows * speed.row  # seconds: as measured before, later those of the last one
        self.last = time.monotonic()  # when the last step, evaluation or checkpoint ended
        self.step = speed.step  # seconds; recent ones count more
        self.times: list[float] = []  # seconds of each step since it was changed

    def on_step_end(self, args, state, control, lr_scheduler: Any = None, **kwargs):
        now = time.monotonic()
        self.times.append(now - self.last)
        self.last = now
        is_due = state.global_step < state.max_steps and state.global_step % args.logging_steps == 0
        part = min(args.save_steps, state.max_steps - state.global_step)  # the steps of an interval, or what is left
        if not is_due or len(self.times) < max(MIN_TIMED_STEPS, part / 2):
            return
        self.step = (self.step + float(np.mean(sorted(self.times)[:-1]))) / 2  # a pause does not count
        self.times = []
        left = self.end - now - RESERVED_FRACTION * (self.end - self.begin) - self.speed.scoring(self.rows)

        def count_steps(evaluations: int) -> int:  # for which there is time on each process
            return -highest_of_processes(-int((left - evaluations * self.evaluation) / self.step))

        ahead = state.max_steps // args.save_steps - state.global_step // args.save_steps  # evaluations
        ahead = max(1, min(ahead, count_steps(0) // EVALUATION_STEPS))  # each after some steps, the last at the end
        possible, steps_left = count_steps(ahead), state.max_steps - state.global_step
        if abs(steps_left - possible) <= DELAY_FRACTION * max(steps_left, state.max_steps / 10):
            return  # a few steps at the end do not matter
        steps = state.global_step + max(ahead, possible)
        wanted = max(1, possible // ahead)  # steps between evaluations, the last of which should end the training
        interval = min(range(wanted, 2 * wanted + 1), key=lambda each: steps % each)
        steps -= steps % interval
        if possible > steps_left and steps <= state.max_steps:
            return
        warmup = min(self.options["warmup_steps"], max(state.global_step, math.ceil(WARMUP_FRACTION * steps)))
        changed = {"max_steps": steps, "warmup_steps": warmup, "save_steps": interval}
        if "eval_steps" in self.options:
            changed["eval_steps"] = interval
        if args.should_save:
            write_json(self.options | changed, self.file)
            print(f"\nA new plan: {steps:,} steps; the last ones took about {self.step:.3g} s each.", flush=True)
        self.options |= changed
        args.words = [*args.words[: -len(self.options)], *recipe_to_flags(self.options)]
        for name, value in changed.items():
            setattr(args, name, value)
            if hasattr(state, name):
                setattr(state, name, value)
        for callback in self.progress:
            if callback.training_bar is not None:  # it is None on other processes than the first
                callback.training_bar.total = steps
        lambdas = get_cosine_schedule_with_warmup(SGD([torch.zeros(1)]), warmup, steps).lr_lambdas
        lr_scheduler.lr_lambdas = lambdas * len(lr_scheduler.lr_lambdas)

    def on_evaluate(self, args, state, control, **kwargs):
        self.evaluation, self.last = time.monotonic() - self.last, time.monotonic()

    def on_save(self, args, state, control, **kwargs):
        self.last = time.monotonic()


def fit_budget(
    arguments: TrainingCommand,
    checkpoint: str | None,
    begin: float,
    prepare: Callable[[TrainingCommand, str | None], tuple],
    time_scoring: Callable[..., tuple[float, float, float]],
) -> TrainingCommand:
    """Return the arguments of a plain training that takes `budget_minutes`; without a budget, these arguments.

    Where the recipe has `sizes`, model and batch are chosen too: see `choose_model_and_batch`. A model of the recipe's
    then has no dropout in less than six epochs. The record has the options that were chosen as flags, which repeat the
    training exactly, unless a `Replanner` changes them. A resumed run takes the options that its first part chose.
    All processes must call this.

    Args:
        arguments: the training's.
        checkpoint: the folder that the run is resumed from, or None.
        begin: when the time began, by `time.monotonic()`.
        prepare: called with arguments and None, it returns a trainer and other things. The trainer is trained for a
            few steps, and thrown away.
        time_scoring: called with the arguments and all that `prepare` returns, returns the seconds to generate for a
            validation row in an evaluation, to score such a row at the end, and to score the test data.

    Raises:
        UserError: the run that is resumed was begun without a budget, or see `choose_options`.
    """
    minutes = arguments.data_args.budget_minutes
    if minutes is None:
        return arguments
    file = Path(arguments.args.output_dir, PLAN)
    if checkpoint is not None:
        return arguments.change(on_main_process(lambda: take_plan(Path(checkpoint).with_name(PLAN), file)))
    if arguments.args.should_save:
        print("Measuring steps, evaluations and scores", flush=True)
    fixed: dict[str, Any] = {} if arguments.given & {"bf16", "fp16"} else choose_precision(arguments.args)
    if arguments.args.lr_scheduler_kwargs:  # of another schedule than the one that is chosen
        fixed["lr_scheduler_kwargs"] = {}
    end = begin + 60 * minutes
    logging.disable(logging.INFO)
    fixed |= choose_model_and_batch(arguments, MEASURING | fixed, end, prepare)
    speed = measure_speed(arguments, arguments.change(fixed | MEASURING), prepare, time_scoring)
    logging.disable(logging.NOTSET)

    def plan() -> dict[str, Any]:
        can_cut = not is_prepared(arguments.data_args.dataset_name)
        options = choose_options(speed, end - time.monotonic(), can_cut) | fixed
        about_model = ["a smaller model than the recipe's"] if "config_overrides" in options else []
        model = options.get("config_overrides", arguments.values["config_overrides"])
        without = {name: 0.0 for name in model if name.endswith("dropout")}
        is_chosen = SIZES in arguments.recipe and "config_overrides" not in arguments.flags
        # R-Drop needs dropout, and the epochs of a stream are unknown
        is_needed = arguments.data_args.streaming or arguments.values.get("r_drop_alpha")
        if without and is_chosen and not is_needed and options["max_steps"] * speed.epochs < DROPOUT_EPOCHS:
            options["config_overrides"] = model | without
            about_model.append("no dropout")
        write_json(options, file)
        print(describe_plan(options, speed, end, about_model), flush=True)
        return options

    options = on_main_process(plan)
    planned = arguments.change(options)
    planned.callbacks = [Replanner(file, options, speed, begin, end)]
    return planned


def choose_model_and_batch(
    arguments: TrainingCommand, measuring: dict[str, Any], end: float, prepare: Callable
) -> dict[str, Any]:
    """Choose the model among the recipe's and the smaller ones of its `sizes`, and the batch among parts of it.

    The choice has the lowest `predict_loss` at `end` of those that make `MIN_STEPS` steps; if none does, it makes
    the most steps. A model of half the width has twice the learning rate. What a flag gives stays: the batch, the
    learning rate, and with `config_overrides` the model. A recipe without `sizes` has no choice.
    """
    values, name = arguments.values, "global_batch_size"
    if values.get("max_tokens_per_update"):
        name = "max_tokens_per_update"
    batch, unit = values.get(name), values.get("block_size", 1)  # tokens of a row
    if SIZES not in arguments.recipe or not batch:
        return {}
    longest = 2 * max(values["max_source_length"], values["max_target_length"]) if "max_source_length" in values else 1
    divisors = [1] if name in arguments.flags else [
        part for part in DIVISORS if batch % (part * arguments.args.world_size) == 0 and batch // part >= longest
    ]  # fmt: skip
    models = [{}] if "config_overrides" in arguments.flags else [{}, *arguments.smaller_models]

    def options(model: dict[str, Any], part: int) -> dict[str, Any]:
        return model | ({name: batch // part} if part > 1 else {})

    choices = []
    for model in models if len(models) * len(divisors) > 1 else []:
        times = {}
        for part in {divisors[-1], divisors[min(1, len(divisors) - 1)]}:  # 8 and 2: the others are near the line
            trainer, *_ = prepare(arguments.change(options(model, part) | measuring), None)
            times[1 / part] = time_steps(trainer, arguments)
        parameters, seconds = trainer.model.num_parameters(), max(1.0, end - time.monotonic())
        data = batch // part * unit * trainer.state.global_step / trainer.state.epoch
        for part in divisors:
            step = float(np.polyval(np.polyfit([*times], [*times.values()], len(times) - 1), 1 / part))
            steps = seconds * TRAINING_FRACTION / max(step, min(times.values()))
            loss = predict_loss(parameters, steps, batch // part * unit, data)
            choices.append((max(0.0, MIN_STEPS - steps), loss, options(model, part)))
    return on_main_process(lambda: min(choices, key=lambda choice: choice[:2])[2]) if choices else {}


def predict_loss(parameters: int, steps: float, batch: int, data: float) -> float:
    """Predict a validation loss up to constants, for a comparison of models and batches of `batch` tokens.

    The form and its exponents are those of Hoffmann et al. 2022 ("Training Compute-Optimal Large Language Models").
    Tokens of large batches count less (McCandlish et al. 2018, "An Empirical Model of Large-Batch Training"), beyond
    a size that grows with the square root of all tokens (Zhang et al. 2024, "How Does Critical Batch Size Scale in
    Pre-training?"). So do tokens that are repeated: `data` are those of an epoch (Muennighoff et al. 2023, "Scaling
    Data-Constrained Language Models"), and the fewer they are, the sooner they are learnt by heart.
    """
    tokens = steps * batch
    tokens /= 1 + batch / (BATCH_FACTOR * tokens**0.5)
    limit = data**1.5 / REPETITION
    tokens = limit * -math.expm1(-tokens / limit)
    return MODEL_FACTOR * parameters**-0.34 + tokens**-0.28


def take_plan(file: Path, new_file: Path) -> dict[str, Any]:
    """Read the options that the first part of a run chose, and keep them where the run goes on."""
    if not file.is_file():
        raise UserError(f"{file.parent} was begun without a budget. Give its `max_steps` or `num_train_epochs`.")
    options = json.loads(file.read_text(encoding="utf-8"))
    write_json(options, new_file)
    print(f"The plan is that of the run's first part: {options['max_steps']:,} steps", flush=True)
    return options


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
    rows: Any = trainer.eval_dataset  # of token ids; documents may share one
    if rows is None:
        check_validation_data(arguments.args, ["train"])
    step = time_steps(trainer, arguments)
    trainer.model.eval()
    count, row = 0 if rows is None else len(data["validation"]), 0.0
    if count:
        sample = every_nth(rows)
        row = trainer.evaluate(sample)["eval_runtime"] / len(sample) * len(rows) / count
    trainer.remove_autocast()
    generation, score, test = time_scoring(arguments, trainer, data, *others)
    row += generation
    is_evaluated = arguments.args.eval_strategy != "no" or "eval_strategy" not in arguments.given
    return Speed(
        step=step,
        epochs=float(trainer.state.epoch or 0) / trainer.state.global_step,
        row=row if is_evaluated else 0.0,
        rows=count,
        scored_row=row + score,
        test=test,
    )


def time_steps(trainer: Any, arguments: TrainingCommand) -> float:
    """Train for a few steps, and return the seconds that one takes."""
    clock = _StepClock(60 * TIMED_FRACTION * arguments.data_args.budget_minutes)
    trainer.add_callback(clock)
    trainer.remove_callback(StopCallback)  # it would leave a checkpoint of this training
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    return clock.seconds_per_step


def every_nth(rows: Dataset) -> Dataset:
    """About `SAMPLE_ROWS` rows, evenly spaced."""
    return rows.select(range(0, len(rows), math.ceil(len(rows) / SAMPLE_ROWS)))


def describe_plan(options: dict[str, Any], speed: Speed, end: float, about_model: list[str]) -> str:
    """Return the plan in words, e.g. "2,310 steps of 0.45 s (19.4 epochs), ..., done at 14:32"."""
    steps = options["max_steps"]
    done = datetime.now() + timedelta(seconds=end - time.monotonic())
    parts = [f"{steps:,} steps of {speed.step:.3g} s ({steps * speed.epochs:.1f} epochs)"]
    parts += [
        f"{name} {options[name]:g}" for name in ("max_tokens_per_update", "global_batch_size") if name in options
    ]
    parts += about_model
    rows = options.get("max_eval_samples", speed.rows)
    if "eval_steps" in options:
        parts.append(f"{steps // options['eval_steps']} evaluations of {rows:,} rows")
    if scoring := speed.scoring(rows):
        parts.append(f"{scoring:.0f} s of final scores")
    few = f" Fewer than {MIN_STEPS} steps fit into the time: give it more." if steps < MIN_STEPS else ""
    return f"{', '.join(parts)}; done at {done:%H:%M}.{few}"
