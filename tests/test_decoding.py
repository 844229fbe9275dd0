# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""`generate()` by our IncrementalDecoder gives the tokens and scores of transformers' own loop."""

import pytest
import torch
from conftest import FAMILIES, VARIANTS, each_variant, make_gpt, make_transformer, make_variant, shake
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import GenerationConfig, LogitsProcessor
from transformers.generation import LogitsProcessorList

from hf_scratch.cpu import beam_search

PROMPTS = torch.randint(3, 60, (3, 5), generator=torch.Generator().manual_seed(3))
MODES = {
    "greedy": {"do_sample": False},
    "sample": {"do_sample": True, "num_return_sequences": 2},
    "beams": {"do_sample": False, "num_beams": 3, "num_return_sequences": 2},
    "sampled beams": {"do_sample": True, "num_beams": 3},
}
# The decoder leaves this to transformers: its values are wider than its keys.
LEFT_TO_TRANSFORMERS = {("transformer", "value width")}


class AcrossRows(LogitsProcessor):
    def __call__(self, input_ids, scores):
        return scores + 0.1 * scores.roll(1, 0)


class InPlace(LogitsProcessor):
    def __call__(self, input_ids, scores):
        scores[:, 7] -= 3.0
        return scores


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
    "across rows": {"logits_processor": LogitsProcessorList([AcrossRows()])},
    "in place": {"logits_processor": LogitsProcessorList([InPlace()])},
}
OPTIONS = {name: value if isinstance(value, dict) else {name: value} for name, value in OPTIONS.items()}


class Recorder(LogitsProcessor):
    def __init__(self):
        self.seen = []

    def __call__(self, input_ids, scores):
        self.seen.append(scores.clone())
        return scores


def assert_equal(model, prompts=PROMPTS, with_scores: bool = True, **options) -> torch.Tensor | str:
    """Compare tokens, or an error, with transformers' loop from the same seed, and the scores that a processor gets.

    With this processor, the rows that have ended stay in the batch.
    """
    found = []
    for loop in ({}, {"cache_implementation": "dynamic"}):
        torch.manual_seed(0)
        recorder, given = Recorder(), {**options, **loop}
        if with_scores:
            given["logits_processor"] = LogitsProcessorList([*options.get("logits_processor", ()), recorder])
        try:
            found.append((model.generate(prompts, **given), recorder.seen))
        except (RuntimeError, ValueError) as error:  # some options leave no token to choose
            found.append((str(error), recorder.seen))
    (ours, our_scores), (transformers, scores) = found
    if isinstance(transformers, str):
        assert ours == transformers
        return ours
    torch.testing.assert_close(ours, transformers)
    torch.testing.assert_close(our_scores, scores)
    return ours


@pytest.fixture
def model(family):
    return shake(FAMILIES[family]())


def padded(family: str, *lengths: int) -> torch.Tensor:
    """A mask of as many tokens of each row of PROMPTS; a GPT's padding is on the left."""
    mask = torch.arange(5) < torch.tensor(lengths)[:, None]
    return (mask.flip(1) if family == "gpt" else mask).long()


@each_variant()
@pytest.mark.parametrize("num_beams", [1, 3])
def test_each_variant_gives_the_outputs_of_transformers(family, variant, num_beams, steps):
    model = shake(make_variant(family, variant))
    if not model.can_generate():
        pytest.skip("an encoder writes nothing")
    assert_equal(model, max_new_tokens=10, do_sample=False, num_beams=num_beams, eos_token_id=None)
    assert bool(steps) == ((family, variant) not in LEFT_TO_TRANSFORMERS)


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
@pytest.mark.parametrize("name", OPTIONS)
def test_each_option_gives_the_outputs_of_transformers(name, mode, family, model):
    options = {"attention_mask": padded(family, 5, 2, 4), "max_new_tokens": 12, "eos_token_id": [2, 30, 31]}
    assert_equal(model, **{**options, **mode, **OPTIONS[name]})


def test_an_option_that_the_loop_does_not_know_is_left_to_transformers(model, steps):
    for option in ({"use_mtp": True}, {"max_time": 99.0}):
        assert_equal(model, max_new_tokens=8, with_scores=False, **option)
    model.generate(PROMPTS, max_new_tokens=8, return_dict_in_generate=True, output_scores=True)
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
    mask = padded(family, 5, 3, 5)
    # oneDNN's float16 products depend on the number of rows where the CPU has AVX512_FP16
    with torch.backends.mkldnn.flags(enabled=dtype != torch.float16):
        assert_equal(model.to(dtype), max_new_tokens=12, attention_mask=mask, **mode)
    assert steps


