# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Choose the checkpoint to resume from, and check it: on one machine, or on each of several."""

import json
import logging
import shutil
import zipfile
from pathlib import Path
from typing import Any, Literal, NoReturn

from safetensors import SafetensorError, safe_open
from transformers import TrainingArguments
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from ..errors import UserError
from ..manifest import MANIFEST, DamagedFolderError, check_manifest
from .checkpoints import (
    WEIGHTS_PREFIXES,
    check_output_dir,
    check_resumable,
    is_in,
    numbered_checkpoints,
    saved_facts,
    step_of,
    whole_checkpoints,
)
from .machines import Place, from_all_processes, on_saving_processes
from .training_arguments import require_output_dir

logger = logging.getLogger(__name__)


def choose_checkpoint(args: TrainingArguments) -> str | None:
    """Choose the checkpoint to resume from. All processes must call this.

    Checkpoints after the last whole one, which are incomplete or damaged, are renamed `damaged-...` and named in a
    warning. Where each machine has a folder of its own, a checkpoint that one of them lacks is incomplete: a run may
    have been killed when only some machines had finished saving.

    Args:
        args: its `resume_from_checkpoint` is one of these:
            None: a new run. `output_dir` must be new or empty.
            "last" or "true": the last whole checkpoint of `output_dir`.
            "auto": the same, or a new run if there is none.
            a path: that checkpoint.

    Returns:
        The checkpoint's folder as this process names it, or None for a new run.

    Raises:
        UserError: `output_dir` holds another run; there is nothing to resume from; a file of the checkpoint is missing
            or is not what was saved; its updates had another number of rows; or the machines have no checkpoint in
            common.
    """
    output_dir, wanted = require_output_dir(args), str(args.resume_from_checkpoint or "false")
    if wanted.lower() == "false":
        on_saving_processes(args, lambda: check_output_dir(output_dir))
        return None
    if wanted.lower() in ("last", "true", "auto"):
        checkpoint = _last_whole_checkpoint_of_all(args)
        if checkpoint is None and wanted.lower() == "auto":
            # "runs" is the folder of Trainer's log for TensorBoard
            on_saving_processes(
                args, lambda: check_output_dir(output_dir, f"damaged-{PREFIX_CHECKPOINT_DIR}-", "runs")
            )
            return None
        if checkpoint is None:
            on_saving_processes(args, lambda: _raise_no_checkpoint(output_dir))
            raise AssertionError("unreachable")
    else:
        checkpoint = Path(wanted).expanduser()
        on_saving_processes(args, lambda: _check_named_checkpoint(wanted, output_dir))
    _check_for_all(checkpoint, args)
    return str(checkpoint)


def find_checkpoint(args: TrainingArguments, wanted: str | Path | Literal[True]) -> str:
    """Find the checkpoint that `Trainer.train` is asked to resume from, and check that it is whole.

    Unlike `choose_checkpoint`, it does not ask what else is in `output_dir`. All processes must call this.

    Args:
        args: the training arguments.
        wanted: the checkpoint's folder; or True for the last one of `output_dir` that is whole and undamaged. Of a
            stock Trainer's checkpoints, which have no manifest, True takes the last one.

    Raises:
        UserError: there is none; a part of it is missing or is not what was saved; its updates had another number of
            rows; or the machines do not have the same one.
    """
    if wanted is True:
        output_dir = require_output_dir(args)
        found = on_saving_processes(args, lambda: _last_undamaged(output_dir).name)
        if len({name for _, name in found}) > 1:
            _raise_not_in_common([(place, [name]) for place, name in found])
        checkpoint = Path(output_dir, found[0][1])
    else:
        checkpoint = Path(wanted)
        on_saving_processes(args, lambda: _check_folder(checkpoint))
    _check_for_all(checkpoint, args)
    return str(checkpoint)


def _check_for_all(checkpoint: Path, args: TrainingArguments) -> None:
    """Raise UserError unless this run can go on from the checkpoint, and it is the same for all processes."""
    seen = from_all_processes(args, (str(checkpoint), checkpoint.is_dir()))
    for place, (name, is_seen) in seen:
        if not is_seen:
            raise UserError(
                f"{seen[0][0]} resumes from {checkpoint}, but {place} has no folder {name}. Copy it there."
            )
    on_saving_processes(args, lambda: check_resumable(checkpoint, saved_facts(checkpoint), args))
    found = on_saving_processes(args, lambda: (str(checkpoint), _weights_facts(checkpoint)))
    first, (first_name, weights) = found[0]
    for place, (name, other) in found:
        if other != weights:
            raise UserError(
                f"{name} of {place} and {first_name} of {first} hold different weights: they are not of one run. Copy "
                "the folder from one machine to the other."
            )


def _weights_facts(checkpoint: Path) -> dict[str, Any]:
    """What the manifest says of the step and of the files with the weights; nothing without a manifest."""
    facts = saved_facts(checkpoint)
    files = {name: facts["files"][name] for name in facts.get("files", ()) if name.startswith(WEIGHTS_PREFIXES)}
    return {"step": facts.get("step"), **files}


def _raise_not_in_common(found: list[tuple[Place, list[str]]]) -> NoReturn:
    lists = "; ".join(f"{', '.join(names) or 'none'} in {place.output_dir} ({place})" for place, names in found)
    raise UserError(
        f"The machines have no whole checkpoint in common: {lists}. Copy one to each machine that lacks it, or empty "
        "the folders and start again."
    )


