# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""`generate()` gives the same tokens through our IncrementalDecoder as through transformers' own loop."""

import pytest
import torch
from conftest import FAMILIES, VARIANTS, each_variant, make_gpt, make_transformer, make_variant, shake
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import (
    DynamicCache,
    EosTokenCriteria,
    LogitsProcessor,
    LogitsProcessorList,
    MaxLengthCriteria,
    StoppingCriteria,
    StoppingCriteriaList,
    TextStreamer,
)

from hf_scratch.cpu.decoder import IncrementalDecoder


def generate_both(model, input_ids, **kwargs) -> tuple[torch.Tensor, torch.Tensor]:
    """The tokens by our decoder and by transformers' loop, both from the same seed."""
    torch.manual_seed(0)
    ours = model.generate(input_ids, **kwargs)
    torch.manual_seed(0)
    return ours, model.generate(input_ids, cache_implementation="dynamic", **kwargs)


PROMPTS = torch.randint(3, 60, (4, 5), generator=torch.Generator().manual_seed(3))
# The decoder leaves this to transformers: its values are wider than its keys.
LEFT_TO_TRANSFORMERS = {("transformer", "value width")}


@each_variant()
@pytest.mark.parametrize("num_beams", [1, 3])
def test_each_variant_generates_the_tokens_of_transformers(family, variant, num_beams, steps):
    model = shake(make_variant(family, variant))
    if not getattr(model.config, "is_causal", True):
        with pytest.raises(ValueError, match="encoder"):
            model.generate(PROMPTS)
        return
    model.config.eos_token_id = model.generation_config.eos_token_id = None
    ours = model.generate(PROMPTS, max_new_tokens=10, do_sample=False, num_beams=num_beams)
    assert bool(steps) == ((family, variant) not in LEFT_TO_TRANSFORMERS)
    steps.clear()
    transformers = model.generate(
        PROMPTS, max_new_tokens=10, do_sample=False, num_beams=num_beams, cache_implementation="dynamic"
    )
    assert not steps
    assert ours.equal(transformers)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_the_tokens_are_those_of_transformers(steps, data):
    steps.clear()
    family = data.draw(st.sampled_from(sorted(FAMILIES)))
    variant = data.draw(st.sampled_from(sorted(VARIANTS[family].keys() - {"bidirectional"})))
    model = make_variant(family, variant)
    batch, length = data.draw(st.integers(1, 6)), data.draw(st.integers(2, 8))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 1000)))
    input_ids = torch.randint(3, 60, (batch, length), generator=generator)
    mask = torch.ones_like(input_ids)
    if data.draw(st.booleans()):  # on the left for the GPT
        for row in range(batch):
            padding = data.draw(st.integers(0, length - 1))
            mask[row, length - padding :] = 0
        mask = mask.flip(1) if family == "gpt" else mask
    num_beams = data.draw(st.sampled_from([1, 1, 2, 4]))
    kwargs = {"max_new_tokens": data.draw(st.sampled_from([2, 6, 25])), "eos_token_id": [2, 30, 31, 32]}
    if num_beams > 1:
        kwargs |= {
            "num_beams": num_beams,
            "num_return_sequences": data.draw(st.integers(1, num_beams)),
            "length_penalty": data.draw(st.sampled_from([-1.0, 0.0, 0.6, 2.0])),
            "early_stopping": data.draw(st.sampled_from([True, False, "never"])),
        }
    elif data.draw(st.booleans()):
        kwargs |= {"do_sample": True, "temperature": 1.5, "top_p": 0.9}
    else:
        kwargs |= {"do_sample": False, "repetition_penalty": 1.3}
    ours, transformers = generate_both(model, input_ids, attention_mask=mask, **kwargs)
    assert ours.equal(transformers)
    if (family, variant) in LEFT_TO_TRANSFORMERS:
        assert not steps
    else:  # if the first token ends all rows, the decoder makes no step
        assert steps or ours.shape[1] <= transformers.shape[1]


