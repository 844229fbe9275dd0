# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Our models and transformers' of the same dimensions, with random weights, and a step of their training."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel, MarianConfig, MarianMTModel, PreTrainedModel

from hf_scratch import (
    ScratchGPTConfig,
    ScratchGPTForCausalLM,
    ScratchTransformerConfig,
    ScratchTransformerForConditionalGeneration,
)
from hf_scratch.convert.gpt2 import CONFIG as GPT2_FIELDS
from hf_scratch.convert.marian import CONFIG as MARIAN_FIELDS

OURS, GPT2, MARIAN, PEGASUS = "hf_scratch", "GPT2LMHeadModel", "MarianMTModel", "PegasusForConditionalGeneration"


@dataclass(frozen=True)
class Size:
    """The dimensions of a model. An encoder-decoder has `layers` in each stack."""

    vocabulary: int
    width: int
    layers: int
    heads: int
    inner: int
    positions: int
    dropout: float = 0.1


def list_builders(family: str, size: Size) -> dict[str, Callable[[], PreTrainedModel]]:
    """For our model and its peer a function that builds it. Every `family` but "transformer" is a GPT."""
    common = {"vocab_size": size.vocabulary, "max_position_embeddings": size.positions}
    common |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    if family != "transformer":
        gpt = ScratchGPTConfig(
            hidden_size=size.width,
            num_hidden_layers=size.layers,
            num_attention_heads=size.heads,
            intermediate_size=size.inner,
            hidden_act="gelu_new",
            **dict.fromkeys(("embedding_dropout", "hidden_dropout", "attention_dropout"), size.dropout),
            **common,
        )
        gpt2 = GPT2Config(**{theirs: getattr(gpt, ours) for ours, theirs in GPT2_FIELDS.items()})
        return {OURS: partial(ScratchGPTForCausalLM, gpt), GPT2: partial(GPT2LMHeadModel, gpt2)}
    sides = {"layers": size.layers, "attention_heads": size.heads, "ffn_dim": size.inner}
    sides = {f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in sides.items()}
    transformer = ScratchTransformerConfig(
        d_model=size.width, dropout=size.dropout, decoder_start_token_id=1, **sides, **common
    )
    ours = partial(ScratchTransformerForConditionalGeneration, transformer)
    return {OURS: ours, MARIAN: partial(MarianMTModel, make_marian_config(transformer))}


def make_marian_config(config: ScratchTransformerConfig) -> MarianConfig:
    """The configuration of a Marian model with our dimensions."""
    return MarianConfig(**{name: getattr(config, name) for name in MARIAN_FIELDS}, forced_eos_token_id=None)


def make_step(
    model: PreTrainedModel,
    batch: dict[str, torch.Tensor],
    *,
    device: str = "cpu",
    bf16: bool = False,
    is_stock: bool = False,
    compile_by: Callable[[PreTrainedModel], torch.nn.Module] | None = None,
) -> Callable[[], torch.Tensor]:
    """Make a training step: forward, backward and AdamW on a batch. It returns the loss.

    With `is_stock`, our models are called without an option of theirs, as stock Trainer calls them.
    """
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    options = {"skip_logits": True} if type(model).__name__.startswith("Scratch") and not is_stock else {}
    run: Callable[..., Any] = model if compile_by is None else compile_by(model)

    def step() -> torch.Tensor:
        with torch.autocast(device, torch.bfloat16, enabled=bf16):
            loss = run(**batch, **options).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step
