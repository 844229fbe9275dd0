# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Trainer callbacks: the clock, the count of tokens, and the stops before the last step."""

import logging
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from accelerate import PartialState
from accelerate.utils import reduce
from tqdm.auto import tqdm
from transformers import (
    EarlyStoppingCallback,
    ProgressCallback,
    Trainer,
    TrainerCallback,
    TrainerState,
    TrainingArguments,
)

from ..flops import find_peak
from ..models.scratch_base import ScratchPreTrainedModel
from .runs import resume_hint

logger = logging.getLogger(__name__)


class LengthCallback(TrainerCallback):
    """A callback that may change `max_steps` while a training runs.

    Attributes:
        progress: the callbacks with the training's progress bar, which the trainer sets.
    """

    progress: Sequence[ProgressCallback] = ()


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


def highest_of_processes(number: int) -> int:
    """Return the highest number of all processes, which all must call this. It does not wait for the device."""
    if PartialState().num_processes == 1:
        return number
    highest = torch.tensor([number])
    dist.all_reduce(highest, dist.ReduceOp.MAX, _cpu_group(dist.group.WORLD))
    return int(highest)


@cache
def _cpu_group(world) -> dist.ProcessGroup | None:
    """A second process group, for CPU tensors."""
    return dist.new_group(backend="gloo")


def ends_epoch(state: TrainerState) -> bool:
    """Return whether Trainer does its end-of-epoch work after this step, the last of an epoch or of the training."""
    return float(state.epoch).is_integer() or state.global_step >= state.max_steps


class TokenCount(TrainerCallback):
    """Count the input tokens of all processes, without padding, and the MFU where the GPU's peak is known.

    Trainer's `include_num_input_tokens_seen` waits for the device in every step. This count stays on the device until
    an entry needs it.
    """

    def on_train_begin(self, args, state, control, **kwargs):
        """Begin at zero, or at a checkpoint's count."""
        self.before, self.flops_before = state.num_input_tokens_seen, state.total_flos
        self.start = time.monotonic()
        is_ours = isinstance(kwargs.get("model"), ScratchPreTrainedModel)  # of others, they are a rough estimate
        self.peak = find_peak(args.device) if is_ours else None
        if self.peak is not None:
            logger.info(f"`mfu` is a share of {self.peak / 1e12:,.0f} TFLOP/s, the peak of this GPU in bfloat16")
        self.tokens = torch.zeros((), dtype=torch.int64, device=args.device)

    def add(self, batches: Iterable[dict[str, Any]], pad_token_id: int | None) -> None:
        """Count the tokens of batches that are about to be used."""
        for batch in batches:
            is_token = batch.get("attention_mask")
            if is_token is None and "input_ids" in batch:
                is_token = batch["input_ids"] != (-1 if pad_token_id is None else pad_token_id)
            if is_token is not None:
                self.tokens += is_token.sum()

    def on_train_end(self, args, state, control, **kwargs):
        """Write the count into the state."""
        state.num_input_tokens_seen = self.before + int(reduce(self.tokens, "sum"))

    def on_log(self, args, state, control, logs=None, **kwargs):
        """Add the count, the tokens per second and the MFU since the start to an entry of the training.

        Each checkpoint has such an entry before it (see `CheckpointKeeper`).
        """
        if logs is not None and "loss" in logs and hasattr(self, "start"):  # a user may log before the training
            self.on_train_end(args, state, control)
            seconds, tokens = time.monotonic() - self.start, state.num_input_tokens_seen
            counts = {"num_input_tokens_seen": tokens, "train_tokens_per_second": (tokens - self.before) / seconds}
            if self.peak is not None:
                peak = self.peak * args.world_size
                counts["mfu"] = (state.total_flos - self.flops_before) / seconds / peak
            logs.update(counts)
            state.log_history[-1].update(counts)


