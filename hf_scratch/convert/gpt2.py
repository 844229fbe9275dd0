# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Convert GPT-2 to a ScratchGPT and back. Both directions preserve the outputs."""

from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from ..models.configuration_scratch_gpt import ScratchGPTConfig
from ..models.modeling_scratch_gpt import ScratchGPTForCausalLM
from .shared import build, is_tied, require_fields, require_head, with_all_biases

# our field: GPT-2's field. Activations have the same names in both, from transformers' ACT2FN.
CONFIG = {
    "vocab_size": "vocab_size",
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "intermediate_size": "n_inner",
    "max_position_embeddings": "n_positions",
    "hidden_act": "activation_function",
    "layer_norm_eps": "layer_norm_epsilon",
    "embedding_dropout": "embd_pdrop",
    "hidden_dropout": "resid_pdrop",
    "attention_dropout": "attn_pdrop",
    "initializer_range": "initializer_range",
    "use_cache": "use_cache",
    "pad_token_id": "pad_token_id",
    "bos_token_id": "bos_token_id",
    "eos_token_id": "eos_token_id",
}
OUTSIDE_THE_BLOCKS = {
    "model.embed_tokens.weight": "transformer.wte.weight",
    "model.embed_positions.weight": "transformer.wpe.weight",
    "model.norm.weight": "transformer.ln_f.weight",
    "model.norm.bias": "transformer.ln_f.bias",
    "lm_head.weight": "lm_head.weight",
}
BLOCK = {
    "self_attn_norm": "ln_1",
    "self_attn.o_proj": "attn.c_proj",
    "feed_forward_norm": "ln_2",
    "feed_forward.fc1": "mlp.c_fc",
    "feed_forward.fc2": "mlp.c_proj",
}


def from_gpt2(model: GPT2LMHeadModel) -> ScratchGPTForCausalLM:
    """Convert a GPT-2 to a ScratchGPT with the same logits.

    `scale_attn_weights` and `scale_attn_by_inverse_layer_idx` are folded into the query projections.
    `reorder_and_upcast_attn` only changes the rounding and is dropped. Without `position_ids`, GPT-2's `forward`
    counts the padding on the left of a row among its positions, and ScratchGPT's does not, as `generate()` of both.
    The config's special token ids outside the vocabulary become None.

    Args:
        model: a GPT-2 with its head. It is not modified.

    Raises:
        ValueError: another type of model, or cross-attention.
    """
    require_head(model, GPT2LMHeadModel)
    gpt2 = model.config
    require_fields(gpt2, {"add_cross_attention": (False, "a ScratchGPT has no cross-attention")})
    values = {ours: getattr(gpt2, theirs) for ours, theirs in CONFIG.items()}  # both take None for 4 * n_embd
    vocabulary = range(gpt2.vocab_size)
    for name in ("pad_token_id", "bos_token_id", "eos_token_id"):  # GPT2Config's defaults may be outside of it
        if isinstance(ids := values[name], list):
            values[name] = [token_id for token_id in ids if token_id in vocabulary] or None
        elif ids not in vocabulary:
            values[name] = None
    config = ScratchGPTConfig(**values, tie_word_embeddings=is_tied(model))

    weights, state = model.state_dict(), {}
    for ours, theirs in OUTSIDE_THE_BLOCKS.items():
        state[ours] = weights.pop(theirs)
    blocks: Any = model.transformer.h  # a ModuleList does not say what it holds
    for i in range(config.num_hidden_layers):
        # exactly 1 for the published GPT-2s, so their weights stay bit-identical
        scale = blocks[i].attn.scaling / config.head_dim**-0.5
        for kind in ("weight", "bias"):
            for ours, theirs in BLOCK.items():
                state[f"model.layers.{i}.{ours}.{kind}"] = weights.pop(f"transformer.h.{i}.{theirs}.{kind}").t()
            q, k, v = weights.pop(f"transformer.h.{i}.attn.c_attn.{kind}").t().chunk(3)
            for name, tensor in (("q_proj", q * scale), ("k_proj", k), ("v_proj", v)):
                state[f"model.layers.{i}.self_attn.{name}.{kind}"] = tensor
    return build(ScratchGPTForCausalLM, config, state, weights, model)


def to_gpt2(model: ScratchGPTForCausalLM) -> GPT2LMHeadModel:
    """Convert a ScratchGPT to a GPT-2 with the same logits.

    Missing attention biases become zeros, and sinusoids become the rows of `wpe`. The function is the same, but
    training the GPT-2 trains them too.

    Args:
        model: a ScratchGPT with its head. It is not modified.

    Raises:
        ValueError: another type of model, a configuration field that GPT-2 cannot express, or weights that GPT-2 has
            no place for. The message names the field or the weights.
    """
    require_head(model, ScratchGPTForCausalLM)
    ours = model.config
    require_fields(
        ours,
        {
            "norm_first": (True, "GPT-2 is pre-norm"),
            "is_causal": (True, "GPT-2 is causal"),
            "embedding_layernorm": (False, "GPT-2 has no LayerNorm on its embeddings"),
            "final_layernorm": (True, "GPT-2 has a LayerNorm after its last block"),
            "lm_head_bias": (False, "GPT-2's head has no bias"),
            "head_dim": (ours.hidden_size / ours.num_attention_heads, "GPT-2's heads divide its width evenly"),
        },
    )
    values = {theirs: getattr(ours, name) for name, theirs in CONFIG.items()}
    config = GPT2Config(**values, tie_word_embeddings=is_tied(model))

    weights, state = with_all_biases(model), {}
    # a state dict does not hold the sinusoids
    weights["model.embed_positions.weight"] = model.model.embed_positions.weight
    for name, theirs in OUTSIDE_THE_BLOCKS.items():
        state[theirs] = weights.pop(name)
    for i in range(ours.num_hidden_layers):
        for kind in ("weight", "bias"):
            for name, theirs in BLOCK.items():
                state[f"transformer.h.{i}.{theirs}.{kind}"] = weights.pop(f"model.layers.{i}.{name}.{kind}").t()
            qkv = [weights.pop(f"model.layers.{i}.self_attn.{name}_proj.{kind}") for name in "qkv"]
            state[f"transformer.h.{i}.attn.c_attn.{kind}"] = torch.cat(qkv).t()
    return build(GPT2LMHeadModel, config, state, weights, model)
