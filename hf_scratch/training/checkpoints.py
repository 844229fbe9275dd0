# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""The checkpoints in a run's folder: list them, choose the one to resume from, delete the old ones."""

import json
import logging
import os
import re
import shutil
from pathlib import Path
from typing import Any, Literal

from transformers import TrainingArguments
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from ..errors import UserError
from ..loading import require_output_dir
from ..manifest import MANIFEST, DamagedFolderError, check_manifest

logger = logging.getLogger(__name__)

DAMAGED = f"damaged-{PREFIX_CHECKPOINT_DIR}-"
PARTS = {  # without one of them, Trainer would silently go on with a part of the state; FSDP and DeepSpeed use folders
    "weights": ("model.safetensors", "pytorch_model", "adapter_model", "global_step"),
    "optimizer.pt": ("optimizer", "global_step"),
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


def read_facts(checkpoint: str | Path) -> dict[str, Any]:
    """Return what a checkpoint's manifest says, or {} if it has none: a stock Trainer's."""
    path = Path(checkpoint, MANIFEST)
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def is_early(checkpoint: Path) -> bool:
    """Return whether this checkpoint was saved because the run was stopped, not because it was due."""
    return bool(read_facts(checkpoint).get("is_early"))


def delete_old_checkpoints(checkpoints: list[Path], limit: int | None, best: str | None) -> None:
    """Keep the last `limit` checkpoints of a run (None or 0: all) and the best one, and finish interrupted deletions.

    Early checkpoints go as soon as there is a later one, so that a run that was stopped keeps what any run keeps.
    """
    *earlier, last = checkpoints
    for folder in last.parent.glob(f".{PREFIX_CHECKPOINT_DIR}-*.deleted"):
        shutil.rmtree(folder)
    kept = [*(folder for folder in earlier if not is_early(folder)), last][-(limit or 0) :]
    for folder in earlier:
        if folder not in kept and folder.name != Path(best or "").name:
            # renamed first, so that half a checkpoint never looks like a checkpoint
            shutil.rmtree(folder.rename(folder.with_name(f".{folder.name}.deleted")))


def check_output_dir(output_dir: str, *ignored: str) -> None:
    """Raise UserError unless `output_dir` can be written, and is new or empty.

    Hidden files and names with ignored prefixes do not count.
    """
    path = Path(output_dir).absolute()
    if not os.access(next(each for each in (path, *path.parents) if each.exists()), os.W_OK | os.X_OK):
        raise UserError(f"Choose another `--output_dir`: {output_dir} cannot be written.")
    names = os.listdir(output_dir) if os.path.isdir(output_dir) else []
    if not all(name.startswith((".", *ignored)) for name in names):
        raise UserError(
            f"`output_dir` ({output_dir}) is not empty: another run may be in it. Choose another folder, empty this "
            "one, or continue the run with `--resume_from_checkpoint last`."
        )


def choose_checkpoint(args: TrainingArguments) -> str | None:
    """Choose the checkpoint to resume from, before anything else is read.

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
    output_dir, given = require_output_dir(args), str(args.resume_from_checkpoint or "false")
    wanted = given.lower()
    if wanted in ("last", "true"):
        return find_checkpoint(output_dir, True)
    if wanted == "auto" and (last := _last_whole_checkpoint(output_dir)) is not None:
        return _check_parts(last)
    if wanted in ("false", "auto"):
        # "runs" is the folder of Trainer's log for TensorBoard
        check_output_dir(output_dir, *((DAMAGED, "runs") if wanted == "auto" else ()))
        return None
    checkpoint = find_checkpoint(output_dir, Path(given).expanduser())
    later = [folder.name for folder in numbered_checkpoints(output_dir) if step_of(folder) > step_of(checkpoint)]
    if Path(checkpoint).parent.resolve() != Path(output_dir).resolve():
        check_output_dir(output_dir)
    elif later:
        raise UserError(
            f"`resume_from_checkpoint` is {given}, and {output_dir} has later checkpoints ({', '.join(later)}). "
            "They would mix with the resumed run's. Remove them, or choose a new `output_dir`."
        )
    return checkpoint


def find_checkpoint(output_dir: str, wanted: Path | Literal[True]) -> str:
    """Find a checkpoint, and check that it is whole.

    Args:
        output_dir: the run's folder.
        wanted: the checkpoint's folder, which may be a stock Trainer's; or True for the last whole one.

    Raises:
        UserError: there is none, or a part of it is missing or is not what was saved.
    """
    if wanted is not True:
        if not wanted.is_dir():
            raise UserError(f"`resume_from_checkpoint` is {str(wanted)!r}, but there is no such folder.")
        try:
            check_manifest(wanted)
        except DamagedFolderError as error:
            raise UserError(f"{error}. Resume from another checkpoint.") from error
        return _check_parts(wanted)
    # renames nothing where no checkpoint has a manifest: a stock Trainer's have none
    last = _last_whole_checkpoint(output_dir) if whole_checkpoints(output_dir) else None
    if last is None:
        raise UserError(
            f"There is no whole checkpoint in `output_dir` ({output_dir}) to resume from. Empty it, and start again "
            "without `--resume_from_checkpoint`; or name a checkpoint elsewhere."
        )
    return _check_parts(last)


def _last_whole_checkpoint(output_dir: str) -> Path | None:
    """Return the last whole checkpoint, and rename those after it."""
    for checkpoint in reversed(numbered_checkpoints(output_dir)):
        try:
            if check_manifest(checkpoint) is not None:
                return checkpoint
            problem = f"{checkpoint} is incomplete: it has no {MANIFEST}, which is written last"
        except DamagedFolderError as error:
            problem = str(error)
        moved = checkpoint.with_name(f"damaged-{checkpoint.name}")
        shutil.rmtree(moved, ignore_errors=True)
        checkpoint.rename(moved)
        logger.warning(f"{problem}. It is now {moved}; the checkpoint before it is used.")
    return None


def _check_parts(checkpoint: Path) -> str:
    names = [path.name for path in checkpoint.iterdir()]
    for part, prefixes in PARTS.items():
        if not any(name.startswith(prefixes) for name in names):
            raise UserError(f"{checkpoint} has no {part}: training cannot go on from it. Was it `save_only_model`?")
    return str(checkpoint)
