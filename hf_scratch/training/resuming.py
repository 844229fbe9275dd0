# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Checkpoints from which a stopped or killed run can be resumed, for any Trainer."""

import hashlib
import logging
import shutil
import tempfile
from collections.abc import Sized
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import datasets
import pyarrow as pa
import torch
from accelerate.data_loader import BatchSamplerShard
from torch.utils.data import DataLoader, Sampler
from transformers import EarlyStoppingCallback, PreTrainedModel, Trainer
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_pt_utils import LengthGroupedSampler
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, IntervalStrategy, SaveStrategy
from transformers.training_args import OptimizerNames

from ..data.columns import ROWS_AT_ONCE
from ..data.sampling import SeededSampler
from ..errors import UserError
from ..manifest import MANIFEST, write_manifest
from .callbacks import SaveAfterEvaluation, StopCallback, StopOnSignal
from .checkpoint_choice import find_checkpoint
from .checkpoints import (
    check_same_config,
    delete_old_checkpoints,
    find_best_checkpoint,
    is_early,
    saved_facts,
)
from .machines import from_all_processes, write_files_of_all
from .training_arguments import data_seed, require_output_dir

logger = logging.getLogger(__name__)

# training arguments that are kept in a checkpoint's manifest, and what another value does to a resumed run
NEW_VALUE = "The new value is used from here on."
OTHER_ORDER = "From here on, the order of the rows is another one: some may be seen twice in this epoch, others not."
OTHER_RATE = "The learning rate may be another one than in the run that was begun."
STAYS = "The checkpoint's value stays in use."
NOTED_ARGUMENTS = {
    "seed": OTHER_ORDER,
    "data_seed": OTHER_ORDER,
    "train_sampling_strategy": OTHER_ORDER,
    "dataloader_drop_last": OTHER_ORDER,
    **dict.fromkeys(("lr_scheduler_type", "lr_scheduler_kwargs", "warmup_steps"), OTHER_RATE),
    **dict.fromkeys(("num_train_epochs", "max_steps"), OTHER_RATE),
    **dict.fromkeys(("max_grad_norm", "label_smoothing_factor", "neftune_noise_alpha"), NEW_VALUE),
    **dict.fromkeys(("r_drop_alpha", "distillation_alpha", "teacher_models", "ema_decay"), NEW_VALUE),
    **dict.fromkeys(("learning_rate", "weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon"), STAYS),
}


_HASHES: WeakKeyDictionary[datasets.Dataset, str] = WeakKeyDictionary()


