# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Both models against the equations of the paper, and what their outputs must not depend on."""

import pytest
import reference
import torch
from conftest import FAMILIES, each_variant, make_inputs_for, make_transformer, make_variant, shake
from safetensors.torch import load_file
from transformers import AutoModel
from transformers.modeling_outputs import BaseModelOutputWithPast

from hf_scratch.loading import auto_class_of

# (batch, source length): rows with padding on the right and on the left
PADDED = torch.tensor([[1, 1, 1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 0, 0, 0, 0], [0, 0, 1, 1, 1, 1, 1, 1, 1]])


@each_variant()
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_the_logits_are_those_of_the_equations(family, variant, attention):
    model = shake(make_variant(family, variant))
    model.set_attn_implementation(attention)
    inputs = make_inputs_for(model)
    if family == "gpt":
        logits, expected = model(**inputs).logits, reference.gpt(model, inputs["input_ids"])
    else:
        logits = model(**inputs, attention_mask=PADDED).logits
        expected = reference.transformer(model, inputs["input_ids"], PADDED, inputs["decoder_input_ids"])
    torch.testing.assert_close(logits.double(), expected, atol=2e-4, rtol=1e-4)


def test_a_decoder_without_a_source_has_no_cross_attention():
    """As BART's. The last token changes no earlier state."""
    decoder, ids = make_transformer().model.decoder, torch.randint(3, 60, (1, 6))
    other = torch.cat((ids[:, :-1], ids[:, -1:] % 50 + 4), 1)
    states, changed = (decoder(x, use_cache=True).last_hidden_state for x in (ids, other))
    torch.testing.assert_close(states[:, :-1], changed[:, :-1])
    assert decoder(ids, use_cache=True).cache.get_seq_length() == 6


def test_the_encoders_output_may_be_any_models_output():
    model, ids = make_transformer(), torch.randint(3, 60, (2, 6))
    states = model.get_encoder()(ids).last_hidden_state
    expected = model(ids, decoder_input_ids=ids).logits
    for outputs in ((states,), BaseModelOutputWithPast(last_hidden_state=states)):
        assert model(encoder_outputs=outputs, decoder_input_ids=ids).logits.equal(expected)


def test_positions_are_the_papers():
    model = make_transformer()
    table = model.get_encoder().embed_positions.weight
    torch.testing.assert_close(table.double(), reference.sinusoids(40, 32), atol=1e-5, rtol=0)
    assert table[3, 0] == pytest.approx(0.1411200)  # sin 3
    assert table[3, 1] == pytest.approx(-0.9899925)  # cos 3


def test_a_row_of_nothing_but_padding_gives_no_nan(model, inputs, family):
    mask = torch.ones_like(inputs["input_ids"])
    mask[1] = 0
    for attention in ("eager", "sdpa"):
        model.set_attn_implementation(attention)
        model.zero_grad()
        outputs = model(**inputs, attention_mask=mask, labels=inputs.get("decoder_input_ids", inputs["input_ids"]))
        outputs.loss.backward()
        assert outputs.logits.isfinite().all()
        assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)
        alone = model(**{name: ids[2:] for name, ids in inputs.items()}).logits
        torch.testing.assert_close(outputs.logits[2:], alone, atol=1e-5, rtol=1e-5)


