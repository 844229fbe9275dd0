# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Folders with models: look before loading, average, and keep runs apart."""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from transformers import AutoConfig, PreTrainedModel, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint


def load_checkpoint(model_class, path: str, **kwargs) -> PreTrainedModel:
    """`model_class.from_pretrained(path)`, with one clear error where a local folder cannot work.

    Args:
        model_class: an Auto class.
        path: a folder or a Hub id; kwargs go to `from_pretrained`.

    Raises:
        FileNotFoundError: a folder with no model in it.
        ValueError: weights cut short, or a model of another kind than `model_class` loads.
    """
    folder = Path(path)
    if path.startswith((".", "/", "~")) and not folder.is_dir():
        raise FileNotFoundError(f"{path!r} is not a folder.")
    if folder.is_dir():
        config_file = folder / "config.json"
        if not config_file.is_file():
            raise FileNotFoundError(f"{path!r} holds no model: there is no config.json in it.")
        try:
            json.loads(config_file.read_text(encoding="utf-8"))
        except json.JSONDecodeError as error:
            raise ValueError(f"{config_file} is not whole: {error}.") from error
        for weights in folder.glob("*.safetensors"):
            try:
                safe_open(weights, framework="pt")
            except SafetensorError as error:
                raise ValueError(f"{weights} is cut short or damaged ({error}). Copy or train it again.") from error
    config = AutoConfig.from_pretrained(path, cache_dir=kwargs.get("cache_dir"))
    if type(config) not in model_class._model_mapping:
        raise ValueError(
            f"{path!r} holds a {config.model_type!r} model, which {model_class.__name__} does not load. Translation "
            "needs an encoder-decoder (scratch_transformer), language modelling a GPT (scratch_gpt)."
        )
    return model_class.from_pretrained(path, **kwargs)


def load_first_model(model_class, model_args, config_overrides: dict) -> PreTrainedModel | None:
    """The model that a training goes on from, `model_name_or_path`, with some fields of its config changed.

    Args:
        model_class: an Auto class.
        model_args: a script's `ModelArguments`.
        config_overrides: fields of the model's config.

    Returns:
        The model, or None where a new one is to be made.

    Raises:
        FileNotFoundError, ValueError: as `load_checkpoint`.
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


def check_output_dir(output_dir: str, resume_from_checkpoint: str | None) -> str | None:
    """The checkpoint to resume from, or None for a new run.

    Args:
        output_dir: the folder of the run.
        resume_from_checkpoint: a checkpoint's folder; "last" or "true" for the last one of `output_dir`; None for a
            new run, which `output_dir` then has to be free for.

    Raises:
        ValueError: `output_dir` holds another run, or there is nothing to resume.
        FileNotFoundError: the checkpoint is not there.
    """
    if resume_from_checkpoint is None or str(resume_from_checkpoint).lower() == "false":
        if os.path.isdir(output_dir) and os.listdir(output_dir):
            raise ValueError(
                f"`output_dir` ({output_dir}) is not empty: another run may be in it. Choose another folder, or go on "
                "with that run by `--resume_from_checkpoint last`."
            )
        return None
    if str(resume_from_checkpoint).lower() in ("last", "true"):
        checkpoint = get_last_checkpoint(output_dir) if os.path.isdir(output_dir) else None
        if checkpoint is None:
            raise ValueError(f"There is no checkpoint in `output_dir` ({output_dir}) to resume from.")
        return checkpoint
    if not os.path.isdir(resume_from_checkpoint):
        raise FileNotFoundError(
            f"`resume_from_checkpoint` is {resume_from_checkpoint!r}, but there is no such folder."
        )
    return resume_from_checkpoint


@contextmanager
def new_run(args: TrainingArguments) -> Iterator[str | None]:
    """Prepare a run in `args.output_dir`: gives the checkpoint to resume from, or None, on the main process.

    Where the preparation fails, what it has written is removed, so that the mended command finds the folder free.
    """
    if not args.should_save:
        yield None
        return
    checkpoint = check_output_dir(args.output_dir, args.resume_from_checkpoint)
    try:
        yield checkpoint
    except BaseException:
        if checkpoint is None:
            shutil.rmtree(args.output_dir, ignore_errors=True)  # it was empty or not there
        raise


def average_checkpoints(folders: list[str]) -> dict[str, torch.Tensor]:
    """The mean of the weights in `model.safetensors` of each folder (Vaswani et al. 2017, section 6.1).

    Raises:
        ValueError: no folder, or folders with other weights than the first one's.
    """
    if not folders:
        raise ValueError("There are no checkpoints to average.")
    mean: dict[str, torch.Tensor] = {}
    for folder in folders:
        state = load_file(os.path.join(folder, "model.safetensors"))
        if mean and state.keys() != mean.keys():
            different = ", ".join(sorted(state.keys() ^ mean.keys())[:5])
            raise ValueError(f"{folder} and {folders[0]} do not hold the same weights; they differ in {different}.")
        for name, tensor in state.items():
            # summed in float64: the mean of equal checkpoints is then each of them, bit for bit
            mean[name] = mean.get(name, 0) + tensor.double()
    return {name: (total / len(folders)).to(state[name].dtype) for name, total in mean.items()}
