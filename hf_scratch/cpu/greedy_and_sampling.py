# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Greedy search and sampling over an IncrementalDecoder: the result of transformers' `generate()`, in less time."""

import math
from typing import Any

import torch
from torch import nn
from transformers.generation import (
    BaseStreamer,
    EosTokenCriteria,
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    MaxLengthCriteria,
    StoppingCriteriaList,
)

from .decoder import IncrementalDecoder

# the criteria that this loop applies without calling them
CRITERIA = (EosTokenCriteria, MaxLengthCriteria)


def sample(
    decoder: IncrementalDecoder,
    logits: torch.Tensor,
    input_ids: torch.Tensor,
    logits_processor: LogitsProcessorList,
    stopping_criteria: StoppingCriteriaList,
    generation_config: GenerationConfig,
    streamer: BaseStreamer | None,
) -> dict[str, Any]:
    """The greedy search and the sampling of transformers' `generate()`, which drop finished rows from the batch.

    Args:
        decoder: a decoder that has read the prompts.
        logits: (batch, vocabulary), the decoder's output for the prompts' last tokens.
        input_ids: the prompts (batch, length), int64.
        logits_processor: applied to all rows, also to the finished ones.
        stopping_criteria: one of them limits the length to no more than the decoder has room for.
        generation_config: its `do_sample`, token ids and options of the output count.
        streamer: gets each step's tokens.

    Returns:
        `sequences`, and `scores` and `logits` with a tensor (batch, vocabulary) per step, or None where
        `generation_config` does not ask for them.
    """
    returns_all = generation_config.return_dict_in_generate
    kept_scores = () if returns_all and generation_config.output_scores else None
    kept_logits = () if returns_all and generation_config.output_logits else None
    known = [c for c in stopping_criteria if type(c) in CRITERIA]
    ends = [criterion.eos_token_id for criterion in known if type(criterion) is EosTokenCriteria]
    limit = longest_length(stopping_criteria)
    pad_token_id = generation_config._pad_token_tensor
    pads = any(hasattr(criterion, "eos_token_id") for criterion in stopping_criteria)
    # a user's own processor may read the scores of finished rows too
    drops = (
        pads
        and not returns_all
        and all(type(processor).__module__ == LogitsProcessor.__module__ for processor in logits_processor)
    )
    unfinished = torch.ones_like(input_ids[:, 0], dtype=torch.long)
    rows = torch.arange(len(input_ids), device=input_ids.device)  # the rows that the decoder still holds
    while True:
        raw = logits.to(copy=True, dtype=torch.float32)
        scores = logits_processor(input_ids, raw)  # ty: ignore[invalid-argument-type]
        if kept_scores is not None:
            kept_scores += (scores,)
        if kept_logits is not None:
            kept_logits += (raw,)
        if generation_config.do_sample:
            tokens = torch.multinomial(nn.functional.softmax(scores, dim=-1), num_samples=1).squeeze(1)
        elif len(logits_processor):
            tokens = torch.argmax(scores, dim=-1)
        else:
            tokens = torch.from_numpy(scores.numpy().argmax(-1))  # a tenth of torch's time
        if pads:
            # where rows may end, `generate()` has set a pad token
            tokens = tokens * unfinished + pad_token_id * (1 - unfinished)  # ty: ignore[unsupported-operator]
        input_ids = torch.cat([input_ids, tokens[:, None]], dim=-1)
        if len(known) < len(stopping_criteria):
            unfinished = unfinished & ~stopping_criteria(input_ids, kept_scores)
        for end in ends:
            unfinished = unfinished & ~torch.isin(tokens, end)
        if streamer is not None:
            streamer.put(tokens)
        if input_ids.shape[1] >= limit or not unfinished.any():
            break
        if drops and 4 * unfinished.sum() < 3 * len(rows):  # a quarter has ended: copying the others pays off
            kept = unfinished[rows].nonzero()[:, 0]
            decoder.keep_rows(kept)
            rows = rows[kept]
        tokens = input_ids[:, -1:]  # a stopping criterion may have changed them in place
        if len(rows) == len(tokens):
            logits = decoder.step(tokens)[:, 0]
        else:
            logits = logits.clone()  # finished rows keep stale logits, which are not used
            logits[rows] = decoder.step(tokens[rows])[:, 0]
    if streamer is not None:
        streamer.end()
    return {"sequences": input_ids, "scores": kept_scores, "logits": kept_logits}


def longest_length(stopping_criteria: StoppingCriteriaList) -> float:
    """The length at which a criterion known to `sample` ends all texts; infinity: there is none."""
    return min(
        (c.max_length for c in stopping_criteria if type(c) is MaxLengthCriteria),
        default=math.inf,
    )
