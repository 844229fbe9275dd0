# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""ScratchTransformer: the encoder-decoder of "Attention Is All You Need" (Vaswani et al. 2017), figure 1.

The path of a source token: `encoder.embed_tokens` + `encoder.embed_positions` -> `ScratchTransformerEncoderLayer` x N.
The path of a target token: `decoder.embed_tokens` + `decoder.embed_positions` -> `ScratchTransformerDecoderLayer` x N,
each of which attends to the encoder's output -> `lm_head` -> logits.
"""

import math
from collections.abc import Sequence

import torch
from torch import nn
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache
from transformers.configuration_utils import PreTrainedConfig
from transformers.modeling_outputs import (
    BaseModelOutput,
    BaseModelOutputWithPastAndCrossAttentions,
    Seq2SeqLMOutput,
    Seq2SeqModelOutput,
)
from transformers.modeling_utils import slice_logits_to_keep
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs, can_return_tuple
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from .configuration_scratch_transformer import ScratchTransformerConfig
from .scratch_base import ScratchGenerationMixin, ScratchPreTrainedModel
from .scratch_layers import (
    Dropout,
    FeedForward,
    MultiHeadAttention,
    ResidualLayer,
    ScaledEmbedding,
    check_mask_length,
    make_mask,
    make_position_embedding,
    make_position_ids,
    rename_cache,
)
from .scratch_loss import ScratchKwargs, shift_right


class ScratchTransformerEncoderLayer(ResidualLayer):
    """Self-attention, then feed-forward (section 3.1)."""

    def __init__(self, config: ScratchTransformerConfig, layer_idx: int):
        super().__init__(config.norm_first, config.dropout)
        self.self_attn = MultiHeadAttention(config, config.encoder_attention_heads, layer_idx=layer_idx)
        self.self_attn_norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_eps)
        self.feed_forward = FeedForward(
            config.d_model, config.encoder_ffn_dim, config.activation_function, config.activation_dropout
        )
        self.feed_forward_norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_eps)

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> torch.Tensor:
        """(batch, source length, d_model) -> (batch, source length, d_model)."""
        hidden_states = self.residual(hidden_states, self.self_attn_norm, self.self_attn, attention_mask, **kwargs)
        return self.residual(hidden_states, self.feed_forward_norm, self.feed_forward)


class ScratchTransformerDecoderLayer(ResidualLayer):
    """Causal self-attention, attention over the encoder's output, then feed-forward (section 3.1)."""

    def __init__(self, config: ScratchTransformerConfig, layer_idx: int):
        super().__init__(config.norm_first, config.dropout)
        num_heads = config.decoder_attention_heads
        self.self_attn = MultiHeadAttention(config, num_heads, is_causal=True, layer_idx=layer_idx)
        self.self_attn_norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_eps)
        self.cross_attn = MultiHeadAttention(config, num_heads, layer_idx=layer_idx)
        self.cross_attn_norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_eps)
        self.feed_forward = FeedForward(
            config.d_model, config.decoder_ffn_dim, config.activation_function, config.activation_dropout
        )
        self.feed_forward_norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_eps)

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        encoder_hidden_states: torch.Tensor | None = None,
        encoder_attention_mask: torch.Tensor | None = None,
        cache: Cache | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> torch.Tensor:
        """(batch, target length, d_model) -> the same, given encoder_hidden_states (batch, source length, d_model)."""
        hidden_states = self.residual(
            hidden_states, self.self_attn_norm, self.self_attn, attention_mask, cache=cache, **kwargs
        )
        if encoder_hidden_states is not None:
            source = encoder_attention_mask, encoder_hidden_states
            hidden_states = self.residual(
                hidden_states, self.cross_attn_norm, self.cross_attn, *source, cache=cache, **kwargs
            )
        return self.residual(hidden_states, self.feed_forward_norm, self.feed_forward)


class ScratchTransformerPreTrainedModel(ScratchPreTrainedModel):
    """What transformers needs to know about the family."""

    config: ScratchTransformerConfig
    # transformers' flash attention removes padding from the queries of cross-attention by the keys' mask
    _supports_flash_attn = False
    auto_map = {
        "AutoConfig": "configuration_scratch_transformer.ScratchTransformerConfig",
        "AutoModel": "modeling_scratch_transformer.ScratchTransformerModel",
        "AutoModelForSeq2SeqLM": "modeling_scratch_transformer.ScratchTransformerForConditionalGeneration",
    }
    _no_split_modules = ["ScratchTransformerEncoderLayer", "ScratchTransformerDecoderLayer"]

    def prepare_decoder_input_ids_from_labels(self, labels: torch.Tensor) -> torch.Tensor:
        """`decoder_start_token_id` and all labels (batch, length) but the last; -100 becomes `pad_token_id`."""
        return shift_right(labels, self.config.decoder_start_token_id, self.config.pad_token_id)

    def resize_token_embeddings(self, *args, **kwargs) -> nn.Embedding:
        """Resize the source embedding, and a target embedding and head that share it. Arguments as in transformers."""
        resized = super().resize_token_embeddings(*args, **kwargs)
        if self.config.share_encoder_decoder_embeddings:
            self.config.decoder_vocab_size = self.config.vocab_size
        return resized

    def get_expanded_tied_weights_keys(self, all_submodels: bool = False) -> dict[str, str]:
        # without `tie_word_embeddings` transformers ties nothing; source and target may still share an embedding
        if all_submodels:
            return super().get_expanded_tied_weights_keys(all_submodels=True)
        return dict(self._tied_weights_keys or {})


