# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Load models and tokenizers; one clear error says which file of a folder is missing, damaged or another model's.

Loading goes in one order: find the folder, check its files, then hand it to transformers.
"""

import json
import logging
import os
import shlex
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from transformers import AutoConfig, AutoTokenizer, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from .errors import UserError, describe
from .manifest import MANIFEST, DamagedFolderError, check_manifest
from .tokenization import target_size

logger = logging.getLogger(__name__)

# transformers ignores a generation_config.json that it cannot read
JSON_FILES = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json",
              "target_tokenizer.json", "special_tokens_map.json", "added_tokens.json", "vocab.json")  # fmt: skip
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


def find_model(path: str | Path) -> str:
    """Find a model's folder, as `find_folder` does, and check its files.

    A folder must hold a config and more than shards, and its JSON files and safetensors must be whole. If it has a
    manifest, all files in the manifest must be what was saved.

    Returns:
        The folder's path, or the Hub id unchanged.

    Raises:
        UserError: a file is missing, cut short or not what was saved; or see `find_folder`.
    """
    folder = find_folder(path)
    if folder is None:
        return str(path)
    if not Path(folder, "config.json").is_file():
        raise UserError(f"{folder!r} holds no model: there is no config.json in it.")
    check_json_files(folder)
    if Path(folder, SHARDS).is_dir() and not any(Path(folder).glob("*.safetensors")):
        raise UserError(
            f"{folder!r} holds its weights in shards. Join them first:\n"
            f"accelerate merge-weights {shlex.quote(str(Path(folder, SHARDS)))} {shlex.quote(folder)}"
        )
    for weights in Path(folder).glob("*.safetensors"):
        try:
            with safe_open(weights, framework="pt"):
                pass
        except SafetensorError as error:
            raise UserError(f"{weights} is cut short or damaged ({error}). Copy or train it again.") from error
    try:
        check_manifest(folder)
    except DamagedFolderError as error:
        raise UserError(
            f"{error}. Copy the folder again; or, if you changed it on purpose, remove {Path(folder, MANIFEST)}."
        ) from error
    return folder


def load_checkpoint(model_class, path: str | Path, **kwargs) -> PreTrainedModel:
    """Load a model by `model_class.from_pretrained(path)`, after the checks of `find_model`.

    Args:
        model_class: an Auto class.
        path: a folder or a Hub id.
        kwargs: passed to `from_pretrained`.

    Raises:
        UserError: there is no such folder and the Hub gives no such model, `model_class` does not load this kind of
            model, the weights have other shapes than the config says, or see `find_model`.
    """
    found = find_model(path)
    try:
        config = AutoConfig.from_pretrained(found, cache_dir=kwargs.get("cache_dir"))
    except OSError as error:
        if os.path.isdir(found):
            raise
        reason = describe(error).partition(". ")[0]
        raise UserError(f"{found!r} is no folder here, and could not be had from the Hub: {reason}.") from error
    if type(config) not in model_class._model_mapping:
        raise UserError(
            f"{found!r} holds a {config.model_type!r} model, which {model_class.__name__} does not load. Translation "
            "needs an encoder-decoder (scratch_transformer), language modelling a GPT (scratch_gpt)."
        )
    if "attn_implementation" not in kwargs:
        refuse_hub_attention(config)
    try:
        return model_class.from_pretrained(found, **kwargs)
    except RuntimeError as error:
        if "ignore_mismatched_sizes" not in str(error):
            raise
        raise UserError(
            f"The weights in {found!r} have other shapes than its config, or `config_overrides`, says: see the report "
            "above. Sizes can only be chosen for a new model."
        ) from error


def refuse_hub_attention(config: PreTrainedConfig) -> None:
    """Raise UserError if a loaded config names an attention function on the Hub, whose code would be run."""
    if "/" in str(config._attn_implementation):
        raise UserError(
            f"The config in {config.name_or_path!r} names an attention function on the Hub, "
            f"{str(config._attn_implementation)!r}. Remove it: its code would be run."
        )


def load_tokenizer(path: str | Path, **kwargs) -> PreTrainedTokenizerBase:
    """Load a tokenizer by `AutoTokenizer.from_pretrained(path)`, after checks of its folder.

    Args:
        path: a folder or a Hub id.
        kwargs: passed to `from_pretrained`.

    Raises:
        UserError: there is no such folder, it holds no tokenizer, a JSON file in it is not whole, or the tokenizer in
            it cannot be loaded.
        OSError: the Hub has no such tokenizer, or cannot be reached.
    """
    folder = find_folder(path)
    if folder is not None:
        check_json_files(folder)
        if not any(Path(folder, name).is_file() for name in TOKENIZER_FILES):
            raise UserError(f"{folder!r} holds no tokenizer: there is no tokenizer.json in it.")
    found = folder or str(path)
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(found, **kwargs)  # annotated as None without tokenizers
        return tokenizer
    except (ValueError, OSError, ImportError):
        raise
    except Exception as error:  # tokenizers raises Exception itself, transformers whatever a wrong file leads to
        raise UserError(f"The tokenizer in {found!r} cannot be loaded ({type(error).__name__}: {error}).") from error


def check_json_files(folder: str | Path) -> None:
    """Raise UserError for a JSON file of a model or its tokenizer that does not hold a JSON object."""
    for name in JSON_FILES:
        file = Path(folder, name)
        if not file.is_file():
            continue
        try:
            if not isinstance(json.loads(file.read_text(encoding="utf-8")), dict):
                raise ValueError("it is no JSON object")
        except (ValueError, RecursionError) as error:
            raise UserError(f"{file} is not whole: {error}. Copy or make it again.") from error


def check_fits(tokenizer: PreTrainedTokenizerBase, config: PreTrainedConfig) -> None:
    """Check that a model has an embedding for each id of a tokenizer.

    A warning is logged if a tenth of the embeddings or more belong to no token.

    Args:
        tokenizer: the tokenizer.
        config: the model's config.

    Raises:
        ValueError: the tokenizer has more tokens than the model's `vocab_size` or `decoder_vocab_size`.
    """
    sizes = {"vocab_size": len(tokenizer)}
    if getattr(config, "decoder_vocab_size", None):
        sizes["decoder_vocab_size"] = target_size(tokenizer)
    # the tighter of the two
    name = min(sizes, key=lambda name: getattr(config, name) - sizes[name])
    tokens, vocab_size = sizes[name], getattr(config, name)
    if tokens > vocab_size:
        raise ValueError(
            f"The tokenizer has {tokens} tokens, but the model's `{name}` is {vocab_size}. Set "
            f"`{name}` to at least that, call `model.resize_token_embeddings(len(tokenizer))`, or use the model's "
            "own tokenizer."
        )
    if tokens <= 0.9 * vocab_size:
        logger.warning(
            f"The tokenizer has {tokens} tokens, but the model's `{name}` is {vocab_size}: is it the "
            "tokenizer of another model?"
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
    moved = [token for token, i in own.items() if i in tokens and tokens[i] != token]
    if moved:
        example = moved[0]
        raise ValueError(
            f"`tokenizer_name` ({tokenizer_path}) has another vocabulary than the model's own: {len(moved)} of "
            f"{len(own)} ids stand for other tokens, e.g. {own[example]} for {tokens[own[example]]!r} in place of "
            f"{example!r}. Leave `tokenizer_name` out, or add tokens to the model's own tokenizer."
        )
