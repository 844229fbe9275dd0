# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""The models of five build-a-Transformer articles, as configurations of ours.

Each article has a function that takes the article's own constructor arguments, with their names and defaults, and
returns the fields of our configuration of the same model. `make_preset` makes the configuration:
`make_preset("annotated-seq2seq", vocab_enc=8000, vocab_dec=8000, maxlen=128, pad_id=0)`. `preset_fields` gives the
fields to the training scripts, for recipes with a `preset`.
"""

import inspect
from collections.abc import Callable
from typing import Any

from transformers import PreTrainedConfig

from ..models.configuration_scratch_gpt import ScratchGPTConfig
from ..models.configuration_scratch_transformer import ScratchTransformerConfig

# of an article's model
Config = ScratchGPTConfig | ScratchTransformerConfig


def gpt_playground(n_layer: int, n_head: int, embedding_dim: int, vocab_size: int, block_size: int) -> dict[str, Any]:
    """The article "Transformer" (2025-01-25): GPT-2's blocks, untied, by characters."""
    return {
        "vocab_size": vocab_size,
        "hidden_size": embedding_dim,
        "num_hidden_layers": n_layer,
        "num_attention_heads": n_head,
        "max_position_embeddings": block_size,
        "embedding_dropout": 0.1,
        "hidden_dropout": 0.1,
        "attention_dropout": 0.1,
        "tie_word_embeddings": False,
    }


def annotated_seq2seq(
    vocab_enc: int,
    vocab_dec: int,
    maxlen: int,
    pad_id: int,
    dm: int = 512,
    dk: int = 64,
    dv: int = 64,
    nhead: int = 8,
    layers: int = 6,
    dff: int = 2048,
    bias: bool = False,
    dropout: float = 0.1,
    eps: float = 1e-6,
    scale: bool = True,
) -> dict[str, Any]:
    """The article "What is a Transformer?" (2023-12-10): two vocabularies, LayerNorms of unbiased variance.

    (x - mean) / sqrt(n / (n - 1) * var + eps) equals sqrt((n - 1) / n) * (x - mean) / sqrt(var + eps * (n - 1) / n).
    So the epsilon is scaled here, and `from_article` scales the gain.
    """
    return dict(
        **_seq2seq((vocab_enc, vocab_dec), dm, nhead, layers, dff, maxlen, dropout, pad_id),
        head_dim=dk,
        v_head_dim=dv,
        attention_bias=bias,
        attention_dropout=dropout,
        activation_dropout=dropout,
        layer_norm_eps=eps * (dm - 1) / dm,
        scale_embedding=scale,
        initializer="xavier_uniform_all",
    )


def gelu_seq2seq(
    vocab_size: int | tuple[int, int],
    embed_size: int,
    heads: int,
    num_layers: int,
    max_len: int,
    dropout: float = 0.1,
    bias: bool = False,
) -> dict[str, Any]:
    """The article "Transformer" (2023-06-05): GELU, no biases in the attention, scores over sqrt(d_model)."""
    return dict(
        **_seq2seq(vocab_size, embed_size, heads, num_layers, 4 * embed_size, max_len, dropout, None),
        activation_function="gelu",
        attention_bias=bias,
        attention_output_bias=bias,
        scale_embedding=False,
        initializer="torch",
    )


def paper_seq2seq(
    vocab_size: int | tuple[int, int], d_model: int, n_head: int, hidden_dim: int, num_layers: int, max_len: int = 5000
) -> dict[str, Any]:
    """The article "What is Transformer": ReLU, LayerNorm epsilon 1e-12, padding id 1, no dropout."""
    return dict(
        **_seq2seq(vocab_size, d_model, n_head, num_layers, hidden_dim, max_len, 0.0, 1),
        layer_norm_eps=1e-12,
        scale_embedding=False,
        initializer="torch",
    )


