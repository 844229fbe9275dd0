# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Converting an article: what does not fit is refused, and the result is a whole model of its own."""

import re

import article_reference as reference
import pytest
import torch
from article_reference import Weights
from test_convert_articles import ANNOTATED_SEQ2SEQ, GELU_SEQ2SEQ, GPT_PLAYGROUND, PAPER_SEQ2SEQ, TINYSTORIES_NOTES

from hf_scratch.convert import from_article
from hf_scratch.models.scratch_layers import SinusoidalPositionalEmbedding

ALL = {
    "gpt-playground": GPT_PLAYGROUND[1],
    "annotated-seq2seq": ANNOTATED_SEQ2SEQ[1],
    "gelu-seq2seq": GELU_SEQ2SEQ[1],
    "paper-seq2seq": PAPER_SEQ2SEQ[1],
    "tinystories-notes": TINYSTORIES_NOTES[1],
}


def make_state(source: str) -> dict[str, torch.Tensor]:
    weights, ids = Weights(), torch.tensor([[3]])
    inputs = {"gpt-playground": 1, "tinystories-notes": 1, "annotated-seq2seq": 2}.get(source, 3)
    getattr(reference, source.replace("-", "_"))(weights, *[ids, ids, torch.ones_like(ids)][:inputs], **ALL[source])
    return dict(weights)


@pytest.mark.parametrize("source", ALL)
def test_what_does_not_fit_is_refused(source):
    state = make_state(source)
    name = [name for name in state if name.endswith("weight") and state[name].dim() == 2][1]
    short = {key: tensor for key, tensor in state.items() if key != name}
    other = make_state("paper-seq2seq" if source == "gelu-seq2seq" else "gelu-seq2seq")
    for wrong in (short, {**state, "something.else": torch.zeros(1)}, {**state, name: torch.zeros(2, 3)}, other):
        with pytest.raises(ValueError, match=f"The state dict is not that of '{source}' with these hyperparameters"):
            from_article(source, wrong, **ALL[source])


@pytest.mark.parametrize(("source", "name"), [("annotated-seq2seq", "pos_encodings.pos_encodings"),
                                              ("gelu-seq2seq", "position_embed.weight")])  # fmt: skip
def test_other_positions_are_not_dropped_silently(source, name):
    table = SinusoidalPositionalEmbedding(50, 32).make_table()
    state = make_state(source) | {f"{stack}.{name}": table[:, None] for stack in ("encoder", "decoder")}
    from_article(source, state, **ALL[source])
    for other in (1 - table, table[:, :-1], torch.zeros(())):
        with pytest.raises(ValueError, match=re.escape(f"{name} holds other positions than the paper's sinusoids")):
            from_article(source, {**state, f"decoder.{name}": other}, **ALL[source])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_the_weights_keep_their_dtype_and_their_owner(dtype):
    state = {name: tensor.to(dtype) for name, tensor in make_state("annotated-seq2seq").items()}
    before = {name: tensor.clone() for name, tensor in state.items()}
    model = from_article("annotated-seq2seq", state, **ALL["annotated-seq2seq"])
    assert {parameter.dtype for parameter in model.parameters()} == {dtype}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert all(state[name].equal(before[name]) for name in state)


def test_mixed_dtypes_become_the_one_that_holds_them_all():
    state = make_state("gpt-playground")
    state["transformer.attention.0.fc1.bias"] += 1e5  # infinite in float16
    mixed = {name: tensor.half() if name == "transformer.emb.weight" else tensor for name, tensor in state.items()}
    model = from_article("gpt-playground", mixed, **GPT_PLAYGROUND[1])
    assert model.dtype == torch.float32
    assert torch.equal(model.model.layers[0].feed_forward.fc1.bias, state["transformer.attention.0.fc1.bias"])


@pytest.mark.parametrize("source", ALL)
def test_a_converted_model_is_saved_and_loaded(source, tmp_path):
    model = from_article(source, make_state(source), **ALL[source])
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path)
    assert loaded.state_dict().keys() == model.state_dict().keys()
    for name, tensor in model.state_dict().items():
        assert loaded.state_dict()[name].equal(tensor)
