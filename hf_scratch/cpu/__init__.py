# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Faster ways to compute on a CPU what the models compute: decoding, and dropout and attention in training.

The models work without this folder, which imports them, never the reverse. Importing it fills `ON_CPU`.
"""

from ..models.scratch_layers import ON_CPU
from .generate import choose_loop
from .training_kernels import dropout, sdpa_training_forward

ON_CPU.update(dropout=dropout, attention=sdpa_training_forward, decoding_loop=choose_loop)
