# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Beam search over an IncrementalDecoder: the result of transformers' `generate()`, in less time."""

from typing import NamedTuple

import torch
from transformers.generation import (
    ExponentialDecayLengthPenalty,
    GenerationConfig,
    LogitNormalization,
    LogitsProcessorList,
    MinLengthLogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SuppressTokensAtBeginLogitsProcessor,
    SuppressTokensLogitsProcessor,
    TemperatureLogitsWarper,
)

from .decoder import IncrementalDecoder

# processors that score each beam by itself; with any other, or with a repetition penalty that has a
# `prompt_ignore_length` for each row, finished sentences stay in the batch
BY_BEAM = {
    ExponentialDecayLengthPenalty,
    LogitNormalization,
    MinLengthLogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SuppressTokensAtBeginLogitsProcessor,
    SuppressTokensLogitsProcessor,
    TemperatureLogitsWarper,
}
LARGE, BLOCKS = 4096, 128  # vocabularies from this size on are searched by blocks
IMPOSSIBLE = -1e9  # added to the score of what must not be chosen


class Hypotheses(NamedTuple):
    """Texts of each row of the batch."""

    sequences: torch.Tensor  # (batch, beams, max_length), token ids
    scores: torch.Tensor  # (batch, beams)
    lengths: torch.Tensor  # (batch, beams), tokens of the sequence, the prompt included
    ended: torch.Tensor  # (batch, beams), False for a text that only fills a place

    def select_beams(self, beams: torch.Tensor) -> "Hypotheses":
        """The beams with the indices `beams` (batch, n) of their rows."""
        return Hypotheses(*(_select(values, beams) for values in self))

    def select_rows(self, rows: torch.Tensor) -> "Hypotheses":
        return Hypotheses(*(values[rows] for values in self))

    def write_rows(self, rows: torch.Tensor, others: "Hypotheses") -> None:
        for values, new in zip(self, others, strict=True):
            values[rows] = new

    def join(self, others: "Hypotheses") -> "Hypotheses":
        return Hypotheses(*(torch.cat(pair, 1) for pair in zip(self, others, strict=True)))

    def append(
        self, parents: torch.Tensor, tokens: torch.Tensor, scores: torch.Tensor, ended: torch.Tensor
    ) -> "Hypotheses":
        """The beams `parents` (batch, n), each with one more token."""
        grown = self.select_beams(parents)
        grown.sequences[..., int(self.lengths[0, 0])] = tokens
        return Hypotheses(grown.sequences, scores, grown.lengths + 1, ended)


