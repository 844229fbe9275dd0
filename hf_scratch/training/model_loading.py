# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""The models of a training: the one it starts with, loaded or new, and the teachers."""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase, TrainingArguments

from ..data.sampling import round_up
from ..data.texts import end_id
from ..loading import check_fits, load_checkpoint, load_tokenizer
from ..models.configuration_scratch_gpt import ScratchGPTConfig
from ..tokenization import target_size
from .arguments import ModelArguments


def choose_model(
    model_class: type[PreTrainedModel],
    auto_class: Any,
    model_args: ModelArguments,
    config_overrides: dict[str, Any],
    tokenizer: PreTrainedTokenizerBase,
    **fields: Any,
) -> PreTrainedModel:
    """Load the model that a training starts from, `model_name_or_path`, or make one with random weights.

    A model that is stored in half precision is loaded in float32, since its weights could not follow small updates.
    `config_overrides` may choose another dtype.

    Args:
        model_class: the class of a new model.
        auto_class: the Auto class that loads a model.
        model_args: the script's arguments.
        config_overrides: fields of the config that the user has set; they replace all others.
        tokenizer: gives a new config its sizes of vocabulary and its special tokens.
        fields: other fields of a new config.

    Raises:
        UserError: see `load_checkpoint`.
        ValueError: the tokenizer has more tokens than the model has embeddings, or none that ends a text, or a field
            has a wrong value.
    """
    if model_args.model_name_or_path is None:
        special = {name: getattr(tokenizer, name) for name in ("pad_token_id", "bos_token_id")}
        special["eos_token_id"] = end_id(tokenizer)
        multiple = model_args.pad_vocab_to_multiple_of
        sizes = {"vocab_size": round_up(len(tokenizer), multiple)}
        if hasattr(tokenizer, "target_tokenizer"):
            sizes["decoder_vocab_size"] = round_up(target_size(tokenizer), multiple)
            sizes["share_encoder_decoder_embeddings"] = False
        fields = {**sizes, **special, **fields, **config_overrides}
        config_class: Any = model_class.config_class  # None only for a class without a configuration
        config = config_class(**fields, attn_implementation=model_args.attn_implementation)
        model = model_class(config).to(config.dtype or torch.float32)
    else:
        model = load_checkpoint(
            auto_class,
            model_args.model_name_or_path,
            cache_dir=model_args.cache_dir,
            attn_implementation=model_args.attn_implementation,
            **{"dtype": "float32", **config_overrides},
        )
    check_fits(tokenizer, model.config)
    return model


def choose_packed_attention(config: PreTrainedConfig, args: TrainingArguments) -> str | None:
    """Choose the attention function for rows of packed texts that do not see each other; None for the model's own.

    "flex_attention" skips what is hidden, where "sdpa" reads a mask of all pairs of tokens. It is for a GPT of ours on
    a GPU, in half precision, with heads of a width that its kernel knows, and without dropout on attention weights.
    """
    is_able = isinstance(config, ScratchGPTConfig) and config.attention_dropout == 0 and 16 <= config.head_dim <= 128
    is_half = args.bf16 or args.fp16
    return "flex_attention" if args.device.type == "cuda" and is_half and is_able else None


def load_teachers(
    auto_class: Any,
    paths: Sequence[str],
    model: PreTrainedModel,
    model_args: ModelArguments,
    tokenizer: PreTrainedTokenizerBase,
) -> list[PreTrainedModel]:
    """Load the models that a training learns from, in float32.

    Raises:
        UserError: see `load_checkpoint` and `load_tokenizer`.
        ValueError: a teacher has another vocabulary, another first token of the decoder, or another attention: one
            that sees later tokens has nothing to predict.
    """
    teachers = []
    for path in paths:
        teacher = load_checkpoint(auto_class, path, cache_dir=model_args.cache_dir, dtype=torch.float32)
        own = load_tokenizer(path, cache_dir=model_args.cache_dir)
        for field, default in (("is_causal", True), ("decoder_start_token_id", None)):
            theirs, ours = (getattr(each.config, field, default) for each in (teacher, model))
            if theirs != ours:
                raise ValueError(f"The teacher {path} has `{field}` {theirs}, and the model that learns has {ours}.")
        if _vocabularies(own) != _vocabularies(tokenizer):
            raise ValueError(
                f"The teacher {path} has another vocabulary than this training. Set `tokenizer_name` to its tokenizer."
            )
        teachers.append(teacher)
    return teachers


def _vocabularies(tokenizer: PreTrainedTokenizerBase) -> list[dict[str, int]]:
    return [each.get_vocab() for each in (tokenizer, getattr(tokenizer, "target_tokenizer", tokenizer))]
