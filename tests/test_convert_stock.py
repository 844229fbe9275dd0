# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""GPT-2, Marian and Pegasus to our models and back: equal logits, caches, beams, weights, CTranslate2, refusals."""

import json

import pytest
import torch
from conftest import VARIANTS, make_gpt, make_transformer, make_variant, shake
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    MarianConfig,
    MarianMTModel,
    PegasusConfig,
    PegasusForConditionalGeneration,
    PreTrainedTokenizerFast,
)

from hf_scratch.convert import from_gpt2, from_marian, from_pegasus, to_gpt2, to_marian, to_pegasus

CONVERT = {"gpt2": (from_gpt2, to_gpt2), "marian": (from_marian, to_marian), "pegasus": (from_pegasus, to_pegasus)}
SMALL = {"encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 24, "decoder_ffn_dim": 20, "d_model": 16}
SMALL |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "max_position_embeddings": 40}
TINY = {"n_embd": 16, "n_layer": 1, "n_head": 2}
# as opus-mt models: one embedding for all; the padding token is the last id, and starts the target
IDS = {"vocab_size": 60, "pad_token_id": 59, "decoder_start_token_id": 59, "eos_token_id": 0, "forced_eos_token_id": 0}
PEGASUS_IDS = {**IDS, "pad_token_id": 0, "decoder_start_token_id": 0, "eos_token_id": 1, "forced_eos_token_id": 1}
STOCK = {
    "gpt2": {"vocab_size": 60, "n_positions": 40, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, **TINY},
    "marian": {**SMALL, **IDS},
    "pegasus": {**SMALL, **PEGASUS_IDS},
}
APART = {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 70}
SEQ2SEQ_SIZES = {
    "tiny": {},
    "two heads": {"decoder_attention_heads": 4, "decoder_layers": 2, "activation_function": "swish"},
    "wide": {"d_model": 48, "encoder_attention_heads": 6, "encoder_layers": 3, "scale_embedding": True},
    "odd width": {"d_model": 15, "encoder_attention_heads": 3, "decoder_attention_heads": 5},
    "untied": {"tie_word_embeddings": False},  # transformers ties no embeddings then
}
SIZES = {
    "gpt2": {
        "tiny": {},
        "inner": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_inner": 40, "activation_function": "relu"},
        "wide": {"n_embd": 96, "n_layer": 4, "n_head": 6, "vocab_size": 300},
        "untied": {"n_embd": 32, "n_layer": 2, "n_head": 4, "tie_word_embeddings": False},
    },
    "marian": {
        **SEQ2SEQ_SIZES,
        "two vocabularies": APART,
        "two vocabularies, untied": {**APART, "tie_word_embeddings": False},
    },
    "pegasus": SEQ2SEQ_SIZES,
}
# variant of ours: the field that the stock model cannot express
SEQ2SEQ_REFUSED = {
    "learned positions": "position_embedding_type",
    "epsilon": "layer_norm_eps",
    "head width": "head_dim",
    "value width": "head_dim",
}
REFUSED = {
    "gpt2": {
        "post-norm": "norm_first",
        "embedding norm": "embedding_layernorm",
        "untied with a bias": "lm_head_bias",
        "head width": "head_dim",
        "bidirectional": "is_causal",
    },
    "marian": {**SEQ2SEQ_REFUSED, "pre-norm": "norm_first"},
    "pegasus": {
        **SEQ2SEQ_REFUSED,
        "two vocabularies": "decoder_vocab_size",
        "two vocabularies, untied": "decoder_vocab_size",
    },
}
BIASES = {"attention_bias": ["q_proj.bias", "k_proj.bias", "v_proj.bias"], "attention_output_bias": ["o_proj.bias"]}
CLOSE = {"atol": 1e-5, "rtol": 1e-5}
each_stock = pytest.mark.parametrize("stock", CONVERT)


