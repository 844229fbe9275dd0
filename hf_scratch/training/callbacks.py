# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Trainer callbacks: the clock, and the stops before the last update."""

import os
import signal
import sys
import threading
import time

import torch
from accelerate import PartialState
from accelerate.utils import reduce
from tqdm.auto import tqdm
from transformers import EarlyStoppingCallback, TrainerCallback, TrainerState, TrainingArguments

from .runs import how_to_go_on


class TrainingTime(TrainerCallback):
    """Add the minutes since the start of training to each log entry. A resumed run continues from its last entry."""

    def on_train_begin(self, args, state, control, **kwargs):
        """Start the clock."""
        before = [entry["minutes"] for entry in state.log_history if "minutes" in entry]
        self.start = time.monotonic() - 60 * (before[-1] if before else 0.0)

    def on_log(self, args, state, control, **kwargs):
        """Write the minutes into the newest entry."""
        if state.log_history and hasattr(self, "start"):
            state.log_history[-1]["minutes"] = (time.monotonic() - self.start) / 60


def any_process(flag: bool) -> bool:
    """Return whether `flag` is true on at least one process. All processes must call this; all get the same answer."""
    state = PartialState()
    if state.num_processes == 1:
        return flag
    return bool(reduce(torch.tensor(float(flag), device=state.device), "sum"))


def ends_epoch(state: TrainerState) -> bool:
    """Return whether Trainer does its end-of-epoch work after this update, the last of an epoch or of the training."""
    return float(state.epoch).is_integer() or state.global_step >= state.max_steps


class StopCallback(TrainerCallback):
    """Base of the callbacks that stop a run early, between two updates.

    The stopping update is logged, evaluated and saved only as in a run that goes on. `CheckpointKeeper` adds an early
    checkpoint after that.
    """

    has_stopped = False

    def is_due(self) -> bool:
        """Return whether this process wants to stop now."""
        raise NotImplementedError

    def on_train_begin(self, args, state, control, **kwargs):
        """Forget an earlier stop."""
        self.has_stopped = False

    def on_step_end(self, args, state, control, **kwargs):
        """Stop after this update, if it is due on one of the processes."""
        if any_process(self.is_due()):
            self.has_stopped = control.should_training_stop = True


class TimeLimit(StopCallback):
    """Stop after `minutes` of training, with a checkpoint. A resumed run starts its clock at zero."""

    def __init__(self, minutes: float):
        self.seconds = 60 * minutes

    def is_due(self) -> bool:
        """Return whether the time is up."""
        return time.monotonic() - self.start > self.seconds

    def on_train_begin(self, args, state, control, **kwargs):
        """Start the clock."""
        super().on_train_begin(args, state, control, **kwargs)
        self.start = time.monotonic()


class StopOnSignal(StopCallback):
    """On SIGTERM or Ctrl-C, finish the update, save a checkpoint, and exit with 143 or 130.

    An evaluation that is under way is finished first. A second Ctrl-C ends the process at once. Outside the main
    thread, where Python allows no signal handlers, the callback has no effect.
    """

    def __init__(self):
        self.received = None  # the signal's number
        self.before = {}  # the signal handlers that were there before

    def is_due(self) -> bool:
        """Return whether a signal has come."""
        return self.received is not None

    def on_train_begin(self, args, state, control, **kwargs):
        """Install the signal handlers."""
        super().on_train_begin(args, state, control, **kwargs)
        self.received, self.before = None, {}
        if threading.current_thread() is threading.main_thread():
            self.before = {number: signal.signal(number, self.receive) for number in (signal.SIGTERM, signal.SIGINT)}

    def receive(self, number, frame):
        """Note the signal; the next `on_step_end` acts on it."""
        # a launcher passes Ctrl-C on to processes that have already got it from the terminal
        if self.received == number == signal.SIGINT and PartialState().num_processes == 1:
            raise KeyboardInterrupt
        if self.received is None and PartialState().is_main_process:
            name = signal.Signals(number).name
            os.write(2, f"\n{name}: stopping after this update, with a checkpoint\n".encode())
        self.received = self.received or number

    def on_train_end(self, args, state, control, **kwargs):
        """Restore the previous signal handlers, and exit if a signal has stopped the training.

        Raises:
            SystemExit: 128 + the signal's number.
        """
        for number, handler in self.before.items():
            signal.signal(number, handler)
        if self.has_stopped:
            if PartialState().is_main_process:
                text = f"Stopped after update {state.global_step:,}. {how_to_go_on(args.output_dir)}"
                tqdm.write(text, file=sys.stderr)  # does not break the progress bar
            raise SystemExit(128 + (self.received or signal.SIGTERM))
        if self.received is not None:  # the signal came after the last update
            signal.raise_signal(self.received)


def stopping_callbacks(data_args, args: TrainingArguments) -> list[TrainerCallback]:
    """Make `StopOnSignal`, and the callbacks for `max_minutes` and `early_stopping_patience`.

    Args:
        data_args: a script's DataArguments.
        args: the training arguments. With early stopping, `restore_callback_states_from_checkpoint` is set: a resumed
            run continues its count.

    Raises:
        ValueError: early stopping without evaluations, or without `load_best_model_at_end`.
    """
    callbacks = [StopOnSignal()]
    if data_args.max_minutes is not None:
        callbacks.append(TimeLimit(data_args.max_minutes))
    if data_args.early_stopping_patience is not None:
        if args.eval_strategy == "no" or not args.load_best_model_at_end:
            raise ValueError(
                f"`early_stopping_patience` is {data_args.early_stopping_patience}, which needs "
                "`load_best_model_at_end` and an `eval_strategy` of steps or epoch. Set them, or leave it out."
            )
        args.restore_callback_states_from_checkpoint = True
        callbacks.append(EarlyStoppingCallback(data_args.early_stopping_patience))
    return callbacks