def test_step_by_step_with_a_cache_equals_at_once(model, inputs, family):
    whole = model(**inputs).logits
    cache, steps = None, []
    name = "input_ids" if family == "gpt" else "decoder_input_ids"
    for ids in inputs[name].split(1, dim=1):
        outputs = model(**{**inputs, name: ids}, cache=cache, use_cache=True)
        cache = outputs.cache
        steps.append(outputs.logits)
    torch.testing.assert_close(torch.cat(steps, dim=1), whole, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("use_cache", [True, False])
@pytest.mark.parametrize("num_beams", [1, 3])
def test_a_padded_batch_generates_what_each_row_alone_does_with_and_without_a_cache(
    model, family, num_beams, use_cache
):
    rows = [torch.randint(3, 60, (length,)) for length in (9, 4, 6)]
    ids, mask = torch.zeros(3, 9, dtype=torch.long), torch.zeros(3, 9, dtype=torch.long)
    for i, row in enumerate(rows):
        at = slice(9 - len(row), 9) if family == "gpt" else slice(0, len(row))
        ids[i, at], mask[i, at] = row, 1
    kwargs = {"max_new_tokens": 10, "min_new_tokens": 10, "do_sample": False, "num_beams": num_beams}
    batch = model.generate(ids, attention_mask=mask, use_cache=use_cache, **kwargs)
    for i, row in enumerate(rows):
        alone = model.generate(row[None], attention_mask=torch.ones_like(row[None]), use_cache=not use_cache, **kwargs)
        assert torch.equal(batch[i, -10:], alone[0, -10:])


@each_variant()
def test_a_saved_model_loads_and_computes_the_same(family, variant, tmp_path):
    model = shake(make_variant(family, variant))
    model.save_pretrained(tmp_path)
    loaded, info = auto_class_of(model.config).from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert type(loaded) is type(model)
    inputs = make_inputs_for(model)
    assert torch.equal(model(**inputs).logits, loaded.eval()(**inputs).logits)
    base = AutoModel.from_pretrained(tmp_path).eval()
    assert torch.equal(model.model(**inputs).last_hidden_state, base(**inputs).last_hidden_state)


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("tie", [True, False])
def test_each_way_to_share_embeddings(share, tie, tmp_path):
    model = make_transformer(share_encoder_decoder_embeddings=share, tie_word_embeddings=tie)
    encoder, decoder = model.model.encoder.embed_tokens.weight, model.model.decoder.embed_tokens.weight
    assert (encoder is decoder) == share
    assert (model.lm_head.weight is decoder) == tie
    model.save_pretrained(tmp_path)
    saved = [n for n in load_file(tmp_path / "model.safetensors") if "embed_tokens" in n or "lm_head" in n]
    assert len(saved) == 3 - share - tie
    loaded = type(model).from_pretrained(tmp_path)
    assert (loaded.model.encoder.embed_tokens.weight is loaded.model.decoder.embed_tokens.weight) == share
    assert (loaded.lm_head.weight is loaded.model.decoder.embed_tokens.weight) == tie


@pytest.mark.parametrize("position_embedding_type", ["sinusoidal", "learned"])
def test_a_model_off_the_meta_device_is_whole_after_its_weights_are_loaded(family, position_embedding_type, inputs):
    model = FAMILIES[family](position_embedding_type=position_embedding_type)
    with torch.device("meta"):
        empty = type(model)(model.config)
    empty.to_empty(device="cpu").load_state_dict(model.state_dict())
    torch.testing.assert_close(empty.eval()(**inputs).logits, model(**inputs).logits, atol=0, rtol=0)


def test_a_source_that_is_padded_on_the_left_may_have_its_own_positions():
    model, ids = make_transformer(), torch.randint(3, 60, (1, 5))
    padded = torch.cat([torch.zeros(1, 2, dtype=torch.int64), ids], dim=1)
    options = {
        "attention_mask": torch.tensor([[0, 0, 1, 1, 1, 1, 1]]),
        "position_ids": torch.tensor([[0, 0, 0, 1, 2, 3, 4]]),
    }
    expected = model(input_ids=ids, decoder_input_ids=ids).logits
    torch.testing.assert_close(model(input_ids=padded, decoder_input_ids=ids, **options).logits, expected)
    generated = model.generate(ids, max_new_tokens=6, num_beams=2)
    assert model.generate(padded, max_new_tokens=6, num_beams=2, **options).tolist() == generated.tolist()


def test_initial_weights():
    model = make_transformer(vocab_size=400, d_model=64, encoder_ffn_dim=128)
    weight = model.model.encoder.layers[0].feed_forward.fc1.weight.detach()
    assert weight.abs().max() <= (6 / (64 + 128)) ** 0.5
    assert weight.std() == pytest.approx((2 / (64 + 128)) ** 0.5, rel=0.05)
    embedding = model.model.encoder.embed_tokens.weight.detach()
    assert embedding[1:].std() == pytest.approx(64**-0.5, rel=0.05)
    assert embedding[0].abs().max() == 0  # padding


def test_hidden_states_and_attentions_are_returned():
    model = make_transformer()
    model.set_attn_implementation("eager")
    outputs = model(
        torch.ones(2, 5, dtype=torch.long),
        decoder_input_ids=torch.ones(2, 4, dtype=torch.long),
        output_attentions=True,
        output_hidden_states=True,
    )
    assert len(outputs.encoder_hidden_states) == 3
    assert len(outputs.decoder_hidden_states) == 4
    assert [a.shape for a in outputs.encoder_attentions] == [(2, 4, 5, 5)] * 2
    assert [a.shape for a in outputs.decoder_attentions] == [(2, 2, 4, 4)] * 3
    assert [a.shape for a in outputs.cross_attentions] == [(2, 2, 4, 5)] * 3
    assert torch.equal(outputs.encoder_last_hidden_state, outputs.encoder_hidden_states[-1])


def test_generation_reaches_the_last_position(model):
    ids = torch.full((1, 5), 7)
    kwargs = {"do_sample": False, "eos_token_id": None}
    # the last generated token is never read, so it needs no position
    assert model.generate(ids, max_length=41, **kwargs).shape == (1, 41)


def torchs_weights(layer: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The state dict of our encoder or decoder layer with the weights of torch's."""
    attentions = {"self_attn": layer.self_attn}
    if isinstance(layer, torch.nn.TransformerDecoderLayer):
        attentions["cross_attn"] = layer.multihead_attn
    state = {}
    for name, attention in attentions.items():
        for kind in ("weight", "bias"):
            parts = (*getattr(attention, f"in_proj_{kind}").chunk(3), getattr(attention.out_proj, kind))
            state |= {f"{name}.{part}_proj.{kind}": weight for part, weight in zip("qkvo", parts, strict=True)}
    others = {"feed_forward.fc1": layer.linear1, "feed_forward.fc2": layer.linear2}
    others |= {f"{name}_norm": getattr(layer, f"norm{i}") for i, name in enumerate([*attentions, "feed_forward"], 1)}
    return state | {f"{name}.{kind}": p for name, module in others.items() for kind, p in module.named_parameters()}


@pytest.mark.parametrize("norm_first", [False, True], ids=["post-norm", "pre-norm"])
def test_encoder_and_decoder_equal_torchs_with_the_same_weights(norm_first):
    model = make_transformer(norm_first=norm_first, decoder_attention_heads=4, decoder_ffn_dim=48).double()
    options = {"dropout": 0.0, "batch_first": True, "norm_first": norm_first, "dtype": torch.float64}
    torchs = shake(torch.nn.Transformer(32, 4, 2, 3, 48, **options)).eval()
    for ours, theirs in ((model.model.encoder, torchs.encoder), (model.model.decoder, torchs.decoder)):
        for layer, other in zip(ours.layers, theirs.layers, strict=True):
            layer.load_state_dict(torchs_weights(other))
        if norm_first:
            ours.norm.load_state_dict(theirs.norm.state_dict())
        else:
            theirs.norm = None  # the paper has no last LayerNorm
    inputs, hidden = make_inputs_for(model), PADDED == 0
    expected = torchs(
        model.model.encoder.embed(inputs["input_ids"], None, PADDED, None),
        model.model.decoder.embed(inputs["decoder_input_ids"], None, None, None),
        tgt_mask=torch.nn.Transformer.generate_square_subsequent_mask(7, dtype=torch.float64),
        src_key_padding_mask=hidden,
        memory_key_padding_mask=hidden,
    )
    outputs = model.model(**inputs, attention_mask=PADDED)
    torch.testing.assert_close(outputs.last_hidden_state, expected, atol=1e-12, rtol=0)
