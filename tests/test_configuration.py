# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""A configuration either makes a model that works, or is refused when it is made, naming the field."""

import inspect
import random

import pytest
import torch
from conftest import FAMILIES, NOT_COMPUTED, TRANSFORMER, VARIANTS, make_transformer
from huggingface_hub.errors import StrictDataclassError

from hf_scratch import ScratchGPTConfig, ScratchTransformerConfig, ScratchTransformerForConditionalGeneration
from hf_scratch.loading import auto_class_of

CONFIGS = {"gpt": ScratchGPTConfig, "transformer": ScratchTransformerConfig}


def test_each_field_is_varied_or_said_not_to_change_the_computation(family, model):
    """A new field fails here until VARIANTS holds another value of it: then every way to compute it is compared."""
    fields = [field for overrides in VARIANTS[family].values() for field in overrides.items()]
    varied = {name for name, value in fields if value != getattr(model.config, name)}
    assert varied.isdisjoint(NOT_COMPUTED[family])
    assert varied | NOT_COMPUTED[family] == set(inspect.get_annotations(CONFIGS[family]))


REFUSED = [
    ("gpt", {"num_attention_heads": 5}, "num_attention_heads"),
    ("gpt", {"vocab_size": 0}, "vocab_size"),
    ("gpt", {"hidden_dropout": 1.5}, "hidden_dropout"),
    ("gpt", {"position_embedding_type": "rotary"}, "position_embedding_type"),
    ("gpt", {"hidden_act": "glue"}, "hidden_act"),
    ("transformer", {"encoder_attention_heads": 5}, "d_model"),
    ("transformer", {"decoder_attention_heads": 3}, "d_model"),
    ("transformer", {"decoder_vocab_size": 70}, "share_encoder_decoder_embeddings"),
    ("transformer", {"initializer": "zeros"}, "initializer"),
]


@pytest.mark.parametrize(("family", "fields", "named"), REFUSED)
def test_a_wrong_config_names_the_field(family, fields, named):
    with pytest.raises((ValueError, StrictDataclassError), match=named):
        FAMILIES[family](**fields)


def test_the_generic_names_are_those_of_the_fields():
    config = ScratchTransformerConfig(**TRANSFORMER)
    assert (config.hidden_size, config.num_hidden_layers, config.num_attention_heads) == (32, 2, 4)
    assert config.get_text_config(decoder=True).num_hidden_layers == 3
    named = ScratchTransformerConfig(hidden_size=64)
    assert named.init_std == 64**-0.5  # derived from the width
    assert named.to_dict() == ScratchTransformerConfig(d_model=64).to_dict()


def test_a_bidirectional_gpt_has_no_cache():
    assert ScratchGPTConfig(is_causal=False).use_cache is False


@pytest.mark.parametrize("name", ["pad_token_id", "decoder_start_token_id"])
def test_labels_need_the_ids_that_make_the_decoders_input(name):
    model, ids = make_transformer(**{name: None}), torch.tensor([[3, 4, 5]])
    with pytest.raises(ValueError, match=name):
        model(ids, labels=ids)
    assert model(ids, labels=ids, decoder_input_ids=ids).loss.isfinite()


@pytest.mark.parametrize("share", [True, False])
def test_a_vocabulary_assigned_to_the_config_is_the_models(share):
    config = ScratchTransformerConfig(**TRANSFORMER, share_encoder_decoder_embeddings=share)
    config.vocab_size = 70
    model = ScratchTransformerForConditionalGeneration(config)
    assert model.get_encoder().embed_tokens.num_embeddings == 70
    assert model.lm_head.out_features == model.config.decoder_vocab_size == (70 if share else 60)


# random configurations that are not refused

YES_OR_NO = [True, False]
CHOICES = {
    "gpt": {
        "vocab_size": [3, 20],
        "hidden_size": [6, 24],
        "num_hidden_layers": [1, 2],
        "num_attention_heads": [1, 2, 3],
        "head_dim": [None, 1, 5],
        "intermediate_size": [None, 1, 7],
        "max_position_embeddings": [2, 9],
        "hidden_act": ["gelu_new", "relu2", "swish", "xielu", "prelu", "linear"],
        "layer_norm_eps": [1e-12, 1e-5, 1.0],
        "position_embedding_type": ["learned", "sinusoidal"],
        "hidden_dropout": [0, 0.1, 1.0],
        "initializer_range": [1e-10, 0.02, 1.0],
        "pad_token_id": [None, 0],
        "eos_token_id": [None, 2, [1, 2]],
        "embedding_layernorm": YES_OR_NO,
        "final_layernorm": YES_OR_NO,
        "is_causal": YES_OR_NO,
    },
    "transformer": {
        "vocab_size": [3, 20],
        "decoder_vocab_size": [None, 5, 21],
        "d_model": [12, 24],
        "encoder_layers": [1, 2],
        "decoder_layers": [1, 3],
        "encoder_attention_heads": [1, 2, 4],
        "decoder_attention_heads": [1, 2, 3],
        "head_dim": [None, 1, 5],
        "v_head_dim": [None, 1, 4],
        "encoder_ffn_dim": [1, 8],
        "decoder_ffn_dim": [1, 8],
        "max_position_embeddings": [1, 9],
        "layer_norm_eps": [1e-12, 1e-5, 1.0],
        "position_embedding_type": ["learned", "sinusoidal"],
        "dropout": [0, 0.1],
        "init_std": [None, 1e-10, 1.0],
        "initializer": ["xavier_uniform", "normal", "xavier_uniform_all", "torch"],
        "eos_token_id": [None, 2, [1, 2]],
        "scale_embedding": YES_OR_NO,
    },
}
OF_BOTH = ["norm_first", "attention_bias", "attention_output_bias", "lm_head_bias", "use_cache", "tie_word_embeddings"]


@pytest.mark.parametrize("seed", range(20))
def test_a_random_configuration_trains_generates_and_is_saved(family, seed, tmp_path):
    rng = random.Random(seed)
    torch.manual_seed(seed)
    choices = CHOICES[family] | dict.fromkeys(OF_BOTH, YES_OR_NO)
    fields = {name: rng.choice(values) for name, values in choices.items()}
    if family == "transformer":
        fields["share_encoder_decoder_embeddings"] = fields["decoder_vocab_size"] is None
    config = CONFIGS[family](**fields)
    model = auto_class_of(config).from_config(config)
    target_size = getattr(config, "decoder_vocab_size", config.vocab_size)
    ids = torch.randint(0, min(config.vocab_size, target_size), (2, min(4, config.max_position_embeddings)))
    loss = model.train()(ids, labels=ids).loss
    loss.backward()
    assert loss.isfinite()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)
    model.eval()
    if getattr(config, "is_causal", True):
        prompt = ids[:, :1]
        new = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=1, do_sample=False)
        assert 0 <= new.min() <= new.max() < target_size
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path)
    torch.testing.assert_close(loaded(ids, labels=ids).logits, model(ids, labels=ids).logits)
    assert loaded.config.to_dict() | {"_name_or_path": ""} == config.to_dict() | {"_name_or_path": ""}
