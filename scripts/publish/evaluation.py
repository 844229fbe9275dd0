# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""What a published folder's weights reach, computed from its files and the data: its `evaluation.json`."""

import json
from pathlib import Path
from typing import Any

from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, pipeline

import hf_scratch  # noqa: F401  registers the models
from hf_scratch.data.pairs import take_pairs
from hf_scratch.data.splits import load_splits
from hf_scratch.data.texts import take_texts
from hf_scratch.evaluation.language_modeling import evaluate_language_model
from hf_scratch.evaluation.metrics import score_translations
from hf_scratch.evaluation.translation import evaluate_translation
from hf_scratch.loading import load_tokenizer

# the last of each is about nothing that is in Multi30k
SENTENCES = {
    "en": (
        "A little girl in a red dress throws a ball to her dog in the park.",
        "Two men in orange vests are repairing the roof of a house.",
        "An old woman is selling vegetables at a market.",
        "The boy on the bicycle is jumping over a wall.",
        "My computer crashed while I was writing a letter to the bank.",
    ),
    "de": (
        "Ein kleines Mädchen in einem roten Kleid wirft ihrem Hund im Park einen Ball zu.",
        "Zwei Männer in orangefarbenen Westen reparieren das Dach eines Hauses.",
        "Eine alte Frau verkauft auf einem Markt Gemüse.",
        "Der Junge auf dem Fahrrad springt über eine Mauer.",
        "Mein Computer stürzte ab, während ich einen Brief an die Bank schrieb.",
    ),
}
TEST_SCORES = ("bleu", "bleu_moses", "chrf")


def evaluate_translator(folder: Path, dataset: str) -> dict[str, Any]:
    """The published weights' scores on the test set, example sentences, and the scores of each run's translations."""
    model = AutoModelForSeq2SeqLM.from_pretrained(folder, dtype="float32").eval()
    tokenizer = load_tokenizer(folder)
    source, target = model.config.source_lang, model.config.target_lang
    test = take_pairs(load_splits(dataset)["test"], source, target, "test")
    scores, _ = evaluate_translation(model, tokenizer, test["source"], test["target"])
    translator = pipeline("translation", model=model, tokenizer=tokenizer)
    runs = {}
    for path in sorted((folder / "records").glob("*.txt")):
        found = score_translations(path.read_text(encoding="utf-8").splitlines(), list(test["target"]), target)
        runs[path.stem] = {name: found[name] for name in TEST_SCORES}
    return {
        "metrics": {"test": scores},
        "examples": [[text, translator(text)[0]["translation_text"]] for text in SENTENCES[source]],
        "runs": runs,
    }


def evaluate_writer(folder: Path, dataset: str) -> dict[str, Any]:
    """The published weights' scores on the validation stories, a greedy story, and the sizes of the data."""
    splits = load_splits(dataset)
    texts = {name: list(take_texts(splits[name], "text", name)["text"]) for name in ("train", "validation")}
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder, dtype="float32").eval(), load_tokenizer(folder)
    scores = evaluate_language_model(model, tokenizer, texts["validation"])
    writer = pipeline("text-generation", model=model, tokenizer=tokenizer)
    return {
        "metrics": {"validation": scores},
        "greedy": writer("Once upon a time", do_sample=False, max_new_tokens=40)[0]["generated_text"],
        "data": {
            name: {"texts": len(part), "bytes": sum(len(text.encode()) for text in part)}
            for name, part in texts.items()
        },
    }


def evaluate_folder(folder: Path, dataset: str) -> str:
    """The text of `evaluation.json`. Floats have four decimals: the rest differs from one processor to another."""
    is_writer = (folder / "stories.json").is_file()
    figures = (evaluate_writer if is_writer else evaluate_translator)(folder, dataset)
    for scores in figures["metrics"].values():
        del scores["seconds"]
    rounded = json.loads(json.dumps(figures), parse_float=lambda text: round(float(text), 4))
    return json.dumps(rounded, indent=1, ensure_ascii=False) + "\n"
