# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""What makes a run resumable: checkpoints with a manifest, and a comparison of the run that goes on with the first."""

import hashlib
import json
import logging
import shutil
from collections.abc import Sequence, Sized
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import datasets
import pyarrow as pa
from accelerate import PartialState
from accelerate.utils import gather_object
from safetensors import safe_open
from transformers import EarlyStoppingCallback, PreTrainedModel, Trainer, TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, IntervalStrategy, SaveStrategy
from transformers.training_args import OptimizerNames

from ..data.columns import ROWS_AT_ONCE
from ..errors import UserError
from ..folders import require_output_dir
from ..manifest import MANIFEST, write_manifest
from .callbacks import StopCallback, StopOnSignal, ends_epoch
from .checkpoints import delete_old_checkpoints, find_best_checkpoint, find_checkpoint, saved_facts
from .fsdp import current_state_dict_type, has_shards, saved_state_dict_type, shapes_of_shards

logger = logging.getLogger(__name__)

ADVICE = (
    "Resume with the data and options that the run was begun with; or start a new run with `--model_name_or_path` and "
    "the path of the checkpoint."
)
# training arguments in which runs differ that go on alike, and those that Trainer or the rows per update compare
UNCOMPARED_ARGUMENTS = {
    "output_dir", "run_name", "logging_dir", "resume_from_checkpoint", "ignore_data_skip", "save_total_limit",
    "per_device_train_batch_size", "gradient_accumulation_steps", "disable_tqdm", "logging_steps", "eval_steps",
    "save_steps",
}  # fmt: skip
BEST_FACTS = ("metric_for_best_model", "greater_is_better", "eval_data_sha256")  # None: unknown
# what a saved config has that its model did not have, or that does not change what the model computes
UNCOMPARED_FIELDS = {"_name_or_path", "architectures", "auto_map", "dtype", "transformers_version", "use_cache"}
_HASHES: WeakKeyDictionary[datasets.Dataset, str] = WeakKeyDictionary()


