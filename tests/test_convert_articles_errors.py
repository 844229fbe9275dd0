# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Converting an article: what does not fit is named, and the result is a whole model of its own."""

import re

import article_reference as reference
import pytest
import torch
from article_reference import Weights
from test_convert_articles import ANNOTATED_SEQ2SEQ, GELU_SEQ2SEQ, GPT_PLAYGROUND, PAPER_SEQ2SEQ, TINYSTORIES_NOTES

from hf_scratch.convert import from_article
from hf_scratch.convert.presets import make_preset
from hf_scratch.models.layers import SinusoidalPositionalEmbedding


def make_state(source: str, hyperparameters: dict) -> Weights:
    weights = Weights()
    if source in ("gpt-playground", "tinystories-notes"):
        getattr(reference, source.replace("-", "_"))(weights, torch.tensor([[3]]), **hyperparameters)
    elif source == "annotated-seq2seq":
        reference.annotated_seq2seq(weights, torch.tensor([[3]]), torch.tensor([[3]]), **hyperparameters)
    else:
        ids = torch.tensor([[3]])
        getattr(reference, source.replace("-", "_"))(weights, ids, ids, torch.ones_like(ids), **hyperparameters)
    return weights


ALL = {
    "gpt-playground": GPT_PLAYGROUND[1],
    "annotated-seq2seq": ANNOTATED_SEQ2SEQ[1],
    "gelu-seq2seq": GELU_SEQ2SEQ[1],
    "paper-seq2seq": PAPER_SEQ2SEQ[1],
    "tinystories-notes": TINYSTORIES_NOTES[1],
}


@pytest.mark.parametrize("source", ALL)
@pytest.mark.parametrize("other", ALL)
def test_another_articles_weights_are_recognised(source, other):
    if source != other:
        with pytest.raises(ValueError, match=f"It looks like '{other}'"):
            from_article(source, make_state(other, ALL[other]), **ALL[source])


@pytest.mark.parametrize("source", ALL)
def test_what_does_not_fit_is_listed(source):
    state = dict(make_state(source, ALL[source]))
    name = [name for name in state if name.endswith("weight") and state[name].dim() == 2][1]
    short = {key: tensor for key, tensor in state.items() if key != name}
    with pytest.raises(ValueError, match=f"missing: {re.escape(name)}"):
        from_article(source, short, **ALL[source])
    with pytest.raises(ValueError, match=r"not of this article: something\.else"):
        from_article(source, {**state, "something.else": torch.zeros(1)}, **ALL[source])
    wrong = {**state, name: torch.zeros(2, 3)}
    with pytest.raises(ValueError, match=re.escape(f"{name} is (2, 3), but the hyperparameters make it")):
        from_article(source, wrong, **ALL[source])


@pytest.mark.parametrize(
    ("source", "hyperparameters", "message"),
    [
        ("gpt-playgrounds", {}, "gpt-playground, annotated-seq2seq"),
        ("gpt-playground", {**GPT_PLAYGROUND[0], "heads": 2}, "heads is not one of them"),
        ("gpt-playground", {"n_layer": 2}, "n_head, embedding_dim, vocab_size, block_size must be given"),
    ],
)
def test_wrong_hyperparameters_are_named(source, hyperparameters, message):
    with pytest.raises(ValueError, match=message):
        make_preset(source, **hyperparameters)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_the_weights_keep_their_dtype_and_their_owner(dtype):
    state = {
        name: tensor.to(dtype) for name, tensor in make_state("annotated-seq2seq", ALL["annotated-seq2seq"]).items()
    }
    before = {name: tensor.clone() for name, tensor in state.items()}
    model = from_article("annotated-seq2seq", state, **ALL["annotated-seq2seq"])
    assert {parameter.dtype for parameter in model.parameters()} == {dtype}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert all(state[name].equal(before[name]) for name in state)


@pytest.mark.parametrize("source", ALL)
def test_a_converted_model_is_saved_and_loaded(source, tmp_path):
    model = from_article(source, make_state(source, ALL[source]), **ALL[source])
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path)
    assert loaded.state_dict().keys() == model.state_dict().keys()
    for name, tensor in model.state_dict().items():
        assert loaded.state_dict()[name].equal(tensor)


@pytest.mark.parametrize(
    ("hyperparameters", "message"),
    [
        ({"n_layer": "six"}, "'num_hidden_layers' expected int"),
        ({"n_layer": 0}, "'num_hidden_layers': ValueError: Value must be a positive integer, got 0"),
        ({"n_head": 3}, "does not divide"),
        ({"vocab_size": 10**10}, r"hyperparameters make it \(10000000000, 32\)"),  # and takes no memory for it
    ],
)
def test_hyperparameters_that_make_no_model_are_refused_in_one_line(hyperparameters, message):
    given = {"n_layer": 2, "n_head": 4, "embedding_dim": 32, "vocab_size": 40, "block_size": 16}
    weights = reference.Weights()
    reference.gpt_playground(weights, torch.tensor([[3, 4]]), **given)
    with pytest.raises(ValueError, match=message) as error:
        from_article("gpt-playground", dict(weights), **{**given, **hyperparameters})
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "state", [None, [1], {1: torch.ones(2)}, {"w": 1}, {"w": torch.ones(2, device="meta")}], ids=str
)
def test_what_is_no_state_dict_is_refused(state):
    with pytest.raises(ValueError, match="`state_dict` must map names to dense tensors"):
        from_article("tinystories-notes", state)


@pytest.mark.parametrize(
    ("source", "buffer", "what"),
    [
        ("gpt-playground", ".attn.bias", "mask"),
        ("tinystories-notes", ".tril", "mask"),
        ("annotated-seq2seq", ".pos_encodings.pos_encodings", "table of positions"),
        ("gelu-seq2seq", ".position_embed.weight", "table of positions"),
    ],
)
def test_another_mask_or_table_of_positions_is_not_dropped_silently(source, buffer, what):
    hyperparameters = ALL[source]
    state = dict(make_state(source, hyperparameters))
    if source == "gelu-seq2seq":  # the article does not define the class
        table = SinusoidalPositionalEmbedding(50, hyperparameters["embed_size"]).make_table()
        state |= {f"{stack}{buffer}": table[:, None] for stack in ("encoder", "decoder")}
    from_article(source, state, **hyperparameters)
    name = next(name for name in state if name.endswith(buffer))
    for other in (1 - state[name], state[name][..., :-1], torch.zeros(())):
        with pytest.raises(ValueError, match=f"{re.escape(name)} is another {what} than the article's"):
            from_article(source, {**state, name: other}, **hyperparameters)


def test_mixed_dtypes_become_the_one_that_holds_them_all():
    state = dict(make_state("gpt-playground", GPT_PLAYGROUND[1]))
    state["transformer.attention.0.fc1.bias"] += 1e5  # infinite in float16
    mixed = {name: tensor.half() if name == "transformer.emb.weight" else tensor for name, tensor in state.items()}
    model = from_article("gpt-playground", mixed, **GPT_PLAYGROUND[1])
    assert model.dtype == torch.float32
    assert torch.equal(model.model.layers[0].feed_forward.fc1.bias, state["transformer.attention.0.fc1.bias"])
