# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""A Trainer that trains on a stream of rows, and keeps the position in it in each checkpoint."""

import copy
import json
import math
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from accelerate.data_loader import prepare_data_loader
from torch.utils.data import DataLoader
from transformers import TrainerCallback, TrainingArguments
from transformers.trainer_utils import seed_worker

from ..data.streaming import POSITION, RowStream, StreamCollator, start_position
from ..errors import UserError
from .arguments import DataArguments
from .machines import write_files_of_all
from .resuming import ResumableTrainerMixin, hash_rows
from .training_arguments import data_seed


def check_streaming(data_args: DataArguments, args: TrainingArguments) -> None:
    """Check the options of a run whose training data are streamed.

    Raises:
        ValueError: `max_steps` is missing, or another option needs all rows or an end of the data.
    """
    if not data_args.streaming:
        return
    if args.max_steps <= 0:
        raise ValueError("`streaming` needs `max_steps`: a stream has no end. Give the number of updates.")
    config: Any = args.accelerator_config
    budgets = [name for name in ("max_tokens_per_update", "max_tokens_per_batch") if getattr(data_args, name, None)]
    for option, is_given in {
        **{name: getattr(args, name) == "epoch" for name in ("eval_strategy", "save_strategy", "logging_strategy")},
        "max_train_samples": data_args.max_train_samples is not None,
        "bpe_dropout": getattr(data_args, "bpe_dropout", 0) > 0,
        "train_sampling_strategy": args.train_sampling_strategy != "random",
        "dispatch_batches": config.dispatch_batches,
        "split_batches": config.split_batches,
        "shuffle_buffer_size": bool(budgets) and not data_args.shuffle_buffer_size,
    }.items():
        if is_given:
            value = getattr(data_args, option, getattr(args, option, getattr(config, option, None)))
            value = getattr(value, "value", value)
            advice = "Use steps." if value == "epoch" else "Leave one of them out."
            if option == "shuffle_buffer_size":
                advice = f"`{budgets[0]}` groups the rows of the buffer by length."
            raise ValueError(f"`streaming` does not go together with `{option}` {value}. {advice}")


class ShareOfTraining(TrainerCallback):
    """Set the state's epoch to the share of the updates done: Trainer counts anew in a resumed run."""

    def on_step_end(self, args, state, control, **kwargs):
        """Set it."""
        state.epoch = state.global_step / state.max_steps