class CheckpointKeeper(TrainerCallback):
    """Makes any Trainer's checkpoints ones from which a killed or stopped run goes on, and ends as one that was not.

    - A checkpoint has a manifest, written last. Older checkpoints are deleted only after that.
    - Where both are due at the end of an epoch, the evaluation comes before the checkpoint. Trainer saves after the
      update, and evaluates after the epoch: a resumed run would skip the evaluation, which draws random numbers.
    - A run that a `StopCallback` ends does what is due after its last update, and saves it. Such an early checkpoint
      goes as soon as there is a later one.

    Args:
        trainer: the keeper becomes one of its callbacks.
        parts: objects that keep something in each checkpoint: `save(folder)` writes it, and `load(folder)` reads it,
            or begins anew if the folder is None. All processes call them.
    """

    def __init__(self, trainer: Trainer, parts: Sequence[Any] = ()):
        self.trainer, self.parts = trainer, parts
        self.checkpoint: str | None = None  # that the run is resumed from
        self.has_begun, self.is_put_off, self.saves_early = False, False, False
        self.first_step, self.saved_step, self.limit = 0, -1, None
        # after Trainer's own, which says what is due, and before those that read a checkpoint that was saved
        trainer.callback_handler.callbacks.insert(1, self)

    def begin(self, wanted) -> str | None:
        """Find, check and read the checkpoint that `Trainer.train` is asked to resume from, if any.

        All processes must call this, before each training.

        Raises:
            UserError: the checkpoint is incomplete, damaged, or of a run with other data, batches, model or optimiser;
                or there is none. Or a process has other training data.
        """
        self.has_begun, self.saved_step = False, -1
        if PartialState().num_processes > 1:
            gathered = gather_object([self.facts()])
            different = [rank for rank, other in enumerate(gathered) if other != gathered[0]]
            if different:
                raise UserError(
                    f"Process {different[0]} has other training data than process 0, or other options. Give all "
                    "machines the same files and the same command."
                )
        self.checkpoint = find_checkpoint(self.trainer.args, wanted) if wanted else None
        if self.checkpoint is not None:
            self.check_same_run(self.checkpoint)
        for part in self.parts:
            part.load(None if self.checkpoint is None else Path(self.checkpoint))
        return self.checkpoint

    def end(self) -> None:
        """Undo what the start of the training has changed."""
        if self.has_begun:
            self.trainer.args.save_total_limit = self.limit

    def remove_unfinished(self) -> None:
        """Remove a checkpoint of this run that could not be finished, for example on a full disk."""
        folder, step = self._folder(), self.trainer.state.global_step
        is_unfinished = self.has_begun and step > self.first_step and not (folder / MANIFEST).is_file()
        if is_unfinished and self.trainer.args.should_save:
            shutil.rmtree(folder, ignore_errors=True)

    def is_over(self) -> bool:
        """Return whether a resumed run has made its last update already."""
        state = self.trainer.state
        stoppers = [c for c in self.trainer.callback_handler.callbacks if isinstance(c, EarlyStoppingCallback)]
        has_stopped = any(c.early_stopping_patience_counter >= c.early_stopping_patience for c in stoppers)
        return state.global_step >= state.max_steps or (self.checkpoint is not None and has_stopped)

    def on_train_begin(self, args, state, control, **kwargs):
        """Take the deletion of old checkpoints over from Trainer, and find the best checkpoint again."""
        self.has_begun, self.first_step = True, state.global_step
        self.limit, args.save_total_limit = args.save_total_limit, None
        if self.checkpoint is not None and args.load_best_model_at_end:
            find_best_checkpoint(state, self.checkpoint, require_output_dir(args))

    def on_step_end(self, args, state, control, **kwargs):
        """Put the checkpoint off until after the epoch's evaluation."""
        self.is_put_off = control.should_save and ends_epoch(state) and args.eval_strategy == IntervalStrategy.EPOCH
        control.should_save &= not self.is_put_off

    def on_epoch_end(self, args, state, control, **kwargs):
        """Save what was put off, and the last update of a run that is stopped."""
        control.should_save |= self.is_put_off
        stops = [c for c in self.trainer.callback_handler.callbacks if isinstance(c, StopCallback) and c.has_stopped]
        if state.global_step == self.first_step or (stops and not ends_epoch(state)):  # nothing is due
            control.should_log = control.should_evaluate = control.should_save = False
        is_saved = control.should_save or self.saved_step == state.global_step
        is_wanted = args.save_strategy != SaveStrategy.NO or any(isinstance(stop, StopOnSignal) for stop in stops)
        self.saves_early = bool(stops) and is_wanted and not is_saved
        control.should_save |= self.saves_early

    def on_save(self, args, state, control, **kwargs):
        """Complete the checkpoint, and delete old ones."""
        folder = self._folder()
        for part in self.parts:
            part.save(folder)
        self.trainer.accelerator.wait_for_everyone()  # each process has written its part
        if args.should_save:
            facts = self.facts() | {"step": state.global_step, "num_processes": args.world_size}
            write_manifest(folder, **facts, is_early=self.saves_early, arguments=self._arguments())
            delete_old_checkpoints(folder.parent, self.limit, state.best_model_checkpoint)
        self.saved_step, self.saves_early = state.global_step, False

    def _folder(self) -> Path:
        step = self.trainer.state.global_step
        return Path(require_output_dir(self.trainer.args), f"{PREFIX_CHECKPOINT_DIR}-{step}")

    def facts(self) -> dict[str, Any]:
        """Return what must not change in a run. Manifests keep it.

        Returns:
            The trainer's `batch_facts()`, if it has that method, else those of the stock trainer; `optim`; and in a
            run that keeps the best checkpoint, what it is chosen by.
        """
        args, trainer = self.trainer.args, self.trainer
        facts = getattr(trainer, "batch_facts", lambda: row_facts(trainer))()
        facts |= {"optim": OptimizerNames(args.optim).value}
        if args.metric_for_best_model is not None:
            facts |= {"metric_for_best_model": args.metric_for_best_model, "greater_is_better": args.greater_is_better}
            facts |= {"eval_data_sha256": hash_rows(trainer.eval_dataset)}
        return facts

    def _arguments(self) -> dict[str, Any]:
        """The training arguments, and the trainer's own, as JSON gives them back."""
        own = getattr(self.trainer, "own_arguments", dict)()
        arguments = {"num_processes": self.trainer.args.world_size, **self.trainer.args.to_dict(), **own}
        arguments = {name: value for name, value in arguments.items() if name not in UNCOMPARED_ARGUMENTS}
        return json.loads(json.dumps(arguments, default=str))

    def check_same_run(self, checkpoint: str | Path) -> None:
        """Compare this run with the one that the checkpoint comes from.

        Other training arguments, which the user may want, are named in a warning.

        Raises:
            UserError: the model's config, the training data, the batches, the optimiser, FSDP's form of checkpoints,
                or what the best checkpoint is chosen by differ. With `ignore_data_skip`, only the model and FSDP's
                form are compared.
        """
        args, saved = self.trainer.args, saved_facts(checkpoint)
        model: Any = self.trainer.model
        check_same_config(model, checkpoint)
        facts = {} if args.ignore_data_skip else self.facts()
        forms = saved_state_dict_type(checkpoint), current_state_dict_type(self.trainer.accelerator)
        if saved.get("rows_per_update") is not None:  # without a budget of tokens
            saved = {"tokens_per_update": None} | saved
        for name, before, now in [
            *((name, saved.get(name, now), now) for name, now in facts.items()),
            ("fsdp_state_dict_type", *forms),
        ]:
            if before != now and not (name in BEST_FACTS and None in (before, now)):
                difference = f"`{name}` {before}, and this run has {now}"
                if name.endswith("_sha256"):
                    kind = "training" if name.startswith("train") else "validation"
                    difference = f"other {kind} data, or with another preparation of the data"
                raise UserError(f"{checkpoint} was saved with {difference}. {ADVICE}")
        earlier: dict[str, Any] = saved.get("arguments") or {}
        arguments = self._arguments()
        changed = [name for name, now in arguments.items() if earlier.get(name, now) != now]
        if changed:
            changes = ", ".join(f"`{name}` {earlier[name]} (now {arguments[name]})" for name in changed)
            logger.warning(f"{checkpoint} was saved with other arguments: {changes}. The run may end otherwise.")


