# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Each token's probability and its alternatives."""

from dataclasses import dataclass

import torch

from .models import LoadedModel


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
