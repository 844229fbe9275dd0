# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""The model that a training starts with: loaded, or new."""

from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..data.texts import end_id
from ..loading import check_fits, load_checkpoint
from ..tokenization import target_size
from .arguments import ModelArguments
from .checkpoints import check_same_weights


def choose_model(
    model_class: type[PreTrainedModel],
    auto_class: Any,
    model_args: ModelArguments,
    config_overrides: dict[str, Any],
    tokenizer: PreTrainedTokenizerBase,
    checkpoint: str | None,
    **fields: Any,
) -> PreTrainedModel:
    """Load the model that a training starts from, `model_name_or_path`, or make a new one.

    Args:
        model_class: the class of a new model.
        auto_class: the Auto class that loads one.
        model_args: the script's arguments.
        config_overrides: fields of the config that the user has set.
        tokenizer: what the model is trained with.
        checkpoint: the folder that the run is resumed from, or None.
        fields: other fields of a new model's config.

    Raises:
        UserError: see `load_checkpoint`; or the checkpoint holds weights of another model.
        ValueError: the tokenizer has more tokens than the model has embeddings, or a field has a wrong value.
    """
    if model_args.model_name_or_path is None:
        model = make_model(model_class, model_args, config_overrides, tokenizer, **fields)
    else:
        model = load_checkpoint(
            auto_class,
            model_args.model_name_or_path,
            cache_dir=model_args.cache_dir,
            attn_implementation=model_args.attn_implementation,
            **config_overrides,
        )
    check_fits(tokenizer, model.config)
    if checkpoint is not None:
        check_same_weights(model, checkpoint)
    return model


def make_model(
    model_class: type[PreTrainedModel],
    model_args: ModelArguments,
    config_overrides: dict[str, Any],
    tokenizer: PreTrainedTokenizerBase,
    **fields: Any,
) -> PreTrainedModel:
    """Make a model with random weights and the tokenizer's vocabulary.

    Args:
        model_class: the model's class.
        model_args: the script's arguments.
        config_overrides: fields of the config that the user has set; they replace all others.
        tokenizer: gives the config its sizes of vocabulary and its special tokens.
        fields: other fields of the config.

    Raises:
        ValueError: the tokenizer has no token that ends a text, or a field has a wrong value.
    """
    special = {name: getattr(tokenizer, name) for name in ("pad_token_id", "bos_token_id")}
    special["eos_token_id"] = end_id(tokenizer)
    sizes = {"vocab_size": len(tokenizer)}
    if hasattr(tokenizer, "target_tokenizer"):
        sizes |= {"decoder_vocab_size": target_size(tokenizer), "share_encoder_decoder_embeddings": False}
    fields = {**sizes, **special, **fields, **config_overrides}
    config_class: Any = model_class.config_class  # None only for a class without a configuration
    return model_class(config_class(**fields, attn_implementation=model_args.attn_implementation))
