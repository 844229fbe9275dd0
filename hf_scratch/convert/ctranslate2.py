# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Convert our models to folders of CTranslate2, an inference engine for Transformers in C++."""

import copy
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..errors import extra
from ..models.tokenization_source_target import SourceTargetTokenizer
from .gpt2 import to_gpt2
from .marian import to_marian, to_pegasus
from .shared import require_fields


def to_ctranslate2(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    output_dir: str | os.PathLike,
    quantization: str = "float32",
) -> Path:
    """Convert a model of either family to a folder of CTranslate2, with the tokenizer beside it.

    CTranslate2's own converter does the work, from a GPT-2, a Pegasus (pre-norm) or a Marian model (post-norm).

    Args:
        model: a ScratchGPT or a ScratchTransformer with its head. It is not modified.
        tokenizer: its tokenizer, whose tokens become CTranslate2's vocabulary.
        output_dir: a new folder.
        quantization: the type of the stored weights. A CPU reads "float32", "float16", "bfloat16", "int16" and "int8".

    Returns:
        The folder: `ctranslate2.Generator` loads a GPT from it, `ctranslate2.Translator` an encoder-decoder.

    Raises:
        ImportError: ctranslate2 is not installed.
        ValueError: CTranslate2 does not know the quantization, or cannot express the model, its activation or its two
            vocabularies.
    """
    with extra("export"):
        from ctranslate2.converters import TransformersConverter

    stock, config = _to_stock(model, tokenizer), model.config
    output_dir = Path(output_dir)
    with tempfile.TemporaryDirectory() as folder:
        stock.float().save_pretrained(folder)
        padded = copy.deepcopy(tokenizer)  # CTranslate2 wants a token for each row of the embedding
        padded.add_tokens([f"[UNUSED{i}]" for i in range(len(tokenizer), config.vocab_size)])
        padded.save_pretrained(folder)
        try:
            TransformersConverter(folder).convert(str(output_dir), quantization=quantization)
        except KeyError as error:
            raise ValueError(f"CTranslate2 has no activation {error}: it cannot express this model.") from None
    file = output_dir / "config.json"
    settings = json.loads(file.read_text(encoding="utf-8"))
    # CTranslate2 does not load a null, and its loader of Pegasus takes the padding for the start
    settings["layer_norm_epsilon"] = config.layer_norm_eps
    settings["unk_token"] = tokenizer.unk_token or tokenizer.pad_token or tokenizer.eos_token
    if config.is_encoder_decoder:
        start = tokenizer.convert_ids_to_tokens(config.decoder_start_token_id)
        settings |= {"decoder_start_token": start, "bos_token": start}
    else:
        settings["bos_token"] = tokenizer.bos_token or tokenizer.eos_token
    file.write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    tokenizer.save_pretrained(output_dir)
    return output_dir


def _to_stock(model: Any, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    """Convert to the model of transformers that CTranslate2's converter reads; ValueError where it misreads one."""
    config = model.config
    if not config.is_encoder_decoder:
        return to_gpt2(model)
    if isinstance(tokenizer, SourceTargetTokenizer):
        raise ValueError("CTranslate2's converter takes one vocabulary, but this tokenizer has two.")
    heads = (config.encoder_attention_heads, "CTranslate2's converter gives both stacks the encoder's heads")
    require_fields(config, {"decoder_attention_heads": heads})
    if config.norm_first:
        return to_pegasus(model)
    last = (config.vocab_size - 1, "CTranslate2 takes a post-norm model for an opus-mt one, whose last token this is")
    require_fields(config, {"pad_token_id": last, "decoder_start_token_id": last})
    return to_marian(model)
