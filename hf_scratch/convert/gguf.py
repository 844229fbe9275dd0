# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Convert a ScratchGPT to GGUF, the file format of llama.cpp."""

import json
import os
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from ..errors import extra
from ..models.modeling_scratch_gpt import ScratchGPTForCausalLM
from .gpt2 import to_gpt2

QUANTIZATIONS = {"float32": "F32", "float16": "F16", "int8": "Q8_0"}  # with their names in llama.cpp
GELUS = ("gelu", "gelu_new", "gelu_pytorch_tanh")


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
        quantization: the type of the stored matrices, "float32", "float16" or "int8"; "int8" is llama.cpp's Q8_0, for
            widths that 32 divides. Biases, LayerNorms and positions stay in float32.

    Returns:
        The file.

    Raises:
        ImportError: gguf is not installed.
        ValueError: GPT-2 or llama.cpp cannot express the model or its tokenizer, or an unknown quantization.
    """
    with extra("export"):
        import gguf

    gpt2 = to_gpt2(model)
    config = gpt2.config
    for name, value, allowed in (
        ("quantization", quantization, QUANTIZATIONS),
        ("hidden_act", config.activation_function, GELUS),  # llama.cpp's GPT-2 computes no other
    ):
        if value not in allowed:
            raise ValueError(f"`{name}` is {value!r}; for llama.cpp it must be one of {', '.join(allowed)}.")
    kind = QUANTIZATIONS[quantization]
    tokens, merges = _read_vocabulary(tokenizer, config.vocab_size)

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
    types = [gguf.TokenType.CONTROL if token in special else gguf.TokenType.NORMAL for token in tokens]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
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
        assert target is not None  # it knows all weights of a GPT-2
        writer.add_tensor(target, gguf.quants.quantize(data, data_type), raw_dtype=data_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return output_dir / "model.gguf"


def _read_vocabulary(tokenizer: PreTrainedTokenizerBase, vocab_size: int) -> tuple[list[str], list[str]]:
    """The tokens by id, and the merges; ValueError unless llama.cpp would split texts in the same way."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    parts = json.loads(backend.to_str()) if backend is not None else {}
    splitter, pieces = parts.get("pre_tokenizer") or {}, parts.get("model") or {}
    is_gpt2 = splitter.get("type") == "ByteLevel" and splitter["use_regex"] and not splitter["add_prefix_space"]
    if not (is_gpt2 and pieces.get("type") == "BPE" and parts.get("normalizer") is None):
        raise ValueError("llama.cpp needs a byte-level BPE tokenizer that splits as GPT-2's; this one does not.")
    tokens = [token for token, _ in sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])]
    tokens += [f"[UNUSED{i}]" for i in range(len(tokens), vocab_size)]
    return tokens, [" ".join(pair) for pair in pieces["merges"]]
