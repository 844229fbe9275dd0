#!/usr/bin/env python
# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Fill a folder of `model_cards` with a trained model and the records of its runs, ready for its card.

python scripts/publish/publish.py --folder model_cards/scratch-transformer-multi30k-en-de \
    --run runs/seed1 runs/cosine_seed1 --name seed1
python scripts/publish/publish.py --folder scripts/recipes --run runs/gelu --name multi30k_gelu --record_only
python scripts/publish/publish.py --folder model_cards/scratch-gpt-tinystories \
    --run runs/tinystories_small --name best --dtype bfloat16
"""

import argparse
import shutil
from pathlib import Path
from typing import Any

from transformers import AutoConfig

from hf_scratch.errors import command, preparation
from hf_scratch.loading import auto_class_of, load_tokenizer
from hf_scratch.manifest import write_json
from hf_scratch.reporting.plots import plot_learning_curve
from hf_scratch.reporting.records import Record, join_records, read_record


def store_record(runs: list[Path], folder: Path, name: str) -> Record:
    """Store the record of consecutive runs, and the last run's translations of the test set if it has them."""
    folder.mkdir(parents=True, exist_ok=True)
    joined = join_records([read_record(run / "run.json") for run in runs])
    write_json(joined, folder / f"{name}.json")
    (folder / f"{name}.txt").unlink(missing_ok=True)  # of an earlier record
    if (runs[-1] / "test_translations.txt").is_file():
        shutil.copyfile(runs[-1] / "test_translations.txt", folder / f"{name}.txt")
    return joined


def store_model(auto_class: Any, run: Path, folder: Path, dtype: str) -> None:
    """Store a trained model with its tokenizer in a published folder."""
    model, tokenizer = auto_class.from_pretrained(run, dtype=dtype), load_tokenizer(run)
    for path in folder.glob("*.py"):  # the previous publication may hold files that the package no longer has
        path.unlink()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


@command
@preparation()
def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True, help="the published folder")
    parser.add_argument(
        "--run",
        type=Path,
        nargs="+",
        required=True,
        help="a training's folder; or several, each of which started from the model of the previous one",
    )
    parser.add_argument("--name", required=True, help="the record's file name")
    parser.add_argument("--record_only", action="store_true", help="add the record; keep the published model")
    parser.add_argument("--dtype", default="float32", help="dtype of the published weights")
    args = parser.parse_args()
    record = store_record(args.run, args.folder / "records", args.name)
    if args.record_only:
        return
    config = AutoConfig.from_pretrained(args.run[-1])
    store_model(auto_class_of(config), args.run[-1], args.folder, args.dtype)
    plot_learning_curve(record["log"], str(args.folder))
    print(f"{args.folder} is ready for its card: make results WRITE=1")


if __name__ == "__main__":
    main()
