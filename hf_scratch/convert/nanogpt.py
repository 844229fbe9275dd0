# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Convert nanoGPT's checkpoints to a ScratchGPT with the same logits, and its characters to a tokenizer.

nanoGPT is a GPT-2 with the exact GELU, and biases only if its `bias` says so. It names its weights as GPT-2 does.
"""

import os
import pickle
from collections.abc import Mapping
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from ..models.modeling_scratch_gpt import ScratchGPTForCausalLM
from ..tokenization import split_characters
from .gpt2 import from_gpt2

TRANSPOSED = ("attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight")  # in GPT-2


def from_nanogpt(
    checkpoint: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase | None = None
) -> ScratchGPTForCausalLM:
    """Convert a checkpoint of nanoGPT to a ScratchGPT with the same logits.

    Absent biases become zeros: the function is the same, but training trains them. A vocabulary that was padded, as
    nanoGPT's of GPT-2 is to 50304, stays so.

    Args:
        checkpoint: what `torch.load("ckpt.pt", weights_only=True)` returns, with "model" and "model_args".
        tokenizer: gives the model its special tokens. Default: it has none.

    Raises:
        ValueError: the checkpoint is not one of nanoGPT's.
    """
    try:
        sizes, weights = checkpoint["model_args"], checkpoint["model"]
        fields = {name: sizes[name] for name in ("n_layer", "n_head", "n_embd", "vocab_size")}
        fields["n_positions"] = sizes["block_size"]
        special = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id", None) for name in ("pad", "bos", "eos")}
        dropouts = dict.fromkeys(("embd_pdrop", "resid_pdrop", "attn_pdrop"), sizes["dropout"])
        gpt2 = GPT2LMHeadModel(GPT2Config(**fields, **special, **dropouts, activation_function="gelu"))
        state = {name: torch.zeros_like(tensor) for name, tensor in gpt2.state_dict().items() if name[-5:] == ".bias"}
        for name, tensor in weights.items():
            name = name.removeprefix("_orig_mod.")  # of torch.compile
            if not name.endswith(".attn.bias"):  # the causal mask of older torch
                state[name] = tensor.t() if name.endswith(TRANSPOSED) else tensor
        gpt2.load_state_dict(state)
    except (KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise ValueError(f"The checkpoint is not one of nanoGPT's: {type(error).__name__}: {error}") from error
    return from_gpt2(gpt2.eval())


class _PlainUnpickler(pickle.Unpickler):
    """Reads numbers, texts and containers. Any class or function could run code when it is read."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it holds {module}.{name}, which could run code")


def read_characters(path: str | os.PathLike) -> PreTrainedTokenizerFast:
    """Make a tokenizer of nanoGPT's `meta.pkl`: one token for each character, and no special tokens.

    Args:
        path: the file, which holds a dict "stoi" from characters to ids.

    Raises:
        ValueError: the file is damaged, or holds more than numbers, texts and containers.
        OSError: there is no such file.
    """
    with open(path, "rb") as file:
        try:
            vocabulary = _PlainUnpickler(file).load()["stoi"]
            backend: Tokenizer = split_characters(vocabulary)
        except OSError:
            raise
        except Exception as error:  # a damaged pickle raises many kinds
            raise ValueError(f"{path} is not nanoGPT's meta.pkl: {error}.") from error
    return PreTrainedTokenizerFast(tokenizer_object=backend, clean_up_tokenization_spaces=False)
