# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Ways in which a user changes code or modes of the whole process, for test_known_modules.py.

Each is a generator: it makes the change, after which other tokens follow, and undoes it when it goes on.
"""

import sys

import torch
from changed_models import layer_of
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.cache_utils import DynamicLayer
from transformers.generation import LogitsProcessorList, StoppingCriteriaList
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from hf_scratch.models import generation, layers


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
    file, name = sys.modules[type(model).__module__], "slice_logits_to_keep"
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
    def last_two(*args, **kwargs):  # each token sees only the last two keys
        kwargs["allow_is_causal_skip"] = kwargs["allow_is_bidirectional_skip"] = False
        mask = sdpa_mask(*args, **kwargs)
        return mask & (torch.arange(mask.shape[-1]) >= mask.shape[-1] - 2)

    AttentionMaskInterface.register("sdpa", last_two)
    yield
    AttentionMaskInterface.register("sdpa", sdpa_mask)


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
    """Patches a method of transformers that our mixin overrides and calls."""
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


def patched_criteria(model):
    call = StoppingCriteriaList.__call__
    StoppingCriteriaList.__call__ = lambda self, ids, scores, **kwargs: torch.ones(len(ids), dtype=torch.bool)
    yield
    StoppingCriteriaList.__call__ = call


def patched_processors(model):
    call = LogitsProcessorList.__call__
    LogitsProcessorList.__call__ = lambda self, ids, scores, **kwargs: -scores
    yield
    LogitsProcessorList.__call__ = call


PATCHES = [
    global_hook, global_hook_before, patched_class, patched_linear, patched_activation, patched_layer,
    patched_call, patched_function, patched_cache, registered_attention, registered_mask, update_of_the_class,
    autocast, patched_torch, patched_torch_function, patched_choice, function_mode, dispatch_mode,
    patched_interface, patched_loop, patched_criteria, patched_processors,
]  # fmt: skip
