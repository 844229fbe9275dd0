# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Load models and tokenizers from folders, with one clear error where a file is missing, damaged or another's."""

import json
import logging
import os
from pathlib import Path

from safetensors import SafetensorError, safe_open
from transformers import AutoConfig, AutoTokenizer, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from .errors import UserError
from .manifest import MANIFEST, DamagedFolderError, check_manifest

logger = logging.getLogger(__name__)


def load_checkpoint(model_class, path: str, **kwargs) -> PreTrainedModel:
    """`model_class.from_pretrained(path)`, with one clear error where a local folder cannot work.

    Args:
        model_class: an Auto class.
        path: a folder or a Hub id.
        kwargs: go to `from_pretrained`.

    Raises:
        UserError: a folder with no model in it; a file that is missing, cut short or not what was saved; a model of
            another kind than `model_class` loads.
    """
    folder = Path(path).expanduser()
    if path.startswith((".", "/", "~")) and not folder.is_dir():
        raise UserError(f"{path!r} is not a folder.")
    if folder.is_dir():
        path = str(folder)
        check_model_folder(folder)
    config = AutoConfig.from_pretrained(path, cache_dir=kwargs.get("cache_dir"))
    if type(config) not in model_class._model_mapping:
        raise UserError(
            f"{path!r} holds a {config.model_type!r} model, which {model_class.__name__} does not load. Translation "
            "needs an encoder-decoder (scratch_transformer), language modelling a GPT (scratch_gpt)."
        )
    try:
        return model_class.from_pretrained(path, **kwargs)
    except RuntimeError as error:
        if "ignore_mismatched_sizes" not in str(error):
            raise
        raise UserError(
            f"The weights in {path!r} have other shapes than its config, or `config_overrides`, says: see the report "
            "above. Sizes can only be chosen for a new model."
        ) from error


def check_model_folder(folder: Path) -> None:
    """Raise UserError unless `folder` holds a config, generation config and weights that can be read.

    Where the folder has a manifest, all files that it lists must be what was saved.
    """
    if not (folder / "config.json").is_file():
        raise UserError(f"{str(folder)!r} holds no model: there is no config.json in it.")
    check_json_files(folder)
    for weights in folder.glob("*.safetensors"):
        try:
            with safe_open(weights, framework="pt"):
                pass
        except SafetensorError as error:
            raise UserError(f"{weights} is cut short or damaged ({error}). Copy or train it again.") from error
    try:
        check_manifest(folder)
    except DamagedFolderError as error:
        raise UserError(
            f"{error}. Copy the folder again; or, if you changed it on purpose, remove {folder / MANIFEST}."
        ) from error


def load_first_model(model_class, model_args, config_overrides: dict) -> PreTrainedModel | None:
    """The model that a training goes on from, `model_name_or_path`, with some fields of its config changed.

    Args:
        model_class: an Auto class.
        model_args: a script's `ModelArguments`.
        config_overrides: fields of the model's config.

    Returns:
        The model, or None where a new one is to be made.

    Raises:
        UserError: as `load_checkpoint`.
    """
    if model_args.model_name_or_path is None:
        return None
    return load_checkpoint(
        model_class,
        model_args.model_name_or_path,
        cache_dir=model_args.cache_dir,
        attn_implementation=model_args.attn_implementation,
        **config_overrides,
    )


# transformers ignores a generation_config.json that it cannot read
JSON_FILES = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json",
              "special_tokens_map.json", "added_tokens.json", "vocab.json")  # fmt: skip
TOKENIZER_FILES = ("tokenizer.json", "vocab.json", "vocab.txt", "source.spm", "tokenizer.model", "spiece.model")


