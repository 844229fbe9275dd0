# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""The articles' presets: a size counted by hand, and recipes that train the same models."""

import pytest
import torch
from conftest import ROOT
from transformers import DataCollatorForSeq2Seq, Seq2SeqTrainingArguments, TrainingArguments

from hf_scratch import ScratchGPTConfig, ScratchTransformerConfig, ScratchTransformerForConditionalGeneration
from hf_scratch.convert.presets import PRESETS, make_preset, preset_fields
from hf_scratch.loading import auto_class_of
from hf_scratch.training.arguments import LanguageModelArguments, ModelArguments, TranslationArguments
from hf_scratch.training.command_line import parse_arguments, read_model_fields


@pytest.mark.parametrize("mask", [True, False])
def test_tinystories_notes(mask):
    block = 3 * 64 * 64 + (64 * 64 + 64) + 2 * 128 + (64 * 256 + 256) + (256 * 64 + 64)
    expected = 300 * 64 + 128 * 64 + 128 + 4 * block + 64 * 300 + 300
    config = make_preset("tinystories-notes", vocab_size=300, mask=mask)
    assert auto_class_of(config).from_config(config).num_parameters() == expected
    assert config.is_causal == mask


# for each recipe of an article's model the article, and the arguments that its constructor would get
RECIPES = {
    "tinystories_char": (
        "gpt-playground", {"n_layer": 6, "n_head": 8, "embedding_dim": 256, "vocab_size": 65, "block_size": 256},
    ),
    "multiplication": (
        "gpt-playground", {"n_layer": 4, "n_head": 4, "embedding_dim": 128, "vocab_size": 65, "block_size": 11},
    ),
    "multi30k_article": ("annotated-seq2seq", {"vocab_enc": 65, "vocab_dec": 65, "maxlen": 256, "pad_id": 0}),
    "multi30k_gelu": (
        "gelu-seq2seq", {"vocab_size": 65, "embed_size": 128, "heads": 4, "num_layers": 4, "max_len": 256},
    ),
    "multi30k_paper": (
        "paper-seq2seq",
        {"vocab_size": 65, "d_model": 128, "n_head": 4, "hidden_dim": 256, "num_layers": 4, "max_len": 256},
    ),
    "summaries": (
        "paper-seq2seq",
        {"vocab_size": 65, "d_model": 128, "n_head": 4, "hidden_dim": 256, "num_layers": 2, "max_len": 128},
    ),
    "tinystories_article": ("tinystories-notes", {"vocab_size": 65}),
}  # fmt: skip


def parse_recipe(recipe, *flags):
    types = (LanguageModelArguments, TrainingArguments)
    if RECIPES[recipe][0].endswith("seq2seq"):
        types = (TranslationArguments, Seq2SeqTrainingArguments)
    words = [str(ROOT / "scripts" / "recipes" / f"{recipe}.yaml"), "--output_dir", "x", *flags]
    (model_args, data_args, _), _ = parse_arguments(ModelArguments, *types, args=words)
    return model_args, data_args


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_trains_its_articles_model(recipe):
    name, arguments = RECIPES[recipe]
    expected = make_preset(name, **arguments)
    model_args, data_args = parse_recipe(recipe)
    assert model_args.preset == name
    fields = read_model_fields(model_args, type(expected))
    assert not {"vocab_size", "decoder_vocab_size", "pad_token_id", "eos_token_id"} & fields.keys()
    if name in ("gpt-playground", "tinystories-notes"):  # as train_language_model.py does
        fields["max_position_embeddings"] = data_args.block_size
    ours = type(expected)(vocab_size=65, **fields).to_dict()
    differences = {key for key, value in expected.to_dict().items() if ours[key] != value}
    # the preset's epsilon is folded from the article's unbiased variance; the recipe trains with the article's own
    assert {key for key in differences if not key.endswith("_token_id")} == (
        {"layer_norm_eps"} if recipe == "multi30k_article" else set()
    )
    if recipe == "multi30k_article":
        assert fields["layer_norm_eps"] == 1e-6


def test_each_article_has_a_recipe():
    assert {name for name, _ in RECIPES.values()} == set(PRESETS)


def test_flags_override_a_preset():
    flags = ("--preset_hyperparameters", "n_layer=2", "--config_overrides", "hidden_dropout=0.3")
    model_args, _ = parse_recipe("tinystories_char", *flags)
    fields = read_model_fields(model_args, ScratchGPTConfig)
    assert (fields["num_hidden_layers"], fields["hidden_size"]) == (2, 256)
    assert (fields["hidden_dropout"], fields["attention_dropout"]) == (0.3, 0.1)


def test_what_a_preset_does_not_know_is_named():
    for call, message in (
        (lambda: preset_fields("tinystories-notes", ScratchTransformerConfig), "this trains a ScratchTransformerConf"),
        (lambda: preset_fields("tinystories-notes", ScratchGPTConfig, layers=3), "argument 'layers'"),
        (lambda: preset_fields("gpt-playground", ScratchGPTConfig, n_layer=3, n_head=2), "argument: 'embedding_dim'"),
        (lambda: make_preset("bert"), "There is no article 'bert'"),
    ):
        with pytest.raises(ValueError, match=message):
            call()


def test_a_preset_without_a_start_says_what_to_set(joint_tokenizer):
    config = make_preset("paper-seq2seq", vocab_size=300, d_model=8, n_head=1, hidden_dim=10, num_layers=1, max_len=12)
    model, labels = ScratchTransformerForConditionalGeneration(config), torch.tensor([[5, 6, 2]])
    with pytest.raises(ValueError, match="decoder_start_token_id"):
        DataCollatorForSeq2Seq(joint_tokenizer, model=model)([{"input_ids": [5, 2], "labels": [5, 6, 2]}])
    # as convert/README.md says
    ids = {"pad_token_id": 0, "decoder_start_token_id": 1, "eos_token_id": 2}
    for name, token_id in ids.items():
        setattr(model.config, name, token_id)
    model.generation_config.update(**ids, max_length=6)
    assert model.prepare_decoder_input_ids_from_labels(labels).tolist() == [[1, 5, 6]]
    assert model.generate(labels, do_sample=False)[0, 0] == 1
