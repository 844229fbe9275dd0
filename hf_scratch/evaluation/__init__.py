# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Evaluation: BLEU and chrF of translations, ROUGE of summaries, bits per byte and answers of language models."""

import importlib

from .language_modeling import evaluate_answers, evaluate_language_model
from .translation import evaluate_translation


def __getattr__(name: str):
    if name in __all__:  # lazy: the metrics import evaluate, which takes seconds
        return getattr(importlib.import_module(".metrics", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "BitsPerByte",
    "Bleu",
    "ChrF",
    "ExactMatch",
    "LowercaseBleu",
    "MosesBleu",
    "Rouge",
    "evaluate_answers",
    "evaluate_language_model",
    "evaluate_translation",
    "score_summaries",
    "score_translations",
]
