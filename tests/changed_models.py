# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Ways in which a user changes one model, for test_eligibility.py. patched_code.py holds those beyond one model."""

import copy
import types

import torch
from torch import nn
from torch.nn.utils import parametrizations, prune

PROMPT = torch.randint(3, 60, (2, 5), generator=torch.Generator().manual_seed(3))


def generate(model, **kwargs) -> torch.Tensor:
    torch.manual_seed(0)
    return model.generate(PROMPT, max_new_tokens=8, do_sample=False, eos_token_id=None, pad_token_id=0, **kwargs)


def stack_of(model) -> nn.Module:
    return model.model.decoder if model.config.is_encoder_decoder else model.model


def layer_of(model) -> nn.Module:
    return stack_of(model).layers[1]


# after these, the model generates other tokens


def hook(model):
    layer_of(model).register_forward_hook(lambda module, inputs, output: output.roll(1, -1))


def hook_before(model):
    layer_of(model).feed_forward.register_forward_pre_hook(lambda module, inputs: (inputs[0] * 1.5,))


def hook_on_head(model):
    model.lm_head.register_forward_hook(lambda module, inputs, output: -output)


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


def attention_of_one_layer(model):
    config = copy.deepcopy(model.config)
    config._attn_implementation = "eager"
    layer_of(model).self_attn.config = config
    layer_of(model).self_attn.scaling = 5.0


def scaling_of_cross_attention_or_norm(model):
    if model.config.is_encoder_decoder:
        layer_of(model).cross_attn.num_key_value_groups = 1
        layer_of(model).cross_attn.is_causal = "never read"
    layer_of(model).self_attn.layer_idx = 0  # now shares the first layer's place in the cache


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
        model_kwargs[name] = torch.ones(2, model_kwargs["cache"].get_seq_length() + 1, dtype=torch.long)
        model_kwargs[name][:, :3] = 0
        return model_kwargs

    model._update_model_kwargs_for_generation = types.MethodType(changed, model)


def sliding_cache(model):
    model.config.sliding_window = 3


def layers_in_a_list(model):
    stack = stack_of(model)
    layers = list(stack.layers)
    del stack.layers
    stack.layers = layers
    layers[1].feed_forward.register_forward_hook(lambda module, inputs, output: -output)


def module_hidden_by_an_attribute(model):
    hooked = copy.deepcopy(layer_of(model).feed_forward)
    hooked.register_forward_hook(lambda module, inputs, output: -output)
    object.__setattr__(layer_of(model), "feed_forward", hooked)


CHANGES = [
    layers_in_a_list, module_hidden_by_an_attribute,
    hook, hook_before, hook_on_head, forward_of_an_instance, forward_of_the_model, attention_of_one_layer,
    scaling_of_cross_attention_or_norm, monte_carlo_dropout, dropout_in_attention_alone, linear_of_the_user,
    head_of_the_user, class_swapped, class_of_the_model, rms_norm, activation_of_the_user, activation_with_weights,
    renormed_embedding, parametrized, pruned, bias_of_queries_removed, bias_of_values_alone, subclassed_weight,
    weight_that_is_no_parameter, sparse, quantized, layers_shared, first_layer_removed, layers_of_the_user,
    inputs_of_the_user, update_of_the_user, sliding_cache,
]  # fmt: skip


# after these, an IncrementalDecoder still runs


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


def halved(model):
    model.to(torch.bfloat16)


def eager(model):
    model.set_attn_implementation("eager")


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
    values_scaled, norm_moved, norm_removed, heads_merged, last_layer_removed, resized, doubled, halved, eager,
    in_training_and_back, encoder_hooked, recorded, recorded_in_generate, copied,
]  # fmt: skip
