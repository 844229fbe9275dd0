#!/usr/bin/env python
# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Put a trained model, its pictures and the records of runs into a folder of `model_cards`, whole for the Hub.

python scripts/publish/publish.py --folder model_cards/scratch-transformer-multi30k-en-de \
    --run runs/seed1 runs/cosine_seed1 --name seed1
python scripts/publish/publish.py --folder model_cards/scratch-transformer-multi30k-en-de \
    --run runs/seed2 runs/cosine_seed2 --name seed2 --record_only
python scripts/publish/publish.py --folder model_cards/scratch-gpt-tinystories \
    --run runs/tinystories_small --name best --dtype bfloat16 --dataset_name roneneldan/TinyStories
"""

import argparse
import json
import os
import re
import shutil
from pathlib import Path

from sample_stories import sample_stories
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING
from translation_card import load_runs

import hf_scratch  # registers the models
from hf_scratch.data.loading import load_splits
from hf_scratch.errors import command, preparation
from hf_scratch.loading import load_tokenizer
from hf_scratch.reporting.attention import draw_cross_attention, draw_self_attention
from hf_scratch.reporting.plots import plot_learning_curve, plot_runs

MODELS = Path(hf_scratch.__file__).parent / "models"
SENTENCE = "A little girl in a red dress throws a ball to her dog in the park."
STORY = "Tom had a red ball. One day, he lost the ball."


def join(runs: list[dict]) -> dict:
    """One `run.json` of several, each of which began with the weights of the one before: the last's figures, and the
    updates, tokens, minutes, commands and logs of all. An interruption is left out of the commands.
    """
    log, updates, epochs, tokens, minutes = [], 0, 0.0, 0, 0
    for run in runs:
        for entry in run["log"]:
            moved = {"step": updates, "epoch": epochs, "num_input_tokens_seen": tokens}
            log.append(entry | {key: entry[key] + by for key, by in moved.items() if key in entry})
        more_updates, more_epochs = re.fullmatch(r"(.+) \((.+) epochs\)", run["updates"]).groups()
        updates, epochs = updates + int(more_updates.replace(",", "")), epochs + float(more_epochs)
        tokens += int(run["input tokens"].replace(",", ""))
        minutes += int(run["time"].removesuffix(" minutes"))
    return runs[-1] | {
        "command": "\n".join(run["command"].replace(" --resume_from_checkpoint last", "") for run in runs),
        "updates": f"{updates:,} ({epochs:.1f} epochs)",
        "input tokens": f"{tokens:,}",
        "time": f"{minutes} minutes",
        "log": log,
    }


def record(runs: list[Path], folder: Path, name: str) -> dict:
    """Keep what a training did and said: its `run.json`, and its translations of the test set if it has some."""
    folder.mkdir(parents=True, exist_ok=True)
    joined = join([json.loads((run / "run.json").read_text(encoding="utf-8")) for run in runs])
    (folder / f"{name}.json").write_text(json.dumps(joined, indent=1) + "\n", encoding="utf-8")
    if (runs[-1] / "test_translations.txt").is_file():
        shutil.copyfile(runs[-1] / "test_translations.txt", folder / f"{name}.txt")
    return joined


def with_bits_per_byte(run: dict) -> list[dict]:
    """A run's log, a language model's with its losses in bits per byte too: vocabularies differ in what a token is."""
    bits, loss = (
        run.get(f"validation {name}") for name in ("bits_per_byte (bits per byte)", "loss (loss [nats a token])")
    )
    if bits is None:
        return run["log"]
    return [e | {"eval_bits_per_byte": e["eval_loss"] * bits / loss} if "eval_loss" in e else e for e in run["log"]]


def link_code(folder: Path) -> None:
    """Make links to the package's own files of the code that `save_pretrained` wrote: a clone has it once."""
    for path in folder.glob("*.py"):
        path.unlink()
        path.symlink_to(os.path.relpath(MODELS / path.name, folder))


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
        help="a training's folder; of several, each began with the model of the one before",
    )
    parser.add_argument("--name", required=True, help="under which the training is recorded")
    parser.add_argument("--record_only", action="store_true", help="tell of the training; the model stays as it is")
    parser.add_argument("--dtype", default="float32", help="of the published weights")
    parser.add_argument("--dataset_name", help="whose validation stories sampled ones are compared with")
    args = parser.parse_args()
    last = args.run[-1]
    is_gpt = type(AutoConfig.from_pretrained(last)) in MODEL_FOR_CAUSAL_LM_MAPPING
    if is_gpt and not args.record_only and args.dataset_name is None:
        parser.error("--dataset_name must be given with a language model")
    recorded = record(args.run, args.folder / "records", args.name)
    if not args.record_only:
        auto_class = AutoModelForCausalLM if is_gpt else AutoModelForSeq2SeqLM
        for path in args.folder.glob("*.py"):  # an earlier publication may have had files that no longer exist
            path.unlink()
        auto_class.from_pretrained(last, dtype=args.dtype).save_pretrained(args.folder)
        link_code(args.folder)
        load_tokenizer(last).save_pretrained(args.folder)
        plot_learning_curve(recorded["log"], str(args.folder))
        if is_gpt:
            draw_self_attention(args.folder, STORY)
            sample_stories(args.folder, list(load_splits(args.dataset_name)["validation"]["text"]))
        else:
            draw_cross_attention(args.folder, SENTENCE)
    runs = load_runs(args.folder / "records")
    plot_runs({name: with_bits_per_byte(run) for name, run in runs.items()}, str(args.folder))
    print(f"{args.folder} is ready for its card: make results WRITE=1")


if __name__ == "__main__":
    main()
