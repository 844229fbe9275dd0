# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Pegasus to ScratchTransformer and back: equal logits, caches, beams and weights, and refusals by field."""

import json
import logging

import pytest
import torch
from conftest import ROOT, VARIANTS, each_variant, make_transformer, make_variant, shake
from test_convert_gpt2 import BIASES, assert_same_weights
from test_convert_marian import SMALL, assert_same_function, padded
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, PegasusConfig, PegasusForConditionalGeneration

from hf_scratch.convert import from_pegasus, to_pegasus

IDS = {"vocab_size": 60, "pad_token_id": 0, "decoder_start_token_id": 0, "eos_token_id": 1, "forced_eos_token_id": 1}
SIZES = {
    "tiny": {},
    "two heads": {"decoder_attention_heads": 4, "encoder_layers": 2, "activation_function": "relu"},
    "wide": {
        "d_model": 48,
        "encoder_attention_heads": 6,
        "encoder_layers": 3,
        "decoder_layers": 2,
        "scale_embedding": True,
    },
    "odd width": {"d_model": 15, "encoder_attention_heads": 3, "decoder_attention_heads": 5},
    "untied": {"tie_word_embeddings": False},
}
# variant of a ScratchTransformer made pre-norm: the field that Pegasus cannot express
REFUSED = {
    "learned positions": "position_embedding_type",
    "epsilon": "layer_norm_eps",
    "two vocabularies": "decoder_vocab_size",
    "two vocabularies, untied": "decoder_vocab_size",
    "head width": "head_dim",
    "value width": "head_dim",
}


def make_pegasus(**overrides) -> PegasusForConditionalGeneration:
    torch.manual_seed(0)
    config = PegasusConfig(**{"max_position_embeddings": 40, **SMALL, **IDS, **overrides})
    config.decoder_vocab_size = config.vocab_size  # what `assert_same_function` compares
    model = shake(PegasusForConditionalGeneration(config))
    with torch.no_grad():  # `shake` left the bias, which is a buffer, and moved the positions
        model.final_logits_bias.normal_()
        for stack in (model.model.encoder, model.model.decoder):
            stack.embed_positions.weight.copy_(stack.embed_positions.create_weight())
    return model.eval()


@pytest.mark.parametrize("size", SIZES)
def test_pegasus_as_a_scratch_transformer_and_back(size):
    pegasus = make_pegasus(**SIZES[size])
    ours = from_pegasus(pegasus)
    assert ours.config.norm_first
    assert_same_function(pegasus, ours)
    again = to_pegasus(ours)
    if size == "untied":
        for model in (pegasus, again):
            del model.model.shared  # nothing reads it
    assert_same_weights(pegasus, again)
    assert (ours.model.encoder.embed_tokens.weight is ours.lm_head.weight) == (size != "untied")


@each_variant("transformer")
def test_a_scratch_transformer_as_pegasus_and_back(family, variant):
    ours, overrides = shake(make_variant(family, variant, norm_first=True)), VARIANTS[family][variant]
    if variant in REFUSED:
        with pytest.raises(ValueError, match=f"^`{REFUSED[variant]}` is "):
            to_pegasus(ours)
        return
    pegasus = to_pegasus(ours)
    pegasus.config.decoder_vocab_size = pegasus.config.vocab_size
    assert_same_function(ours, pegasus)
    missing = [name for field, names in BIASES.items() if field in overrides for name in names]
    assert_same_weights(ours, from_pegasus(pegasus), tuple(missing))


def test_a_model_that_shares_its_embeddings_in_part_becomes_copies():
    ours = shake(make_transformer(norm_first=True, share_encoder_decoder_embeddings=False))
    pegasus = to_pegasus(ours)
    pegasus.config.decoder_vocab_size = pegasus.config.vocab_size
    assert not pegasus.config.tie_word_embeddings
    assert_same_function(ours, pegasus)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"norm_first": False}, "`norm_first` is False.*True"),
        ({"decoder_start_token_id": None}, "`decoder_start_token_id` is None"),
        ({"activation_function": "prelu"}, r"no place.*layers\.0\.feed_forward\.activation\.weight"),
        ({"decoder_attention_heads": 4, "v_head_dim": 9}, "`v_head_dim` is 9.*8"),
    ],
    ids=str,
)
def test_what_pegasus_cannot_express_is_named(overrides, message):
    with pytest.raises(ValueError, match=message):
        to_pegasus(make_transformer(**{"norm_first": True, **overrides}))


