# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""`generate()`'s options by our IncrementalDecoder: all outputs of transformers' own loop, not the tokens alone."""

import pytest
import torch
from conftest import FAMILIES, shake
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import Cache, DynamicCache, EncoderDecoderCache, LogitsProcessor, StoppingCriteria
from transformers.generation import (
    LogitsProcessorList,
    MaxLengthCriteria,
    StoppingCriteriaList,
)

from hf_scratch.cpu import beam_search

PROMPTS = torch.randint(3, 60, (3, 5), generator=torch.Generator().manual_seed(3))
MODES = {
    "greedy": {"do_sample": False},
    "sample": {"do_sample": True, "num_return_sequences": 2},
    "beams": {"do_sample": False, "num_beams": 3, "num_return_sequences": 2},
    "sampled beams": {"do_sample": True, "num_beams": 3},
}
EVERYTHING = {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}


class AcrossRows(LogitsProcessor):
    def __call__(self, input_ids, scores):
        return scores + 0.1 * scores.roll(1, 0)


class InPlace(LogitsProcessor):
    def __call__(self, input_ids, scores):
        scores[:, 7] -= 3.0
        return scores


class Keeps(LogitsProcessor):
    """Returns one tensor that it holds for all steps, and fails if somebody has changed it."""

    def __init__(self):
        self.held = {}

    def __call__(self, input_ids, scores):
        held = self.held.setdefault(scores.shape, torch.arange(scores.numel()).view_as(scores) / 100)
        assert held.equal(torch.arange(scores.numel()).view_as(scores) / 100)
        return held


class EndsAtMultiples(StoppingCriteria):
    def __call__(self, input_ids, scores, **kwargs):
        return input_ids[:, -1] % 5 == 0


def allow_by_prompt(prompt: int, input_ids: torch.Tensor) -> list[int]:
    return list(range(3 + prompt, 40))


OPTIONS = {
    "min_new_tokens": 6,
    "min_length": 9,
    "repetition_penalty": 1.3,
    "encoder_repetition_penalty": 1.5,
    "no_repeat_ngram_size": 2,
    "encoder_no_repeat_ngram_size": 2,
    "bad_words_ids": [[5], [6, 7]],
    "sequence_bias": [[[12], 2.0], [[13, 14], -3.0]],
    "forced_bos_token_id": 9,
    "forced_eos_token_id": 2,
    "suppress_tokens": [4, 8, 9],
    "begin_suppress_tokens": [10, 11],
    "exponential_decay_length_penalty": (3, 1.2),
    "prefix_allowed_tokens_fn": allow_by_prompt,
    "guidance_scale": 1.5,
    "remove_invalid_values": True,
    "renormalize_logits": True,
    "temperature": 0.7,
    "top_k": 5,
    "top_p": 0.8,
    "top_h": 0.5,
    "min_p": 0.05,
    "typical_p": 0.8,
    "epsilon_cutoff": 0.01,
    "eta_cutoff": 0.01,
    "max_time": 0.0,
    "stopping_criteria": StoppingCriteriaList([EndsAtMultiples()]),
    "a shorter length": {"stopping_criteria": StoppingCriteriaList([MaxLengthCriteria(8)])},
    "across rows": {"logits_processor": LogitsProcessorList([AcrossRows()])},
    "in place": {"logits_processor": LogitsProcessorList([InPlace()])},
}
OPTIONS = {name: value if isinstance(value, dict) else {name: value} for name, value in OPTIONS.items()}
ONLY_WITHOUT_BEAMS = {"guidance_scale"}  # with beams, transformers refuses it or ignores it


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


