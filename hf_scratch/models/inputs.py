# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Checks of the models' inputs; positions, masks, shifted labels and sliced hidden states."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.attention.flex_attention import create_block_mask
from transformers.cache_utils import Cache
from transformers.configuration_utils import PreTrainedConfig
from transformers.masking_utils import (
    and_masks,
    causal_mask_function,
    create_bidirectional_mask,
    create_causal_mask,
    packed_sequence_mask_function,
)
from transformers.modeling_utils import PreTrainedModel
from transformers.utils import TransformersKwargs
from transformers.utils.import_utils import is_torchdynamo_compiling, is_tracing


def is_transformed(tensor: torch.Tensor) -> bool:
    """Whether Python must not branch on values: while tracing or compiling, on a fake tensor, or in `torch.func`."""
    return is_tracing(tensor) or is_in_torch_func()


def is_in_torch_func() -> bool:
    """Whether a transform of `torch.func` is active (`vmap`, `grad`, `jvp`): it cannot call our autograd functions."""
    return torch._C._are_functorch_transforms_active()


# what a caller may pass besides the named parameters: transformers' own, and a dict for a user's attention function
PASSED_ON = {*TransformersKwargs.__annotations__, "attention_kwargs"}


def check_kwargs(cache: Cache | None, kwargs: Any, ignored: tuple[str, ...] = ("token_type_ids",)) -> None:
    """Refuse what no layer would read. A flag or a number of a later transformers passes, and is ignored.

    Args:
        cache: that of the call. The cache of continuous batching is no `Cache`: it reads tensors of its own.
        kwargs: the `**kwargs` of a `forward`, from which `ignored` is removed.
        ignored: names of tensors that callers pass and the model has no use for, such as a tokenizer's token types.

    Raises:
        TypeError: a tensor or a cache under a name that neither `forward` nor `TransformersKwargs` has.
    """
    for name in ignored:
        kwargs.pop(name, None)
    if cache is None or isinstance(cache, Cache):
        for name, value in kwargs.items():
            if name not in PASSED_ON and _holds_tensor(value):
                raise TypeError(
                    f"forward() got an unexpected keyword argument {name!r}: it holds a tensor or a cache that this "
                    "model would not read. Pass what your own attention function reads as `attention_kwargs={...}`."
                )


def _holds_tensor(value: Any) -> bool:
    if isinstance(value, (dict, list, tuple)):
        return any(map(_holds_tensor, value.values() if isinstance(value, dict) else value))
    return isinstance(value, (torch.Tensor, Cache))


def check_mask_length(attention_mask: torch.Tensor | None, states: Any, past_length: int = 0) -> None:
    """Raise ValueError unless a 2-d mask has a column for each token: transformers fills it up or cuts it silently.

    Args:
        attention_mask: a mask of any shape, or None.
        states: (batch, length, width), the keys' tokens without those of the cache.
        past_length: tokens of the cache.
    """
    if attention_mask is None or attention_mask.ndim != 2 or is_torchdynamo_compiling():
        return
    if attention_mask.shape[1] != (length := past_length + states.shape[1]):
        raise ValueError(
            f"The attention mask has {attention_mask.shape[1]} columns, but there are {length} tokens, {past_length} "
            "of them in the cache."
        )


def make_position_ids(
    config: PreTrainedConfig,
    inputs_embeds: torch.Tensor,
    attention_mask: torch.Tensor | None,
    position_ids: torch.Tensor | None,
    cache: Cache | None = None,
) -> torch.Tensor:
    """Positions (batch or 1, length): `position_ids`, or by default 0, 1, ... continued from the end of the cache.

    With a 2-d mask, padding is not counted, as in `generate()`: a row has the same positions on whichever side it is
    padded. Given positions are checked on a CPU only, where reading them is cheap. Nothing is checked while compiling
    or tracing, or in a transform of `torch.func`.

    Raises:
        ValueError: the tokens with those of the cache need more positions than `max_position_embeddings`, or are not
            as many as a 2-d mask has columns; or a given position is negative or beyond the last one.
    """
    length, longest = inputs_embeds.shape[1], config.max_position_embeddings
    past_length = cache.get_seq_length() if isinstance(cache, Cache) else 0
    # a StaticCache's length is a tensor: Python must not branch on it, and the cache bounds it by itself
    end = None if getattr(cache, "is_compileable", False) else length + past_length
    if end is not None:
        check_mask_length(attention_mask, inputs_embeds, past_length)
    if position_ids is None:
        if end is not None and end > longest and not is_torchdynamo_compiling():
            raise ValueError(
                f"The input is {end} tokens long, but `max_position_embeddings` of this model is {longest}. Shorten "
                "the input (`truncation=True` in the tokenizer), generate fewer tokens, or train a model with more "
                "positions."
            )
        position_ids = (torch.arange(length, device=inputs_embeds.device) + past_length).unsqueeze(0)
        if attention_mask is not None and attention_mask.ndim == 2:
            counted = ((attention_mask.to(inputs_embeds.device) != 0).cumsum(-1) - 1).clamp(min=0)
            position_ids = counted[:, position_ids[0]]
    elif position_ids.device.type == "cpu" and position_ids.numel() > 0 and not is_transformed(position_ids):
        first, last = (int(x) for x in position_ids.aminmax())
        if first < 0 or last >= longest:
            position = first if first < 0 else last
            raise ValueError(
                f"`position_ids` holds {position}, but `max_position_embeddings` of this model is {longest}: choose "
                f"positions from 0 to {longest - 1}."
            )
    return position_ids


