# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Data sets: load them, take their columns, tokenise their rows, and order them into batches."""

from .embedded import EMBEDDED, EmbeddedSet, make_multiplication, make_numbers, make_stories
from .masking import MaskingCollator, split_texts
from .pairs import take_pairs, tokenize_pairs
from .sampling import RowBatchSampler, TokenBudgetBatchSampler
from .splits import load_splits
from .texts import PackedTextsCollator, pack_texts, take_texts

__all__ = [
    "EMBEDDED",
    "EmbeddedSet",
    "MaskingCollator",
    "PackedTextsCollator",
    "RowBatchSampler",
    "TokenBudgetBatchSampler",
    "load_splits",
    "make_multiplication",
    "make_numbers",
    "make_stories",
    "pack_texts",
    "split_texts",
    "take_pairs",
    "take_texts",
    "tokenize_pairs",
]
