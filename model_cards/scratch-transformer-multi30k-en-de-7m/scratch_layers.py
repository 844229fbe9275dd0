# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""The blocks of "Attention Is All You Need" (Vaswani et al. 2017) that both models are built from, and their masks.

Shapes are written as (batch, length, width); `heads * head_dim` need not equal the width.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from transformers.activations import ACT2FN
from transformers.cache_utils import Cache, EncoderDecoderCache
from transformers.configuration_utils import PreTrainedConfig
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import (
    create_bidirectional_mask,
    create_causal_mask,
    packed_sequence_mask_function,
)
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, PreTrainedModel
from transformers.utils import TransformersKwargs
from transformers.utils.deprecation import deprecate_kwarg
from transformers.utils.import_utils import is_torchdynamo_compiling, is_tracing
from transformers.utils.versions import require_version

require_version("transformers>=5.24")  # a saved folder brings this file along, but not the package's requirements

# CPU replacements, registered by `hf_scratch.cpu`. Without the package, torch's and transformers' own are used.
#   "dropout": dropout in training, in place of torch's;
#   "attention": the attention function "sdpa" in training, in place of transformers';
#   "decoding_loop": (model, options of `generate()`) to a `custom_generate` callable, or None for transformers' loop
ON_CPU: dict[str, Callable[..., Any]] = {}

# callers that know the name of transformers 5.23 and older get a FutureWarning, as from transformers' own models
rename_cache = deprecate_kwarg("past_key_values", "5.40.0", new_name="cache", raise_if_both_names=True)


def apply_dropout(hidden_states: torch.Tensor, p: float, training: bool) -> torch.Tensor:
    """Zero each element with probability `p` in training, and scale the others by 1 / (1 - p) (section 5.4)."""
    if not training or p == 0.0:
        return hidden_states
    dropout = nn.functional.dropout
    if hidden_states.device.type == "cpu":
        dropout = ON_CPU.get("dropout", dropout)
    return dropout(hidden_states, p)


class Dropout(nn.Dropout):
    """`apply_dropout` as a module, which a trainer can turn off: TRL sets the `p` of each `nn.Dropout` to 0."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Any shape -> the same."""
        return apply_dropout(input, self.p, self.training)


def eager_attention_forward(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    **kwargs,
) -> tuple[torch.Tensor, torch.Tensor]:
    """softmax(Q K^T / sqrt(d_k)) V, equation (1), section 3.2.1.

    Args:
        query: (batch, heads, query length, head_dim).
        key: (batch, heads, key length, head_dim).
        value: (batch, heads, key length, v_head_dim).
        attention_mask: broadcast to (batch, heads, query length, key length). It is True where a query may attend; or
            it is added to the scores, with 0 there and the dtype's lowest number elsewhere.
        scaling: factor of the scores, 1 / sqrt(d_k) in the paper.
        dropout: probability of zeroing a weight, in training only.

    Returns:
        The context (batch, query length, heads, v_head_dim) and the weights (batch, heads, query length, key length).
    """
    scores = torch.matmul(query, key.transpose(2, 3)) * scaling
    if attention_mask is not None and not attention_mask.is_floating_point():
        scores = scores.masked_fill(attention_mask == 0, torch.finfo(scores.dtype).min)
    elif attention_mask is not None:
        scores = scores + attention_mask
    # at least in float32: a bfloat16 sum over a long row loses the small weights
    exact = torch.promote_types(scores.dtype, torch.float32)
    weights = nn.functional.softmax(scores, dim=-1, dtype=exact).to(query.dtype)
    weights = apply_dropout(weights, dropout, module.training)
    context = torch.matmul(weights, value).transpose(1, 2).contiguous()
    return context, weights


