# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Trainers whose runs can be stopped, resumed and averaged."""

from .callbacks import StopCallback
from .trainers import LanguageModelTrainer, TranslationTrainer

__all__ = ["LanguageModelTrainer", "StopCallback", "TranslationTrainer"]
