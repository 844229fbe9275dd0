# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""What the evaluation scripts share: options, how model, tokenizer and rows are loaded, and the report."""

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..data.splits import load_splits, take_first
from ..loading import check_fits, load_checkpoint, load_tokenizer
from ..training.arguments import DTYPES, option


@dataclass(kw_only=True)
class EvaluationArguments:
    """The options of both evaluation scripts."""

    model: str = field(metadata={"help": "A folder or Hub id."})
    test_file: str = field(metadata={"help": "A file to evaluate on: JSON lines, CSV, TSV, plain text or Parquet."})
    batch_size: int = option(32, "Rows per batch.")
    max_samples: int | None = option(None, "Evaluate on at most this many rows.")
    device: str = option("cpu", "cpu, cuda, ...")
    dtype: str = option("float32", "The type of the weights.", choices=list(DTYPES))
    json: str | None = option(None, "Write the scores to this JSON file.")
    disable_tqdm: bool = option(False, "Show no progress bars.")


def load_for_evaluation(
    args: EvaluationArguments, auto_class: Any, take: Callable[[Dataset], Dataset], *files: str | None
) -> tuple[Dataset, PreTrainedModel, PreTrainedTokenizerBase]:
    """Load what an evaluation needs, and check that it fits together.

    Each of several processes loads it all, and uses an accelerator of its own unless the device is a CPU.

    Args:
        args: the script's arguments.
        auto_class: the Auto class that loads the model.
        take: takes the columns that are needed out of the test file's rows.
        files: files that the script will write, beside `args.json`. They are made now, since the work would be lost.

    Returns:
        At most `max_samples` rows; the model on its device, in evaluation mode; and the tokenizer.

    Raises:
        ValueError: there is no such device; or see `load_splits`, `load_checkpoint`, `load_tokenizer`, `check_fits`.
        OSError: there is no such test file, or a file cannot be written.
    """
    logging.basicConfig(format="%(message)s")
    logging.getLogger("hf_scratch").setLevel(logging.INFO)
    try:
        torch.zeros(1, device=args.device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"`device` is {args.device!r}: {str(error).splitlines()[0]}") from error
    state = PartialState(cpu=torch.device(args.device).type == "cpu")
    device = args.device if state.num_processes == 1 else state.device
    if not state.is_main_process:
        logging.disable(logging.WARNING)  # one process warns
    splits = load_splits(test_file=args.test_file, sample_by=getattr(args, "sample_by", None))
    rows = take_first(take(splits["test"]), args.max_samples)
    model = load_checkpoint(auto_class, args.model, dtype=args.dtype).to(device).eval()
    tokenizer = load_tokenizer(args.model)
    check_fits(tokenizer, model.config)
    for file in (args.json, *files):
        if file is not None:
            Path(file).touch()
    return rows, model, tokenizer


def report(figures: dict[str, Any], path: str | None) -> None:
    """Print an evaluation's figures as JSON, and write them to a file. Only the main process does so.

    Args:
        figures: the figures.
        path: the file, or None.
    """
    if not PartialState().is_main_process:
        return
    text = json.dumps(figures, indent=2)
    print(text, flush=True)  # before the file, which may fail: its disk may be full
    if path is not None:
        Path(path).write_text(text + "\n", encoding="utf-8")
