# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Folders on disk: find them, and load models and tokenizers from them, after checks of what transformers would pass
over: files that are not whole, weights in shards, the vocabulary of another model.
"""

import json
import os
import shlex
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    TrainingArguments,
)

from .errors import UserError, describe
from .manifest import MANIFEST, DamagedFolderError, check_manifest
from .tokenization import target_size

SHARDS = "pytorch_model_fsdp_0"  # the folder inside a checkpoint that holds FSDP2's shards of the weights
TOKENIZER_FILES = ("tokenizer.json", "vocab.json", "vocab.txt", "source.spm", "tokenizer.model", "spiece.model")


def find_folder(path: str | Path, argument: str | None = None) -> str | None:
    """Tell a local folder from a Hub id.

    Args:
        path: a folder, in which "~" stands for the home folder, or a Hub id.
        argument: the argument that gave the path, for the error.

    Returns:
        The folder's path, or None for a Hub id.

    Raises:
        UserError: there is no such folder, and the path cannot be a Hub id, since it begins with ".", "/" or "~".
    """
    folder = os.path.expanduser(path)
    if os.path.isdir(folder):
        return folder
    if str(path).startswith((".", "/", "~")):
        given = f"`{argument}` is {str(path)!r}, which" if argument else repr(str(path))
        raise UserError(f"{given} is not a folder.")
    return None


def require_output_dir(args: TrainingArguments) -> str:
    """The run's folder; ValueError if it is not given."""
    if not args.output_dir:
        raise ValueError("`output_dir` must be given.")
    return args.output_dir


def public_name(name: str) -> str:
    """A Hub id as it is; of a path only the last part."""
    return os.path.basename(os.path.normpath(name)) if os.path.exists(name) else name


def hide_folders(word: str) -> str:
    """A word of a command line, with paths outside the working folder cut to their last part."""
    flag, sign, path = word.rpartition("=")
    if os.path.isabs(path) or path.startswith(os.pardir):
        path = os.path.basename(os.path.normpath(path))
    return flag + sign + path


def find_model(path: str | Path) -> str:
    """Find a model's folder, as `find_folder` does, and check its files.

    Returns:
        The folder's path, or the Hub id unchanged.

    Raises:
        UserError: the folder holds shards alone; or see `find_folder` and `check_files`.
    """
    folder = find_folder(path)
    if folder is None:
        return str(path)
    check_files(folder)
    if Path(folder, SHARDS).is_dir() and not any(Path(folder).glob("*.safetensors")):
        raise UserError(
            f"{folder!r} holds its weights in shards. Join them first:\n"
            f"accelerate merge-weights {shlex.quote(str(Path(folder, SHARDS)))} {shlex.quote(folder)}"
        )
    return folder


def check_files(folder: str) -> None:
    """Check that a folder's JSON files are whole: transformers ignores a generation_config.json that is not.

    If the folder has a manifest, all files in it must be what was saved.

    Raises:
        UserError: naming the file.
    """
    for file in sorted(Path(folder).glob("*.json")):
        try:
            json.loads(file.read_text(encoding="utf-8"))
        except ValueError as error:
            raise UserError(f"{file} is not whole: {error}. Copy or make it again.") from error
    try:
        check_manifest(folder)
    except DamagedFolderError as error:
        raise UserError(
            f"{error}. Copy the folder again; or, if you changed it on purpose, remove {Path(folder, MANIFEST)}."
        ) from error


def auto_class_of(config: PreTrainedConfig) -> Any:
    """The Auto class that loads a language model of this configuration with its head."""
    if config.is_encoder_decoder:
        return AutoModelForSeq2SeqLM
    return AutoModelForCausalLM if getattr(config, "is_causal", True) else AutoModelForMaskedLM


