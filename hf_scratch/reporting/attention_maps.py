# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Attention maps of a model while it translates or reads a text."""

from collections.abc import Sequence
from pathlib import Path

import torch

from ..explaining import LoadedModel, compute_attention, load_model
from .drawings import NEXT, Figure, draw_attention
from .plots import save_figure


def draw_last_layer(folder: Path, text: str) -> str:
    """Draw the last layer's attention: of a translation over its source, or of a language model's text over itself.

    Args:
        folder: a saved model with its tokenizer; receives the picture.
        text: what the model reads.

    Returns:
        The picture's path.
    """
    loaded = load_model(folder)
    ids, target_ids, kind = loaded.encode(text), None, "self-attention"
    if loaded.is_translator:
        target_ids, kind = loaded.model.generate(ids)[:, :-1], "cross-attention"  # nothing reads the last token
    weights = compute_attention(loaded, ids, target_ids)[kind]
    figure = draw_layer(loaded, kind, weights, len(weights) - 1, text, ids, target_ids)
    return save_figure(figure, str(folder), "attention.png")


def draw_layer(
    loaded: LoadedModel,
    kind: str,
    weights: torch.Tensor,
    layer: int,
    text: str,
    input_ids: torch.Tensor,
    decoder_input_ids: torch.Tensor | None = None,
    heads: Sequence[int] | None = None,
) -> Figure:
    """Draw one layer's attention.

    Args:
        loaded: the model.
        kind: a name that `compute_attention` gives.
        weights: (layers, heads, queries, keys), of that name.
        layer: the layer's index.
        text: what the model read, for the title.
        input_ids: (1, length), as given to `compute_attention`.
        decoder_input_ids: (1, target length), as given to `compute_attention`.
        heads: the heads to draw. Default: all.
    """
    heads = range(weights.shape[1]) if heads is None else heads
    source = loaded.read(input_ids[0], from_source=True)
    queries, query_label, key_label = source, f"token ({NEXT})", "token that is attended to"
    keys = source
    if kind == "encoder self-attention":
        query_label, key_label = "source token that attends", "source token that is attended to"
    elif decoder_input_ids is not None:
        queries = loaded.read(decoder_input_ids[0])
        query_label = f"decoder's input ({NEXT})"
        if kind == "cross-attention":
            key_label = "source token that is attended to"
        else:
            keys, key_label = queries, "decoder's input that is attended to"
    title = f"{kind}, layer {layer}: {text}"
    return draw_attention(weights[layer], queries, keys, title, query_label, key_label, heads)
