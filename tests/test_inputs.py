# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""What `forward` is handed: all of it is read, or refused by name. Padding and packing change no text's result."""

import pytest
import torch
from conftest import DROPOUT, FAMILIES, make_gpt, make_transformer, shake
from transformers import AttentionInterface, AttentionMaskInterface, DataCollatorForLanguageModeling, Trainer
from transformers import TrainingArguments as Arguments
from transformers.cache_utils import DynamicCache, StaticCache
from transformers.masking_utils import sdpa_mask

CLOSE = {"atol": 1e-5, "rtol": 1e-5}


def inputs_of(family: str, ids: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"input_ids": ids} if family == "gpt" else {"input_ids": ids, "decoder_input_ids": ids}


def test_the_cache_goes_by_its_old_name_with_a_warning(family):
    model, ids = FAMILIES[family](), torch.randint(3, 60, (2, 6))
    first = model(**inputs_of(family, ids), use_cache=True)
    again = [{**inputs_of(family, ids[:, :1]), name: first.cache} for name in ("cache", "past_key_values")]
    new = model(**again[0]).logits
    first.cache.crop(-1) if family == "gpt" else first.cache.self_attention_cache.crop(-1)
    with pytest.warns(FutureWarning, match="cache"):
        old = model(**again[1]).logits
    torch.testing.assert_close(new, old)
    with pytest.raises(ValueError, match="cache"):
        model(**again[0], past_key_values=first.cache)


def test_flags_numbers_and_token_types_pass(model, inputs):
    passing = {"token_type_ids": torch.zeros_like(inputs["input_ids"]), "a_flag": True, "a_number": 3, "nothing": None}
    assert torch.equal(model(**inputs, **passing, words=["a"]).logits, model(**inputs).logits)


def test_an_attention_function_of_the_users_own_gets_its_tensors(model, inputs):
    def shifted(module, query, key, value, attention_mask, shift, **kwargs):
        return (value + shift)[:, :, : query.shape[2]].transpose(1, 2), None

    AttentionInterface.register("shifted", shifted)
    AttentionMaskInterface.register("shifted", sdpa_mask)
    model.set_attn_implementation("shifted")
    results = [model(**inputs, shift=torch.tensor(shift)).logits for shift in (0.0, 9.0)]
    assert not torch.allclose(*results)


def test_a_mask_of_another_length_is_refused(family):
    model, ids = FAMILIES[family](), torch.randint(3, 60, (2, 6))
    cache = model(**inputs_of(family, ids), use_cache=True).cache
    name = "attention_mask" if family == "gpt" else "decoder_attention_mask"
    calls = [
        (1, 7, {**inputs_of(family, ids[:, :1]), "cache": cache, name: torch.ones(2, 1)}),
        (4, 6, {**inputs_of(family, ids), "attention_mask": torch.ones(2, 4)}),
    ]
    if family == "transformer":
        encoded = model.model.encoder(ids)
        calls.append(
            (1, 6, {"encoder_outputs": encoded, "attention_mask": torch.zeros(2, 1), "decoder_input_ids": ids})
        )
    for columns, tokens, arguments in calls:
        with pytest.raises(ValueError, match=f"{columns} columns, but there are {tokens} tokens"):
            model(**arguments)


def test_a_plain_cache_serves_the_decoder_too():
    """Cross-attention does not write into the cache of self-attention."""
    model, ids = make_transformer(), torch.randint(3, 60, (2, 6))
    expected = model(input_ids=ids, decoder_input_ids=ids).logits
    outputs = model(input_ids=ids, decoder_input_ids=ids[:, :4], cache=DynamicCache(), use_cache=True)
    torch.testing.assert_close(outputs.logits, expected[:, :4], **CLOSE)
    outputs = model(input_ids=ids, decoder_input_ids=ids[:, 4:], cache=outputs.cache)
    torch.testing.assert_close(outputs.logits, expected[:, 4:], **CLOSE)


def test_the_embeddings_of_ids_are_what_the_model_takes_in_their_place(family):
    model, ids = FAMILIES[family](), torch.randint(3, 60, (2, 6))
    expected = model(**inputs_of(family, ids)).logits
    embedded = model.get_input_embeddings()(ids)
    if family == "gpt":
        assert model(inputs_embeds=embedded).logits.equal(expected)
        return
    assert model(inputs_embeds=embedded, decoder_input_ids=ids).logits.equal(expected)
    decoder_embeds = model.get_decoder().get_input_embeddings()(ids)
    assert model(input_ids=ids, decoder_inputs_embeds=decoder_embeds).logits.equal(expected)


# positions


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("positions", ["learned", "sinusoidal"])
def test_a_row_is_the_same_alone_and_padded_on_either_side(family, positions, attention):
    model = shake(FAMILIES[family](position_embedding_type=positions))
    model.set_attn_implementation(attention)
    ids = torch.randint(3, 60, (1, 6))
    alone = model(**inputs_of(family, ids), labels=ids)
    for left, right in ((4, 0), (0, 4), (2, 2)):
        padded = torch.nn.functional.pad(ids, (left, right), value=0)
        mask = torch.nn.functional.pad(torch.ones_like(ids), (left, right))
        labels = torch.nn.functional.pad(ids, (left, right), value=-100)
        masks = {"attention_mask": mask} | ({} if family == "gpt" else {"decoder_attention_mask": mask})
        outputs = model(**inputs_of(family, padded), **masks, labels=labels)
        torch.testing.assert_close(outputs.logits[:, left : left + 6], alone.logits, **CLOSE)
        torch.testing.assert_close(outputs.loss, alone.loss, **CLOSE)