class MultiHeadAttention(nn.Module):
    """Multi-head attention, section 3.2.2: self-attention, or cross-attention when given `key_value_states`.

    Args:
        config: the model's configuration. Its `head_dim` and `v_head_dim` are the paper's d_k and d_v. Its
            `_attn_implementation` names the attention function.
        num_heads: the paper's h.
        layer_idx: index of this layer's keys and values in the cache.
        is_causal: whether later positions are hidden (the decoder's self-attention, section 3.2.3). Attention
            functions that can run without a mask, such as "sdpa", read it. Eager attention needs a mask.
    """

    def __init__(self, config: PreTrainedConfig, num_heads: int, layer_idx: int, is_causal: bool = False):
        super().__init__()
        head_dim = config.head_dim or config.hidden_size // num_heads
        v_head_dim = getattr(config, "v_head_dim", None) or head_dim
        self.config = config
        self.layer_idx = layer_idx
        self.head_dim = head_dim
        self.v_head_dim = v_head_dim
        self.is_causal = is_causal
        self.scaling = head_dim**-0.5
        self.attention_dropout = Dropout(config.attention_dropout)  # its `p` is for the attention function
        self.num_key_value_groups = 1  # the attention functions read it: each query head has its own key head

        # three projections, not one packed: tensor-parallel plans, LoRA and the converters name each of them
        self.q_proj = nn.Linear(config.hidden_size, num_heads * head_dim, bias=config.attention_bias)
        self.k_proj = nn.Linear(config.hidden_size, num_heads * head_dim, bias=config.attention_bias)
        self.v_proj = nn.Linear(config.hidden_size, num_heads * v_head_dim, bias=config.attention_bias)
        self.o_proj = nn.Linear(num_heads * v_head_dim, config.hidden_size, bias=config.attention_output_bias)

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        key_value_states: torch.Tensor | None = None,
        cache: Cache | None = None,
        **kwargs,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Attend from `hidden_states` to itself or to `key_value_states`.

        Args:
            hidden_states: (batch, query length, width).
            attention_mask: the mask that `create_causal_mask` or `create_bidirectional_mask` made. Its form depends
                on the attention function, so it is passed on unchanged.
            key_value_states: (batch, key length, width), the encoder's output. Default: self-attention.
            cache: the cache, which is extended in place.

        Returns:
            The output (batch, query length, width), and the weights or None: only eager attention returns them.
        """
        input_shape = hidden_states.shape[:-1]
        # -1 for the number of heads: under tensor parallelism a process holds only some of them
        query = self.q_proj(hidden_states).view(*input_shape, -1, self.head_dim).transpose(1, 2)
        key, value = self.keys_and_values(hidden_states, key_value_states, cache, kwargs)

        attention_interface = ALL_ATTENTION_FUNCTIONS.get_interface(
            self.config._attn_implementation, eager_attention_forward
        )
        # the identity check keeps a user's own function that is registered as "sdpa"
        if self.training and query.device.type == "cpu" and attention_interface is sdpa_attention_forward:
            attention_interface = ON_CPU.get("attention", attention_interface)
        context, weights = attention_interface(
            self,
            query,
            key,
            value,
            attention_mask,
            dropout=self.attention_dropout.p if self.training else 0.0,
            scaling=self.scaling,
            **kwargs,
        )
        return self.o_proj(context.reshape(*input_shape, -1)), weights

    def keys_and_values(
        self, hidden_states: torch.Tensor, key_value_states: torch.Tensor | None, cache: Cache | None, kwargs: dict
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys (batch, heads, length, head_dim) and values (..., v_head_dim), including the cache's."""
        is_cross_attention = key_value_states is not None
        own_cache = cache
        if isinstance(cache, EncoderDecoderCache):
            own_cache = cache.cross_attention_cache if is_cross_attention else cache.self_attention_cache
            if is_cross_attention and cache.is_updated.get(self.layer_idx):
                # the source does not change while decoding: the first step has projected it
                return cached_states(own_cache, self.layer_idx)

        states = key_value_states if is_cross_attention else hidden_states
        key = self.k_proj(states).view(*states.shape[:-1], -1, self.head_dim).transpose(1, 2)
        value = self.v_proj(states).view(*states.shape[:-1], -1, self.v_head_dim).transpose(1, 2)
        if own_cache is not None:
            # the cache of continuous batching rewrites the attention function's keyword arguments
            key, value = own_cache.update(key, value, self.layer_idx, kwargs=kwargs)
            if is_cross_attention and isinstance(cache, EncoderDecoderCache):
                cache.is_updated[self.layer_idx] = True
        return key, value


