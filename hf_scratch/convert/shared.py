# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Steps that the converters share: load a model, check that it can be converted, build the other model."""

import copy
import importlib.util
import os
import pickle
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from torch import nn
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel

from ..loading import refuse_hub_attention
from ..models.generation import ScratchGenerationMixin

Model = TypeVar("Model", bound=PreTrainedModel)


def load(model_class: type[Model], path: str | os.PathLike) -> Model:
    """Load a model from a folder or the Hub, with all of its weights.

    Args:
        model_class: the class of the model with its head.
        path: a folder or a Hub id.

    Raises:
        ValueError: there is no model, it is of another type, or some of its weights are missing; transformers would
            initialise those at random.
    """
    try:
        config = AutoConfig.from_pretrained(path)
    except (OSError, ValueError) as error:
        problem = str(error).splitlines()[0]
        raise ValueError(f"{str(path)!r} is neither a folder with a model nor a readable Hub id: {problem}") from error
    if config.model_type != (wanted := _model_type(model_class)):
        raise ValueError(f"{str(path)!r} holds a {config.model_type}, not a {wanted}.")
    refuse_hub_attention(config)
    try:
        loaded: Any = model_class.from_pretrained(path, output_loading_info=True)
        model, info = loaded  # a pair, unlike transformers' annotation
    except (SafetensorError, pickle.UnpicklingError):  # torch's own message recommends running a pickle's code
        raise ValueError(
            f"The weights in {str(path)!r} are damaged, or a pickle that holds more than tensors."
        ) from None
    if missing := sorted(info["missing_keys"]):
        raise ValueError(
            f"{str(path)!r} does not hold all weights of a {model_class.__name__}. Missing: {', '.join(missing[:5])}"
            f"{f' and {len(missing) - 5} more' if len(missing) > 5 else ''}."
        )
    return model


def require_package(name: str, extra: str) -> None:
    """Raise ImportError, with the command that installs it, unless the package `name` can be imported."""
    if importlib.util.find_spec(name) is None:
        raise ImportError(f"This needs the package {name}, which is not installed: pip install 'hf-scratch[{extra}]'.")


def require_head(model: PreTrainedModel, model_class: type[PreTrainedModel]) -> None:
    """Raise ValueError unless the model is of `model_class`'s type and has a head.

    The class itself may come from another module, for example one loaded with `trust_remote_code=True`.
    """
    if isinstance(model, nn.Module) and not isinstance(model, PreTrainedModel):  # PEFT's wrapper passes attributes on
        raise ValueError(
            f"A {model_class.__name__} can be converted, but this is a {type(model).__name__}. Merge or remove its "
            "adapters before converting it."
        )
    model_type = getattr(getattr(model, "config", None), "model_type", None)
    if model_type != _model_type(model_class) or not hasattr(model, "lm_head"):
        raise ValueError(f"A {model_class.__name__} can be converted, but this is a {type(model).__name__}.")


def _model_type(model_class: type[PreTrainedModel]) -> str | None:
    return getattr(model_class.config_class, "model_type", None)


def require_fields(config: PreTrainedConfig, needed: dict[str, tuple[object, str]]) -> None:
    """Raise ValueError for the first field that does not have its required value.

    Args:
        config: the configuration to check.
        needed: for each field the required value, and the reason as a clause for the error.
    """
    for name, (value, why) in needed.items():
        if getattr(config, name) != value:
            raise ValueError(f"`{name}` is {getattr(config, name)!r}, but {why}: it must be {value!r}.")


def is_tied(model: PreTrainedModel) -> bool:
    """Whether the head uses the weight of the target embedding.

    `tie_word_embeddings` alone does not tell: loading may have kept two different weights.
    """
    decoder: Any = model.get_decoder() if model.config.is_encoder_decoder else model
    return model.config.tie_word_embeddings and torch.equal(
        model.lm_head.weight, decoder.get_input_embeddings().weight
    )


def with_all_biases(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """The model's state dict, with a zero bias added for every linear layer in its blocks that has none."""
    weights = model.state_dict()
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and module.bias is None and ".layers." in name:
            weights[f"{name}.bias"] = module.weight.new_zeros(module.out_features)
    return weights


def take(weights: dict[str, torch.Tensor], name: str) -> torch.Tensor:
    """Remove the weight `name` from `weights` and return it; ValueError if it is missing."""
    if name not in weights:
        raise ValueError(f"The model has no weight `{name}`. Merge or remove its adapters before converting it.")
    return weights.pop(name)


def build(
    model_class: type[Model],
    config: PreTrainedConfig,
    state: dict[str, torch.Tensor],
    left: dict[str, torch.Tensor],
    source: PreTrainedModel,
) -> Model:
    """Build the converted model, in evaluation mode.

    Args:
        model_class: the class to build.
        config: its configuration.
        state: its state dict; the model gets copies.
        left: weights of `source` that no table has used.
        source: the original, whose dtype, device and generation options the model takes.

    Raises:
        ValueError: there are weights in `left`, so the model would compute another function.
    """
    if left:
        raise ValueError(f"{model_class.__name__} has no place for these weights: {', '.join(left)}.")
    # safetensors saves only contiguous tensors
    state = {name: tensor.detach().clone(memory_format=torch.contiguous_format) for name, tensor in state.items()}
    with torch.random.fork_rng(devices=[]):  # transformers draws random numbers even for weights that it overwrites
        model = model_class.from_pretrained(None, config=config, state_dict=state, dtype=source.dtype)
    model.generation_config = copy.deepcopy(source.generation_config)
    if not isinstance(model, ScratchGenerationMixin):
        vars(model.generation_config).pop("slide_window", None)
    return model.to(source.device)