@settings(max_examples=60)
@given(data=st.data())
def test_options_together(data):
    family = data.draw(st.sampled_from(sorted(FAMILIES)))
    variant = data.draw(st.sampled_from(sorted(VARIANTS[family].keys() - {"bidirectional"})))
    rows, length = data.draw(st.integers(1, 5)), data.draw(st.integers(2, 8))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 1000)))
    prompts = torch.randint(3, 60, (rows, length), generator=generator)
    mask = torch.ones_like(prompts)
    if data.draw(st.booleans()):
        for row in range(rows):
            mask[row, length - data.draw(st.integers(0, length - 1)) :] = 0
        mask = mask.flip(1) if family == "gpt" else mask
    options = {"attention_mask": mask, "max_new_tokens": data.draw(st.sampled_from([1, 3, 15]))}
    options |= MODES[data.draw(st.sampled_from(sorted(MODES)))]
    for name in data.draw(st.lists(st.sampled_from(sorted(OPTIONS)), max_size=4, unique=True)):
        options |= OPTIONS[name]
    if "num_beams" in options:
        options["length_penalty"] = data.draw(st.sampled_from([-1.0, 0.0, 0.6, 2.0]))
        options["early_stopping"] = data.draw(st.sampled_from([True, False, "never"]))
    options["eos_token_id"] = data.draw(st.sampled_from([[2], list(range(2, 20))]))
    assert_equal(shake(make_variant(family, variant)), prompts, with_scores=data.draw(st.booleans()), **options)


def test_a_finished_row_is_dropped(steps):
    prompts = torch.randint(3, 60, (8, 5), generator=torch.Generator().manual_seed(3))
    ends = list(range(2, 22))
    assert_equal(make_gpt(), prompts, with_scores=False, max_new_tokens=30, do_sample=False, eos_token_id=ends)
    rows = [shape[0] for shape in steps]
    assert rows == sorted(rows, reverse=True)
    assert rows[0] > rows[-1]


def test_a_source_of_padding_alone_is_attended_to_as_in_transformers(steps):
    assert_equal(make_transformer(), attention_mask=padded("transformer", 5, 0, 5), max_new_tokens=10)
    assert steps


@pytest.mark.parametrize("num_beams", [1, 3])
def test_positions_of_the_callers_own(num_beams, steps):
    arguments = {"num_beams": num_beams, "max_new_tokens": 8, "do_sample": False, "eos_token_id": None}
    found = assert_equal(make_gpt(), position_ids=torch.arange(7, 12).expand(3, 5), **arguments)
    assert steps
    assert not found.equal(make_gpt().generate(PROMPTS, **arguments))


def test_ties_between_beams_are_broken_as_in_transformers(family):
    model = FAMILIES[family]()
    model.lm_head.weight = torch.nn.Parameter(torch.zeros_like(model.lm_head.weight))
    assert_equal(model, max_new_tokens=5, num_beams=2, length_penalty=0.6)


# large vocabularies


def test_a_large_vocabulary_gives_the_outputs_of_transformers(monkeypatch, family):
    monkeypatch.setattr(beam_search, "LARGE", 16)
    monkeypatch.setattr(beam_search, "BLOCKS", 8)
    for width, last_end in ((2, 8), (3, 8), (5, 8), (2, 30)):  # 28 ends: more candidates than there are blocks
        ends = {"eos_token_id": list(range(2, last_end)), "length_penalty": 0.6}
        counts = {"num_beams": width, "num_return_sequences": width, "max_new_tokens": 20}
        assert_equal(shake(FAMILIES[family]()), with_scores=False, **counts, **ends)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_beams_of_equal_scores_come_in_the_order_of_transformers(dtype, family):
    """A large vocabulary whose tokens come in equal pairs is searched by blocks only where no scores are equal."""
    sizes = {"vocab_size": 5003} | ({"decoder_vocab_size": 5003} if family == "transformer" else {})
    model = shake(FAMILIES[family](**sizes)).to(dtype)
    with torch.no_grad():
        model.lm_head.weight[3:2500] = model.lm_head.weight[2500:4997].clone()
    counts = {"num_beams": 4, "num_return_sequences": 4, "max_new_tokens": 8}
    assert_equal(model, with_scores=False, **counts, eos_token_id=None)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_processors_dtype_is_that_of_the_sums(model, dtype):
    def halve(input_ids, scores):
        return scores.to(dtype)

    options = {"num_beams": 3, "eos_token_id": None, "logits_processor": LogitsProcessorList([halve])}
    assert_equal(model.double(), max_new_tokens=8, **options)