class ResumableTrainerMixin(Trainer):
    """Checkpoints from which a stopped or killed run can be resumed, for any Trainer.

    - A checkpoint has a manifest, written last. Older checkpoints are deleted only after that.
    - A resumed run ends as a run that was not stopped. To that end, a run that is stopped early (see `StopCallback`)
      does what is due after its last update, and then saves an early checkpoint. A time limit's evaluation comes last.
    - On several processes, a run that is resumed within an epoch reads that epoch's order.
    - A run that is resumed after its last update makes no further update.

    Of an `IterableDataset` that is shorter than the training, this holds in its first pass alone.
    """

    model: PreTrainedModel

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.add_callback(SaveAfterEvaluation())  # after the callbacks that ask for checkpoints
        self.saved_step = None  # the update after which the last checkpoint of this run was saved
        self.saves_early = False
        self.is_resumed = False

    def get_train_dataloader(self) -> DataLoader:
        """As stock, with the sampler where accelerate's `set_epoch` finds it."""
        return show_sampler(super().get_train_dataloader())

    def get_eval_dataloader(self, *args_, **kwargs) -> DataLoader:
        """As stock, but with all rows, as many batches on each process: the options against that are for training."""
        args, config = self.args, self.accelerator.dataloader_config
        before = args.dataloader_drop_last, config.even_batches
        args.dataloader_drop_last, config.even_batches = False, True
        try:
            return super().get_eval_dataloader(*args_, **kwargs)
        finally:
            args.dataloader_drop_last, config.even_batches = before

    def _get_train_sampler(self, *args, **kwargs) -> Sampler | None:
        sampler = super()._get_train_sampler(*args, **kwargs)
        return SeededSampler(sampler, data_seed(self.args)) if isinstance(sampler, LengthGroupedSampler) else sampler

    def train(self, resume_from_checkpoint=None, *args, **kwargs):
        """As stock, but `_save_checkpoint` deletes old checkpoints, not Trainer, and a resumed run is checked first.

        `eval_on_start` is for the start alone: a resumed run has had that evaluation.

        Raises:
            UserError: the checkpoint to resume from is incomplete, damaged, or of a run with other data, batches or
                config, or with another optimiser; or there is none. Or a process has other training data.
        """
        self._check_same_rows_everywhere()
        if resume_from_checkpoint:
            resume_from_checkpoint = find_checkpoint(self.args, resume_from_checkpoint)
            self.check_same_run(resume_from_checkpoint)
        if self.args.dataloader_persistent_workers:  # torch draws a seed when it starts the workers
            logger.warning(
                "With `dataloader_persistent_workers`, a resumed run draws other random numbers than a run that was "
                "not stopped. Leave it out to resume exactly."
            )
        if self.args.world_size > 1 and self.accelerator.dataloader_config.dispatch_batches:
            logger.warning(
                "With `dispatch_batches`, a run on several processes that is resumed within an epoch reads other rows "
                "than a run that was not stopped. Leave it out to resume exactly."
            )
        self.saved_step, self.is_resumed = None, bool(resume_from_checkpoint)
        self.save_total_limit, self.args.save_total_limit = self.args.save_total_limit, None
        eval_on_start = self.args.eval_on_start
        self.args.eval_on_start = eval_on_start and not resume_from_checkpoint
        try:
            return super().train(resume_from_checkpoint, *args, **kwargs)
        finally:
            self.args.save_total_limit, self.args.eval_on_start = self.save_total_limit, eval_on_start
            for callback in self.callback_handler.callbacks:
                if isinstance(callback, StopOnSignal):
                    callback.give_signals_back()  # Trainer calls no callback after an error

    def _check_same_rows_everywhere(self) -> None:
        """Raise UserError where machines have different files, or prepared them differently: each would go its way."""
        if self.args.world_size == 1:
            return
        (first, facts), *others = from_all_processes(self.args, self.batch_facts())
        for place, other in others:
            if other != facts:
                raise UserError(
                    f"{place} has other training data than {first}, or other options. Give all machines the same "
                    "files and the same command."
                )

    def _init_training_state(
        self, max_steps, num_update_steps_per_epoch, num_train_epochs, resume_from_checkpoint, trial
    ):
        result = super()._init_training_state(
            max_steps, num_update_steps_per_epoch, num_train_epochs, resume_from_checkpoint, trial
        )
        if resume_from_checkpoint is not None and self.args.load_best_model_at_end:
            find_best_checkpoint(self.state, resume_from_checkpoint, require_output_dir(self.args))
        return result

    def _track_num_input_tokens(self, inputs) -> None:
        """As stock, but an empty part of an update (see `EmptyPartCollator`) has no tokens."""
        is_counted = self.args.include_num_input_tokens_seen != "no" and "labels" in inputs
        if is_counted and bool((inputs["labels"] == -100).all()):
            inputs = {name: x[:0] if torch.is_tensor(x) else x for name, x in inputs.items()}
        super()._track_num_input_tokens(inputs)

    def _load_callback_state(self) -> None:
        """Trainer restores the saved patience as well as the count; here the patience is this run's."""
        callbacks = self.callback_handler.callbacks
        wanted = [vars(callback).copy() for callback in callbacks if isinstance(callback, EarlyStoppingCallback)]
        super()._load_callback_state()
        restored = [c for c in self.callback_handler.callbacks if isinstance(c, EarlyStoppingCallback)]
        for callback, values in zip(restored, wanted, strict=False):
            callback.early_stopping_patience = values["early_stopping_patience"]
            callback.early_stopping_threshold = values["early_stopping_threshold"]

    def _load_optimizer_and_scheduler(self, checkpoint) -> None:
        if checkpoint is None:
            return
        optimizer: Any = self.optimizer  # Trainer has made it
        options = [set(group) for group in optimizer.param_groups]
        try:
            super()._load_optimizer_and_scheduler(checkpoint)
        except ValueError as error:  # other groups of parameters
            if "parameter group" not in str(error):
                raise
            problem = f"groups its parameters otherwise than this run ({error})"
        else:
            # torch accepts the options of another optimiser without an error; the next update would fail
            loaded = [set(group) for group in optimizer.param_groups]
            missing = [name for new, old in zip(options, loaded, strict=True) for name in sorted(new - old)]
            missing = [name for name in missing if name != "initial_lr"]  # the schedule's
            if not missing:
                return
            name = OptimizerNames(self.args.optim).value
            problem = f"is of another optimiser than `optim` {name}: it has no {missing[0]!r}"
        raise UserError(
            f"The optimiser state in {checkpoint} {problem}. Resume with the optimiser and weight decay options that "
            "the run was begun with."
        )

    def _run_epoch(self, *args, **kwargs):
        callbacks = self.callback_handler.callbacks
        stoppers = [c for c in callbacks if isinstance(c, EarlyStoppingCallback)]
        has_stopped = self.is_resumed and any(
            c.early_stopping_patience_counter >= c.early_stopping_patience for c in stoppers
        )
        if has_stopped or self.state.global_step >= self.state.max_steps:
            self.control.should_training_stop = True
            return
        super()._run_epoch(*args, **kwargs)
        stops = [c for c in callbacks if isinstance(c, StopCallback) and c.has_stopped]
        if stops:
            self._end_early(stops, kwargs["model"], kwargs["trial"], kwargs["ignore_keys_for_eval"])

    def _end_early(self, stops: list[StopCallback], model, trial, ignore_keys_for_eval) -> None:
        """Save an early checkpoint, unless this update has one; after a time limit, also evaluate."""
        is_signal = any(isinstance(stop, StopOnSignal) for stop in stops)
        step = self.state.global_step
        if self.saved_step != step and (is_signal or self.args.save_strategy != SaveStrategy.NO):
            self.saves_early = True
            try:
                self._save_checkpoint(model, trial)
            finally:
                self.saves_early = False
            self.control = self.callback_handler.on_save(self.args, self.state, self.control)
        is_best = False
        has_evaluation = any(entry["step"] == step and "eval_runtime" in entry for entry in self.state.log_history)
        if not is_signal and not has_evaluation and self.args.eval_strategy != IntervalStrategy.NO:
            metrics = self._evaluate(trial, ignore_keys_for_eval, skip_scheduler=True)
            is_best = self._determine_best_metric(metrics, trial)
        if not is_signal and self.saved_step == step and (is_best or self.state.best_global_step == step):
            # for the end of this run; the state in the checkpoint stays as it was saved
            self.state.best_model_checkpoint = str(self._checkpoint_folder(trial, step))

    def _checkpoint_folder(self, trial, step: int) -> Path:
        return Path(self._get_output_dir(trial), f"{PREFIX_CHECKPOINT_DIR}-{step}")

    def _is_best_early(self, trial) -> bool:
        """Return whether the best update has, or now gets, an early checkpoint."""
        step = self.state.best_global_step
        if step == self.state.global_step:
            return self.saves_early
        return step is not None and is_early(self._checkpoint_folder(trial, step))

    def _save_checkpoint(self, model, trial):
        step, best_before = self.state.global_step, self.state.best_model_checkpoint
        folder, is_best_early = self._checkpoint_folder(trial, step), self._is_best_early(trial)
        if self.args.should_save:
            (folder / MANIFEST).unlink(missing_ok=True)
        try:
            super()._save_checkpoint(model, trial)
            if is_best_early:  # a run that is not stopped would not have it
                self.state.best_model_checkpoint = best_before
                if self.args.should_save:
                    self.state.save_to_json(str(folder / TRAINER_STATE_NAME))
            self.accelerator.wait_for_everyone()  # each process has written its part
            if self.args.should_save:
                facts: dict[str, Any] = self.batch_facts() | self._argument_facts() | self._best_facts()
                facts |= {"step": step, "num_processes": self.args.world_size, "is_early": self.saves_early}
                write_manifest(folder, **facts)
            if self.args.save_on_each_node:  # no machine deletes old checkpoints before all have the new one
                self.accelerator.wait_for_everyone()
        except Exception:
            if self.args.should_save:
                shutil.rmtree(folder, ignore_errors=True)  # half a checkpoint only takes space
            raise
        self.saved_step = step
        if self.args.should_save:
            delete_old_checkpoints(folder.parent, self.save_total_limit, self.state.best_model_checkpoint)

    def _save(self, output_dir: str | None = None, state_dict: dict | None = None) -> None:
        """As stock, but with `save_on_each_node`, each machine gets the weights too.

        transformers 5 leaves them out on all machines but the first.
        """
        if not self.args.save_on_each_node:
            super()._save(output_dir, state_dict)
            return
        model: Any = self.accelerator.unwrap_model(self.model, keep_torch_compile=False)
        model.should_save_on_this_rank = lambda is_main_process: is_main_process
        try:
            super()._save(output_dir, state_dict)
        finally:
            del model.should_save_on_this_rank

    def _save_rng_state(self, output_dir: str) -> None:
        """As stock, but the processes that save write all processes' states (see `write_files_of_all`)."""
        if self.args.world_size == 1:
            super()._save_rng_state(output_dir)
            return
        name = f"rng_state_{self.args.process_index}.pth"
        with tempfile.TemporaryDirectory() as folder:
            super()._save_rng_state(folder)
            write_files_of_all(self.args, output_dir, name, Path(folder, name).read_bytes())

    def batch_facts(self) -> dict[str, int | str | None]:
        """Return what determines the rows of an update. A checkpoint's manifest keeps it, to compare on resuming.

        Returns:
            `rows_per_update`: rows of all processes together; None where batches are counted in tokens.
            `train_rows`: rows of the training set; None if unknown.
            `train_data_sha256`: see `hash_rows`; of a stream, of its first rows.
        """
        rows = self.args.train_batch_size * self.args.gradient_accumulation_steps * self.args.world_size
        num_rows = len(self.train_dataset) if isinstance(self.train_dataset, Sized) else None
        return {"rows_per_update": rows, "train_rows": num_rows, "train_data_sha256": hash_rows(self.train_dataset)}

    def _argument_facts(self) -> dict[str, int | float | str | None]:
        known = [name for name in NOTED_ARGUMENTS if hasattr(self.args, name)]
        return {name: getattr(value := getattr(self.args, name), "value", value) for name in known}

    def _best_facts(self) -> dict[str, str | bool | None]:
        """Return what the best evaluation so far was chosen by."""
        return {
            "metric_for_best_model": self.args.metric_for_best_model,
            "greater_is_better": self.args.greater_is_better,
            "eval_data_sha256": hash_rows(self.eval_dataset),
        }

    def check_same_run(self, checkpoint: str | Path) -> None:
        """Compare this run with the one that the checkpoint comes from.

        The number of processes and the rows per update are compared by `choose_checkpoint`, before the data are read.
        Another seed or schedule, which the user may want, causes a warning.

        Raises:
            UserError: the model's config, the training data or the size of the batches differ; or, in a run that
                keeps the best checkpoint, the validation data or the metric. With `ignore_data_skip`, training data
                and batches are not compared.
        """
        check_same_config(self.model, checkpoint)
        saved = saved_facts(checkpoint)
        if saved.get("rows_per_update") is not None:  # older manifests do not name the other budget
            saved = {"tokens_per_update": None} | saved
        for name, now in self.batch_facts().items():
            if name == "rows_per_update" or saved.get(name, now) == now or self.args.ignore_data_skip:
                continue
            difference = f"`{name}` {saved[name]}, and this run has {now}"
            if name == "train_data_sha256":
                difference = "other training data, or with another preparation of the data"
            raise UserError(
                f"{checkpoint} was saved with {difference}: it would go on at other rows. Resume with the data and "
                "options that the run was begun with; or start a new run with `--model_name_or_path` and the path of "
                "the checkpoint."
            )
        for name, now in self._argument_facts().items():
            before = saved.get(name, now)
            if before != now and (name != "ema_decay" or before is not None):  # refused when the average is loaded
                logger.warning(
                    f"{checkpoint} was saved with `{name}` {before}, and this run has {now}. {NOTED_ARGUMENTS[name]}"
                )
        if None in (self.args.metric_for_best_model, saved.get("metric_for_best_model")):
            return  # the best evaluation is not chosen
        for name, now in self._best_facts().items():
            before = saved.get(name)
            if before == now or None in (before, now):  # None: unknown
                continue
            difference = f"`{name}` {before}, and this run has {now}"
            if name == "eval_data_sha256":
                difference = "other validation data, or with another preparation of the data"
            raise UserError(
                f"{checkpoint} was saved with {difference}: the best evaluation so far cannot be compared with those "
                "to come. Resume with the data and options that the run was begun with."
            )


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


def show_sampler(dataloader: DataLoader) -> DataLoader:
    """Put the sampler where accelerate looks for it to set the epoch, also after batches were skipped.

    On several processes, accelerate's `BatchSamplerShard` hides the sampler, and does not pass `set_epoch` on.
    """
    if isinstance(dataloader.batch_sampler, BatchSamplerShard):
        dataloader.batch_sampler.sampler = dataloader.batch_sampler.batch_sampler.sampler
    return dataloader
