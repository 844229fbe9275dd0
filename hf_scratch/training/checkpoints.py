# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""A run's checkpoints: list them, compare one with the run that is resumed from it, delete the old ones."""

import json
import logging
import os
import re
import shutil
from pathlib import Path
from typing import Any

from safetensors import safe_open
from transformers import PreTrainedModel, TrainerState, TrainingArguments
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from ..errors import UserError
from ..manifest import MANIFEST, DamagedFolderError, check_manifest
from .shards import has_shards, shapes_of_shards

logger = logging.getLogger(__name__)

WEIGHTS_PREFIXES = ("model", "pytorch_model", "adapter_model", "global_step")
OPTIMIZER_PREFIXES = ("optimizer", "global_step")  # Trainer's and FSDP's file or folder; DeepSpeed's folder


def numbered_checkpoints(output_dir: str | Path) -> list[Path]:
    """Return the folders `checkpoint-N` of a run, whole or not, by ascending N."""
    if not Path(output_dir).is_dir():
        return []
    pattern = re.compile(rf"{PREFIX_CHECKPOINT_DIR}-\d+")
    folders = [path for path in Path(output_dir).iterdir() if path.is_dir() and pattern.fullmatch(path.name)]
    return sorted(folders, key=step_of)


def step_of(checkpoint: str | Path) -> int:
    """Return the update after which a folder `checkpoint-N` was saved; -1 for a folder of another name."""
    digits = Path(checkpoint).name.rpartition("-")[2]
    return int(digits) if digits.isdecimal() else -1


def is_in(checkpoint: str | Path, output_dir: str | Path) -> bool:
    """Return whether a checkpoint, or the link to one, is in this folder."""
    return Path(checkpoint).absolute().parent.resolve() == Path(output_dir).resolve()


def whole_checkpoints(output_dir: str | Path) -> list[Path]:
    """Return the checkpoints of a run that were saved completely (they have a manifest), by ascending update."""
    return [path for path in numbered_checkpoints(output_dir) if (path / MANIFEST).is_file()]