class StreamingTrainerMixin(ResumableTrainerMixin):
    """Trains on a `RowStream`. On other training data it changes nothing.

    Each batch brings along the position after it. So the positions that are saved belong to the batches that were
    used, whatever the data loader and its workers have read ahead. Each process writes its own to the checkpoint, and
    a resumed run reads on from there.
    """

    stream: RowStream | None

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.stream = self.train_dataset if isinstance(self.train_dataset, RowStream) else None
        self.positions: dict[int, dict[str, int]] = {}  # of the readers of this process, the next first
        if self.stream is not None:
            self.add_callback(ShareOfTraining())
            self.stream.check_readers(self.args.world_size * max(self.args.dataloader_num_workers, 1))

    def share_tokens(
        self, stream: RowStream, max_tokens_per_update: int | None, max_tokens_per_batch: int | None
    ) -> None:
        """Batch a stream of pairs by tokens, and set the steps of gradient accumulation.

        Args:
            stream: the training rows.
            max_tokens_per_update: tokens of an update at most, on all processes together.
            max_tokens_per_batch: tokens of a batch at most, on each device. Without `max_tokens_per_update`, the size
                of the batches.

        Raises:
            ValueError: a row may be longer than a batch.
        """
        args, option = self.args, "max_tokens_per_batch"
        size: Any = max_tokens_per_batch
        pairs: Any = stream.encode
        if max_tokens_per_update is not None:
            option = "max_tokens_per_update"
            share = max_tokens_per_update / args.world_size
            args.gradient_accumulation_steps = math.ceil(share / max_tokens_per_batch) if max_tokens_per_batch else 1
            size = int(share / args.gradient_accumulation_steps)
        longest = max(pairs.max_source_length, pairs.max_target_length)
        if longest > size:
            raise ValueError(
                f"`{option}` gives batches of {size} tokens, but a row of the stream may have {longest}. Raise it, or "
                "lower `max_source_length` and `max_target_length`."
            )
        stream.max_tokens = size

    def get_train_dataloader(self) -> DataLoader:
        """As stock, but each process reads its own part of a stream."""
        if self.stream is None:
            return super().get_train_dataloader()
        args, stream = self.args, self.stream
        stream.deal(args.process_index, args.world_size, data_seed(args))
        stream.positions = list(self.positions.values())
        dataloader = DataLoader(
            stream,
            batch_size=1 if stream.max_tokens is not None else self._train_batch_size,
            collate_fn=StreamCollator(
                self._get_collator_with_removed_columns(copy.copy(self.data_collator), "training")
            ),
            num_workers=args.dataloader_num_workers,
            pin_memory=args.dataloader_pin_memory,
            persistent_workers=args.dataloader_persistent_workers,
            multiprocessing_context=args.dataloader_multiprocessing_context,
            prefetch_factor=args.dataloader_prefetch_factor,
            worker_init_fn=partial(seed_worker, num_workers=args.dataloader_num_workers, rank=args.process_index),
            generator=torch.Generator(),  # else it draws a global random number, which a resumed run has drawn before
        )
        # one process, as seen from here: accelerate would deal the rows once more
        return prepare_data_loader(
            dataloader,
            self.accelerator.device,
            num_processes=1,
            process_index=0,
            put_on_device=True,
            dispatch_batches=False,
            non_blocking=self.accelerator.non_blocking,
        )

    def get_batch_samples(self, epoch_iterator, num_batches, device):
        """As stock, and note the positions after the batches."""
        try:
            batches, num_items = super().get_batch_samples(epoch_iterator, num_batches, device)
        except UserError as error:  # to a worker's error, torch adds the worker's trace
            raise UserError(str(error).strip().rpartition(f"{UserError.__name__}: ")[2]) from error
        for batch in batches:
            if (position := batch.pop(POSITION, None)) is not None:
                self.positions.pop(position["reader"])
                self.positions[position["reader"]] = position
        return batches, num_items

    def _init_training_state(
        self, max_steps, num_update_steps_per_epoch, num_train_epochs, resume_from_checkpoint, trial
    ):
        epochs, batches = super()._init_training_state(
            max_steps, num_update_steps_per_epoch, num_train_epochs, resume_from_checkpoint, trial
        )
        if self.stream is None:
            return epochs, batches
        readers = range(max(self.args.dataloader_num_workers, 1))
        self.positions = {reader: start_position(reader) for reader in readers}
        if resume_from_checkpoint is not None and not self.args.ignore_data_skip:
            self.positions = self._load_positions(Path(resume_from_checkpoint))
        self.stream.positions = list(self.positions.values())
        return epochs, 0  # Trainer skips no batch

    def _position_file(self, folder: Path) -> Path:
        return folder / f"stream_position_{self.args.process_index}.json"

    def _load_positions(self, checkpoint: Path) -> dict[int, dict[str, int]]:
        try:
            positions = json.loads(self._position_file(checkpoint).read_text(encoding="utf-8"))
        except OSError as error:
            raise UserError(
                f"{checkpoint} has no {self._position_file(checkpoint).name}, the position in the stream. Resume with "
                "the options that the run was begun with; or start a new run with `--model_name_or_path` and the path "
                "of the checkpoint."
            ) from error
        return {position["reader"]: position for position in positions}

    def _save_rng_state(self, output_dir: str) -> None:
        super()._save_rng_state(output_dir)
        if self.stream is not None:
            text = json.dumps(list(self.positions.values()))
            name = self._position_file(Path(output_dir)).name
            write_files_of_all(self.args, output_dir, name, text.encode())

    @cached_property
    def _first_rows_sha256(self) -> str | None:
        return hash_rows(self.stream.first_rows()) if self.stream is not None else None

    def batch_facts(self) -> dict[str, int | str | None]:
        """As ResumableTrainerMixin's; of a stream, also what its positions depend on."""
        facts = super().batch_facts()
        if self.stream is None:
            return facts
        return facts | {
            "train_data_sha256": self._first_rows_sha256,
            "train_shards": self.stream.num_shards,
            "shuffle_buffer_size": self.stream.buffer_size,
            "dataloader_num_workers": self.args.dataloader_num_workers,
        }
