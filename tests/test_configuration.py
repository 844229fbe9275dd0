# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""A configuration either makes a model that works, or is refused when it is made, naming the field."""

import inspect
import random

import pytest
import torch
from conftest import (
    FAMILIES,
    GPT,
    NOT_COMPUTED,
    TRANSFORMER,
    VARIANTS,
    make_gpt,
    make_inputs_for,
    make_transformer,
)
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig

from hf_scratch import (
    ScratchGPTConfig,
    ScratchGPTForCausalLM,
    ScratchTransformerConfig,
    ScratchTransformerForConditionalGeneration,
)

CONFIGS = {"gpt": ScratchGPTConfig, "transformer": ScratchTransformerConfig}


# the list of variants


@pytest.mark.parametrize("family", CONFIGS)
def test_each_field_is_varied_or_said_not_to_change_the_computation(family):
    """A new field fails here until VARIANTS holds another value of it: then every way to compute it is compared."""
    base = {"gpt": GPT, "transformer": TRANSFORMER}[family]
    default = CONFIGS[family](**base)
    varied = {
        name
        for overrides in VARIANTS[family].values()
        for name, value in overrides.items()
        if value != getattr(default, name)
    }
    assert varied.isdisjoint(NOT_COMPUTED[family])
    assert varied | NOT_COMPUTED[family].keys() == set(inspect.get_annotations(CONFIGS[family]))


OTHER_VALUES = {
    "embedding_dropout": 0.5, "hidden_dropout": 0.5, "attention_dropout": 0.5, "initializer_range": 0.01,
    "dropout": 0.5, "activation_dropout": 0.5, "init_std": 0.01, "initializer": "torch", "use_cache": False,
    "pad_token_id": 5, "bos_token_id": 6, "eos_token_id": [7, 8], "decoder_start_token_id": 9,
    "source_lang": "en", "target_lang": "de", "skip_logits": True,
}  # fmt: skip


@pytest.mark.parametrize(
    ("family", "field"), [(family, field) for family in CONFIGS for field in NOT_COMPUTED[family]]
)
def test_a_field_said_not_to_change_the_computation_does_not(family, field):
    if field == "is_encoder_decoder":
        pytest.skip("it has one value")
    model, other = FAMILIES[family](), FAMILIES[family](**{field: OTHER_VALUES[field]})
    assert getattr(model.config, field) != getattr(other.config, field)
    other.load_state_dict(model.state_dict())
    inputs = make_inputs_for(model)
    assert torch.equal(other(**inputs).logits, model(**inputs).logits)


# saving, and fields that are refused


@pytest.mark.parametrize("config", [ScratchGPTConfig(**GPT), ScratchTransformerConfig(**TRANSFORMER)])
def test_a_saved_config_loads_through_auto_config(config, tmp_path):
    config.save_pretrained(tmp_path)
    loaded = AutoConfig.from_pretrained(tmp_path)
    assert type(loaded) is type(config)
    assert loaded.to_diff_dict() == config.to_diff_dict()


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"num_attention_heads": 5}, "num_attention_heads"),
        ({"num_attention_heads": 0}, "num_attention_heads"),
        ({"vocab_size": 0}, "vocab_size"),
        ({"vocab_size": "9"}, "vocab_size"),
        ({"hidden_dropout": 1.5}, "hidden_dropout"),
        ({"position_embedding_type": "rotary"}, "position_embedding_type"),
        ({"hidden_act": "glue"}, "hidden_act"),
        ({"eos_token_id": 60}, "eos_token_id"),
        ({"pad_token_id": -1}, "pad_token_id"),
        ({"pad_token_id": True}, "pad_token_id"),
        ({"eos_token_id": []}, "eos_token_id"),
        ({"eos_token_id": [2, -1]}, "eos_token_id"),
        ({"num_hidden_layers": True}, "num_hidden_layers"),
        ({"hidden_size": 32.0}, "hidden_size"),
        ({"head_dim": 0}, "head_dim"),
        ({"head_dim": -8}, "head_dim"),
        ({"intermediate_size": 0}, "intermediate_size"),
        ({"layer_norm_eps": float("nan")}, "layer_norm_eps"),
        ({"layer_norm_eps": float("inf")}, "layer_norm_eps"),
        ({"layer_norm_eps": 0.0}, "layer_norm_eps"),
        ({"initializer_range": float("nan")}, "initializer_range"),
        ({"initializer_range": 0.0}, "initializer_range"),
        ({"hidden_dropout": float("nan")}, "hidden_dropout"),
        ({"is_encoder_decoder": True}, "is_encoder_decoder"),
    ],
)
def test_a_wrong_gpt_config_names_the_field(fields, named):
    with pytest.raises((ValueError, StrictDataclassError), match=named) as error:
        ScratchGPTConfig(**{**GPT, **fields})
    assert len(str(error.value).splitlines()) <= 2  # huggingface_hub writes the field's name on its own line


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"encoder_attention_heads": 5}, "encoder_attention_heads"),
        ({"decoder_attention_heads": 3}, "decoder_attention_heads"),
        ({"decoder_layers": 0}, "decoder_layers"),
        ({"head_dim": 0}, "head_dim"),
        ({"decoder_vocab_size": 70}, "share_encoder_decoder_embeddings"),
        ({"initializer": "zeros"}, "initializer"),
        ({"dropout": -0.1}, "dropout"),
        ({"decoder_start_token_id": 60}, "decoder_start_token_id"),
        ({"activation_function": "swish-ish"}, "activation_function"),
        ({"init_std": float("nan")}, "init_std"),
        ({"init_std": float("inf")}, "init_std"),
        ({"init_std": -0.1}, "init_std"),
        ({"init_std": 0.0}, "init_std"),
        ({"layer_norm_eps": -1e-5}, "layer_norm_eps"),
        ({"dropout": float("nan")}, "dropout"),
        ({"v_head_dim": -1}, "v_head_dim"),
        ({"is_encoder_decoder": False}, "is_encoder_decoder"),
        ({"source_lang": 3}, "source_lang"),
        ({"target_lang": ["de"]}, "target_lang"),
    ],
)
def test_a_wrong_transformer_config_names_the_field(fields, named):
    with pytest.raises((ValueError, StrictDataclassError), match=named) as error:
        ScratchTransformerConfig(**{**TRANSFORMER, **fields})
    assert len(str(error.value).splitlines()) <= 2


