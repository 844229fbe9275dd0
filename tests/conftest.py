# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""What several tests share: tiny models of both families, a tiny tokenizer, and the real data where it is at hand."""

import os
from pathlib import Path

# models this small are faster on one thread, in the commands that tests start too; on two, each of their operations
# waits for the other core, which may be busy with something else
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch

from hf_scratch import (
    ScratchGPTConfig,
    ScratchGPTForCausalLM,
    ScratchTransformerConfig,
    ScratchTransformerForConditionalGeneration,
)
from hf_scratch.models import decoding
from hf_scratch.tokenization import train_tokenizer

ROOT = Path(__file__).parent.parent
DATA = Path(os.environ.get("HF_SCRATCH_DATA", ROOT.parent / "shared" / "data"))

GPT = {
    "vocab_size": 60,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 40,
    "initializer_range": 0.3,  # large weights: differences between two computations show
    "embedding_dropout": 0.0,
    "hidden_dropout": 0.0,
    "attention_dropout": 0.0,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
TRANSFORMER = {
    "vocab_size": 60,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 40,
    "dropout": 0.0,
    "max_position_embeddings": 40,
}


def make_gpt(**overrides) -> ScratchGPTForCausalLM:
    torch.manual_seed(0)
    return ScratchGPTForCausalLM(ScratchGPTConfig(**{**GPT, **overrides})).eval()


def make_transformer(**overrides) -> ScratchTransformerForConditionalGeneration:
    torch.manual_seed(0)
    return ScratchTransformerForConditionalGeneration(ScratchTransformerConfig(**{**TRANSFORMER, **overrides})).eval()


FAMILIES = {"gpt": make_gpt, "transformer": make_transformer}


@pytest.fixture(params=FAMILIES)
def family(request) -> str:
    return request.param


@pytest.fixture
def model(family):
    return FAMILIES[family]()


@pytest.fixture
def inputs(family) -> dict[str, torch.Tensor]:
    """A batch of 3 rows of 7 tokens, and 9 source tokens for the encoder-decoder, nothing padded."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(3, 60, (3, 7), generator=generator)
    if family == "gpt":
        return {"input_ids": ids}
    return {"input_ids": torch.randint(3, 60, (3, 9), generator=generator), "decoder_input_ids": ids}


@pytest.fixture
def steps(monkeypatch) -> list:
    """One entry for each time that the decoder was asked."""
    asked, step = [], decoding.IncrementalDecoder.step

    def count(self, tokens):
        asked.append(tokens.shape)
        return step(self, tokens)

    monkeypatch.setattr(decoding.IncrementalDecoder, "step", count)
    return asked


@pytest.fixture(scope="session")
def joint_tokenizer():
    texts = ["A man sleeps.", "Ein Mann schläft.", "two dogs run", "zwei Hunde laufen"] * 5
    return train_tokenizer(texts, "joint", 300, 40, show_progress=False)


@pytest.fixture
def multi30k() -> str:
    if not (DATA / "multi30k" / "train.jsonl").is_file():
        pytest.skip("Multi30k is not at hand; set HF_SCRATCH_DATA to the folder that holds it")
    return str(DATA / "multi30k")


@pytest.fixture
def tinystories() -> str:
    if not (DATA / "tinystories" / "train.jsonl").is_file():
        pytest.skip("TinyStories is not at hand; set HF_SCRATCH_DATA to the folder that holds it")
    return str(DATA / "tinystories")
