# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Evaluation: BLEU and chrF of translations, ROUGE of summaries, bits per byte and answers of language models."""

from .language_modeling import evaluate_answers, evaluate_language_model
from .metrics import score_summaries, score_translations
from .translation import evaluate_translation

__all__ = [
    "evaluate_answers",
    "evaluate_language_model",
    "evaluate_translation",
    "score_summaries",
    "score_translations",
]
