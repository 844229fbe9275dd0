# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""What makes a run resumable: checkpoints with a manifest, and a comparison of the run that goes on with the first."""

import hashlib
import json
import logging
import uuid
from collections.abc import Generator, Sequence, Sized
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
from accelerate import PartialState
from accelerate.utils import gather_object
from transformers import EarlyStoppingCallback, Trainer, TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, IntervalStrategy
from transformers.training_args import OptimizerNames
from transformers.utils.logging import tqdm

from ..data.columns import ROWS_AT_ONCE
from ..data.pairs import PairsWithBPEDropout
from ..errors import UserError
from ..loading import require_output_dir
from ..manifest import write_manifest
from .callbacks import StopCallback, ends_epoch
from .checkpoints import delete_old_checkpoints, find_checkpoint, read_facts, step_of, whole_checkpoints
from .machines import on_main_process
from .runs import describe_command

logger = logging.getLogger(__name__)

# arguments that may change on resume, are compared as `rows_per_update`, or that Trainer compares by itself
UNCOMPARED_ARGUMENTS = {
    "output_dir", "run_name", "logging_dir", "resume_from_checkpoint", "ignore_data_skip", "save_total_limit",
    "per_device_train_batch_size", "gradient_accumulation_steps", "disable_tqdm", "logging_steps", "eval_steps",
    "save_steps", "logging_nan_inf_filter", "include_num_input_tokens_seen", "ddp_broadcast_buffers",
}  # fmt: skip
# what saving adds, what Trainer takes from the tokenizer, and what does not change what the model computes
UNCOMPARED_FIELDS = {
    "_name_or_path", "architectures", "auto_map", "bos_token_id", "dtype", "eos_token_id", "pad_token_id",
    "skip_logits", "transformers_version", "use_cache",
}  # fmt: skip