def saved_facts(checkpoint: str | Path) -> dict[str, Any]:
    """Return the facts in a checkpoint's manifest (see `write_manifest`); none where it is missing or damaged."""
    try:
        facts = json.loads(Path(checkpoint, MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return facts if isinstance(facts, dict) else {}


def is_early(checkpoint: str | Path) -> bool:
    """Return whether this checkpoint was saved because the run was stopped, and `save_strategy` did not ask for it."""
    return bool(saved_facts(checkpoint).get("is_early"))


def delete_old_checkpoints(output_dir: str | Path, limit: int | None, best: str | None) -> None:
    """Keep the last `limit` whole checkpoints (None or 0: all) and the best one.

    Early checkpoints do not count, and are deleted as soon as there is a later checkpoint. Folders whose deletion was
    interrupted are removed too.
    """
    _delete_unfinished(output_dir)
    checkpoints = whole_checkpoints(output_dir)
    early = [folder for folder in checkpoints if is_early(folder)]
    regular = [folder for folder in checkpoints if folder not in early]
    old = [folder for folder in early if folder != checkpoints[-1]]
    old += regular[:-limit] if limit and limit > 0 else []
    for folder in old:
        if best is None or not os.path.isdir(best) or not os.path.samefile(folder, best):
            _delete(folder)


def delete_early_checkpoints(output_dir: str | Path) -> None:
    """Delete the early checkpoints of a run that has ended, and finish deletions that were interrupted."""
    _delete_unfinished(output_dir)
    for folder in whole_checkpoints(output_dir):
        if is_early(folder):
            _delete(folder)


def _delete_unfinished(output_dir: str | Path) -> None:
    for folder in Path(output_dir).glob(f".{PREFIX_CHECKPOINT_DIR}-*.deleted"):
        shutil.rmtree(folder)


def _delete(checkpoint: Path) -> None:
    if checkpoint.is_symlink():
        checkpoint.unlink()
    else:  # renamed first, so that half a checkpoint never looks like a checkpoint
        shutil.rmtree(checkpoint.rename(checkpoint.with_name(f".{checkpoint.name}.deleted")))


def find_best_checkpoint(state: TrainerState, checkpoint: str, output_dir: str) -> None:
    """Make `state` name the best checkpoint where it is now: the run's folder may have moved.

    If that checkpoint is missing or damaged, a warning names it, and later evaluations are compared with each other
    alone. Otherwise the run would end with its last weights, and report the evaluation of the best ones. If the best
    update was never saved, `state` stays as it is.

    Args:
        state: the resumed run's, in which Trainer has removed the name of a folder that it did not find.
        checkpoint: the folder that the run is resumed from.
        output_dir: the run's folder.
    """
    saved = TrainerState.load_from_json(os.path.join(checkpoint, TRAINER_STATE_NAME)).best_model_checkpoint
    if saved is None:
        return
    folder = Path(output_dir, Path(saved).name)
    if not folder.is_dir():
        folder = Path(saved)
    try:
        check_manifest(folder)
        problem = "" if folder.is_dir() else f"{folder} is missing"
    except DamagedFolderError as error:
        problem = str(error)
    state.best_model_checkpoint = str(folder)
    if problem:
        logger.warning(f"{problem}. It was the best checkpoint so far; the best of the later ones replaces it.")
        state.best_metric = state.best_global_step = state.best_model_checkpoint = None


def check_output_dir(output_dir: str, *ignored: str) -> None:
    """Raise UserError unless `output_dir` is new or empty.

    Args:
        output_dir: the folder.
        ignored: prefixes of names that do not count. Hidden files do not count either.
    """
    names = os.listdir(output_dir) if os.path.isdir(output_dir) else []
    if not all(name.startswith((".", *ignored)) for name in names):
        advice = ". Choose another folder, or empty this one."
        if any(name in ("run.json", "trainer_state.json") or PREFIX_CHECKPOINT_DIR in name for name in names):
            advice = f": another run may be in it. It has no whole checkpoint to resume from{advice}"
        if whole_checkpoints(output_dir):
            advice = (
                ": another run may be in it. Choose another folder, or continue that run with "
                "`--resume_from_checkpoint last`."
            )
        raise UserError(f"`output_dir` ({output_dir}) is not empty{advice}")


def check_resumable(checkpoint: Path, facts: dict, args: TrainingArguments) -> None:
    """Raise UserError where Trainer would silently continue without a part of the state, or with other batches."""
    names = [path.name for path in checkpoint.iterdir()]
    for part, prefixes in {
        "weights": WEIGHTS_PREFIXES,
        "optimizer.pt": OPTIMIZER_PREFIXES,
        "scheduler.pt": ("scheduler", "global_step"),
        "trainer_state.json": ("trainer_state.json",),
        "rng_state.pth": ("rng_state",),
    }.items():
        if not any(name.startswith(prefixes) for name in names):
            advice = " `save_only_model` keeps the weights alone." if part == "optimizer.pt" else ""
            raise UserError(f"{checkpoint} has no {part}: training cannot go on from it.{advice}")
    _check_same_rows(checkpoint, facts, args)


def _check_same_rows(checkpoint: Path, facts: dict, args: TrainingArguments) -> None:
    """Raise UserError where this run's updates would see other rows than those that the checkpoint comes from."""
    saved, now = facts.get("num_processes", args.world_size), args.world_size
    rows_saved = facts.get("rows_per_update")
    rows_now = args.train_batch_size * args.gradient_accumulation_steps * now
    if facts.get("max_tokens_per_batch") is not None:
        raise UserError(
            f"{checkpoint} was saved by an older version, whose batches by tokens had another order. Start a new run "
            "with `--model_name_or_path` and the path of the checkpoint."
        )
    if rows_saved not in (None, rows_now) and not args.ignore_data_skip:
        raise UserError(
            f"{checkpoint} was saved with {rows_saved} rows per update ({saved} processes), and this run has "
            f"{rows_now} ({now}): it would go on at other rows. Set `global_batch_size` to {rows_saved}; or start a "
            "new run with `--model_name_or_path` and the path of the checkpoint."
        )
    if saved != now and facts.get("shuffle_buffer_size") is not None and not args.ignore_data_skip:
        raise UserError(
            f"{checkpoint} was saved by {saved} processes, and this run has {now}: each process reads its own part of "
            f"the stream. Resume on {saved} processes."
        )
    if saved != now:
        logger.warning(
            f"{checkpoint} was saved by {saved} processes and this run has {now}. Its updates see the same rows, but "
            "dropout draws other random numbers."
        )


def check_same_weights(model: PreTrainedModel, checkpoint: str) -> None:
    """Raise UserError where the checkpoint holds other weights, or other shapes, than `model` has.

    Trainer would load the weights that fit, and leave the others at their random start.
    """
    weights = Path(checkpoint, "model.safetensors")
    if has_shards(checkpoint):
        saved = shapes_of_shards(checkpoint)
    elif weights.is_file():
        with safe_open(weights, framework="pt") as file:
            saved = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    else:  # in several files: Trainer's loader compares by itself
        return
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    tied = set(model.all_tied_weights_keys) | set(model.all_tied_weights_keys.values())
    different = [name for name, shape in saved.items() if shapes.get(name) != shape]
    different += [name for name in shapes if name not in saved and name not in tied]
    if different:
        name = different[0]
        raise UserError(
            f"{checkpoint} holds the weights of another model: {name} is {saved.get(name, 'missing')} there and "
            f"{shapes.get(name, 'missing')} here. Resume with the recipe and `config_overrides` of the run's start."
        )


# what a saved config has that its model did not have, or that does not change what the model computes
UNCOMPARED_FIELDS = {"_name_or_path", "architectures", "auto_map", "dtype", "transformers_version", "use_cache"}


def check_same_config(model: PreTrainedModel, checkpoint: str | Path) -> None:
    """Raise UserError where the checkpoint's config is not the model's, though its weights may fit.

    Another number of heads or dropout, for example, makes another model of the same weights. Another dtype is logged.
    """
    config = model.config
    path = Path(checkpoint, "config.json")
    if not path.is_file():  # an adapter's checkpoint
        return
    saved = json.loads(path.read_text(encoding="utf-8"))
    if saved.get("model_type") == config.model_type:
        saved = json.loads(type(config).from_dict(saved).to_json_string(use_diff=False))
    now = json.loads(config.to_json_string(use_diff=False))
    dtype = str(model.dtype).removeprefix("torch.")
    if saved.get("dtype") not in (None, dtype):
        logger.warning(f"{checkpoint} was saved in {saved['dtype']}, and this run goes on in {dtype}.")
    names = sorted((saved.keys() | now.keys()) - UNCOMPARED_FIELDS)
    different = [name for name in names if saved.get(name) != now.get(name)]
    if different:
        before, after = (
            ", ".join(f"`{name}` {config.get(name)!r}" for name in different[:4]) for config in (saved, now)
        )
        raise UserError(
            f"{checkpoint} was saved with {before} in the model's config, and this run has {after}. Resume with the "
            "options that the run was begun with; or start a new run with `--model_name_or_path` and the path of the "
            "checkpoint."
        )
