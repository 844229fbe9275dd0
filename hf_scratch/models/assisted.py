# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Assisted generation over an IncrementalDecoder: drafted tokens are read at once, and kept while they are right."""

from typing import Any

import torch
from transformers.generation import (
    AssistedCandidateGenerator,
    BaseStreamer,
    CandidateGenerator,
    GenerationConfig,
    LogitsProcessorList,
    PromptLookupCandidateGenerator,
    StoppingCriteriaList,
)

from .decoding import IncrementalDecoder


def can_verify(generator: CandidateGenerator, generation_config: GenerationConfig) -> bool:
    """Whether `verify` gives the result of transformers' loop with these drafts."""
    is_greedy = not generation_config.do_sample and generation_config.assistant_ensemble_weight is None
    return is_greedy and type(generator) in (AssistedCandidateGenerator, PromptLookupCandidateGenerator)


def verify(
    decoder: IncrementalDecoder,
    logits: torch.Tensor,
    input_ids: torch.Tensor,
    generator: CandidateGenerator,
    logits_processor: LogitsProcessorList,
    stopping_criteria: StoppingCriteriaList,
    generation_config: GenerationConfig,
    streamer: BaseStreamer | None,
) -> dict[str, Any]:
    """The greedy assisted generation of transformers' `generate()` for one prompt.

    A smaller model drafts (Leviathan et al. 2023), or the prompt does (Saxena 2023).

    Args:
        decoder: a decoder that has read the prompt.
        logits: (1, vocabulary), the decoder's output for the prompt's last token.
        input_ids: the prompt (1, length), int64.
        generator: drafts the tokens after a text.
        logits_processor: applied to each position alone.
        stopping_criteria: called after each draft.
        generation_config: its `max_length`, end tokens and options of the output count.
        streamer: gets the tokens that are kept of each draft.

    Returns:
        As `sample`.
    """
    returns_all, eos = generation_config.return_dict_in_generate, generation_config._eos_token_tensor
    kept_scores = () if returns_all and generation_config.output_scores else None
    kept_logits = () if returns_all and generation_config.output_logits else None
    known = logits[:, None]  # of the tokens that are read already; later there is none
    while True:
        length = input_ids.shape[1]
        drafted = generator.get_candidates(input_ids)[0]  # ty: ignore[invalid-argument-type]
        drafted = drafted[:, : generation_config.max_length - 1]  # a draft from the prompt may go too far
        count = drafted.shape[1] - length
        unread = drafted[:, length - 1 + known.shape[1] :]
        raw = torch.cat((known, decoder.read(unread)), 1) if unread.shape[1] else known
        raw, known = raw.float(), raw[:, :0]
        scores = raw.clone()
        if len(logits_processor):
            for i in range(count + 1):
                text = drafted[:, : length + i]
                scores[:, i] = logits_processor(text, scores[:, i])  # ty: ignore[invalid-argument-type]
        tokens = scores.argmax(-1)
        right = int((drafted[:, length:] == tokens[:, :-1]).cumprod(-1).sum())
        tokens = tokens[:, : right + 1]
        if eos is not None and (ends := torch.isin(tokens[0], eos).nonzero()).numel():
            tokens = tokens[:, : ends[0] + 1]
        new = tokens.shape[1]
        input_ids = torch.cat((input_ids, tokens), 1)
        if streamer is not None:
            streamer.put(tokens)
        decoder.forget(count + 1 - new)
        generator.update_candidate_strategy(input_ids, scores, new - 1)  # ty: ignore[invalid-argument-type]
        if kept_scores is not None:
            kept_scores += tuple(scores[:, :new].unbind(1))
        if kept_logits is not None:
            kept_logits += tuple(raw[:, :new].unbind(1))
        if stopping_criteria(input_ids, kept_scores).all():
            break
    if streamer is not None:
        streamer.end()
    if type(generator) is AssistedCandidateGenerator:
        config = generator.assistant_model.generation_config
        if config.num_assistant_tokens_schedule == "heuristic":  # the next call goes on from there
            config.num_assistant_tokens = generator.num_assistant_tokens
    return {"sequences": input_ids, "scores": kept_scores, "logits": kept_logits}