def test_heads_need_not_divide_the_width_when_their_width_is_given():
    assert ScratchGPTConfig(**{**GPT, "num_attention_heads": 5, "head_dim": 8}).head_dim == 8
    assert ScratchTransformerConfig(**{**TRANSFORMER, "encoder_attention_heads": 5, "head_dim": 8}).head_dim == 8


def test_a_dropout_of_int_zero_is_fine():
    assert ScratchGPTConfig(hidden_dropout=0).hidden_dropout == 0


def test_the_generic_names_of_the_encoder_decoder():
    config = ScratchTransformerConfig(**TRANSFORMER)
    assert (config.hidden_size, config.num_hidden_layers, config.num_attention_heads) == (32, 2, 4)
    decoder = config.get_text_config(decoder=True)
    assert decoder.num_hidden_layers == 3


def test_a_bidirectional_gpt_has_no_cache():
    assert ScratchGPTConfig(is_causal=False).use_cache is False


def test_names_of_the_attribute_map_count_before_what_is_derived_from_them():
    config = ScratchTransformerConfig(hidden_size=64)
    assert config.init_std == 64**-0.5
    assert config.to_dict() == ScratchTransformerConfig(d_model=64).to_dict()


@pytest.mark.parametrize("name", ["pad_token_id", "decoder_start_token_id"])
def test_labels_need_the_ids_that_make_the_decoders_input(name):
    model, ids = make_transformer(**{name: None}), torch.tensor([[3, 4, 5]])
    with pytest.raises(ValueError, match=f"`{name}` is None .*model.config.{name}"):
        model(ids, labels=ids)
    assert model(ids, labels=ids, decoder_input_ids=ids).loss.isfinite()


@pytest.mark.parametrize("share", [True, False])
def test_a_vocabulary_assigned_to_the_config_is_the_models(share):
    config = ScratchTransformerConfig(**TRANSFORMER, share_encoder_decoder_embeddings=share)
    config.vocab_size = 70
    model = ScratchTransformerForConditionalGeneration(config)
    assert model.get_encoder().embed_tokens.num_embeddings == 70
    assert model.lm_head.out_features == model.config.decoder_vocab_size == (70 if share else 60)


def test_a_config_made_wrong_by_an_assignment_is_refused_when_the_model_is_built(family):
    config = FAMILIES[family]().config
    config.eos_token_id = 60
    model_class = ScratchGPTForCausalLM if family == "gpt" else ScratchTransformerForConditionalGeneration
    with pytest.raises(ValueError, match="`eos_token_id` is 60"):
        model_class(config)


# random configurations that are not refused


def draw_gpt(rng: random.Random) -> dict:
    heads = rng.choice([1, 2, 3])
    return {
        "vocab_size": rng.choice([3, 20]),
        "hidden_size": heads * rng.choice([1, 3, 8]),
        "num_hidden_layers": rng.choice([1, 2]),
        "num_attention_heads": heads,
        "head_dim": rng.choice([None, 1, 5]),
        "intermediate_size": rng.choice([None, 1, 7]),
        "max_position_embeddings": rng.choice([2, 9]),
        "hidden_act": rng.choice(["gelu_new", "relu2", "swish", "xielu", "prelu", "linear"]),
        "layer_norm_eps": rng.choice([1e-12, 1e-5, 1.0]),
        "position_embedding_type": rng.choice(["learned", "sinusoidal"]),
        "hidden_dropout": rng.choice([0, 0.1, 1.0]),
        "initializer_range": rng.choice([1e-10, 0.02, 1.0]),
        "pad_token_id": rng.choice([None, 0]),
        "eos_token_id": rng.choice([None, 2, [1, 2]]),
        **{
            name: rng.random() < 0.5
            for name in (
                "norm_first", "attention_bias", "attention_output_bias", "lm_head_bias", "embedding_layernorm",
                "final_layernorm", "is_causal", "use_cache", "tie_word_embeddings",
            )
        },
    }  # fmt: skip


