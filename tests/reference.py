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


def sublayers(x, state, name, steps, norm_first, eps):
    """A layer: its steps by name, each with a residual connection and a LayerNorm."""
    for part, run in steps:
        norm = f"{name}.{part}_norm"
        if norm_first:
            x = x + run(layer_norm(x, state, norm, eps), f"{name}.{part}")
        else:
            x = layer_norm(x + run(x, f"{name}.{part}"), state, norm, eps)
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
    config, eps = model.config, model.config.layer_norm_eps
    state = {name: tensor.double() for name, tensor in model.state_dict().items()}
    length = ids.shape[1]
    if config.position_embedding_type == "learned":
        positions = state["model.embed_positions.weight"][:length]
    else:
        positions = sinusoids(length, config.hidden_size)
    x = state["model.embed_tokens.weight"][ids] + positions
    if config.embedding_layernorm:
        x = layer_norm(x, state, "model.embed_norm", eps)
    allowed = torch.ones(1, length, length, dtype=torch.bool)
    if config.is_causal:
        allowed = allowed.tril()
    steps = [
        ("self_attn", lambda h, name: attention(h, h, state, name, config.num_attention_heads, allowed)),
        ("feed_forward", lambda h, name: feed_forward(h, state, name, ACTIVATIONS[config.hidden_act])),
    ]
    for i in range(config.num_hidden_layers):
        x = sublayers(x, state, f"model.layers.{i}", steps, config.norm_first, eps)
    if config.final_layernorm:
        x = layer_norm(x, state, "model.norm", eps)
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

    def attend_to(keys, stack, allowed):
        """Attention to `keys`; None: to what it is given."""
        heads = getattr(config, f"{stack}_attention_heads")
        return lambda h, name: attention(h, h if keys is None else keys, state, name, heads, allowed)

    def run(x, stack, steps):
        steps = [
            *steps,
            ("feed_forward", lambda h, n: feed_forward(h, state, n, ACTIVATIONS[config.activation_function])),
        ]
        for i in range(getattr(config, f"{stack}_layers")):
            x = sublayers(x, state, f"model.{stack}.layers.{i}", steps, config.norm_first, eps)
        return layer_norm(x, state, f"model.{stack}.norm", eps) if config.norm_first else x

    see_source = source_mask.bool()[:, None, :]
    see_past = torch.ones(1, target.shape[1], target.shape[1], dtype=torch.bool).tril()
    memory = run(
        embed(source, "encoder", source_mask), "encoder", [("self_attn", attend_to(None, "encoder", see_source))]
    )
    steps = [
        ("self_attn", attend_to(None, "decoder", see_past)),
        ("cross_attn", attend_to(memory, "decoder", see_source)),
    ]
    return linear(run(embed(target, "decoder", torch.ones_like(target)), "decoder", steps), state, "lm_head")