def test_a_finished_row_is_dropped(steps):
    model = make_gpt()
    prompts = torch.randint(3, 60, (8, 5), generator=torch.Generator().manual_seed(3))
    ours, transformers = generate_both(
        model, prompts, max_new_tokens=30, do_sample=False, eos_token_id=list(range(2, 22))
    )
    assert ours.equal(transformers)
    rows = [shape[0] for shape in steps]
    assert rows == sorted(rows, reverse=True)
    assert rows[0] > rows[-1]


def test_beams_share_their_source(steps):
    model, source = make_transformer(), torch.randint(3, 60, (2, 9), generator=torch.Generator().manual_seed(3))
    held = []
    keep = IncrementalDecoder.__init__

    def look(self, *args, **kwargs):
        keep(self, *args, **kwargs)
        held.append(self.layers[0].source[0].shape)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(IncrementalDecoder, "__init__", look)
        model.generate(source, num_beams=4, max_new_tokens=3)
    assert held == [(2, 2, 9, 16)]


class Forbid(LogitsProcessor):
    def __call__(self, input_ids, scores):
        return scores.index_fill(1, torch.tensor([5, 6, 7]), -torch.inf)


OTHERS = {
    "attentions": {"return_dict_in_generate": True, "output_attentions": True},
    "states": {"return_dict_in_generate": True, "output_hidden_states": True},
    "a cache": {"cache": None},
    "no cache": {"use_cache": False},
}


@pytest.mark.parametrize("kwargs", OTHERS.values(), ids=OTHERS)
def test_what_the_decoder_does_not_know_is_left_to_transformers(steps, kwargs):
    prompt = torch.randint(3, 60, (2, 5), generator=torch.Generator().manual_seed(3))
    if "cache" in kwargs:
        kwargs = {"cache": DynamicCache()}
    make_gpt().generate(prompt, max_new_tokens=4, **kwargs)
    assert not steps


class Even(StoppingCriteria):
    def __call__(self, input_ids, scores, **kwargs):
        return input_ids[:, -1] % 4 == 0


@pytest.mark.parametrize("num_beams", [1, 3])
@pytest.mark.parametrize("criterion", [Even(), EosTokenCriteria([9, 10, 11, 12]), MaxLengthCriteria(8)])
def test_criteria_of_the_caller_end_a_text(criterion, num_beams):
    prompts = torch.randint(3, 60, (4, 5), generator=torch.Generator().manual_seed(3))
    ours, transformers = generate_both(
        make_gpt(), prompts, max_new_tokens=20, do_sample=False, num_beams=num_beams, eos_token_id=[2, 30, 31],
        stopping_criteria=StoppingCriteriaList([criterion]),
    )  # fmt: skip
    assert ours.equal(transformers)
    without = make_gpt().generate(
        prompts, max_new_tokens=20, do_sample=False, num_beams=num_beams, eos_token_id=[2, 30, 31]
    )
    assert not ours.equal(without)


class EndsAtAnyOf(StoppingCriteria):
    """Has transformers' attribute for end tokens, but ends a text for another reason."""

    def __init__(self, eos_token_id):
        self.eos_token_id = eos_token_id

    def __call__(self, input_ids, scores, **kwargs):
        return input_ids[:, -3:].sum(-1) % 3 == 0


class EosOfEvenLengths(EosTokenCriteria):
    def __call__(self, input_ids, scores, **kwargs):
        return super().__call__(input_ids, scores, **kwargs) & (input_ids.shape[1] % 2 == 0)


class LengthPerRow(MaxLengthCriteria):
    def __call__(self, input_ids, scores, **kwargs):
        return torch.arange(len(input_ids)) + self.max_length <= input_ids.shape[1]


