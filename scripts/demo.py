#!/usr/bin/env python
# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Use the published models, then train one small model of each kind, load it with the Auto classes and use it.

python scripts/demo.py [--output_dir runs/demo]
"""

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

import hf_scratch_launcher  # noqa: F401  before torch, whose OpenMP it sets
import torch
from transformers import pipeline

import hf_scratch  # noqa: F401  registers the models
from hf_scratch.data.splits import load_splits
from hf_scratch.errors import command, preparation

SCRIPTS = Path(__file__).parent
CARDS = SCRIPTS.parent / "model_cards"
SENTENCES = ["A dog runs through the snow.", "Two women are talking on a bench in the park."]


def use_published_models():
    """Translate two sentences and back, and write a story, with the models in `model_cards`."""
    sentences = SENTENCES
    for name in ("scratch-transformer-multi30k-en-de", "scratch-transformer-multi30k-de-en"):
        translator = pipeline("translation", model=str(CARDS / name))
        print(f"{name}, with pipeline('translation'):")
        translations = [record["translation_text"] for record in translator(sentences)]
        for sentence, translation in zip(sentences, translations, strict=True):
            print(f"  {sentence} -> {translation}")
        sentences = translations
    writer = pipeline("text-generation", model=str(CARDS / "scratch-gpt-tinystories"))
    torch.manual_seed(0)
    print("\nscratch-gpt-tinystories, with pipeline('text-generation'):")
    print(" ", writer("Once upon a time")[0]["generated_text"].replace("\n", "\n  "))


def train(script: str, recipe: str, output_dir: Path):
    """Run a training script as a user would. An `output_dir` of an earlier demo is deleted first.

    Args:
        script: the script's file name.
        recipe: the recipe's name.
        output_dir: the run's folder.
    """
    shutil.rmtree(output_dir, ignore_errors=True)
    words = [sys.executable, SCRIPTS / script, SCRIPTS / "recipes" / f"{recipe}.yaml", "--output_dir", output_dir]
    print(f"\n$ python scripts/{script} scripts/recipes/{recipe}.yaml --output_dir {output_dir}", flush=True)
    done = subprocess.run(words)
    if done.returncode:
        sys.exit(done.returncode)  # the script has printed the reason


@command
def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output_dir", type=Path, default=Path("runs/demo"), help="holds numbers/ and stories/")
    output_dir = parser.parse_args().output_dir
    numbers, stories = output_dir / "numbers", output_dir / "stories"

    with preparation():
        use_published_models()
    train("train_translation.py", "demo_numbers", numbers)
    with preparation():
        test = load_splits("embedded:numbers")["test"]
    translator = pipeline("translation", model=str(numbers))
    translations = [record["translation_text"] for record in translator(list(test["en"]), batch_size=100)]
    pairs = list(zip(test["en"], test["de"], translations, strict=True))
    exact_match = sum(translation == german for _, german, translation in pairs) / len(pairs)
    print(f"\n{len(pairs)} numbers that it was not trained on, with pipeline('translation'):")
    for english, german, translation in pairs[:5]:
        print(f"  {english} -> {translation}" + ("" if translation == german else f"   (should be {german})"))

    train("train_language_model.py", "demo_stories", stories)
    writer = pipeline("text-generation", model=str(stories))
    torch.manual_seed(0)
    print("\nA story, with pipeline('text-generation'):")
    print(" ", writer("Once upon a time", do_sample=True, temperature=0.5)[0]["generated_text"])

    print("\nPictures:")
    for run in (numbers, stories):
        print(f"  {run / 'learning_curve.png'}")
    print(f"demo: exact_match={exact_match:.2f} output={output_dir}")


if __name__ == "__main__":
    main()
