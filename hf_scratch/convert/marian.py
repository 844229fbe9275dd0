# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Convert Marian (Helsinki-NLP's opus-mt models) and Pegasus to a ScratchTransformer and back.

All directions keep the function, weight by weight. Marian is the paper's post-norm Transformer, and Pegasus a pre-norm
one with a LayerNorm after each stack; they name their weights alike. Their position table holds all sines, then all
cosines; ours interleaves them, like the paper. So our model has the dimensions of their residual stream in another
order. Each weight that reads the stream has its columns in that order, and each weight that writes to it has its rows
in that order.
"""

from collections.abc import Iterator
from typing import TypeVar

import torch
from transformers import (
    MarianConfig,
    MarianMTModel,
    PegasusConfig,
    PegasusForConditionalGeneration,
    PreTrainedModel,
)
from transformers.models.pegasus.modeling_pegasus import PegasusSinusoidalPositionalEmbedding

from ..models.configuration_scratch_transformer import ScratchTransformerConfig
from ..models.modeling_scratch_transformer import ScratchTransformerForConditionalGeneration
from .shared import build, is_tied, require_fields, require_head, with_all_biases

Theirs = TypeVar("Theirs", MarianMTModel, PegasusForConditionalGeneration)

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
# Pegasus has one vocabulary, and need not name a start token
PEGASUS_CONFIG = tuple(name for name in CONFIG if name not in ("decoder_vocab_size", "bos_token_id"))

# our name: their name, and the weight's dimension that is the residual stream: 0 if it writes, 1 if it reads
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


def from_marian(model: MarianMTModel) -> ScratchTransformerForConditionalGeneration:
    """Convert a Marian model to a ScratchTransformer with the same logits.

    `final_logits_bias` becomes the head's bias unless it is all zeros. LayerDrop, which only affects training, is
    dropped.

    Args:
        model: a MarianMTModel. It is not modified.

    Raises:
        ValueError: another type of model.
    """
    require_head(model, MarianMTModel)
    fields = {name: getattr(model.config, name) for name in CONFIG}
    return _from_theirs(model, norm_first=False, share_encoder_decoder_embeddings=shares_embeddings(model), **fields)


def from_pegasus(model: PegasusForConditionalGeneration) -> ScratchTransformerForConditionalGeneration:
    """Convert a Pegasus model to a ScratchTransformer with the same logits.

    `final_logits_bias` becomes the head's bias unless it is all zeros. LayerDrop, which only affects training, is
    dropped.

    Args:
        model: a PegasusForConditionalGeneration. It is not modified.

    Raises:
        ValueError: another type of model.
    """
    require_head(model, PegasusForConditionalGeneration)
    fields = {name: getattr(model.config, name) for name in PEGASUS_CONFIG}
    fields["bos_token_id"] = getattr(model.config, "bos_token_id", None)
    share = model.config.tie_word_embeddings
    return _from_theirs(model, norm_first=True, share_encoder_decoder_embeddings=share, **fields)


def _from_theirs(model: PreTrainedModel, **fields) -> ScratchTransformerForConditionalGeneration:
    weights = model.state_dict()
    bias = weights.pop("final_logits_bias").flatten()
    for name in ("shared", "encoder.embed_positions", "decoder.embed_positions"):
        weights.pop(f"model.{name}.weight", None)  # the embeddings under another name, and tables without parameters
    config = ScratchTransformerConfig(
        **fields, tie_word_embeddings=is_tied(model), lm_head_bias=bool(bias.any()), initializer="normal"
    )
    order = sines_first(config.d_model).argsort()
    state = {ours: reorder(weights.pop(theirs), dim, order) for ours, theirs, dim in weight_names(config)}
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
    require_fields(ours, {"norm_first": (False, "Marian is post-norm")})
    config = MarianConfig(
        **{name: getattr(ours, name) for name in CONFIG},
        share_encoder_decoder_embeddings=shares_embeddings(model) and is_tied(model),
        tie_word_embeddings=is_tied(model),
        forced_eos_token_id=model.generation_config.forced_eos_token_id,
    )
    return _to_theirs(MarianMTModel, config, model)


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
    one_vocabulary = (ours.vocab_size, "Pegasus has one vocabulary")
    require_fields(ours, {"norm_first": (True, "Pegasus is pre-norm"), "decoder_vocab_size": one_vocabulary})
    # transformers does not read the last two, but Google's folders have them, and CTranslate2 asks for them
    others = {"bos_token_id": ours.bos_token_id, "normalize_before": True, "normalize_embedding": False}
    config = PegasusConfig(
        **{name: getattr(ours, name) for name in PEGASUS_CONFIG},
        tie_word_embeddings=shares_embeddings(model) and is_tied(model),
        forced_eos_token_id=model.generation_config.forced_eos_token_id,
        **others,
    )
    table = PegasusSinusoidalPositionalEmbedding(ours.max_position_embeddings, ours.d_model).create_weight()
    return _to_theirs(PegasusForConditionalGeneration, config, model, table.to(model.lm_head.weight))


def _to_theirs(
    model_class: type[Theirs],
    config: MarianConfig | PegasusConfig,
    model: ScratchTransformerForConditionalGeneration,
    positions: torch.Tensor | None = None,
) -> Theirs:
    """Build the other model. Pegasus's state dict also holds the positions, and the embeddings under another name."""
    ours, target = model.config, model_class.__name__
    needed: dict[str, tuple[object, str]] = {
        "position_embedding_type": ("sinusoidal", f"{target}'s positions are sinusoidal"),
        "layer_norm_eps": (1e-5, f"{target}'s epsilon is fixed"),
    }
    for heads in (ours.encoder_attention_heads, ours.decoder_attention_heads):
        for name in ("head_dim", "v_head_dim"):
            if getattr(ours, name) is not None:  # None means an even division
                needed[name] = (ours.d_model / heads, f"{target}'s {heads} heads divide its width evenly")
        require_fields(ours, needed)
    weights = with_all_biases(model)
    bias = weights.pop("lm_head.bias", model.lm_head.weight.new_zeros(ours.decoder_vocab_size))
    order = sines_first(ours.d_model)
    state = {theirs: reorder(weights.pop(name), dim, order) for name, theirs, dim in weight_names(ours)}
    state["final_logits_bias"] = bias[None]
    if positions is not None:
        state["model.shared.weight"] = state["model.encoder.embed_tokens.weight"]
        state |= {f"model.{stack}.embed_positions.weight": positions for stack in ("encoder", "decoder")}
    return build(model_class, config, state, weights, model)


