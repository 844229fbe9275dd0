# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""transformers' TrainingArguments: checks that they do not make, and what our commands set in them."""

import logging
from collections.abc import Collection, Sequence
from typing import Any

import torch
from transformers import TrainingArguments


def check_training_arguments(args: TrainingArguments) -> None:
    """Check how the processes share the work.

    Raises:
        ValueError: one process would use several GPUs (`nn.DataParallel`), which multiplies the batch; or each machine
            would write checkpoints of its own.
    """
    if args.n_gpu > 1:
        raise ValueError(
            f"{args.n_gpu} GPUs are visible to one process. Start one process for each, with `accelerate launch` or "
            "torchrun; or choose one GPU, with CUDA_VISIBLE_DEVICES=0."
        )
    if args.save_on_each_node:
        raise ValueError("`save_on_each_node` is not supported: give all machines one shared `output_dir`.")


def share_global_batch(args: TrainingArguments, data_args: Any, given: set[str]) -> None:
    """Set `per_device_train_batch_size` and `gradient_accumulation_steps` so that an update has `global_batch_size`.

    A `per_device_train_batch_size` that is given is the most that a device can hold.

    Args:
        args: the training arguments.
        data_args: a script's DataArguments.
        given: the names of all arguments that the user gives.

    Raises:
        ValueError: the processes cannot share the rows evenly, or `gradient_accumulation_steps` is given too.
    """
    size = data_args.global_batch_size
    if (size or getattr(data_args, "max_tokens_per_update", None)) and "gradient_accumulation_steps" in given:
        raise ValueError(
            "`gradient_accumulation_steps` follows from the size of an update (`global_batch_size` or "
            "`max_tokens_per_update`). Leave one of them out."
        )
    if size is None:
        return
    rows, rest = divmod(size, args.world_size)
    if rest:
        raise ValueError(
            f"`global_batch_size` is {size}, which {args.world_size} processes cannot share evenly. Choose a multiple "
            f"of {args.world_size}."
        )
    most = args.per_device_train_batch_size if "per_device_train_batch_size" in given else rows
    steps = next(n for n in range(1, rows + 1) if rows % n == 0 and rows // n <= most)
    args.per_device_train_batch_size, args.gradient_accumulation_steps = rows // steps, steps


def prepare_arguments(args: TrainingArguments) -> None:
    """Set up logging, and change those defaults of Trainer that cause warnings, or only waits for a GPU.

    The main process logs from "info" on, the others from "error" on.
    """
    args.logging_nan_inf_filter = False  # it waits for the device in every step, to hide a loss that is nan
    if args.ddp_find_unused_parameters is None:
        args.ddp_find_unused_parameters = False  # each step uses all parameters of our models
    if args.ddp_broadcast_buffers is None:
        args.ddp_broadcast_buffers = False  # ours never change
    args.dataloader_pin_memory &= torch.cuda.is_available()  # without a GPU, torch warns
    accelerator_config: Any = args.accelerator_config
    accelerator_config.non_blocking |= args.dataloader_pin_memory
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
            f"There is no validation data for `eval_strategy`: the splits are {', '.join(splits)}. Give "
            "`--validation_file`, or set `--eval_strategy no`."
        )
    best = args.metric_for_best_model
    if best is not None and best.removeprefix("eval_") not in ("loss", *metrics):
        raise ValueError(
            f"`metric_for_best_model` is {best!r}, but the metrics are {', '.join(('loss', *metrics))}."
            " Others need `--predict_with_generate true`."
        )


def data_seed(args: TrainingArguments) -> int:
    """The seed of the order of rows: `data_seed`, or else `seed`."""
    return args.data_seed if args.data_seed is not None else args.seed
