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
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

PROMPT = torch.randint(3, 60, (2, 5), generator=torch.Generator().manual_seed(3))


def generate(model, **kwargs) -> torch.Tensor:
    torch.manual_seed(0)
    return model.generate(PROMPT, max_new_tokens=8, do_sample=False, eos_token_id=None, pad_token_id=0, **kwargs)


def stack_of(model) -> nn.Module:
    return model.model.decoder if model.config.is_encoder_decoder else model.model


def layer_of(model) -> nn.Module:
    return stack_of(model).layers[1]


# after these changes of a model, it generates other tokens


def hook(model):
    layer_of(model).register_forward_hook(lambda module, inputs, output: output.roll(1, -1))


def hook_before(model):
    layer_of(model).feed_forward.register_forward_pre_hook(lambda module, inputs: (inputs[0] * 1.5,))


def forward_of_an_instance(model):  # as accelerate's offloading and kernels do
    forward = model.lm_head.forward
    model.lm_head.forward = lambda x: -forward(x)


def forward_of_the_model(model):
    forward = model.forward

    def negated(*args, **kwargs):
        outputs = forward(*args, **kwargs)
        outputs["logits"] = -outputs.logits
        return outputs

    model.forward = negated


def layer_in_training_mode(model):
    layer_of(model).dropout.p = 0.5
    layer_of(model).train()


class Doubled(nn.Linear):
    def forward(self, inputs):
        return 2 * super().forward(inputs)


def linear_of_the_user(model):
    torch.manual_seed(1)
    layer_of(model).feed_forward.fc2 = Doubled(*reversed(layer_of(model).feed_forward.fc2.weight.shape))


def head_of_the_user(model):
    torch.manual_seed(1)
    model.lm_head = nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 60))


def layer_of_the_user(model):
    class Layer(type(layer_of(model))):
        def forward(self, *args, **kwargs):
            return super().forward(*args, **kwargs).roll(1, -1)

    layer_of(model).__class__ = Layer


def model_of_the_user(model):
    class Mine(type(model)):
        def forward(self, *args, **kwargs):
            outputs = super().forward(*args, **kwargs)
            outputs["logits"] = -outputs.logits
            return outputs

    model.__class__ = Mine


def rms_norm(model):
    layer_of(model).feed_forward_norm = nn.RMSNorm(32)
    layer_of(model).feed_forward_norm.weight.data[:16] = -1.0


def activation_of_the_user(model):
    layer_of(model).feed_forward.activation = nn.Softmax(-1)


def parametrized(model):
    parametrizations.spectral_norm(layer_of(model).feed_forward.fc1)


def quantized(model):
    torch.backends.quantized.engine = "fbgemm"
    torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, torch.qint8, inplace=True)


def first_layer_removed(model):
    stack_of(model).layers = stack_of(model).layers[1:]


def inputs_of_the_user(model):  # as PEFT's prefix tuning does
    prepare = model.prepare_inputs_for_generation

    def changed(self, input_ids, **kwargs):
        return prepare(input_ids.where(input_ids != 5, 6) // 2 + 3, **kwargs)

    model.prepare_inputs_for_generation = types.MethodType(changed, model)


# changes of the whole process: generators, which undo them when they go on


def registered_attention(model):
    def averaging(module, query, key, value, attention_mask, **kwargs):
        return value.mean(dim=2, keepdim=True).expand(-1, -1, query.shape[2], -1).transpose(1, 2), None

    AttentionInterface.register("sdpa", averaging)
    yield
    AttentionInterface.register("sdpa", sdpa_attention_forward)


def autocast(model):
    with torch.autocast("cpu", torch.bfloat16):
        yield


CHANGES = [
    hook, hook_before, forward_of_an_instance, forward_of_the_model, layer_in_training_mode, linear_of_the_user,
    head_of_the_user, layer_of_the_user, model_of_the_user, rms_norm, activation_of_the_user, parametrized, quantized,
    first_layer_removed, inputs_of_the_user, registered_attention, autocast,
]  # fmt: skip


@pytest.fixture(scope="module")
def unchanged() -> dict[str, torch.Tensor]:
    return {family: generate(make()) for family, make in FAMILIES.items()}


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_changed_model_generates_what_its_own_code_says(family, change, steps, unchanged):
    model = FAMILIES[family]()
    undo = change(model) or iter(())
    next(undo, None)
    try:
        tokens = generate(model)
        assert not steps
        assert tokens.equal(generate(model, cache_implementation="dynamic"))
    finally:
        next(undo, None)
    if change not in (autocast, quantized):  # these only round
        assert not tokens.equal(unchanged[family])
    generate(FAMILIES[family]())
    assert steps  # the change is gone


# after these, an IncrementalDecoder still runs


def last_layer_removed(model):
    stack_of(model).layers = stack_of(model).layers[:-1]


def resized(model):
    model.resize_token_embeddings(70, mean_resizing=False)


def halved(model):
    model.to(torch.bfloat16)


def in_training_and_back(model):
    model.train()
    model.gradient_checkpointing_enable()
    model(PROMPT, labels=PROMPT).loss.backward()
    model.gradient_checkpointing_disable()
    model.eval()


def recorded_once(model):
    outputs = {"decoder_input_ids": PROMPT} if model.config.is_encoder_decoder else {}
    model(PROMPT, **outputs, output_attentions=True, output_hidden_states=True)


def encoder_changed(model):
    if model.config.is_encoder_decoder:
        model.model.encoder.register_forward_hook(lambda module, inputs, output: output)
        model.model.encoder.layers[0].feed_forward.fc1 = Doubled(32, 48)


@pytest.mark.parametrize("num_beams", [1, 3])
@pytest.mark.parametrize(
    "change",
    [last_layer_removed, resized, halved, in_training_and_back, recorded_once, encoder_changed],
    ids=lambda change: change.__name__,
)
def test_the_decoder_follows_what_it_knows(family, change, num_beams, steps):
    model = FAMILIES[family]()
    change(model)
    tokens = generate(model, num_beams=num_beams)
    assert steps
    assert tokens.equal(generate(model, num_beams=num_beams, cache_implementation="dynamic"))


# PEFT


PEFT = {
    "lora": ("LoraConfig", {"target_modules": ["q_proj", "fc1"], "init_lora_weights": False}),
    "tokens": ("TrainableTokensConfig", {"token_indices": [1, 5]}),
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
    assert tokens.equal(adapted.generate(**arguments, cache_implementation="dynamic"))
    if method == "lora":
        assert not tokens.equal(unchanged[family])
        assert generate(adapted.merge_and_unload()).equal(tokens)
        assert steps


def test_an_attention_function_of_the_user_is_called_in_training(family):
    called = []

    def attention(module, query, key, value, attention_mask, **kwargs):
        called.append(kwargs["dropout"])
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)

    model = FAMILIES[family](attention_dropout=0.1).train()
    try:
        AttentionInterface.register("sdpa", attention)
        model(input_ids=PROMPT, labels=PROMPT).loss.backward()
    finally:
        AttentionInterface.register("sdpa", sdpa_attention_forward)
    assert called == [0.1] * (8 if family == "transformer" else 2)