def cached_states(cache: Cache, layer_idx: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The keys (batch, heads, length, head_dim) and values (..., v_head_dim) that a cache holds for one layer."""
    layer = cache.layers[layer_idx]
    # our models' layers all have keys; transformers' annotation includes layers of linear attention
    return layer.keys, layer.values  # ty: ignore[missing-union-attribute, invalid-explicit-return]


class FeedForward(nn.Module):
    """max(0, x W1 + b1) W2 + b2, equation (2), section 3.3, with any activation of transformers.

    Args:
        width: the model's width.
        inner_width: the paper's d_ff.
        activation: a name in transformers' ACT2FN.
        dropout: probability of zeroing an element after the activation.
    """

    def __init__(self, width: int, inner_width: int, activation: str, dropout: float = 0.0):
        super().__init__()
        self.fc1 = nn.Linear(width, inner_width)
        # "gelu_new" is the same function in six separate operations
        self.activation = ACT2FN["gelu_pytorch_tanh" if activation == "gelu_new" else activation]
        self.dropout = Dropout(dropout)
        self.fc2 = nn.Linear(inner_width, width)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """(batch, length, width) -> (batch, length, width), each position on its own."""
        return self.fc2(self.dropout(self.activation(self.fc1(hidden_states))))


class ResidualLayer(GradientCheckpointingLayer):
    """Base of a layer. Each sub-layer is wrapped in a residual connection with dropout and a LayerNorm.

    Args:
        norm_first: False is the paper's LayerNorm(x + Dropout(Sublayer(x))), sections 3.1 and 5.4. True is
            x + Dropout(Sublayer(LayerNorm(x))): the gradient reaches the first layer unchanged (Xiong et al. 2020).
        dropout: probability of zeroing an element of a sub-layer's output.
    """

    # set by subclasses; only the encoder-decoder's decoder layer attends to a source
    self_attn: MultiHeadAttention
    self_attn_norm: nn.LayerNorm
    cross_attn: MultiHeadAttention
    cross_attn_norm: nn.LayerNorm
    feed_forward: FeedForward
    feed_forward_norm: nn.LayerNorm

    def __init__(self, norm_first: bool, dropout: float):
        super().__init__()
        self.norm_first = norm_first
        self.dropout = Dropout(dropout)

    def residual(self, x: torch.Tensor, norm: nn.LayerNorm, sublayer: nn.Module, /, *args, **kwargs) -> torch.Tensor:
        """(batch, length, width) -> the same; `args` and `kwargs` are the sub-layer's, after its first argument."""
        output = sublayer(norm(x) if self.norm_first else x, *args, **kwargs)
        output = output[0] if isinstance(output, tuple) else output  # attention returns its weights too
        x = x + self.dropout(output)
        return x if self.norm_first else norm(x)


class ScaledEmbedding(nn.Embedding):
    """Token embeddings times a factor, sqrt(d_model) in the paper (section 3.4). The weight is not scaled."""

    def __init__(self, num_embeddings: int, embedding_dim: int, padding_idx: int | None, embed_scale: float):
        super().__init__(num_embeddings, embedding_dim, padding_idx)
        self.embed_scale = embed_scale

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """(batch, length) -> (batch, length, width)."""
        return super().forward(input) * self.embed_scale


class SinusoidalPositionalEmbedding(nn.Module):
    """PE(pos, 2i) = sin(pos / 10000^(2i/d)), PE(pos, 2i+1) = cos(...), section 3.5. Nothing is learned.

    The table is a buffer that is not saved. `from_pretrained` builds models on the meta device, where the values are
    lost, so the models' `_init_weights` fills the table again from `make_table`. So does `load_state_dict`, for models
    that left the meta device by `to_empty`.

    Args:
        num_positions: rows of the table.
        width: the model's width.
    """

    weight: torch.Tensor

    def __init__(self, num_positions: int, width: int):
        super().__init__()
        self.num_positions = num_positions
        self.width = width
        self.register_buffer("weight", self.make_table(), persistent=False)
        self.register_load_state_dict_post_hook(_fill_table)

    def make_table(self) -> torch.Tensor:
        """The table (num_positions, width), sine on even and cosine on odd columns."""
        position = torch.arange(self.num_positions, dtype=torch.float32)[:, None]
        even = torch.arange(0, self.width, 2, dtype=torch.float32)
        angle = position / 10000.0 ** (even / self.width)
        table = torch.zeros(self.num_positions, self.width)
        table[:, 0::2] = angle.sin()
        table[:, 1::2] = angle.cos()[:, : self.width // 2]
        return table

    def forward(self, position_ids: torch.Tensor) -> torch.Tensor:
        """(batch, length) -> (batch, length, width)."""
        return nn.functional.embedding(position_ids, self.weight)


def _fill_table(module: SinusoidalPositionalEmbedding, incompatible_keys: object) -> None:
    if not module.weight.is_meta:
        module.weight.copy_(module.make_table())


def make_position_embedding(
    position_embedding_type: str, num_positions: int, width: int
) -> nn.Embedding | SinusoidalPositionalEmbedding:
    """A module from position ids (batch, length) to vectors (batch, length, width): "learned" or "sinusoidal"."""
    if position_embedding_type == "learned":
        return nn.Embedding(num_positions, width)
    return SinusoidalPositionalEmbedding(num_positions, width)


def check_mask_length(attention_mask: Any, states: torch.Tensor, cache: Cache | None = None) -> None:
    """Raise ValueError unless a 2-d mask has a column for each token: transformers pads or truncates it silently.

    Args:
        attention_mask: a mask of any form, or None.
        states: (batch, length, width), the keys' tokens without the cached ones.
        cache: that of the call. A static cache is longer than its tokens, and is not checked.
    """
    if not is_2d(attention_mask) or is_torchdynamo_compiling() or getattr(cache, "is_compileable", False):
        return
    length = states.shape[1] + (cache.get_seq_length() if cache is not None else 0)
    if attention_mask.shape[1] != length:
        raise ValueError(f"The attention mask has {attention_mask.shape[1]} columns, but there are {length} tokens.")


def is_2d(attention_mask: Any) -> bool:
    """Whether a mask is (batch, length), 0 on padding; not 4-d, flex attention's `BlockMask` or None."""
    return isinstance(attention_mask, torch.Tensor) and attention_mask.ndim == 2


def make_position_ids(inputs_embeds: torch.Tensor, attention_mask: Any, cache: Cache | None = None) -> torch.Tensor:
    """Positions (batch or 1, length): 0, 1, ... continued from the end of the cache.

    With a 2-d mask, padding is not counted, as in `generate()`: a row has the same positions on whichever side it is
    padded.
    """
    past_length = cache.get_seq_length() if isinstance(cache, Cache) else 0
    columns = torch.arange(inputs_embeds.shape[1], device=inputs_embeds.device) + past_length
    if not is_2d(attention_mask):
        return columns.unsqueeze(0)
    counted = (attention_mask.to(columns.device) != 0).cumsum(-1) - 1
    return counted.clamp(min=0)[:, columns]


def make_mask(
    model: PreTrainedModel,
    hidden_states: torch.Tensor,
    attention_mask: Any,
    is_causal: bool,
    position_ids: torch.Tensor | None = None,
    cache: Cache | None = None,
    encoder_hidden_states: torch.Tensor | None = None,
) -> Any:
    """transformers' mask, in the form that the model's attention function reads; None where it needs none.

    torch's fastest kernels take no mask, so transformers drops an `attention_mask` of ones. That check forces a device
    sync: in training on an accelerator, a mask is always kept.

    Args:
        model: its config names the attention function.
        hidden_states: (batch, query length, width).
        attention_mask: (batch, key length), 0 on padding; or a 4-d mask, which is used unchanged.
        is_causal: whether later positions are hidden.
        position_ids: (batch or 1, length), the caller's. Packed sequences do not attend to each other.
        cache: that of the call.
        encoder_hidden_states: (batch, key length, width), for cross-attention.

    Returns:
        For "sdpa" (batch or 1, 1, query length, key length), True where attended; for others as transformers makes it.
    """
    sequences = find_sequences(position_ids, attention_mask, cache, hidden_states.shape[0])
    if sequences is not None and model.config._attn_implementation in ("sdpa", "eager"):
        mask = sequences[:, None, :, None] == sequences[:, None, None]
        return mask.tril() if is_causal else mask
    packed = None if sequences is None else packed_sequence_mask_function(sequences)
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


def find_sequences(
    position_ids: torch.Tensor | None, attention_mask: Any, cache: Any, rows: int
) -> torch.Tensor | None:
    """The index of the packed sequence of each token, (rows, length). One begins where positions are not consecutive.

    None with a mask or a cache, where packing is not detected, and where each row is one sequence. The latter is
    checked on a CPU only: on an accelerator, checking would force a device sync.
    """
    if position_ids is None or attention_mask is not None or cache is not None:
        return None
    position_ids = position_ids.expand(rows, -1)
    sequences = (position_ids.diff(prepend=position_ids[:, :1] - 1) != 1).cumsum(-1)
    may_look = sequences.device.type == "cpu" and not is_tracing(sequences)
    return None if may_look and not sequences[:, -1].any() else sequences


def make_flash_kwargs(
    position_ids: torch.Tensor | None, attention_mask: Any, cache: Any, rows: int
) -> TransformersKwargs:
    """Flash attention's arguments for packed sequences, all rows joined end to end. Arguments as in `find_sequences`.

    transformers finds packed sequences in one row alone.
    """
    sequences = find_sequences(position_ids, attention_mask, cache, rows)
    if sequences is None:
        return {}
    starts = nn.functional.pad(sequences.diff(), (1, 0), value=1).flatten().nonzero().flatten()
    bounds: Any = nn.functional.pad(starts, (0, 1), value=sequences.numel()).int()
    longest = sequences.shape[1]
    return {"cu_seq_lens_q": bounds, "cu_seq_lens_k": bounds, "max_length_q": longest, "max_length_k": longest}