def make_mask(
    model: PreTrainedModel,
    hidden_states: torch.Tensor,
    attention_mask: torch.Tensor | None,
    is_causal: bool,
    position_ids: torch.Tensor | None = None,
    cache: Cache | None = None,
    encoder_hidden_states: torch.Tensor | None = None,
) -> Any:
    """transformers' mask, in the form that the model's attention function reads; None where it needs none.

    torch's fastest kernels take no mask, so transformers makes none from an `attention_mask` that hides nothing. To
    look for that waits for an accelerator: in training there, a mask is always made from one.

    Args:
        model: its config names the attention function.
        hidden_states: (batch, query length, width).
        attention_mask: (batch, key length), 0 on padding; or a 4-d mask, which is used unchanged.
        is_causal: whether later positions are hidden.
        position_ids: (batch or 1, length), those of the caller. Texts that they pack do not see each other.
        cache: that of the call.
        encoder_hidden_states: (batch, key length, width), for cross-attention.
    """
    texts = find_texts(position_ids, attention_mask, cache, hidden_states.shape[0])
    if texts is not None and (mask := make_packed_mask(texts, is_causal, model.config)) is not None:
        return mask
    packed = None if texts is None else packed_sequence_mask_function(texts)
    may_skip = attention_mask is None or hidden_states.device.type == "cpu" or not model.training
    if is_causal:
        return create_causal_mask(
            model.config,
            hidden_states,
            attention_mask,
            cache=getattr(cache, "self_attention_cache", cache),
            and_mask_function=packed,
            allow_is_causal_skip=may_skip,
        )
    if encoder_hidden_states is not None:
        check_mask_length(attention_mask, encoder_hidden_states)
    return create_bidirectional_mask(
        model.config,
        hidden_states,
        attention_mask,
        encoder_hidden_states=encoder_hidden_states,
        and_mask_function=packed,
        allow_is_bidirectional_skip=may_skip,
    )


def make_packed_mask(texts: torch.Tensor, is_causal: bool, config: PreTrainedConfig) -> Any:
    """What transformers makes of `packed_sequence_mask_function(texts)`, without tracing it anew for each batch.

    Args:
        texts: (batch, length), see `find_texts`.
        is_causal: whether later positions are hidden.
        config: names the attention function.

    Returns:
        For "sdpa" and "eager", a boolean mask (batch, 1, length, length); for "flex_attention", a block mask; for any
        other attention function, None.
    """
    attention, length = config._attn_implementation, texts.shape[1]
    if attention in ("sdpa", "eager"):
        mask = texts[:, None, :, None] == texts[:, None, None]
        return mask.tril() if is_causal else mask
    if attention != "flex_attention":
        return None
    rule = packed_sequence_mask_function(texts)
    rule = and_masks(causal_mask_function, rule) if is_causal else rule
    return compile_once(create_block_mask)(rule, len(texts), None, length, length, texts.device)


def compile_once(function: Callable) -> Callable:
    """`torch.compile(function)`, which takes a millisecond to make, kept; the function itself in a compiled model."""
    if is_torchdynamo_compiling():
        return function
    if function not in _COMPILED:
        _COMPILED[function] = torch.compile(function)
    return _COMPILED[function]


_COMPILED: dict[Callable, Callable] = {}


