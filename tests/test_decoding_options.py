# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""`generate()`'s options by our IncrementalDecoder: all outputs of transformers' own loop, not the tokens alone."""

import pytest
import torch
from conftest import FAMILIES, shake
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import Cache, DynamicCache, EncoderDecoderCache, GenerationConfig, LogitsProcessor, StoppingCriteria
from transformers.generation import LogitsProcessorList, MaxLengthCriteria, StoppingCriteriaList

from hf_scratch.cpu import beam_search

PROMPTS = torch.randint(3, 60, (3, 5), generator=torch.Generator().manual_seed(3))
MODES = {
    "greedy": {"do_sample": False},
    "sample": {"do_sample": True, "num_return_sequences": 2},
    "beams": {"do_sample": False, "num_beams": 3, "num_return_sequences": 2},
    "sampled beams": {"do_sample": True, "num_beams": 3},
}
SCORES = {"return_dict_in_generate": True, "output_scores": True}
EVERYTHING = {**SCORES, "output_logits": True}


class AcrossRows(LogitsProcessor):
    def __call__(self, input_ids, scores):
        return scores + 0.1 * scores.roll(1, 0)


class InPlace(LogitsProcessor):
    def __call__(self, input_ids, scores):
        scores[:, 7] -= 3.0
        return scores


class EndsAtMultiples(StoppingCriteria):
    def __call__(self, input_ids, scores, **kwargs):
        return input_ids[:, -1] % 5 == 0


def allow_by_prompt(prompt: int, input_ids: torch.Tensor) -> list[int]:
    return list(range(3 + prompt, 40))


OPTIONS = {
    "min_new_tokens": 6,
    "repetition_penalty": 1.3,
    "no_repeat_ngram_size": 2,
    "bad_words_ids": [[5], [6, 7]],
    "forced_bos_token_id": 9,
    "forced_eos_token_id": 2,
    "begin_suppress_tokens": [10, 11],
    "prefix_allowed_tokens_fn": allow_by_prompt,
    "renormalize_logits": True,
    "temperature": 0.7,
    "top_k": 5,
    "top_p": 0.8,
    "stopping_criteria": StoppingCriteriaList([EndsAtMultiples()]),
    "a shorter length": {"stopping_criteria": StoppingCriteriaList([MaxLengthCriteria(8)])},
    "across rows": {"logits_processor": LogitsProcessorList([AcrossRows()])},
    "in place": {"logits_processor": LogitsProcessorList([InPlace()])},
}
OPTIONS = {name: value if isinstance(value, dict) else {name: value} for name, value in OPTIONS.items()}


def flatten(output) -> dict[str, torch.Tensor | str]:
    """All tensors of an output of `generate()` by name; or the error."""
    if not hasattr(output, "items") and not isinstance(output, (tuple, Cache)):
        return {"": output}
    if isinstance(output, EncoderDecoderCache):
        parts = {"self": output.self_attention_cache, "cross": output.cross_attention_cache}
    elif isinstance(output, DynamicCache):
        parts = {str(i): torch.stack((layer.keys, layer.values)) for i, layer in enumerate(output.layers)}
    elif isinstance(output, tuple):
        parts = dict(enumerate(output))
    else:
        parts = dict(output.items())
    return {f"{name}.{rest}": tensor for name, part in parts.items() for rest, tensor in flatten(part).items()}


def assert_equal(model, **options) -> dict[str, torch.Tensor]:
    """Compare all outputs with transformers' loop, from the same seed."""
    outputs = []
    for loop in ({}, {"cache_implementation": "dynamic"}):
        torch.manual_seed(0)
        try:
            outputs.append(model.generate(PROMPTS, **options, **loop))
        except (RuntimeError, ValueError) as error:  # some options leave no token to choose
            outputs.append((str(error),))
    assert type(outputs[0]) is type(outputs[1])
    ours, transformers = map(flatten, outputs)
    assert ours.keys() == transformers.keys()
    for name, tensor in transformers.items():
        if isinstance(tensor, str):
            assert ours[name] == tensor
            continue
        assert ours[name].dtype == tensor.dtype
        torch.testing.assert_close(ours[name], tensor, msg=lambda text, name=name: f"{name}: {text}")
    return ours


@pytest.fixture
def model(family):
    return shake(FAMILIES[family]())


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
@pytest.mark.parametrize("name", OPTIONS)
def test_each_option_gives_the_outputs_of_transformers(name, mode, model):
    assert_equal(model, max_new_tokens=8, eos_token_id=[2, 30, 31], **mode, **OPTIONS[name], **EVERYTHING)


