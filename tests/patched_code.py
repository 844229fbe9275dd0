# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Ways in which a user changes code or modes of the whole process, for test_eligibility.py.

Each is a generator: it makes the change, after which other tokens follow, and undoes it when it goes on.
"""

import torch
from torch import nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from hf_scratch.models import layers


def global_hook(model):
    handle = nn.modules.module.register_module_forward_hook(
        lambda module, inputs, output: output * 1.5 if isinstance(module, nn.LayerNorm) else None
    )
    yield
    handle.remove()


def global_hook_before(model):
    handle = nn.modules.module.register_module_forward_pre_hook(
        lambda module, inputs: (inputs[0] * 1.5,) if type(module) is layers.FeedForward else None
    )
    yield
    handle.remove()


def registered_attention(model):
    def averaging(module, query, key, value, attention_mask, **kwargs):
        return value.mean(dim=2, keepdim=True).expand(-1, -1, query.shape[2], -1).transpose(1, 2), None

    AttentionInterface.register("sdpa", averaging)
    yield
    AttentionInterface.register("sdpa", sdpa_attention_forward)


def registered_mask(model):
    def last_two(*args, **kwargs):  # each token sees only the last two keys
        kwargs["allow_is_causal_skip"] = kwargs["allow_is_bidirectional_skip"] = False
        mask = sdpa_mask(*args, **kwargs)
        return mask & (torch.arange(mask.shape[-1]) >= mask.shape[-1] - 2)

    AttentionMaskInterface.register("sdpa", last_two)
    yield
    AttentionMaskInterface.register("sdpa", sdpa_mask)


def autocast(model):
    with torch.autocast("cpu", torch.bfloat16):
        yield


PATCHES = [global_hook, global_hook_before, registered_attention, registered_mask, autocast]
