# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Which models an IncrementalDecoder stands in for: whatever a user changes, the tokens are those of the change."""

import copy
import sys
import types

import pytest
import torch
from conftest import FAMILIES, make_gpt, make_transformer
from torch import nn
from torch.nn.utils import parametrizations, prune
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AttentionInterface, AttentionMaskInterface, AutoModelForCausalLM, AutoModelForSeq2SeqLM
from transformers.activations import ACT2FN
from transformers.cache_utils import DynamicLayer
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from hf_scratch.models import generation, layers

PROMPT = torch.randint(3, 60, (2, 5), generator=torch.Generator().manual_seed(3))


def generate(model, **kwargs) -> torch.Tensor:
    torch.manual_seed(0)
    return model.generate(PROMPT, max_new_tokens=8, do_sample=False, eos_token_id=None, pad_token_id=0, **kwargs)


def stack_of(model) -> nn.Module:
    return model.model.decoder if model.config.is_encoder_decoder else model.model


def layer_of(model) -> nn.Module:
    return stack_of(model).layers[1]


# each changes a model so that other tokens follow; a generator changes what outlives the model, and then undoes it


def hook(model):
    layer_of(model).register_forward_hook(lambda module, inputs, output: output.roll(1, -1))


def hook_before(model):
    layer_of(model).feed_forward.register_forward_pre_hook(lambda module, inputs: (inputs[0] * 1.5,))


def hook_on_head(model):
    model.lm_head.register_forward_hook(lambda module, inputs, output: -output)


def global_hook(model):
    handle = nn.modules.module.register_module_forward_hook(
        lambda module, inputs, output: output * 1.5 if isinstance(module, nn.LayerNorm) else None
    )
    yield
    handle.remove()


def global_hook_before(model):
    handle = nn.modules.module.register_module_forward_pre_hook(
        lambda module, inputs: (inputs[0] * 1.5,) if type(module) is layers.FeedForward else None
    )
    yield
    handle.remove()


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


def compiled_module(model):
    layer_of(model).compile(backend=lambda graph, inputs: lambda *args: [-each for each in graph(*args)])


def patched_class(model, cls=layers.FeedForward):
    forward = cls.forward
    cls.forward = lambda self, x: forward(self, x) * 1.5
    yield
    cls.forward = forward


def patched_linear(model):
    yield from patched_class(model, nn.Linear)


def patched_activation(model):
    yield from patched_class(model, type(layer_of(model).feed_forward.activation))


def patched_layer(model):
    layer = type(layer_of(model))
    forward = layer.forward
    layer.forward = lambda self, *args, **kwargs: forward(self, *args, **kwargs).roll(1, -1)
    yield
    layer.forward = forward


def patched_call(model):
    call = nn.Module.__call__
    nn.Module.__call__ = lambda self, *args, **kwargs: (
        call(self, *args, **kwargs) * (1.5 if isinstance(self, nn.LayerNorm) else 1)
        if isinstance(self, (nn.Linear, nn.LayerNorm))
        else call(self, *args, **kwargs)
    )
    yield
    nn.Module.__call__ = call


def patched_function(model):
    file, name = sys.modules[type(model).__module__], "slice_logits"
    function = getattr(file, name)
    setattr(file, name, lambda *args: function(*args).roll(1, -1))
    yield
    setattr(file, name, function)


def patched_cache(model):
    update = DynamicLayer.update
    DynamicLayer.update = lambda self, key, value, *args, **kwargs: update(self, key, value * 1.5, *args, **kwargs)
    yield
    DynamicLayer.update = update


def registered_attention(model):
    def averaging(module, query, key, value, attention_mask, **kwargs):
        return value.mean(dim=2, keepdim=True).expand(-1, -1, query.shape[2], -1).transpose(1, 2), None

    AttentionInterface.register("sdpa", averaging)
    yield
    AttentionInterface.register("sdpa", sdpa_attention_forward)


def registered_mask(model):
    def last_two(*args, **kwargs):  # each token sees the two keys before it alone
        kwargs["allow_is_causal_skip"] = kwargs["allow_is_bidirectional_skip"] = False
        mask = sdpa_mask(*args, **kwargs)
        return mask & (torch.arange(mask.shape[-1]) >= mask.shape[-1] - 2)

    AttentionMaskInterface.register("sdpa", last_two)
    yield
    AttentionMaskInterface.register("sdpa", sdpa_mask)


