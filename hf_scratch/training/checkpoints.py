# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""The checkpoints in a run's folder: list them, choose the one to resume from, delete the old ones."""

import json
import logging
import os
import re
import shutil
from pathlib import Path
from typing import Any, Literal, NoReturn

from transformers import TrainerState, TrainingArguments
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from ..errors import UserError
from ..folders import require_output_dir
from ..manifest import MANIFEST, DamagedFolderError, check_manifest
from .machines import on_main_process

logger = logging.getLogger(__name__)

OPTIMIZER_PREFIXES = ("optimizer", "global_step")  # Trainer's and FSDP's file or folder; DeepSpeed's folder
PARTS = {  # without one of them, Trainer would silently go on with a part of the state
    "weights": ("model", "pytorch_model", "adapter_model", "global_step"),
    "optimizer.pt": OPTIMIZER_PREFIXES,
    "scheduler.pt": ("scheduler", "global_step"),
    "trainer_state.json": ("trainer_state.json",),
    "rng_state.pth": ("rng_state",),
}


def numbered_checkpoints(output_dir: str | Path) -> list[Path]:
    """Return the folders `checkpoint-N` of a run, whole or not, by ascending N."""
    if not Path(output_dir).is_dir():
        return []
    pattern = re.compile(rf"{PREFIX_CHECKPOINT_DIR}-\d+")
    folders = [path for path in Path(output_dir).iterdir() if path.is_dir() and pattern.fullmatch(path.name)]
    return sorted(folders, key=step_of)


def whole_checkpoints(output_dir: str | Path) -> list[Path]:
    """Return the checkpoints of a run that were saved completely (they have a manifest), by ascending update."""
    return [path for path in numbered_checkpoints(output_dir) if (path / MANIFEST).is_file()]


def step_of(checkpoint: str | Path) -> int:
    """Return the update after which a folder `checkpoint-N` was saved; -1 for a folder of another name."""
    digits = Path(checkpoint).name.rpartition("-")[2]
    return int(digits) if digits.isdecimal() else -1


def is_in(checkpoint: str | Path, output_dir: str | Path) -> bool:
    """Return whether a checkpoint, or the link to one, is in this folder."""
    return Path(checkpoint).absolute().parent.resolve() == Path(output_dir).resolve()


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
    """Keep the last `limit` whole checkpoints (None or 0: all) and the best one, and finish interrupted deletions.

    Early checkpoints do not count, and go as soon as there is a later checkpoint.
    """
    for folder in Path(output_dir).glob(f".{PREFIX_CHECKPOINT_DIR}-*.deleted"):
        shutil.rmtree(folder)
    checkpoints = whole_checkpoints(output_dir)
    regular = [folder for folder in checkpoints if not is_early(folder)]
    kept = {checkpoints[-1], *(regular[-limit:] if limit and limit > 0 else regular)} if checkpoints else set()
    for folder in checkpoints:
        if folder in kept or (best is not None and os.path.isdir(best) and os.path.samefile(folder, best)):
            continue
        if folder.is_symlink():
            folder.unlink()
        else:  # renamed first, so that half a checkpoint never looks like a checkpoint
            shutil.rmtree(folder.rename(folder.with_name(f".{folder.name}.deleted")))


def find_best_checkpoint(state: TrainerState, checkpoint: str, output_dir: str) -> None:
    """Make the state of a resumed run name the best checkpoint where it is now: the run's folder may have moved.

    If that checkpoint is missing or damaged, a warning names it, and later evaluations are compared with each other
    alone. Otherwise the run would end with its last weights, and report the evaluation of the best ones.
    """
    saved = TrainerState.load_from_json(os.path.join(checkpoint, TRAINER_STATE_NAME)).best_model_checkpoint
    if saved is None:
        return
    folder = Path(output_dir, Path(saved).name)
    folder = folder if folder.is_dir() else Path(saved)
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
    """Raise UserError unless `output_dir` is new or empty, apart from hidden files and names with ignored prefixes."""
    names = os.listdir(output_dir) if os.path.isdir(output_dir) else []
    if not all(name.startswith((".", *ignored)) for name in names):
        advice = ". Choose another folder, or empty this one."
        if whole_checkpoints(output_dir):
            advice = (
                ": another run may be in it. Choose another folder, or continue that run with "
                "`--resume_from_checkpoint last`."
            )
        elif any(name in ("run.json", "trainer_state.json") or PREFIX_CHECKPOINT_DIR in name for name in names):
            advice = f": another run may be in it. It has no whole checkpoint to resume from{advice}"
        raise UserError(f"`output_dir` ({output_dir}) is not empty{advice}")


