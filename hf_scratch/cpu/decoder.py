# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""The decoder that `generate()` runs on a CPU after the prompt, one token at a time.

`IncrementalDecoder` computes the same as the models' `forward`, with less work. One product gives queries, keys and
values. Keys and values are written into buffers that are never copied. The beams of a sentence share one copy of its
prompt and of its source.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import nn
from transformers.cache_utils import Cache, EncoderDecoderCache

from ..models.scratch_base import ScratchPreTrainedModel
from ..models.scratch_layers import MultiHeadAttention, ResidualLayer, cached_states, eager_attention_forward


class IncrementalDecoder:
    """A model's decoder after a prompt, which continues with `num_beams` beams in `num_beams / width` rows.

    The `width` beams of a row share the prompt and all tokens; a mask selects each one's ancestors. With a width of 1,
    each beam has a row of its own, as in transformers' loop. See `beams_per_row`.

    Args:
        model: a model with a head, for which `can_decode` is true.
        cache: the cache that the model's `forward` filled with the prompt, (rows, heads, length, head_dim).
        position: the position of the next token, (rows,).
        prompt_mask: (rows, prompt length), 0 on padding.
        source_mask: (rows, source length), 0 on padding; None without an encoder.
        num_beams: beams per prompt.
        width: beams per row, 1 or `num_beams`.
        max_new_tokens: the largest number of calls of `step`.
    """

    def __init__(
        self,
        model: ScratchPreTrainedModel,
        cache: Cache,
        position: torch.Tensor,
        prompt_mask: torch.Tensor,
        source_mask: torch.Tensor | None,
        num_beams: int,
        width: int,
        max_new_tokens: int,
    ):
        self.config, self.is_encoder_decoder = model.config, model.config.is_encoder_decoder
        self.stack = model.model.decoder if self.is_encoder_decoder else model.model
        rows = width * len(position)
        self.num_beams, self.width, self.position = num_beams, width, position
        self.length = prompt_mask.shape[1]  # slots in use: the prompt's, then one per shared beam and step
        slots = self.length + self.width * max_new_tokens
        is_eager = uses_eager = self.stack.config._attn_implementation == "eager"
        if width > 1 and model.lm_head.weight.dtype == torch.float32:  # less time than torch's own attention takes
            is_eager = is_eager or source_mask is None or bool(source_mask.any(-1).all())
        prompt, source = cache, None
        if isinstance(cache, EncoderDecoderCache):
            prompt, source = cache.self_attention_cache, cache.cross_attention_cache
        self.layers = []
        for i, layer in enumerate(self.stack.layers):
            cross = () if source is None else cached_states(source, i)
            self.layers.append(_Layer(layer, *cached_states(prompt, i), cross, slots, rows, is_eager))
        self.norm, self.lm_head = _norm(self.stack.norm), _product(rows, model.lm_head)
        # masks are added to the scores, (batch, 1, width or 1, slots or source length): 0 where a beam may attend,
        # elsewhere what the attention function sets there. It decides what a query without any key gets.
        empty = model.lm_head.weight.new_empty(0)
        never = torch.finfo(empty.dtype).min if uses_eager else -torch.inf
        self.never = empty.new_full((), never)
        self.mask = self.source_mask = None
        if self.width > 1 or not prompt_mask.all():
            self.mask = empty.new_full((len(prompt_mask), 1, self.width, slots), never)
            self.mask[..., : self.length].masked_fill_(prompt_mask.bool()[:, None, None], 0.0)
            if self.width == 1:
                self.mask[..., self.length :] = 0.0
        if source_mask is not None and not source_mask.all():
            self.source_mask = empty.new_zeros(source_mask.shape).masked_fill_(source_mask == 0, never)
            self.source_mask = self.source_mask[:, None, None]

    @torch.inference_mode()
    def step(self, tokens: torch.Tensor) -> torch.Tensor:
        """Read one token per beam (batch, num_beams); return the next logits (batch, num_beams, vocabulary)."""
        if self.mask is not None and self.width > 1:  # each token attends to its ancestors and to itself
            self.mask[:, 0, :, self.length : self.length + self.width].diagonal(dim1=1, dim2=2).zero_()
        logits = self._read(tokens.view(-1, self.width), self.position[:, None])
        self.position = self.position + 1
        return logits.view(*tokens.shape, -1)

    def _read(self, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        stack = self.stack
        self.length += self.width
        x = stack.embed_tokens(tokens) + stack.embed_positions(positions)
        x = (x if self.is_encoder_decoder else stack.embed_norm(x)).flatten(0, 1)
        for layer in self.layers:
            for sublayer, norm in layer.sublayers:
                x = x + sublayer(norm(x), self) if layer.norm_first else norm(x + sublayer(x, self))
        return self.lm_head(self.norm(x))

    def reorder_beams(self, parents: torch.Tensor) -> None:
        """Give each beam the ancestors of the beam `parents` (batch, num_beams), an index within the row."""
        if self.width < self.num_beams:
            rows = parents + torch.arange(len(parents))[:, None] * self.num_beams
            for layer in self.layers:
                layer.reorder(rows.flatten(), self.length)
        elif self.mask is not None and self.width > 1:
            used = self.mask[..., : self.length]
            used.copy_(used.gather(2, parents[:, None, :, None].expand_as(used)))

    def keep_rows(self, rows: torch.Tensor) -> None:
        """Drop all prompts of the batch except those with the indices `rows`."""
        copies = self.num_beams // self.width
        rows = (rows[:, None] * copies + torch.arange(copies)).flatten()
        self.position = self.position[rows]
        self.mask = None if self.mask is None else self.mask[rows]
        self.source_mask = None if self.source_mask is None else self.source_mask[rows]
        for layer in self.layers:
            layer.source = tuple(states[rows] for states in layer.source)
            layer.reorder(rows, self.length)


def beams_per_row(dtype: torch.dtype, num_beams: int) -> int:
    """How many beams share a row: all, or one in bfloat16 and float16, where the order of a sum changes tokens."""
    return num_beams if dtype in (torch.float32, torch.float64) else 1


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
        rows: int,
        is_eager: bool,
    ):
        self.norm_first, self.heads = layer.norm_first, keys.shape[1]
        attention, feed_forward = layer.self_attn, layer.feed_forward
        self.attention = _attention(attention, is_eager)
        self.qkv = _product(rows, attention.q_proj, attention.k_proj, attention.v_proj)
        self.output = _product(rows, attention.o_proj)
        self.fc1, self.fc2 = _product(rows, feed_forward.fc1), _product(rows, feed_forward.fc2)
        self.activation = feed_forward.activation.forward
        self.sublayers = [
            (self.attend, _norm(layer.self_attn_norm)),
            (self.feed_forward, _norm(layer.feed_forward_norm)),
        ]
        self.source = source
        if source:
            self.cross_attention = _attention(layer.cross_attn, is_eager)
            self.cross_query = _product(rows, layer.cross_attn.q_proj)
            self.cross_output = _product(rows, layer.cross_attn.o_proj)
            self.sublayers.insert(1, (self.attend_to_source, _norm(layer.cross_attn_norm)))
        self.memory = _buffer(torch.stack((keys, values)), keys.shape[2], slots)

    def attend(self, x: torch.Tensor, decoder: IncrementalDecoder) -> torch.Tensor:
        states = self.qkv(x).view(-1, decoder.width, 3, self.heads, self.memory.shape[-1]).permute(2, 0, 3, 1, 4)
        self.memory.narrow(3, decoder.length - decoder.width, decoder.width).copy_(states[1:])
        keys, values = self.memory.narrow(3, 0, decoder.length).unbind()
        mask = None if decoder.mask is None else decoder.mask[..., : decoder.length]
        context = self.attention(states[0], keys, values, mask)
        return self.output(context.reshape(len(x), -1))

    def attend_to_source(self, x: torch.Tensor, decoder: IncrementalDecoder) -> torch.Tensor:
        keys, values = self.source
        query = self.cross_query(x).view(-1, decoder.width, keys.shape[1], keys.shape[3]).transpose(1, 2)
        context = self.cross_attention(query, keys, values, decoder.source_mask)
        return self.cross_output(context.reshape(len(x), -1))

    def feed_forward(self, x: torch.Tensor, decoder: IncrementalDecoder) -> torch.Tensor:
        return self.fc2(self.activation(self.fc1(x)))

    def reorder(self, rows: torch.Tensor, length: int) -> None:
        self.memory = _buffer(self.memory[:, rows, :, :length], length, self.memory.shape[3])


