# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Data sets: load them, take their columns, tokenise their rows, and order them into batches."""

from .splits import load_splits
from .texts import PackedTextsCollator, pack_texts, take_texts

__all__ = ["PackedTextsCollator", "load_splits", "pack_texts", "take_texts"]
