# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""The models whose `forward` an IncrementalDecoder can replace: every class, child and attribute must be known."""

from collections.abc import Collection, Mapping

import torch
from torch import nn
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext
from transformers.activations import ACT2CLS
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer, EncoderDecoderCache
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, eager_mask, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from .base import ScratchPreTrainedModel
from .layers import (
    FeedForward,
    MultiHeadAttention,
    ResidualLayer,
    SinusoidalPositionalEmbedding,
    eager_attention_forward,
)
from .unmodified import are_dense, are_unmodified, is_original, remember

# attention by each of these is equal but for rounding
ATTENTIONS = {"sdpa": (sdpa_attention_forward, sdpa_mask), "eager": (eager_attention_forward, eager_mask)}
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)

LINEAR, NORM, EMBEDDING = {nn.Linear}, {nn.LayerNorm, nn.Identity}, {nn.Embedding}
ACTIVATIONS = {entry[0] if isinstance(entry, tuple) else entry for entry in ACT2CLS.values()}
SAME_IN_TRAINING = LINEAR | NORM | EMBEDDING | ACTIVATIONS | {nn.ModuleList}

# each module's children, with the classes that they may have
ATTENTION = {"q_proj": LINEAR, "k_proj": LINEAR, "v_proj": LINEAR, "o_proj": LINEAR}
FEED_FORWARD = {"fc1": LINEAR, "activation": ACTIVATIONS, "fc2": LINEAR}
LAYER = {
    "self_attn": {MultiHeadAttention},
    "self_attn_norm": NORM,
    "feed_forward": {FeedForward},
    "feed_forward_norm": NORM,
}
CROSS_LAYER = LAYER | {"cross_attn": {MultiHeadAttention}, "cross_attn_norm": NORM}
DECODER = {
    "embed_tokens": EMBEDDING,
    "embed_positions": EMBEDDING | {SinusoidalPositionalEmbedding},
    "layers": {nn.ModuleList},
    "norm": NORM,
}
GPT = DECODER | {"embed_norm": NORM}

# the functions of torch that the modules, transformers' loop and the decoder call
TORCH_FUNCTIONS = {
    torch: ("argmax", "cat", "embedding", "layer_norm", "matmul", "topk"),
    nn.functional: ("embedding", "layer_norm", "linear", "log_softmax", "scaled_dot_product_attention", "softmax"),
}
TORCH_ORIGINALS = [(file, name, getattr(file, name)) for file, names in TORCH_FUNCTIONS.items() for name in names]

remember(MultiHeadAttention, FeedForward, SinusoidalPositionalEmbedding)
remember(*SAME_IN_TRAINING)
remember(EncoderDecoderCache, DynamicCache, DynamicLayer, also={"update", "get_seq_length", "reorder_cache"})


def can_decode_incrementally(model: ScratchPreTrainedModel, cache: Cache | None) -> bool:
    """Whether an IncrementalDecoder computes the same as the model's `forward` with this kind of cache.

    It does on a CPU, with "sdpa" or "eager" attention and a DynamicCache. Anything unknown makes it False: a subclass,
    a hook, a patch, an adapter, a shard, a quantised weight, dropout that is still on.
    """
    is_cross = model.config.is_encoder_decoder
    classes = vars(type(model)).get("decoded_classes", (None, None))
    base, lm_head = getattr(model, "model", None), getattr(model, "lm_head", None)
    stack = getattr(base, "decoder", None) if is_cross else base
    vocab_size = model.config.decoder_vocab_size if is_cross else model.config.vocab_size
    if base is None or stack is None or type(lm_head) is not nn.Linear:
        return False
    if type(base) is not classes[0] or type(stack) is not classes[-2]:
        return False
    if not _has_children(stack, DECODER if is_cross else GPT):
        return False
    modules = [model, base, lm_head, *stack.modules()]
    return (
        lm_head.weight.dtype in DTYPES
        and (attention := stack.config._attn_implementation) in ATTENTIONS
        and ALL_ATTENTION_FUNCTIONS.get_interface(attention, eager_attention_forward) is ATTENTIONS[attention][0]
        and ALL_MASK_ATTENTION_FUNCTIONS[attention] is ATTENTIONS[attention][1]
        and all(
            type(layer) is classes[-1] and _is_known_layer(layer, i, is_cross, attention)
            for i, layer in enumerate(stack.layers)
        )
        and not any(module.training for module in modules if type(module) not in SAME_IN_TRAINING)
        and are_unmodified(modules)
        and are_dense(modules, torch.device("cpu"), lm_head.weight.dtype)
        and stack.embed_tokens.max_norm is None
        and getattr(stack.embed_positions, "max_norm", None) is None
        and {len(lm_head.weight), len(stack.embed_tokens.weight), stack.embed_tokens.num_embeddings} == {vocab_size}
        and _is_dynamic(cache)
        and _is_torch_unpatched()
    )


def _has_children(module: nn.Module, children: Mapping[str, Collection[type]]) -> bool:
    return module._modules.keys() == children.keys() and all(
        type(module._modules[name]) in classes for name, classes in children.items()
    )


def _is_known_layer(layer: ResidualLayer, index: int, is_cross: bool, attention: str) -> bool:
    return (
        _has_children(layer, CROSS_LAYER if is_cross else LAYER)
        and _is_known_attention(layer.self_attn, index, attention)
        and (not is_cross or _is_known_attention(layer.cross_attn, index, attention))
        and _has_children(layer.feed_forward, FEED_FORWARD)
        and not (layer.feed_forward.activation._parameters or layer.feed_forward.activation._modules)
    )


def _is_known_attention(module: MultiHeadAttention, layer_idx: int, implementation: str) -> bool:
    if not _has_children(module, ATTENTION):
        return False
    projections = (module.q_proj, module.k_proj, module.v_proj)  # the decoder joins them into one product
    return (
        module.config._attn_implementation == implementation
        and module.layer_idx == layer_idx
        and module.num_key_value_groups == 1
        and module.head_dim == module.v_head_dim
        and len({projection.weight.shape for projection in projections}) == 1
        and len({projection.bias is None for projection in projections}) == 1
    )


def _is_torch_unpatched() -> bool:
    """Whether torch's functions are unpatched, and no mode of the user (TorchFunctionMode) intercepts them."""
    return (
        all(getattr(file, name) is function for file, name, function in TORCH_ORIGINALS)
        and not torch._C._len_torch_dispatch_stack()
        and all(type(mode) is DeviceContext for mode in _get_current_function_mode_stack())
    )


def _is_dynamic(cache: Cache | None) -> bool:
    parts = [cache]
    if type(cache) is EncoderDecoderCache:
        parts = [cache.self_attention_cache, cache.cross_attention_cache]
    return all(
        type(part) is DynamicCache and all(type(layer) is DynamicLayer for layer in part.layers) for part in parts
    ) and all(is_original(cls) for cls in (EncoderDecoderCache, DynamicCache, DynamicLayer))
