# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""ScratchGPT: the decoder half of "Attention Is All You Need", with nothing to cross-attend to (Radford et al. 2018).

The path of a token: `embed_tokens` + `embed_positions` -> `ScratchGPTLayer` x N -> `norm` -> `lm_head` -> logits.
"""

from typing import Any

import torch
from torch import nn
from transformers.cache_utils import Cache, DynamicCache
from transformers.modeling_layers import GenericForSequenceClassification, GenericForTokenClassification
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast, MaskedLMOutput
from transformers.modeling_utils import slice_logits_to_keep
from transformers.models.auto import modeling_auto
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs, can_return_tuple
from transformers.utils.generic import is_flash_attention_requested, merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from .configuration_scratch_gpt import ScratchGPTConfig
from .scratch_base import ScratchGenerationMixin, ScratchPreTrainedModel
from .scratch_layers import (
    Dropout,
    FeedForward,
    MultiHeadAttention,
    ResidualLayer,
    check_mask_length,
    make_flash_kwargs,
    make_mask,
    make_position_embedding,
    make_position_ids,
    rename_cache,
)
from .scratch_loss import ScratchKwargs, shift_left


class ScratchGPTLayer(ResidualLayer):
    """One block: self-attention, then feed-forward, each with a residual connection and a LayerNorm."""

    def __init__(self, config: ScratchGPTConfig, layer_idx: int):
        super().__init__(config.norm_first, config.hidden_dropout)
        self.self_attn = MultiHeadAttention(
            config, config.num_attention_heads, is_causal=config.is_causal, layer_idx=layer_idx
        )
        self.self_attn_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.feed_forward = FeedForward(config.hidden_size, config.intermediate_size, config.hidden_act)
        self.feed_forward_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    @rename_cache
    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        cache: Cache | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> torch.Tensor:
        """(batch, length, hidden_size) -> (batch, length, hidden_size)."""
        hidden_states = self.residual(
            hidden_states, self.self_attn_norm, self.self_attn, attention_mask, cache=cache, **kwargs
        )
        return self.residual(hidden_states, self.feed_forward_norm, self.feed_forward)


class ScratchGPTPreTrainedModel(ScratchPreTrainedModel):
    """What transformers needs to know about the family."""

    config: ScratchGPTConfig
    auto_map = {
        "AutoConfig": "configuration_scratch_gpt.ScratchGPTConfig",
        "AutoModel": "modeling_scratch_gpt.ScratchGPTModel",
        "AutoModelForCausalLM": "modeling_scratch_gpt.ScratchGPTForCausalLM",
        "AutoModelForMaskedLM": "modeling_scratch_gpt.ScratchGPTForMaskedLM",
        "AutoModelForSequenceClassification": "modeling_scratch_gpt.ScratchGPTForSequenceClassification",
        "AutoModelForTokenClassification": "modeling_scratch_gpt.ScratchGPTForTokenClassification",
    }
    _no_split_modules = ["ScratchGPTLayer"]
    _can_record_outputs = {"hidden_states": ScratchGPTLayer, "attentions": MultiHeadAttention}


class ScratchGPTModel(ScratchGPTPreTrainedModel):
    """Token ids to hidden states, without a head."""

    def __init__(self, config: ScratchGPTConfig):
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.embed_positions = make_position_embedding(
            config.position_embedding_type, config.max_position_embeddings, config.hidden_size
        )
        self.embed_norm = (
            nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
            if config.embedding_layernorm
            else nn.Identity()
        )
        self.dropout = Dropout(config.embedding_dropout)
        self.layers = nn.ModuleList([ScratchGPTLayer(config, i) for i in range(config.num_hidden_layers)])
        self.norm = (
            nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps) if config.final_layernorm else nn.Identity()
        )
        self.gradient_checkpointing = False
        self.post_init()

    @merge_with_config_defaults
    @capture_outputs
    @rename_cache
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        cache: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutputWithPast:
        """Run the stack.

        Args:
            input_ids: token ids (batch, length), int64.
            attention_mask: (batch, past + length), 0 on padding; or a 4-d mask, which is used unchanged.
            position_ids: (batch, length). Default: 0, 1, ... continued from the cache, not counting what a 2-d mask
                hides. Without `attention_mask` and `cache`, a position that does not follow the one before begins
                a packed sequence. Packed sequences do not attend to each other.
            cache: a `Cache` with the earlier tokens.
            inputs_embeds: (batch, length, hidden_size), in place of `input_ids`.
            use_cache: return the cache. Default: the configuration's.

        Returns:
            `last_hidden_state` (batch, length, hidden_size) and the cache.

        Raises:
            ValueError: both or neither of `input_ids` and `inputs_embeds` are given, or a 2-d mask has another length.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("You must specify exactly one of input_ids or inputs_embeds")
        if isinstance(self.embed_tokens, nn.Identity):  # a server has split the layers; positions would be added again
            raise ValueError("A stage of a pipeline without the token embedding is not supported.")
        if inputs_embeds is None:
            inputs_embeds = self.embed_tokens(input_ids)
        check_mask_length(attention_mask, inputs_embeds, cache if isinstance(cache, Cache) else None)
        positions = position_ids
        if positions is None:
            positions = make_position_ids(inputs_embeds, attention_mask, cache)
        mask = make_mask(self, inputs_embeds, attention_mask, self.config.is_causal, position_ids, cache)
        if is_flash_attention_requested(self.config) and "cu_seq_lens_q" not in kwargs:
            kwargs.update(make_flash_kwargs(position_ids, attention_mask, cache, inputs_embeds.shape[0]))
        if use_cache and cache is None:
            cache = DynamicCache(config=self.config)

        hidden_states = self.dropout(self.embed_norm(inputs_embeds + self.embed_positions(positions)))
        for layer in self.layers:
            hidden_states = layer(
                hidden_states,
                mask,
                cache=cache,
                position_ids=positions,
                use_cache=use_cache,
                **kwargs,
            )
        return BaseModelOutputWithPast(last_hidden_state=self.norm(hidden_states), cache=cache)