def _last_undamaged(output_dir: str) -> Path:
    for folder in reversed(whole_checkpoints(output_dir) or numbered_checkpoints(output_dir)):
        try:
            check_manifest(folder)
            return folder
        except DamagedFolderError as error:
            logger.warning(f"{error}. The checkpoint before it is used.")
    _raise_no_checkpoint(output_dir)


def _raise_no_checkpoint(output_dir: str) -> NoReturn:
    damaged = sorted(path.name for path in Path(output_dir).glob(f"damaged-{PREFIX_CHECKPOINT_DIR}-*"))
    found = f" ({', '.join(damaged)} cannot be used)" if damaged else ""
    raise UserError(
        f"There is no whole checkpoint in `output_dir` ({output_dir}) to resume from{found}. Leave out "
        "`--resume_from_checkpoint` and start again in another folder, or in this one after emptying it; or "
        "name a checkpoint elsewhere."
    )


def _last_whole_checkpoint_of_all(args: TrainingArguments) -> Path | None:
    """Return the last checkpoint of `output_dir` that is whole on each machine; None if no machine has any."""
    output_dir = require_output_dir(args)
    up_to: int | None = None
    while True:
        found = on_saving_processes(args, lambda limit=up_to: _last_whole_step(output_dir, limit))
        steps = [step for _, step in found if step is not None]
        if not steps and up_to is None:
            return None
        if len(steps) < len(found):
            _raise_not_in_common(
                on_saving_processes(args, lambda: [path.name for path in whole_checkpoints(output_dir)])
            )
        if min(steps) == max(steps):
            break
        up_to = min(steps)
    on_saving_processes(args, lambda: _set_later_aside(output_dir, steps[0]))
    return Path(output_dir, f"{PREFIX_CHECKPOINT_DIR}-{steps[0]}")


def _last_whole_step(output_dir: str, up_to: int | None) -> int | None:
    """Return the update of the last whole checkpoint, not later than `up_to`; rename those that are not whole."""
    for checkpoint in reversed(numbered_checkpoints(output_dir)):
        if up_to is not None and step_of(checkpoint) > up_to:
            continue
        try:
            facts = check_manifest(checkpoint)
            if facts is None:
                problem = f"{checkpoint} is incomplete: it has no {MANIFEST}, which is written last"
            elif (step := facts.get("step")) not in (None, step_of(checkpoint)):
                problem = f"{checkpoint} was saved after update {step}, and has another's name"
            else:
                return step_of(checkpoint)
        except DamagedFolderError as error:
            problem = str(error)
        _set_aside(checkpoint, problem)
    return None


def _set_later_aside(output_dir: str, step: int) -> None:
    """Rename the checkpoints after this update, which another machine does not have."""
    for checkpoint in numbered_checkpoints(output_dir):
        if step_of(checkpoint) > step:
            _set_aside(checkpoint, f"{checkpoint} is incomplete: another machine does not have it")


def _set_aside(checkpoint: Path, problem: str) -> None:
    moved = checkpoint.with_name(f"damaged-{checkpoint.name}")
    shutil.rmtree(moved, ignore_errors=True)
    checkpoint.rename(moved)
    logger.warning(f"{problem}. It is now {moved}; the checkpoint before it is used.")


def _check_named_checkpoint(path: str, output_dir: str) -> None:
    checkpoint = Path(path).expanduser()
    facts = _check_folder(checkpoint)
    if not is_in(checkpoint, output_dir):
        check_output_dir(output_dir)
    elif later := [
        folder.name for folder in numbered_checkpoints(output_dir) if step_of(folder) > step_of(checkpoint)
    ]:
        raise UserError(
            f"`resume_from_checkpoint` is {path!r}, but {output_dir} has later checkpoints ({', '.join(later)}), "
            "which would mix with the resumed run's. Remove them, or choose a new `output_dir`."
        )
    if facts is None:
        logger.warning(f"{checkpoint} has no {MANIFEST}: only whether its files can be read is checked.")
        _check_readable(checkpoint)


def _check_folder(checkpoint: Path) -> dict | None:
    """Compare a checkpoint with its manifest.

    Returns:
        The manifest's facts, or None without a manifest.
    """
    if not checkpoint.is_dir():
        raise UserError(f"`resume_from_checkpoint` is {str(checkpoint)!r}, but there is no such folder.")
    try:
        return check_manifest(checkpoint)
    except DamagedFolderError as error:
        raise UserError(f"{error}. Resume from another checkpoint.") from error


def _check_readable(folder: Path) -> None:
    """Raise UserError for the first file of a checkpoint that is cut short or damaged, as far as its format tells."""
    for path in sorted(folder.iterdir()):
        try:
            if path.suffix in (".pt", ".pth", ".bin"):  # what torch saves is a zip archive
                with zipfile.ZipFile(path) as archive:
                    if (part := archive.testzip()) is not None:
                        raise zipfile.BadZipFile(f"{part} in it is damaged")
            elif path.suffix == ".safetensors":
                with safe_open(path, framework="pt"):
                    pass
            elif path.suffix == ".json":
                json.loads(path.read_text(encoding="utf-8"))
        except (zipfile.BadZipFile, SafetensorError, ValueError) as error:
            raise UserError(f"{path} is cut short or damaged ({error}). Resume from another checkpoint.") from error
