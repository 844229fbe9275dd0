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


def residual(x, sublayer, state, norm, norm_first, eps):
    if norm_first:
        return x + sublayer(layer_norm(x, state, norm, eps))
    return layer_norm(x + sublayer(x), state, norm, eps)


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
    for i in range(config.num_hidden_layers):
        name = f"model.layers.{i}"
        x = residual(
            x,
            lambda h: attention(h, h, state, f"{name}.self_attn", config.num_attention_heads, allowed),  # noqa: B023
            state,
            f"{name}.self_attn_norm",
            config.norm_first,
            config.layer_norm_eps,
        )
        x = residual(
            x,
            lambda h: feed_forward(h, state, f"{name}.feed_forward", ACTIVATIONS[config.hidden_act]),  # noqa: B023
            state,
            f"{name}.feed_forward_norm",
            config.norm_first,
            config.layer_norm_eps,
        )
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

    def sublayers(x, name, heads, steps):
        for part, run in steps:
            x = residual(
                x,
                lambda h, run=run, part=part: run(h, f"{name}.{part}", heads),
                state,
                f"{name}.{part}_norm",
                config.norm_first,
                eps,
            )
        return x

    def mlp(h, name, heads):
        return feed_forward(h, state, name, ACTIVATIONS[config.activation_function])

    see_source = source_mask.bool()[:, None, :]
    see_past = torch.ones(1, target.shape[1], target.shape[1], dtype=torch.bool).tril()
    memory = embed(source, "encoder", source_mask)
    for i in range(config.encoder_layers):
        memory = sublayers(
            memory,
            f"model.encoder.layers.{i}",
            config.encoder_attention_heads,
            [("self_attn", lambda h, n, k: attention(h, h, state, n, k, see_source)), ("feed_forward", mlp)],
        )
    if config.norm_first:
        memory = layer_norm(memory, state, "model.encoder.norm", eps)
    x = embed(target, "decoder", torch.ones_like(target))
    for i in range(config.decoder_layers):
        x = sublayers(
            x,
            f"model.decoder.layers.{i}",
            config.decoder_attention_heads,
            [
                ("self_attn", lambda h, n, k: attention(h, h, state, n, k, see_past)),
                ("cross_attn", lambda h, n, k: attention(h, memory, state, n, k, see_source)),
                ("feed_forward", mlp),
            ],
        )
    if config.norm_first:
        x = layer_norm(x, state, "model.decoder.norm", eps)
    return linear(x, state, "lm_head")
