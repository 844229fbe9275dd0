# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""ScratchTransformer's configuration."""

from typing import Any, Literal

from huggingface_hub.dataclasses import strict
from transformers.configuration_utils import PreTrainedConfig
from transformers.utils.type_validators import activation_fn_key, positive_int_field, probability

from .translation_pipeline import custom_pipelines


@strict
class ScratchTransformerConfig(PreTrainedConfig):
    """The configuration of a ScratchTransformer, the encoder-decoder of Vaswani et al. 2017.

    The defaults are the paper's base model (table 3): post-norm, ReLU, sinusoidal positions, one embedding shared by
    source, target and head (section 3.4). Field names are BART's where BART has the field.

    Args:
        vocab_size: rows of the source embedding, and of the target's when it is shared.
        decoder_vocab_size: rows of the target embedding and of the head. Default: `vocab_size`.
        share_encoder_decoder_embeddings: one embedding for source and target. Both then have one vocabulary.
        d_model: width of the residual stream.
        encoder_layers: the paper's N, for the encoder.
        decoder_layers: the same, for the decoder.
        encoder_attention_heads: the paper's h, for the encoder.
        decoder_attention_heads: the same, for the decoder.
        head_dim: the paper's d_k. Default: `d_model` divided by the number of heads, without remainder.
        v_head_dim: the paper's d_v. Default: `head_dim`.
        encoder_ffn_dim: the paper's d_ff, for the encoder.
        decoder_ffn_dim: the same, for the decoder.
        activation_function: a name in `transformers.activations.ACT2FN`.
        norm_first: False is the paper's LayerNorm(x + Sublayer(x)). True normalises before each sub-layer, and once
            more after each stack.
        layer_norm_eps: epsilon of every LayerNorm.
        attention_bias: biases on the query, key and value projections.
        attention_output_bias: a bias on the attention's output projection.
        lm_head_bias: a bias on the head.
        scale_embedding: multiply token embeddings by sqrt(d_model) (section 3.4).
        position_embedding_type: "sinusoidal" (section 3.5) or "learned".
        max_position_embeddings: tokens of the longest source, and of the longest target.
        dropout: dropout on the embeddings and on each sub-layer's output (section 5.4).
        attention_dropout: dropout on the attention weights.
        activation_dropout: dropout inside the feed-forward network.
        init_std: standard deviation of the initial embeddings, and with `initializer="normal"` of all weights. The
            initializers "xavier_uniform_all" and "torch" do not use it.
            Default: 0.02 for "normal", else `d_model**-0.5`, so that scaled embeddings start with a deviation of 1.
        initializer: how weights are drawn, one of
            "normal": N(0, init_std), with zero biases;
            "xavier_uniform": Glorot and Bengio 2010 for linear layers, with zero biases; "normal" for embeddings;
            "xavier_uniform_all": the same for every matrix, with torch's own biases (annotated-seq2seq);
            "torch": PyTorch's default initialisation, for articles that name none.
        use_cache: return keys and values for generation.
        tie_word_embeddings: the head uses the target embedding's weight.
        skip_logits: in training mode, a call with labels returns the loss and no logits, in less memory and time.
            Evaluation and `generate()` are not affected. It belongs to a run, and is not saved.
        pad_token_id: an id within both vocabularies, or None. Training needs it.
        bos_token_id: an id within the target's vocabulary, or None.
        eos_token_id: an id or several, or None.
        decoder_start_token_id: an id, or None. Training needs it.
        source_lang: the language it translates from, such as "en", or None if unknown.
        target_lang: the language it translates to, or None if unknown.
        task: "translation" or "summarization", the pipeline that a saved folder names.

    Raises:
        StrictDataclassError: a field, or several together, have invalid values; the message names them.
    """

    model_type = "scratch_transformer"
    keys_to_ignore_at_inference = ["cache"]
    attribute_map = {
        "hidden_size": "d_model",
        "num_hidden_layers": "encoder_layers",
        "num_attention_heads": "encoder_attention_heads",
    }
    base_model_tp_plan = {
        "encoder.embed_tokens": "embedding_rowwise",
        "decoder.embed_tokens": "embedding_rowwise",
        "encoder.layers.*.self_attn.q_proj": "colwise",
        "encoder.layers.*.self_attn.k_proj": "colwise",
        "encoder.layers.*.self_attn.v_proj": "colwise",
        "encoder.layers.*.self_attn.o_proj": "rowwise",
        "encoder.layers.*.feed_forward.fc1": "colwise",
        "encoder.layers.*.feed_forward.fc2": "rowwise",
        "decoder.layers.*.self_attn.q_proj": "colwise",
        "decoder.layers.*.self_attn.k_proj": "colwise",
        "decoder.layers.*.self_attn.v_proj": "colwise",
        "decoder.layers.*.self_attn.o_proj": "rowwise",
        "decoder.layers.*.cross_attn.q_proj": "colwise",
        "decoder.layers.*.cross_attn.k_proj": "colwise",
        "decoder.layers.*.cross_attn.v_proj": "colwise",
        "decoder.layers.*.cross_attn.o_proj": "rowwise",
        "decoder.layers.*.feed_forward.fc1": "colwise",
        "decoder.layers.*.feed_forward.fc2": "rowwise",
    }
    # the default fits a single stack: encoder and decoder each declare it
    base_model_fsdp_plan = None  # ty: ignore[invalid-assignment]  # transformers allows None, unlike its annotation

    vocab_size: int = positive_int_field(default=37000)
    decoder_vocab_size: Any = positive_int_field(default=None)
    share_encoder_decoder_embeddings: bool = True
    d_model: int = positive_int_field(default=512)
    encoder_layers: int = positive_int_field(default=6)
    decoder_layers: int = positive_int_field(default=6)
    encoder_attention_heads: int = positive_int_field(default=8)
    decoder_attention_heads: int = positive_int_field(default=8)
    head_dim: int | None = positive_int_field(default=None)
    v_head_dim: int | None = positive_int_field(default=None)
    encoder_ffn_dim: int = positive_int_field(default=2048)
    decoder_ffn_dim: int = positive_int_field(default=2048)
    activation_function: str = activation_fn_key(default="relu")
    norm_first: bool = False
    layer_norm_eps: float = 1e-5
    attention_bias: bool = True
    attention_output_bias: bool = True
    lm_head_bias: bool = False
    scale_embedding: bool = True
    position_embedding_type: Literal["sinusoidal", "learned"] = "sinusoidal"
    max_position_embeddings: int = positive_int_field(default=512)
    dropout: float | int = probability(default=0.1)
    attention_dropout: float | int = probability(default=0.0)
    activation_dropout: float | int = probability(default=0.0)
    init_std: float | None = None
    initializer: Literal["normal", "xavier_uniform", "xavier_uniform_all", "torch"] = "xavier_uniform"
    use_cache: bool = True
    is_encoder_decoder: bool = True
    tie_word_embeddings: bool = True
    skip_logits: bool = False
    pad_token_id: int | None = 0
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2
    decoder_start_token_id: int | None = 1
    source_lang: str | None = None
    target_lang: str | None = None
    task: Literal["translation", "summarization"] = "translation"

    def __post_init__(self, **kwargs):
        if not type(self).__module__.startswith("transformers_modules."):
            # where the package is imported, its pipelines need no `trust_remote_code`
            kwargs.pop("custom_pipelines", None)
        super().__post_init__(**kwargs)  # first: it sets the fields that are given by an alias of `attribute_map`
        if self.decoder_vocab_size is None:
            self.decoder_vocab_size = self.vocab_size
        if self.init_std is None:
            self.init_std = 0.02 if self.initializer == "normal" else self.d_model**-0.5

    def to_diff_dict(self) -> dict[str, Any]:
        """What `config.json` holds: the task's pipeline too, and not `skip_logits`, which belongs to a run."""
        fields = {**super().to_diff_dict(), "custom_pipelines": custom_pipelines(self.task)}
        fields.pop("skip_logits", None)
        return fields

    def validate_architecture(self):
        """Check the fields together; `@strict` calls this after each of them is checked alone."""
        heads = {self.encoder_attention_heads, self.decoder_attention_heads}
        if self.head_dim is None and any(self.d_model % number for number in heads):
            raise ValueError("The numbers of heads must divide `d_model`, unless `head_dim` is set.")
        if self.share_encoder_decoder_embeddings and self.decoder_vocab_size != self.vocab_size:
            raise ValueError(
                "`share_encoder_decoder_embeddings=True` needs equal `vocab_size` and `decoder_vocab_size`."
            )


# saved folders then hold this file, and load without the package through `trust_remote_code=True`
ScratchTransformerConfig.register_for_auto_class()

__all__ = ["ScratchTransformerConfig"]
