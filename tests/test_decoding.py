# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""`generate()` through our IncrementalDecoder against transformers' own loop: the same tokens, whatever is asked."""

import pytest
import torch
from conftest import FAMILIES, make_gpt, make_transformer
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

from hf_scratch.models import decoding


@pytest.fixture
def steps(monkeypatch) -> list:
    """One entry for each time that the decoder was asked."""
    asked, step = [], decoding.IncrementalDecoder.step

    def count(self, tokens):
        asked.append(tokens.shape)
        return step(self, tokens)

    monkeypatch.setattr(decoding.IncrementalDecoder, "step", count)
    return asked


def generate_both(model, input_ids, **kwargs) -> tuple[torch.Tensor, torch.Tensor]:
    """The tokens of our decoder and those of transformers' loop, from one seed."""
    torch.manual_seed(0)
    ours = model.generate(input_ids, **kwargs)
    torch.manual_seed(0)
    return ours, model.generate(input_ids, cache_implementation="dynamic", **kwargs)


VARIANTS = {
    "gpt": [{}, {"norm_first": False, "final_layernorm": False}, {"embedding_layernorm": True, "lm_head_bias": True},
            {"position_embedding_type": "sinusoidal", "attention_bias": False, "hidden_act": "relu"}],
    "transformer": [{}, {"norm_first": True}, {"position_embedding_type": "learned", "lm_head_bias": True},
                    {"head_dim": 4, "v_head_dim": 4, "attention_bias": False, "activation_function": "gelu"}],
}  # fmt: skip


@settings(
    max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_the_tokens_are_those_of_transformers(steps, data):
    steps.clear()
    family = data.draw(st.sampled_from(sorted(FAMILIES)))
    model = FAMILIES[family](**data.draw(st.sampled_from(VARIANTS[family])))
    batch, length = data.draw(st.integers(1, 6)), data.draw(st.integers(2, 8))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 1000)))
    input_ids = torch.randint(3, 60, (batch, length), generator=generator)
    mask = torch.ones_like(input_ids)
    if data.draw(st.booleans()):  # the GPT's padding stands on the left
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
    assert steps or ours.shape[1] <= transformers.shape[1]  # the first token alone may end all rows


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
    keep = decoding.IncrementalDecoder.__init__

    def look(self, *args, **kwargs):
        keep(self, *args, **kwargs)
        held.append(self.layers[0].source[0].shape)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoding.IncrementalDecoder, "__init__", look)
        model.generate(source, num_beams=4, max_new_tokens=3)
    assert held == [(2, 2, 9, 16)]


class Forbid(LogitsProcessor):
    def __call__(self, input_ids, scores):
        return scores.index_fill(1, torch.tensor([5, 6, 7]), -torch.inf)


OTHERS = {
    "scores": {"return_dict_in_generate": True, "output_scores": True},
    "a cache": {"past_key_values": None},
    "processed beams": {"num_beams": 2, "logits_processor": LogitsProcessorList([Forbid()])},
    "sampled beams": {"num_beams": 2, "do_sample": True},
    "no cache": {"use_cache": False},
}


@pytest.mark.parametrize("kwargs", OTHERS.values(), ids=OTHERS)
def test_what_the_decoder_does_not_know_is_left_to_transformers(steps, kwargs):
    prompt = torch.randint(3, 60, (2, 5), generator=torch.Generator().manual_seed(3))
    if "past_key_values" in kwargs:
        kwargs = {"past_key_values": DynamicCache()}
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


def hooked(model):
    model.model.layers[0].register_forward_hook(lambda module, inputs, output: output * 1.5)


def offloaded(model):
    model.lm_head.forward = torch.zeros_like  # as accelerate does


def eager(model):
    model.set_attn_implementation("eager")


def halved(model):
    model.to(torch.bfloat16)


def adapted(model):
    class Adapted(torch.nn.Linear):
        def forward(self, inputs):
            return 2 * super().forward(inputs)

    model.model.layers[1].self_attn.q_proj = Adapted(32, 32)


@pytest.mark.parametrize("change", [hooked, offloaded, eager, halved, adapted])
def test_a_model_that_is_not_plain_is_left_to_transformers(change):
    model = make_gpt()
    assert decoding.is_plain(model)
    change(model)
    assert not decoding.is_plain(model)


def test_values_of_another_width_are_left_to_transformers(steps):
    model = make_transformer(v_head_dim=8, head_dim=4)
    assert model.generate(torch.tensor([[5, 6, 7]]), max_new_tokens=3).shape[1] <= 4
    assert not steps


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
