# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Convert checkpoints of five articles, nanoGPT, GPT-2, Marian and Pegasus to our models, and back; write for engines.

A converted model computes the same function as the original.
"""

from .articles import from_article
from .ctranslate2 import to_ctranslate2
from .gguf import to_gguf
from .gpt2 import from_gpt2, to_gpt2
from .marian import from_marian, from_pegasus, to_marian, to_pegasus
from .nanogpt import from_nanogpt, read_characters
from .presets import PRESETS, make_preset

__all__ = [
    "PRESETS",
    "from_article",
    "from_gpt2",
    "from_marian",
    "from_nanogpt",
    "from_pegasus",
    "make_preset",
    "read_characters",
    "to_ctranslate2",
    "to_gguf",
    "to_gpt2",
    "to_marian",
    "to_pegasus",
]