def tinystories_notes(
    vocab_size: int = 30522,
    seq_length: int = 128,
    embed_dim: int = 64,
    num_heads: int = 4,
    num_transformer_layers: int = 4,
    mask: bool = True,
    dropout_prob: float = 0.0,
) -> dict[str, Any]:
    """Notes on the basic Transformer: a LayerNorm on the embeddings and none at the end; without `mask` an encoder.

    Above 0, `dropout_prob` also acts on the attention's output, where the notes have no dropout.
    """
    return {
        "vocab_size": vocab_size,
        "hidden_size": embed_dim,
        "num_hidden_layers": num_transformer_layers,
        "num_attention_heads": num_heads,
        "max_position_embeddings": seq_length,
        "attention_bias": False,
        "lm_head_bias": True,
        "embedding_layernorm": True,
        "final_layernorm": False,
        "tie_word_embeddings": False,
        "embedding_dropout": dropout_prob,
        "hidden_dropout": dropout_prob,
        "attention_dropout": dropout_prob,
        "initializer": "torch",
        "is_causal": mask,
    }


def _seq2seq(vocab_size, d_model, heads, num_layers, inner, max_len, dropout, pad_id) -> dict:
    """The fields of all three encoder-decoders. None of the articles says which ids start and end a sentence."""
    source, target = vocab_size if isinstance(vocab_size, tuple | list) else (vocab_size, vocab_size)
    return {
        "vocab_size": source,
        "decoder_vocab_size": target,
        "share_encoder_decoder_embeddings": False,
        "tie_word_embeddings": False,
        "d_model": d_model,
        "encoder_layers": num_layers,
        "decoder_layers": num_layers,
        "encoder_attention_heads": heads,
        "decoder_attention_heads": heads,
        "encoder_ffn_dim": inner,
        "decoder_ffn_dim": inner,
        "max_position_embeddings": max_len,
        "dropout": dropout,
        "lm_head_bias": True,
        "pad_token_id": pad_id,
        "bos_token_id": None,
        "eos_token_id": None,
        "decoder_start_token_id": None,
    }


PRESETS: dict[str, tuple[type[Config], Callable[..., dict[str, Any]]]] = {
    "gpt-playground": (ScratchGPTConfig, gpt_playground),
    "annotated-seq2seq": (ScratchTransformerConfig, annotated_seq2seq),
    "gelu-seq2seq": (ScratchTransformerConfig, gelu_seq2seq),
    "paper-seq2seq": (ScratchTransformerConfig, paper_seq2seq),
    "tinystories-notes": (ScratchGPTConfig, tinystories_notes),
}

# what a training decides by its tokenizer and the length of its rows
TRAINING_DECIDES = ("vocab_size", "vocab_enc", "vocab_dec", "pad_id", "block_size", "seq_length")


def make_preset(name: str, **hyperparameters) -> Config:
    """The configuration of an article's model.

    Args:
        name: a key of `PRESETS`.
        hyperparameters: arguments of the article's own constructor.

    Raises:
        ValueError: an unknown name, or hyperparameters that the article does not have or requires and lacks.
        StrictDataclassError: hyperparameters that no model can be built from.
    """
    config_class, function = _find_preset(name)
    return config_class(**_call(function, hyperparameters))


def preset_fields(name: str, config_class: type[PreTrainedConfig], **hyperparameters) -> dict[str, Any]:
    """The fields that an article sets in the configuration of a model that is to be trained.

    Vocabulary, special tokens and the GPTs' positions are left out unless they are given: the tokenizer and
    `block_size` decide them.

    Args:
        name: a key of `PRESETS`.
        config_class: the class of the model that is to be trained.
        hyperparameters: arguments of the article's own constructor.

    Raises:
        ValueError: as `make_preset`, or an article whose model is of another class.
    """
    preset_class, function = _find_preset(name)
    if preset_class is not config_class:
        raise ValueError(f"The preset {name!r} is a {preset_class.__name__}; this trains a {config_class.__name__}.")
    undecided = {key: None for key in TRAINING_DECIDES if key in inspect.signature(function).parameters}
    fields = _call(function, undecided | hyperparameters)
    return {key: value for key, value in fields.items() if value is not None and not key.endswith("_token_id")}


def _find_preset(name: str) -> tuple[type[Config], Callable[..., dict[str, Any]]]:
    if name not in PRESETS:
        raise ValueError(f"There is no article {name!r}. Choose one of {', '.join(PRESETS)}.")
    return PRESETS[name]


def _call(function: Callable[..., dict[str, Any]], hyperparameters: dict[str, Any]) -> dict[str, Any]:
    try:
        return function(**hyperparameters)
    except TypeError as error:  # Python says which argument is unknown, missing or of a wrong type
        raise ValueError(str(error)) from error
