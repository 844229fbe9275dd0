# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""transformers' TrainingArguments: checks that they do not make, and what our commands set in them."""

import logging
from collections.abc import Collection, Sequence

import torch
from transformers import TrainingArguments
from transformers.trainer_utils import IntervalStrategy

from ..folders import require_output_dir
from .script_arguments import check_at_least


def share_global_batch(args: TrainingArguments, global_batch_size: int, per_device: int | None = None) -> None:
    """Set `per_device_train_batch_size` and `gradient_accumulation_steps` so that an update has this many rows.

    Args:
        args: the training arguments.
        global_batch_size: rows of an update, on all processes together.
        per_device: the most rows that a device can hold. Default: no limit.

    Raises:
        ValueError: the rows cannot be shared evenly among the processes.
    """
    rows, rest = divmod(global_batch_size, args.world_size)
    if rest:
        raise ValueError(
            f"`global_batch_size` is {global_batch_size}, which {args.world_size} processes cannot share evenly. "
            f"Choose a multiple of {args.world_size}."
        )
    steps = next(n for n in range(1, rows + 1) if rows % n == 0 and rows // n <= (per_device or rows))
    args.per_device_train_batch_size, args.gradient_accumulation_steps = rows // steps, steps


def check_training_arguments(args: TrainingArguments) -> None:
    """Check values with which a training would learn nothing, or otherwise than it is meant to.

    Raises:
        ValueError: a number is out of its range, or machines would save into folders of their own.
    """
    require_output_dir(args)
    check_at_least(args, 1, "per_device_train_batch_size", "per_device_eval_batch_size", "gradient_accumulation_steps")
    check_at_least(args, 1, "save_total_limit")
    check_at_least(args, 0, "learning_rate", "weight_decay", "max_grad_norm", "neftune_noise_alpha")
    if not 0 <= args.label_smoothing_factor < 1:
        raise ValueError(f"`label_smoothing_factor` must be from 0 to below 1, got {args.label_smoothing_factor}.")
    if args.save_on_each_node:
        raise ValueError("`save_on_each_node` is not supported: give all machines one shared `output_dir`.")


def check_processes(args: TrainingArguments) -> None:
    """Raise ValueError if one process would share several GPUs (`nn.DataParallel`), which multiplies the batch."""
    if args.n_gpu > 1:
        raise ValueError(
            f"{args.n_gpu} GPUs are visible to one process. Start one process for each, with `accelerate launch` or "
            "torchrun; or choose one GPU, with CUDA_VISIBLE_DEVICES=0."
        )


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
    """Check, before data are prepared, that evaluations have data and the metric that selects the best.

    Args:
        args: the training's arguments.
        splits: the names of the data's splits.
        metrics: the metrics of an evaluation besides the loss.

    Raises:
        ValueError: there is no validation data, or `metric_for_best_model` is no metric.
    """
    if args.eval_strategy == "no":
        return
    if "validation" not in splits:
        raise ValueError(
            f"`eval_strategy` is {IntervalStrategy(args.eval_strategy).value!r}, but there is no validation data: the "
            f"splits are {', '.join(splits)}. Give `--validation_file`, or set `--eval_strategy no`."
        )
    best = args.metric_for_best_model
    names = ("loss", *metrics, *("runtime", "samples_per_second", "steps_per_second"))
    if best is not None and best.removeprefix("eval_") not in names:
        raise ValueError(
            f"`metric_for_best_model` is {best!r}, but the metrics of an evaluation are {', '.join(names)}."
            + (" BLEU needs `--predict_with_generate true`." if "bleu" in best and not metrics else "")
        )


def data_seed(args: TrainingArguments) -> int:
    """The seed of the order of rows: `data_seed`, or else `seed`."""
    return args.data_seed if args.data_seed is not None else args.seed
