# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""The checkpoints in a run's folder: list them, choose the one to resume from, delete the old ones."""

import json
import logging
import os
import re
import shutil
from pathlib import Path
from typing import Any

from transformers import TrainingArguments
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from ..errors import UserError
from ..loading import require_output_dir
from ..manifest import MANIFEST, DamagedFolderError, check_manifest

logger = logging.getLogger(__name__)


def step_of(checkpoint: str | Path) -> int:
    """Return the step after which a folder `checkpoint-N` was saved; -1 for a folder of another name."""
    name = re.fullmatch(rf"{PREFIX_CHECKPOINT_DIR}-(\d+)", Path(checkpoint).name)
    return int(name[1]) if name else -1


def numbered_checkpoints(output_dir: str | Path) -> list[Path]:
    """Return the folders `checkpoint-N` of a run, whole or not, by ascending N."""
    folders = [path for path in Path(output_dir).glob("*") if step_of(path) >= 0 and path.is_dir()]
    return sorted(folders, key=step_of)


def whole_checkpoints(output_dir: str | Path) -> list[Path]:
    """Return the checkpoints of a run that were saved completely (they have a manifest), by ascending step."""
    return [path for path in numbered_checkpoints(output_dir) if (path / MANIFEST).is_file()]


def read_facts(checkpoint: str | Path) -> dict[str, Any]:
    """Return what a checkpoint's manifest says, or {} if it has none: a stock Trainer's."""
    path = Path(checkpoint, MANIFEST)
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def is_early(checkpoint: Path) -> bool:
    """Return whether this checkpoint was saved because the run was stopped, not because it was due."""
    return bool(read_facts(checkpoint).get("is_early"))


def delete_old_checkpoints(checkpoints: list[Path], limit: int | None, best: str | None) -> None:
    """Keep the last `limit` checkpoints of a run (None or 0: all) and the best one.

    Early checkpoints are deleted as soon as there is a later one: a stopped and resumed run keeps what any run keeps.
    """
    *earlier, last = checkpoints
    kept = [*(folder for folder in earlier if not is_early(folder)), last][-(limit or 0) :]
    for folder in earlier:
        if folder not in kept and folder.name != Path(best or "").name:
            (folder / MANIFEST).unlink()  # first, so that half a checkpoint never looks whole
            shutil.rmtree(folder)


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

    Args:
        args: its `resume_from_checkpoint` is one of these:
            None: a new run. `output_dir` must be new or empty.
            "last" or "true": the last whole checkpoint of `output_dir`.
            "auto": the same, or a new run if there is none.
            a path: that checkpoint.

    Returns:
        The checkpoint's folder, or None for a new run.

    Raises:
        UserError: `output_dir` holds another run, or see `find_last_checkpoint` and `check_checkpoint`.
    """
    output_dir, wanted = require_output_dir(args), args.resume_from_checkpoint
    if wanted is None:
        check_output_dir(output_dir)
        return None
    if wanted.lower() == "auto" and not whole_checkpoints(output_dir):
        # incomplete checkpoints do not count, and Trainer's log for TensorBoard does not matter
        check_output_dir(output_dir, f"{PREFIX_CHECKPOINT_DIR}-", f"damaged-{PREFIX_CHECKPOINT_DIR}-", "runs")
        return None
    if wanted.lower() in ("last", "true", "auto"):
        return find_last_checkpoint(output_dir)
    checkpoint = check_checkpoint(wanted)
    later = [folder.name for folder in numbered_checkpoints(output_dir) if step_of(folder) > step_of(checkpoint)]
    if Path(checkpoint).parent.resolve() != Path(output_dir).resolve():
        check_output_dir(output_dir)
    elif later:
        raise UserError(
            f"`resume_from_checkpoint` is {wanted}, and {output_dir} has later checkpoints ({', '.join(later)}). "
            "They would mix with the resumed run's. Remove them, or choose a new `output_dir`."
        )
    return checkpoint


def find_last_checkpoint(output_dir: str) -> str:
    """Return the last whole checkpoint of a run.

    Later ones, which are incomplete or damaged, are renamed `damaged-...` and named in a warning.

    Raises:
        UserError: there is none, or it was saved without the optimizer.
    """
    problems: dict[Path, str] = {}
    for checkpoint in reversed(numbered_checkpoints(output_dir)):
        try:
            if check_manifest(checkpoint) is not None:
                break
            problems[checkpoint] = f"{checkpoint} is incomplete: it has no {MANIFEST}, which is written last"
        except DamagedFolderError as error:
            problems[checkpoint] = str(error)
    else:
        raise UserError(
            f"There is no whole checkpoint in `output_dir` ({output_dir}) to resume from. Empty it, and start again "
            "without `--resume_from_checkpoint`; or name a checkpoint elsewhere."
        )
    for folder, problem in problems.items():
        moved = folder.with_name(f"damaged-{folder.name}")
        shutil.rmtree(moved, ignore_errors=True)
        folder.rename(moved)
        logger.warning(f"{problem}. It is now {moved}; the checkpoint before it is used.")
    return _check_optimizer(checkpoint)


def check_checkpoint(checkpoint: str | Path) -> str:
    """Return a checkpoint's folder, which may be a stock Trainer's, after a check that it is whole.

    Raises:
        UserError: there is no such folder, a file is not what was saved, or it was saved without the optimizer.
    """
    folder = Path(checkpoint).expanduser()
    if not folder.is_dir():
        raise UserError(f"`resume_from_checkpoint` is {str(checkpoint)!r}, but there is no such folder.")
    try:
        check_manifest(folder)
    except DamagedFolderError as error:
        raise UserError(f"{error}. Resume from another checkpoint.") from error
    return _check_optimizer(folder)


def _check_optimizer(checkpoint: Path) -> str:
    """Refuse a checkpoint without the optimizer's state, in place of which Trainer would silently begin a new one."""
    # a file, or a folder of FSDP's; DeepSpeed's is named after the step
    if not any(path.name.startswith(("optimizer", "global_step")) for path in checkpoint.iterdir()):
        raise UserError(f"{checkpoint} has no optimizer.pt, so it cannot be resumed. Was it `save_only_model`?")
    return str(checkpoint)
