# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""One token at a time through a decoder: what `generate()` runs after the prompt, without what only training needs.

`IncrementalDecoder` computes what the models' `forward` does. Queries, keys and values come from one product, keys and
values lie in buffers that are never copied, and the beams of a sentence look at one copy of its prompt and its source.
"""

from functools import partial

import torch
from torch import nn
from transformers.cache_utils import Cache, EncoderDecoderCache
from transformers.generation import GenerationConfig

from .base import ScratchPreTrainedModel


class IncrementalDecoder:
    """The decoder of a model after a prompt, of which each row goes on in `num_beams` ways.

    Args:
        model: a model with a head for which `can_decode_incrementally`.
        past_key_values: the cache that the model's `forward` filled with the prompt, (batch, heads, length, head_dim).
        position: of the next token, (batch,).
        prompt_mask: (batch, prompt length), 0 on padding.
        source_mask: (batch, source length), None without an encoder.
        max_new_tokens: how often `step` may be called.
    """

    def __init__(
        self,
        model: ScratchPreTrainedModel,
        past_key_values: Cache,
        position: torch.LongTensor,
        prompt_mask: torch.Tensor,
        source_mask: torch.Tensor | None,
        num_beams: int,
        max_new_tokens: int,
    ):
        self.is_encoder_decoder = model.config.is_encoder_decoder
        self.stack = model.model.decoder if self.is_encoder_decoder else model.model
        self.norm, self.lm_head = _norm(self.stack.norm), _linear(model.lm_head)
        self.num_beams, self.position = num_beams, position
        self.length = prompt_mask.shape[1]  # slots in use: those of the prompt, then one a beam and step
        slots = self.length + num_beams * max_new_tokens
        prompt, source = past_key_values, None
        if isinstance(past_key_values, EncoderDecoderCache):
            prompt, source = past_key_values.self_attention_cache, past_key_values.cross_attention_cache
        self.layers = []
        for i, layer in enumerate(self.stack.layers):
            cross = None if source is None else (source.layers[i].keys, source.layers[i].values)
            self.layers.append(_Layer(layer, prompt.layers[i].keys, prompt.layers[i].values, cross, slots))
        # added to the scores: (batch, 1, num_beams or 1, slots or source length), 0 where a beam may look, else -inf:
        # a query that sees no key at all gets zeros, as with the boolean masks of the model's own `forward`
        empty = model.lm_head.weight.new_empty(0)
        self.mask = self.source_mask = None
        if num_beams > 1 or not prompt_mask.all():
            self.mask = empty.new_full((len(prompt_mask), 1, num_beams, slots), -torch.inf)
            self.mask[..., : self.length].masked_fill_(prompt_mask.bool()[:, None, None], 0.0)
        if source_mask is not None and not source_mask.all():
            self.source_mask = empty.new_zeros(source_mask.shape).masked_fill_(source_mask == 0, -torch.inf)
            self.source_mask = self.source_mask[:, None, None]

    @torch.inference_mode()
    def step(self, tokens: torch.LongTensor) -> torch.Tensor:
        """Read a token of each beam, (batch, num_beams); the logits after it, (batch, num_beams, vocabulary)."""
        stack = self.stack
        if self.mask is not None:  # besides its ancestors, each sees itself
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

    def branch(self, parents: torch.LongTensor) -> None:
        """Go on with beams that have the ancestors of others: `parents` (batch, num_beams) are their indices."""
        used = self.mask[..., : self.length]
        used.copy_(used.gather(2, parents[:, None, :, None].expand_as(used)))

    def keep(self, rows: torch.Tensor) -> None:
        """Drop all rows of the batch but `rows`, their indices."""
        self.position = self.position[rows]
        self.mask = None if self.mask is None else self.mask[rows]
        self.source_mask = None if self.source_mask is None else self.source_mask[rows]
        for layer in self.layers:
            layer.keep(rows, self.length)


def beam_search(
    decoder: IncrementalDecoder,
    logits: torch.Tensor,
    prompts: torch.LongTensor,
    num_return_sequences: int,
    generation_config: GenerationConfig,
) -> torch.LongTensor | None:
    """The beam search of transformers' `generate()`, without the sentences that have ended.

    Args:
        decoder: after the prompts (batch, length), with `logits` (batch, vocabulary) for what follows.

    Returns:
        The best `num_return_sequences` of each prompt, (batch * num_return_sequences, longest). None if a score is
        nan: which beams then rank first depends on each step of transformers' loop.
    """
    num_beams, length, max_length = decoder.num_beams, prompts.shape[1], generation_config.max_length
    penalty, early_stopping = generation_config.length_penalty, generation_config.early_stopping
    pad, eos = generation_config._pad_token_tensor, generation_config._eos_token_tensor
    # if the best all end, enough others must be there to go on with
    num_candidates = max(2, 1 + (0 if eos is None else len(eos))) * num_beams
    # only the best `num_beams` candidates may end: the rest rank below them
    best = torch.arange(num_candidates, device=prompts.device) < num_beams
    fill = -1 if eos is None else int(pad or eos[0])
    running = prompts.new_full((len(prompts), num_beams, max_length), fill, dtype=torch.long)
    running[:, :, :length] = prompts[:, None]
    running_scores = torch.zeros(len(prompts), num_beams, dtype=torch.float, device=prompts.device)
    running_scores[:, 1:] = -1e9  # all begin alike
    ended, ended_scores = running.clone(), torch.full_like(running_scores, -1e9)
    ended_lengths = torch.zeros_like(running_scores, dtype=torch.long)
    results, lengths = ended.clone(), ended_lengths.clone()
    rows = torch.arange(len(prompts), device=prompts.device)
    over = torch.zeros_like(rows, dtype=torch.bool)
    logits = logits[:, None].expand(-1, num_beams, -1)
    for current in range(length, max_length):
        scores = logits.float().log_softmax(-1) + running_scores[..., None]
        scores, chosen = scores.flatten(1).topk(num_candidates)
        if scores.isnan().any():
            return None
        parents, tokens = chosen // logits.shape[-1], chosen % logits.shape[-1]
        ends = torch.full_like(tokens, current + 1 == max_length, dtype=torch.bool)
        if eos is not None:
            ends |= torch.isin(tokens, eos)

        new = ends & best & ~over[:, None]
        if new.any():
            candidates = _take(running, parents)
            candidates[..., current] = tokens
            new_scores = scores / (current + 1 - length) ** penalty - 1e9 * ~new
            ended_scores, order = torch.cat((ended_scores, new_scores), 1).topk(num_beams)
            ended = _take(torch.cat((ended, candidates), 1), order)
            new_lengths = torch.full_like(tokens, current + 1).masked_fill_(~new, 0)
            ended_lengths = torch.cat((ended_lengths, new_lengths), 1).gather(1, order)
        if current + 1 == max_length:
            break

        running_scores, order = (scores - 1e9 * ends).topk(num_beams)
        parents, tokens = parents.gather(1, order), tokens.gather(1, order)
        running = _take(running, parents)
        running[..., current] = tokens
        decoder.branch(parents)
        # a sentence is over once no running beam can, or need, be better than its worst ended one
        longest = max_length if early_stopping == "never" and penalty > 0 else current + 1
        possible = running_scores[:, 0] / (longest - length) ** penalty
        full = (ended_lengths > 0).all(1)
        over |= full & ((possible <= ended_scores[:, -1]) | (early_stopping is True))
        if 4 * over.sum() >= len(over):
            results[rows[over]], lengths[rows[over]] = ended[over], ended_lengths[over]
            kept = (~over).nonzero()[:, 0]
            rows, running, running_scores, tokens = rows[kept], running[kept], running_scores[kept], tokens[kept]
            ended, ended_scores, ended_lengths = ended[kept], ended_scores[kept], ended_lengths[kept]
            over = over[kept]
            if not len(rows):
                break
            decoder.keep(kept)
        logits = decoder.step(tokens)
    results[rows], lengths[rows] = ended, ended_lengths
    return results[:, :num_return_sequences, : lengths[:, :num_return_sequences].max()].flatten(0, 1)


def _take(sequences: torch.Tensor, beams: torch.LongTensor) -> torch.Tensor:
    return sequences.gather(1, beams[..., None].expand(-1, -1, sequences.shape[-1]))


class _Layer:
    """A decoder layer's weights, and the keys and values (batch, heads, slots, head_dim) it has seen."""

    def __init__(self, layer: nn.Module, keys: torch.Tensor, values: torch.Tensor, source: tuple | None, slots: int):
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
        if source is not None:
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
        heads, head_dim = self.source[0].shape[1], self.source[0].shape[3]
        query = self.cross_query(x).view(-1, decoder.num_beams, heads, head_dim).transpose(1, 2)
        context = nn.functional.scaled_dot_product_attention(
            query, *self.source, decoder.source_mask, scale=self.cross_scale
        )
        return self.cross_output(context.transpose(1, 2).reshape(len(x), -1))

    def feed_forward(self, x: torch.Tensor, decoder: IncrementalDecoder) -> torch.Tensor:
        return self.fc2(self.activation(self.fc1(x)))

    def keep(self, rows: torch.Tensor, length: int) -> None:
        self.memory = _buffer(self.memory[:, rows, :, :length], length, self.memory.shape[3])
        if self.source is not None:
            self.source = tuple(states[rows] for states in self.source)


def _linear(*layers: nn.Linear):
    weight, bias = layers[0].weight, layers[0].bias
    if len(layers) > 1:
        weight = torch.cat([layer.weight for layer in layers])
        bias = None if bias is None else torch.cat([layer.bias for layer in layers])
    return partial(nn.functional.linear, weight=weight, bias=bias)


def _norm(norm: nn.Module):
    if isinstance(norm, nn.Identity):
        return norm
    shape, weight, bias, eps = norm.normalized_shape, norm.weight, norm.bias, norm.eps
    return lambda x: torch.layer_norm(x, shape, weight, bias, eps)


def _buffer(states: torch.Tensor, length: int, slots: int) -> torch.Tensor:
    buffer = states.new_empty(*states.shape[:3], slots, states.shape[4])
    buffer[:, :, :, :length] = states
    return buffer
