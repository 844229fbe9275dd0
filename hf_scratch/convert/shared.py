# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""What the converters share: load a model, check what can be converted, build the other one."""

import copy
import os
import pickle

import torch
from safetensors import SafetensorError
from torch import nn
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel

from ..models.generation import ScratchGenerationMixin


def load(model_class: type[PreTrainedModel], path: str | os.PathLike) -> PreTrainedModel:
    """A model from a folder or the Hub, of which all weights are there.

    Raises:
        ValueError: no model, one of another kind, or one without some of its weights, which transformers would draw.
    """
    try:
        model_type = AutoConfig.from_pretrained(path).model_type
    except (OSError, ValueError) as error:
        problem = str(error).splitlines()[0]
        raise ValueError(
            f"{str(path)!r} is no folder with a model, and no Hub id that can be read: {problem}"
        ) from error
    if model_type != model_class.config_class.model_type:
        raise ValueError(f"{str(path)!r} holds a {model_type}, not a {model_class.config_class.model_type}.")
    try:
        model, info = model_class.from_pretrained(path, output_loading_info=True)
    except (SafetensorError, pickle.UnpicklingError):  # torch's message advises to run a pickle's code
        raise ValueError(
            f"The weights in {str(path)!r} are damaged, or a pickle that holds more than tensors."
        ) from None
    if missing := sorted(info["missing_keys"]):
        raise ValueError(
            f"{str(path)!r} does not hold all weights of a {model_class.__name__}. Missing: {', '.join(missing[:5])}"
            f"{f' and {len(missing) - 5} more' if len(missing) > 5 else ''}."
        )
    return model


def require_head(model: PreTrainedModel, model_class: type[PreTrainedModel]) -> None:
    """Raise ValueError unless the model is a `model_class`, whichever module its class was loaded from."""
    model_type = getattr(getattr(model, "config", None), "model_type", None)
    if model_type != model_class.config_class.model_type or not hasattr(model, "lm_head"):
        raise ValueError(f"A {model_class.__name__} can be converted, but this is a {type(model).__name__}.")


def require_fields(config: PreTrainedConfig, needed: dict[str, tuple[object, str]]) -> None:
    """Raise ValueError for the first field of `needed`, a dict of (value, why), that has another value."""
    for name, (value, why) in needed.items():
        if getattr(config, name) != value:
            raise ValueError(f"`{name}` is {getattr(config, name)!r}, but {why}: it would have to be {value!r}.")


def is_tied(model: PreTrainedModel) -> bool:
    """Whether the head and the target's embedding are one: `tie_word_embeddings`, unless loading kept two weights."""
    embedding = (model.get_decoder() if model.config.is_encoder_decoder else model).get_input_embeddings().weight
    return model.config.tie_word_embeddings and torch.equal(model.lm_head.weight, embedding)


def with_all_biases(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """The model's state dict, with a zero bias for each linear layer of its blocks that has none."""
    weights = model.state_dict()
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and module.bias is None and ".layers." in name:
            weights[f"{name}.bias"] = module.weight.new_zeros(module.out_features)
    return weights


def take(weights: dict[str, torch.Tensor], name: str) -> torch.Tensor:
    """Remove a weight and return it; ValueError if there is none."""
    if name not in weights:
        raise ValueError(f"The model has no weight `{name}`. Merge or remove its adapters before converting it.")
    return weights.pop(name)


def build(
    model_class: type[PreTrainedModel],
    config: PreTrainedConfig,
    state: dict[str, torch.Tensor],
    left: dict[str, torch.Tensor],
    source: PreTrainedModel,
) -> PreTrainedModel:
    """A model that holds copies of `state`, in eval mode, with dtype, device and generation options of `source`.

    Raises:
        ValueError: weights of `source` are `left` over: the model would compute something else.
    """
    if left:
        raise ValueError(f"{model_class.__name__} has no place for these weights of the model: {', '.join(left)}.")
    # contiguous, since safetensors saves nothing else
    state = {name: tensor.detach().clone(memory_format=torch.contiguous_format) for name, tensor in state.items()}
    with torch.random.fork_rng(devices=[]):  # transformers draws even for position tables, and overwrites them
        model = model_class.from_pretrained(None, config=config, state_dict=state, dtype=source.dtype)
    model.generation_config = copy.deepcopy(source.generation_config)
    if not isinstance(model, ScratchGenerationMixin):
        vars(model.generation_config).pop("slide_window", None)
    return model.to(source.device)