class ScratchTransformerStack(ScratchTransformerPreTrainedModel):
    """The common part of encoder and decoder: embeddings, positions, N layers and, with pre-norm, a last LayerNorm."""

    _fsdp_plan = PreTrainedConfig.base_model_fsdp_plan

    def __init__(self, config: ScratchTransformerConfig, vocab_size: int, layers: Sequence[nn.Module]):
        super().__init__(config)
        embed_scale = math.sqrt(config.d_model) if config.scale_embedding else 1.0
        self.embed_tokens = ScaledEmbedding(vocab_size, config.d_model, config.pad_token_id, embed_scale)
        self.embed_positions = make_position_embedding(
            config.position_embedding_type, config.max_position_embeddings, config.d_model
        )
        self.dropout = Dropout(config.dropout)
        self.layers = nn.ModuleList(layers)
        self.norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_eps) if config.norm_first else nn.Identity()
        self.gradient_checkpointing = False
        self.post_init()
        self._tp_plan = {}  # the config's plan uses whole-model names, so clear each stack's copy

    def embed(self, input_ids, inputs_embeds, attention_mask, position_ids, cache=None) -> torch.Tensor:
        """Tokens plus positions (sections 3.4 and 3.5): (batch, length) -> (batch, length, d_model)."""
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("You must specify exactly one of input_ids or inputs_embeds")
        if inputs_embeds is None:
            inputs_embeds = self.embed_tokens(input_ids)
        check_mask_length(attention_mask, inputs_embeds, cache)
        if position_ids is None:
            position_ids = make_position_ids(inputs_embeds, attention_mask, cache)
        return self.dropout(inputs_embeds + self.embed_positions(position_ids))


class ScratchTransformerEncoder(ScratchTransformerStack):
    """The left half of figure 1."""

    _can_record_outputs = {"hidden_states": ScratchTransformerEncoderLayer, "attentions": MultiHeadAttention}

    def __init__(self, config: ScratchTransformerConfig):
        layers = [ScratchTransformerEncoderLayer(config, i) for i in range(config.encoder_layers)]
        super().__init__(config, config.vocab_size, layers)

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutput:
        """Encode source ids to `last_hidden_state` (batch, source length, d_model).

        Args:
            input_ids: (batch, source length), int64.
            attention_mask: (batch, source length), 0 on padding; or a 4-d mask, which is used unchanged.
            inputs_embeds: (batch, source length, d_model), in place of `input_ids`.
            position_ids: (batch, source length). Default: see `make_position_ids`.
        """
        hidden_states = self.embed(input_ids, inputs_embeds, attention_mask, position_ids)
        mask = make_mask(self, hidden_states, attention_mask, is_causal=False)
        for layer in self.layers:
            hidden_states = layer(hidden_states, mask, **kwargs)
        return BaseModelOutput(last_hidden_state=self.norm(hidden_states))


