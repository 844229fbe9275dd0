# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""What a model does with one sentence, as numbers for the explorer to be compared with.

Every number is observed while `generate()` or `forward` runs. The tree of beams is put together from what `generate()`
shows to a `LogitsProcessor`, its running beams and their log-probabilities, and to a `StoppingCriteria`: candidates.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import AutoConfig, LogitsProcessor, LogitsProcessorList, StoppingCriteria, StoppingCriteriaList

from hf_scratch.loading import auto_class_of, load_checkpoint, load_tokenizer


@dataclass(frozen=True)
class LoadedModel:
    """A model of ours in evaluation mode, with eager attention, which returns its weights, and its tokenizer."""

    model: Any
    tokenizer: Any

    @property
    def is_translator(self) -> bool:
        return self.model.config.is_encoder_decoder

    @property
    def end_tokens(self) -> set[int]:
        eos = self.model.generation_config.eos_token_id
        return set() if eos is None else set(eos) if isinstance(eos, list) else {eos}

    def encode(self, text: str) -> torch.Tensor:
        """Token ids (1, length)."""
        return self.tokenizer(text, return_tensors="pt")["input_ids"]

    def read(self, ids: torch.Tensor | list[int], from_source: bool = False) -> list[str]:
        """Each token on its own, as `show_token` shows it; of the source's vocabulary if there are two."""
        # a decoder drops the space before the first token, so read the token behind itself
        pairs = [self.tokenizer.batch_decode([[i], [i, i]], use_source_tokenizer=from_source) for i in map(int, ids)]
        return [show_token(twice[len(once) :]) for once, twice in pairs]

    def decode(self, ids: torch.Tensor | list[int]) -> str:
        return self.tokenizer.decode(ids, skip_special_tokens=True)


def load_model(path: str | Path) -> LoadedModel:
    auto_class = auto_class_of(AutoConfig.from_pretrained(path))
    model = load_checkpoint(auto_class, path, dtype="float32", attn_implementation="eager").eval()
    return LoadedModel(model, load_tokenizer(path))


@torch.no_grad()
def compute_attention(
    loaded: LoadedModel, input_ids: torch.Tensor, decoder_input_ids: torch.Tensor | None = None
) -> dict[tuple[str, str], torch.Tensor]:
    """The weights (layers, heads, queries, keys) of each stack's attentions in one forward pass."""
    if not loaded.is_translator:
        outputs = loaded.model(input_ids, output_attentions=True)
        return {("decoder", "self_attn"): torch.cat(outputs.attentions)}
    outputs = loaded.model(input_ids, decoder_input_ids=decoder_input_ids, output_attentions=True)
    return {
        ("decoder", "cross_attn"): torch.cat(outputs.cross_attentions),
        ("decoder", "self_attn"): torch.cat(outputs.decoder_attentions),
        ("encoder", "self_attn"): torch.cat(outputs.encoder_attentions),
    }


def show_token(text: str) -> str:
    """A token's text on one line: "·" stands for a space, "↵" for the end of a line, U+00A0 for a no-break space."""
    text = text.replace(" ", "·").replace("\n", "↵").replace("\t", "⇥")
    return "".join(char if char.isprintable() else f"U+{ord(char):04X}" for char in text) or "·"


def cut(row: torch.Tensor, start: int, ends: set[int]) -> torch.Tensor:
    """A returned sequence up to its first end token after `start`, without the padding behind it."""
    found = [i for i in range(start, len(row)) if int(row[i]) in ends]
    return row[: found[0] + 1] if found else row


@dataclass
class Candidate:
    """A beam, continued by one token. Log-probabilities and scores are in nats."""

    token: int
    parent: int  # index of the beam among the step before's candidates; -1 at the first step
    log_probability: float  # of the token after its beam
    score: float  # sum of the log-probabilities of all tokens so far
    outcome: str  # "kept", "dropped", "ended" (with an end token) or "cut" (at the longest length)
    final_score: float | None = None  # of an ended or cut candidate: `score` divided by length ** length_penalty
    place: int | None = None  # of such a candidate that `generate()` returned: its place among the results, from 0


@dataclass
class BeamTree:
    """Each step's candidates, and the sequences that `generate()` returned; all with the best first."""

    steps: list[list[Candidate]] = field(default_factory=list)
    sequences: list[torch.Tensor] = field(default_factory=list)  # from the start token or prompt to the end token
    scores: list[float] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)  # without special tokens and prompt


class _BeamObserver(LogitsProcessor):
    """Keeps the running beams (num_beams, length) and the log-probabilities of their next tokens of each step."""

    def __init__(self, num_beams: int):
        self.num_beams, self.steps = num_beams, []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        # greedy search processes logits, beam search log-probabilities
        log_probabilities = scores.clone() if self.num_beams > 1 else scores.float().log_softmax(-1)
        self.steps.append(([tuple(row) for row in input_ids.tolist()], log_probabilities))
        return scores