def row_facts(trainer: Trainer) -> dict[str, int | str | None]:
    """Return what determines the rows of an update.

    Returns:
        `rows_per_update`: rows of all processes together.
        `train_rows`: rows of the training set; None if unknown.
        `train_data_sha256`: see `hash_rows`.
    """
    args, dataset = trainer.args, trainer.train_dataset
    rows = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
    num_rows = len(dataset) if isinstance(dataset, Sized) else None
    return {"rows_per_update": rows, "train_rows": num_rows, "train_data_sha256": hash_rows(dataset)}


def hash_rows(dataset) -> str | None:
    """Hash all rows of a dataset, once: other data or another preparation gives another hash.

    Returns:
        A SHA-256 in hex, or None for anything but a `datasets.Dataset`.
    """
    if not isinstance(dataset, datasets.Dataset):
        return None
    if dataset not in _HASHES:
        digest = hashlib.sha256()
        # as stored: a transform may draw random numbers
        for table in dataset.with_format("arrow").iter(ROWS_AT_ONCE):
            table = table.select(sorted(table.column_names)).combine_chunks()
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, table.schema.remove_metadata()) as stream:
                stream.write_table(table)
            digest.update(sink.getvalue())
        _HASHES[dataset] = digest.hexdigest()
    return _HASHES[dataset]


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


def check_same_config(model: PreTrainedModel, checkpoint: str | Path) -> None:
    """Raise UserError where the checkpoint's config is not the model's, though its weights may fit.

    Another number of heads or dropout, for example, makes another model of the same weights. Another dtype is logged.
    """
    config, path = model.config, Path(checkpoint, "config.json")
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
    different = [name for name in names if saved.get(name) != now.get(name)][:4]
    if different:
        before, after = (", ".join(f"`{name}` {c.get(name)!r}" for name in different) for c in (saved, now))
        raise UserError(f"{checkpoint} was saved with {before} in the model's config; this run has {after}. {ADVICE}")