class ScratchTransformerDecoder(ScratchTransformerStack):
    """The right half of figure 1, without the head."""

    _can_record_outputs = {
        "hidden_states": ScratchTransformerDecoderLayer,
        "attentions": OutputRecorder(MultiHeadAttention, index=1, layer_name="self_attn"),
        "cross_attentions": OutputRecorder(MultiHeadAttention, index=1, layer_name="cross_attn"),
    }

    def __init__(self, config: ScratchTransformerConfig):
        layers = [ScratchTransformerDecoderLayer(config, i) for i in range(config.decoder_layers)]
        super().__init__(config, config.decoder_vocab_size, layers)

    @merge_with_config_defaults
    @capture_outputs
    @rename_cache
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        encoder_hidden_states: torch.Tensor | None = None,
        encoder_attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        cache: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        """Decode target ids (batch, target length) to `last_hidden_state` (batch, target length, d_model).

        Args:
            input_ids: (batch, target length), int64.
            attention_mask: (batch, past + target length), 0 on padding; the causal order is added here.
            encoder_hidden_states: (batch, source length, d_model).
            encoder_attention_mask: (batch, source length), 0 on padding.
            position_ids: (batch, target length). Default: see `make_position_ids`.
            cache: an `EncoderDecoderCache` with the earlier tokens and the source.
            inputs_embeds: (batch, target length, d_model), in place of `input_ids`.
            use_cache: return the cache. Default: the configuration's.
        """
        if cache is not None and not isinstance(cache, EncoderDecoderCache):
            cache = EncoderDecoderCache(cache, DynamicCache(config=self.config))
        hidden_states = self.embed(input_ids, inputs_embeds, attention_mask, position_ids, cache)
        causal_mask = make_mask(self, hidden_states, attention_mask, is_causal=True, cache=cache)
        cross_mask = make_mask(
            self, hidden_states, encoder_attention_mask, is_causal=False, encoder_hidden_states=encoder_hidden_states
        )
        if use_cache and cache is None:
            cache = EncoderDecoderCache(DynamicCache(config=self.config), DynamicCache(config=self.config))
        for layer in self.layers:
            hidden_states = layer(
                hidden_states,
                causal_mask,
                encoder_hidden_states,  # positional: gradient checkpointing tracks only those
                cross_mask,
                cache=cache,
                use_cache=use_cache,
                **kwargs,
            )
        return BaseModelOutputWithPastAndCrossAttentions(last_hidden_state=self.norm(hidden_states), cache=cache)


class ScratchTransformerModel(ScratchTransformerPreTrainedModel):
    """Encoder and decoder, without a head."""

    def __init__(self, config: ScratchTransformerConfig):
        super().__init__(config)
        if config.share_encoder_decoder_embeddings:
            config.decoder_vocab_size = config.vocab_size  # users assign `config.vocab_size = len(tokenizer)`
            self._tied_weights_keys = {"decoder.embed_tokens.weight": "encoder.embed_tokens.weight"}
        self.encoder = ScratchTransformerEncoder(config)
        self.decoder = ScratchTransformerDecoder(config)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.encoder.embed_tokens

    def set_input_embeddings(self, value):
        self.encoder.embed_tokens = value
        if self.config.share_encoder_decoder_embeddings:
            self.decoder.embed_tokens = value

    @can_return_tuple
    @rename_cache
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        decoder_input_ids: torch.Tensor | None = None,
        decoder_attention_mask: torch.Tensor | None = None,
        encoder_outputs: tuple[torch.Tensor] | BaseModelOutput | None = None,
        cache: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        decoder_inputs_embeds: torch.Tensor | None = None,
        use_cache: bool | None = None,
        decoder_position_ids: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> Seq2SeqModelOutput:
        """Run both stacks.

        Args:
            input_ids: token ids (batch, source length), int64.
            attention_mask: (batch, source length), 0 on padding.
            decoder_input_ids: (batch, target length).
            decoder_attention_mask: (batch, past + target length), 0 on padding.
            encoder_outputs: the encoder's output of an earlier call; the source is then not encoded again.
            cache: an `EncoderDecoderCache` with the earlier target tokens and the source.
            inputs_embeds: (batch, source length, d_model), in place of `input_ids`.
            decoder_inputs_embeds: (batch, target length, d_model), in place of `decoder_input_ids`.
            decoder_position_ids: (batch, target length). Default: 0, 1, ... without what a 2-d mask hides.
            use_cache: return the cache. Default: the configuration's.
            position_ids: (batch, source length). Default: 0, 1, ... without what a 2-d mask hides.

        Returns:
            `last_hidden_state` (batch, target length, d_model), `encoder_last_hidden_state`, and the cache.

        Raises:
            ValueError: both or neither of ids and embeddings are given, or a 2-d mask has another length.
        """
        if encoder_outputs is None:
            encoder_outputs = self.encoder(
                input_ids=input_ids, attention_mask=attention_mask, inputs_embeds=inputs_embeds, **kwargs
            )
        elif not isinstance(encoder_outputs, BaseModelOutput):
            parts = [encoder_outputs[i] for i in range(len(encoder_outputs))]
            encoder_outputs = BaseModelOutput(*parts)  # ty: ignore[invalid-argument-type]
        kwargs.pop("position_ids", None)  # the source's
        decoder_outputs = self.decoder(
            input_ids=decoder_input_ids,
            attention_mask=decoder_attention_mask,
            encoder_hidden_states=encoder_outputs.last_hidden_state,
            encoder_attention_mask=attention_mask,
            position_ids=decoder_position_ids,
            cache=cache,
            inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache,
            **kwargs,
        )
        return Seq2SeqModelOutput(
            last_hidden_state=decoder_outputs.last_hidden_state,
            cache=decoder_outputs.cache,
            decoder_hidden_states=decoder_outputs.hidden_states,
            decoder_attentions=decoder_outputs.attentions,
            cross_attentions=decoder_outputs.cross_attentions,
            encoder_last_hidden_state=encoder_outputs.last_hidden_state,
            encoder_hidden_states=encoder_outputs.hidden_states,
            encoder_attentions=encoder_outputs.attentions,
        )