def choose_checkpoint(args: TrainingArguments) -> str | None:
    """Choose the checkpoint to resume from, before anything else is read. All processes must call this.

    Checkpoints after the last whole one, which are incomplete or damaged, are renamed `damaged-...` and named in a
    warning.

    Args:
        args: its `resume_from_checkpoint` is one of these:
            None: a new run. `output_dir` must be new or empty.
            "last" or "true": the last whole checkpoint of `output_dir`.
            "auto": the same, or a new run if there is none.
            a path: that checkpoint.

    Returns:
        The checkpoint's folder, or None for a new run.

    Raises:
        UserError: `output_dir` holds another run; there is nothing to resume from; or a part of the checkpoint is
            missing or is not what was saved.
    """
    output_dir, wanted = require_output_dir(args), str(args.resume_from_checkpoint or "false")

    def choose() -> str | None:
        if wanted.lower() == "auto" and (last := _last_whole_checkpoint(output_dir)) is not None:
            return _check_parts(last)
        if wanted.lower() in ("false", "auto"):
            # "runs" is the folder of Trainer's log for TensorBoard
            ignored = (f"damaged-{PREFIX_CHECKPOINT_DIR}-", "runs") if wanted.lower() == "auto" else ()
            check_output_dir(output_dir, *ignored)
            return None
        if wanted.lower() in ("last", "true"):
            return _check_parts(_last_whole_checkpoint(output_dir) or _raise_no_checkpoint(output_dir))
        checkpoint = _check_named_checkpoint(Path(wanted).expanduser())
        later = [folder.name for folder in numbered_checkpoints(output_dir) if step_of(folder) > step_of(checkpoint)]
        if not is_in(checkpoint, output_dir):
            check_output_dir(output_dir)
        elif later:
            raise UserError(
                f"`resume_from_checkpoint` is {wanted}, and {output_dir} has later checkpoints ({', '.join(later)}). "
                "They would mix with the resumed run's. Remove them, or choose a new `output_dir`."
            )
        return checkpoint

    return on_main_process(choose)


def find_checkpoint(args: TrainingArguments, wanted: str | Path | Literal[True]) -> str:
    """Find the checkpoint that `Trainer.train` is asked to resume from, and check it. All processes must call this.

    Unlike `choose_checkpoint`, it does not ask what else is in `output_dir`.

    Args:
        args: the training arguments.
        wanted: the checkpoint's folder; or True for the last whole one of `output_dir`. Of a stock Trainer's
            checkpoints, which have no manifest, True takes the last one.

    Raises:
        UserError: there is none, or a part of it is missing or is not what was saved.
    """
    output_dir = require_output_dir(args)

    def find() -> str:
        checkpoints = numbered_checkpoints(output_dir)
        if wanted is not True:
            return _check_named_checkpoint(Path(wanted))
        if checkpoints and not whole_checkpoints(output_dir):
            return _check_parts(checkpoints[-1])
        return _check_parts(_last_whole_checkpoint(output_dir) or _raise_no_checkpoint(output_dir))

    return on_main_process(find)


def _raise_no_checkpoint(output_dir: str) -> NoReturn:
    damaged = sorted(path.name for path in Path(output_dir).glob(f"damaged-{PREFIX_CHECKPOINT_DIR}-*"))
    found = f" ({', '.join(damaged)} cannot be used)" if damaged else ""
    raise UserError(
        f"There is no whole checkpoint in `output_dir` ({output_dir}) to resume from{found}. Leave out "
        "`--resume_from_checkpoint` and start again in another folder, or in this one after emptying it; or "
        "name a checkpoint elsewhere."
    )


def _last_whole_checkpoint(output_dir: str) -> Path | None:
    """Return the last whole checkpoint, and rename those after it."""
    for checkpoint in reversed(numbered_checkpoints(output_dir)):
        try:
            facts = check_manifest(checkpoint)
            if facts is None:
                problem = f"{checkpoint} is incomplete: it has no {MANIFEST}, which is written last"
            elif (step := facts.get("step")) not in (None, step_of(checkpoint)):
                problem = f"{checkpoint} was saved after update {step}, and has another's name"
            else:
                return checkpoint
        except DamagedFolderError as error:
            problem = str(error)
        moved = checkpoint.with_name(f"damaged-{checkpoint.name}")
        shutil.rmtree(moved, ignore_errors=True)
        checkpoint.rename(moved)
        logger.warning(f"{problem}. It is now {moved}; the checkpoint before it is used.")
    return None


def _check_named_checkpoint(checkpoint: Path) -> str:
    if not checkpoint.is_dir():
        raise UserError(f"`resume_from_checkpoint` is {str(checkpoint)!r}, but there is no such folder.")
    try:
        check_manifest(checkpoint)
    except DamagedFolderError as error:
        raise UserError(f"{error}. Resume from another checkpoint.") from error
    return _check_parts(checkpoint)


def _check_parts(checkpoint: Path) -> str:
    names = [path.name for path in checkpoint.iterdir()]
    for part, prefixes in PARTS.items():
        if not any(name.startswith(prefixes) for name in names):
            advice = " `save_only_model` keeps the weights alone." if part == "optimizer.pt" else ""
            raise UserError(f"{checkpoint} has no {part}: training cannot go on from it.{advice}")
    return str(checkpoint)
