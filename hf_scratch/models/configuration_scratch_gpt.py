# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""ScratchGPT's configuration."""

from typing import Any, Literal

from huggingface_hub.dataclasses import strict
from transformers.configuration_utils import PreTrainedConfig
from transformers.utils.type_validators import activation_fn_key, positive_int_field, probability


@strict
class ScratchGPTConfig(PreTrainedConfig):
    """The configuration of a ScratchGPT: a decoder-only Transformer, or an encoder with `is_causal=False`.

    The defaults are the paper's base width with GPT-2's choices: pre-norm, learned positions, biases, the head tied to
    the embedding.

    Args:
        vocab_size: rows of the token embedding.
        hidden_size: width of the residual stream, the paper's d_model.
        num_hidden_layers: number of blocks.
        num_attention_heads: heads per block, the paper's h.
        head_dim: width of a head. Default: `hidden_size` divided by `num_attention_heads`, without remainder.
        intermediate_size: inner width of the feed-forward network. Default: `4 * hidden_size`.
        max_position_embeddings: tokens of the longest sequence.
        hidden_act: activation of the feed-forward network, a name in `transformers.activations.ACT2FN`.
        norm_first: True puts the LayerNorm before a sub-layer (GPT-2), False after the addition (the paper).
        layer_norm_eps: epsilon of every LayerNorm.
        attention_bias: biases on the query, key and value projections.
        attention_output_bias: a bias on the attention's output projection.
        lm_head_bias: a bias on the head.
        embedding_layernorm: a LayerNorm on the sum of token and position embeddings.
        final_layernorm: a LayerNorm after the last block.
        position_embedding_type: "learned" or "sinusoidal".
        is_causal: False lets every position attend to all others.
        embedding_dropout: dropout on the embeddings.
        hidden_dropout: dropout on each sub-layer's output.
        attention_dropout: dropout on the attention weights.
        initializer_range: standard deviation of the initial embeddings, and with `initializer="normal"` of all
            weights. The initializers "xavier_uniform_all" and "torch" do not use it.
        initializer: how weights are drawn, one of
            "normal": N(0, initializer_range), with zero biases;
            "xavier_uniform": Glorot and Bengio 2010 for linear layers, with zero biases; "normal" for embeddings;
            "xavier_uniform_all": the same for every matrix, with torch's own biases (annotated-seq2seq);
            "torch": PyTorch's default initialisation, for articles that name none.
        use_cache: return keys and values for generation. Set to False at construction with `is_causal=False`.
        tie_word_embeddings: the head uses the token embedding's weight.
        skip_logits: in training mode, a call with labels returns the loss and no logits, in less memory and time.
            Evaluation and `generate()` are not affected. It belongs to a run, and is not saved.
        pad_token_id, bos_token_id: an id, or None.
        eos_token_id: an id, several of them, or None.

    Raises:
        StrictDataclassError: a field has an invalid value; the message names it.
        ValueError: `num_attention_heads` does not divide `hidden_size`, and `head_dim` is not set.
    """

    model_type = "scratch_gpt"
    keys_to_ignore_at_inference = ["cache"]
    base_model_tp_plan = {
        "layers.*.self_attn.q_proj": "colwise",
        "layers.*.self_attn.k_proj": "colwise",
        "layers.*.self_attn.v_proj": "colwise",
        "layers.*.self_attn.o_proj": "rowwise",
        "layers.*.feed_forward.fc1": "colwise",
        "layers.*.feed_forward.fc2": "rowwise",
    }

    vocab_size: int = positive_int_field(default=50257)
    hidden_size: int = positive_int_field(default=512)
    num_hidden_layers: int = positive_int_field(default=6)
    num_attention_heads: int = positive_int_field(default=8)
    head_dim: Any = positive_int_field(default=None)
    intermediate_size: Any = positive_int_field(default=None)
    max_position_embeddings: int = positive_int_field(default=1024)
    hidden_act: str = activation_fn_key(default="gelu")
    norm_first: bool = True
    layer_norm_eps: float = 1e-5
    attention_bias: bool = True
    attention_output_bias: bool = True
    lm_head_bias: bool = False
    embedding_layernorm: bool = False
    final_layernorm: bool = True
    position_embedding_type: Literal["learned", "sinusoidal"] = "learned"
    is_causal: bool = True
    embedding_dropout: float | int = probability(default=0.0)
    hidden_dropout: float | int = probability(default=0.0)
    attention_dropout: float | int = probability(default=0.0)
    initializer_range: float = 0.02
    initializer: Literal["normal", "xavier_uniform", "xavier_uniform_all", "torch"] = "normal"
    use_cache: bool = True
    tie_word_embeddings: bool = True
    skip_logits: bool = False
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None

    def __post_init__(self, **kwargs):
        if self.head_dim is None:
            if self.hidden_size % self.num_attention_heads:
                raise ValueError("`num_attention_heads` must divide `hidden_size`, unless `head_dim` is set.")
            self.head_dim = self.hidden_size // self.num_attention_heads
        if self.intermediate_size is None:
            self.intermediate_size = 4 * self.hidden_size
        self.use_cache = self.use_cache and self.is_causal
        super().__post_init__(**kwargs)

    def to_diff_dict(self) -> dict[str, Any]:
        """What `config.json` holds: every field but `skip_logits`, which belongs to a run and not to a model."""
        return {name: value for name, value in super().to_diff_dict().items() if name != "skip_logits"}


# saved folders then hold this file, and load without the package through `trust_remote_code=True`
ScratchGPTConfig.register_for_auto_class()

__all__ = ["ScratchGPTConfig"]
