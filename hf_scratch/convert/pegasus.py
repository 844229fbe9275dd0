# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Convert Pegasus to a ScratchTransformer and back. Both directions keep the function, weight by weight.

Both models are pre-norm, with a LayerNorm after each stack. Pegasus names its weights as Marian does, and has Marian's
position table, so the same reordering of the residual stream applies: see marian.py.
"""

import os
from collections.abc import Iterator

import torch
from transformers import PegasusConfig, PegasusForConditionalGeneration
from transformers.models.pegasus.modeling_pegasus import PegasusSinusoidalPositionalEmbedding

from ..models.configuration_scratch_transformer import ScratchTransformerConfig
from ..models.modeling_scratch_transformer import ScratchTransformerForConditionalGeneration
from . import marian
from .shared import build, is_tied, load, require_head, take, with_all_biases

# fields with the same names and values; Pegasus has one vocabulary
CONFIG = tuple(name for name in marian.CONFIG if name not in ("decoder_vocab_size", "bos_token_id"))


def from_pegasus(
    model: PegasusForConditionalGeneration | str | os.PathLike,
) -> ScratchTransformerForConditionalGeneration:
    """Convert a Pegasus model to a ScratchTransformer with the same logits.

    `final_logits_bias` becomes the head's bias unless it is all zeros. LayerDrop, which only affects training, is
    dropped.

    Args:
        model: a PegasusForConditionalGeneration, or its folder or Hub id. It is not modified.

    Raises:
        ValueError: another type of model, positions that are not sinusoids, or weights that a Pegasus model of this
            configuration does not have, such as an adapter's.
    """
    if isinstance(model, (str, os.PathLike)):
        return from_pegasus(load(PegasusForConditionalGeneration, model))
    require_head(model, PegasusForConditionalGeneration)
    theirs = model.config
    weights = model.state_dict()
    bias = take(weights, "final_logits_bias").flatten()
    weights.pop("model.shared.weight", None)  # the embeddings under another name
    for stack in ("encoder", "decoder"):
        table = take(weights, f"model.{stack}.embed_positions.weight")
        sinusoids = PegasusSinusoidalPositionalEmbedding(*table.shape).create_weight()
        if not torch.allclose(table, sinusoids.to(table), atol=1e-2):
            raise ValueError(f"`model.{stack}.embed_positions.weight` holds no sinusoids, so they cannot be computed.")
    config = ScratchTransformerConfig(
        **{name: getattr(theirs, name) for name in CONFIG},
        bos_token_id=getattr(theirs, "bos_token_id", None),
        share_encoder_decoder_embeddings=theirs.tie_word_embeddings,
        tie_word_embeddings=is_tied(model),
        lm_head_bias=bool(bias.any()),
        norm_first=True,
        initializer="normal",
    )
    order = marian.sines_first(config.d_model).argsort()
    state = {name: marian.reorder(take(weights, their), dim, order) for name, their, dim in weight_names(config)}
    if config.lm_head_bias:
        state["lm_head.bias"] = bias
    return build(ScratchTransformerForConditionalGeneration, config, state, weights, model)


def to_pegasus(model: ScratchTransformerForConditionalGeneration) -> PegasusForConditionalGeneration:
    """Convert a ScratchTransformer to a PegasusForConditionalGeneration with the same logits.

    Missing attention biases become zeros. Pegasus shares either all embeddings and the head, or none of them. A model
    that shares some becomes a Pegasus with equal copies. The function is the same, but training the Pegasus trains
    zeros and copies separately.

    Args:
        model: a ScratchTransformer with its head. It is not modified.

    Raises:
        ValueError: another type of model, a configuration field that Pegasus cannot express, or weights that Pegasus
            has no place for. The message names the field or the weights.
    """
    require_head(model, ScratchTransformerForConditionalGeneration)
    ours = model.config
    needed: dict[str, tuple[object, str]] = {
        "norm_first": (True, "Pegasus is pre-norm"),
        "decoder_vocab_size": (ours.vocab_size, "Pegasus has one vocabulary"),
        "position_embedding_type": ("sinusoidal", "Pegasus's positions are sinusoidal"),
        "layer_norm_eps": (1e-5, "Pegasus's epsilon is fixed"),
    }
    marian.require_even_heads(ours, needed, "Pegasus")
    if ours.decoder_start_token_id is None:
        raise ValueError("`decoder_start_token_id` is None, but Pegasus needs an id for it.")
    share = marian.shares_embeddings(model) and is_tied(model)
    # transformers does not read the last two, but Google's folders have them, and CTranslate2 asks for them
    others = {"bos_token_id": ours.bos_token_id, "normalize_before": True, "normalize_embedding": False}
    config = PegasusConfig(
        **{name: getattr(ours, name) for name in CONFIG},
        tie_word_embeddings=share,
        forced_eos_token_id=model.generation_config.forced_eos_token_id,
        **others,
    )
    weights = with_all_biases(model)
    bias = weights.pop("lm_head.bias", model.lm_head.weight.new_zeros(ours.vocab_size))
    order = marian.sines_first(ours.d_model)
    state = {their: marian.reorder(take(weights, name), dim, order) for name, their, dim in weight_names(ours)}
    state["final_logits_bias"] = bias[None]
    state["model.shared.weight"] = state["model.encoder.embed_tokens.weight"]
    table = PegasusSinusoidalPositionalEmbedding(ours.max_position_embeddings, ours.d_model).create_weight()
    for stack in ("encoder", "decoder"):
        state[f"model.{stack}.embed_positions.weight"] = table.to(bias)
    return build(PegasusForConditionalGeneration, config, state, weights, model)


def weight_names(config: ScratchTransformerConfig) -> Iterator[tuple[str, str, int | None]]:
    """As Marian's `weight_names`, with the LayerNorm after each stack."""
    yield from marian.weight_names(config)
    for stack in ("encoder", "decoder"):
        for kind in ("weight", "bias"):
            yield f"model.{stack}.norm.{kind}", f"model.{stack}.layer_norm.{kind}", 0
