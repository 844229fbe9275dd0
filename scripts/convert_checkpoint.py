#!/usr/bin/env python
# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Convert a checkpoint of an article, nanoGPT, GPT-2, Marian or Pegasus to one of our models, or one of our models to
GPT-2, Marian or Pegasus, or to a file of another engine.

python scripts/convert_checkpoint.py --source gpt-playground --input model.pt --output_dir OUT \\
    --hyperparameters n_layer=6,n_head=8,embedding_dim=512,vocab_size=65,block_size=256
python scripts/convert_checkpoint.py --source nanogpt --input out/ckpt.pt --tokenizer gpt2 --output_dir OUT
python scripts/convert_checkpoint.py --source marian --input Helsinki-NLP/opus-mt-en-de --output_dir OUT
python scripts/convert_checkpoint.py --target pegasus --input runs/multi30k_tiny --output_dir OUT
python scripts/convert_checkpoint.py --target ctranslate2 --input runs/tiny --output_dir OUT --quantization int8
python scripts/convert_checkpoint.py --target gguf --input runs/tinystories_small --output_dir OUT
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hf_scratch_launcher  # noqa: F401  before torch, whose OpenMP it sets
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, PreTrainedModel, PreTrainedTokenizerBase

from hf_scratch import convert
from hf_scratch.convert.presets import PRESETS
from hf_scratch.errors import command, preparation
from hf_scratch.loading import auto_class_of, check_fits, find_model, load_checkpoint, load_tokenizer
from hf_scratch.recipes import parse_pairs
from hf_scratch.training.checkpoints import check_output_dir
from hf_scratch.training.command_line import parse_arguments

IN = {"gpt2": convert.from_gpt2, "marian": convert.from_marian, "pegasus": convert.from_pegasus}
OUT = {"gpt2": convert.to_gpt2, "marian": convert.to_marian, "pegasus": convert.to_pegasus}
FROM_FILES = (*PRESETS, "nanogpt")  # without a tokenizer beside them
ENGINES = {"ctranslate2": convert.to_ctranslate2, "gguf": convert.to_gguf}  # these write their own files


@dataclass
class ConversionArguments:
    """The options of convert_checkpoint.py."""

    input: str = field(
        metadata={
            "help": "An article's state dict (.pt, .pth, .bin, .safetensors), nanoGPT's ckpt.pt, or a model's folder "
            "or Hub id."
        }
    )
    output_dir: str = field(metadata={"help": "A new folder."})
    source: str | None = field(default=None, metadata={"help": "What the input is.", "choices": [*FROM_FILES, *IN]})
    target: str | None = field(
        default=None, metadata={"help": "What to convert our model to.", "choices": [*OUT, *ENGINES]}
    )
    quantization: str | None = field(
        default=None,
        metadata={"help": f"The type of the weights for {' and '.join(ENGINES)}, such as int8. Default: float32."},
    )
    hyperparameters: str | None = field(
        default=None, metadata={"help": "The constructor arguments of an article's model: a=1,b=2 or JSON."}
    )
    tokenizer: str | None = field(
        default=None,
        metadata={
            "help": "The model's tokenizer: a folder, a Hub id, or nanoGPT's meta.pkl of characters. Default: the "
            "input's."
        },
    )


def read_file(path: str) -> Any:
    """Read what `torch.save` or safetensors has written, without running code; None of a file that is damaged."""
    try:
        return load_file(path) if Path(path).suffix == ".safetensors" else torch.load(path, "cpu", weights_only=True)
    except OSError:
        raise
    except Exception:  # torch raises many kinds, and advises to load a pickle that holds code by `weights_only=False`
        return None


def read_state_dict(path: str) -> Mapping[str, torch.Tensor]:
    """Read a state dict from a file. Of a training checkpoint, the model's part is taken.

    Args:
        path: a file that `torch.save` or safetensors wrote.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file is damaged, is a pickle that holds code, or holds no state dict.
    """
    state = read_file(path)
    for key in ("model_state_dict", "state_dict", "model"):
        if isinstance(state, Mapping) and isinstance(state.get(key), Mapping):
            state = state[key]
    if not isinstance(state, Mapping) or not all(isinstance(tensor, torch.Tensor) for tensor in state.values()):
        raise ValueError(
            f"{path} is damaged, holds no state dict, or holds more than tensors: loading that could run code. Save a "
            "state dict by `torch.save(model.state_dict(), path)`."
        )
    return state


def take_tokenizer(args: ConversionArguments) -> PreTrainedTokenizerBase | None:
    """Load `--tokenizer`, or by default the tokenizer of the input's folder; None if there is none."""
    if args.tokenizer is not None and args.tokenizer.endswith(".pkl"):
        return convert.read_characters(args.tokenizer)
    if args.tokenizer is not None:
        return load_tokenizer(args.tokenizer)
    try:
        return None if args.source in FROM_FILES else load_tokenizer(args.input)
    except (OSError, ValueError, ImportError) as error:
        print(f"No tokenizer was copied: {str(error).splitlines()[0]}")
        return None


def run(args: ConversionArguments) -> PreTrainedModel | Path:
    """Convert a model.

    Returns:
        The converted model, or the path of what was written for another engine.

    Raises:
        ValueError: a wrong argument, or an input that cannot be converted.
        OSError: there is no such input.
    """
    if (args.source is None) == (args.target is None):
        raise ValueError("Give either `--source` (what the input is) or `--target` (what to convert our model to).")
    if args.quantization is not None and args.target not in ENGINES:
        raise ValueError(f"`quantization` is {args.quantization!r}, but only {' and '.join(ENGINES)} take one.")
    check_output_dir(args.output_dir)
    if args.source in PRESETS:
        hyperparameters = parse_pairs(args.hyperparameters, "hyperparameters")
        return convert.from_article(args.source, read_state_dict(args.input), **hyperparameters)
    if args.source == "nanogpt":
        return convert.from_nanogpt(read_file(args.input), take_tokenizer(args))
    model = load_checkpoint(auto_class_of(AutoConfig.from_pretrained(find_model(args.input))), args.input)
    if args.source is not None:
        return IN[args.source](model)
    if args.target in OUT:
        return OUT[args.target](model)
    tokenizer = load_tokenizer(args.tokenizer or args.input)
    return ENGINES[args.target](model, tokenizer, args.output_dir, args.quantization or "float32")


@command
def main():
    with preparation():
        (args,), _ = parse_arguments(ConversionArguments)
        model = run(args)
        if isinstance(model, PreTrainedModel) and (tokenizer := take_tokenizer(args)) is not None:
            if args.tokenizer is not None:
                check_fits(tokenizer, model.config)
            tokenizer.save_pretrained(args.output_dir)
    if isinstance(model, Path):
        files = [path for path in (model, *model.rglob("*")) if path.is_file()]
        print(f"{sum(path.stat().st_size for path in files) / 1e6:.1f} MB are in {model}.")
        return
    model.save_pretrained(args.output_dir)
    print(f"{type(model).__name__} with {model.num_parameters():,} parameters is in {args.output_dir}.")


if __name__ == "__main__":
    main()
