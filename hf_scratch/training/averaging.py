# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""After training: average the last checkpoints, keep the weights with the lower validation loss, and save them."""

import logging
import math
import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict
from torch.distributed.tensor import DTensor
from transformers import Trainer, TrainingArguments
from transformers.trainer import TRAINER_STATE_NAME

from ..folders import require_output_dir
from ..manifest import MANIFEST, DamagedFolderError, check_manifest, write_manifest
from .callbacks import TimeLimit, TrainingTime
from .checkpoints import is_early, is_in, step_of, whole_checkpoints
from .fsdp import has_shards, read_shards
from .machines import on_main_process

logger = logging.getLogger(__name__)


def average_checkpoints(
    folders: Sequence[str | Path], like: dict[str, torch.Tensor] | None = None
) -> dict[str, torch.Tensor]:
    """Average the weights of checkpoints (Vaswani et al. 2017, section 6.1).

    Args:
        folders: the checkpoints. Each holds a `model.safetensors`, or the shards of FSDP2.
        like: the weights of a model that FSDP2 shards. Each process then reads and averages its part of them alone.
            Default: whole weights.

    Returns:
        The mean of each weight, under its name and in its dtype; sharded as `like`, or whole.

    Raises:
        ValueError: there is no folder, one holds neither (but an adapter, for example), or two hold weights of
            different names.
    """
    if not folders:
        raise ValueError("There are no checkpoints to average.")
    mean: dict[str, torch.Tensor] = {}
    for folder in folders:
        weights = os.path.join(folder, "model.safetensors")
        if has_shards(folder):
            state = read_shards(folder, like)
        elif os.path.isfile(weights):
            state = load_file(weights)
        else:
            raise ValueError(f"{folder} has no model.safetensors: only whole models in one file can be averaged.")
        if mean and state.keys() != mean.keys():
            different = ", ".join(sorted(state.keys() ^ mean.keys())[:5])
            raise ValueError(f"{folder} and {folders[0]} do not hold the same weights; they differ in {different}.")
        for name, tensor in state.items():
            # summed in float64, so that the mean of equal checkpoints equals them bit for bit
            mean[name] = mean.get(name, 0) + tensor.double()
    return {name: (total / len(folders)).to(state[name].dtype) for name, total in mean.items()}


def check_average(args: TrainingArguments, num_checkpoints: int, checkpoint: str | None = None) -> None:
    """Check that the last checkpoints will be there to be averaged.

    Args:
        args: the training arguments.
        num_checkpoints: how many are to be averaged.
        checkpoint: the folder that the run is resumed from, or None.

    Raises:
        ValueError: fewer checkpoints are kept, or the earlier ones are in another folder.
    """
    limit, problem = args.save_total_limit, None
    if checkpoint is not None and not is_in(checkpoint, require_output_dir(args)):
        problem = f"is resumed from {checkpoint}, which is not in `output_dir`. Resume in the checkpoint's own folder"
    elif args.save_strategy == "no" or (limit is not None and limit < num_checkpoints):
        kept = "saves none" if args.save_strategy == "no" else f"keeps {limit} (`save_total_limit`)"
        problem = f"{kept}. Keep that many"
    if num_checkpoints > 1 and problem:
        raise ValueError(f"`average_checkpoints` is {num_checkpoints}, but the run {problem}, or average fewer.")


def check_moving_average(ema_decay: float | None, splits: Collection[str]) -> None:
    """Raise ValueError if there are no validation data to choose between moving average and trained weights."""
    if ema_decay is not None and "validation" not in splits:
        raise ValueError(
            f"`ema_decay` is {ema_decay}, but there is no validation data to choose the weights by. Give "
            "`--validation_file`, or leave `ema_decay` out."
        )


def save_final_model(trainer: Trainer) -> None:
    """Save the model, its tokenizer and the trainer's state in `output_dir`.

    A manifest lists the weights and the tokenizer. Config files are not in it, because users may edit them.
    """
    folder = Path(require_output_dir(trainer.args))
    if trainer.args.should_save:
        (folder / MANIFEST).unlink(missing_ok=True)
    trainer.save_model()
    if trainer.args.should_save:
        trainer.state.save_to_json(str(folder / TRAINER_STATE_NAME))
        names = (path.name for path in folder.iterdir())
        write_manifest(folder, sorted(n for n in names if n.endswith(".safetensors") or n == "tokenizer.json"))


def last_checkpoints(
    output_dir: str, count: int, up_to: int | None = None, early_step: int | None = None
) -> list[str]:
    """Return the folders of the last `count` whole checkpoints, oldest first.

    Args:
        output_dir: the run's folder.
        count: how many.
        up_to: the latest update that counts. Default: no limit.
        early_step: the update whose checkpoint counts although it is early. Other early checkpoints do not count, as
            a run that was not stopped has none.
    """
    folders = [
        str(folder)
        for folder in whole_checkpoints(output_dir)
        if (up_to is None or step_of(folder) <= up_to) and (step_of(folder) == early_step or not is_early(folder))
    ]
    return folders[max(len(folders) - count, 0) :]


