#!/usr/bin/env python
# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Put a trained model, its pictures and the records of runs into a folder of `model_cards`, whole for the Hub.

python scripts/publish.py --folder model_cards/scratch-transformer-multi30k-en-de --run runs/seed1 --record runs/seed2
python scripts/publish.py --folder model_cards/scratch-gpt-tinystories --run runs/tinystories_small --name best \
    --dtype bfloat16 --dataset_name roneneldan/TinyStories --record runs/stock_gpt2
"""

import argparse
import json
import os
import shutil
from pathlib import Path

import torch
from demo import draw_attention
from sample_stories import sample_stories
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

import hf_scratch  # registers the models
from hf_scratch.data import load_splits
from hf_scratch.plots import plot_attention, plot_learning_curve, plot_runs

MODELS = Path(hf_scratch.__file__).parent / "models"
SENTENCE = "A little girl in a red dress throws a ball to her dog in the park."
STORY = "Tom had a red ball. One day, he lost the ball."


def record(run: Path, folder: Path, name: str | None = None) -> None:
    """Keep what a run did and said: `run.json`, and its translations of the test set if it has some."""
    name = name or run.name
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(run / "run.json", folder / f"{name}.json")
    if (run / "test_translations.txt").is_file():
        shutil.copyfile(run / "test_translations.txt", folder / f"{name}.txt")


def link_code(folder: Path) -> None:
    """Make links to the package's own files of the code that `save_pretrained` wrote: a clone has it once."""
    for path in folder.glob("*.py"):
        path.unlink()
        path.symlink_to(os.path.relpath(MODELS / path.name, folder))


@torch.no_grad()
def draw_self_attention(folder: Path, text: str) -> None:
    """The last layer's attention of a text over itself."""
    # only eager attention gives its weights
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", dtype="float32").eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    inputs = tokenizer(text, return_tensors="pt")
    tokens = [tokenizer.decode([i]) for i in inputs["input_ids"][0]]
    plot_attention(model(**inputs, output_attentions=True).attentions[-1][0], tokens, tokens, str(folder))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True, help="the published folder")
    parser.add_argument("--run", type=Path, help="the training's folder whose model is published")
    parser.add_argument("--dtype", default="float32", help="of the published weights")
    parser.add_argument("--name", default="seed1", help="under which the published run is recorded")
    parser.add_argument("--record", type=Path, nargs="*", default=[], help="folders of other runs to tell of")
    parser.add_argument("--dataset_name", help="whose validation stories sampled ones are compared with")
    args = parser.parse_args()
    for run in args.record:
        record(run, args.folder / "records")
    if args.run is not None:
        is_gpt = type(AutoConfig.from_pretrained(args.run)) in MODEL_FOR_CAUSAL_LM_MAPPING
        if is_gpt and args.dataset_name is None:
            parser.error("--dataset_name must be given with a language model")
        auto_class = AutoModelForCausalLM if is_gpt else AutoModelForSeq2SeqLM
        for link in args.folder.glob("*.py"):  # of an earlier publication: a file cannot be copied onto itself
            link.unlink()
        auto_class.from_pretrained(args.run, dtype=args.dtype).save_pretrained(args.folder)
        link_code(args.folder)
        AutoTokenizer.from_pretrained(args.run).save_pretrained(args.folder)
        record(args.run, args.folder / "records", args.name)
        run = json.loads((args.run / "run.json").read_text())
        plot_learning_curve(run["log"], str(args.folder))
        if is_gpt:
            draw_self_attention(args.folder, STORY)
            sample_stories(args.folder, list(load_splits(args.dataset_name)["validation"]["text"]))
        else:
            draw_attention(args.folder, SENTENCE)
    logs = {
        path.stem: json.loads(path.read_text())["log"] for path in sorted((args.folder / "records").glob("*.json"))
    }
    plot_runs(logs, str(args.folder))
    print(f"{args.folder} is ready for its card: make results WRITE=1")


if __name__ == "__main__":
    main()
