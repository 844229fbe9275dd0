# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Whatever a user changes about a model, `generate()` gives the tokens of the changed model.

An IncrementalDecoder runs only where it knows every module; otherwise, transformers' own loop runs.
"""

import types

import pytest
import torch
from conftest import FAMILIES
from torch import nn
from torch.nn.utils import parametrizations
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

PROMPT = torch.randint(3, 60, (2, 5), generator=torch.Generator().manual_seed(3))
OPTIONS = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}


def generate(model, **kwargs) -> torch.Tensor:
    return model.generate(PROMPT, **OPTIONS, **kwargs)


def stack_of(model) -> nn.Module:
    return model.model.decoder if model.config.is_encoder_decoder else model.model


def layer_of(model) -> nn.Module:
    return stack_of(model).layers[1]


def make_subclass(module: nn.Module, change) -> None:
    """Give the module a class whose forward hands its output to `change`."""

    class Changed(type(module)):
        def forward(self, *args, **kwargs):
            return change(super().forward(*args, **kwargs))

    module.__class__ = Changed


def negated(outputs):
    outputs["logits"] = -outputs.logits
    return outputs


# after these changes of a model, it generates other tokens


def forward_of_an_instance(model):  # as accelerate's offloading and kernels do
    forward = model.lm_head.forward
    model.lm_head.forward = lambda x: -forward(x)


def forward_of_the_model(model):
    forward = model.forward
    model.forward = lambda *args, **kwargs: negated(forward(*args, **kwargs))


def layer_in_training_mode(model):
    layer_of(model).dropout.p = 0.5
    layer_of(model).train()


def head_of_the_user(model):
    model.lm_head = nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 60))


def quantized(model):
    torch.backends.quantized.engine = "fbgemm"
    torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, torch.qint8, inplace=True)


def inputs_of_the_user(model):  # as PEFT's prefix tuning does
    prepare = model.prepare_inputs_for_generation

    def changed(self, input_ids, **kwargs):
        return prepare(input_ids.where(input_ids != 5, 6) // 2 + 3, **kwargs)

    model.prepare_inputs_for_generation = types.MethodType(changed, model)


def averaging(module, query, key, value, attention_mask, **kwargs):
    return value.mean(dim=2, keepdim=True).expand(-1, -1, query.shape[2], -1).transpose(1, 2), None


CHANGES = {
    "hook": lambda m: layer_of(m).register_forward_hook(lambda module, inputs, output: output.roll(1, -1)),
    "hook before": lambda m: layer_of(m).feed_forward.register_forward_pre_hook(lambda module, x: (x[0] * 1.5,)),
    "forward of an instance": forward_of_an_instance,
    "forward of the model": forward_of_the_model,
    "layer in training mode": layer_in_training_mode,
    "linear of the user": lambda m: make_subclass(layer_of(m).feed_forward.fc2, lambda output: 2 * output),
    "head of the user": head_of_the_user,
    "layer of the user": lambda m: make_subclass(layer_of(m), lambda output: output.roll(1, -1)),
    "model of the user": lambda m: make_subclass(m, negated),
    "activation of the user": lambda m: setattr(layer_of(m).feed_forward, "activation", nn.Softmax(-1)),
    "parametrized": lambda m: parametrizations.spectral_norm(layer_of(m).feed_forward.fc1),
    "quantized": quantized,
    "first layer removed": lambda m: setattr(stack_of(m), "layers", stack_of(m).layers[1:]),
    "inputs of the user": inputs_of_the_user,
}


@pytest.fixture(scope="module")
def unchanged() -> dict[str, torch.Tensor]:
    return {family: generate(make()) for family, make in FAMILIES.items()}


@pytest.mark.parametrize("change", [*CHANGES, "registered attention", "autocast"])
def test_a_changed_model_generates_what_its_own_code_says(family, change, steps, unchanged, monkeypatch):
    model = FAMILIES[family]()
    with monkeypatch.context() as patch, torch.autocast("cpu", torch.bfloat16, enabled=change == "autocast"):
        if change == "registered attention":
            patch.setitem(ALL_ATTENTION_FUNCTIONS._global_mapping, "sdpa", averaging)
        torch.manual_seed(1)
        CHANGES.get(change, lambda model: None)(model)
        torch.manual_seed(0)
        tokens = generate(model)
        assert not steps
        torch.manual_seed(0)
        assert tokens.equal(generate(model, cache_implementation="dynamic"))
    if change not in ("autocast", "quantized"):  # these only round
        assert not tokens.equal(unchanged[family])
    generate(FAMILIES[family]())
    assert steps  # the change is gone


# after these, an IncrementalDecoder still runs


def in_training_and_back(model):
    model.train()
    model.gradient_checkpointing_enable()
    model(PROMPT, labels=PROMPT).loss.backward()
    model.gradient_checkpointing_disable()
    model.eval()


def encoder_changed(model):
    if model.config.is_encoder_decoder:
        model.model.encoder.register_forward_hook(lambda module, inputs, output: output)
        make_subclass(model.model.encoder.layers[0].feed_forward.fc1, lambda output: 2 * output)


FOLLOWED = {
    "last layer removed": lambda m: setattr(stack_of(m), "layers", stack_of(m).layers[:-1]),
    "resized": lambda m: m.resize_token_embeddings(70, mean_resizing=False),
    "halved": lambda m: m.to(torch.bfloat16),
    "in training and back": in_training_and_back,
    "recorded once": lambda m: m(PROMPT, labels=PROMPT, output_attentions=True, output_hidden_states=True),
    "encoder changed": encoder_changed,
}


@pytest.mark.parametrize("num_beams", [1, 3])
@pytest.mark.parametrize("change", FOLLOWED)
def test_the_decoder_follows_what_it_knows(family, change, num_beams, steps):
    model = FAMILIES[family]()
    FOLLOWED[change](model)
    tokens = generate(model, num_beams=num_beams)
    assert steps
    assert tokens.equal(generate(model, num_beams=num_beams, cache_implementation="dynamic"))


PEFT = {
    "LoraConfig": {"target_modules": ["q_proj", "fc1"], "init_lora_weights": False},
    "TrainableTokensConfig": {"token_indices": [1, 5]},
    "PromptTuningConfig": {  # PEFT does not know the names of our fields
        "num_virtual_tokens": 4, "token_dim": 32, "num_layers": 2, "num_attention_heads": 4,
        "num_transformer_submodules": 1,
    },
}  # fmt: skip


@pytest.mark.parametrize("method", PEFT)
def test_adapters_of_peft_are_not_passed_over(family, method, steps, unchanged):
    peft = pytest.importorskip("peft")
    torch.manual_seed(1)
    task = "SEQ_2_SEQ_LM" if family == "transformer" else "CAUSAL_LM"
    adapted = peft.get_peft_model(FAMILIES[family](), getattr(peft, method)(task_type=task, **PEFT[method])).eval()
    arguments = {"input_ids": PROMPT, "attention_mask": torch.ones_like(PROMPT), **OPTIONS}
    if (family, method) == ("gpt", "PromptTuningConfig"):
        with pytest.raises(ValueError, match="use LoRA"):
            adapted.generate(**arguments)
        return
    tokens = adapted.generate(**arguments)
    assert tokens.equal(adapted.generate(**arguments, use_cache=False))
    assert tokens.equal(adapted.generate(**arguments, cache_implementation="dynamic"))
    if method == "LoraConfig":
        assert not tokens.equal(unchanged[family])
        assert generate(adapted.merge_and_unload()).equal(tokens)
        assert steps


def test_an_attention_function_of_the_user_is_called_in_training(family, monkeypatch):
    called = []

    def attention(module, query, key, value, attention_mask, **kwargs):
        called.append(kwargs["dropout"])
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)

    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._global_mapping, "sdpa", attention)
    FAMILIES[family](attention_dropout=0.1).train()(input_ids=PROMPT, labels=PROMPT).loss.backward()
    assert called == [0.1] * (8 if family == "transformer" else 2)