class _CandidateObserver(StoppingCriteria):
    """Keeps the candidates (candidates, length) of each step, best first; it stops nothing."""

    def __init__(self):
        self.steps = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor | None, **kwargs) -> torch.Tensor:
        self.steps.append([tuple(row) for row in input_ids.tolist()])
        return torch.zeros(len(input_ids), dtype=torch.bool)


@torch.no_grad()
def search_beams(
    loaded: LoadedModel, input_ids: torch.Tensor, num_beams: int, max_new_tokens: int | None = None
) -> BeamTree:
    """The tree of a beam search; 1 beam is greedy search. Default length: the model's generation config."""
    beams, candidates = _BeamObserver(num_beams), _CandidateObserver()
    outputs = loaded.model.generate(
        input_ids,
        do_sample=False,
        num_beams=num_beams,
        num_return_sequences=num_beams,
        output_scores=True,
        return_dict_in_generate=True,
        logits_processor=LogitsProcessorList([beams]),
        stopping_criteria=StoppingCriteriaList([candidates]),
        **({} if max_new_tokens is None else {"max_new_tokens": max_new_tokens}),
    )
    start = 1 if loaded.is_translator else input_ids.shape[1]
    tree = BeamTree(sequences=[cut(row, start, loaded.end_tokens) for row in outputs.sequences])
    tree.texts = [loaded.decode(row[start:]) for row in tree.sequences]
    _fill_steps(tree, loaded, num_beams, beams.steps, candidates.steps)
    if num_beams > 1:
        tree.scores = outputs.sequences_scores.tolist()
    else:  # greedy search returns no score
        tree.scores = [step[0].final_score for step in tree.steps[-1:] if step[0].final_score is not None]
    return tree


def _fill_steps(tree: BeamTree, loaded: LoadedModel, num_beams: int, beam_steps: list, candidate_steps: list) -> None:
    """Join what both observers saw."""
    ends, length_penalty = loaded.end_tokens, loaded.model.generation_config.length_penalty
    places = {tuple(row.tolist()): place for place, row in reversed(list(enumerate(tree.sequences)))}
    scores = {beam_steps[0][0][0]: torch.zeros(())}  # of each running beam, in float32 as generate() adds them
    indices: dict[tuple[int, ...], int] = {}  # of each candidate of the step before
    start = len(beam_steps[0][0][0])
    for number, ((beams, log_probabilities), rows) in enumerate(zip(beam_steps, candidate_steps, strict=True)):
        running = set(beam_steps[number + 1][0]) if number + 1 < len(beam_steps) else set()
        new_scores, step = {}, []
        for rank, row in enumerate(rows):
            beam, token = row[:-1], row[-1]
            log_probability = log_probabilities[beams.index(beam), token]
            score = scores[beam] + log_probability
            if not score.isfinite():
                continue  # fewer tokens are allowed than candidates are taken
            outcome = "kept" if row in running else "dropped"
            candidate = Candidate(token, indices.get(beam, -1), float(log_probability), float(score), outcome)
            # only the best `num_beams` candidates may end a beam; at the longest length, each of them does
            if rank < num_beams and (token in ends or row in places):
                candidate.outcome = "ended" if token in ends else "cut"
                exponent = 1.0 if length_penalty is None else length_penalty
                candidate.final_score = float(score / (len(row) - start) ** exponent)
                candidate.place = places.get(row)
            new_scores[row] = score
            step.append(candidate)
        indices = {row: rank for rank, row in enumerate(rows)}
        scores = new_scores
        tree.steps.append(step)


class Alternative(NamedTuple):
    """A token that could have come."""

    token: int
    text: str
    probability: float


class Prediction(NamedTuple):
    """A token, and what the model expected in its place."""

    token: int
    probability: float
    rank: int  # how many tokens were likelier
    alternatives: list[Alternative]  # the ten likeliest tokens, best first


@torch.no_grad()
def predict_tokens(
    loaded: LoadedModel, input_ids: torch.Tensor, decoder_input_ids: torch.Tensor | None = None
) -> list[Prediction]:
    """The probability of each token of a text or translation (1, length) but the first, which nothing predicts."""
    ids = input_ids if decoder_input_ids is None else decoder_input_ids
    given = {} if decoder_input_ids is None else {"decoder_input_ids": decoder_input_ids}
    predictions = []
    for token, logits in zip(ids[0, 1:].tolist(), loaded.model(input_ids, **given).logits[0, :-1], strict=True):
        probabilities = logits.softmax(-1)
        best = probabilities.topk(10)
        columns = zip(best.indices.tolist(), loaded.read(best.indices), best.values.tolist(), strict=True)
        rank = int((probabilities > probabilities[token]).sum())
        alternatives = [Alternative(*column) for column in columns]
        predictions.append(Prediction(token, float(probabilities[token]), rank, alternatives))
    return predictions
