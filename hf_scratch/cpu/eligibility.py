# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Whether an IncrementalDecoder computes what a model's own code does.

It looks for what a user has changed on the model: modules, hooks, weights, attention. It does not see a patched class
or a global module hook: then pass `cache_implementation="dynamic"` to `generate()` for transformers' loop.
"""

import torch
from torch import nn
from transformers.activations import ACT2CLS
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer, EncoderDecoderCache
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, eager_mask, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, PreTrainedModel

from ..models import modeling_scratch_gpt as gpt
from ..models import modeling_scratch_transformer as transformer
from ..models import scratch_layers as layers
from ..models.scratch_loss import has_hooks

# attention by each of these is equal but for rounding
ATTENTIONS = {"sdpa": (sdpa_attention_forward, sdpa_mask), "eager": (layers.eager_attention_forward, eager_mask)}
HEADS = {gpt.ScratchGPTForCausalLM, transformer.ScratchTransformerForConditionalGeneration}
ACTIVATIONS = {entry[0] if isinstance(entry, tuple) else entry for entry in ACT2CLS.values()}
KNOWN = HEADS | ACTIVATIONS | {
    gpt.ScratchGPTModel, gpt.ScratchGPTLayer, transformer.ScratchTransformerModel,
    transformer.ScratchTransformerDecoder, transformer.ScratchTransformerDecoderLayer, layers.MultiHeadAttention,
    layers.Dropout, layers.FeedForward, layers.ScaledEmbedding, layers.SinusoidalPositionalEmbedding, nn.Linear,
    nn.LayerNorm, nn.Identity, nn.Embedding, nn.ModuleList,
}  # fmt: skip
METHODS = {"forward", "prepare_inputs_for_generation"}  # PEFT puts its own into an instance


def can_decode(model: PreTrainedModel) -> bool:
    """Whether all modules have known classes, run those classes' code in evaluation mode, and are dense on a CPU."""
    if type(model) not in HEADS:
        return False
    stack = model.model.decoder if model.config.is_encoder_decoder else model.model
    modules = [model, model.model, model.lm_head, *stack.modules()]
    attention, dtype = stack.config._attn_implementation, next(model.parameters()).dtype
    tensors = [x for each in modules for x in (*each.parameters(recurse=False), *each.buffers(recurse=False))]
    return (
        all(type(each) in KNOWN and not has_hooks(each) for each in modules)
        and not any(each.training for each in modules if type(each) is not nn.ModuleList)
        and all(METHODS.isdisjoint(vars(each)) for each in modules)
        and all(type(each) in (nn.Parameter, torch.Tensor) and each.layout == torch.strided for each in tensors)
        and {(each.device.type, each.dtype) for each in tensors} == {("cpu", dtype)}
        and dtype.is_floating_point
        and attention in ATTENTIONS
        and ALL_ATTENTION_FUNCTIONS.get_interface(attention, layers.eager_attention_forward)
        is ATTENTIONS[attention][0]
        and ALL_MASK_ATTENTION_FUNCTIONS[attention] is ATTENTIONS[attention][1]
        and [layer.self_attn.layer_idx for layer in stack.layers] == list(range(len(stack.layers)))
        and all(each.head_dim == each.v_head_dim for each in modules if isinstance(each, layers.MultiHeadAttention))
    )


def is_dynamic(cache: Cache | None) -> bool:
    """Whether the cache is what `generate()` makes by default."""
    parts = [cache]
    if type(cache) is EncoderDecoderCache:
        parts = [cache.self_attention_cache, cache.cross_attention_cache]
    return all(
        type(part) is DynamicCache and all(type(layer) is DynamicLayer for layer in part.layers) for part in parts
    )
