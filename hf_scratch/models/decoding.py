# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""The decoder that `generate()` runs on a CPU after the prompt, one token at a time.

`IncrementalDecoder` computes the same as the models' `forward`, with less work. One product gives queries, keys and
values. Keys and values are written into buffers that are never copied. The beams of a sentence share one copy of its
prompt and of its source.
"""

from functools import partial

import torch
from torch import nn
from transformers.cache_utils import Cache, EncoderDecoderCache

from .base import ScratchPreTrainedModel
from .layers import ResidualLayer, cached_states


class IncrementalDecoder:
    """A model's decoder after a prompt; each row of the prompt continues with `num_beams` beams.

    Args:
        model: a model with a head, for which `can_decode_incrementally` is true.
        past_key_values: the cache that the model's `forward` filled with the prompt, (batch, heads, length, head_dim).
        position: the position of the next token, (batch,).
        prompt_mask: (batch, prompt length), 0 on padding.
        source_mask: (batch, source length), 0 on padding; None without an encoder.
        num_beams: beams per row.
        max_new_tokens: the largest number of calls of `step`.
    """

    def __init__(
        self,
        model: ScratchPreTrainedModel,
        past_key_values: Cache,
        position: torch.Tensor,
        prompt_mask: torch.Tensor,
        source_mask: torch.Tensor | None,
        num_beams: int,
        max_new_tokens: int,
    ):
        self.is_encoder_decoder = model.config.is_encoder_decoder
        self.stack = model.model.decoder if self.is_encoder_decoder else model.model
        self.norm, self.lm_head = _norm(self.stack.norm), _linear(model.lm_head)
        self.num_beams, self.position = num_beams, position
        self.length = prompt_mask.shape[1]  # slots in use: those of the prompt, then one per beam and step
        slots = self.length + num_beams * max_new_tokens
        prompt, source = past_key_values, None
        if isinstance(past_key_values, EncoderDecoderCache):
            prompt, source = past_key_values.self_attention_cache, past_key_values.cross_attention_cache
        self.layers = []
        for i, layer in enumerate(self.stack.layers):
            cross = () if source is None else cached_states(source, i)
            self.layers.append(_Layer(layer, *cached_states(prompt, i), cross, slots))
        # masks are added to the scores, (batch, 1, num_beams or 1, slots or source length): 0 where a beam may attend,
        # else -inf. A query without any key then gets zeros, as with the boolean masks of the model's `forward`.
        empty = model.lm_head.weight.new_empty(0)
        self.mask = self.source_mask = None
        if num_beams > 1 or not prompt_mask.all():
            self.mask = empty.new_full((len(prompt_mask), 1, num_beams, slots), -torch.inf)
            self.mask[..., : self.length].masked_fill_(prompt_mask.bool()[:, None, None], 0.0)
        if source_mask is not None and not source_mask.all():
            self.source_mask = empty.new_zeros(source_mask.shape).masked_fill_(source_mask == 0, -torch.inf)
            self.source_mask = self.source_mask[:, None, None]

    @torch.inference_mode()
    def step(self, tokens: torch.Tensor) -> torch.Tensor:
        """Read one token per beam (batch, num_beams); return the next logits (batch, num_beams, vocabulary)."""
        stack = self.stack
        if self.mask is not None:  # each token attends to its ancestors and to itself
            self.mask[:, 0, :, self.length : self.length + self.num_beams].diagonal(dim1=1, dim2=2).zero_()
        self.length += self.num_beams
        position = nn.functional.embedding(self.position, stack.embed_positions.weight)[:, None]
        x = nn.functional.embedding(tokens, stack.embed_tokens.weight)
        x = x * stack.embed_scale + position if self.is_encoder_decoder else stack.embed_norm(x + position)
        self.position = self.position + 1
        x = x.flatten(0, 1)
        for layer in self.layers:
            for sublayer, norm in layer.sublayers:
                x = x + sublayer(norm(x), self) if layer.norm_first else norm(x + sublayer(x, self))
        return self.lm_head(self.norm(x)).view(*tokens.shape, -1)

    def branch(self, parents: torch.Tensor) -> None:
        """Give each beam the ancestors of the beam `parents` (batch, num_beams), an index within the row."""
        if self.mask is not None:  # None only with one beam
            used = self.mask[..., : self.length]
            used.copy_(used.gather(2, parents[:, None, :, None].expand_as(used)))

    def keep(self, rows: torch.Tensor) -> None:
        """Drop all rows of the batch except those with the indices `rows`."""
        self.position = self.position[rows]
        self.mask = None if self.mask is None else self.mask[rows]
        self.source_mask = None if self.source_mask is None else self.source_mask[rows]
        for layer in self.layers:
            layer.keep(rows, self.length)


class _Layer:
    """A decoder layer's weights, and its buffer of keys and values (2, batch, heads, slots, head_dim).

    `source` is the source's keys and values (batch, heads, source length, head_dim), and empty without an encoder.
    """

    def __init__(
        self,
        layer: ResidualLayer,
        keys: torch.Tensor,
        values: torch.Tensor,
        source: tuple[torch.Tensor, ...],
        slots: int,
    ):
        self_attn, self.norm_first = layer.self_attn, layer.norm_first
        self.scale, self.heads = self_attn.scaling, keys.shape[1]
        self.qkv = _linear(self_attn.q_proj, self_attn.k_proj, self_attn.v_proj)
        self.output = _linear(self_attn.o_proj)
        self.fc1, self.activation = _linear(layer.feed_forward.fc1), layer.feed_forward.activation.forward
        self.fc2 = _linear(layer.feed_forward.fc2)
        self.sublayers = [
            (self.attend, _norm(layer.self_attn_norm)),
            (self.feed_forward, _norm(layer.feed_forward_norm)),
        ]
        self.source = source
        if source:
            self.cross_scale = layer.cross_attn.scaling
            self.cross_query, self.cross_output = _linear(layer.cross_attn.q_proj), _linear(layer.cross_attn.o_proj)
            self.sublayers.insert(1, (self.attend_to_source, _norm(layer.cross_attn_norm)))
        self.memory = _buffer(torch.stack((keys, values)), keys.shape[2], slots)

    def attend(self, x: torch.Tensor, decoder: IncrementalDecoder) -> torch.Tensor:
        states = self.qkv(x).view(-1, decoder.num_beams, 3, self.heads, self.memory.shape[-1]).permute(2, 0, 3, 1, 4)
        self.memory.narrow(3, decoder.length - decoder.num_beams, decoder.num_beams).copy_(states[1:])
        keys, values = self.memory.narrow(3, 0, decoder.length).unbind()
        mask = None if decoder.mask is None else decoder.mask[..., : decoder.length]
        context = nn.functional.scaled_dot_product_attention(states[0], keys, values, mask, scale=self.scale)
        return self.output(context.transpose(1, 2).reshape(len(x), -1))

    def attend_to_source(self, x: torch.Tensor, decoder: IncrementalDecoder) -> torch.Tensor:
        keys, values = self.source
        query = self.cross_query(x).view(-1, decoder.num_beams, keys.shape[1], keys.shape[3]).transpose(1, 2)
        context = nn.functional.scaled_dot_product_attention(
            query, keys, values, decoder.source_mask, scale=self.cross_scale
        )
        return self.cross_output(context.transpose(1, 2).reshape(len(x), -1))

    def feed_forward(self, x: torch.Tensor, decoder: IncrementalDecoder) -> torch.Tensor:
        return self.fc2(self.activation(self.fc1(x)))

    def keep(self, rows: torch.Tensor, length: int) -> None:
        self.memory = _buffer(self.memory[:, rows, :, :length], length, self.memory.shape[3])
        self.source = tuple(states[rows] for states in self.source)


def _linear(*layers: nn.Linear):
    weight, bias = layers[0].weight, layers[0].bias
    if len(layers) > 1:
        weight = torch.cat([layer.weight for layer in layers])
        bias = None if bias is None else torch.cat([layer.bias for layer in layers])
    return partial(nn.functional.linear, weight=weight, bias=bias)


def _norm(norm: nn.LayerNorm | nn.Identity):
    if isinstance(norm, nn.Identity):
        return norm
    shape, weight, bias, eps = norm.normalized_shape, norm.weight, norm.bias, norm.eps
    return lambda x: torch.layer_norm(x, shape, weight, bias, eps)


def _buffer(states: torch.Tensor, length: int, slots: int) -> torch.Tensor:
    buffer = states.new_empty(*states.shape[:3], slots, states.shape[4])
    buffer[:, :, :, :length] = states
    return buffer