class StopCallback(TrainerCallback):
    """Stop a run early, between two steps: after `minutes`, or on SIGTERM or Ctrl-C, which exit with 143 or 130.

    The last step is evaluated and saved only if that is due. `CheckpointKeeper` adds a log entry and an early
    checkpoint after that. An evaluation that is under way is finished first. A second Ctrl-C ends the process
    at once. Outside the main thread, where Python allows no signal handlers, signals end the process as usual.
    A loss that is nan or infinite at a log entry ends the run with a FloatingPointError.

    Args:
        minutes: of training. A resumed run starts its clock at zero. Default: no limit.
    """

    def __init__(self, minutes: float | None = None):
        self.minutes = math.inf if minutes is None else minutes
        self.has_stopped = False
        self.received = None  # the signal's number

    @contextmanager
    def catch_signals(self, trainer: Trainer) -> Generator[None]:
        """Let signals stop the training that runs inside. However it ends, the previous handlers are restored.

        Raises:
            SystemExit: 128 + the signal's number, after a training that a signal has stopped.
        """
        self.has_stopped, self.received, before = False, None, {}
        if threading.current_thread() is threading.main_thread():
            before = {number: signal.signal(number, self.receive) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        if self.received is not None and not self.has_stopped:  # it came after the last step
            signal.raise_signal(self.received)
        elif self.received is not None:
            if PartialState().is_main_process:
                text = f"Stopped after step {trainer.state.global_step:,}. {resume_hint(trainer.args.output_dir)}"
                tqdm.write(text, file=sys.stderr)  # does not break the progress bar
            raise SystemExit(128 + self.received)

    def on_train_begin(self, args, state, control, **kwargs):
        """Start the clock."""
        self.start = time.monotonic()

    def receive(self, number, frame):
        """Note the signal; the next `on_step_end` acts on it."""
        # a launcher passes Ctrl-C on to processes that have already got it from the terminal
        if self.received == number == signal.SIGINT and PartialState().num_processes == 1:
            raise KeyboardInterrupt
        if self.received is None and PartialState().is_main_process:
            name = signal.Signals(number).name
            os.write(2, f"\n{name}: stopping after this step, with a checkpoint\n".encode())
        self.received = self.received or number

    def on_step_end(self, args, state, control, **kwargs):
        """Stop after this step, if it is due on one of the processes."""
        is_late = time.monotonic() - self.start > 60 * self.minutes
        number = highest_of_processes(self.received or (1 if is_late else 0))
        if number:
            self.has_stopped = control.should_training_stop = True
        if number > 1:
            self.received = number

    def on_log(self, args, state, control, **kwargs):
        """End the run if the loss is no number. Trainer logs the mean of all processes on each of them."""
        entry = state.log_history[-1]
        loss = entry.get("loss", entry.get("train_loss", 0.0))
        if not math.isfinite(loss):
            finite = [each for each in state.log_history if math.isfinite(each.get("loss", math.nan))]
            last = f"{finite[-1]['loss']:.4g} at step {finite[-1]['step']:,}" if finite else "none"
            raise FloatingPointError(
                f"The loss is {loss} at step {state.global_step:,}; the last finite one was {last}. Start again with "
                "a lower `learning_rate`, more `warmup_steps` or a smaller `max_grad_norm`; with `fp16`, try `bf16`."
            )


def stopping_callbacks(data_args, args: TrainingArguments) -> list[TrainerCallback]:
    """Make the callbacks that end a run early: on a signal, by `max_minutes` and by `early_stopping_patience`.

    Args:
        data_args: a script's DataArguments.
        args: the training arguments. With early stopping, `restore_callback_states_from_checkpoint` is set: a resumed
            run continues its count.

    Raises:
        ValueError: early stopping without `load_best_model_at_end`.
    """
    callbacks: list[TrainerCallback] = [StopCallback(data_args.max_minutes)]
    if data_args.early_stopping_patience is not None:
        if not args.load_best_model_at_end:
            raise ValueError(
                f"`early_stopping_patience` is {data_args.early_stopping_patience}, which needs "
                "`load_best_model_at_end`. Set it, or leave it out."
            )
        args.restore_callback_states_from_checkpoint = True
        callbacks.append(EarlyStoppingCallback(data_args.early_stopping_patience))
    return callbacks