def attention_of_one_layer(model):
    config = copy.deepcopy(model.config)
    config._attn_implementation = "eager"
    layer_of(model).self_attn.config = config
    layer_of(model).self_attn.scaling = 5.0


def scaling_of_cross_attention_or_norm(model):
    if model.config.is_encoder_decoder:
        layer_of(model).cross_attn.num_key_value_groups = 1
        layer_of(model).cross_attn.is_causal = "never read"
    layer_of(model).self_attn.layer_idx = 0  # shares the first layer's keys and values


def monte_carlo_dropout(model):
    layer_of(model).dropout = 0.5
    layer_of(model).train()


def dropout_in_attention_alone(model):
    layer_of(model).self_attn.attention_dropout = 0.5
    layer_of(model).self_attn.training = True


class Doubled(nn.Linear):
    def forward(self, inputs):
        return 2 * super().forward(inputs)


def linear_of_the_user(model):
    torch.manual_seed(1)
    layer_of(model).feed_forward.fc2 = Doubled(*reversed(layer_of(model).feed_forward.fc2.weight.shape))


def head_of_the_user(model):
    torch.manual_seed(1)
    model.lm_head = nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 60))


def class_swapped(model):
    class Layer(type(layer_of(model))):
        def forward(self, *args, **kwargs):
            return super().forward(*args, **kwargs).roll(1, -1)

    layer_of(model).__class__ = Layer


def class_of_the_model(model):
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


def activation_with_weights(model):
    layer_of(model).feed_forward.activation = nn.PReLU(init=-2.0)


def renormed_embedding(model):
    stack_of(model).embed_positions = nn.Embedding(40, 32, max_norm=0.5)


def parametrized(model):
    parametrizations.spectral_norm(layer_of(model).feed_forward.fc1)


def pruned(model):
    prune.random_unstructured(layer_of(model).feed_forward.fc2, "weight", amount=0.5)


def bias_of_queries_removed(model):
    nn.init.normal_(layer_of(model).self_attn.v_proj.bias, std=5.0)
    layer_of(model).self_attn.q_proj.bias = None


def bias_of_values_alone(model):
    nn.init.normal_(layer_of(model).self_attn.v_proj.bias, std=5.0)
    layer_of(model).self_attn.k_proj.bias = None


def subclassed_weight(model):
    class Turned(nn.Parameter):
        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            with torch._C.DisableTorchFunctionSubclass():
                args = [arg.roll(1, 0) if isinstance(arg, cls) and arg.dim() == 2 else arg for arg in args]
                return function(*args, **(kwargs or {}))

    model.lm_head._parameters["weight"] = Turned(model.lm_head.weight.detach().clone())


def weight_that_is_no_parameter(model):
    fc2 = layer_of(model).feed_forward.fc2
    weight = -fc2.weight.detach()
    del fc2.weight
    fc2.weight = weight


def sparse(model):
    fc1 = layer_of(model).feed_forward.fc1
    fc1.weight, fc1.bias = nn.Parameter(fc1.weight.detach().relu().to_sparse_csr(), requires_grad=False), None


def quantized(model):
    torch.backends.quantized.engine = "fbgemm"
    torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, torch.qint8, inplace=True)


def layers_shared(model):
    stack_of(model).layers[1] = stack_of(model).layers[0]


def first_layer_removed(model):
    stack_of(model).layers = stack_of(model).layers[1:]


def layers_of_the_user(model):
    class Backwards(nn.ModuleList):
        def __iter__(self):
            return reversed(list(super().__iter__()))

    stack_of(model).layers = Backwards(stack_of(model).layers)