def make_stock(stock: str, **overrides):
    torch.manual_seed(0)
    fields = {**STOCK[stock], **overrides}
    if stock == "gpt2":
        return shake(GPT2LMHeadModel(GPT2Config(**fields))).eval()
    if stock == "marian":
        model = shake(MarianMTModel(MarianConfig(**fields)))
    else:
        model = shake(PegasusForConditionalGeneration(PegasusConfig(**fields)))
    with torch.no_grad():  # the bias is no parameter, so `shake` left it; the positions are, and must be sinusoids
        model.final_logits_bias.normal_()
        for stack in (model.model.encoder, model.model.decoder):
            stack.embed_positions.weight.copy_(stack.embed_positions.create_weight())
    return model.eval()


def padded(config) -> dict[str, torch.Tensor]:
    """Three rows of 9, of which 0, 4 and 2 are padding: on the right of a source, on the left of a text."""
    ids = torch.randint(3, 59, (3, 9), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[1, :4] = mask[2, :2] = 0
    return {"input_ids": ids, "attention_mask": mask.flip(1) if config.is_encoder_decoder else mask}


def assert_same_function(a, b):
    inputs = padded(a.config)
    if a.config.is_encoder_decoder:
        name, target, given = "decoder_input_ids", torch.randint(3, 59, (3, 7)), inputs
        whole = a(**inputs, decoder_input_ids=target).logits
        torch.testing.assert_close(b(**inputs, decoder_input_ids=target).logits, whole, **CLOSE)
    else:
        name, target, given = "input_ids", inputs["input_ids"], {}
        real, positions = inputs["attention_mask"].bool(), (inputs["attention_mask"].cumsum(-1) - 1).clamp(min=0)
        rows = a(**inputs, position_ids=positions).logits[real]
        torch.testing.assert_close(b(**inputs, position_ids=positions).logits[real], rows, **CLOSE)
        whole = a(target).logits
    cache, steps = None, []
    for token in target.split(1, 1):
        outputs = b(**{**given, name: token}, cache=cache, use_cache=True)
        cache = outputs.cache
        steps.append(outputs.logits)
    torch.testing.assert_close(torch.cat(steps, 1), whole, **CLOSE)

    kwargs = {"num_beams": 4, "num_return_sequences": 2, "max_new_tokens": 10, "length_penalty": 0.5}
    kwargs |= {"return_dict_in_generate": True, "output_scores": True}
    beams = [model.generate(**inputs, **kwargs) for model in (a, b)]
    assert torch.equal(beams[0].sequences, beams[1].sequences)
    torch.testing.assert_close(beams[0].sequences_scores, beams[1].sequences_scores, **CLOSE)


def assert_same_weights(a, b, missing: tuple[str, ...] = ()):
    """Weights are equal to the bit. Names that end in one of `missing` are in `b` alone, and are zero biases."""
    a, b = a.state_dict(), b.state_dict()
    added = {name for name in b if name.endswith(missing)}
    assert a.keys() == b.keys() - added
    assert all(torch.equal(a[name], b[name]) and a[name].dtype == b[name].dtype for name in a)
    assert not any(b[name].any() for name in added)
    assert all(tensor.is_contiguous() for tensor in b.values())


@pytest.mark.parametrize(("stock", "size"), [(stock, size) for stock in SIZES for size in SIZES[stock]])
def test_a_stock_model_as_one_of_ours_and_back(stock, size):
    theirs, (convert, back) = make_stock(stock, **SIZES[stock][size]), CONVERT[stock]
    ours = convert(theirs)
    assert_same_function(theirs, ours)
    again = back(ours)
    if ours.config.is_encoder_decoder and size == "untied":
        for model in (theirs, again):
            model.model.shared = None  # nothing reads it
    assert_same_weights(theirs, again)
    target = (ours.get_decoder() if ours.config.is_encoder_decoder else ours).get_input_embeddings().weight
    assert (ours.lm_head.weight is target) == ("untied" not in size)
    if ours.config.is_encoder_decoder:
        is_shared = "two vocabularies" not in size and "untied" not in size
        assert (ours.model.encoder.embed_tokens.weight is target) == is_shared
        assert stock == "pegasus" or ours.config.share_encoder_decoder_embeddings == is_shared


FAMILY = {"gpt2": "gpt", "marian": "transformer", "pegasus": "transformer"}


@pytest.mark.parametrize(("stock", "variant"), [(stock, each) for stock in FAMILY for each in VARIANTS[FAMILY[stock]]])
def test_a_model_of_ours_as_a_stock_model_and_back(stock, variant):
    (convert, back), overrides = CONVERT[stock], VARIANTS[FAMILY[stock]][variant]
    norm = {"norm_first": True} if stock == "pegasus" else {}
    ours = shake(make_variant(FAMILY[stock], variant, **norm))
    if variant in REFUSED[stock]:
        with pytest.raises(ValueError, match=f"^`{REFUSED[stock][variant]}` is "):
            back(ours)
        return
    theirs = back(ours)
    assert_same_function(ours, theirs)
    again = convert(theirs)
    if variant == "sinusoidal positions":  # not in our state dict, but learned in a GPT-2
        assert torch.equal(again.model.embed_positions.weight, ours.model.embed_positions.weight)
        del again.model.embed_positions
    if ours.config.is_encoder_decoder:
        shared = theirs.model.encoder.embed_tokens.weight is theirs.model.decoder.embed_tokens.weight
        assert shared == (not {*overrides} & {"tie_word_embeddings", *APART})
    missing = [name for field, names in BIASES.items() if field in overrides for name in names]
    assert_same_weights(ours, again, tuple(missing))


@pytest.mark.parametrize("overrides", [{"scale_attn_weights": False}, {"scale_attn_by_inverse_layer_idx": True}])
def test_unusual_scales_of_attention_are_folded(overrides):
    gpt2 = make_stock("gpt2", n_embd=32, n_layer=3, n_head=4, **overrides)
    with torch.no_grad():
        for block in gpt2.transformer.h:
            block.attn.c_attn.weight.mul_(0.5)  # else the unscaled softmax is so steep that rounding shows
    assert_same_function(gpt2, from_gpt2(gpt2))


def test_a_model_that_shares_its_embeddings_in_part_becomes_copies():
    ours = shake(make_transformer(norm_first=True, share_encoder_decoder_embeddings=False))
    pegasus = to_pegasus(ours)
    assert not pegasus.config.tie_word_embeddings
    assert_same_function(ours, pegasus)


def test_a_head_is_tied_if_it_was_and_is_equal():
    untied = make_stock("gpt2", tie_word_embeddings=False)
    untied.lm_head.load_state_dict(untied.transformer.wte.state_dict())
    assert not from_gpt2(untied).config.tie_word_embeddings
    gpt2 = make_stock("gpt2")
    gpt2.lm_head.weight = torch.nn.Parameter(gpt2.lm_head.weight + 1)
    ours = from_gpt2(gpt2)
    assert not ours.config.tie_word_embeddings
    assert_same_function(gpt2, ours)


def test_a_logits_bias_of_zeros_is_no_bias():
    marian = make_stock("marian")
    marian.final_logits_bias.zero_()
    assert not from_marian(marian).config.lm_head_bias
    assert_same_weights(marian, to_marian(from_marian(marian)))


@pytest.mark.parametrize("scale", [True, False])
def test_given_embeddings_mean_the_same(scale):
    """Both scale what they embed, and nothing else; the columns are in another order."""
    theirs = make_stock("marian", scale_embedding=scale)
    ours, ids = from_marian(theirs), torch.randint(3, 40, (2, 6))
    given = theirs.get_input_embeddings()(ids) * theirs.model.encoder.embed_scale
    expected = theirs(inputs_embeds=2 * given, decoder_input_ids=ids).logits
    actual = ours(inputs_embeds=2 * ours.get_input_embeddings()(ids), decoder_input_ids=ids).logits
    torch.testing.assert_close(actual, expected, atol=1e-4, rtol=1e-4)


GPT2_FIELDS = {"resid_pdrop": "hidden_dropout", "embd_pdrop": "embedding_dropout", "attn_pdrop": "attention_dropout"}
GPT2_FIELDS |= {"n_inner": "intermediate_size", "activation_function": "hidden_act"}
GPT2_FIELDS |= {"layer_norm_epsilon": "layer_norm_eps"}
FIELDS = {"scale_embedding": True, "use_cache": False, "eos_token_id": [0, 3], "activation_function": "gelu"}
FIELDS |= {"dropout": 0.2, "attention_dropout": 0.3, "activation_dropout": 0.4, "init_std": 0.3}
SET = {"marian": {**FIELDS, "bos_token_id": 5}, "pegasus": FIELDS}
SET["gpt2"] = {"n_inner": 40, "activation_function": "gelu", "layer_norm_epsilon": 1e-3, "initializer_range": 0.1}
SET["gpt2"] |= {"resid_pdrop": 0.2, "embd_pdrop": 0.3, "attn_pdrop": 0.4, "use_cache": False, "eos_token_id": [2, 5]}


@each_stock
def test_every_field_travels(stock):
    convert, back = CONVERT[stock]
    theirs = make_stock(stock, **SET[stock])
    ours = convert(theirs)
    renamed = GPT2_FIELDS if stock == "gpt2" else {}
    assert {name: getattr(ours.config, renamed.get(name, name)) for name in SET[stock]} == SET[stock]
    again = back(ours).config
    sharing = {"gpt2": (), "marian": ("decoder_vocab_size", *APART), "pegasus": ("tie_word_embeddings",)}[stock]
    for name in (*SET[stock], *STOCK[stock], *sharing):
        assert getattr(again, name) == getattr(theirs.config, name), name
    if stock != "gpt2":
        assert (ours.config.initializer, ours.config.lm_head_bias) == ("normal", True)
        assert back(make_transformer(norm_first=stock == "pegasus")).config.forced_eos_token_id is None


def test_special_tokens_outside_the_vocabulary_are_left_out():
    assert GPT2Config().eos_token_id > 60
    gpt2 = make_stock("gpt2", bos_token_id=GPT2Config().bos_token_id, eos_token_id=[2, 60], pad_token_id=None)
    config = from_gpt2(gpt2).config
    assert (config.bos_token_id, config.eos_token_id, config.pad_token_id) == (None, [2], None)


@each_stock
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
        assert converted.generation_config is not model.generation_config


def test_sinusoids_take_the_dtype_of_the_model():
    gpt2 = to_gpt2(make_gpt(position_embedding_type="sinusoidal").bfloat16())
    assert gpt2.transformer.wpe.weight.dtype == torch.bfloat16


# folders


def test_a_folder_loads_in_stock_transformers(tmp_path):
    ours = shake(make_gpt())
    to_gpt2(ours).save_pretrained(tmp_path)
    stock = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert type(stock) is GPT2LMHeadModel
    assert_same_weights(ours, from_gpt2(stock))
    ids = torch.tensor([[5, 6, 7]])
    tokens = [model.generate(ids, max_new_tokens=12, do_sample=False).tolist() for model in (stock, ours)]
    assert tokens[0] == tokens[1]


def test_a_folder_as_the_opus_mt_ones_loads(tmp_path):
    make_stock("marian", scale_embedding=True, activation_function="swish").save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").unlink()  # they keep their generation options in config.json
    config = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    config |= {"_num_labels": 3, "add_bias_logits": False, "add_final_layer_norm": False, "classif_dropout": 0.0}
    config |= {"extra_pos_embeddings": 60, "gradient_checkpointing": False, "model_type": "marian"}
    config |= {"normalize_before": False, "normalize_embedding": False, "static_position_embeddings": True}
    config |= {"bad_words_ids": [[59]], "num_beams": 4, "max_length": 24}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")

    stock = MarianMTModel.from_pretrained(tmp_path)
    ours = from_marian(stock)
    assert ours.generation_config.num_beams == 4
    assert ours.generation_config.bad_words_ids == [[59]]
    assert_same_function(stock, ours)
    ours.save_pretrained(tmp_path / "ours")
    to_marian(ours).save_pretrained(tmp_path / "again")
    again = MarianMTModel.from_pretrained(tmp_path / "again")
    assert_same_weights(stock, again)
    tokens = stock.generate(**padded(stock.config))
    for model in (ours, type(ours).from_pretrained(tmp_path / "ours"), again):
        assert torch.equal(model.generate(**padded(model.config)), tokens)


# refusals


def make_adapted_gpt2() -> GPT2LMHeadModel:
    gpt2 = make_stock("gpt2")
    gpt2.transformer.h[0].mlp.c_fc = torch.nn.Sequential(gpt2.transformer.h[0].mlp.c_fc)  # as an adapter wraps it
    return gpt2


@pytest.mark.parametrize(
    ("convert", "make", "overrides", "message"),
    [
        (to_gpt2, make_gpt, {"final_layernorm": False}, "`final_layernorm` is False.*True"),
        (to_gpt2, make_gpt, {"hidden_act": "prelu"}, r"no place.*layers\.0\.feed_forward\.activation\.weight"),
        (from_gpt2, make_stock, {"stock": "gpt2", "add_cross_attention": True}, "`add_cross_attention` is True"),
        (from_gpt2, make_adapted_gpt2, {}, r"transformer\.h\.0\.mlp\.c_fc\.weight"),
        # right for the encoder's 4 heads, not for the decoder's 2
        (to_marian, make_transformer, {"head_dim": 8}, "`head_dim` is 8.*16"),
        (to_marian, make_transformer, {"decoder_attention_heads": 4, "v_head_dim": 9}, "`v_head_dim` is 9.*8"),
        (to_marian, make_transformer, {"activation_function": "prelu"}, r"no place.*feed_forward\.activation\.weight"),
        (to_pegasus, make_transformer, {}, "`norm_first` is False.*True"),
    ],
)
def test_what_the_other_model_cannot_express_is_named(convert, make, overrides, message):
    model = make(**overrides)
    with pytest.raises((ValueError, KeyError), match=message):
        convert(model)


def make_peft():
    peft = pytest.importorskip("peft")
    return peft.get_peft_model(make_gpt(), peft.LoraConfig(target_modules=["q_proj"]))


@pytest.mark.parametrize(
    ("convert", "make", "hint"),
    [
        (from_gpt2, make_gpt, ""),
        (from_gpt2, lambda: make_stock("gpt2").transformer, ""),
        (to_gpt2, lambda: make_gpt().model, ""),
        (to_gpt2, make_transformer, ""),
        (from_marian, make_transformer, ""),
        (from_marian, lambda: make_stock("gpt2"), "Take `from_gpt2`"),
        (to_marian, make_gpt, ""),
        (to_gpt2, make_peft, ""),
    ],
)
def test_another_model_is_refused_by_its_class(convert, make, hint):
    model = make()
    with pytest.raises(ValueError, match=f"without adapters .* but this is a {type(model).__name__}.*{hint}"):
        convert(model)


# CTranslate2; test_convert_engines.py uses these functions too


def learn_to_copy(model):
    """Train for a hundred steps on random sentences, so that translations differ and end."""
    generator, optimizer = torch.Generator().manual_seed(4), torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(100):
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
    kwargs |= {"return_dict_in_generate": True, "output_scores": True}
    # CTranslate2 also stops at 5 finished translations
    outputs = model.generate(**batch, num_beams=5, max_new_tokens=24, early_stopping=True, **kwargs)
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