def beam_search(
    decoder: IncrementalDecoder,
    logits: torch.Tensor,
    prompts: torch.Tensor,
    logits_processor: LogitsProcessorList,
    generation_config: GenerationConfig,
) -> torch.Tensor | None:
    """The beam search and beam sampling of transformers' `generate()`, which drop finished sentences from the batch.

    Args:
        decoder: a decoder that has read the prompts.
        logits: (batch, vocabulary), the decoder's output for the prompts' last tokens.
        prompts: token ids (batch, length), int64.
        logits_processor: applied to the logarithms of the probabilities.
        generation_config: its options of beam search and of sampling, `max_length`, and ids of end and padding.

    Returns:
        The best of each prompt, (batch * num_return_sequences, longest). None if a score is nan: the ranking then
        depends on details of transformers' loop.
    """
    num_beams, length, max_length = decoder.num_beams, prompts.shape[1], generation_config.max_length
    penalty, early_stopping = generation_config.length_penalty, generation_config.early_stopping
    processes = len(logits_processor) > 0
    pad, eos = generation_config._pad_token_tensor, generation_config._eos_token_tensor
    drops = not generation_config.do_sample and all(
        type(processor) in BY_BEAM and getattr(processor, "prompt_ignore_length", None) is None
        for processor in logits_processor
    )
    # enough candidates that `num_beams` of them continue even if all better ones end
    num_candidates = max(2, 1 + (0 if eos is None else len(eos))) * num_beams
    # only the first `num_beams` candidates may finish; the rest rank below them
    best = torch.arange(num_candidates, device=prompts.device) < num_beams

    shape, fill = (len(prompts), num_beams), -1 if eos is None else int(pad or eos[0])
    running = Hypotheses(
        sequences=prompts.new_full((*shape, max_length), fill, dtype=torch.long),
        scores=torch.zeros(shape, dtype=torch.float, device=prompts.device),
        lengths=prompts.new_full(shape, length),
        ended=torch.zeros(shape, dtype=torch.bool, device=prompts.device),
    )
    running.sequences[:, :, :length] = prompts[:, None]
    finished = Hypotheses(*(values.clone() for values in running))
    finished.scores.fill_(IMPOSSIBLE)
    running.scores[:, 1:] = IMPOSSIBLE  # all beams start equal: only the first one counts
    results, rows = Hypotheses(*(values.clone() for values in finished)), torch.arange(len(prompts))
    is_open = torch.ones_like(rows, dtype=torch.bool)  # False: no running beam can enter the finished ones any more
    logits = logits[:, None].expand(-1, num_beams, -1)
    for current in range(length, max_length):
        logits = logits.float()
        scores = logits.log_softmax(-1)
        if processes:
            read = running.sequences[..., :current].flatten(0, 1)
            scores = logits_processor(read, scores.flatten(0, 1))  # ty: ignore[invalid-argument-type]
            scores = scores.unflatten(0, (-1, num_beams))
        vocab_size = scores.shape[-1]
        if vocab_size >= LARGE and not (processes or generation_config.do_sample):
            scores, chosen = _largest_sums(scores, running.scores, num_candidates)
        else:
            scores = (scores + running.scores[..., None]).flatten(1)
            if generation_config.do_sample:
                chosen = torch.multinomial(scores.softmax(-1), num_candidates)
                scores, order = scores.gather(1, chosen).sort(dim=-1, descending=True)
                chosen = chosen.gather(1, order)
            else:
                scores, chosen = scores.topk(num_candidates)
        if scores.isnan().any():
            return None
        parents, tokens = chosen // vocab_size, chosen % vocab_size

        ends = torch.full_like(tokens, current + 1 == max_length, dtype=torch.bool)
        if eos is not None:
            ends |= torch.isin(tokens, eos)
        new = ends & best
        if new.any() or not drops:
            new_scores = scores / (current + 1 - length) ** penalty
            for forbidden in (finished.ended.all(1, keepdim=True) & (early_stopping is True), ~is_open[:, None], ~new):
                new_scores = new_scores + forbidden.float() * IMPOSSIBLE
            finished = finished.join(running.append(parents, tokens, new_scores, new))
            finished = finished.select_beams(finished.scores.topk(num_beams)[1])

        running_scores, order = (scores + ends.float() * IMPOSSIBLE).topk(num_beams)
        parents, tokens = parents.gather(1, order), tokens.gather(1, order)
        running = running.append(parents, tokens, running_scores, running.ended)
        decoder.reorder_beams(parents)
        # a sentence is done once no running beam can still beat its worst finished one
        longest = max_length if early_stopping == "never" and penalty > 0 else current + 1
        possible = running_scores[:, :1] / (longest - length) ** penalty
        worst = torch.where(finished.ended, finished.scores.amin(1, keepdim=True), IMPOSSIBLE)
        is_open = is_open & (possible > worst).any(1)
        is_full = finished.ended.all(1) & (early_stopping is True)
        if not is_open.any() or is_full.all() or ends.all():
            break
        if drops and 4 * (done := is_full | ~is_open).sum() >= len(done):
            results.write_rows(rows[done], finished.select_rows(done))
            kept = (~done).nonzero()[:, 0]
            rows, tokens, is_open = rows[kept], tokens[kept], is_open[kept]
            running, finished = running.select_rows(kept), finished.select_rows(kept)
            if not len(rows):
                break
            decoder.keep_rows(kept)
        logits = decoder.step(tokens)
    if drops:
        results.write_rows(rows, finished)
    else:  # its scores may have another dtype, of a processor
        results = finished
    kept = generation_config.num_return_sequences
    return results.sequences[:, :kept, : int(results.lengths[:, :kept].max())].flatten(0, 1)


def _largest_sums(scores: torch.Tensor, sums: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The top k of `scores + sums[..., None]`, (batch, beams, vocabulary) flattened, in a fifth of the time.

    The largest are in the `count` blocks with the largest maxima. Block j holds each `BLOCKS`-th token from j.
    """
    num_beams, vocab_size = scores.shape[1:]
    whole = vocab_size // BLOCKS * BLOCKS  # the last tokens are in no block
    maxima = scores[..., :whole].unflatten(-1, (-1, BLOCKS)).amax(-2) + sums[..., None]
    blocks = maxima.flatten(1).topk(min(count, num_beams * BLOCKS))[1]
    first = blocks // BLOCKS * vocab_size + blocks % BLOCKS
    rest = torch.arange(whole, vocab_size) + torch.arange(num_beams)[:, None] * vocab_size
    places = (first[..., None] + torch.arange(0, whole, BLOCKS)).flatten(1)
    places = torch.cat((places, rest.flatten().expand(len(places), -1)), 1)
    largest, order = (scores.flatten(1).gather(1, places) + sums.gather(1, places // vocab_size)).topk(count + 1)
    if (largest[:, 1:] == largest[:, :-1]).any():  # the order of equal sums is that of one search over all
        return (scores + sums[..., None]).flatten(1).topk(count)
    return largest[:, :count], places.gather(1, order[:, :count])


def _select(values: torch.Tensor, beams: torch.Tensor) -> torch.Tensor:
    if values.ndim > 2:
        beams = beams[..., None].expand(-1, -1, values.shape[-1])
    return values.gather(1, beams)