def load_checkpoint(model_class, path: str | Path, **kwargs) -> PreTrainedModel:
    """Load a model by `model_class.from_pretrained(path)`, after the checks of `find_model`.

    Args:
        model_class: an Auto class.
        path: a folder or a Hub id.
        kwargs: passed to `from_pretrained`.

    Raises:
        UserError: the weights are damaged, have other shapes than the config says, or lack some, which transformers
            would leave random (only a head may be missing, over a saved base model); the model is of another kind; or
            see `find_model`.
        OSError, ValueError: there is no such model, or its config is wrong.
    """
    found = find_model(path)
    try:
        model, info = model_class.from_pretrained(found, output_loading_info=True, **kwargs)
    except (RuntimeError, SafetensorError) as error:  # shapes that `config_overrides` has changed; a cut file
        raise UserError(f"The weights in {found!r} cannot be loaded: {describe(error)}") from error
    except ValueError as error:
        if "Unrecognized configuration class" not in str(error):
            raise
        kind = AutoConfig.from_pretrained(found, cache_dir=kwargs.get("cache_dir")).model_type
        name = model_class.__name__
        raise UserError(f"Give another model: {found!r} is a {kind}, which {name} does not load.") from error
    missing = sorted(info["missing_keys"])
    if type(model).__name__ not in (model.config.architectures or []):  # saved without this head, which is new then
        missing = [name for name in missing if name.startswith(f"{model.base_model_prefix}.")]
    if missing:
        raise UserError(
            f"{found!r} lacks {len(missing)} weights of a {type(model).__name__}, such as {', '.join(missing[:2])}."
        )
    return model


def load_tokenizer(path: str | Path, **kwargs) -> PreTrainedTokenizerBase:
    """Load a tokenizer by `AutoTokenizer.from_pretrained(path)`, after checks of its folder.

    Args:
        path: a folder or a Hub id.
        kwargs: passed to `from_pretrained`.

    Raises:
        UserError: there is no such folder, it holds no tokenizer, or a file in it is damaged.
        OSError: the Hub has no such tokenizer, or cannot be reached.
    """
    folder = find_folder(path)
    if folder is not None:
        check_files(folder)
        if not any(Path(folder, name).is_file() for name in TOKENIZER_FILES):  # transformers may make an empty one
            raise UserError(f"{folder!r} holds no tokenizer: there is no tokenizer.json in it.")
    tokenizer: Any = AutoTokenizer.from_pretrained(folder or str(path), **kwargs)  # annotated as possibly None
    return tokenizer


def check_fits(tokenizer: PreTrainedTokenizerBase, config: PreTrainedConfig) -> None:
    """Raise ValueError if a tokenizer has more tokens than a model's `vocab_size` or `decoder_vocab_size`."""
    for name, tokens in {"vocab_size": len(tokenizer), "decoder_vocab_size": target_size(tokenizer)}.items():
        if tokens > (getattr(config, name, None) or tokens):
            raise ValueError(
                f"The tokenizer has {tokens} tokens, but the model's `{name}` is {getattr(config, name)}. Set it to "
                "at least that, call `model.resize_token_embeddings(len(tokenizer))`, or use its own tokenizer."
            )


def check_same_vocabulary(tokenizer: PreTrainedTokenizerBase, model_path: str, tokenizer_path: str) -> None:
    """Check that a tokenizer gives each id of the model's own tokenizer to the same token.

    The tokenizer may have more tokens. A model without a tokenizer of its own passes.

    Args:
        tokenizer: the tokenizer to train the model with.
        model_path: the model's folder or Hub id.
        tokenizer_path: the tokenizer's folder or Hub id, for the error.

    Raises:
        ValueError: an id stands for another token.
    """
    try:
        own = load_tokenizer(model_path).get_vocab()
    except (OSError, ValueError, ImportError):
        return
    tokens = {i: token for token, i in tokenizer.get_vocab().items()}
    moved = [token for token, i in own.items() if tokens.get(i, token) != token]
    if moved:
        raise ValueError(
            f"`tokenizer_name` ({tokenizer_path}) has another vocabulary than the model's own: {len(moved)} of "
            f"{len(own)} ids stand for other tokens, e.g. {own[moved[0]]} for {tokens[own[moved[0]]]!r} instead of "
            f"{moved[0]!r}. Leave `tokenizer_name` out, or add tokens to the model's own tokenizer."
        )
