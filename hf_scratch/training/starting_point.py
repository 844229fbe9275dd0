# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""The tokenizer and the model that a training starts with: loaded, or new."""

from collections.abc import Iterable
from itertools import chain
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..data.texts import end_id
from ..loading import check_fits, check_same_vocabulary, load_checkpoint, load_tokenizer
from ..tokenization import target_size, train_tokenizer
from .arguments import ModelArguments
from .checkpoints import check_same_weights
from .runs import on_main_process


def choose_tokenizer(
    model_args: ModelArguments,
    checkpoint: str | None,
    texts: Iterable[str],
    default_kind: str,
    model_max_length: int,
    add_eos: bool,
    target_texts: Iterable[str] | None = None,
) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a training, or train a new one on `texts`; on the main process, for all processes.

    The first of these that is given is loaded: the checkpoint's tokenizer, `tokenizer_name`, the tokenizer of
    `model_name_or_path`.

    Args:
        model_args: the script's arguments.
        checkpoint: the folder that the run is resumed from, or None.
        texts: what a new tokenizer is trained on; read only then.
        default_kind: the kind of a new tokenizer, if `tokenizer_kind` is not given.
        model_max_length: the longest input in tokens, saved with a new tokenizer.
        add_eos: see `train_tokenizer`.
        target_texts: for translation, the target language's texts; `texts` are then the source language's. They make a
            vocabulary of their own, or are joined to `texts` for a kind with one vocabulary.

    Raises:
        UserError: see `load_tokenizer`.
        ValueError: `tokenizer_name` does not fit the model (see `check_same_vocabulary`), or a new tokenizer cannot be
            trained (see `train_tokenizer`).
    """
    name, model = model_args.tokenizer_name, model_args.model_name_or_path

    def choose() -> PreTrainedTokenizerBase:
        path = checkpoint or name or model
        if path is None:
            kind = model_args.tokenizer_kind or default_kind
            size, frequency, targets = model_args.vocab_size, model_args.min_frequency, target_texts
            sources = texts
            if targets is not None and kind not in ("separate", "word"):
                sources, targets = chain(texts, targets), None
            return train_tokenizer(
                sources, kind, size, model_max_length, add_eos, target_texts=targets, min_frequency=frequency
            )
        tokenizer = load_tokenizer(path)
        if path == name and model is not None:
            check_same_vocabulary(tokenizer, model, name)
        return tokenizer

    return on_main_process(choose)


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
