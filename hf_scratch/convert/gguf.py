# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Convert a ScratchGPT to GGUF, the file format of llama.cpp."""

import json
import os
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from ..models.modeling_scratch_gpt import ScratchGPTForCausalLM
from .gpt2 import to_gpt2
from .shared import require_package

QUANTIZATIONS = ("float32", "float16", "int8")
GELUS = ("gelu", "gelu_new", "gelu_pytorch_tanh")
BLOCK = 32  # numbers that share a scale in Q8_0


def to_gguf(
    model: ScratchGPTForCausalLM,
    tokenizer: PreTrainedTokenizerBase,
    output_dir: str | os.PathLike,
    quantization: str = "float32",
) -> Path:
    """Write a ScratchGPT and its tokenizer into one file, as a GPT-2 of llama.cpp.

    llama.cpp computes the tanh approximation of GELU, from a table in float16, so logits differ by about 1e-3.

    Args:
        model: a ScratchGPT with its head. It is not modified.
        tokenizer: its tokenizer, a byte-level BPE.
        output_dir: a new folder; the file is `model.gguf` in it.
        quantization: the type of the stored matrices, one of `QUANTIZATIONS`; "int8" is llama.cpp's Q8_0. Biases,
            LayerNorms and positions stay in float32.

    Returns:
        The file.

    Raises:
        ImportError: gguf is not installed.
        ValueError: GPT-2 or llama.cpp cannot express the model or its tokenizer.
    """
    require_package("gguf", "export")
    import gguf

    if quantization not in QUANTIZATIONS:
        raise ValueError(f"`quantization` is {quantization!r}; it must be one of {', '.join(QUANTIZATIONS)}.")
    kind = dict(zip(QUANTIZATIONS, ("F32", "F16", "Q8_0"), strict=True))[quantization]
    gpt2 = to_gpt2(model)
    config = gpt2.config
    if config.activation_function not in GELUS:
        raise ValueError(
            f"`hidden_act` is {config.activation_function!r}, but llama.cpp's GPT-2 has a GELU: it must be one of "
            f"{', '.join(GELUS)}."
        )
    if quantization == "int8" and any(size % BLOCK for size in (config.n_embd, model.config.intermediate_size)):
        raise ValueError(f"int8 in GGUF needs widths that {BLOCK} divides. Choose float16.")
    vocabulary = _read_vocabulary(tokenizer, config.vocab_size)

    output_dir = Path(output_dir)
    output_dir.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(output_dir / "model.gguf", "gpt2")
    writer.add_context_length(config.n_positions)
    writer.add_embedding_length(config.n_embd)
    writer.add_block_count(config.n_layer)
    writer.add_feed_forward_length(model.config.intermediate_size)
    writer.add_head_count(config.n_head)
    writer.add_layer_norm_eps(config.layer_norm_epsilon)
    writer.add_file_type(gguf.LlamaFileType["ALL_F32" if kind == "F32" else f"MOSTLY_{kind}"])
    special = set(tokenizer.all_special_tokens)
    types = [gguf.TokenType.CONTROL if token in special else gguf.TokenType.NORMAL for token in vocabulary["tokens"]]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(vocabulary["tokens"])
    writer.add_token_types(types)
    writer.add_token_merges(vocabulary["merges"])
    writer.add_add_bos_token(tokenizer("").input_ids == [tokenizer.bos_token_id])
    for name, add in (("bos", writer.add_bos_token_id), ("eos", writer.add_eos_token_id),
                      ("pad", writer.add_pad_token_id)):  # fmt: skip
        if (token_id := getattr(tokenizer, f"{name}_token_id")) is not None:
            add(token_id)

    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.GPT2, config.n_layer)
    for name, tensor in gpt2.float().state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue  # llama.cpp then uses the embedding
        if name.split(".")[-2] in ("c_attn", "c_proj", "c_fc") and tensor.dim() == 2:
            tensor = tensor.t()  # GPT-2 stores these matrices as (input, output)
        data = tensor.contiguous().cpu().numpy()
        is_matrix = data.ndim == 2 and "wpe" not in name
        data_type = gguf.GGMLQuantizationType[kind if is_matrix else "F32"]
        target = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if target is None:
            raise ValueError(f"llama.cpp's GPT-2 has no place for the weight `{name}`.")
        writer.add_tensor(target, gguf.quants.quantize(data, data_type), raw_dtype=data_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return output_dir / "model.gguf"


def _read_vocabulary(tokenizer: PreTrainedTokenizerBase, vocab_size: int) -> dict[str, list[str]]:
    """The tokens by id, and the merges; ValueError unless llama.cpp would split texts in the same way."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    parts = json.loads(backend.to_str()) if backend is not None else {}
    splitter, pieces = parts.get("pre_tokenizer") or {}, parts.get("model") or {}
    is_gpt2 = splitter.get("type") == "ByteLevel" and splitter["use_regex"] and not splitter["add_prefix_space"]
    if not (is_gpt2 and pieces.get("type") == "BPE" and parts.get("normalizer") is None):
        raise ValueError("llama.cpp needs a byte-level BPE tokenizer that splits as GPT-2's; this one does not.")
    tokens = [token for token, _ in sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])]
    if len(tokens) > vocab_size:
        raise ValueError(f"The tokenizer has {len(tokens)} tokens, but the model's `vocab_size` is {vocab_size}.")
    unused = [f"[UNUSED{i}]" for i in range(len(tokens), vocab_size)]
    return {"tokens": tokens + unused, "merges": [" ".join(pair) for pair in pieces["merges"]]}