@pytest.mark.parametrize("make_cache", [DynamicCache, lambda: StaticCache(make_gpt().config, max_cache_len=12)])
def test_a_padded_prompt_goes_on_from_its_cache(make_cache):
    model, ids = make_gpt(), torch.randint(3, 60, (2, 8))
    mask = torch.tensor([[0, 0, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1, 1, 1]])
    whole, cache = model(ids, attention_mask=mask).logits, make_cache()
    parts = [model(ids[:, a:b], attention_mask=mask[:, :b], cache=cache).logits for a, b in ((0, 5), (5, 7), (7, 8))]
    seen = mask.bool()
    torch.testing.assert_close(torch.cat(parts, 1)[seen], whole[seen], **CLOSE)


# packed rows


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("option", ["", "use_cache", "labels"])
def test_packed_texts_do_not_see_each_other(is_causal, attention, option):
    model = shake(make_gpt(is_causal=is_causal))
    model.set_attn_implementation(attention)
    first, second = torch.randint(3, 60, (2, 4)), torch.randint(3, 60, (2, 5))
    packed, positions = torch.cat((first, second), 1), torch.tensor([[*range(4), *range(5)]])
    options = {"": {}, "use_cache": {"use_cache": True}, "labels": {"labels": packed}}[option]
    logits = model(packed, position_ids=positions, **options).logits
    torch.testing.assert_close(logits[:, :4], model(first).logits, **CLOSE)
    torch.testing.assert_close(logits[:, 4:], model(second).logits, **CLOSE)


# masks and labels


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_an_encoder_predicts_masked_tokens_where_they_stand(tmp_path, bert_tokenizer, smoothing):
    """With transformers' own collator and trainer, by each way to the loss."""
    torch.manual_seed(0)
    tokenizer = bert_tokenizer
    model = make_gpt(is_causal=False, vocab_size=len(tokenizer))
    rows = [{"input_ids": torch.randint(5, len(tokenizer), (9,)).tolist()} for _ in range(4)]
    batch = DataCollatorForLanguageModeling(tokenizer, mlm=True, mlm_probability=0.5)(rows)
    logits, labels = model(**batch).logits.flatten(0, 1), batch["labels"].flatten()
    expected = torch.nn.functional.cross_entropy(logits, labels, label_smoothing=smoothing)
    for kwargs in ({}, {"skip_logits": True}):
        loss = model(**batch, **kwargs, **({"label_smoothing": smoothing} if smoothing else {})).loss
        torch.testing.assert_close(loss, expected, **CLOSE)
    arguments = Arguments(str(tmp_path), label_smoothing_factor=smoothing, report_to="none", use_cpu=True)
    trainer = Trainer(model, arguments, train_dataset=rows)
    torch.testing.assert_close(trainer.compute_loss(model, dict(batch)), expected, **CLOSE)


def test_an_encoders_loss_under_trainer_counts_each_label(tmp_path):
    """A label at the first position counts too: Trainer counts labels by the model's `loss_type`."""
    torch.manual_seed(0)
    model, ids = make_gpt(is_causal=False), torch.randint(3, 60, (2, 6))
    rows = [{"input_ids": row, "attention_mask": [1] * 6, "labels": row} for row in ids.tolist()]
    arguments = Arguments(str(tmp_path), per_device_eval_batch_size=2, report_to="none", use_cpu=True)
    trainer = Trainer(model, arguments, eval_dataset=rows)
    expected = torch.nn.functional.cross_entropy(model(ids).logits.flatten(0, 1), ids.flatten())
    assert trainer.evaluate()["eval_loss"] == pytest.approx(expected.item(), abs=1e-5)


@pytest.mark.parametrize("cache", [None, "static", "dynamic"])
def test_a_target_padded_on_the_left_goes_on_as_alone(cache):
    model, source = make_transformer(), torch.randint(3, 60, (1, 6))
    model.generation_config.eos_token_id = None
    target = torch.randint(3, 60, (1, 4))
    options = {"max_new_tokens": 6, "do_sample": False, "cache_implementation": cache}
    alone = model.generate(source, decoder_input_ids=target, **options)
    padded, mask = (torch.nn.functional.pad(x, (3, 0)) for x in (target, torch.ones_like(target)))
    tokens = model.generate(source, decoder_input_ids=padded, decoder_attention_mask=mask, **options)
    assert tokens[:, -10:].equal(alone[:, -10:])  # behind the padding comes what was given, and 6 new tokens


def test_a_trainer_can_turn_dropout_off_as_trl_does(family, inputs):
    """By the `p` of each `nn.Dropout`."""
    model = FAMILIES[family](**DROPOUT[family])
    expected = model(**inputs).logits
    for module in model.train().modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    torch.testing.assert_close(model(**inputs).logits, expected)


def test_padding_takes_no_position_of_generation():
    model, prompt = make_gpt(max_position_embeddings=20), torch.randint(3, 60, (1, 8))
    padded, mask = (torch.nn.functional.pad(x, (10, 0)) for x in (prompt, torch.ones_like(prompt)))
    options = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    alone = model.generate(prompt, attention_mask=torch.ones_like(prompt), **options)
    for cache in ("dynamic", None):
        generated = model.generate(padded, attention_mask=mask, cache_implementation=cache, **options)
        assert torch.equal(generated[:, 18:], alone[:, 8:])


def test_a_cache_that_is_asked_for_is_returned_beside_a_loss():
    model, ids = make_gpt(), torch.randint(3, 60, (2, 6))
    assert model(ids, labels=ids).cache is None
    assert model(ids, labels=ids, use_cache=True).cache.get_seq_length() == 6
