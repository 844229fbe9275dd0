# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Marian and Pegasus to ScratchTransformer and back: equal logits, caches, beams, weights, CTranslate2, refusals."""

import json
import logging

import pytest
import torch
from conftest import ROOT, VARIANTS, each_variant, make_transformer, make_variant, shake
from test_convert_gpt2 import BIASES, CLOSE, assert_same_weights
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    MarianConfig,
    MarianMTModel,
    PegasusConfig,
    PegasusForConditionalGeneration,
    PreTrainedTokenizerFast,
)

from hf_scratch.convert import from_marian, from_pegasus, to_marian, to_pegasus

SMALL = {"encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 24, "decoder_ffn_dim": 20, "d_model": 16}
SMALL |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
# as opus-mt models: one embedding for all; the padding token is the last id, and starts the target
IDS = {"vocab_size": 60, "pad_token_id": 59, "decoder_start_token_id": 59, "eos_token_id": 0, "forced_eos_token_id": 0}
PEGASUS_IDS = {**IDS, "pad_token_id": 0, "decoder_start_token_id": 0, "eos_token_id": 1, "forced_eos_token_id": 1}
APART = {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 70}
SIZES = {
    "tiny": {},
    "two heads": {"decoder_attention_heads": 4, "encoder_layers": 2, "activation_function": "swish"},
    "wide": {
        "d_model": 48,
        "encoder_attention_heads": 6,
        "encoder_layers": 3,
        "decoder_layers": 2,
        "scale_embedding": True,
    },
    "odd width": {"d_model": 15, "encoder_attention_heads": 3, "decoder_attention_heads": 5},
    "untied": {"tie_word_embeddings": False},  # transformers ties no embeddings then
    "two vocabularies": APART,
    "two vocabularies, untied": {**APART, "tie_word_embeddings": False},
}
# variant of a ScratchTransformer: the field that neither can express
REFUSED = {
    "learned positions": "position_embedding_type",
    "epsilon": "layer_norm_eps",
    "head width": "head_dim",
    "value width": "head_dim",
}


def make_stock(family: str = "marian", **overrides) -> MarianMTModel | PegasusForConditionalGeneration:
    torch.manual_seed(0)
    fields = {"max_position_embeddings": 40, **SMALL, **(IDS if family == "marian" else PEGASUS_IDS), **overrides}
    if family == "marian":
        model = MarianMTModel(MarianConfig(**fields))
    else:
        config = PegasusConfig(**fields)
        config.decoder_vocab_size = config.vocab_size  # what `assert_same_function` compares
        model = PegasusForConditionalGeneration(config)
    shake(model)
    with torch.no_grad():  # the bias is no parameter, so `shake` left it; the positions are, and must be sinusoids
        model.final_logits_bias.normal_()
        for stack in (model.model.encoder, model.model.decoder):
            stack.embed_positions.weight.copy_(stack.embed_positions.create_weight())
    return model.eval()


CONVERT = {"marian": (from_marian, to_marian), "pegasus": (from_pegasus, to_pegasus)}
each_family = pytest.mark.parametrize("stock", CONVERT)


def padded() -> dict[str, torch.Tensor]:
    """Three rows of 9, of which 0, 4 and 2 are padding, on the right."""
    ids = torch.randint(3, 59, (3, 9), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[1, 5:] = mask[2, 7:] = 0
    return {"input_ids": ids, "attention_mask": mask}


def assert_same_function(a, b):
    inputs, target = padded(), torch.randint(3, 59, (3, 7), generator=torch.Generator().manual_seed(2))
    whole = a(**inputs, decoder_input_ids=target).logits
    torch.testing.assert_close(b(**inputs, decoder_input_ids=target).logits, whole, **CLOSE)
    cache, steps = None, []
    for step in range(7):
        token = target[:, step : step + 1]
        outputs = b(**inputs, decoder_input_ids=token, cache=cache, use_cache=True)
        cache = outputs.cache
        steps.append(outputs.logits)
    torch.testing.assert_close(torch.cat(steps, 1), whole, **CLOSE)

    kwargs = {"num_beams": 4, "num_return_sequences": 2, "max_new_tokens": 10, "length_penalty": 0.5}
    kwargs |= {"return_dict_in_generate": True, "output_scores": True}
    beams = [model.generate(**inputs, **kwargs) for model in (a, b)]
    assert torch.equal(beams[0].sequences, beams[1].sequences)
    torch.testing.assert_close(beams[0].sequences_scores, beams[1].sequences_scores, **CLOSE)


@each_family
@pytest.mark.parametrize("size", SIZES)
def test_a_stock_model_as_a_scratch_transformer_and_back(stock, size):
    if stock == "pegasus" and "two vocabularies" in size:
        pytest.skip("it has one")
    theirs, (convert, back) = make_stock(stock, **SIZES[size]), CONVERT[stock]
    ours = convert(theirs)
    assert_same_function(theirs, ours)
    again = back(ours)
    if size == "untied":
        for model in (theirs, again):
            model.model.shared = None  # nothing reads it
    assert_same_weights(theirs, again)
    encoder, decoder = ours.model.encoder.embed_tokens.weight, ours.model.decoder.embed_tokens.weight
    is_shared = "two vocabularies" not in size and "untied" not in size
    assert (encoder is decoder) == is_shared
    assert stock == "pegasus" or ours.config.share_encoder_decoder_embeddings == is_shared
    assert (ours.lm_head.weight is decoder) == ("untied" not in size)


@each_family
@each_variant("transformer")
def test_a_scratch_transformer_as_a_stock_model_and_back(stock, family, variant):
    is_pegasus, (convert, back) = stock == "pegasus", CONVERT[stock]
    overrides = VARIANTS[family][variant]
    ours = shake(make_variant(family, variant, **({"norm_first": True} if is_pegasus else {})))
    refused = REFUSED | ({f"two vocabularies{more}": "decoder_vocab_size" for more in ("", ", untied")}
                         if is_pegasus else {"pre-norm": "norm_first"})  # fmt: skip
    if variant in refused:
        with pytest.raises(ValueError, match=f"^`{refused[variant]}` is "):
            back(ours)
        return
    theirs = back(ours)
    theirs.config.decoder_vocab_size = ours.config.decoder_vocab_size
    assert_same_function(ours, theirs)
    shared = theirs.model.encoder.embed_tokens.weight is theirs.model.decoder.embed_tokens.weight
    assert shared == (not {*overrides} & {"tie_word_embeddings", *APART})
    missing = [name for field, names in BIASES.items() if field in overrides for name in names]
    assert_same_weights(ours, convert(theirs), tuple(missing))


def test_a_model_that_shares_its_embeddings_in_part_becomes_copies():
    ours = shake(make_transformer(norm_first=True, share_encoder_decoder_embeddings=False))
    pegasus = to_pegasus(ours)
    pegasus.config.decoder_vocab_size = pegasus.config.vocab_size
    assert not pegasus.config.tie_word_embeddings
    assert_same_function(ours, pegasus)


def test_the_logits_agree_at_the_last_positions():
    marian = make_stock(max_position_embeddings=512)
    source, target = torch.randint(3, 59, (1, 512)), torch.randint(3, 59, (1, 512))
    expected = marian(source, decoder_input_ids=target).logits
    # in float32, an angle of 511 has an error of up to 3e-5
    torch.testing.assert_close(
        from_marian(marian)(source, decoder_input_ids=target).logits, expected, atol=5e-5, rtol=0
    )


def test_what_a_stock_model_cannot_express_is_named():
    for convert, overrides, message in (
        (
            to_marian,
            {"head_dim": 8},
            "`head_dim` is 8.*16",
        ),  # right for the encoder's 4 heads, not for the decoder's 2
        (to_marian, {"decoder_attention_heads": 4, "v_head_dim": 9}, "`v_head_dim` is 9.*8"),
        (to_marian, {"activation_function": "prelu"}, r"no place.*layers\.0\.feed_forward\.activation\.weight"),
        (to_pegasus, {}, "`norm_first` is False.*True"),
    ):
        with pytest.raises(ValueError, match=message):
            convert(make_transformer(**overrides))


@each_family
def test_every_field_travels(stock):
    convert, back = CONVERT[stock]
    fields = {"dropout": 0.2, "attention_dropout": 0.3, "activation_dropout": 0.4, "init_std": 0.3}
    fields |= {"scale_embedding": True, "use_cache": False, "eos_token_id": [0, 3], "activation_function": "gelu"}
    fields |= {"bos_token_id": 5} if stock == "marian" else {}
    theirs = make_stock(stock, **fields)
    ours = convert(theirs)
    assert {name: getattr(ours.config, name) for name in fields} == fields
    assert (ours.config.initializer, ours.config.lm_head_bias) == ("normal", True)
    again = back(ours).config
    sharing = ("tie_word_embeddings", *(("decoder_vocab_size", *APART) if stock == "marian" else ()))
    for name in (*fields, *SMALL, *IDS, *sharing, "max_position_embeddings"):
        assert getattr(again, name) == getattr(theirs.config, name), name
    assert back(make_transformer(norm_first=stock == "pegasus")).config.forced_eos_token_id is None


def test_a_logits_bias_of_zeros_is_no_bias():
    marian = make_stock()
    marian.final_logits_bias.zero_()
    assert not from_marian(marian).config.lm_head_bias
    assert_same_weights(marian, to_marian(from_marian(marian)))


@each_family
def test_the_dtype_stays_and_the_input_is_not_changed(stock):
    convert, back = CONVERT[stock]
    theirs = make_stock(stock).to(torch.bfloat16)
    ours = convert(theirs)
    assert ours.dtype == ours.config.dtype == torch.bfloat16
    again = back(ours)
    assert_same_weights(theirs, again)
    for model, converted in ((theirs, ours), (ours, again)):
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        with torch.no_grad():
            for tensor in converted.state_dict().values():
                tensor.add_(1)
        assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_a_folder_as_the_opus_mt_ones_loads_by_path(tmp_path):
    marian = make_stock(scale_embedding=True, activation_function="swish")
    marian.save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").unlink()  # they keep their generation options in config.json
    config = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    config |= {"_num_labels": 3, "add_bias_logits": False, "add_final_layer_norm": False, "classif_dropout": 0.0}
    config |= {"extra_pos_embeddings": 60, "gradient_checkpointing": False, "model_type": "marian"}
    config |= {"normalize_before": False, "normalize_embedding": False, "static_position_embeddings": True}
    config |= {"bad_words_ids": [[59]], "num_beams": 4, "max_length": 24}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")

    stock = MarianMTModel.from_pretrained(tmp_path)
    ours = from_marian(str(tmp_path))
    assert ours.generation_config.num_beams == 4
    assert ours.generation_config.bad_words_ids == [[59]]
    assert_same_function(stock, ours)
    tokens = stock.generate(**padded())
    assert torch.equal(ours.generate(**padded()), tokens)
    ours.save_pretrained(tmp_path / "ours")
    assert torch.equal(type(ours).from_pretrained(tmp_path / "ours").generate(**padded()), tokens)
    to_marian(ours).save_pretrained(tmp_path / "again")
    again = MarianMTModel.from_pretrained(tmp_path / "again")
    assert_same_weights(stock, again)
    assert torch.equal(again.generate(**padded()), tokens)


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


def learn_to_copy(model, steps: int = 100):
    """Train for a hundred steps on random sentences, so that translations differ and end."""
    generator, optimizer = torch.Generator().manual_seed(4), torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(steps):
        ids = torch.randint(10, 59, (32, 8), generator=generator)
        ids[:, -1] = model.config.eos_token_id
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def make_tokenizer(words: list[str], **special: str) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = {"unk_token": "<unk>", "eos_token": "</s>", "pad_token": "<pad>", **special}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)


def assert_same_translations(model, translator, tokenizer, **kwargs):
    """For 100 random sentences, `generate` and CTranslate2 find the same best of 5 beams, with the same score."""
    generator = torch.Generator().manual_seed(3)
    lengths = torch.randint(1, 12, (100,), generator=generator).tolist()
    rows = [torch.randint(10, 59, (length,), generator=generator).tolist() for length in lengths]
    rows = [[*row, tokenizer.eos_token_id] for row in rows]
    batch = tokenizer.pad({"input_ids": rows}, return_tensors="pt")
    outputs = model.generate(
        **batch,
        num_beams=5,
        max_new_tokens=24,
        early_stopping=True,  # CTranslate2 also stops at 5 finished translations
        return_dict_in_generate=True,
        output_scores=True,
        **kwargs,
    )
    special = {tokenizer.eos_token_id, tokenizer.pad_token_id}
    expected = [[i for i in row[1:].tolist() if i not in special] for row in outputs.sequences]
    options = {"beam_size": 5, "length_penalty": 1, "max_decoding_length": 24, "min_decoding_length": 0}
    sources = [tokenizer.convert_ids_to_tokens(row) for row in rows]
    results = translator.translate_batch(sources, **options, return_scores=True)
    assert [tokenizer.convert_tokens_to_ids(result.hypotheses[0]) for result in results] == expected
    assert [r.scores[0] for r in results] == pytest.approx(outputs.sequences_scores.tolist(), abs=1e-5)
    assert len({tuple(sentence) for sentence in expected}) > 50


def test_ctranslate2_translates_as_an_opus_mt_model_of_ours(tmp_path):
    ctranslate2 = pytest.importorskip("ctranslate2")
    ours = make_transformer(**IDS, decoder_attention_heads=4, lm_head_bias=True)
    learn_to_copy(ours)
    with torch.no_grad():
        ours.lm_head.weight[59] = 0  # CTranslate2 starts from an embedding of zeros
    to_marian(ours).save_pretrained(tmp_path / "marian")
    tokenizer = make_tokenizer(["</s>", "<unk>", *(f"w{i}" for i in range(2, 59)), "<pad>"])
    tokenizer.save_pretrained(tmp_path / "marian")
    ctranslate2.converters.TransformersConverter(str(tmp_path / "marian")).convert(str(tmp_path / "ct2"))
    translator = ctranslate2.Translator(str(tmp_path / "ct2"), intra_threads=1, compute_type="float32")
    # CTranslate2 has no padding token in its vocabulary: the others share its probability
    kwargs = {"bad_words_ids": [[59]], "renormalize_logits": True, "forced_eos_token_id": None}
    assert_same_translations(ours, translator, tokenizer, **kwargs)


@pytest.mark.parametrize("scale", [True, False])
def test_given_embeddings_mean_the_same(scale):
    """Both scale what they embed, and nothing else; the columns are in another order."""
    theirs = make_stock(scale_embedding=scale, d_model=16)
    ours, ids = from_marian(theirs), torch.randint(3, 40, (2, 6))
    given = theirs.get_input_embeddings()(ids) * theirs.model.encoder.embed_scale
    expected = theirs(inputs_embeds=2 * given, decoder_input_ids=ids).logits
    actual = ours(inputs_embeds=2 * ours.get_input_embeddings()(ids), decoder_input_ids=ids).logits
    torch.testing.assert_close(actual, expected, atol=1e-4, rtol=1e-4)