def _product(rows: int, *linears: nn.Linear) -> Callable[[torch.Tensor], torch.Tensor]:
    """`nn.functional.linear` by the joined weights. In float32, MKL reads them faster transposed for a single row."""
    weight, bias = linears[0].weight, linears[0].bias
    if len(linears) > 1:
        weight = torch.cat([linear.weight for linear in linears])
        bias = None if bias is None else torch.cat([linear.bias for linear in linears])
    if rows > 1 or weight.dtype != torch.float32:
        return partial(nn.functional.linear, weight=weight, bias=bias)
    transposed = weight.t().contiguous()
    return partial(torch.mm, mat2=transposed) if bias is None else partial(torch.addmm, bias, mat2=transposed)


def _attention(module: MultiHeadAttention, is_eager: bool):
    """Its attention function: the context (batch, beams, heads, head_dim) of queries, keys, values and a mask."""
    scaling = module.scaling
    if is_eager:
        return lambda *inputs: eager_attention_forward(module, *inputs, scaling)[0]
    return lambda *inputs: nn.functional.scaled_dot_product_attention(*inputs, scale=scaling).transpose(1, 2)


def _norm(norm: nn.LayerNorm | nn.Identity):
    if isinstance(norm, nn.Identity):
        return norm
    shape, weight, bias, eps = norm.normalized_shape, norm.weight, norm.bias, norm.eps
    return lambda x: torch.layer_norm(x, shape, weight, bias, eps)


def _buffer(states: torch.Tensor, length: int, slots: int) -> torch.Tensor:
    buffer = states.new_empty(*states.shape[:3], slots, states.shape[4])
    buffer[:, :, :, :length] = states
    return buffer