class ScratchTransformerForConditionalGeneration(ScratchTransformerPreTrainedModel, ScratchGenerationMixin):
    """ScratchTransformer with a head over the target vocabulary: translation."""

    _tp_plan = {"lm_head": "colwise_gather_output"}
    _fsdp_plan = {"lm_head": "keep_full_weight"}

    def __init__(self, config: ScratchTransformerConfig):
        super().__init__(config)
        self.loss_type = "ForMaskedLM"  # a loss that does not shift: `decoder_input_ids` are shifted already
        if config.tie_word_embeddings:
            source = "encoder" if config.share_encoder_decoder_embeddings else "decoder"
            self._tied_weights_keys = {"lm_head.weight": f"model.{source}.embed_tokens.weight"}
        self.model = ScratchTransformerModel(config)
        self.lm_head = nn.Linear(config.d_model, config.decoder_vocab_size, bias=config.lm_head_bias)
        self.post_init()

    def _resize_token_embeddings(self, *args, **kwargs) -> nn.Embedding:
        if self.config.share_encoder_decoder_embeddings:
            return super()._resize_token_embeddings(*args, **kwargs)
        return self.model._resize_token_embeddings(*args, **kwargs)  # the source's only, without the head

    def resize_decoder_token_embeddings(self, new_num_tokens: int | None) -> nn.Embedding:
        """Resize the target embedding and the head, where the target has a vocabulary of its own."""
        if new_num_tokens is None:
            return self.model.decoder.embed_tokens
        if self.config.share_encoder_decoder_embeddings:
            raise ValueError("Source and target share their embedding: use `resize_token_embeddings`.")
        resized = self.model.decoder._resize_token_embeddings(new_num_tokens)
        self.lm_head = self._get_resized_lm_head(self.lm_head, new_num_tokens)
        self.config.decoder_vocab_size = new_num_tokens
        self.tie_weights()
        return resized

    @can_return_tuple
    @rename_cache
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        decoder_input_ids: torch.Tensor | None = None,
        decoder_attention_mask: torch.Tensor | None = None,
        encoder_outputs: tuple[torch.Tensor] | BaseModelOutput | None = None,
        cache: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        decoder_inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        use_cache: bool | None = None,
        decoder_position_ids: torch.Tensor | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        skip_logits: bool | None = None,
        **kwargs: Unpack[ScratchKwargs],
    ) -> Seq2SeqLMOutput:
        """Predict each target token. For the other arguments, see `ScratchTransformerModel`.

        Args:
            labels: (batch, target length), int64, the target with its end and no start token; -100 is ignored.
                By default, `decoder_input_ids` are made of them.
            logits_to_keep: number of last positions to compute logits for (0: all), or their indices.
            skip_logits: with labels, compute the loss block by block and return no logits, in less memory and time.
                Default: the configuration's in training mode, else False.
            num_items_in_batch: the loss is the sum over tokens divided by this. Default: the labels that are not -100.
            label_smoothing, r_drop_alpha, teachers, distillation_alpha: see `ScratchKwargs`.

        Returns:
            `loss` in nats per token, `logits` (batch, kept length, decoder_vocab_size) or None, and the cache or None.
        """
        skip_logits, loss_kwargs = self.take_loss_kwargs(skip_logits, kwargs)
        use_cache = False if labels is not None else use_cache
        if labels is not None and decoder_input_ids is None and decoder_inputs_embeds is None:
            decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            decoder_input_ids=decoder_input_ids,
            decoder_attention_mask=decoder_attention_mask,
            encoder_outputs=encoder_outputs,
            cache=cache,
            inputs_embeds=inputs_embeds,
            decoder_inputs_embeds=decoder_inputs_embeds,
            decoder_position_ids=decoder_position_ids,
            use_cache=use_cache,
            **kwargs,
        )
        hidden_states, logits, loss = outputs.last_hidden_state, None, None
        if labels is None or not skip_logits:
            logits = self.lm_head(slice_logits_to_keep(hidden_states, logits_to_keep))
        if labels is not None:
            loss = self.compute_loss(hidden_states, logits, labels, labels, loss_kwargs, **kwargs)
        others = {name: value for name, value in outputs.items() if name != "last_hidden_state"}
        return Seq2SeqLMOutput(loss=loss, logits=logits, **others)


__all__ = [
    "ScratchTransformerForConditionalGeneration",
    "ScratchTransformerModel",
    "ScratchTransformerPreTrainedModel",
]
