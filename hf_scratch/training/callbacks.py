# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Trainer callbacks: the clock, and the ways in which a run stops before its last update."""

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
from transformers.trainer_utils import IntervalStrategy, SaveStrategy

from .runs import how_to_go_on


class TrainingTime(TrainerCallback):
    """Write the minutes since the start of training into the log. A resumed run continues from its last entry."""

    entries_before = 0

    def on_train_begin(self, args, state, control, **kwargs):
        """Start the clock."""
        before = [entry["minutes"] for entry in state.log_history if "minutes" in entry]
        self.start = time.monotonic() - 60 * (before[-1] if before else 0.0)
        self.entries_before = len(state.log_history)  # of the run that is resumed

    def on_log(self, args, state, control, **kwargs):
        """Read it."""
        if state.log_history and hasattr(self, "start"):
            state.log_history[-1]["minutes"] = (time.monotonic() - self.start) / 60


def any_process(flag: bool) -> bool:
    """Whether `flag` is true on one of the processes. All of them have to call this, and get the same answer."""
    state = PartialState()
    if state.num_processes == 1:
        return flag
    return bool(reduce(torch.tensor(float(flag), device=state.device), "sum"))


class TimeLimit(TrainerCallback):
    """Stop after `minutes`, with a last evaluation and checkpoint where the run has any. A resumed run starts anew."""

    def __init__(self, minutes: float):
        if not minutes > 0:
            raise ValueError(f"`max_minutes` must be above 0, got {minutes}.")
        self.seconds = 60 * minutes

    def on_train_begin(self, args, state, control, **kwargs):
        """Start the clock."""
        self.start = time.monotonic()

    def on_step_end(self, args, state, control, **kwargs):
        """Stop when it is time."""
        if any_process(time.monotonic() - self.start > self.seconds):
            control.should_training_stop = True
            # with strategy "epoch", Trainer evaluates and saves by itself after the last update
            control.should_evaluate |= args.eval_strategy == IntervalStrategy.STEPS
            control.should_save |= args.save_strategy == SaveStrategy.STEPS


def ends_epoch(state: TrainerState) -> bool:
    """Whether Trainer does the work of an epoch's end after this update: it ends an epoch, or the training."""
    return float(state.epoch).is_integer() or state.global_step >= state.max_steps


class SaveAfterEvaluation(TrainerCallback):
    """Evaluate first where an update ends an epoch, at whose end an evaluation is due, and is to be saved as well.

    Trainer saves after the update and evaluates after the epoch. A run resumed from that checkpoint would leave the
    evaluation out, and go on with other random numbers.
    """

    def on_step_end(self, args, state, control, **kwargs):
        """Put the checkpoint off."""
        self.put_off = control.should_save and ends_epoch(state) and args.eval_strategy == IntervalStrategy.EPOCH
        control.should_save &= not self.put_off

    def on_epoch_end(self, args, state, control, **kwargs):
        """Save now."""
        control.should_save |= getattr(self, "put_off", False)
        self.put_off = False


class StopOnSignal(TrainerCallback):
    """SIGTERM or Ctrl-C: finish the update, save a checkpoint, and exit with 143 or 130. A second Ctrl-C ends at once.

    A resumed run ends with the same weights as one that was not stopped. An evaluation that is under way is finished
    first. The callback has no effect outside the main thread, where Python allows no signal handlers.
    """

    def __init__(self):
        self.received = None  # the signal's number
        self.has_stopped = False
        self.saves_early = False  # a checkpoint that `save_strategy` does not ask for

    def on_train_begin(self, args, state, control, **kwargs):
        """Take the signals over."""
        self.received, self.has_stopped, self.saves_early, self.before = None, False, False, {}
        if threading.current_thread() is threading.main_thread():
            self.before = {number: signal.signal(number, self.receive) for number in (signal.SIGTERM, signal.SIGINT)}

    def receive(self, number, frame):
        """Note the signal; the next `on_step_end` acts on it."""
        # a launcher passes Ctrl-C on to processes that the terminal has already sent it to
        if self.received == number == signal.SIGINT and PartialState().num_processes == 1:
            raise KeyboardInterrupt
        if self.received is None and PartialState().is_main_process:
            name = signal.Signals(number).name
            os.write(2, f"\n{name}: stopping after this update, with a checkpoint\n".encode())
        self.received = self.received or number

    def on_step_end(self, args, state, control, **kwargs):
        """Stop, with a checkpoint. It is saved after the evaluation if one is due at the end of this epoch."""
        if any_process(self.received is not None):
            self.has_stopped = control.should_training_stop = True
            is_due = args.save_strategy == SaveStrategy.EPOCH and ends_epoch(state)
            self.saves_early = not (control.should_save or is_due)
            control.should_save |= self.saves_early

    def on_epoch_end(self, args, state, control, **kwargs):
        """Leave out what Trainer does at the end of an epoch, where the epoch has not ended."""
        if self.has_stopped and not ends_epoch(state):
            control.should_evaluate = control.should_save = False

    def on_train_end(self, args, state, control, **kwargs):
        """Give the signals back, and exit if one has stopped the training.

        Raises:
            SystemExit: 128 + the signal's number.
        """
        for number, handler in self.before.items():
            signal.signal(number, handler)
        if self.has_stopped:
            if PartialState().is_main_process:
                text = f"Stopped after update {state.global_step:,}. {how_to_go_on(args.output_dir)}"
                tqdm.write(text, file=sys.stderr)  # beside the progress bar
            raise SystemExit(128 + (self.received or signal.SIGTERM))
        if self.received is not None:  # it came after the last update
            signal.raise_signal(self.received)


def stopping_callbacks(data_args, args: TrainingArguments) -> list[TrainerCallback]:
    """What `max_minutes` and `early_stopping_patience` of a script's DataArguments ask for, and `StopOnSignal`.

    Raises:
        ValueError: early stopping without evaluations, or without the best model at the end.
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
        args.restore_callback_states_from_checkpoint = True  # a resumed run goes on counting
        callbacks.append(EarlyStoppingCallback(data_args.early_stopping_patience))
    return callbacks
