# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""`to_ctranslate2` and `to_gguf`: what they write, and what they refuse by name. test_engines.py runs the engines."""

import numpy as np
import pytest
import torch
from conftest import make_gpt, make_transformer, shake
from test_convert_stock import assert_same_translations, learn_to_copy, make_tokenizer

from hf_scratch.convert import to_ctranslate2, to_gguf
from hf_scratch.tokenization import train_tokenizer

TEXTS = ["the cat sat on the mat", "the dog ran home", "a bird sings"] * 4


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(TEXTS, "bpe", 290, 40, show_progress=False)


@pytest.fixture
def gpt(tokenizer):
    return shake(make_gpt(vocab_size=len(tokenizer), intermediate_size=64, hidden_act="gelu"))


@pytest.fixture
def word_tokenizer():
    return make_tokenizer(["<pad>", "<s>", "</s>", "<unk>", *(f"w{i}" for i in range(4, 60))], bos_token="<s>")


def test_ctranslate2_translates_as_a_pre_norm_model(word_tokenizer, tmp_path):
    ctranslate2 = pytest.importorskip("ctranslate2")
    options = {"decoder_attention_heads": 4, "lm_head_bias": True, "activation_function": "gelu"}
    ours = make_transformer(norm_first=True, vocab_size=64, **options)  # padded for a GPU: the tokenizer has 60
    learn_to_copy(ours)
    folder = to_ctranslate2(ours, word_tokenizer, tmp_path / "ct2")
    translator = ctranslate2.Translator(str(folder), intra_threads=1)
    assert_same_translations(ours, translator, word_tokenizer)
    assert (folder / "tokenizer.json").is_file()


@pytest.mark.parametrize(
    "overrides",
    [{}, {"layer_norm_eps": 1e-2}, {"tie_word_embeddings": False}, {"vocab_size": 320}, {"dtype": "bfloat16"}],
    ids=str,
)
def test_ctranslate2_continues_as_a_gpt(tokenizer, overrides, tmp_path):
    ctranslate2 = pytest.importorskip("ctranslate2")
    ours = shake(make_gpt(**{"vocab_size": len(tokenizer), **overrides}))
    ours = ours.to(getattr(torch, overrides.get("dtype", "float32")))
    folder = to_ctranslate2(ours, tokenizer, tmp_path / "ct2")
    assert str(ours.dtype) == f"torch.{overrides.get('dtype', 'float32')}"  # the input is not changed
    generator = ctranslate2.Generator(str(folder), intra_threads=1)
    ids = tokenizer("the cat").input_ids
    logits = torch.from_numpy(np.array(generator.forward_batch([tokenizer.convert_ids_to_tokens(ids)])))
    expected = ours.float()(torch.tensor([ids])).logits  # bfloat16 is stored as float32 exactly
    torch.testing.assert_close(logits, expected.detach(), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"norm_first": True, "encoder_attention_heads": 2}, "`decoder_attention_heads`"),
        ({"norm_first": True, "position_embedding_type": "learned"}, "`position_embed"),
        ({"norm_first": True, "activation_function": "gelu_10"}, "no activation"),
        ({}, "`pad_token_id` is 0.*must be 59"),
        ({"norm_first": True, "share_encoder_decoder_embeddings": False}, "has two"),
    ],
    ids=str,
)
def test_what_ctranslate2_cannot_express_is_named(overrides, message, word_tokenizer, tmp_path):
    pytest.importorskip("ctranslate2")
    if message == "has two":
        word_tokenizer = train_tokenizer(TEXTS, "word", 60, 40, show_progress=False, target_texts=TEXTS)
    model = make_transformer(decoder_attention_heads=4, **overrides)
    with pytest.raises(ValueError, match=message):
        to_ctranslate2(model, word_tokenizer, tmp_path / "ct2")
    assert not (tmp_path / "ct2").exists()


@pytest.mark.parametrize("quantization", ["float32", "float16", "int8"])
def test_a_gguf_file_holds_every_weight_and_token(gpt, tokenizer, quantization, tmp_path):
    gguf = pytest.importorskip("gguf")
    untied = make_gpt(vocab_size=len(tokenizer), intermediate_size=64, tie_word_embeddings=False)
    names = {tensor.name for tensor in gguf.GGUFReader(to_gguf(untied, tokenizer, tmp_path, quantization)).tensors}
    reader = gguf.GGUFReader(to_gguf(gpt, tokenizer, tmp_path, quantization))
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    assert names - tensors.keys() == {"output.weight"}
    assert sum(int(tensor.n_elements) for tensor in tensors.values()) == gpt.num_parameters()
    kind = {"float32": "F32", "float16": "F16", "int8": "Q8_0"}[quantization]
    assert tensors["blk.0.ffn_up.weight"].tensor_type.name == kind
    assert tensors["blk.0.ffn_up.bias"].tensor_type.name == "F32"
    up = tensors["blk.0.ffn_up.weight"]
    weights = torch.from_numpy(gguf.quants.dequantize(up.data, up.tensor_type))
    tolerance = {"float32": 0, "float16": 2e-3, "int8": 1e-2}[quantization]
    torch.testing.assert_close(weights, gpt.model.layers[0].feed_forward.fc1.weight.detach(), atol=tolerance, rtol=0)
    tokens = reader.fields["tokenizer.ggml.tokens"].contents()
    assert tokens == [token for token, _ in sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])]
    assert reader.fields["tokenizer.ggml.add_bos_token"].contents() is True
    assert reader.fields["tokenizer.ggml.eos_token_id"].contents() == tokenizer.eos_token_id


@pytest.mark.parametrize(
    ("overrides", "kind", "quantization", "message"),
    [
        ({"hidden_act": "relu"}, "bpe", "float32", "`hidden_act` is 'relu'"),
        ({"norm_first": False}, "bpe", "float32", "`norm_first` is False"),
        ({}, "char", "float32", "byte-level BPE"),
        ({}, "bpe", "int3", "`quantization` is .int3."),
    ],
    ids=str,
)
def test_what_llama_cpp_cannot_express_is_named(overrides, kind, quantization, message, tmp_path):
    pytest.importorskip("gguf")
    tokenizer = train_tokenizer(TEXTS, kind, 290, 40, show_progress=False)
    with pytest.raises(ValueError, match=message):
        to_gguf(make_gpt(vocab_size=len(tokenizer), **overrides), tokenizer, tmp_path / "out", quantization)
    assert not (tmp_path / "out").exists()
