# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Each token's probability and its alternatives, and what temperature, top-k and top-p do to a distribution."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from transformers import LogitsProcessorList, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from .models import LoadedModel


@dataclass
class Alternative:
    """A token that could have come.

    Args:
        token: the token's id.
        text: the token as `show_token` shows it.
        probability: the model's.
        shaped: the probability after temperature, top-k and top-p; 0: the token cannot be drawn.
    """

    token: int
    text: str
    probability: float
    shaped: float


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


def shape_probabilities(
    logits: torch.Tensor, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0
) -> torch.Tensor:
    """The probabilities that `generate(do_sample=True)` draws from, by its own classes.

    Args:
        logits: (rows, tokens).
        temperature: divides the logits: below 1 the likely tokens gain, above 1 the unlikely ones.
        top_k: only this many of the likeliest tokens stay; 0: all.
        top_p: only the fewest likeliest tokens stay that together have at least this probability; 1: all.

    Returns:
        (rows, tokens), each row's sum is 1.

    Raises:
        ValueError: an option is out of its range.
    """
    warpers = LogitsProcessorList()
    if temperature != 1.0:
        warpers.append(TemperatureLogitsWarper(float(temperature)))
    if top_k:
        warpers.append(TopKLogitsWarper(top_k))
    if top_p < 1.0:
        warpers.append(TopPLogitsWarper(top_p))
    # none of these warpers reads the ids
    ids = torch.empty(len(logits), 0, dtype=torch.long)
    return warpers(ids, logits.float()).softmax(-1)  # ty: ignore[invalid-argument-type]


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
    if loaded.is_translator:
        logits = loaded.model(input_ids=input_ids, decoder_input_ids=decoder_input_ids).logits
        ids = decoder_input_ids
    else:
        logits, ids = loaded.model(input_ids=input_ids).logits, input_ids
    assert ids is not None
    return [
        make_prediction(loaded, row, int(token), num_alternatives)
        for row, token in zip(logits[0, :-1], ids[0, 1:], strict=True)
    ]


def make_prediction(
    loaded: LoadedModel, logits: torch.Tensor, token: int, num_alternatives: int = 10, **shape
) -> Prediction:
    """What a row of logits (tokens) says of a token.

    Args:
        loaded: the model.
        logits: (tokens), of the place before the token.
        token: the token's id.
        num_alternatives: how many of the likeliest tokens to keep.
        shape: see `shape_probabilities`.
    """
    probabilities = logits.float().softmax(-1)
    shaped = shape_probabilities(logits[None], **shape)[0]
    best = probabilities.topk(min(num_alternatives, len(probabilities)))
    alternatives = [
        Alternative(i, text, probability, float(shaped[i]))
        for i, text, probability in zip(
            best.indices.tolist(), loaded.read(best.indices), best.values.tolist(), strict=True
        )
    ]
    rank = int((probabilities > probabilities[token]).sum())
    return Prediction(token, loaded.read([token])[0], float(probabilities[token]), rank, alternatives)


@torch.no_grad()
def write_tokens(
    loaded: LoadedModel,
    input_ids: torch.Tensor,
    max_new_tokens: int,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int = 0,
) -> Iterator[Prediction]:
    """Continue a text token by token. The tokens are those of `generate(do_sample=True)` after `manual_seed(seed)`.

    The random numbers come from a generator of this call, so that several threads may write at once.

    Args:
        loaded: a GPT.
        input_ids: (1, length), the text.
        max_new_tokens: at most this many tokens; fewer if the end token comes or no position is left.
        temperature: see `shape_probabilities`; 0: the likeliest token each time.
        top_k: see `shape_probabilities`.
        top_p: see `shape_probabilities`.
        seed: of the random numbers.

    Yields:
        Each new token, as soon as it is drawn.
    """
    shape: dict[str, Any] = {"temperature": temperature or 1.0, "top_k": top_k, "top_p": top_p}
    random = torch.Generator().manual_seed(seed)
    cache, ids = None, input_ids
    # the last token is never read, so it needs no position
    room = loaded.model.config.max_position_embeddings + 1 - input_ids.shape[1]
    for _ in range(min(max_new_tokens, room)):
        outputs = loaded.model(input_ids=ids, cache=cache, use_cache=True, logits_to_keep=1)
        logits, cache = outputs.logits[0, -1], outputs.cache
        if temperature == 0:
            token = int(logits.argmax())
        else:
            token = int(torch.multinomial(shape_probabilities(logits[None], **shape), 1, generator=random))
        yield make_prediction(loaded, logits, token, **shape)
        if token in loaded.end_tokens:
            return
        ids = torch.tensor([[token]])
