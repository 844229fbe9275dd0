# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""The attention weights of every layer and head."""

import torch

from .models import LoadedModel, copy_to_observe


@torch.no_grad()
def compute_attention(
    loaded: LoadedModel, input_ids: torch.Tensor, decoder_input_ids: torch.Tensor | None = None
) -> dict[str, torch.Tensor]:
    """Run the model once and return its attention weights.

    Args:
        loaded: the model.
        input_ids: (1, length), what it reads.
        decoder_input_ids: (1, target length) for the encoder-decoder: the start token and the target's tokens.

    Returns:
        For each attention its weights (layers, heads, queries, keys). A query's weights sum to 1. The GPT has
        "self-attention"; the encoder-decoder has "cross-attention", "decoder self-attention" and
        "encoder self-attention".
    """
    model = copy_to_observe(loaded.model)
    inputs = {"input_ids": input_ids}
    if loaded.is_translator:
        inputs["decoder_input_ids"] = decoder_input_ids
    outputs = model(**inputs, use_cache=False, output_attentions=True)
    if not loaded.is_translator:
        return {"self-attention": torch.cat(outputs.attentions)}
    return {
        "cross-attention": torch.cat(outputs.cross_attentions),
        "decoder self-attention": torch.cat(outputs.decoder_attentions),
        "encoder self-attention": torch.cat(outputs.encoder_attentions),
    }