class Rewrites(StoppingCriteria):
    def __call__(self, input_ids, scores, **kwargs):
        input_ids[:, -1] = input_ids[:, -1] // 2 + 3
        return torch.zeros(len(input_ids), dtype=torch.bool)


ODD_CRITERIA = {
    "number": EndsAtAnyOf(9), "list": EndsAtAnyOf([9, 10]), "none": EndsAtAnyOf(None), "tensor": EndsAtAnyOf(PROMPTS),
    "end": EosOfEvenLengths(list(range(3, 30))), "length": LengthPerRow(7), "rewrites": Rewrites(),
}  # fmt: skip


@pytest.mark.parametrize("options", [{}, {"num_beams": 3}, {"do_sample": True}], ids=["greedy", "beams", "sample"])
@pytest.mark.parametrize("criterion", ODD_CRITERIA.values(), ids=ODD_CRITERIA)
def test_a_criterion_of_the_callers_own_is_called(criterion, options):
    ours, transformers = generate_both(
        make_gpt(), PROMPTS, max_new_tokens=15, eos_token_id=[2, 30, 31], pad_token_id=0,
        stopping_criteria=StoppingCriteriaList([criterion]), **{"do_sample": False, **options},
    )  # fmt: skip
    assert ours.equal(transformers)


class Converts(LogitsProcessor):
    """Returns the scores as another kind of tensor: another dtype, a gradient, a subclass, another layout."""

    def __init__(self, convert):
        self.convert = convert

    def __call__(self, input_ids, scores):
        return self.convert(scores * 1.01)


class Named(torch.Tensor):
    pass


CONVERSIONS = {
    "bfloat16": torch.Tensor.bfloat16,
    "float16": torch.Tensor.half,
    "float64": torch.Tensor.double,
    "gradient": lambda scores: scores.requires_grad_(),
    "subclass": lambda scores: scores.as_subclass(Named),
    "transposed": lambda scores: scores.t().contiguous().t(),
    "negated": lambda scores: torch._neg_view(-scores),
    "nan": lambda scores: scores.index_fill(1, torch.tensor([7]), torch.nan),
    "one row": lambda scores: scores[:1],
}


@pytest.mark.parametrize("conversion", CONVERSIONS)
def test_scores_of_a_processor_may_be_any_tensor(conversion, steps):
    processor = LogitsProcessorList([Converts(CONVERSIONS[conversion])])
    for do_sample in (False, True):
        if (conversion, do_sample) != ("nan", True):
            ours, transformers = generate_both(
                make_gpt(), PROMPTS, max_new_tokens=10, do_sample=do_sample, logits_processor=processor
            )
            assert ours.equal(transformers)
    assert steps


class Longer(LogitsProcessor):
    def __call__(self, input_ids, scores):
        return torch.nn.functional.pad(scores, (0, 5), value=1e4)


@pytest.mark.parametrize("kwargs", [{"logits_processor": [Longer()]}, {"pad_token_id": 99}, {"pad_token_id": -1}])
def test_tokens_outside_the_vocabulary_are_refused_as_in_transformers_loop(kwargs):
    for cache in (None, "dynamic"):
        with pytest.raises(ValueError, match="outside the vocabulary"):
            make_gpt().generate(
                PROMPTS, max_new_tokens=20, do_sample=False, eos_token_id=list(range(2, 40, 2)),
                cache_implementation=cache, **kwargs,
            )  # fmt: skip


class AcrossRows(LogitsProcessor):
    def __call__(self, input_ids, scores):
        return scores + scores.roll(1, 0)


def test_a_processor_that_looks_across_rows_sees_the_finished_ones():
    ours, transformers = generate_both(
        make_gpt(), PROMPTS, max_new_tokens=20, do_sample=False, eos_token_id=list(range(2, 22)),
        logits_processor=LogitsProcessorList([AcrossRows()]),
    )  # fmt: skip
    assert ours.equal(transformers)


