# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""GPT-2 as a ScratchGPT and back: the same function, weight for weight."""

import copy
import os
import pickle

import torch
from safetensors import SafetensorError
from torch import nn
from transformers import AutoConfig, GPT2Config, GPT2LMHeadModel, PreTrainedConfig, PreTrainedModel

from ..models.configuration_scratch_gpt import ScratchGPTConfig
from ..models.generation import ScratchGenerationMixin
from ..models.modeling_scratch_gpt import ScratchGPTForCausalLM

# ours: GPT-2's. Both take their activations by the same names, from transformers' ACT2FN.
CONFIG = {
    "vocab_size": "vocab_size",
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "intermediate_size": "n_inner",
    "max_position_embeddings": "n_positions",
    "hidden_act": "activation_function",
    "layer_norm_eps": "layer_norm_epsilon",
    "embedding_dropout": "embd_pdrop",
    "hidden_dropout": "resid_pdrop",
    "attention_dropout": "attn_pdrop",
    "initializer_range": "initializer_range",
    "use_cache": "use_cache",
    "pad_token_id": "pad_token_id",
    "bos_token_id": "bos_token_id",
    "eos_token_id": "eos_token_id",
}
OUTSIDE_THE_BLOCKS = {
    "model.embed_tokens.weight": "transformer.wte.weight",
    "model.embed_positions.weight": "transformer.wpe.weight",
    "model.norm.weight": "transformer.ln_f.weight",
    "model.norm.bias": "transformer.ln_f.bias",
    "lm_head.weight": "lm_head.weight",
}
BLOCK = {
    "self_attn_norm": "ln_1",
    "self_attn.o_proj": "attn.c_proj",
    "feed_forward_norm": "ln_2",
    "feed_forward.fc1": "mlp.c_fc",
    "feed_forward.fc2": "mlp.c_proj",
}


def from_gpt2(model: GPT2LMHeadModel | str | os.PathLike) -> ScratchGPTForCausalLM:
    """A ScratchGPT with GPT-2's logits. `scale_attn_weights` and `scale_attn_by_inverse_layer_idx` are folded into
    the query projections; `reorder_and_upcast_attn`, which changes only the rounding, is left out.

    Args:
        model: a GPT-2, which stays as it is, or the folder or Hub id of one.

    Raises:
        ValueError: another model than a GPT-2 with its head, cross-attention, or weights that a GPT-2 of this
            configuration does not have (an adapter's).
    """
    if isinstance(model, (str, os.PathLike)):
        model = load(GPT2LMHeadModel, model)
    require_head(model, GPT2LMHeadModel)
    gpt2 = model.config
    refuse(gpt2, {"add_cross_attention": (False, "a ScratchGPT has no cross-attention")})
    values = {ours: getattr(gpt2, theirs) for ours, theirs in CONFIG.items()}  # n_inner is None for 4 * n_embd in both
    config = ScratchGPTConfig(**values, tie_word_embeddings=is_tied(model))

    weights, state = model.state_dict(), {}
    for ours, theirs in OUTSIDE_THE_BLOCKS.items():
        state[ours] = take(weights, theirs)
    for i, block in enumerate(model.transformer.h):
        # exactly 1 for a GPT-2 as published, which leaves its weights as they are to the bit
        scale = block.attn.scaling / config.head_dim**-0.5
        for kind in ("weight", "bias"):
            for ours, theirs in BLOCK.items():
                state[f"model.layers.{i}.{ours}.{kind}"] = take(weights, f"transformer.h.{i}.{theirs}.{kind}").t()
            q, k, v = take(weights, f"transformer.h.{i}.attn.c_attn.{kind}").t().chunk(3)
            for name, tensor in (("q_proj", q * scale), ("k_proj", k), ("v_proj", v)):
                state[f"model.layers.{i}.self_attn.{name}.{kind}"] = tensor
    return build(ScratchGPTForCausalLM, config, state, weights, model)


def to_gpt2(model: ScratchGPTForCausalLM) -> GPT2LMHeadModel:
    """A GPT-2 with the ScratchGPT's logits. Missing attention biases become zeros, and sinusoids the rows of `wpe`:
    the function is the same, but training the GPT-2 would train them.

    Args:
        model: a ScratchGPT, which stays as it is.

    Raises:
        ValueError: naming the configuration field that GPT-2 cannot express, or weights that no table here names; or
            another model than a ScratchGPT with its head.
    """
    require_head(model, ScratchGPTForCausalLM)
    ours = model.config
    refuse(
        ours,
        {
            "norm_first": (True, "GPT-2 is pre-norm"),
            "is_causal": (True, "GPT-2 is causal"),
            "embedding_layernorm": (False, "GPT-2 has no LayerNorm on its embeddings"),
            "final_layernorm": (True, "GPT-2 has a LayerNorm after its last block"),
            "lm_head_bias": (False, "GPT-2's head has no bias"),
            "head_dim": (ours.hidden_size / ours.num_attention_heads, "GPT-2's heads share its width out"),
        },
    )
    values = {theirs: getattr(ours, name) for name, theirs in CONFIG.items()}
    config = GPT2Config(**values, tie_word_embeddings=is_tied(model))

    weights, state = with_all_biases(model), {}
    # the sinusoids are no part of a state dict
    weights["model.embed_positions.weight"] = model.model.embed_positions.weight
    for name, theirs in OUTSIDE_THE_BLOCKS.items():
        state[theirs] = take(weights, name)
    for i in range(ours.num_hidden_layers):
        for kind in ("weight", "bias"):
            for name, theirs in BLOCK.items():
                state[f"transformer.h.{i}.{theirs}.{kind}"] = take(weights, f"model.layers.{i}.{name}.{kind}").t()
            qkv = [take(weights, f"model.layers.{i}.self_attn.{name}_proj.{kind}") for name in "qkv"]
            state[f"transformer.h.{i}.attn.c_attn.{kind}"] = torch.cat(qkv).t()
    return build(GPT2LMHeadModel, config, state, weights, model)


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


def refuse(config: PreTrainedConfig, needed: dict[str, tuple[object, str]]) -> None:
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
