# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Whether an IncrementalDecoder computes what a model's own code does.

Whatever a user changed on the model is looked for. A patched class or function of torch, transformers or this package
is not: after such a patch, `cache_implementation="dynamic"` in the call of `generate()` chooses transformers' loop.
"""

from typing import Any

import torch
from torch import nn
from transformers.activations import ACT2CLS
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer, EncoderDecoderCache
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, eager_mask, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, PreTrainedModel

from ..models.layers import FeedForward, MultiHeadAttention, SinusoidalPositionalEmbedding, eager_attention_forward
from ..models.loss import are_dense, runs_own_code
from ..models.modeling_scratch_gpt import ScratchGPTForCausalLM, ScratchGPTLayer, ScratchGPTModel
from ..models.modeling_scratch_transformer import (
    ScratchTransformerDecoder,
    ScratchTransformerDecoderLayer,
    ScratchTransformerForConditionalGeneration,
    ScratchTransformerModel,
)

# attention by each of these is equal but for rounding
ATTENTIONS = {"sdpa": (sdpa_attention_forward, sdpa_mask), "eager": (eager_attention_forward, eager_mask)}
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
LAYERS: dict[type, type] = {
    ScratchGPTForCausalLM: ScratchGPTLayer,
    ScratchTransformerForConditionalGeneration: ScratchTransformerDecoderLayer,
}
ACTIVATIONS = {entry[0] if isinstance(entry, tuple) else entry for entry in ACT2CLS.values()}
SAME_IN_TRAINING = {nn.Linear, nn.LayerNorm, nn.Identity, nn.Embedding, nn.ModuleList} | ACTIVATIONS
ATTENTION, FEED_FORWARD = {"q_proj", "k_proj", "v_proj", "o_proj"}, {"fc1", "activation", "fc2"}
LAYER = {"self_attn", "self_attn_norm", "feed_forward", "feed_forward_norm"}
STACK = {"embed_tokens", "embed_positions", "layers", "norm"}
CHILDREN = {
    MultiHeadAttention: ATTENTION,
    FeedForward: FEED_FORWARD,
    ScratchGPTLayer: LAYER,
    ScratchTransformerDecoderLayer: LAYER | {"cross_attn", "cross_attn_norm"},
    ScratchGPTModel: STACK | {"embed_norm"},
    ScratchTransformerDecoder: STACK,
    ScratchTransformerModel: {"encoder", "decoder"},
    ScratchGPTForCausalLM: {"model", "lm_head"},
    ScratchTransformerForConditionalGeneration: {"model", "lm_head"},
}
# the classes that a module of one of these names may have; all others are norms, layers, or models
BY_NAME = {
    **{name: {nn.Linear} for name in ("q_proj", "k_proj", "v_proj", "o_proj", "fc1", "fc2", "lm_head")},
    "self_attn": {MultiHeadAttention},
    "cross_attn": {MultiHeadAttention},
    "embed_tokens": {nn.Embedding},
    "embed_positions": {nn.Embedding, SinusoidalPositionalEmbedding},
    "feed_forward": {FeedForward},
    "activation": ACTIVATIONS,
    "layers": {nn.ModuleList},
}
MODELS = {ScratchGPTModel, ScratchTransformerModel, ScratchTransformerDecoder}
OTHERS = {nn.LayerNorm, nn.Identity, *LAYERS, *LAYERS.values(), *MODELS}


def can_decode(model: PreTrainedModel) -> bool:
    """Whether all modules have known classes, run those classes' code in evaluation mode, and are dense on a CPU."""
    if type(model) not in LAYERS or type(model.model) not in MODELS:
        return False
    stack = model.model.decoder if model.config.is_encoder_decoder else model.model
    named = [("", model), ("", model.model), ("lm_head", model.lm_head), *stack.named_modules(remove_duplicate=False)]
    if not all(_has_own_children(module) for _, module in named) or stack.config is not model.config:
        return False
    if not all(type(module) in BY_NAME.get(name.rpartition(".")[2], OTHERS) for name, module in named):
        return False
    modules, dtype = [module for _, module in named], model.lm_head.weight.dtype
    attention = stack.config._attn_implementation
    return (
        dtype in DTYPES
        and all(map(runs_own_code, modules))
        and not any(module.training for module in modules if type(module) not in SAME_IN_TRAINING)
        and are_dense(modules, torch.device("cpu"), dtype)
        and attention in ATTENTIONS
        and ALL_ATTENTION_FUNCTIONS.get_interface(attention, eager_attention_forward) is ATTENTIONS[attention][0]
        and ALL_MASK_ATTENTION_FUNCTIONS[attention] is ATTENTIONS[attention][1]
        and all(type(layer) is LAYERS[type(model)] for layer in stack.layers)
        and all(_is_regular(layer, i, attention) for i, layer in enumerate(stack.layers))
        and not any(getattr(embedding, "max_norm", None) for embedding in (stack.embed_tokens, stack.embed_positions))
        and len(model.lm_head.weight) == len(stack.embed_tokens.weight)
    )


def _has_own_children(module: nn.Module) -> bool:
    """Whether the module has the children that its class makes, and no attribute hides one of them."""
    children = module._modules.keys()
    return CHILDREN.get(type(module), children) == children and children.isdisjoint(vars(module))


def _is_regular(layer: Any, index: int, implementation: str) -> bool:
    """Whether the layer's attentions use the cache's place `index`, and their projections can be joined into one."""
    attentions = [module for module in layer.children() if isinstance(module, MultiHeadAttention)]
    return not layer.feed_forward.activation._parameters and all(
        attention.layer_idx == index
        and attention.config._attn_implementation == implementation
        and attention.num_key_value_groups == 1
        and attention.head_dim == attention.v_head_dim
        and len({part.weight.shape for part in (attention.q_proj, attention.k_proj, attention.v_proj)}) == 1
        and len({getattr(part.bias, "shape", None) for part in (attention.q_proj, attention.k_proj, attention.v_proj)})
        == 1
        for attention in attentions
    )


def is_dynamic(cache: Cache | None) -> bool:
    """Whether the cache is what `generate()` makes by default."""
    parts = [cache]
    if type(cache) is EncoderDecoderCache:
        parts = [cache.self_attention_cache, cache.cross_attention_cache]
    return all(
        type(part) is DynamicCache and all(type(layer) is DynamicLayer for layer in part.layers) for part in parts
    )
