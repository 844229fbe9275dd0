# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Convert checkpoints of five articles, GPT-2 and Marian to our models, and our models to GPT-2 and Marian.

A converted model computes the same function as the original.
"""

from .articles import from_article
from .gpt2 import from_gpt2, to_gpt2
from .marian import from_marian, to_marian
from .presets import PRESETS, make_preset

__all__ = ["PRESETS", "from_article", "from_gpt2", "from_marian", "make_preset", "to_gpt2", "to_marian"]
