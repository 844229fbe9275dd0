# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""`generate()` gives the same tokens through our IncrementalDecoder as through transformers' own loop."""

import pytest
import torch
from conftest import FAMILIES, VARIANTS, each_variant, make_gpt, make_transformer, make_variant, shake
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import EosTokenCriteria, MaxLengthCriteria, StoppingCriteria, StoppingCriteriaList


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
    if not model.can_generate():
        pytest.skip("an encoder writes nothing")
    model.config.eos_token_id = model.generation_config.eos_token_id = None
    ours, transformers = generate_both(model, PROMPTS, max_new_tokens=10, do_sample=False, num_beams=num_beams)
    assert bool(steps) == ((family, variant) not in LEFT_TO_TRANSFORMERS)
    assert ours.equal(transformers)


@settings(max_examples=60)
@given(data=st.data())
def test_the_tokens_are_those_of_transformers(data):
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
        kwargs["do_sample"] = False
    kwargs["repetition_penalty"] = data.draw(st.sampled_from([1.0, 1.3]))
    ours, transformers = generate_both(model, input_ids, attention_mask=mask, **kwargs)
    assert ours.equal(transformers)


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


def test_a_penalty_holds_a_length_of_each_row(steps):
    mask = torch.ones_like(PROMPTS)
    mask[1, :2] = mask[3, :4] = 0
    options = {"num_beams": 3, "repetition_penalty": 1.3, "max_new_tokens": 25, "eos_token_id": list(range(2, 12))}
    ours, transformers = generate_both(make_gpt(), PROMPTS, attention_mask=mask, **options)
    assert steps
    assert ours.equal(transformers)


class Multiples(StoppingCriteria):
    def __call__(self, input_ids, scores, **kwargs):
        return input_ids[:, -1] % 4 == 0


class LengthPerRow(MaxLengthCriteria):
    def __call__(self, input_ids, scores, **kwargs):
        return torch.arange(len(input_ids)) + self.max_length <= input_ids.shape[1]


@pytest.mark.parametrize("options", [{}, {"num_beams": 3}, {"do_sample": True}], ids=["greedy", "beams", "sample"])
@pytest.mark.parametrize(
    "criterion", [Multiples(), EosTokenCriteria([9, 10, 11, 12]), MaxLengthCriteria(8), LengthPerRow(7)]
)
def test_criteria_of_the_caller_end_a_text(criterion, options):
    arguments = {"max_new_tokens": 20, "eos_token_id": [2, 30, 31], "do_sample": False, "pad_token_id": 0, **options}
    ours, transformers = generate_both(
        make_gpt(), PROMPTS, stopping_criteria=StoppingCriteriaList([criterion]), **arguments
    )
    assert ours.equal(transformers)
    assert not ours.equal(generate_both(make_gpt(), PROMPTS, **arguments)[0])


def test_a_source_of_padding_alone_is_attended_to_as_in_transformers(steps):
    mask = torch.ones_like(PROMPTS)
    mask[1] = 0
    ours, transformers = generate_both(make_transformer(), PROMPTS, attention_mask=mask, max_new_tokens=10)
    assert steps
    assert ours.equal(transformers)


@pytest.mark.parametrize("num_beams", [1, 3])
def test_positions_of_the_callers_own(num_beams, steps):
    positions = torch.arange(7, 12).expand(4, 5)
    arguments = {"position_ids": positions, "max_new_tokens": 8, "do_sample": False, "eos_token_id": None}
    ours, transformers = generate_both(make_gpt(), PROMPTS, num_beams=num_beams, **arguments)
    assert steps
    assert ours.equal(transformers)
    del arguments["position_ids"]
    assert not ours.equal(make_gpt().generate(PROMPTS, num_beams=num_beams, **arguments))


def test_ties_between_beams_are_broken_as_in_transformers(family):
    model = FAMILIES[family]()
    model.lm_head.weight = torch.nn.Parameter(torch.zeros_like(model.lm_head.weight))
    ours, transformers = generate_both(model, PROMPTS, max_new_tokens=5, num_beams=2, length_penalty=0.6)
    assert ours.equal(transformers)