@pytest.fixture(params=sorted(FAMILIES))
def model(request):
    return shake(FAMILIES[request.param]())


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
@pytest.mark.parametrize("name", OPTIONS)
def test_each_option_gives_the_outputs_of_transformers(name, mode, model, steps):
    if name in ONLY_WITHOUT_BEAMS and "num_beams" in mode:
        pytest.skip("transformers has it without beams alone")
    assert_equal(model, max_new_tokens=8, eos_token_id=[2, 30, 31], **mode, **OPTIONS[name], **EVERYTHING)
    assert steps or name in ("max_time", "stopping_criteria")  # these may end all texts at the first token


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
@pytest.mark.parametrize("asked", [{}, {"output_scores": True}, {"output_logits": True}], ids=["", "scores", "logits"])
def test_only_what_is_asked_for_is_returned(asked, mode, model, steps):
    ours = assert_equal(model, max_new_tokens=8, return_dict_in_generate=True, **mode, **asked)
    assert steps
    assert any(name.startswith("scores") for name in ours) == ("output_scores" in asked)
    assert any(name.startswith("cache") for name in ours)


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_each_dtype_and_attention_gives_the_outputs_of_transformers(dtype, attention, mode, model, steps):
    model.set_attn_implementation(attention)
    mask = torch.ones_like(PROMPTS)
    mask[1, :2] = 0
    mask = mask if type(model) is type(FAMILIES["gpt"]()) else mask.flip(1)
    # oneDNN's float16 products depend on the number of rows where the CPU has AVX512_FP16
    with torch.backends.mkldnn.flags(enabled=dtype != torch.float16):
        assert_equal(model.to(dtype), max_new_tokens=12, attention_mask=mask, **mode, **EVERYTHING)
    assert steps


@pytest.mark.parametrize("early_stopping", [True, False, "never"])
def test_a_held_tensor_of_a_processor_stays_as_it_is(early_stopping, model):
    for mode in ({"do_sample": False}, {"num_beams": 3, "early_stopping": early_stopping}):
        model.generate(PROMPTS, max_new_tokens=5, logits_processor=LogitsProcessorList([Keeps()]), **mode)


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
    names = sorted(set(OPTIONS) - ONLY_WITHOUT_BEAMS - {"max_time", "a shorter length"})
    options = {}
    for name in data.draw(st.lists(st.sampled_from(names), min_size=2, max_size=4, unique=True)):
        options |= OPTIONS[name]
    if "num_beams" in mode:
        options["length_penalty"] = data.draw(st.sampled_from([-1.0, 0.0, 0.6, 2.0]))
        options["early_stopping"] = data.draw(st.sampled_from([True, False, "never"]))
    asked = EVERYTHING if data.draw(st.booleans()) else {}
    assert_equal(model, max_new_tokens=data.draw(st.sampled_from([1, 3, 15])), **mode, **options, **asked)


@pytest.mark.parametrize("name", ["min_new_tokens", "no_repeat_ngram_size"])
def test_finished_sentences_leave_the_batch_with_these_options(name, model, steps):
    prompts = torch.randint(3, 60, (8, 5), generator=torch.Generator().manual_seed(3))
    fewest = 8
    for last in range(6, 30, 4):  # some of these end tokens end some sentences
        ends = {"eos_token_id": list(range(2, last)), "early_stopping": True}
        model.generate(prompts, num_beams=2, max_new_tokens=30, **ends, **OPTIONS[name])
        fewest = min(fewest, *(shape[0] for shape in steps))
    assert fewest < 8


# large vocabularies


@given(vocab_size=st.integers(8, 60), batch=st.integers(1, 3), count=st.integers(1, 23), seed=st.integers(0, 99))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_largest_sums_are_found_by_blocks(monkeypatch, vocab_size, batch, count, seed):
    monkeypatch.setattr(beam_search, "BLOCKS", 4)
    torch.manual_seed(seed)
    scores, sums = torch.randn(batch, 3, vocab_size), torch.randn(batch, 3)
    scores[torch.rand_like(scores) < 0.3] = -torch.inf
    values, places = beam_search._largest_sums(scores, sums, count)
    expected = (scores + sums[..., None]).flatten(1)
    assert values.equal(expected.topk(count)[0])
    assert values.equal(expected.gather(1, places))


@pytest.mark.parametrize("family", sorted(FAMILIES))
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

    tokens = [
        model.generate(PROMPTS, num_beams=3, max_new_tokens=8, eos_token_id=None,
                       logits_processor=LogitsProcessorList([halve]), **loop)
        for loop in ({}, {"cache_implementation": "dynamic"})
    ]  # fmt: skip
    assert tokens[0].equal(tokens[1])


@pytest.mark.parametrize("options", [{"penalty_alpha": 0.6, "top_k": 4}, {"num_beams": 4, "num_beam_groups": 2}])
def test_other_modes_are_left_to_transformers(model, options):
    with pytest.raises(ValueError, match="trust_remote_code"):
        model.generate(PROMPTS, max_new_tokens=4, **options)
