# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Attention maps of a saved model while it translates or reads a text."""

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

from ..loading import load_tokenizer
from .plots import plot_attention


@torch.no_grad()
def draw_cross_attention(folder: Path, source: str) -> str:
    """Translate `source` and draw the last decoder layer's attention over it.

    Args:
        folder: a saved encoder-decoder with its tokenizer; receives the picture.
        source: a sentence.

    Returns:
        The picture's path.
    """
    # only eager attention returns its weights
    model = AutoModelForSeq2SeqLM.from_pretrained(folder, attn_implementation="eager")
    tokenizer = load_tokenizer(folder)
    inputs = tokenizer(source, return_tensors="pt")
    output_ids = model.generate(**inputs)
    outputs = model(**inputs, decoder_input_ids=output_ids, output_attentions=True)
    keys = tokenizer.batch_decode(inputs["input_ids"][0][:, None], use_source_tokenizer=True)
    queries = tokenizer.batch_decode(output_ids[0][:, None])
    return plot_attention(outputs.cross_attentions[-1][0], queries, keys, str(folder))


@torch.no_grad()
def draw_self_attention(folder: Path, text: str) -> str:
    """Draw the last layer's attention of `text` over itself.

    Args:
        folder: a saved language model with its tokenizer; receives the picture.
        text: what the model reads.

    Returns:
        The picture's path.
    """
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", dtype="float32").eval()
    tokenizer = load_tokenizer(folder)
    inputs = tokenizer(text, return_tensors="pt")
    tokens = tokenizer.batch_decode(inputs["input_ids"][0][:, None])
    return plot_attention(model(**inputs, output_attentions=True).attentions[-1][0], tokens, tokens, str(folder))