def test_a_source_of_padding_alone_is_attended_to_as_in_transformers(steps):
    mask = torch.ones_like(PROMPTS)
    mask[1] = 0
    ours, transformers = generate_both(make_transformer(), PROMPTS, attention_mask=mask, max_new_tokens=10)
    assert steps
    assert ours.equal(transformers)


@pytest.mark.parametrize("start", [0, 7, 30])
def test_positions_of_the_callers_own(start, steps):
    positions = torch.arange(start, start + 5).expand(4, 5)
    arguments = {"position_ids": positions, "max_new_tokens": 8, "do_sample": False, "eos_token_id": None}
    if start == 30:  # past the last position
        for cache in (None, "dynamic"):
            with pytest.raises(ValueError, match="max_position_embeddings"):
                make_gpt().generate(PROMPTS, cache_implementation=cache, **arguments)
        return
    for num_beams in (1, 3):
        ours, transformers = generate_both(make_gpt(), PROMPTS, num_beams=num_beams, **arguments)
        assert ours.equal(transformers)
    assert steps


def test_a_criterion_longer_than_the_configs_length_wins_as_in_transformers():
    ours, transformers = generate_both(
        make_gpt(), PROMPTS, max_new_tokens=15, do_sample=False, eos_token_id=None,
        stopping_criteria=StoppingCriteriaList([MaxLengthCriteria(30)]),
    )  # fmt: skip
    assert ours.equal(transformers)
    assert ours.shape[1] == 30


@pytest.mark.parametrize("options", [{}, {"num_beams": 3}, {"do_sample": True}], ids=["greedy", "beams", "sample"])
def test_torchs_default_dtype_does_not_matter(family, options):
    model = FAMILIES[family]()
    arguments = {"max_new_tokens": 10, "do_sample": False, "attention_mask": torch.ones_like(PROMPTS), **options}
    expected = generate_both(model, PROMPTS, **arguments)[0]
    torch.set_default_dtype(torch.float64)
    try:
        ours, transformers = generate_both(model, PROMPTS, **arguments)
    finally:
        torch.set_default_dtype(torch.float32)
    assert ours.equal(transformers)
    assert ours.equal(expected)


def test_a_processor_and_a_streamer_are_used(steps, joint_tokenizer, capsys):
    model = make_gpt(vocab_size=len(joint_tokenizer))
    prompt = joint_tokenizer("dogs", return_tensors="pt", add_special_tokens=False)["input_ids"]
    streamer = TextStreamer(joint_tokenizer)
    output = model.generate(
        prompt, max_new_tokens=8, do_sample=False, logits_processor=LogitsProcessorList([Forbid()]), streamer=streamer
    )
    assert steps
    assert not torch.isin(output[:, prompt.shape[1] :], torch.tensor([5, 6, 7])).any()
    assert joint_tokenizer.decode(output[0]) in capsys.readouterr().out


def test_ties_between_beams_are_broken_as_in_transformers(family):
    model = FAMILIES[family]()
    model.lm_head.weight = torch.nn.Parameter(torch.zeros_like(model.lm_head.weight))
    ours, transformers = generate_both(model, PROMPTS, max_new_tokens=5, num_beams=2, length_penalty=0.6)
    assert ours.equal(transformers)


@pytest.mark.parametrize("where", ["prompt", "later"])
def test_beams_without_a_score_are_left_to_transformers(where, family):
    model = FAMILIES[family](tie_word_embeddings=False)
    token = 1 if family == "transformer" else int(PROMPTS[0, -1])
    if where == "later":  # the first token that is generated
        token = int(model.generate(PROMPTS, max_new_tokens=1, num_beams=3, eos_token_id=None)[0, -1])
    model.get_decoder().embed_tokens.weight.data[token] = torch.nan
    ours, transformers = generate_both(model, PROMPTS, max_new_tokens=6, num_beams=3)
    assert ours.equal(transformers)
    assert ours.shape[1] > (1 if family == "transformer" else 5)
