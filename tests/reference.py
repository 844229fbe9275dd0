# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""A second implementation of both models, written from the paper's equations: loops over heads, in float64."""

import math

import torch

ACTIVATIONS = {
    "gelu": lambda x: x * (1 + torch.erf(x / math.sqrt(2))) / 2,
    "relu": lambda x: x * (x > 0),
    "silu": lambda x: x / (1 + torch.exp(-x)),
}


def layer_norm(x, state, name, eps):
    mean = x.mean(-1, keepdim=True)
    variance = ((x - mean) ** 2).mean(-1, keepdim=True)
    return (x - mean) / (variance + eps).sqrt() * state[f"{name}.weight"] + state[f"{name}.bias"]


def linear(x, state, name):
    return x @ state[f"{name}.weight"].T + state.get(f"{name}.bias", 0.0)


def attention(x, memory, state, name, heads, allowed):
    """`allowed` (batch, queries, keys) is True where a query may look at a key."""
    query, key, value = (linear(s, state, f"{name}.{p}_proj") for s, p in ((x, "q"), (memory, "k"), (memory, "v")))
    contexts = []
    for q, k, v in zip(*(t.chunk(heads, dim=-1) for t in (query, key, value)), strict=True):
        scores = q @ k.transpose(1, 2) / math.sqrt(q.shape[-1])
        scores = scores.masked_fill(~allowed, -math.inf)
        exp = (scores - scores.amax(-1, keepdim=True)).exp()
        contexts.append(exp / exp.sum(-1, keepdim=True) @ v)
    return linear(torch.cat(contexts, -1), state, f"{name}.o_proj")


def feed_forward(x, state, name, activation):
    return linear(activation(linear(x, state, f"{name}.fc1")), state, f"{name}.fc2")


def run_layer(x, state, name, config, sublayers):
    """A layer's sub-layers, {its name: a function of x and its full name}, each with its residual and LayerNorm."""
    for part, run in sublayers.items():
        part = f"{name}.{part}"
        if config.norm_first:
            x = x + run(layer_norm(x, state, f"{part}_norm", config.layer_norm_eps), part)
        else:
            x = layer_norm(x + run(x, part), state, f"{part}_norm", config.layer_norm_eps)
    return x


def sinusoids(length, width):
    table = torch.zeros(length, width, dtype=torch.float64)
    for position in range(length):
        for column in range(width):
            angle = position / 10000 ** (2 * (column // 2) / width)
            table[position, column] = math.sin(angle) if column % 2 == 0 else math.cos(angle)
    return table


def gpt(model, ids):
    """Logits (batch, length, vocabulary) of a ScratchGPTForCausalLM."""
    config = model.config
    state = {name: tensor.double() for name, tensor in model.state_dict().items()}
    length = ids.shape[1]
    if config.position_embedding_type == "learned":
        positions = state["model.embed_positions.weight"][:length]
    else:
        positions = sinusoids(length, config.hidden_size)
    x = state["model.embed_tokens.weight"][ids] + positions
    if config.embedding_layernorm:
        x = layer_norm(x, state, "model.embed_norm", config.layer_norm_eps)
    allowed = torch.ones(1, length, length, dtype=torch.bool)
    if config.is_causal:
        allowed = allowed.tril()
    sublayers = {
        "self_attn": lambda h, name: attention(h, h, state, name, config.num_attention_heads, allowed),
        "feed_forward": lambda h, name: feed_forward(h, state, name, ACTIVATIONS[config.hidden_act]),
    }
    for i in range(config.num_hidden_layers):
        x = run_layer(x, state, f"model.layers.{i}", config, sublayers)
    if config.final_layernorm:
        x = layer_norm(x, state, "model.norm", config.layer_norm_eps)
    return linear(x, state, "lm_head")


def transformer(model, source, source_mask, target):
    """Logits (batch, target length, vocabulary) of a ScratchTransformerForConditionalGeneration."""
    config, eps = model.config, model.config.layer_norm_eps
    state = {name: tensor.double() for name, tensor in model.state_dict().items()}
    scale = math.sqrt(config.d_model) if config.scale_embedding else 1.0

    def embed(ids, stack, mask):
        if config.position_embedding_type == "learned":
            table = state[f"model.{stack}.embed_positions.weight"]
        else:
            table = sinusoids(ids.shape[1], config.d_model)
        positions = (mask.cumsum(1) - 1).clamp(min=0)  # padding is not counted
        return state[f"model.{stack}.embed_tokens.weight"][ids] * scale + table[positions]

    def self_attention(heads, allowed):
        return lambda h, name: attention(h, h, state, name, heads, allowed)

    def mlp(h, name):
        return feed_forward(h, state, name, ACTIVATIONS[config.activation_function])

    see_source = source_mask.bool()[:, None, :]
    see_past = torch.ones(1, target.shape[1], target.shape[1], dtype=torch.bool).tril()
    memory = embed(source, "encoder", source_mask)
    sublayers = {"self_attn": self_attention(config.encoder_attention_heads, see_source), "feed_forward": mlp}
    for i in range(config.encoder_layers):
        memory = run_layer(memory, state, f"model.encoder.layers.{i}", config, sublayers)
    if config.norm_first:
        memory = layer_norm(memory, state, "model.encoder.norm", eps)
    heads = config.decoder_attention_heads
    sublayers = {
        "self_attn": self_attention(heads, see_past),
        "cross_attn": lambda h, name: attention(h, memory, state, name, heads, see_source),
        "feed_forward": mlp,
    }
    x = embed(target, "decoder", torch.ones_like(target))
    for i in range(config.decoder_layers):
        x = run_layer(x, state, f"model.decoder.layers.{i}", config, sublayers)
    if config.norm_first:
        x = layer_norm(x, state, "model.decoder.norm", eps)
    return linear(x, state, "lm_head")
