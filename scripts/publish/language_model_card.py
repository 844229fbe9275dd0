# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""The figures of the published language model's card, computed from its folder and TinyStories."""

import json
import math
import re
from pathlib import Path

from readme_tables import validation_bits
from recipe_changes import format_changes
from sample_stories import choose, measure, repetition
from transformers import AutoConfig, AutoModelForCausalLM

import hf_scratch  # noqa: F401  registers the models
from hf_scratch.data.splits import load_splits
from hf_scratch.data.texts import take_texts
from hf_scratch.loading import load_tokenizer
from hf_scratch.reporting.cards import describe_for_hub, format_time, format_training, format_updates
from hf_scratch.reporting.records import read_records
from hf_scratch.reporting.tables import format_table

NUM_STORIES = 5  # in the card
LLAMA2_C_LOSS = 1.072  # nats per token of its 15 M model with a vocabulary of 32,000 (llama2.c's README)


def language_model_figures(folder: Path, dataset: str) -> dict[str, str]:
    """The values of the placeholders in `scripts/publish/cards/scratch-gpt-tinystories.md`.

    Raises:
        ValueError: `stories.json` was sampled with other settings than its measurements select.
    """
    splits = load_splits(dataset)
    train, texts = ([*take_texts(splits[name], "text", name)["text"]] for name in ("train", "validation"))
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder, dtype="float32"), load_tokenizer(folder)
    validation = measure(model, tokenizer, texts)

    runs = read_records(folder / "records")
    rows = [
        [
            name,
            f"`{run['recipe']}`",
            format_changes(run),
            f"{run['parameters']:,}",
            format_updates(run),
            format_time(run),
            f"{validation_bits(run):.3f}",
        ]
        for name, run in runs.items()
    ]
    samples = json.loads((folder / "stories.json").read_text(encoding="utf-8"))
    settings = [{**setting, **measure(model, tokenizer, setting["texts"])} for setting in samples["settings"]]
    chosen = choose(settings, validation["repetition"])
    if {name: chosen[name] for name in samples["chosen"]} != samples["chosen"]:
        raise ValueError(f"stories.json was sampled with {samples['chosen']}, but its figures select {chosen}.")
    names = ("bits_per_byte", "repetition", "words")
    lines = [[setting[name] for name in (*samples["chosen"], *names)] for setting in settings]
    lines.append(["**validation stories**", "", "", *(validation[name] for name in names)])

    # words and punctuation marks: a vocabulary of words needs at least this many tokens
    pieces = sum(len(re.findall(r"\w+|[^\w\s]", text)) + 1 for text in texts)
    num_bytes = {split: sum(len(text.encode()) for text in part) for split, part in (("train", train), ("val", texts))}
    published, stock = runs["best"], runs["stock_gpt2"]
    results = [
        (label, name, validation[name], "validation")
        for name, label in (("bits_per_byte", "bits per byte"), ("loss", "loss [nats per token]"))
    ]
    data, metrics = ("roneneldan/TinyStories", "TinyStories"), ("bits_per_byte",)
    return {
        "front_matter": describe_for_hub(
            folder.name, "text-generation", "scratch_gpt", data, results, ["en"], metrics=metrics, license="apache-2.0"
        ),
        "parameters": f"{model.num_parameters():,}",
        "dtype": str(AutoConfig.from_pretrained(folder).dtype).removeprefix("torch."),
        "bits_per_byte": f"{validation['bits_per_byte']:.4f}",
        "loss": f"{validation['loss']:.3f}",
        "perplexity": f"{validation['perplexity']:.2f}",
        "tokens": f"{validation['tokens']:,}",
        "stories_validation": f"{len(texts):,}",
        "bytes_validation": f"{num_bytes['val']:,}",
        "stories_train": f"{len(train):,}",
        "bytes_train": f"{num_bytes['train']:,}",
        "before_rounding": f"{validation_bits(published):.4f}",
        "fewer": f"{100 * (1 - validation['bits_per_byte'] / validation_bits(stock)):.1f}",
        "time": format_time(published),
        "stock_time": format_time(stock),
        "stock_epochs": f"{stock['epochs']:.0f}",
        **{f"bits_of_{name}": f"{validation_bits(run):.3f}" for name, run in runs.items()},
        "runs": format_table(["run", "recipe", "changes", "parameters", "updates", "time", "bits per byte"], rows),
        "sampling": format_table(
            ["temperature", "top-p", "top-k", "bits per byte", "repeated 4-grams [%]", "words"], lines
        ),
        **{name: str(value) for name, value in samples["chosen"].items()},
        "repetition": f"{repetition([story for sample in samples['stories'] for story in sample]):.2f}",
        "repetition_validation": f"{validation['repetition']:.2f}",
        "stories": "\n".join("1. " + story.replace("\n", " ") for story in samples["stories"][0][:NUM_STORIES]),
        "full_bits": f"{LLAMA2_C_LOSS / math.log(2) * pieces / num_bytes['val']:.2f}",
        "full_bytes": f"{num_bytes['val'] / pieces:.2f}",
        "training": format_training(published, model.config),
        "command": published["command"].replace(
            "--dataset_name tinystories ", "--dataset_name folder/of/tinystories "
        ),
    }
