import pytest
from conftest import GPT, TRANSFORMER
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig

from hf_scratch import ScratchGPTConfig, ScratchTransformerConfig


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
    ],
)
def test_a_wrong_gpt_config_names_the_field(fields, named):
    with pytest.raises((ValueError, StrictDataclassError), match=f"{named}"):
        ScratchGPTConfig(**{**GPT, **fields})


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
    ],
)
def test_a_wrong_transformer_config_names_the_field(fields, named):
    with pytest.raises((ValueError, StrictDataclassError), match=named):
        ScratchTransformerConfig(**{**TRANSFORMER, **fields})


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
