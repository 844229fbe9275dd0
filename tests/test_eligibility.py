# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Whatever a user changes about a model, `generate()` gives the tokens of the changed model.

An IncrementalDecoder runs only where it knows every module; else transformers' own loop does.
"""

import types

import pytest
import torch
from changed_models import CHANGES, KEPT, PROMPT, generate, quantized, stack_of
from conftest import FAMILIES, make_gpt, make_transformer
from patched_code import PATCHES, autocast
from torch import nn
from transformers import AttentionInterface, AutoModelForCausalLM, AutoModelForSeq2SeqLM
from transformers.activations import ACT2FN
from transformers.dynamic_module_utils import get_class_from_dynamic_module
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from hf_scratch.models import generation


def generate_or_fail(model, **kwargs) -> list[list[int]] | str:
    """The tokens, or the error of two layers that share a place in the cache."""
    try:
        return generate(model, **kwargs).tolist()
    except RuntimeError as error:
        if "must match the size of tensor" not in str(error):
            raise
        return str(error)


@pytest.fixture(scope="module")
def unchanged() -> dict[str, torch.Tensor]:
    return {family: generate(make()) for family, make in FAMILIES.items()}


@pytest.mark.parametrize("change", CHANGES + PATCHES, ids=lambda change: change.__name__)
def test_a_changed_model_generates_what_its_own_code_says(family, change, steps, unchanged):
    model = FAMILIES[family]()
    undo = change(model) or iter(())
    next(undo, None)
    try:
        outcome = generate_or_fail(model)
        assert not steps
        assert outcome == generate_or_fail(model, cache_implementation="dynamic")
    finally:
        next(undo, None)
    if change not in (autocast, quantized):  # these only round
        assert outcome != unchanged[family].tolist()
    steps.clear()
    generate(FAMILIES[family]())
    assert steps  # the change is gone


def test_a_head_larger_than_the_embedding_is_left_to_transformers(family, steps):
    model = FAMILIES[family]()
    model.lm_head = nn.Linear(32, 70)
    nn.init.zeros_(model.lm_head.weight)
    model.lm_head.bias.data[65] = 9.0
    with pytest.raises(ValueError, match="Token id 65 is outside the vocabulary of 60 tokens"):
        generate(model)
    assert not steps


def test_torchs_default_device_leaves_the_decoder_in_place(family, steps):
    with torch.device("cpu"):
        generate(FAMILIES[family]())
    assert steps


def test_reordering_of_the_users_own_is_called(family, steps):
    model, called = FAMILIES[family](), []

    def reorder(self, cache, beams):
        called.append(beams)
        cache.reorder_cache(beams)
        return cache

    model._reorder_cache = types.MethodType(reorder, model)
    generate(model, num_beams=3)
    assert called
    assert not steps


@pytest.mark.parametrize("num_beams", [1, 3])
@pytest.mark.parametrize("change", KEPT, ids=lambda change: change.__name__)
def test_the_decoder_follows_what_it_knows(family, change, num_beams, steps):
    model = FAMILIES[family]()
    change(model)
    tokens = generate(model, num_beams=num_beams)
    assert steps
    steps.clear()
    assert tokens.equal(generate(model, num_beams=num_beams, cache_implementation="dynamic"))
    assert not steps


@pytest.mark.parametrize("activation", sorted(ACT2FN))
def test_the_decoder_knows_each_activation_without_weights(activation, steps):
    model = make_gpt(hidden_act=activation)
    if activation == "xielu":
        model.float()
    assert generate(model).equal(generate(model, cache_implementation="dynamic"))
    assert bool(steps) == (activation not in ("prelu", "xielu"))


@pytest.mark.parametrize("make", [make_gpt, make_transformer])
def test_a_loaded_model_is_known_with_its_code_too(make, steps, tmp_path):
    model = make()
    expected = generate(model)
    model.save_pretrained(tmp_path)
    steps.clear()
    assert generate(type(model).from_pretrained(tmp_path)).equal(expected)
    assert steps
    # the code beside the weights, which `trust_remote_code=True` loads without the package, runs transformers' loop
    auto = AutoModelForSeq2SeqLM if model.config.is_encoder_decoder else AutoModelForCausalLM
    remote = get_class_from_dynamic_module(model.config.auto_map[auto.__name__], str(tmp_path)).from_pretrained(
        tmp_path
    )
    assert type(remote).__module__.startswith("transformers_modules.")
    steps.clear()
    assert generate(remote).equal(expected)
    assert not steps


# PEFT


PEFT = {
    "lora on embeddings": ("LoraConfig", {"target_modules": ["embed_tokens"], "init_lora_weights": False}),
    "lora and tokens": ("LoraConfig", {"target_modules": ["q_proj"], "trainable_token_indices": [1, 5]}),
    "tokens": ("TrainableTokensConfig", {"token_indices": [1, 5]}),
    "lora": ("LoraConfig", {"target_modules": ["q_proj", "fc1"], "init_lora_weights": False}),
    "prefix": ("PrefixTuningConfig", {"num_virtual_tokens": 4}),
    "prompt": ("PromptTuningConfig", {"num_virtual_tokens": 4}),
}


@pytest.mark.parametrize("method", PEFT)
def test_adapters_of_peft_are_not_passed_over(family, method, steps, unchanged):
    peft = pytest.importorskip("peft")
    model = FAMILIES[family]()
    name, options = PEFT[method]
    if method in ("prefix", "prompt"):  # PEFT does not know the names of our fields
        heads = model.config.decoder_attention_heads if family == "transformer" else model.config.num_attention_heads
        options = {**options, "token_dim": 32, "num_layers": len(stack_of(model).layers), "num_attention_heads": heads}
        options["num_transformer_submodules"] = 2 if method == "prefix" and family == "transformer" else 1
    torch.manual_seed(1)
    task = "SEQ_2_SEQ_LM" if family == "transformer" else "CAUSAL_LM"
    adapted = peft.get_peft_model(model, getattr(peft, name)(task_type=task, **options)).eval()
    arguments = {"input_ids": PROMPT, "attention_mask": torch.ones_like(PROMPT), "max_new_tokens": 8}
    arguments |= {"do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    if method == "prefix" or (family, method) == ("gpt", "prompt"):  # PEFT 0.21 does not know the name `cache`
        with pytest.raises(ValueError, match=r"cache"):
            adapted.generate(**arguments)
        return
    tokens = adapted.generate(**arguments)
    assert tokens.equal(adapted.generate(**arguments, use_cache=False))
    expected = adapted.generate(**arguments, cache_implementation="dynamic")
    assert tokens.equal(expected)
    assert not steps
    if method == "lora":
        assert not tokens.equal(unchanged[family])
        steps.clear()
        merged = adapted.merge_and_unload()
        assert generate(merged).equal(tokens)
        assert steps


# training


def test_an_attention_function_of_the_user_is_called_in_training(family):
    called = []

    def attention(module, query, key, value, attention_mask, **kwargs):
        called.append(kwargs["dropout"])
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)

    model = FAMILIES[family](attention_dropout=0.1).train()
    inputs = {"input_ids": PROMPT, "labels": PROMPT}
    try:
        AttentionInterface.register("sdpa", attention)
        model(**inputs).loss.backward()
    finally:
        AttentionInterface.register("sdpa", sdpa_attention_forward)
    assert called == [0.1] * (8 if family == "transformer" else 2)


def test_the_loss_without_logits_calls_a_changed_head():
    model = make_gpt()
    expected = make_gpt()(PROMPT, labels=PROMPT).loss
    torch.testing.assert_close(model(PROMPT, labels=PROMPT, skip_logits=True).loss, expected)
    called = []
    linear = nn.Linear.forward
    model.lm_head.forward = lambda x: called.append("forward") or linear(model.lm_head, x)
    model(PROMPT, labels=PROMPT, skip_logits=True)
    assert called == ["forward"]
    del model.lm_head.forward
    model.lm_head.register_full_backward_hook(lambda module, inputs, outputs: called.append("backward"))
    model(PROMPT, labels=PROMPT, skip_logits=True).loss.backward()
    assert called[-1] == "backward"


def test_a_wrapper_around_generate_leaves_the_decoder_in_place(monkeypatch, steps):
    """Tracing tools wrap `generate` and change no token."""
    generate_once = generation.GenerationMixin.generate
    monkeypatch.setattr(generation.GenerationMixin, "generate", lambda *args, **kwargs: generate_once(*args, **kwargs))
    generate(make_gpt())
    assert steps
