# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Convert checkpoints of five build-a-Transformer articles to our models. The function stays the same.

Each weight gets our name. Where an article differs from our models, the difference is algebra and is folded into the
weights: separate heads become rows of one projection, scores divided by sqrt(d_model) become a smaller query
projection, and an unbiased variance becomes a smaller gain.
"""

import math
import re
from collections.abc import Mapping
from functools import reduce

import torch
from transformers import AttentionInterface, GenerationConfig, PreTrainedConfig, PreTrainedModel
from transformers.utils import logging

from ..models.configuration_scratch_transformer import ScratchTransformerConfig
from ..models.modeling_scratch_gpt import ScratchGPTForCausalLM, ScratchGPTForMaskedLM, ScratchGPTModel
from ..models.modeling_scratch_transformer import ScratchTransformerForConditionalGeneration
from ..models.scratch_layers import SinusoidalPositionalEmbedding
from .presets import make_preset

logger = logging.get_logger(__name__)

_POST_NORM = {  # two articles' norms follow the blocks: norm1, norm2, ..., with gamma and beta
    r"^(encoder.*)\.norm2\.": r"\1.feed_forward_norm.",
    r"\.norm1\.": ".self_attn_norm.",
    r"\.norm2\.": ".cross_attn_norm.",
    r"\.norm3\.": ".feed_forward_norm.",
    r"\.gamma$": ".weight",
    r"\.beta$": ".bias",
    r"^(encoder|decoder)\.": r"model.\1.",
}
# for each article patterns of its names, and what takes their place, in the order in which they are applied
ARTICLES = {
    "gpt-playground": {
        r"^transformer\.emb\.": "model.embed_tokens.",
        r"^transformer\.pos\.": "model.embed_positions.",
        r"^transformer\.ln\.": "model.norm.",
        r"^head\.": "lm_head.",
        r"^transformer\.attention\.": "model.layers.",
        r"\.attn\.attention\.": ".self_attn.qkv_proj.",
        r"\.attn\.fc\.": ".self_attn.o_proj.",
        r"\.ln1\.": ".self_attn_norm.",
        r"\.ln2\.": ".feed_forward_norm.",
        r"\.(fc\d)\.": r".feed_forward.\1.",
    },
    "annotated-seq2seq": {
        r"^linear\.": "lm_head.",
        r"\.embeddings\.embedding\.": ".embed_tokens.",
        r"\.stack\.": ".layers.",
        r"^(encoder.*)\.multihead\.": r"\1.self_attn.",
        r"\.maskmultihead\.": ".self_attn.",
        r"\.multihead\.": ".cross_attn.",
        r"\.w([qkvo])\.": r".\1_proj.",
        r"\.feedforward\.w": ".feed_forward.fc",
        **_POST_NORM,
    },
    "gelu-seq2seq": {
        r"^decoder\.fc\.": "lm_head.",
        r"\.embed\.": ".embed_tokens.",
        r"\.(encoder_layers|decoder_layer)\.": ".layers.",
        r"\.encoder_block\.attention\.": ".cross_attn.",
        r"\.encoder_block\.layer_norm1\.": ".cross_attn_norm.",
        r"\.encoder_block\.": ".",
        r"\.attention\.": ".self_attn.",
        r"\.layer_norm1?\.": ".self_attn_norm.",
        r"\.layer_norm2\.": ".feed_forward_norm.",
        r"\.(q|k|v)(ueries|eys|alues)\.": r".\1_proj.",
        r"\.fc\.": ".o_proj.",
        r"\.feed_forward\.0\.": ".feed_forward.fc1.",
        r"\.feed_forward\.2\.": ".feed_forward.fc2.",
        r"^(encoder|decoder)\.": r"model.\1.",
    },
    "paper-seq2seq": {
        r"^decoder\.linear\.": "lm_head.",
        r"\.embedding\.": ".embed_tokens.",
        r"\.attention\.": ".self_attn.",
        r"\.cross_attention\.": ".cross_attn.",
        r"\.w_combination\.": ".o_proj.",
        r"\.w_([qkv])\.": r".\1_proj.",
        r"\.ffn\.": ".feed_forward.",
        **_POST_NORM,
    },
    "tinystories-notes": {
        r"^transformer\.": "model.",
        r"^classifier\.": "lm_head.",
        r"\bembeddings\.token_embd\.": "embed_tokens.",
        r"\bembeddings\.pos_embd\.": "embed_positions.",
        r"\bembeddings\.layer_norm\.": "embed_norm.",
        r"\btransformer_layers\.": "layers.",
        r"\.mha\.attention_heads\.(\d+)\.(q|k|v)(uery|ey|alue)\.": r".self_attn.\2_proj.\1.",
        r"\.mha\.linear_proj\.": ".self_attn.o_proj.",
        r"\.layer_norm_1\.": ".self_attn_norm.",
        r"\.layer_norm_2\.": ".feed_forward_norm.",
        r"\.ffn\.layer(\d)\.": r".feed_forward.fc\1.",
    },
}
_MASK = re.compile(r"\.(attn\.bias|tril)$")
_POSITIONS = re.compile(r"\.(pos_encodings|position_embed)\.")


def _rename(source: str, name: str) -> str:
    name = name.removeprefix("module.")  # DataParallel's
    for theirs, ours in ARTICLES[source].items():
        name = re.sub(theirs, ours, name)
    return name


def _fold(source: str, config: PreTrainedConfig, state: dict[str, torch.Tensor]) -> None:
    """Change renamed weights, in place, where the article computes something else from them than our model."""
    for name, tensor in list(state.items()):
        if ".qkv_proj." in name:  # gpt-playground's queries, keys and values are the thirds of one projection
            del state[name]
            for part, third in zip("qkv", tensor.chunk(3), strict=True):
                state[name.replace("qkv_proj", f"{part}_proj")] = third
        elif name.endswith("_proj.0.weight"):  # each head of tinystories-notes becomes some rows of one projection
            projection = name.removesuffix(".0.weight")
            heads = [state.pop(f"{projection}.{i}.weight") for i in range(config.num_attention_heads)]
            state[f"{projection}.weight"] = torch.cat(heads)
        elif source == "annotated-seq2seq" and name.endswith("_norm.weight"):  # divides by the unbiased deviation
            state[name] = (tensor.double() * math.sqrt((config.d_model - 1) / config.d_model)).to(tensor.dtype)
        elif source == "gelu-seq2seq" and ".q_proj." in name:  # divides scores by sqrt(d_model), not sqrt(head_dim)
            state[name] = (tensor.double() / math.sqrt(config.encoder_attention_heads)).to(tensor.dtype)


def sum_of_values(module, query, key, value, attention_mask, **kwargs) -> tuple[torch.Tensor, None]:
    """The "attention" that gelu-seq2seq's code computes: the sum of all values, without scores or mask.

    Shapes are as in `eager_attention_forward`. It cannot use a cache, because later tokens count too.
    """
    return value.sum(2, keepdim=True).expand(-1, -1, query.shape[2], -1).transpose(1, 2), None


AttentionInterface.register("sum_of_values", sum_of_values)


def from_article(source: str, state_dict: Mapping[str, torch.Tensor], **hyperparameters) -> PreTrainedModel:
    """Convert an article's trained model to one of ours that computes the same function.

    Args:
        source: "gpt-playground", "annotated-seq2seq", "gelu-seq2seq", "paper-seq2seq" or "tinystories-notes".
        state_dict: with the names of the article's modules, with or without DataParallel's prefix "module.".
        hyperparameters: arguments of the article's own constructor (see `hf_scratch.convert.presets`).

    Returns:
        A `ScratchGPTForCausalLM` or `ScratchTransformerForConditionalGeneration`. For the notes' `Transformer`, a
        `ScratchGPTForMaskedLM` without `mask`, and a `ScratchGPTModel` without its classifier. It is in evaluation
        mode and has the weights' dtype; if they are mixed, the one that holds them all. The encoder-decoder articles
        do not say which ids start and end a sentence: set them in `config` and `generation_config` before you call
        `generate()`.

    Raises:
        ValueError: missing, unknown or misshapen weights, positions other than the paper's sinusoids, or
            hyperparameters that make no model.
    """
    config = make_preset(source, **hyperparameters)
    state = {_rename(source, name): tensor.detach() for name, tensor in state_dict.items() if not _MASK.search(name)}
    for name in filter(_POSITIONS.search, list(state)):  # the article of gelu-seq2seq leaves them to its reader
        table = SinusoidalPositionalEmbedding(config.max_position_embeddings, config.d_model).make_table().flatten()
        given = state.pop(name).float().flatten()[: table.numel()]
        # half precision keeps sinusoids to 0.004
        if given.shape != table.shape or not torch.allclose(given, table.to(given), atol=4e-3):
            raise ValueError(f"{name} holds other positions than the paper's sinusoids, which our model computes.")
    if isinstance(config, ScratchTransformerConfig):
        model = ScratchTransformerForConditionalGeneration(config)
    elif source == "tinystories-notes" and "lm_head.weight" not in state:
        model = ScratchGPTModel(config)
    else:
        model = (ScratchGPTForCausalLM if config.is_causal else ScratchGPTForMaskedLM)(config)
    try:
        _fold(source, config, state)
        model = model.to(reduce(torch.promote_types, (tensor.dtype for tensor in state.values())))
        model.load_state_dict(state)
    except (KeyError, RuntimeError) as error:
        raise ValueError(f"The state dict is not that of {source!r} with these hyperparameters: {error}") from error
    if source == "gelu-seq2seq":
        logger.warning(
            "The code of the article 'gelu-seq2seq' computes no Transformer. Its attention sums all values without "
            "their weights (its einsum is 'bhqk,bvhd->bqhd'). Its decoder adds the cross-attention's output to the "
            "encoder's states, and swaps the two masks. The converted model follows the paper, so it computes another "
            "function. `model.set_attn_implementation('sum_of_values')` restores the article's sums; the encoder and "
            "the decoder's self-attention are then exact. hf_scratch/convert/README.md lists what was corrected."
        )
    if source == "gpt-playground":  # its `generate` continues past the block size
        model.generation_config = GenerationConfig(slide_window=True)
    return model.eval()