def evaluate_and_select_weights(trainer: Trainer, num_checkpoints: int) -> dict:
    """Keep the weights with the lowest validation loss in the model: the trained ones, or an average.

    The averages are that of the last checkpoints, and the trainer's `moving_average`. The loss decides, because greedy
    BLEU on a thousand sentences is too noisy. It is computed as in training, in the weights' own dtype, whatever
    `bf16_full_eval` and `fp16_full_eval` say: they would round the model's weights.

    Args:
        trainer: after `train()`; its model holds the last weights, or the best with `load_best_model_at_end`.
        num_checkpoints: how many to average. Below 2, no checkpoints are averaged.

    Returns:
        The evaluation of the weights that were kept, with "weights": "trained", or e.g. "averaged over 10
        checkpoints" or "moving average (decay 0.999)".

    Raises:
        ValueError: the evaluation has no "eval_loss", for example of several evaluation sets; or a checkpoint cannot
            be averaged (see `average_checkpoints`).
    """
    trained = _evaluation_of_training(trainer) or _evaluate(trainer)
    moving = getattr(trainer, "moving_average", None)
    if (num_checkpoints > 1 or moving is not None) and "eval_loss" not in trained:
        raise ValueError(f"An average is chosen by `eval_loss`, but the evaluation has only {', '.join(trained)}.")
    model: Any = trainer.model  # None only before the training
    state: dict[str, Any] = get_model_state_dict(model)  # under FSDP2, this process's part of each weight
    averages = {}
    if len(folders := _checkpoints_to_average(trainer, num_checkpoints)) > 1:
        average = average_checkpoints(folders, state if has_shards(folders[0]) else None)
        averages[f"averaged over {len(folders)} checkpoints"] = average
    if moving is not None:
        averages[f"moving average (decay {moving.decay:g})"] = moving.weights
    kept = {**trained, "weights": "trained"}
    if not averages:
        return kept
    best, lowest = {name: tensor.clone() for name, tensor in state.items()}, trained["eval_loss"]
    for name, weights in averages.items():
        load_weights(model, weights)
        metrics = _evaluate(trainer)
        loss = metrics["eval_loss"]
        logger.info(f"eval_loss: {trained['eval_loss']:.4f}; {name} {loss:.4f}")
        if math.isnan(lowest) or loss < lowest:
            best, lowest, kept = weights, loss, {**metrics, "weights": name}
    load_weights(model, best)
    return kept


def _checkpoints_to_average(trainer: Trainer, count: int) -> list[str]:
    """The last `count` whole checkpoints. That of a time limit, which ends the run, counts too."""
    step, callbacks = trainer.state.global_step, trainer.callback_handler.callbacks
    is_time_up = any(isinstance(callback, TimeLimit) and callback.has_stopped for callback in callbacks)
    output_dir, early_step = require_output_dir(trainer.args), step if is_time_up else None
    folders = on_main_process(lambda: list(filter(_is_intact, last_checkpoints(output_dir, count, step, early_step))))
    if len(folders) < count:
        logger.warning(f"Checkpoints to average: {len(folders)}, not {count}.")
    return folders


def _evaluate(trainer: Trainer) -> dict:
    args = trainer.args
    before = args.bf16_full_eval, args.fp16_full_eval
    args.bf16_full_eval = args.fp16_full_eval = False
    try:
        return trainer.evaluate()
    finally:
        args.bf16_full_eval, args.fp16_full_eval = before


def _is_intact(checkpoint: str) -> bool:
    try:
        check_manifest(checkpoint)
    except DamagedFolderError as error:
        logger.warning(f"{error}. It is left out of the average.")
        return False
    return True


def load_weights(model: torch.nn.Module, weights: dict[str, torch.Tensor]) -> None:
    """Load whole weights, or those of the same shards, into a model. Of tied weights, one name is enough."""
    options = StateDictOptions(full_state_dict=not any(isinstance(w, DTensor) for w in weights.values()), strict=False)
    set_model_state_dict(model, dict(weights), options=options)  # a copy: torch puts shards into it


def _evaluation_of_training(trainer: Trainer) -> dict | None:
    """Return the evaluation that training has already made of the current weights, if there is one."""
    state = trainer.state
    step = state.global_step
    if trainer.args.load_best_model_at_end and state.best_model_checkpoint is not None:
        step = step_of(state.best_model_checkpoint)  # the best update itself may not have been saved
    # in a resumed run, earlier evaluations may have used other data
    clock = next((c for c in trainer.callback_handler.callbacks if isinstance(c, TrainingTime)), None)
    for entry in reversed(state.log_history[clock.entries_before if clock else 0 :]):
        if entry["step"] == step and "eval_loss" in entry:
            return {key: value for key, value in entry.items() if key == "epoch" or key.startswith("eval_")}
    return None
