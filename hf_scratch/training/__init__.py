# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Trainers whose runs can be stopped, resumed and averaged."""

from .averaging import evaluate_and_select_weights
from .callbacks import StopCallback
from .resuming import CheckpointKeeper
from .trainers import LanguageModelTrainer, TranslationTrainer

__all__ = [
    "CheckpointKeeper",
    "LanguageModelTrainer",
    "StopCallback",
    "TranslationTrainer",
    "evaluate_and_select_weights",
]
