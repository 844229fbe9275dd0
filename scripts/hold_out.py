#!/usr/bin/env python
# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Split off part of the training data as a second validation set, so that nothing is tuned to one set alone.

python scripts/hold_out.py --dataset_name bentrevett/multi30k --column en --output_dir HELD_OUT
python scripts/train_translation.py multi30k_tiny --dataset_name HELD_OUT --output_dir OUT

The new folder has the rest as its training data, the old validation data, and what is held out as its test data,
which a training scores at the end. A row's place follows from a hash of one column: equal texts stay together, and
neither the order of the rows nor other rows matter.
"""

import hashlib
from dataclasses import dataclass, field

import hf_scratch_launcher  # noqa: F401  before torch, whose OpenMP it sets

from hf_scratch.data.splits import check_new_folder, load_splits, save_splits
from hf_scratch.errors import UserError, command, preparation
from hf_scratch.training.arguments import option
from hf_scratch.training.command_line import parse_arguments


@dataclass
class HoldOutArguments:
    """The options of hold_out.py."""

    dataset_name: str = field(metadata={"help": "A Hub id, or a folder with the layout of one."})
    column: str = field(metadata={"help": "The column whose text decides: en, or text; or its key in `translation`."})
    output_dir: str = field(metadata={"help": "A new folder for train.jsonl, validation.jsonl and test.jsonl."})
    share: float = option(0.1, "Approximate share of the training rows to hold out.")
    cache_dir: str | None = option(None, "Folder for downloads.")


def is_held_out(text: str, share: float) -> bool:
    """Whether a text is among the `share` of all texts that are held out."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) < share * 2**64


@command
@preparation()
def main() -> None:
    (args,), _ = parse_arguments(HoldOutArguments)
    output_dir = check_new_folder(args.output_dir, args.dataset_name)
    splits = load_splits(args.dataset_name, cache_dir=args.cache_dir)
    if "train" not in splits:
        raise UserError(f"`dataset_name` ({args.dataset_name}) has no training data.")
    rows = splits["train"]
    is_nested = len(rows) > 0 and isinstance(rows[0].get("translation"), dict)
    columns = list(rows[0]["translation"]) if is_nested else rows.column_names
    if args.column not in columns:
        raise UserError(f"`column` is {args.column!r}, but the columns are {', '.join(columns)}.")
    texts = [pair[args.column] for pair in rows["translation"]] if is_nested else rows[args.column]
    held_out = [is_held_out(str(text), args.share) for text in texts]
    parts = {
        **splits,
        "train": rows.select([i for i, is_out in enumerate(held_out) if not is_out]),
        "test": rows.select([i for i, is_out in enumerate(held_out) if is_out]),
    }
    if not (len(parts["train"]) and len(parts["test"])):
        raise UserError(f"`share` is {args.share}, of {len(rows):,} rows: one of the two parts would be empty.")
    save_splits(parts, output_dir)
    print(", ".join(f"{name}: {len(part):,} rows" for name, part in parts.items()))


if __name__ == "__main__":
    main()
