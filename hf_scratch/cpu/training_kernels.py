# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Training on a CPU: dropout and attention with dropout that are faster there than torch's own."""

from collections.abc import Iterator

import torch
from torch import nn
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.utils.import_utils import is_tracing

LEVELS = 2**16  # dropout probabilities are rounded to multiples of 1 / LEVELS


def draw_kept(shape: torch.Size, p: float, generator: torch.Generator | None = None) -> torch.Tensor:
    """The elements that dropout keeps. Each element uses 16 random bits; one 64-bit draw covers four elements."""
    size = shape.numel()
    bits = torch.empty((size + 3) // 4, dtype=torch.int64).random_(-(2**63), None, generator=generator)
    return (bits.view(torch.int16)[:size] >= round(p * LEVELS) - LEVELS // 2).view(shape)


def kept_scale(p: float) -> float:
    """1 / (1 - p), for the rounded p."""
    return LEVELS / (LEVELS - round(p * LEVELS))


class _Dropout(torch.autograd.Function):
    """Saves one byte per element for the gradient, where torch's dropout saves a float."""

    @staticmethod
    def forward(ctx, hidden_states: torch.Tensor, p: float) -> torch.Tensor:
        kept = draw_kept(hidden_states.shape, p)
        ctx.save_for_backward(kept)
        ctx.scale = kept_scale(p)
        return (hidden_states * kept).mul_(ctx.scale)

    @staticmethod  # torch documents one parameter per output, but annotates `*grad_outputs`
    def backward(ctx, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:  # ty: ignore[incompatible-method-override]
        (kept,) = ctx.saved_tensors
        return (gradient * kept).mul_(ctx.scale), None


def dropout(hidden_states: torch.Tensor, p: float) -> torch.Tensor:
    """torch's dropout in training, with `p` rounded to 1 / LEVELS."""
    if round(p * LEVELS) == LEVELS or is_tracing(hidden_states):
        return nn.functional.dropout(hidden_states, p)
    return _Dropout.apply(hidden_states, p)


class DropoutAttention(torch.autograd.Function):
    """Attention with dropout on its weights, block by block, in memory linear in the length.

    As in FlashAttention (Dao et al. 2022), the backward pass computes the weights again. Of the dropout mask, only the
    random seed is saved. It has no second derivative: `create_graph=True` is an error.
    """

    @staticmethod
    def forward(
        ctx,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        scaling: float,
        dropout: float,
        is_causal: bool,
    ) -> torch.Tensor:
        ctx.seed = int(torch.randint(2**62, ()))
        ctx.scaling, ctx.dropout, ctx.is_causal = scaling, dropout, is_causal
        generator = torch.Generator().manual_seed(ctx.seed)
        if attention_mask is not None:
            attention_mask = attention_mask.expand(query.shape[0], -1, query.shape[2], key.shape[2])
        context = query.new_empty(query.shape[0], query.shape[2], query.shape[1], value.shape[3])
        for rows, queries, keys in _blocks(query, key, is_causal):
            weights = _weights(ctx, query[rows, :, queries], key[rows, :, keys], attention_mask, rows, queries, keys)
            weights *= draw_kept(weights.shape, dropout, generator)
            context[rows, queries] = (weights @ value[rows, :, keys]).transpose(1, 2)
        context *= kept_scale(dropout)
        ctx.save_for_backward(query, key, value, attention_mask, context)
        return context

    @staticmethod
    def backward(ctx, context_gradient: torch.Tensor):  # ty: ignore[incompatible-method-override]
        if torch.is_grad_enabled():
            raise RuntimeError('Differentiate attention with dropout twice by `attn_implementation="eager"`.')
        query, key, value, attention_mask, context = ctx.saved_tensors
        generator = torch.Generator().manual_seed(ctx.seed)
        query_gradient, exact = torch.empty_like(query), torch.promote_types(query.dtype, torch.float32)
        key_gradient, value_gradient = torch.zeros_like(key, dtype=exact), torch.zeros_like(value, dtype=exact)
        # the sum over keys of each weight times its gradient, computed from the context: (batch, heads, queries, 1)
        mean_gradient = (context_gradient * context).sum(-1, keepdim=True, dtype=exact).transpose(1, 2)
        context_gradient = context_gradient.transpose(1, 2)
        for rows, queries, keys in _blocks(query, key, ctx.is_causal):
            q, k, v = query[rows, :, queries], key[rows, :, keys], value[rows, :, keys]
            weights = _weights(ctx, q, k, attention_mask, rows, queries, keys)
            kept = draw_kept(weights.shape, ctx.dropout, generator).to(weights.dtype).mul_(kept_scale(ctx.dropout))
            gradient = context_gradient[rows, :, queries]
            value_gradient[rows, :, keys] += (weights * kept).transpose(2, 3) @ gradient
            score_gradient = (gradient @ v.transpose(2, 3)).mul_(kept)
            score_gradient.sub_(mean_gradient[rows, :, queries]).mul_(weights).mul_(ctx.scaling)
            query_gradient[rows, :, queries] = score_gradient @ k
            key_gradient[rows, :, keys] += score_gradient.transpose(2, 3) @ q
        return query_gradient, key_gradient.to(key.dtype), value_gradient.to(value.dtype), None, None, None, None


def _blocks(query: torch.Tensor, key: torch.Tensor, is_causal: bool) -> Iterator[tuple[slice, slice, slice]]:
    """Slices of rows, of queries, and of the keys they may attend to. A block's scores fit in a CPU's cache."""
    batch, heads, length, num_keys = *query.shape[:3], key.shape[2]
    block = min(length, max(2**18 // (heads * num_keys), 32), 128 if is_causal else length)
    num_rows = max(2**18 // (heads * num_keys * block), 1)
    for row in range(0, batch, num_rows):
        for first in range(0, length, block):
            end = min(first + block, length)
            yield slice(row, row + num_rows), slice(first, end), slice(0, end if is_causal else num_keys)


def _weights(ctx, query, key, attention_mask, rows: slice, queries: slice, keys: slice) -> torch.Tensor:
    scores = torch.matmul(query, key.transpose(2, 3)).mul_(ctx.scaling)
    if ctx.is_causal:
        scores[..., queries] += torch.full((scores.shape[2],) * 2, -torch.inf, dtype=scores.dtype).triu(1)
    elif attention_mask is not None:
        mask = attention_mask[rows, :, queries, keys]
        scores = scores.masked_fill_(~mask, -torch.inf) if mask.dtype == torch.bool else scores.add_(mask)
    weights = scores.softmax(-1, dtype=torch.promote_types(scores.dtype, torch.float32))
    if attention_mask is not None:  # as in sdpa, a query without any key gets zeros
        weights.masked_fill_(scores.amax(-1, keepdim=True) == -torch.inf, 0.0)
    return weights.to(query.dtype)


def sdpa_training_forward(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    **kwargs,
) -> tuple[torch.Tensor, None]:
    """The attention function "sdpa" in training on a CPU. Shapes as in `eager_attention_forward`.

    torch's CPU kernel has two gaps. It has no dropout: torch falls back to a path that keeps three copies of all
    scores. And its gradient in half precision is slow for short rows: seven times float32's time for 20 keys, the same
    time for 256.
    """
    is_causal = module.is_causal if kwargs.get("is_causal") is None else kwargs["is_causal"]
    is_causal = is_causal and attention_mask is None and query.shape[2] > 1
    can_drop = round(dropout * LEVELS) < LEVELS and query.numel() and key.numel() and not is_tracing(query)
    if attention_mask is not None and (attention_mask.requires_grad or attention_mask.dim() != 4):
        can_drop = False
    if dropout and can_drop:
        return DropoutAttention.apply(query, key, value, attention_mask, scaling, dropout, is_causal), None
    if not dropout and query.dtype.itemsize == 2 and key.shape[2] < 64:
        if is_causal:
            attention_mask = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool).tril()
        if attention_mask is not None and attention_mask.dtype == torch.bool:
            bias = torch.zeros(attention_mask.shape, dtype=query.dtype)
            attention_mask = bias.masked_fill_(~attention_mask, -torch.inf)
        scores = torch.matmul(query, key.transpose(2, 3)) * scaling
        without_key = None
        if attention_mask is not None:
            without_key = attention_mask.amax(-1, keepdim=True) == -torch.inf
            scores = scores + attention_mask.masked_fill(without_key, 0.0)  # the softmax of a row of -inf is nan
        context = torch.matmul(scores.softmax(-1, dtype=torch.float32).to(query.dtype), value)
        if without_key is not None:
            context = context.masked_fill(without_key, 0.0)
        return context.transpose(1, 2).contiguous(), None
    dtype = query.dtype
    if dtype.itemsize == 2 and key.shape[2] < 256:
        query, key, value = query.float(), key.float(), value.float()
        if attention_mask is not None and attention_mask.dtype != torch.bool:
            attention_mask = attention_mask.float()
    with torch.autocast("cpu", enabled=False):
        context, _ = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
    return context.to(dtype), None