def test_positions_that_are_not_sinusoids_are_refused():
    pegasus = make_pegasus()
    pegasus.model.decoder.embed_positions.weight[3, 4] += 1
    with pytest.raises(ValueError, match=r"decoder\.embed_positions\.weight` holds no sinusoids"):
        from_pegasus(pegasus)


def test_every_field_travels():
    fields = {"dropout": 0.2, "attention_dropout": 0.3, "activation_dropout": 0.4, "init_std": 0.3}
    fields |= {"scale_embedding": True, "use_cache": False, "eos_token_id": [1, 3], "activation_function": "gelu"}
    pegasus = make_pegasus(**fields)
    ours = from_pegasus(pegasus)
    assert {name: getattr(ours.config, name) for name in fields} == fields
    assert (ours.config.initializer, ours.config.lm_head_bias, ours.config.bos_token_id) == ("normal", True, None)
    again = to_pegasus(ours).config
    for name in (*fields, *SMALL, *IDS, "tie_word_embeddings", "max_position_embeddings"):
        assert getattr(again, name) == getattr(pegasus.config, name), name
    assert to_pegasus(make_transformer(norm_first=True)).config.forced_eos_token_id is None


def test_the_dtype_stays_and_the_input_is_not_changed():
    pegasus = make_pegasus().to(torch.bfloat16)
    ours = from_pegasus(pegasus)
    assert ours.dtype == ours.config.dtype == torch.bfloat16
    assert_same_weights(pegasus, to_pegasus(ours))
    before = {name: tensor.clone() for name, tensor in ours.state_dict().items()}
    with torch.no_grad():
        for tensor in to_pegasus(ours).state_dict().values():
            tensor.add_(1)
    assert all(torch.equal(before[name], tensor) for name, tensor in ours.state_dict().items())


def test_a_folder_as_googles_loads_by_path(tmp_path):
    pegasus = make_pegasus(scale_embedding=True)
    pegasus.save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").unlink()  # they keep their generation options in config.json
    config = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    config |= {"add_bias_logits": False, "add_final_layer_norm": True, "normalize_before": True}
    config |= {"extra_pos_embeddings": 1, "static_position_embeddings": True, "num_beams": 4, "max_length": 24}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    stock, ours = PegasusForConditionalGeneration.from_pretrained(tmp_path), from_pegasus(tmp_path)
    assert ours.generation_config.num_beams == 4
    assert torch.equal(ours.generate(**padded()), stock.generate(**padded()))


def test_no_weight_is_reported_missing(caplog):
    logging.getLogger("transformers").propagate = True
    try:
        for overrides in ({}, {"tie_word_embeddings": False}):
            from_pegasus(to_pegasus(make_transformer(norm_first=True, **overrides)))
    finally:
        logging.getLogger("transformers").propagate = False
    assert "MISSING" not in caplog.text


def test_the_published_translator_translates_alike_as_a_stock_pegasus(tmp_path):
    folder = ROOT / "model_cards" / "scratch-transformer-multi30k-en-de"
    ours = AutoModelForSeq2SeqLM.from_pretrained(folder)
    to_pegasus(ours).save_pretrained(tmp_path)
    stock, tokenizer = PegasusForConditionalGeneration.from_pretrained(tmp_path), AutoTokenizer.from_pretrained(folder)
    batch = tokenizer(["A dog runs through the snow.", "Two men cook.", "A girl in red sings a song."], padding=True,
                      return_tensors="pt")  # fmt: skip
    target = torch.randint(3, 8000, (3, 20), generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(
        stock(**batch, decoder_input_ids=target).logits, ours(**batch, decoder_input_ids=target).logits,
        atol=2e-5, rtol=0,
    )  # fmt: skip
    assert torch.equal(stock.generate(**batch), ours.generate(**batch))
