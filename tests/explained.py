# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""What a model does with one sentence, as numbers for the explorer to be compared with.

Every number is observed while `generate()` or `forward` runs. The tree of beams is put together from what `generate()`
shows to a `LogitsProcessor`, its running beams and their log-probabilities, and to a `StoppingCriteria`: candidates.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    LogitsProcessor,
    LogitsProcessorList,
    StoppingCriteria,
    StoppingCriteriaList,
)

from hf_scratch.loading import check_fits, find_model, load_checkpoint, load_tokenizer


@dataclass(frozen=True)
class LoadedModel:
    """A model of ours with its tokenizer.

    Args:
        model: in evaluation mode, in float32 on the CPU, with eager attention, the only kind that returns its weights.
        tokenizer: its tokenizer.
    """

    model: Any
    tokenizer: Any

    @property
    def is_translator(self) -> bool:
        """Whether it is the encoder-decoder; otherwise it is the GPT."""
        return self.model.config.is_encoder_decoder

    @property
    def end_tokens(self) -> set[int]:
        """The ids of the tokens that end a text."""
        eos = self.model.generation_config.eos_token_id
        return set() if eos is None else set(eos) if isinstance(eos, list) else {eos}

    def encode(self, text: str, longest: int | None = None) -> torch.Tensor:
        """Encode a text as the model reads it.

        Args:
            text: what the model reads.
            longest: at most this many tokens. Default: the model's positions.

        Returns:
            Token ids (1, length), int64.

        Raises:
            ValueError: the text is blank, or has too many tokens.
        """
        ids = self.tokenizer(text, return_tensors="pt", verbose=False)["input_ids"]
        limit = min(longest or self.model.config.max_position_embeddings, self.model.config.max_position_embeddings)
        if not text.strip() or ids.shape[1] > limit:
            raise ValueError(f"`text` has {ids.shape[1]} tokens, but must be some words of at most {limit} tokens.")
        return ids

    def read(self, ids: torch.Tensor | list[int], from_source: bool = False) -> list[str]:
        """Read each token on its own, with its space and as `show_token` shows it.

        Args:
            ids: token ids (length).
            from_source: whether they are of the source's vocabulary. A model with one vocabulary ignores it.
        """
        # a decoder drops the space before the first token, so read the token behind itself
        pairs = [self.tokenizer.batch_decode([[i], [i, i]], use_source_tokenizer=from_source) for i in map(int, ids)]
        return [show_token(twice[len(once) :]) for once, twice in pairs]

    def decode(self, ids: torch.Tensor | list[int]) -> str:
        """Read ids of the target's vocabulary as one text, without special tokens."""
        return self.tokenizer.decode(ids, skip_special_tokens=True)


def load_model(path: str | Path) -> LoadedModel:
    """Load a folder or Hub id of either family.

    Raises:
        ValueError: see `load_checkpoint`, `load_tokenizer` and `check_fits`; or the model is an encoder.
    """
    config = AutoConfig.from_pretrained(find_model(path))
    if not getattr(config, "is_causal", True):
        raise ValueError(f"`model` is {str(path)!r}, which fills in masked tokens and does not predict the next one.")
    auto_class = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    model = load_checkpoint(auto_class, path, dtype="float32", attn_implementation="eager").eval()
    tokenizer = load_tokenizer(path)
    check_fits(tokenizer, config)
    return LoadedModel(model, tokenizer)


@torch.no_grad()
def compute_attention(
    loaded: LoadedModel, input_ids: torch.Tensor, decoder_input_ids: torch.Tensor | None = None
) -> dict[str, torch.Tensor]:
    """Run the model once and return its attention weights.

    Args:
        loaded: the model.
        input_ids: (1, length), what it reads.
        decoder_input_ids: (1, target length) for the encoder-decoder: the start token and the target's tokens.

    Returns:
        For each attention its weights (layers, heads, queries, keys). A query's weights sum to 1. The GPT has
        "self-attention"; the encoder-decoder has "cross-attention", "decoder self-attention" and
        "encoder self-attention".
    """
    inputs = {"input_ids": input_ids}
    if loaded.is_translator:
        inputs["decoder_input_ids"] = decoder_input_ids
    outputs = loaded.model(**inputs, use_cache=False, output_attentions=True)
    if not loaded.is_translator:
        return {"self-attention": torch.cat(outputs.attentions)}
    return {
        "cross-attention": torch.cat(outputs.cross_attentions),
        "decoder self-attention": torch.cat(outputs.decoder_attentions),
        "encoder self-attention": torch.cat(outputs.encoder_attentions),
    }


def show_token(text: str) -> str:
    """A token's text on one line: "·" stands for a space, "↵" for the end of a line, U+00A0 for a no-break space."""
    text = text.replace(" ", "·").replace("\n", "↵").replace("\t", "⇥")
    return "".join(char if char.isprintable() else f"U+{ord(char):04X}" for char in text) or "·"


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


@dataclass
class Alternative:
    """A token that could have come.

    Args:
        token: the token's id.
        text: the token as `show_token` shows it.
        probability: the model's.
    """

    token: int
    text: str
    probability: float


@dataclass
class Prediction:
    """A token, and what the model expected in its place.

    Args:
        token: the token's id.
        text: the token as `show_token` shows it.
        probability: the model's probability of the token after those before it.
        rank: how many tokens were likelier.
        alternatives: the likeliest tokens, best first.
    """

    token: int
    text: str
    probability: float
    rank: int
    alternatives: list[Alternative]


@torch.no_grad()
def predict_tokens(
    loaded: LoadedModel,
    input_ids: torch.Tensor,
    decoder_input_ids: torch.Tensor | None = None,
    num_alternatives: int = 10,
) -> list[Prediction]:
    """The probability of each token of a text or translation. Row t of the logits predicts token t + 1.

    Args:
        loaded: the model.
        input_ids: (1, length), what the GPT predicts or the encoder-decoder translates.
        decoder_input_ids: (1, target length), start token and translation, of the encoder-decoder.
        num_alternatives: how many of the likeliest tokens to keep for each place.

    Returns:
        A prediction for each token but the first, which nothing predicts.
    """
    inputs, ids = {"input_ids": input_ids}, input_ids
    if decoder_input_ids is not None:
        inputs["decoder_input_ids"] = ids = decoder_input_ids
    tokens = ids[0, 1:].tolist()
    predictions = []
    for token, text, logits in zip(tokens, loaded.read(tokens), loaded.model(**inputs).logits[0, :-1], strict=True):
        probabilities = logits.float().softmax(-1)
        best = probabilities.topk(min(num_alternatives, len(probabilities)))
        columns = zip(best.indices.tolist(), loaded.read(best.indices), best.values.tolist(), strict=True)
        rank = int((probabilities > probabilities[token]).sum())
        alternatives = [Alternative(*column) for column in columns]
        predictions.append(Prediction(token, text, float(probabilities[token]), rank, alternatives))
    return predictions