class ScratchGPTForCausalLM(ScratchGPTPreTrainedModel, ScratchGenerationMixin):
    """ScratchGPT with a head that predicts the next token."""

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}
    _tp_plan = {"lm_head": "colwise_gather_output"}
    _fsdp_plan = {"lm_head": "keep_full_weight"}

    def __init__(self, config: ScratchGPTConfig):
        super().__init__(config)
        if not config.is_causal:
            raise ValueError("`is_causal=False` makes an encoder: use ScratchGPTForMaskedLM.")
        self.model = ScratchGPTModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=config.lm_head_bias)
        self.post_init()

    @can_return_tuple
    @rename_cache
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        cache: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        skip_logits: bool | None = None,
        **kwargs: Unpack[ScratchKwargs],
    ) -> CausalLMOutputWithPast:
        """Predict the next token at each position. For the other arguments, see `ScratchGPTModel`.

        Args:
            labels: (batch, length), int64, usually `input_ids` itself: they are shifted here. -100 is ignored.
            logits_to_keep: number of last positions to compute logits for (0: all), or their indices.
            skip_logits: with labels, compute the loss block by block and return no logits, in less memory and time.
                Default: the configuration's in training mode, else False.
            num_items_in_batch: the loss is the sum over tokens divided by this. Default: the labels that are not -100.
            label_smoothing, r_drop_alpha, teachers, distillation_alpha: see `ScratchKwargs`.

        Returns:
            `loss` in nats per token, `logits` (batch, kept length, vocab_size) unless skipped, and the cache. With
            `labels` it is None, unless one was given or `use_cache` is True.
        """
        skip_logits, loss_kwargs = self.take_loss_kwargs(skip_logits, kwargs)
        shift_labels = kwargs.pop("shift_labels", None)
        if use_cache is None and labels is not None and cache is None:
            use_cache = False
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            cache=cache,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            **kwargs,
        )
        hidden_states, logits, loss = outputs.last_hidden_state, None, None
        if labels is None or not skip_logits:
            logits = self.lm_head(slice_logits_to_keep(hidden_states, logits_to_keep))
        if labels is not None:
            if shift_labels is None:
                # Trainer's `num_items_in_batch` counts what padding predicts too
                mask = attention_mask if kwargs.get("num_items_in_batch") is None else None
                shift_labels = shift_left(labels, mask, kwargs.get("ignore_index", -100))
            loss = self.compute_loss(hidden_states, logits, labels, shift_labels, loss_kwargs, **kwargs)
        return CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            cache=outputs.cache,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