def test_an_option_that_the_loop_does_not_know_is_left_to_transformers(model, steps):
    assert_equal(model, max_new_tokens=8, use_mtp=True)
    model.generate(PROMPTS, generation_config=GenerationConfig(max_new_tokens=8, mode_of_a_later_version=True))
    model.generation_config.mode_of_a_later_version = "fast"
    model.generate(PROMPTS, max_new_tokens=8)
    assert not steps
    model.generation_config.mode_of_a_later_version = False
    model.generate(PROMPTS, max_new_tokens=8, labels=PROMPTS)  # which Seq2SeqTrainer passes along
    assert steps


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_each_dtype_and_attention_gives_the_outputs_of_transformers(dtype, attention, mode, family, model, steps):
    model.set_attn_implementation(attention)
    mask = torch.ones_like(PROMPTS)
    mask[1, :2] = 0
    mask = mask if family == "gpt" else mask.flip(1)
    # oneDNN's float16 products depend on the number of rows where the CPU has AVX512_FP16
    with torch.backends.mkldnn.flags(enabled=dtype != torch.float16):
        assert_equal(model.to(dtype), max_new_tokens=12, attention_mask=mask, **mode, **EVERYTHING)
    assert steps


def test_a_returned_cache_carries_into_a_second_call(model, steps):
    first = model.generate(PROMPTS, max_new_tokens=4, do_sample=False, eos_token_id=None, return_dict_in_generate=True)
    assert steps
    expected = model.generate(PROMPTS, max_new_tokens=8, do_sample=False, eos_token_id=None)
    options = {"max_new_tokens": 4, "do_sample": False, "eos_token_id": None, "cache": first.cache}
    if model.config.is_encoder_decoder:
        second = model.generate(PROMPTS, decoder_input_ids=first.sequences, **options)
    else:
        second = model.generate(first.sequences, **options)
    assert second.equal(expected)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_options_together(model, data):
    mode = MODES[data.draw(st.sampled_from(sorted(MODES)))]
    names = sorted(set(OPTIONS) - {"a shorter length"})
    options = {}
    for name in data.draw(st.lists(st.sampled_from(names), min_size=2, max_size=4, unique=True)):
        options |= OPTIONS[name]
    if "num_beams" in mode:
        options["length_penalty"] = data.draw(st.sampled_from([-1.0, 0.0, 0.6, 2.0]))
        options["early_stopping"] = data.draw(st.sampled_from([True, False, "never"]))
    options["eos_token_id"] = data.draw(st.sampled_from([[2], list(range(2, 20))]))
    asked = data.draw(st.sampled_from([{}, SCORES, EVERYTHING]))
    assert_equal(model, max_new_tokens=data.draw(st.sampled_from([1, 3, 15])), **mode, **options, **asked)


# large vocabularies


def test_a_large_vocabulary_gives_the_outputs_of_transformers(monkeypatch, family):
    monkeypatch.setattr(beam_search, "LARGE", 16)
    monkeypatch.setattr(beam_search, "BLOCKS", 8)
    for width, last_end in ((2, 8), (3, 8), (5, 8), (2, 30)):  # 28 ends: more candidates than there are blocks
        ends = {"eos_token_id": list(range(2, last_end)), "length_penalty": 0.6}
        outputs = assert_equal(shake(FAMILIES[family]()), num_beams=width, max_new_tokens=20, **EVERYTHING, **ends)
        assert outputs["sequences."].shape[0] == len(PROMPTS)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_beams_of_equal_scores_come_in_the_order_of_transformers(dtype, family):
    """A large vocabulary whose tokens come in equal pairs is searched by blocks only where no scores are equal."""
    sizes = {"vocab_size": 5003} | ({"decoder_vocab_size": 5003} if family == "transformer" else {})
    model = shake(FAMILIES[family](**sizes)).to(dtype)
    with torch.no_grad():
        model.lm_head.weight[3:2500] = model.lm_head.weight[2500:4997].clone()
    assert_equal(model, num_beams=4, max_new_tokens=8, eos_token_id=None, **EVERYTHING)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_processors_dtype_is_that_of_the_sums(model, dtype):
    def halve(input_ids, scores):
        return scores.to(dtype)

    options = {"num_beams": 3, "eos_token_id": None, "logits_processor": LogitsProcessorList([halve])}
    for asked in ({}, SCORES):
        assert_equal(model.double(), max_new_tokens=8, **options, **asked)
