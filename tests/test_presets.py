# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""The five articles' presets: sizes counted by hand, and recipes that train the same models."""

import pytest
from conftest import ROOT

from hf_scratch import ScratchGPTForCausalLM, ScratchTransformerForConditionalGeneration
from hf_scratch.convert.presets import PRESETS, make_preset
from hf_scratch.recipes import read_recipe


def test_gpt_playground():
    config = make_preset("gpt-playground", n_layer=2, n_head=4, embedding_dim=48, vocab_size=65, block_size=32)
    attention = 3 * (48 * 48 + 48) + (48 * 48 + 48)
    block = attention + 2 * 2 * 48 + (48 * 192 + 192) + (192 * 48 + 48)
    expected = 65 * 48 + 32 * 48 + 2 * block + 2 * 48 + 48 * 65
    assert ScratchGPTForCausalLM(config).num_parameters() == expected


def test_annotated_seq2seq():
    config = make_preset(
        "annotated-seq2seq", vocab_enc=90, vocab_dec=80, maxlen=50, pad_id=0, dm=64, dk=6, dv=16, nhead=4, layers=2,
        dff=100,
    )  # fmt: skip
    attention = 2 * 64 * 24 + 64 * 64 + (64 * 64 + 64)
    feed_forward = 64 * 100 + 100 + 100 * 64 + 64
    encoder, decoder = attention + feed_forward + 2 * 128, 2 * attention + feed_forward + 3 * 128
    expected = 90 * 64 + 80 * 64 + 2 * encoder + 2 * decoder + 64 * 80 + 80
    assert ScratchTransformerForConditionalGeneration(config).num_parameters() == expected


@pytest.mark.parametrize("bias", [False, True])
def test_gelu_and_paper_seq2seq(bias):
    if bias:
        config = make_preset("paper-seq2seq", vocab_size=50, d_model=32, n_head=4, hidden_dim=128, num_layers=1)
    else:
        config = make_preset("gelu-seq2seq", vocab_size=50, embed_size=32, heads=4, num_layers=1, max_len=20)
    attention = 4 * (32 * 32 + 32 * bias)
    feed_forward = 32 * 128 + 128 + 128 * 32 + 32
    expected = 2 * 50 * 32 + 3 * attention + 2 * feed_forward + 5 * 64 + 32 * 50 + 50
    assert ScratchTransformerForConditionalGeneration(config).num_parameters() == expected


@pytest.mark.parametrize("mask", [True, False])
def test_tinystories_notes(mask):
    config = make_preset("tinystories-notes", vocab_size=300, mask=mask)
    block = 3 * 64 * 64 + (64 * 64 + 64) + 2 * 128 + (64 * 256 + 256) + (256 * 64 + 64)
    expected = 300 * 64 + 128 * 64 + 128 + 4 * block + 64 * 300 + 300
    assert ScratchGPTForCausalLM(config).num_parameters() == expected
    assert config.is_causal == mask


# the recipe that trains an article's model, and the article's arguments that give the same
RECIPES = {
    "gpt-playground": (
        "tinystories_char", {"n_layer": 6, "n_head": 8, "embedding_dim": 256, "vocab_size": 65, "block_size": 256},
    ),
    "annotated-seq2seq": ("multi30k_article", {"vocab_enc": 65, "vocab_dec": 65, "maxlen": 256, "pad_id": 0}),
    "gelu-seq2seq": (
        "multi30k_gelu", {"vocab_size": 65, "embed_size": 512, "heads": 8, "num_layers": 6, "max_len": 256},
    ),
    "paper-seq2seq": (
        "multi30k_paper",
        {"vocab_size": 65, "d_model": 512, "n_head": 8, "hidden_dim": 2048, "num_layers": 6, "max_len": 256},
    ),
    "tinystories-notes": ("tinystories_article", {"vocab_size": 65}),
}  # fmt: skip


@pytest.mark.parametrize("name", PRESETS)
def test_a_recipe_trains_each_articles_model(name):
    recipe, arguments = RECIPES[name]
    overrides = read_recipe(ROOT / "scripts" / "recipes" / f"{recipe}.yaml")["config_overrides"]
    preset = make_preset(name, **arguments)
    # the preset's epsilon is folded from the article's unbiased variance, the recipe's is the article's own
    kept = {key: value for key, value in overrides.items() if key != "layer_norm_eps"}
    assert {key: getattr(preset, key) for key in kept} == kept
    ours = type(preset)(
        **{"vocab_size": 65, "decoder_vocab_size": 65, "pad_token_id": preset.pad_token_id, **overrides}
    )
    for key, value in preset.to_dict().items():
        kinds = ("dropout", "_bias", "norm_first", "layernorm", "_embeddings", "act", "activation_function")
        if key.endswith(kinds) and key != "max_position_embeddings":
            assert getattr(ours, key) == value, key
