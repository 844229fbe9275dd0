# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Attention maps of a saved model while it translates or reads a text."""

from pathlib import Path

from ..explaining import LoadedModel, compute_attention, load_model
from .drawings import NEXT
from .plots import plot_attention


def draw_cross_attention(folder: Path, source: str) -> str:
    """Translate `source` and draw the last decoder layer's attention over it.

    Args:
        folder: a saved encoder-decoder with its tokenizer; receives the picture.
        source: a sentence.

    Returns:
        The picture's path.
    """
    loaded = load_model(folder)
    ids = loaded.encode(source)
    output_ids = loaded.model.generate(ids)
    weights = compute_attention(loaded, ids, output_ids)["cross-attention"]
    return plot_attention(
        weights[-1],
        loaded.read(output_ids[0]),
        loaded.read(ids[0], from_source=True),
        str(folder),
        title=f"cross-attention, layer {len(weights) - 1}, of {source!r}",
        **label_axes("cross-attention", loaded),
    )


def draw_self_attention(folder: Path, text: str) -> str:
    """Draw the last layer's attention of `text` over itself.

    Args:
        folder: a saved language model with its tokenizer; receives the picture.
        text: what the model reads.

    Returns:
        The picture's path.
    """
    loaded = load_model(folder)
    ids = loaded.encode(text)
    weights = compute_attention(loaded, ids)["self-attention"]
    tokens = loaded.read(ids[0])
    title = f"self-attention, layer {len(weights) - 1}, of {text!r}"
    labels = label_axes("self-attention", loaded)
    return plot_attention(weights[-1], tokens, tokens, str(folder), title=title, **labels)


def label_axes(kind: str, loaded: LoadedModel) -> dict[str, str]:
    """The labels of an attention map's axes.

    Args:
        kind: a name that `compute_attention` gives.
        loaded: its model.
    """
    query, key = "token", "token that is attended to"
    if kind == "encoder self-attention":
        return {"query_label": "source token that attends", "key_label": "source token that is attended to"}
    if loaded.is_translator:
        query = "decoder's input"
        key = "source token" if kind == "cross-attention" else "decoder's input that is attended to"
    return {"query_label": f"{query} ({NEXT})", "key_label": key}