def weight_names(config: ScratchTransformerConfig) -> Iterator[tuple[str, str, int | None]]:
    """Yield each weight's name in our model, its name in theirs, and its dimension that is the residual stream.

    The dimension is None if neither dimension is.
    """
    yield "lm_head.weight", "lm_head.weight", 1
    for stack, layers in (("encoder", config.encoder_layers), ("decoder", config.decoder_layers)):
        yield f"model.{stack}.embed_tokens.weight", f"model.{stack}.embed_tokens.weight", 1
        if config.norm_first:
            for kind in ("weight", "bias"):
                yield f"model.{stack}.norm.{kind}", f"model.{stack}.layer_norm.{kind}", 0
        for i in range(layers):
            for ours, (theirs, dim) in LAYER.items():
                if stack == "decoder" or not ours.startswith("cross_attn"):
                    ours, theirs = f"model.{stack}.layers.{i}.{ours}", f"model.{stack}.layers.{i}.{theirs}"
                    yield f"{ours}.weight", f"{theirs}.weight", dim
                    yield f"{ours}.bias", f"{theirs}.bias", 0 if dim == 0 else None


def sines_first(width: int) -> torch.Tensor:
    """The indices that put our dimensions (sine, cosine, sine, ...) into their order: 0, 2, 4, ..., 1, 3, 5, ..."""
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
