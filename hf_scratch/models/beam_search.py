# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Beam search over an IncrementalDecoder: the result of transformers' `generate()`, in less time."""

import torch
from transformers.generation import GenerationConfig

from .decoding import IncrementalDecoder


def beam_search(
    decoder: IncrementalDecoder,
    logits: torch.Tensor,
    prompts: torch.Tensor,
    num_return_sequences: int,
    generation_config: GenerationConfig,
) -> torch.Tensor | None:
    """The beam search of transformers' `generate()`, which drops sentences from the batch once they are finished.

    Args:
        decoder: a decoder that has read the prompts.
        logits: (batch, vocabulary), the decoder's output for the prompts' last tokens.
        prompts: token ids (batch, length), int64.
        num_return_sequences: results per prompt.
        generation_config: its `num_beams`, `max_length`, `length_penalty`, `early_stopping` and token ids count.

    Returns:
        The best sequences of each prompt, (batch * num_return_sequences, longest). None if a score is nan: the ranking
        then depends on details of transformers' loop.
    """
    num_beams, length, max_length = decoder.num_beams, prompts.shape[1], generation_config.max_length
    penalty, early_stopping = generation_config.length_penalty, generation_config.early_stopping
    pad, eos = generation_config._pad_token_tensor, generation_config._eos_token_tensor
    # enough candidates that `num_beams` of them continue even if all better ones end
    num_candidates = max(2, 1 + (0 if eos is None else len(eos))) * num_beams
    # only the top `num_beams` candidates may finish; the rest rank below them
    best = torch.arange(num_candidates, device=prompts.device) < num_beams
    fill = -1 if eos is None else int(pad or eos[0])
    running = prompts.new_full((len(prompts), num_beams, max_length), fill, dtype=torch.long)
    running[:, :, :length] = prompts[:, None]
    running_scores = torch.zeros(len(prompts), num_beams, dtype=torch.float, device=prompts.device)
    running_scores[:, 1:] = -1e9  # all beams start equal: only the first one counts
    finished, finished_scores = running.clone(), torch.full_like(running_scores, -1e9)
    finished_lengths = torch.zeros_like(running_scores, dtype=torch.long)
    results, lengths = finished.clone(), finished_lengths.clone()
    rows = torch.arange(len(prompts), device=prompts.device)
    done = torch.zeros_like(rows, dtype=torch.bool)
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

        new = ends & best & ~done[:, None]
        if new.any():
            candidates = _take(running, parents)
            candidates[..., current] = tokens
            new_scores = scores / (current + 1 - length) ** penalty - 1e9 * ~new
            finished_scores, order = torch.cat((finished_scores, new_scores), 1).topk(num_beams)
            finished = _take(torch.cat((finished, candidates), 1), order)
            new_lengths = torch.full_like(tokens, current + 1).masked_fill_(~new, 0)
            finished_lengths = torch.cat((finished_lengths, new_lengths), 1).gather(1, order)
        if current + 1 == max_length:
            break

        running_scores, order = (scores - 1e9 * ends).topk(num_beams)
        parents, tokens = parents.gather(1, order), tokens.gather(1, order)
        running = _take(running, parents)
        running[..., current] = tokens
        decoder.branch(parents)
        # a sentence is done once no running beam can still beat its worst finished one
        longest = max_length if early_stopping == "never" and penalty > 0 else current + 1
        possible = running_scores[:, 0] / (longest - length) ** penalty
        full = (finished_lengths > 0).all(1)
        done |= full & ((possible <= finished_scores[:, -1]) | (early_stopping is True))
        if 4 * done.sum() >= len(done):
            results[rows[done]], lengths[rows[done]] = finished[done], finished_lengths[done]
            kept = (~done).nonzero()[:, 0]
            rows, running, running_scores, tokens = rows[kept], running[kept], running_scores[kept], tokens[kept]
            finished, finished_scores, finished_lengths = finished[kept], finished_scores[kept], finished_lengths[kept]
            done = done[kept]
            if not len(rows):
                break
            decoder.keep(kept)
        logits = decoder.step(tokens)
    results[rows], lengths[rows] = finished, finished_lengths
    return results[:, :num_return_sequences, : lengths[:, :num_return_sequences].max()].flatten(0, 1)


def _take(sequences: torch.Tensor, beams: torch.Tensor) -> torch.Tensor:
    return sequences.gather(1, beams[..., None].expand(-1, -1, sequences.shape[-1]))