class ScratchGPTForMaskedLM(ScratchGPTPreTrainedModel):
    """The encoder, `is_causal=False`, with a head that fills in masked tokens."""

    _tied_weights_keys = ScratchGPTForCausalLM._tied_weights_keys
    _tp_plan = ScratchGPTForCausalLM._tp_plan
    _fsdp_plan = ScratchGPTForCausalLM._fsdp_plan

    def __init__(self, config: ScratchGPTConfig):
        super().__init__(config)
        if config.is_causal:
            raise ValueError("An encoder needs `is_causal=False`; for generation, use ScratchGPTForCausalLM.")
        self.model = ScratchGPTModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=config.lm_head_bias)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        skip_logits: bool | None = None,
        **kwargs: Unpack[ScratchKwargs],
    ) -> MaskedLMOutput:
        """Predict the token at each masked position. For the other arguments, see `ScratchGPTForCausalLM`.

        Args:
            labels: (batch, length), int64, the token at each masked position, and -100 elsewhere.
        """
        skip_logits, loss_kwargs = self.take_loss_kwargs(skip_logits, kwargs)
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            **kwargs,
        )
        hidden_states, logits, loss = outputs.last_hidden_state, None, None
        if labels is None or not skip_logits:
            logits = self.lm_head(hidden_states)
        if labels is not None:
            loss = self.compute_loss(hidden_states, logits, labels, labels, loss_kwargs, **kwargs)
        return MaskedLMOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


class ScratchGPTForSequenceClassification(GenericForSequenceClassification, ScratchGPTPreTrainedModel):
    """ScratchGPT with a head that classifies a text by its last token's state."""

    def __init__(self, config: ScratchGPTConfig):
        # skip the generic `__init__`: it asks AutoModel for the base, where code in a saved folder is not registered
        super(GenericForSequenceClassification, self).__init__(config)
        self.num_labels: Any = config.num_labels
        self.model = ScratchGPTModel(config)
        self.score = nn.Linear(config.hidden_size, self.num_labels, bias=False)
        self.post_init()


class ScratchGPTForTokenClassification(GenericForTokenClassification, ScratchGPTPreTrainedModel):
    """ScratchGPT with a head that classifies each token."""

    def __init__(self, config: ScratchGPTConfig):
        super(GenericForTokenClassification, self).__init__(config)  # as above
        self.num_labels: Any = config.num_labels
        self.model = ScratchGPTModel(config)
        self.dropout = nn.Dropout(config.hidden_dropout)
        self.score = nn.Linear(config.hidden_size, self.num_labels)
        self.post_init()


# Pipelines warn of classes that are not in these tables, and Trainer's label smoothing shifts the labels only for
# classes in the first. `AutoModelForCausalLM.register` and its kin do not write to them.
modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES["scratch_gpt"] = "ScratchGPTForCausalLM"
modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES["scratch_gpt"] = "ScratchGPTForMaskedLM"
modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES["scratch_gpt"] = "ScratchGPTForSequenceClassification"
modeling_auto.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES["scratch_gpt"] = "ScratchGPTForTokenClassification"

__all__ = [
    "ScratchGPTForCausalLM",
    "ScratchGPTForMaskedLM",
    "ScratchGPTForSequenceClassification",
    "ScratchGPTForTokenClassification",
    "ScratchGPTModel",
    "ScratchGPTPreTrainedModel",
]
