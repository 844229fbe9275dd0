# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Average the weights of a training's last checkpoints, and keep the average if its loss is lower."""

import logging
import math
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from transformers import Trainer, TrainingArguments
from transformers.trainer import TRAINER_STATE_NAME

from ..loading import SHARDS, require_output_dir
from ..manifest import MANIFEST, write_manifest
from .checkpoints import is_early, step_of
from .fsdp import read_shards
from .main_process import on_main_process

logger = logging.getLogger(__name__)


def average_checkpoints(folders: Sequence[str | Path]) -> dict[str, torch.Tensor]:
    """Average the weights of checkpoints (Vaswani et al. 2017, section 6.1).

    Args:
        folders: the checkpoints, of one model. Each holds a `model.safetensors`, or the shards of FSDP2.

    Returns:
        The mean of each weight, whole, under its name and in its dtype.

    Raises:
        FileNotFoundError: a folder holds neither (but an adapter, or weights in several files).
    """
    totals: dict[str, torch.Tensor] = {}
    for folder in folders:
        has_shards = Path(folder, SHARDS).is_dir()
        state = read_shards(folder) if has_shards else load_file(Path(folder, "model.safetensors"))
        for name, tensor in state.items():
            # summed in float64, so that the mean of equal checkpoints equals them bit for bit
            totals[name] = totals.get(name, 0) + tensor.double()
    return {name: (total / len(folders)).to(state[name].dtype) for name, total in totals.items()}


def check_average(args: TrainingArguments, average_checkpoints: int, splits: Collection[str]) -> None:
    """Raise ValueError if an average is wanted, but fewer checkpoints are kept or there is no validation data."""
    kept = 0 if args.save_strategy == "no" else args.save_total_limit or average_checkpoints
    if kept < average_checkpoints:
        raise ValueError(
            f"`average_checkpoints` is {average_checkpoints}, but the run keeps {kept} (`save_strategy`, "
            "`save_total_limit`). Keep that many, or average fewer."
        )
    if average_checkpoints > 1 and "validation" not in splits:
        raise ValueError(
            "`average_checkpoints` needs validation data, by which the weights are chosen. Give `--validation_file`, "
            "or leave it out."
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
    trainer.accelerator.wait_for_everyone()  # all processes load the model next


def evaluate_and_select_weights(trainer: Any, num_checkpoints: int) -> dict:
    """Keep the weights with the lower validation loss: the trained ones, or the average of the last checkpoints.

    The loss decides, because greedy BLEU on a thousand sentences is too noisy. `bf16_full_eval` and `fp16_full_eval`
    are ignored: they would round the model's weights.

    Args:
        trainer: one of ours, after `train()`; its model holds the last weights, or the best with
            `load_best_model_at_end`. It has one evaluation set.
        num_checkpoints: how many to average. Below 2, none are averaged.

    Returns:
        The evaluation of the weights that were kept, with "weights": "trained", or e.g. "averaged over 10
        checkpoints".

    Raises:
        FileNotFoundError: a checkpoint cannot be averaged (see `average_checkpoints`).
    """
    state: dict[str, Any] = get_model_state_dict(trainer.model)  # under FSDP2, this process's part of each weight
    trained: dict[str, Any] = {**_evaluate(trainer), "weights": "trained"}
    # early ones, which an uninterrupted run lacks, are left out, except where a time limit has ended the run
    last, saved = trainer.state.global_step, on_main_process(trainer.checkpoints.saved)
    folders = [folder for folder in saved if not is_early(folder) or step_of(folder) == last][-num_checkpoints:]
    if num_checkpoints < 2 or len(folders) < 2:
        return trained
    before = {name: tensor.clone() for name, tensor in state.items()}
    load_weights(trainer.model, average_checkpoints(folders))
    averaged: dict[str, Any] = {**_evaluate(trainer), "weights": f"averaged over {len(folders)} checkpoints"}
    logger.info(f"eval_loss: trained {trained['eval_loss']:.4f}; {averaged['weights']} {averaged['eval_loss']:.4f}")
    if math.isnan(trained["eval_loss"]) or averaged["eval_loss"] < trained["eval_loss"]:
        return averaged
    load_weights(trainer.model, before)
    return trained


def _evaluate(trainer: Trainer) -> dict:
    args = trainer.args
    before = args.bf16_full_eval, args.fp16_full_eval
    args.bf16_full_eval = args.fp16_full_eval = False
    try:
        return trainer.evaluate()
    finally:
        args.bf16_full_eval, args.fp16_full_eval = before


def load_weights(model: torch.nn.Module, weights: dict[str, torch.Tensor]) -> None:
    """Load whole or sharded weights into a model. Of tied weights, one name is enough."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()  # a forward pass leaves the root whole
    options = StateDictOptions(full_state_dict=not any(isinstance(w, DTensor) for w in weights.values()), strict=False)
    set_model_state_dict(model, dict(weights), options=options)  # a copy: torch puts shards into it
