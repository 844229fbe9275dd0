# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""What a model does with one sentence, as numbers: attention, beams, probabilities.

Every figure is the model's own: it is observed while `generate()` or `forward` runs. Nothing here draws.
"""

from .beams import BeamTree, Candidate, search_beams
from .models import LoadedModel, compute_attention, load_model, show_token
from .probabilities import Alternative, Prediction, predict_tokens

__all__ = [
    "Alternative",
    "BeamTree",
    "Candidate",
    "LoadedModel",
    "Prediction",
    "compute_attention",
    "load_model",
    "predict_tokens",
    "search_beams",
    "show_token",
]
