# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""transformers' TrainingArguments: checks that they do not make, and what our commands set in them."""

import logging
import os
from collections.abc import Collection, Sequence

import torch
from transformers import Seq2SeqTrainingArguments, Trainer, TrainingArguments, get_scheduler
from transformers.trainer_utils import IntervalStrategy, SchedulerType

from ..folders import require_output_dir
from .arguments import check_at_least

LARGEST_BATCH = 2**31 - 1  # rows of an update
WORKERS_PER_CORE = 16  # of the data loader, at most


def share_global_batch(args: TrainingArguments, global_batch_size: int, per_device: int | None = None) -> None:
    """Set `per_device_train_batch_size` and `gradient_accumulation_steps` so that an update has this many rows.

    Args:
        args: the training arguments.
        global_batch_size: rows of an update, on all processes together.
        per_device: the most rows that a device can hold. Default: no limit.

    Raises:
        ValueError: the rows cannot be shared evenly among the processes.
    """
    processes = args.world_size
    if global_batch_size > LARGEST_BATCH:
        raise ValueError(f"`global_batch_size` must be {LARGEST_BATCH:,} or less, got {global_batch_size}.")
    if global_batch_size % processes:
        below, above = ((global_batch_size // processes + more) * processes for more in (0, 1))
        nearest = f"{below} or {above}" if below else str(above)
        raise ValueError(
            f"`global_batch_size` is {global_batch_size}, which {processes} processes cannot share evenly. The "
            f"nearest that they can share: {nearest}."
        )
    rows = global_batch_size // processes
    steps = next(n for n in range(1, rows + 1) if rows % n == 0 and rows // n <= (per_device or rows))
    args.per_device_train_batch_size, args.gradient_accumulation_steps = rows // steps, steps


def check_training_arguments(args: TrainingArguments) -> None:
    """Check values with which a training would fail late, or learn nothing.

    Raises:
        ValueError: a number is out of its range, or the optimiser, the schedule or the compiler has no such option.
    """
    require_output_dir(args)
    check_at_least(args, 1, "per_device_train_batch_size", "per_device_eval_batch_size", "gradient_accumulation_steps")
    check_at_least(args, 1, "save_total_limit", "eval_accumulation_steps")
    check_at_least(args, 0, "learning_rate", "warmup_steps", "weight_decay", "max_grad_norm", "adam_epsilon")
    check_at_least(args, 0, "num_train_epochs", "dataloader_num_workers", "eval_delay")
    check_at_least(args, 0, "neftune_noise_alpha")
    check_at_least(args, 1, "dataloader_prefetch_factor")
    most = WORKERS_PER_CORE * (os.cpu_count() or 1)
    if args.dataloader_num_workers > most:
        raise ValueError(
            f"`dataloader_num_workers` must be {most} or less ({WORKERS_PER_CORE} per core of this machine), got "
            f"{args.dataloader_num_workers}."
        )
    _check_compile_mode(args.torch_compile_mode)
    if args.data_seed is not None and not abs(args.data_seed) < 2**62:
        raise ValueError(f"`data_seed` must be below 2**62, got {args.data_seed}.")
    if args.dataloader_persistent_workers and args.dataloader_num_workers == 0:
        raise ValueError("`dataloader_persistent_workers` needs `dataloader_num_workers` of 1 or more.")
    for name in ("logging", "eval", "save"):
        if getattr(args, f"{name}_strategy") == "steps" and not getattr(args, f"{name}_steps") > 0:
            raise ValueError(f"`{name}_steps` must be above 0, got {getattr(args, f'{name}_steps')}.")
    if args.do_predict:
        raise ValueError(
            "`do_predict` is not used: a test split is always scored at the end. Leave it out; the evaluation scripts "
            "score a model without training it."
        )
    if args.max_steps <= 0 and args.num_train_epochs == 0:
        raise ValueError("There is nothing to train: `num_train_epochs` is 0.")
    for name in ("adam_beta1", "adam_beta2", "label_smoothing_factor"):
        if not 0 <= getattr(args, name) < 1:
            raise ValueError(f"`{name}` must be 0 or more, and below 1, got {getattr(args, name)}.")
    if isinstance(args, Seq2SeqTrainingArguments):
        check_at_least(args, 1, "generation_num_beams", "generation_max_length")
    try:
        Trainer.get_optimizer_cls_and_kwargs(args)  # names the package that is missing
    except (TypeError, ValueError) as error:
        raise ValueError(f"`optim` {args.optim}, `optim_args` {args.optim_args!r}: {error}.") from error
    if args.lr_scheduler_kwargs is not None and not isinstance(args.lr_scheduler_kwargs, dict):
        raise ValueError(f"`lr_scheduler_kwargs` must be JSON or a mapping; got {args.lr_scheduler_kwargs!r}.")
    try:
        get_scheduler(
            args.lr_scheduler_type,
            torch.optim.SGD([torch.zeros(1)], lr=args.learning_rate),
            num_warmup_steps=1,
            num_training_steps=10,
            scheduler_specific_kwargs=args.lr_scheduler_kwargs,
        )
    except (TypeError, ValueError, ArithmeticError) as error:
        raise ValueError(f"`lr_scheduler_type` {SchedulerType(args.lr_scheduler_type).value}: {error}.") from error


def _check_compile_mode(mode: str | None) -> None:
    """Raise ValueError unless torch.compile's default backend has this mode, or it is None."""
    if mode is not None:
        from torch._inductor import list_mode_options  # takes a second to import

        if mode not in list_mode_options():
            modes = ", ".join(list_mode_options())
            raise ValueError(f"`torch_compile_mode` is {mode!r}; it must be one of {modes}.")


def prepare_arguments(args: TrainingArguments) -> None:
    """Set up logging, and change those defaults of Trainer that would only cause warnings.

    The main process logs from "info" on, the others from "error" on. Trainer's log gets the tokens seen and the tokens
    per second.
    """
    args.include_num_input_tokens_seen = "non_padding"  # the command line can only say true or false
    if args.ddp_find_unused_parameters is None:
        args.ddp_find_unused_parameters = False  # each step uses all parameters of our models
    args.dataloader_pin_memory &= torch.cuda.is_available()  # without a GPU, torch warns
    logging.basicConfig(format="%(asctime)s %(name)s: %(message)s", datefmt="%H:%M:%S", level=logging.WARNING)
    level = logging.INFO if args.should_log else logging.ERROR
    for name in ("hf_scratch", "train_translation", "train_language_model"):
        logging.getLogger(name).setLevel(level)


def check_validation_data(args: TrainingArguments, splits: Collection[str], metrics: Sequence[str] = ()) -> None:
    """Check that evaluations, if any are asked for, have data and the metric that selects the best.

    Args:
        args: the training's arguments.
        splits: the names of the data's splits.
        metrics: the metrics of an evaluation besides the loss.

    Raises:
        ValueError: there is no validation data, or `metric_for_best_model` is no metric.
    """
    if args.eval_strategy != "no" and "validation" not in splits:
        raise ValueError(
            f"`eval_strategy` is {IntervalStrategy(args.eval_strategy).value!r}, but there is no validation data: the "
            f"splits are {', '.join(splits)}. Give `--validation_file`, or set `--eval_strategy no`."
        )
    best = args.metric_for_best_model
    names = ("loss", *metrics, *("runtime", "samples_per_second", "steps_per_second"))
    if args.eval_strategy != "no" and best is not None and best.removeprefix("eval_") not in names:
        raise ValueError(
            f"`metric_for_best_model` is {best!r}, but the metrics of an evaluation are {', '.join(names)}."
            + (" BLEU needs `--predict_with_generate true`." if "bleu" in best and not metrics else "")
        )


def data_seed(args: TrainingArguments) -> int:
    """The seed of the order of rows: `data_seed`, or else `seed`."""
    return args.data_seed if args.data_seed is not None else args.seed
