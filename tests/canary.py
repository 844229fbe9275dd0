#!/usr/bin/env python
# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""The published models write the texts of canary.json, loaded from their folders without this package.

python tests/canary.py

A release of transformers or torch that changes what the models write ends this with status 1. `make demo`, `make test`
and the nightly workflow run it. The sentences are ours, and none of their translations is close to another one.
"""

import json
import os
import sys
import tempfile
from pathlib import Path

TESTS = Path(__file__).parent
CARDS = TESTS.parent / "model_cards"


def write_texts() -> dict[str, str]:
    """Translate greedily and continue a story, by the folders' own code and by transformers' decoding loop."""
    import torch
    import transformers

    print(f"canary: transformers {transformers.__version__}, torch {torch.__version__}", flush=True)
    kept = json.loads((TESTS / "canary.json").read_text(encoding="utf-8"))
    trust = {"trust_remote_code": True, "dtype": "float32"}
    translator = transformers.pipeline("translation", str(CARDS / "scratch-transformer-multi30k-en-de"), **trust)
    writer = transformers.pipeline("text-generation", str(CARDS / "scratch-gpt-tinystories"), **trust)
    wrong = {}
    for loop in ({}, {"cache_implementation": "dynamic"}):
        translations = translator(list(kept["translations"]), num_beams=1, batch_size=20, **loop)
        texts = dict(zip(kept["translations"], (each["translation_text"] for each in translations), strict=True))
        (prompt,) = kept["stories"]
        texts[prompt] = writer(prompt, do_sample=False, max_new_tokens=40, **loop)[0]["generated_text"]
        expected = kept["translations"] | kept["stories"]
        wrong |= {text: texts[text] for text in texts if texts[text] != expected[text]}
    assert "hf_scratch" not in sys.modules, "the package was imported: this would prove nothing"
    return wrong


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as modules:
        os.environ["HF_MODULES_CACHE"] = modules
        differences = write_texts()
    for text, written in differences.items():
        print(f"  {text} -> {written}")
    if differences:
        sys.exit(
            "canary: with these versions the models write other texts. `constraints.txt` names those that were tested."
        )
    print("canary: the published models write the kept texts.")