def inputs_of_the_user(model):  # as PEFT's prefix tuning does
    prepare = model.prepare_inputs_for_generation

    def changed(self, input_ids, **kwargs):
        return prepare(input_ids.where(input_ids != 5, 6) // 2 + 3, **kwargs)

    model.prepare_inputs_for_generation = types.MethodType(changed, model)


def update_of_the_user(model):
    update, name = model._update_model_kwargs_for_generation, "decoder_attention_mask"
    name = name if model.config.is_encoder_decoder else "attention_mask"

    def changed(self, outputs, model_kwargs, *args, **kwargs):
        model_kwargs = update(outputs, model_kwargs, *args, **kwargs)
        model_kwargs[name] = torch.ones(2, model_kwargs["past_key_values"].get_seq_length() + 1, dtype=torch.long)
        model_kwargs[name][:, :3] = 0
        return model_kwargs

    model._update_model_kwargs_for_generation = types.MethodType(changed, model)


def update_of_the_class(model):
    cls = type(model)
    update = cls._update_model_kwargs_for_generation

    def changed(self, outputs, model_kwargs, *args, **kwargs):
        outputs["logits"] = -outputs.logits
        return update(self, outputs, model_kwargs, *args, **kwargs)

    cls._update_model_kwargs_for_generation = changed
    yield
    del cls._update_model_kwargs_for_generation


def autocast(model):
    with torch.autocast("cpu", torch.bfloat16):
        yield


def halved(model):
    model.to(torch.bfloat16)


def eager(model):
    model.set_attn_implementation("eager")
    layer_of(model).self_attn.scaling = 5.0


def sliding_cache(model):
    model.config.sliding_window = 3


def patched_torch(model):
    functional, linear = nn.functional, nn.functional.linear
    functional.linear = lambda x, w, b=None: linear(x, w, b).roll(1, -1)
    yield
    functional.linear = linear


def patched_torch_function(model):
    layer_norm = torch.layer_norm
    torch.layer_norm = lambda *args: layer_norm(*args).roll(1, -1)
    yield
    torch.layer_norm = layer_norm


def patched_choice(model):
    argmax = torch.argmax
    torch.argmax = lambda scores, dim: argmax(scores, dim) % 10
    yield
    torch.argmax = argmax


def function_mode(model):
    class Rolls(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            output = function(*args, **kwargs or {})
            return output.roll(1, -1) if function is nn.functional.layer_norm else output

    with Rolls():
        yield


def dispatch_mode(model):
    class Rolls(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            output = function(*args, **kwargs or {})
            return (output[0].roll(1, -1), *output[1:]) if "layer_norm" in str(function) else output

    with Rolls():
        yield


def patched_interface(model):
    get_interface = AttentionInterface.get_interface

    def get(self, *args):
        attention = get_interface(self, *args)
        return lambda module, query, key, value, *args, **kwargs: attention(
            module, query, key, value.roll(1, -1), *args, **kwargs
        )

    AttentionInterface.get_interface = get
    yield
    AttentionInterface.get_interface = get_interface


def patched_loop(model):
    """Each method that our mixin overrides and calls: a patch of what it calls."""
    for name in ("_sample", "_beam_search", "_prepare_generated_length", "prepare_inputs_for_generation"):
        assert name in vars(generation.ScratchGenerationMixin)
        assert name in vars(generation.GenerationMixin)
    prepare = generation.GenerationMixin.prepare_inputs_for_generation

    def prepare_less(self, *args, **kwargs):
        inputs = prepare(self, *args, **kwargs)
        name = "decoder_input_ids" if self.config.is_encoder_decoder else "input_ids"
        return inputs | {name: inputs[name].clamp(max=20)}

    generation.GenerationMixin.prepare_inputs_for_generation = prepare_less
    yield
    generation.GenerationMixin.prepare_inputs_for_generation = prepare


CHANGES = [
    hook, hook_before, hook_on_head, global_hook, global_hook_before, forward_of_an_instance, forward_of_the_model,
    patched_class, patched_linear, patched_activation, patched_layer, patched_call, patched_function, patched_cache,
    registered_attention, registered_mask, attention_of_one_layer, scaling_of_cross_attention_or_norm,
    monte_carlo_dropout, dropout_in_attention_alone, linear_of_the_user, head_of_the_user, class_swapped,
    class_of_the_model, rms_norm, activation_of_the_user, activation_with_weights, renormed_embedding, parametrized,
    pruned, bias_of_queries_removed, bias_of_values_alone, subclassed_weight, weight_that_is_no_parameter, sparse,
    quantized, layers_shared, first_layer_removed, layers_of_the_user, inputs_of_the_user, update_of_the_user,
    update_of_the_class, autocast, halved, eager, sliding_cache, patched_torch, patched_torch_function, patched_choice,
    function_mode, dispatch_mode, patched_interface, patched_loop,
]  # fmt: skip


def generate_or_fail(model, **kwargs) -> list[list[int]] | str:
    """The tokens, or what transformers' forward says of two layers that share a place in the cache, on 5.17."""
    try:
        return generate(model, **kwargs).tolist()
    except RuntimeError as error:
        if "must match the size of tensor" not in str(error):
            raise
        return str(error)


@pytest.fixture(scope="module")
def unchanged() -> dict[str, torch.Tensor]:
    return {family: generate(make()) for family, make in FAMILIES.items()}


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
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
    if change not in (autocast, halved, quantized):  # these only round
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


# and each of these leaves the decoder in place


def values_scaled(model):
    layer_of(model).self_attn.scaling = 0.9
    if model.config.is_encoder_decoder:
        layer_of(model).cross_attn.scaling = 0.1
        model.model.decoder.embed_scale = 0.5


def norm_moved(model):
    layer_of(model).norm_first = not layer_of(model).norm_first


def norm_removed(model):
    layer_of(model).self_attn_norm = nn.Identity()


def heads_merged(model):
    attentions = [layer_of(model).self_attn]
    attentions += [layer_of(model).cross_attn] if model.config.is_encoder_decoder else []
    attentions[-1].head_dim = attentions[-1].v_head_dim = 32


def last_layer_removed(model):
    stack_of(model).layers = stack_of(model).layers[:-1]


def resized(model):
    model.resize_token_embeddings(70, mean_resizing=False)


def doubled(model):
    model.double()


def in_training_and_back(model):
    model.train()
    model.gradient_checkpointing_enable()
    model(PROMPT, labels=PROMPT).loss.backward()
    model.gradient_checkpointing_disable()
    model.eval()


def encoder_hooked(model):
    if model.config.is_encoder_decoder:
        model.model.encoder.register_forward_hook(lambda module, inputs, output: output)
        model.model.encoder.layers[0].feed_forward.fc1 = Doubled(32, 48)


def recorded(model):
    arguments = {"decoder_input_ids": PROMPT} if model.config.is_encoder_decoder else {}
    outputs = model(PROMPT, **arguments, output_hidden_states=True, output_attentions=True)
    assert outputs.get("hidden_states") or outputs.get("decoder_hidden_states")


def recorded_in_generate(model):
    outputs = generate(model, output_hidden_states=True, return_dict_in_generate=True)
    assert outputs.get("hidden_states") or outputs.get("decoder_hidden_states")


def copied(model):
    model.__dict__.update(copy.deepcopy(model).__dict__)


KEPT = [
    values_scaled, norm_moved, norm_removed, heads_merged, last_layer_removed, resized, doubled, in_training_and_back,
    encoder_hooked, recorded, recorded_in_generate, copied,
]  # fmt: skip


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
    # the copy of the code beside the weights, as loaded by `trust_remote_code` where the package is missing
    auto = AutoModelForSeq2SeqLM if model.config.is_encoder_decoder else AutoModelForCausalLM
    name = model.config.auto_map[auto.__name__]
    remote = transformers_class(name, tmp_path).from_pretrained(tmp_path)
    assert type(remote).__module__.startswith("transformers_modules.")
    remote_steps, remote_decoder = [], sys.modules[f"{type(remote).__module__.rpartition('.')[0]}.decoding"]
    step = remote_decoder.IncrementalDecoder.step
    remote_decoder.IncrementalDecoder.step = lambda self, tokens: remote_steps.append(1) or step(self, tokens)
    assert generate(remote).equal(expected)
    assert remote_steps


def transformers_class(name, folder):
    from transformers.dynamic_module_utils import get_class_from_dynamic_module

    return get_class_from_dynamic_module(name, str(folder))


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
    tokens = adapted.generate(**arguments)
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


def test_the_loss_without_logits_calls_a_changed_head(monkeypatch):
    model = make_gpt()
    expected = make_gpt()(PROMPT, labels=PROMPT).loss
    torch.testing.assert_close(model(PROMPT, labels=PROMPT, skip_logits=True).loss, expected)
    called = []
    linear = nn.Linear.forward
    monkeypatch.setattr(nn.Linear, "forward", lambda self, x: called.append(self) or linear(self, x))
    model(PROMPT, labels=PROMPT, skip_logits=True)
    assert model.lm_head in called
    monkeypatch.undo()
    model.lm_head.register_full_backward_hook(lambda module, inputs, outputs: called.append("backward"))
    model(PROMPT, labels=PROMPT, skip_logits=True).loss.backward()
    assert called[-1] == "backward"


def test_a_wrapper_around_generate_leaves_the_decoder_in_place(monkeypatch, steps):
    """As tracing tools do: it changes no token."""
    generate_once = generation.GenerationMixin.generate
    monkeypatch.setattr(generation.GenerationMixin, "generate", lambda *args, **kwargs: generate_once(*args, **kwargs))
    generate(make_gpt())
    assert steps
