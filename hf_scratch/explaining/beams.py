# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""The tree of beams of one `generate()`: at each step the candidates, and which were kept, dropped or ended.

Nothing is searched here. `generate()` shows its running beams and their log-probabilities to a `LogitsProcessor`, and
its candidates, best first, to a `StoppingCriteria`. The tree is put together from what both saw.
"""

from dataclasses import dataclass, field

import torch
from transformers import LogitsProcessor, LogitsProcessorList, StoppingCriteria, StoppingCriteriaList

from .models import LoadedModel


@dataclass
class Candidate:
    """A beam, continued by one token.

    Args:
        token: the token's id.
        text: the token as `show_token` shows it.
        parent: index of the beam among the step before's candidates; -1 at the first step.
        log_probability: of the token after its beam, in nats.
        score: sum of the log-probabilities of all tokens so far, in nats.
        outcome: "kept", "dropped", "ended" (with an end token) or "cut" (at the longest length).
        final_score: of an ended or cut candidate: `score` divided by length ** length_penalty.
        place: of such a candidate that `generate()` returned: its place among the results, from 0.
    """

    token: int
    text: str
    parent: int
    log_probability: float
    score: float
    outcome: str
    final_score: float | None = None
    place: int | None = None


@dataclass
class BeamTree:
    """A beam search of one sentence.

    Args:
        num_beams: the number of beams.
        length_penalty: the exponent of the length in `final_score`.
        steps: each step's candidates, best first.
        sequences: the ids that `generate()` returned, best first: each (length), from the decoder's start token or
            the prompt to the end token.
        scores: their scores, as `generate()` returned them.
        texts: the same as texts, without special tokens and prompt.
    """

    num_beams: int
    length_penalty: float
    steps: list[list[Candidate]] = field(default_factory=list)
    sequences: list[torch.Tensor] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)


@torch.no_grad()
def search_beams(
    loaded: LoadedModel, input_ids: torch.Tensor, num_beams: int | None = None, max_new_tokens: int | None = None
) -> BeamTree:
    """Generate with beam search, and return the tree of its beams.

    Args:
        loaded: the model.
        input_ids: (1, length), the source or the prompt.
        num_beams: the number of beams; 1 is greedy search. Default: the model's generation config.
        max_new_tokens: as in `generate()`. Default: the model's generation config.

    Returns:
        The tree. Its sequences and scores are `generate()`'s, all `num_beams` of them.
    """
    config = loaded.model.generation_config
    num_beams = num_beams or config.num_beams or 1
    length_penalty = 1.0 if config.length_penalty is None else config.length_penalty
    observer, candidates = _BeamObserver(num_beams), _CandidateObserver()
    outputs = loaded.model.generate(
        input_ids,
        do_sample=False,
        num_beams=num_beams,
        num_return_sequences=num_beams,
        output_scores=True,
        return_dict_in_generate=True,
        logits_processor=LogitsProcessorList([observer]),
        stopping_criteria=StoppingCriteriaList([candidates]),
        **({} if max_new_tokens is None else {"max_new_tokens": max_new_tokens}),
    )
    tree = BeamTree(num_beams, length_penalty)
    start = 1 if loaded.is_translator else input_ids.shape[1]
    tree.sequences = [_cut(row, start, loaded.end_tokens) for row in outputs.sequences]
    places = {tuple(row.tolist()): place for place, row in reversed(list(enumerate(tree.sequences)))}
    _fill_steps(tree, loaded, observer, candidates, places)
    if num_beams > 1:
        tree.scores = outputs.sequences_scores.tolist()
    else:  # greedy search returns no score
        tree.scores = [step[0].final_score for step in tree.steps[-1:] if step[0].final_score is not None]
    tree.texts = [loaded.decode(row[start:]) for row in tree.sequences]
    return tree


class _BeamObserver(LogitsProcessor):
    """Keeps the running beams (num_beams, length) and the log-probabilities of their next tokens of each step."""

    def __init__(self, num_beams: int):
        self.num_beams = num_beams
        self.steps: list[tuple[list[tuple[int, ...]], torch.Tensor]] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        # greedy search processes logits, beam search log-probabilities
        log_probabilities = scores.clone() if self.num_beams > 1 else scores.float().log_softmax(-1)
        self.steps.append(([tuple(row) for row in input_ids.tolist()], log_probabilities))
        return scores


class _CandidateObserver(StoppingCriteria):
    """Keeps the candidates (candidates, length) of each step, best first; it stops nothing."""

    def __init__(self):
        self.steps: list[list[tuple[int, ...]]] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor | None, **kwargs) -> torch.Tensor:
        self.steps.append([tuple(row) for row in input_ids.tolist()])
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)


def _fill_steps(tree: BeamTree, loaded: LoadedModel, observer: _BeamObserver, candidates: _CandidateObserver, places):
    """Join what both observers saw; `places` has each result's place."""
    ends, last = loaded.end_tokens, len(candidates.steps) - 1
    scores = {observer.steps[0][0][0]: torch.zeros(())}  # of each running beam, in float32 as generate() adds them
    indices: dict[tuple[int, ...], int] = {}  # of each candidate of the step before
    start = len(observer.steps[0][0][0])
    for number, ((beams, log_probabilities), rows) in enumerate(zip(observer.steps, candidates.steps, strict=True)):
        running = set(observer.steps[number + 1][0]) if number < last else set()
        new_scores, step = {}, []
        for rank, row in enumerate(rows):
            beam, token = row[:-1], row[-1]
            log_probability = log_probabilities[beams.index(beam), token]
            score = scores[beam] + log_probability
            if not score.isfinite():
                continue  # fewer tokens are allowed than candidates are taken
            candidate = Candidate(
                token=token,
                text=loaded.read([token])[0],
                parent=indices.get(beam, -1),
                log_probability=float(log_probability),
                score=float(score),
                outcome="kept" if row in running else "dropped",
            )
            # only the best `num_beams` candidates may end a beam; at the longest length, each of them does
            if rank < tree.num_beams and (token in ends or row in places):
                candidate.outcome = "ended" if token in ends else "cut"
                candidate.final_score = float(score / (len(row) - start) ** tree.length_penalty)
                candidate.place = places.get(row)
            new_scores[row] = score
            step.append(candidate)
        indices = {row: rank for rank, row in enumerate(rows)}
        scores = new_scores
        tree.steps.append(step)


def _cut(row: torch.Tensor, start: int, ends: set[int]) -> torch.Tensor:
    """A returned sequence up to its end token, without the padding behind it."""
    for i, token in enumerate(row.tolist()):
        if i >= start and token in ends:
            return row[: i + 1]
    return row