def find_texts(
    position_ids: torch.Tensor | None, attention_mask: torch.Tensor | None, cache: Cache | None, rows: int
) -> torch.Tensor | None:
    """The number of the packed text of each token, (rows, length): a text begins where positions do not go on.

    None: with a mask or a cache, texts are not told apart; or each row is one text. That is looked for on a CPU only:
    on an accelerator it would wait for the device.
    """
    if position_ids is None or attention_mask is not None or cache is not None:
        return None
    position_ids = position_ids.expand(rows, -1)
    texts = (position_ids.diff(prepend=position_ids[:, :1] - 1) != 1).cumsum(-1)
    may_look = texts.device.type == "cpu" and not is_transformed(texts)
    return None if may_look and not texts[:, -1].any() else texts


def make_flash_kwargs(
    position_ids: torch.Tensor | None, attention_mask: torch.Tensor | None, cache: Cache | None, rows: int
) -> TransformersKwargs:
    """Where packed texts begin, as flash attention reads it: all rows, end to end. Arguments as in `find_texts`."""
    texts = find_texts(position_ids, attention_mask, cache, rows)
    if texts is None:
        return {}
    starts = nn.functional.pad(texts.diff(), (1, 0), value=1).flatten().nonzero().flatten()
    bounds: Any = nn.functional.pad(starts, (0, 1), value=texts.numel()).int()
    longest = texts.shape[1]
    return {"cu_seq_lens_q": bounds, "cu_seq_lens_k": bounds, "max_length_q": longest, "max_length_k": longest}


def slice_logits_to_keep(hidden_states: torch.Tensor, logits_to_keep: int | torch.Tensor) -> torch.Tensor:
    """The hidden states to compute logits for: the last `logits_to_keep` positions (0: all), or 1-d indices."""
    kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) and logits_to_keep else logits_to_keep
    return hidden_states if isinstance(kept, int) else hidden_states[:, kept, :]


def shift_left(labels: torch.Tensor, attention_mask: torch.Tensor | None, ignore_index: int = -100) -> torch.Tensor:
    """The label (batch, length) that each position predicts: the next one.

    What would be predicted from padding is ignored: the first token of a row that is padded on the left.
    """
    shifted = nn.functional.pad(labels[:, 1:], (0, 1), value=ignore_index)
    if attention_mask is not None and attention_mask.ndim == 2:
        shifted = shifted.masked_fill(attention_mask[:, -labels.shape[1] :].to(labels.device) == 0, ignore_index)
    return shifted


def shift_right(config: PreTrainedConfig, labels: torch.Tensor) -> torch.Tensor:
    """`decoder_start_token_id` followed by all labels (batch, length) but the last; -100 becomes `pad_token_id`.

    Raises:
        ValueError: one of these ids is None in the config.
    """
    for name in ("decoder_start_token_id", "pad_token_id"):
        if getattr(config, name) is None:
            raise ValueError(
                f"`{name}` is None in the model's config, and the decoder's input is built from it and the labels. "
                f"Set `model.config.{name}`, or pass `decoder_input_ids`."
            )
    start = labels.new_full((labels.shape[0], 1), config.decoder_start_token_id)
    shifted = torch.cat([start, labels[:, :-1]], dim=1)
    return shifted.masked_fill(shifted == -100, config.pad_token_id)


def check_inputs(
    config: PreTrainedConfig,
    input_ids: torch.Tensor | None,
    inputs_embeds: torch.Tensor | None,
    vocabulary: int | nn.Embedding,
) -> None:
    """Raise ValueError unless exactly one input is given and all ids are within the vocabulary.

    Ids are read on the CPU only: on an accelerator, each check would wait for the device. They are not read while
    compiling or tracing, or in a transform of `torch.func`.

    Args:
        config: the model's configuration.
        input_ids: (batch, length), or None.
        inputs_embeds: (batch, length, width), or None.
        vocabulary: the number of tokens, or the embedding.
    """
    if (input_ids is None) == (inputs_embeds is None):
        raise ValueError("You must specify exactly one of `input_ids` or `inputs_embeds` (or their `decoder_` forms).")
    if input_ids is None or input_ids.device.type != "cpu" or input_ids.numel() == 0 or is_transformed(input_ids):
        return
    if isinstance(vocabulary, int):
        vocab_size = vocabulary
    else:  # an adapter around an embedding has no `num_embeddings`
        vocab_size = getattr(vocabulary, "num_embeddings", None) or len(vocabulary.weight)
    low, high = (int(x) for x in input_ids.aminmax())
    if low < 0 or high >= vocab_size:
        raise ValueError(
            f"Token id {low if low < 0 else high} is outside the vocabulary of {vocab_size} tokens of this "
            f"{config.model_type} model (ids 0 to {vocab_size - 1}). Does the tokenizer belong to the model?"
        )
