# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Steps that the converters share: check that a model can be converted, build the other model."""

import copy
from typing import Any, TypeVar

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

Model = TypeVar("Model", bound=PreTrainedModel)


def require_head(model: PreTrainedModel, model_class: type[PreTrainedModel]) -> None:
    """Raise ValueError unless the model is of `model_class`'s type and has a head.

    The class itself may come from another module, for example one loaded with `trust_remote_code=True`.
    """
    wanted: Any = model_class.config_class
    is_whole = isinstance(model, PreTrainedModel) and hasattr(model, "lm_head")
    if not is_whole or model.config.model_type != wanted.model_type:
        kind = getattr(getattr(model, "config", None), "model_type", None)
        hint = f" Take `from_{kind}`." if kind in ("gpt2", "marian", "pegasus") else ""
        raise ValueError(
            f"A {model_class.__name__} without adapters can be converted, but this is a {type(model).__name__}.{hint}"
        )


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
    model = model_class.from_pretrained(None, config=config, state_dict=state, dtype=source.dtype)
    model.generation_config = copy.deepcopy(source.generation_config)
    return model.to(source.device)
