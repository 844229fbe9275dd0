# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Sample stories with several temperatures, top-p and top-k values, then more stories with the best setting."""

import json
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, GenerationConfig

from hf_scratch.evaluation.language_modeling import evaluate_language_model
from hf_scratch.loading import load_tokenizer

PROMPTS = (
    "Once upon a time, there was a little girl named Mia.",
    "Once upon a time, a frog lived by a big pond.",
    "One day, Tom found a shiny key under a tree.",
    "Ben and his sister went to the beach.",
    "The old dragon did not like the rain.",
    "Lily had a blue kite.",
    "There was a small robot who wanted a friend.",
    "Mom said it was time for bed, but Sam was not tired.",
    "A brave mouse heard a loud noise.",
    "In the garden, Anna saw a butterfly.",
    "Max the dog loved his red ball.",
    "The sun was hot and the boy was thirsty.",
    "Two birds wanted to build a nest.",
    "Grandma made a big cake.",
    '"Can I come with you?" asked the bear.',
    "Sara was scared of the dark.",
    "Jack had a toy train that was broken.",
    "A little cat got lost in the forest.",
    "It was the first day of school.",
    "The moon was very bright that night.",
)
TEMPERATURES = (0.4, 0.6, 0.8, 1.0)
CUTS = ({"top_p": 0.8}, {"top_p": 0.9}, {"top_k": 10}, {"top_k": 40}, {})  # the last one cuts nothing
SETTINGS = [{"temperature": t, "top_p": 1.0, "top_k": 0, **cut} for t in TEMPERATURES for cut in CUTS]


@torch.no_grad()
def continue_prompts(model, tokenizer, setting: dict, seed: int) -> list[str]:
    """Sample one story per prompt with one of `SETTINGS`, to its end token or the model's longest input."""
    torch.manual_seed(seed)
    inputs = tokenizer(list(PROMPTS), return_tensors="pt", padding=True)
    longest = model.config.max_position_embeddings
    output = model.generate(**inputs, **setting, do_sample=True, max_length=longest)
    return tokenizer.batch_decode(output, skip_special_tokens=True)


def measure(model, tokenizer, texts: list[str]) -> dict[str, float]:
    """The scores of `evaluate_language_model`, the share of repeated 4-grams [%], and the mean number of words."""
    words = sum(len(text.split()) for text in texts) / len(texts)
    return {**evaluate_language_model(model, tokenizer, texts), "repetition": repetition(texts), "words": words}


def repetition(texts: list[str], n: int = 4) -> float:
    """The share [%] of word n-grams that occurred before in the same text (Welleck et al. 2020, section 6.1)."""
    repeated = total = 0
    for text in texts:
        words = text.lower().split()
        grams = [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]
        total += len(grams)
        repeated += len(grams) - len(set(grams))
    return 100 * repeated / max(total, 1)


def choose(settings: list[dict], repetition: float) -> dict:
    """Among the settings that repeat no more than `repetition` [%], the one with the likeliest stories.

    If all settings repeat more, the one that repeats least.
    """
    fresh = [setting for setting in settings if setting["repetition"] <= repetition]
    if not fresh:
        return min(settings, key=lambda setting: setting["repetition"])
    return min(fresh, key=lambda setting: setting["bits_per_byte"])


def sample_stories(folder: Path, texts: list[str]) -> None:
    """Write `stories.json` into the model's folder, and the chosen setting into its generation config.

    The chosen setting may repeat itself no more than the validation stories `texts` do.
    """
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder).eval(), load_tokenizer(folder)
    measured = []
    for setting in SETTINGS:
        sampled = continue_prompts(model, tokenizer, setting, seed=0)
        figures = measure(model, tokenizer, sampled)
        measured.append({**setting, "texts": sampled, **figures})
        print(f"{setting}: {figures}")
    best = choose(measured, repetition(texts))
    chosen = {name: best[name] for name in SETTINGS[0]}
    stories = [continue_prompts(model, tokenizer, chosen, seed=seed) for seed in (1, 2, 3)]
    settings = [{name: setting[name] for name in (*chosen, "texts")} for setting in measured]
    result = {"prompts": PROMPTS, "settings": settings, "chosen": chosen, "stories": stories}
    (folder / "stories.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    config = model.generation_config.to_dict()
    GenerationConfig(**{**config, **chosen, "do_sample": True}).save_pretrained(folder)
