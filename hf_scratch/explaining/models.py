# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""A model with its tokenizer, and its attention weights."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig

from ..loading import auto_class_of, check_fits, find_model, load_checkpoint, load_tokenizer


@dataclass(frozen=True)
class LoadedModel:
    """A model of ours with its tokenizer.

    Args:
        model: in evaluation mode, in float32 on the CPU, with eager attention, the only kind that returns its weights.
        tokenizer: its tokenizer.
    """

    model: Any
    tokenizer: Any

    @property
    def is_translator(self) -> bool:
        """Whether it is the encoder-decoder; otherwise it is the GPT."""
        return self.model.config.is_encoder_decoder

    @property
    def end_tokens(self) -> set[int]:
        """The ids of the tokens that end a text."""
        eos = self.model.generation_config.eos_token_id
        return set() if eos is None else set(eos) if isinstance(eos, list) else {eos}

    def encode(self, text: str, longest: int | None = None) -> torch.Tensor:
        """Encode a text as the model reads it.

        Args:
            text: what the model reads.
            longest: at most this many tokens. Default: the model's positions.

        Returns:
            Token ids (1, length), int64.

        Raises:
            ValueError: the text is blank, or has too many tokens.
        """
        ids = self.tokenizer(text, return_tensors="pt", verbose=False)["input_ids"]
        limit = min(longest or self.model.config.max_position_embeddings, self.model.config.max_position_embeddings)
        if not text.strip() or ids.shape[1] > limit:
            raise ValueError(f"`text` has {ids.shape[1]} tokens, but must be some words of at most {limit} tokens.")
        return ids

    def read(self, ids: torch.Tensor | list[int], from_source: bool = False) -> list[str]:
        """Read each token on its own, with its space and as `show_token` shows it.

        Args:
            ids: token ids (length).
            from_source: whether they are of the source's vocabulary. A model with one vocabulary ignores it.
        """
        # a decoder drops the space before the first token, so read the token behind itself
        pairs = [self.tokenizer.batch_decode([[i], [i, i]], use_source_tokenizer=from_source) for i in map(int, ids)]
        return [show_token(twice[len(once) :]) for once, twice in pairs]

    def decode(self, ids: torch.Tensor | list[int]) -> str:
        """Read ids of the target's vocabulary as one text, without special tokens."""
        return self.tokenizer.decode(ids, skip_special_tokens=True)


def load_model(path: str | Path) -> LoadedModel:
    """Load a folder or Hub id of either family.

    Raises:
        ValueError: see `load_checkpoint`, `load_tokenizer` and `check_fits`; or the model is an encoder.
    """
    config = AutoConfig.from_pretrained(find_model(path))
    if not getattr(config, "is_causal", True):
        raise ValueError(f"`model` is {str(path)!r}, which fills in masked tokens and does not predict the next one.")
    model = load_checkpoint(auto_class_of(config), path, dtype="float32", attn_implementation="eager").eval()
    tokenizer = load_tokenizer(path)
    check_fits(tokenizer, config)
    return LoadedModel(model, tokenizer)


@torch.no_grad()
def compute_attention(
    loaded: LoadedModel, input_ids: torch.Tensor, decoder_input_ids: torch.Tensor | None = None
) -> dict[str, torch.Tensor]:
    """Run the model once and return its attention weights.

    Args:
        loaded: the model.
        input_ids: (1, length), what it reads.
        decoder_input_ids: (1, target length) for the encoder-decoder: the start token and the target's tokens.

    Returns:
        For each attention its weights (layers, heads, queries, keys). A query's weights sum to 1. The GPT has
        "self-attention"; the encoder-decoder has "cross-attention", "decoder self-attention" and
        "encoder self-attention".
    """
    inputs = {"input_ids": input_ids}
    if loaded.is_translator:
        inputs["decoder_input_ids"] = decoder_input_ids
    outputs = loaded.model(**inputs, use_cache=False, output_attentions=True)
    if not loaded.is_translator:
        return {"self-attention": torch.cat(outputs.attentions)}
    return {
        "cross-attention": torch.cat(outputs.cross_attentions),
        "decoder self-attention": torch.cat(outputs.decoder_attentions),
        "encoder self-attention": torch.cat(outputs.encoder_attentions),
    }


def show_token(text: str) -> str:
    """A token's text on one line: "·" stands for a space, "↵" for the end of a line, U+00A0 for a no-break space."""
    text = text.replace(" ", "·").replace("\n", "↵").replace("\t", "⇥")
    return "".join(char if char.isprintable() else f"U+{ord(char):04X}" for char in text) or "·"