def draw_transformer(rng: random.Random) -> dict:
    encoder_heads, decoder_heads = rng.choice([(1, 1), (2, 3), (4, 2)])
    share = rng.random() < 0.5
    return {
        "vocab_size": rng.choice([3, 20]),
        "decoder_vocab_size": None if share else rng.choice([None, 5, 21]),
        "share_encoder_decoder_embeddings": share,
        "d_model": encoder_heads * decoder_heads * rng.choice([1, 3]),
        "encoder_layers": rng.choice([1, 2]),
        "decoder_layers": rng.choice([1, 3]),
        "encoder_attention_heads": encoder_heads,
        "decoder_attention_heads": decoder_heads,
        "head_dim": rng.choice([None, 1, 5]),
        "v_head_dim": rng.choice([None, 1, 4]),
        "encoder_ffn_dim": rng.choice([1, 8]),
        "decoder_ffn_dim": rng.choice([1, 8]),
        "max_position_embeddings": rng.choice([1, 9]),
        "layer_norm_eps": rng.choice([1e-12, 1e-5, 1.0]),
        "position_embedding_type": rng.choice(["learned", "sinusoidal"]),
        "dropout": rng.choice([0, 0.1]),
        "init_std": rng.choice([None, 1e-10, 1.0]),
        "initializer": rng.choice(["xavier_uniform", "normal", "xavier_uniform_all", "torch"]),
        "eos_token_id": rng.choice([None, 2, [1, 2]]),
        "target_lang": rng.choice([None, "de"]),
        **{
            name: rng.random() < 0.5
            for name in (
                "norm_first", "attention_bias", "attention_output_bias", "lm_head_bias", "scale_embedding",
                "use_cache", "tie_word_embeddings",
            )
        },
    }  # fmt: skip


@pytest.mark.parametrize("seed", range(20))
def test_a_random_configuration_trains_generates_and_is_saved(family, seed, tmp_path):
    rng = random.Random(seed)
    torch.manual_seed(seed)
    if family == "gpt":
        model = ScratchGPTForCausalLM(ScratchGPTConfig(**draw_gpt(rng)))
    else:
        model = ScratchTransformerForConditionalGeneration(ScratchTransformerConfig(**draw_transformer(rng)))
    config = model.config
    length = min(4, config.max_position_embeddings)
    vocab_size = min(config.vocab_size, getattr(config, "decoder_vocab_size", config.vocab_size))
    ids = torch.randint(0, vocab_size, (2, length))
    loss = model.train()(ids, labels=ids).loss
    loss.backward()
    assert loss.isfinite()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)
    model.eval()
    prompt = ids[:, :1]
    new = ids
    if getattr(config, "is_causal", True):
        new = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=1, do_sample=False)
    assert 0 <= new.min() <= new.max() < getattr(config, "decoder_vocab_size", config.vocab_size)
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path)
    torch.testing.assert_close(loaded(ids, labels=ids).logits, model(ids, labels=ids).logits)
    assert loaded.config.to_dict() | {"_name_or_path": ""} == config.to_dict() | {"_name_or_path": ""}


@pytest.mark.parametrize("value", [0, -1, 1.5, "8", None, (1, 2)], ids=str)
@pytest.mark.parametrize("name", ["hidden_size", "num_hidden_layers", "num_attention_heads"])
def test_a_wrong_value_under_a_generic_name_is_refused(name, value):
    field = ScratchTransformerConfig.attribute_map[name]
    with pytest.raises(StrictDataclassError, match=field):
        ScratchTransformerConfig(**TRANSFORMER | {name: value})
    config = ScratchTransformerConfig(**TRANSFORMER)
    setattr(config, name, value)
    with pytest.raises(StrictDataclassError, match=field):
        ScratchTransformerForConditionalGeneration(config)


@pytest.mark.parametrize("name", ["intermediate_size", "init_std", "decoder_vocab_size"])
def test_none_assigned_to_a_derived_field_is_refused(name):
    make = make_gpt if name == "intermediate_size" else make_transformer
    model = make() if make is make_gpt else make(share_encoder_decoder_embeddings=False)
    setattr(model.config, name, None)
    with pytest.raises(ValueError, match=f"`{name}` is None"):
        type(model)(model.config)