def load_tokenizer(path: str | Path, **kwargs) -> PreTrainedTokenizerBase:
    """`AutoTokenizer.from_pretrained(path)`, with one clear error where a local folder cannot work.

    Args:
        path: a folder or a Hub id; kwargs go to `from_pretrained`.

    Raises:
        FileNotFoundError: a folder that is not there, or without a tokenizer.
        ValueError: a file of the tokenizer, or `generation_config.json` beside it, that is not whole.
    """
    path = os.path.expanduser(path)
    folder = Path(path)
    if path.startswith((".", "/", "~")) and not folder.is_dir():
        raise FileNotFoundError(f"{path!r} is not a folder.")
    if folder.is_dir():
        check_json_files(path)
        if not any((folder / name).is_file() for name in TOKENIZER_FILES):
            raise FileNotFoundError(f"{path!r} holds no tokenizer: there is no tokenizer.json in it.")
    try:
        return AutoTokenizer.from_pretrained(path, **kwargs)
    except (ValueError, OSError, ImportError):
        raise
    except Exception as error:  # tokenizers raises Exception itself, transformers whatever a wrong file leads to
        raise ValueError(f"The tokenizer in {path!r} cannot be loaded ({type(error).__name__}: {error}).") from error


def load_first_tokenizer(model_args, checkpoint: str | None) -> PreTrainedTokenizerBase | None:
    """The tokenizer that a training goes on with: the checkpoint's, `tokenizer_name`, or the first model's.

    Args:
        model_args: a script's `ModelArguments`.
        checkpoint: the folder that the run is resumed from.

    Returns:
        The tokenizer, or None where a new one is to be trained.

    Raises:
        ValueError, FileNotFoundError: as `load_tokenizer` and `check_same_vocabulary`.
    """
    first = model_args.model_name_or_path
    if checkpoint is None and first is not None and model_args.tokenizer_name is not None:
        tokenizer = load_tokenizer(model_args.tokenizer_name)
        check_same_vocabulary(tokenizer, first, model_args.tokenizer_name)
        return tokenizer
    path = checkpoint or model_args.tokenizer_name or first
    return None if path is None else load_tokenizer(path)


def check_json_files(path: str | Path) -> None:
    """Raise UserError for a JSON file of a model or its tokenizer that holds no JSON object.

    Args:
        path: a model's folder; anything else passes.
    """
    for name in JSON_FILES:
        file = Path(path, name)
        if not file.is_file():
            continue
        try:
            if not isinstance(json.loads(file.read_text(encoding="utf-8")), dict):
                raise ValueError("it is no JSON object")
        except (ValueError, RecursionError) as error:
            raise UserError(f"{file} is not whole: {error}. Copy or make it again.") from error


def check_fits(tokenizer, config: PreTrainedConfig) -> None:
    """Raise ValueError when the tokenizer has ids that the model has no embedding for; warn when a tenth of the
    embeddings or more belongs to no token.
    """
    vocab_size = min(config.vocab_size, getattr(config, "decoder_vocab_size", None) or config.vocab_size)
    if len(tokenizer) > vocab_size:
        raise ValueError(
            f"The tokenizer has {len(tokenizer)} tokens, but the model's `vocab_size` is {vocab_size}. Set "
            "`vocab_size` to at least that, call `model.resize_token_embeddings(len(tokenizer))`, or take the model's "
            "own tokenizer."
        )
    if len(tokenizer) <= 0.9 * vocab_size:
        logger.warning(
            f"The tokenizer has {len(tokenizer)} tokens, but the model's `vocab_size` is {vocab_size}: is it the "
            "tokenizer of another model?"
        )


def check_same_vocabulary(tokenizer, model_path: str, tokenizer_path: str) -> None:
    """Raise ValueError when a model is to go on with a tokenizer that gives its embeddings to other tokens.

    A tokenizer that has the tokens of the model's own and more passes, and so does a model that has none of its own.

    Args:
        tokenizer: the one to use, from `tokenizer_path`.
        model_path: the model's folder or Hub id.
    """
    try:
        own = load_tokenizer(model_path).get_vocab()
    except (OSError, ValueError, ImportError):
        return
    vocabulary = tokenizer.get_vocab()
    tokens = {i: token for token, i in vocabulary.items()}
    moved = [token for token, i in own.items() if i in tokens and tokens[i] != token]
    if moved:
        example = moved[0]
        raise ValueError(
            f"`tokenizer_name` ({tokenizer_path}) has another vocabulary than the model's own: {len(moved)} of "
            f"{len(own)} ids stand for other tokens, e.g. {own[example]} for {tokens[own[example]]!r} in place of "
            f"{example!r}. Leave `tokenizer_name` out, or add tokens to the model's own tokenizer."
        )
