# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Greedy search and sampling over an IncrementalDecoder: the result of transformers' `generate()`, in less time."""

import torch
from torch import nn
from transformers.generation import BaseStreamer, GenerationConfig, LogitsProcessor, LogitsProcessorList

from .decoder import IncrementalDecoder


def sample(
    decoder: IncrementalDecoder,
    logits: torch.Tensor,
    input_ids: torch.Tensor,
    logits_processor: LogitsProcessorList,
    generation_config: GenerationConfig,
    streamer: BaseStreamer | None,
) -> torch.Tensor:
    """The greedy search and the sampling of transformers' `generate()`, which drop finished rows from the batch.

    Args:
        decoder: a decoder that has read the prompts.
        logits: (batch, vocabulary), the decoder's output for the prompts' last tokens.
        input_ids: the prompts (batch, length), int64.
        logits_processor: applied to all rows, also to the finished ones.
        generation_config: its `do_sample`, `max_length`, and ids of end and padding.
        streamer: gets each step's tokens.

    Returns:
        The prompts and what follows, (batch, longest).
    """
    end, pad = generation_config._eos_token_tensor, generation_config._pad_token_tensor
    # a user's own processor may read the scores of finished rows too
    drops = end is not None and all(
        type(processor).__module__ == LogitsProcessor.__module__ for processor in logits_processor
    )
    unfinished = torch.ones_like(input_ids[:, 0], dtype=torch.long)
    rows = torch.arange(len(input_ids), device=input_ids.device)  # the rows that the decoder still holds
    while True:
        raw = logits.to(copy=True, dtype=torch.float32)
        scores = logits_processor(input_ids, raw)  # ty: ignore[invalid-argument-type]
        if generation_config.do_sample:
            tokens = torch.multinomial(nn.functional.softmax(scores, dim=-1), num_samples=1).squeeze(1)
        elif len(logits_processor):
            tokens = torch.argmax(scores, dim=-1)
        else:
            tokens = torch.from_numpy(scores.numpy().argmax(-1))  # a tenth of torch's time
        if end is not None:  # then `generate()` has set a pad token
            tokens = tokens * unfinished + pad * (1 - unfinished)  # ty: ignore[unsupported-operator]
            unfinished = unfinished & ~torch.isin(tokens, end)
        input_ids = torch.cat([input_ids, tokens[:, None]], dim=-1)
        if streamer is not None:
            streamer.put(tokens)
        if input_ids.shape[1] >= generation_config.max_length or not unfinished.any():
            break
        if drops and 4 * unfinished.sum() < 3 * len(rows):  # a quarter has ended: copying the others pays off
            kept = unfinished[rows].nonzero()[:, 0]
            decoder.keep_rows(kept)
            rows = rows[kept]
        tokens = tokens[:, None]
        if len(rows) == len(tokens):
            logits = decoder.step(tokens)[:, 0]
        else:
            logits = logits.clone()  # finished rows keep stale logits, which are not used
            logits[rows] = decoder.step(tokens[rows])[:, 0]
    if streamer is not None:
        streamer.end()
    return input_ids
