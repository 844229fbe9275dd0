# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""The position of a training in a stream of rows, which each checkpoint keeps."""

import json
from functools import cached_property
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainingArguments

from ..data.streaming import POSITION, RowStream, start_position
from .resuming import hash_rows


class StreamPosition(TrainerCallback):
    """The positions of this process's readers in a `RowStream`, after the batches that the training has used.

    Each batch brings along the position after it, whatever the data loader and its workers have read ahead. Each
    process writes its own positions to a checkpoint, and a resumed run reads on from there.

    Args:
        stream: the training rows.
        args: the training's arguments.
    """

    def __init__(self, stream: RowStream, args: TrainingArguments):
        self.stream, self.args = stream, args
        self.name = f"stream_position_{args.process_index}.json"
        self.load(None)

    def note(self, batches: list[dict[str, Any]]) -> None:
        """Take the positions out of batches that are about to be used."""
        for batch in batches:
            position = batch.pop(POSITION)
            self.positions.pop(position["reader"])  # the next reader comes first
            self.positions[position["reader"]] = position

    def save(self, checkpoint: Path) -> None:
        """Write the positions of this process."""
        (checkpoint / self.name).write_text(json.dumps(list(self.positions.values())), encoding="utf-8")

    def load(self, checkpoint: Path | None) -> None:
        """Read the positions of this process, or begin at the start of the stream."""
        positions = [start_position(reader) for reader in range(max(self.args.dataloader_num_workers, 1))]
        if checkpoint is not None and not self.args.ignore_data_skip:
            positions = json.loads((checkpoint / self.name).read_text(encoding="utf-8"))
        self.positions: dict[int, dict[str, int]] = {position["reader"]: position for position in positions}
        self.stream.positions = positions

    @cached_property
    def _first_rows_sha256(self) -> str | None:
        return hash_rows(self.stream.first_rows())

    def facts(self) -> dict[str, int | str | None]:
        """Return what the positions depend on."""
        return {
            "train_data_sha256": self._first_rows_sha256,
            "train_shards": self.stream.num_shards,
            "shuffle_buffer_size": self.stream.buffer_size,
            "dataloader_num_workers": self.args.dataloader_num_workers,
            "num_processes": self.args.world_size,  # each reads its own part of the stream
        }

    def on_step_end(self, args, state, control, **kwargs):
        """Set the state's epoch to the share of the updates done: Trainer counts anew in a resumed run."""
        state.epoch = state.global_step / state.max_steps
