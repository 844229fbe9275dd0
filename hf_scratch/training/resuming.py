# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Makes resumed runs reproduce uninterrupted ones: checkpoints with a manifest, and a comparison of both runs."""

import hashlib
import json
import logging
import uuid
from collections.abc import Generator, Sized
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
from accelerate import PartialState
from accelerate.utils import gather_object
from transformers import EarlyStoppingCallback, PreTrainedConfig, Trainer, TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, IntervalStrategy
from transformers.utils.logging import tqdm

from ..data.columns import ROWS_AT_ONCE
from ..data.streaming import RowStream
from ..errors import UserError
from ..loading import require_output_dir
from ..manifest import write_manifest
from .callbacks import StopCallback, ends_epoch
from .checkpoints import (
    check_checkpoint,
    delete_old_checkpoints,
    find_last_checkpoint,
    read_facts,
    step_of,
    whole_checkpoints,
)
from .main_process import on_main_process
from .runs import describe_command

logger = logging.getLogger(__name__)

# Arguments that may change on resume, are compared as `rows_per_update`, or that Trainer compares by itself
UNCOMPARED_ARGUMENTS = {
    "output_dir", "run_name", "logging_dir", "resume_from_checkpoint", "ignore_data_skip", "save_total_limit",
    "per_device_train_batch_size", "gradient_accumulation_steps", "disable_tqdm", "logging_steps", "eval_steps",
    "save_steps", "logging_nan_inf_filter", "include_num_input_tokens_seen", "ddp_broadcast_buffers",
}  # fmt: skip
# Fields of the config that saving adds, that Trainer takes from the tokenizer, or that do not change the outputs
UNCOMPARED_FIELDS = {
    "_name_or_path", "architectures", "auto_map", "bos_token_id", "dtype", "eos_token_id", "pad_token_id",
    "skip_logits", "transformers_version", "use_cache",
}  # fmt: skip


