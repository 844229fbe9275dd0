# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Convert Marian (Helsinki-NLP's opus-mt models) to a ScratchTransformer and back.

Both directions keep the function, weight by weight. Both models are the paper's post-norm Transformer. Marian's
position table holds all sines, then all cosines; ours interleaves them, like the paper. So our model has the
dimensions of Marian's residual stream in another order. Each weight that reads the stream has its columns in that
order, and each weight that writes to it has its rows in that order.
"""

import os
from collections.abc import Iterator

import torch
from transformers import MarianConfig, MarianMTModel, PreTrainedModel

from ..models.configuration_scratch_transformer import ScratchTransformerConfig
from ..models.modeling_scratch_transformer import ScratchTransformerForConditionalGeneration
from .shared import build, is_tied, load, require_fields, require_head, take, with_all_biases

# fields with the same names and values; activations have the names of transformers' ACT2FN
CONFIG = (
    "vocab_size",
    "decoder_vocab_size",
    "d_model",
    "encoder_layers",
    "decoder_layers",
    "encoder_attention_heads",
    "decoder_attention_heads",
    "encoder_ffn_dim",
    "decoder_ffn_dim",
    "activation_function",
    "scale_embedding",
    "max_position_embeddings",
    "dropout",
    "attention_dropout",
    "activation_dropout",
    "init_std",
    "use_cache",
    "pad_token_id",
    "bos_token_id",
    "eos_token_id",
    "decoder_start_token_id",
)


# our name: Marian's name, and the weight's dimension that is the residual stream: 0 if it writes, 1 if it reads
LAYER = {
    "self_attn.q_proj": ("self_attn.q_proj", 1),
    "self_attn.k_proj": ("self_attn.k_proj", 1),
    "self_attn.v_proj": ("self_attn.v_proj", 1),
    "self_attn.o_proj": ("self_attn.out_proj", 0),
    "self_attn_norm": ("self_attn_layer_norm", 0),
    "cross_attn.q_proj": ("encoder_attn.q_proj", 1),
    "cross_attn.k_proj": ("encoder_attn.k_proj", 1),
    "cross_attn.v_proj": ("encoder_attn.v_proj", 1),
    "cross_attn.o_proj": ("encoder_attn.out_proj", 0),
    "cross_attn_norm": ("encoder_attn_layer_norm", 0),
    "feed_forward.fc1": ("fc1", 1),
    "feed_forward.fc2": ("fc2", 0),
    "feed_forward_norm": ("final_layer_norm", 0),
}


def from_marian(model: MarianMTModel | str | os.PathLike) -> ScratchTransformerForConditionalGeneration:
    """Convert a Marian model to a ScratchTransformer with the same logits.

    `final_logits_bias` becomes the head's bias unless it is all zeros. LayerDrop, which only affects training, is
    dropped.

    Args:
        model: a MarianMTModel, or its folder or Hub id. It is not modified.

    Raises:
        ValueError: another type of model, or weights that a Marian model of this configuration does not have, such as
            an adapter's.
    """
    if isinstance(model, (str, os.PathLike)):
        return from_marian(load(MarianMTModel, model))
    require_head(model, MarianMTModel)
    weights = model.state_dict()
    bias = take(weights, "final_logits_bias").flatten()
    for name in ("shared", "encoder.embed_positions", "decoder.embed_positions"):
        weights.pop(f"model.{name}.weight", None)  # the embeddings under another name, and tables without parameters
    config = ScratchTransformerConfig(
        **{name: getattr(model.config, name) for name in CONFIG},
        share_encoder_decoder_embeddings=shares_embeddings(model),
        tie_word_embeddings=is_tied(model),
        lm_head_bias=bool(bias.any()),
        initializer="normal",
    )
    order = sines_first(config.d_model).argsort()
    state = {ours: reorder(take(weights, theirs), dim, order) for ours, theirs, dim in weight_names(config)}
    if config.lm_head_bias:
        state["lm_head.bias"] = bias
    return build(ScratchTransformerForConditionalGeneration, config, state, weights, model)


def to_marian(model: ScratchTransformerForConditionalGeneration) -> MarianMTModel:
    """Convert a ScratchTransformer to a MarianMTModel with the same logits.

    Missing attention biases become zeros. Marian can share the source and target embeddings only if the head is tied
    to them too. A model that shares them without tying the head becomes a Marian model with two equal embeddings. The
    function is the same, but training the MarianMTModel trains zeros and copies separately.

    CTranslate2 expects more of a Marian folder than transformers does: `pad_token_id` is the last id and also
    `decoder_start_token_id`, its embedding is zero, and both stacks have the same number of heads.

    Args:
        model: a ScratchTransformer with its head. It is not modified.

    Raises:
        ValueError: another type of model, a configuration field that Marian cannot express, or weights that Marian
            has no place for. The message names the field or the weights.
    """
    require_head(model, ScratchTransformerForConditionalGeneration)
    ours = model.config
    needed: dict[str, tuple[object, str]] = {
        "norm_first": (False, "Marian is post-norm"),
        "position_embedding_type": ("sinusoidal", "Marian's positions are sinusoidal"),
        "layer_norm_eps": (1e-5, "Marian's epsilon is fixed"),
    }
    require_even_heads(ours, needed, "Marian")
    if ours.decoder_start_token_id is None:
        raise ValueError("`decoder_start_token_id` is None, but Marian needs an id for it.")
    share = shares_embeddings(model) and is_tied(model)
    config = MarianConfig(
        **{name: getattr(ours, name) for name in CONFIG},
        share_encoder_decoder_embeddings=share,
        tie_word_embeddings=is_tied(model),
        forced_eos_token_id=model.generation_config.forced_eos_token_id,
    )
    weights = with_all_biases(model)
    bias = weights.pop("lm_head.bias", model.lm_head.weight.new_zeros(ours.decoder_vocab_size))
    order = sines_first(ours.d_model)
    state = {theirs: reorder(take(weights, name), dim, order) for name, theirs, dim in weight_names(ours)}
    state["final_logits_bias"] = bias[None]
    return build(MarianMTModel, config, state, weights, model)


def require_even_heads(config: ScratchTransformerConfig, needed: dict[str, tuple[object, str]], target: str) -> None:
    """Raise ValueError unless the fields have their `needed` values, and the heads divide the width evenly."""
    for heads in (config.encoder_attention_heads, config.decoder_attention_heads):
        for name in ("head_dim", "v_head_dim"):
            if getattr(config, name) is not None:  # None means an even division
                needed[name] = (config.d_model / heads, f"{target}'s {heads} heads divide its width evenly")
        require_fields(config, needed)


def weight_names(config: ScratchTransformerConfig) -> Iterator[tuple[str, str, int | None]]:
    """Yield each weight's name in our model, its name in Marian, and its dimension that is the residual stream.

    The dimension is None if neither dimension is.
    """
    yield "lm_head.weight", "lm_head.weight", 1
    for stack, layers in (("encoder", config.encoder_layers), ("decoder", config.decoder_layers)):
        yield f"model.{stack}.embed_tokens.weight", f"model.{stack}.embed_tokens.weight", 1
        for i in range(layers):
            for ours, (theirs, dim) in LAYER.items():
                if stack == "decoder" or not ours.startswith("cross_attn"):
                    ours, theirs = f"model.{stack}.layers.{i}.{ours}", f"model.{stack}.layers.{i}.{theirs}"
                    yield f"{ours}.weight", f"{theirs}.weight", dim
                    yield f"{ours}.bias", f"{theirs}.bias", 0 if dim == 0 else None


def sines_first(width: int) -> torch.Tensor:
    """The indices that put our dimensions (sine, cosine, sine, ...) into Marian's order: 0, 2, 4, ..., 1, 3, 5, ..."""
    return torch.cat([torch.arange(0, width, 2), torch.arange(1, width, 2)])


def reorder(tensor: torch.Tensor, dim: int | None, order: torch.Tensor) -> torch.Tensor:
    """Reorder one dimension of a tensor; None keeps the tensor as it is."""
    return tensor if dim is None else tensor.index_select(dim, order.to(tensor.device))


def shares_embeddings(model: PreTrainedModel) -> bool:
    """Whether source and target use one embedding.

    The field alone does not tell: Marian shares the embeddings only if the head is tied too.
    """
    source, target = (stack.get_input_embeddings().weight for stack in (model.get_encoder(), model.get_decoder()))
    return model.config.share_encoder_decoder_embeddings and torch.equal(source, target)