class CheckpointKeeper(TrainerCallback):
    """Makes a resumed run of any Trainer end as an uninterrupted one.

    - A checkpoint has a manifest, written last. Older checkpoints are deleted only after that.
    - Where both are due at the end of an epoch, the evaluation comes before the checkpoint. Trainer saves after the
      update, and evaluates after the epoch: a resumed run would skip the evaluation, which draws random numbers.
    - A checkpoint's log has an entry of the updates before it, and its manifest the commands of the run: a resumed run
      reports time, curve and commands of the whole run.
    - A run that a `StopCallback` ends does what is due after its last update, and saves it. Such an early checkpoint
      goes as soon as there is a later one.

    Args:
        trainer: the keeper becomes one of its callbacks. Its `train` must be called inside `begin`.
        parts: objects that keep something in each checkpoint: `save(folder)` writes it, and `load(folder)` reads it,
            or begins anew if the folder is None. All processes call them.
    """

    def __init__(self, trainer: Trainer, parts: Sequence[Any] = ()):
        self.trainer, self.parts = trainer, parts
        self.checkpoint: str | None = None  # that the run is resumed from
        self.facts: dict[str, Any] = {}  # what must not change in a run; manifests keep it
        self.commands: list[str] = []  # of the run and, where they differ, of those that resumed it
        self.has_begun, self.is_put_off, self.saves_early = False, False, False
        self.first_step, self.saved_step = 0, -1
        # after Trainer's own, which says what is due, and before those that read a checkpoint that was saved
        trainer.callback_handler.callbacks.insert(1, self)

    @contextmanager
    def begin(self, wanted) -> Generator[str | None]:
        """Find, check and read the checkpoint that `Trainer.train` is asked to resume from, and yield it to the call.

        All processes must call this, before each training. Inside, a `StopCallback` catches signals, and
        `save_total_limit` is None: Trainer would delete old checkpoints before the manifest of a new one is written.

        Args:
            wanted: the checkpoint's folder; True for the last whole one; or None or False for a new run.

        Raises:
            UserError: there is no such checkpoint, it is incomplete or damaged, or see `check_same_run`. Or a process
                has other training data.
        """
        args = self.trainer.args
        self.has_begun, self.checkpoint = False, None
        self.folder = require_output_dir(args)  # of checkpoints; a hyperparameter search has one for each trial
        self.run_id: str | None = uuid.uuid4().hex
        self.facts = getattr(self.trainer, "batch_facts", lambda: row_facts(self.trainer))()
        self.facts |= {"optim": OptimizerNames(args.optim).value}
        if args.metric_for_best_model is not None:  # the best checkpoint is chosen by its figure on these data
            self.facts |= {"eval_data_sha256": hash_rows(self.trainer.eval_dataset)}
        if PartialState().num_processes > 1:
            gathered = gather_object([self.facts])
            different = [rank for rank, other in enumerate(gathered) if other != gathered[0]]
            if different:
                raise UserError(
                    f"Process {different[0]} has other training data than process 0, or other options. Give all "
                    "machines the same files and the same command."
                )
        self.commands = [describe_command()]
        if wanted:
            folder = wanted if wanted is True else Path(wanted)
            self.checkpoint = on_main_process(lambda: find_checkpoint(self.folder, folder))
            self.check_same_run(self.checkpoint)
            saved = read_facts(self.checkpoint)
            self.run_id = saved.get("run_id")
            self.commands = list(dict.fromkeys([*saved.get("commands", []), *self.commands]))
        for part in self.parts:
            part.load(None if self.checkpoint is None else Path(self.checkpoint))
        self.limit, args.save_total_limit = args.save_total_limit, None
        with ExitStack() as stack:
            stack.callback(setattr, args, "save_total_limit", self.limit)
            for callback in self.trainer.callback_handler.callbacks:
                if isinstance(callback, StopCallback):
                    stack.enter_context(callback.catch_signals(self.trainer))
            yield self.checkpoint

    def saved(self) -> list[Path]:
        """Return the whole checkpoints of this run, by ascending step, without those of other runs beside them."""
        step = self.trainer.state.global_step
        folders = [folder for folder in whole_checkpoints(self.folder) if step_of(folder) <= step]
        return [folder for folder in folders if read_facts(folder).get("run_id") == self.run_id]

    def is_over(self) -> bool:
        """Return whether a resumed run has made its last update already."""
        state = self.trainer.state
        stoppers = [c for c in self.trainer.callback_handler.callbacks if isinstance(c, EarlyStoppingCallback)]
        has_stopped = any(c.early_stopping_patience_counter >= c.early_stopping_patience for c in stoppers)
        return state.global_step >= state.max_steps or (self.checkpoint is not None and has_stopped)

    def on_train_begin(self, args, state, control, **kwargs):
        """Find the best checkpoint, since the run's folder may have moved."""
        self.has_begun, self.first_step, self.saved_step = True, state.global_step, -1
        best = self._folder(state.best_global_step)
        if best.is_dir():
            state.best_model_checkpoint = str(best)

    def on_step_end(self, args, state, control, **kwargs):
        """Log before a checkpoint, and put it off until after the epoch's evaluation."""
        control.should_log |= control.should_save
        self.is_put_off = control.should_save and ends_epoch(state) and args.eval_strategy == IntervalStrategy.EPOCH
        control.should_save &= not self.is_put_off

    def on_epoch_end(self, args, state, control, **kwargs):
        """Save what was put off, and the last update of a run that is stopped."""
        control.should_save |= self.is_put_off
        stops = any(isinstance(c, StopCallback) and c.has_stopped for c in self.trainer.callback_handler.callbacks)
        if state.global_step == self.first_step or (stops and not ends_epoch(state)):  # nothing is due
            control.should_log = control.should_evaluate = control.should_save = False
        self.saves_early = stops and not control.should_save and self.saved_step != state.global_step
        control.should_save |= self.saves_early
        control.should_log |= control.should_save

    def on_save(self, args, state, control, **kwargs):
        """Complete the checkpoint, and delete old ones."""
        folder = self._folder(state.global_step)
        for part in self.parts:
            part.save(folder)
        self.trainer.accelerator.wait_for_everyone()  # each process has written its part
        if args.should_save:
            facts = self.facts | {"run_id": self.run_id, "step": state.global_step, "num_processes": args.world_size}
            facts |= {"is_early": self.saves_early, "commands": self.commands, "arguments": self._arguments()}
            write_manifest(folder, **facts)
            delete_old_checkpoints(self.saved(), self.limit, state.best_model_checkpoint)
        self.saved_step, self.saves_early = state.global_step, False

    def _folder(self, step: int | None) -> Path:
        return Path(self.folder, f"{PREFIX_CHECKPOINT_DIR}-{step}")

    def _arguments(self) -> dict[str, Any]:
        """The training arguments, and the trainer's own, as JSON gives them back."""
        own = getattr(self.trainer, "own_arguments", dict)()
        arguments = {"num_processes": self.trainer.args.world_size, **self.trainer.args.to_dict(), **own}
        arguments = {name: value for name, value in arguments.items() if name not in UNCOMPARED_ARGUMENTS}
        return json.loads(json.dumps(arguments, default=str))

    def check_same_run(self, checkpoint: str | Path) -> None:
        """Compare this run with the one that the checkpoint comes from, by the checkpoint's config and manifest.

        With another number of heads or dropout, for example, the same weights are another model. Other training
        arguments, which the user may want, are named in a warning. What neither a training argument nor
        `own_arguments` holds is not compared, e.g. the number of threads. See "If a resumed run ends otherwise" in
        scripts/README.md.

        Raises:
            UserError: the model's config, the training data, the batches, or the optimiser differ. With
                `ignore_data_skip`, only the config is compared.
        """
        model: Any = self.trainer.model
        config, path = model.config, Path(checkpoint, "config.json")
        if path.is_file():  # an adapter's checkpoint has none
            fields = json.loads(path.read_text(encoding="utf-8"))
            if fields.get("model_type") == config.model_type:
                fields = json.loads(type(config).from_dict(fields).to_json_string(use_diff=False))
            now = json.loads(config.to_json_string(use_diff=False))
            names = (fields | now).keys() - UNCOMPARED_FIELDS
            before, now = ({name: each.get(name) for name in names} for each in (fields, now))
            if before != now:
                _refuse(checkpoint, "fields of the config", before, now)
        saved = read_facts(checkpoint)
        facts = {} if self.trainer.args.ignore_data_skip else self.facts
        if facts != (before := {name: saved.get(name, now) for name, now in facts.items()}):
            _refuse(checkpoint, "data, batches or optimiser", before, facts)
        arguments = self._arguments()
        before = {name: saved.get("arguments", {}).get(name, now) for name, now in arguments.items()}
        if before != arguments:
            changes = _describe_changes(before, arguments)
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
    """Hash all rows of a dataset: other data or another preparation gives another hash.

    Returns:
        A SHA-256 in hex, or None for anything but a `datasets.Dataset`, maybe with BPE-dropout.
    """
    dataset = dataset.encoded if isinstance(dataset, PairsWithBPEDropout) else dataset
    if not isinstance(dataset, datasets.Dataset):
        return None
    digest = hashlib.sha256()
    # as stored: a transform may draw random numbers
    tables = dataset.with_format("arrow").iter(ROWS_AT_ONCE)
    for table in tqdm(tables, desc="hashing the rows", total=len(dataset) // ROWS_AT_ONCE + 1, delay=1, disable=None):
        table = table.select(sorted(table.column_names)).combine_chunks()
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema.remove_metadata()) as stream:
            stream.write_table(table)
        digest.update(sink.getvalue())
    return digest.hexdigest()


def _describe_changes(before: dict[str, Any], now: dict[str, Any]) -> str:
    return ", ".join(f"`{name}` {before[name]} (now {now[name]})" for name in now if before[name] != now[name])


def _refuse(checkpoint: str | Path, what: str, before: dict[str, Any], now: dict[str, Any]) -> None:
    raise UserError(
        f"{checkpoint} was saved with other {what}: {_describe_changes(before, now)}. Resume with the data and "
        "options that the run was begun with; or start a new run from the checkpoint, by `--model_name_or_path`."
    )