class CheckpointKeeper(TrainerCallback):
    """Makes a resumed run of any Trainer reproduce an uninterrupted one.

    - A checkpoint has a manifest, written last. Older checkpoints are deleted only after that.
    - Where both are due at the end of an epoch, the evaluation comes before the checkpoint. Trainer saves after the
      step, and evaluates after the epoch: a resumed run would skip the evaluation, which draws random numbers.
    - A checkpoint's log has an entry of the steps before it, and its manifest the commands of the run: a resumed run
      reports time, curve and commands of the whole run.
    - A run that a `StopCallback` ends does what is due after its last step, and saves it. Such an early checkpoint
      is deleted as soon as there is a later one.

    Args:
        trainer: the keeper becomes one of its callbacks. Its `train` must be called inside `begin`.
        stream: the training rows, whose position is kept in each checkpoint. Default: they are no stream.
    """

    def __init__(self, trainer: Trainer, stream: RowStream | None = None):
        self.trainer, self.stream = trainer, stream
        self.checkpoint: str | None = None  # that the run is resumed from
        self.facts: dict[str, Any] = {}  # what must not change in a run; manifests keep it
        self.commands: list[str] = []  # of the run and, where they differ, of those that resumed it
        self.first_step: int | None = None  # None until the training has begun
        self.is_put_off, self.saves_early, self.saved_step = False, False, -1
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
        self.first_step, self.checkpoint = None, None
        self.folder = require_output_dir(args)  # of checkpoints; a hyperparameter search has one for each trial
        self.run_id: str | None = uuid.uuid4().hex
        self.commands = [describe_command(args)]
        self.facts = getattr(self.trainer, "batch_facts", lambda: row_facts(self.trainer))()
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
        if wanted:
            self.checkpoint = on_main_process(
                lambda: find_last_checkpoint(self.folder) if wanted is True else check_checkpoint(wanted)
            )
            self.check_same_run(self.checkpoint)
            saved = read_facts(self.checkpoint)
            self.run_id = saved.get("run_id")
            self.commands = list(dict.fromkeys([*saved.get("commands", []), *self.commands]))
        if self.stream is not None:
            self.stream.load(None if self.checkpoint is None else Path(self.checkpoint))
        self.limit, args.save_total_limit = args.save_total_limit, None
        with ExitStack() as stack:
            stack.callback(setattr, args, "save_total_limit", self.limit)
            for callback in self.callbacks(StopCallback):
                stack.enter_context(callback.catch_signals(self.trainer))
            yield self.checkpoint

    def callbacks(self, kind: type) -> list[Any]:
        """Return the trainer's callbacks of a class."""
        return [callback for callback in self.trainer.callback_handler.callbacks if isinstance(callback, kind)]

    def saved(self) -> list[Path]:
        """Return the whole checkpoints of this run, by ascending step, without other runs' checkpoints beside them."""
        step = self.trainer.state.global_step
        folders = [folder for folder in whole_checkpoints(self.folder) if step_of(folder) <= step]
        return [folder for folder in folders if read_facts(folder).get("run_id") == self.run_id]

    def is_over(self) -> bool:
        """Return whether a resumed run has made its last step already."""
        state, stoppers = self.trainer.state, self.callbacks(EarlyStoppingCallback)
        has_stopped = any(c.early_stopping_patience_counter >= c.early_stopping_patience for c in stoppers)
        return state.global_step >= state.max_steps or (self.checkpoint is not None and has_stopped)

    def on_train_begin(self, args, state, control, **kwargs):
        """Find the best checkpoint, since the run's folder may have moved. The intervals are this run's, too."""
        state.compute_steps(args, state.max_steps)  # Trainer takes the checkpoint's, which a new plan may have changed
        self.first_step, self.saved_step = state.global_step, -1
        best = self._folder(state.best_global_step)
        if best.is_dir():
            state.best_model_checkpoint = str(best)

    def on_step_end(self, args, state, control, **kwargs):
        """Log before a checkpoint, and put it off until after the epoch's evaluation."""
        control.should_log |= control.should_save
        self.is_put_off = control.should_save and ends_epoch(state) and args.eval_strategy == IntervalStrategy.EPOCH
        control.should_save &= not self.is_put_off

    def on_epoch_end(self, args, state, control, **kwargs):
        """Save what was put off, and the last step of a run that is stopped."""
        control.should_save |= self.is_put_off
        stops = any(callback.has_stopped for callback in self.callbacks(StopCallback))
        if state.global_step == self.first_step or (stops and not ends_epoch(state)):  # nothing is due
            control.should_log = control.should_evaluate = control.should_save = False
        self.saves_early = stops and not control.should_save and self.saved_step != state.global_step
        control.should_save |= self.saves_early
        control.should_log |= control.should_save

    def on_save(self, args, state, control, **kwargs):
        """Complete the checkpoint, and delete old ones."""
        folder = self._folder(state.global_step)
        if self.stream is not None:
            self.stream.save(folder)
        self.trainer.accelerator.wait_for_everyone()  # each process has written its part
        self.commands = list(dict.fromkeys([*self.commands, describe_command(args)]))  # a `Replanner` changes it
        if args.should_save:
            facts = self.facts | {"run_id": self.run_id, "step": state.global_step, "num_processes": args.world_size}
            facts |= {"is_early": self.saves_early, "commands": self.commands, "arguments": self._arguments()}
            write_manifest(folder, **facts)
            delete_old_checkpoints(self.saved(), self.limit, state.best_model_checkpoint)
        self.saved_step, self.saves_early = state.global_step, False

    def _folder(self, step: int | None) -> Path:
        return Path(self.folder, f"{PREFIX_CHECKPOINT_DIR}-{step}")

    def _arguments(self) -> dict[str, Any]:
        """Return the training arguments, and the trainer's own, in the types that JSON has."""
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
            UserError: the model's config, `muon`, the training data or the batches differ. With
                `ignore_data_skip`, only the config and `muon` are compared.
        """
        model: Any = self.trainer.model
        saved, path = read_facts(checkpoint), Path(checkpoint, "config.json")
        if path.is_file():  # an adapter's checkpoint has none
            fields = json.loads(path.read_text(encoding="utf-8"))
            if fields.get("model_type") == model.config.model_type:
                fields = _config_fields(type(model.config).from_dict(fields))
            _refuse_changes(checkpoint, "fields of the config", fields, _config_fields(model.config))
        before = saved.get("arguments", {}).get("muon", False)  # another optimizer cannot load its state
        _refuse_changes(checkpoint, "arguments", {"muon": before}, {"muon": getattr(self.trainer, "muon", False)})
        if not self.trainer.args.ignore_data_skip:
            _refuse_changes(checkpoint, "data or batches", saved, self.facts)
        if changes := _describe_changes(saved.get("arguments", {}), self._arguments()):
            logger.warning(f"{checkpoint} was saved with other arguments: {changes}. The run may end otherwise.")


def row_facts(trainer: Trainer) -> dict[str, int | str | None]:
    """Return what determines the rows of a step.

    Returns:
        Of a stream also see `RowStream.facts`.
        `rows_per_update`: rows of a step, of all processes together.
        `train_rows`: rows of the training set; None if unknown.
        `train_data_sha256`: see `hash_rows`.
    """
    args, dataset = trainer.args, trainer.train_dataset
    rows = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
    num_rows = len(dataset) if isinstance(dataset, Sized) else None
    facts = {"rows_per_update": rows, "train_rows": num_rows, "train_data_sha256": hash_rows(dataset)}
    return facts | (dataset.facts() if isinstance(dataset, RowStream) else {})


def hash_rows(dataset) -> str | None:
    """Hash all rows of a dataset: other data or another preparation gives another hash.

    Returns:
        A SHA-256 in hex, of a stream that of the first rows, or None for anything but a `datasets.Dataset` or a
        stream.
    """
    if isinstance(dataset, RowStream):
        dataset = dataset.first_rows()
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


def _config_fields(config: PreTrainedConfig) -> dict[str, Any]:
    fields = json.loads(config.to_json_string(use_diff=False))
    return {name: value for name, value in fields.items() if name not in UNCOMPARED_FIELDS}


def _describe_changes(before: dict[str, Any], now: dict[str, Any]) -> str:
    """Name what has changed. What a checkpoint does not say, for example an earlier version's, is not compared."""
    changed = [name for name in now if before.get(name, now[name]) != now[name]]
    return ", ".join(f"`{name}` {before[name]} (now {now[name]})" for name in changed)


def _refuse_changes(checkpoint: str | Path, what: str, before: dict[str, Any], now: dict[str, Any]) -> None:
    if changes := _describe_changes(before, now):
        raise UserError(
            f"{checkpoint} was saved with other {what}: {changes}. Resume with the data and options that the run was "
            "begun with; or start a new run from the checkpoint, by `--model_name_or_path`."
        )
