# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Convert checkpoints of five build-a-Transformer articles to our models. The function stays the same.

Where an article differs from our models, the difference is algebra and is folded into the weights: separate heads
become rows of one projection, scores divided by sqrt(d_model) become a smaller query projection, and an unbiased
variance becomes a smaller gain.
"""

import math
from collections.abc import Callable, Mapping
from functools import reduce

import torch
from transformers import AttentionInterface, GenerationConfig, PreTrainedConfig, PreTrainedModel
from transformers.utils import logging

from ..models.configuration_scratch_transformer import ScratchTransformerConfig
from ..models.layers import SinusoidalPositionalEmbedding
from ..models.modeling_scratch_gpt import ScratchGPTForCausalLM, ScratchGPTModel
from ..models.modeling_scratch_transformer import ScratchTransformerForConditionalGeneration
from .presets import make_preset

logger = logging.get_logger(__name__)

State = dict[str, torch.Tensor]


class _Reader:
    """Takes tensors from an article's state dict by name, and collects missing and misshapen ones for one error."""

    def __init__(self, state: Mapping[str, torch.Tensor]):
        self.state = state
        self.left = set(state)
        self.missing: list[str] = []
        self.misshapen: list[str] = []

    def take(self, name: str, *shape: int) -> torch.Tensor:
        """Return the tensor `name`, or zeros if it does not fit, so that `check` can report all problems at once."""
        self.left.discard(name)
        tensor = self.state.get(name)
        if tensor is None:
            self.missing.append(name)
        elif tuple(tensor.shape) != shape:
            self.misshapen.append(f"{name} is {tuple(tensor.shape)}, but the hyperparameters make it {shape}")
        elif not tensor.is_floating_point():
            self.misshapen.append(f"{name} holds {tensor.dtype}, but weights are floating-point numbers")
        else:
            return tensor.detach()
        return torch.zeros(()).expand(shape)  # a view of one zero, so that wrong hyperparameters take no memory

    def linear(self, name: str, target: str, rows: int, columns: int, bias: bool = True) -> State:
        """Return `name`.weight (rows, columns) and `name`.bias (rows), renamed to `target`."""
        state = {f"{target}.weight": self.take(f"{name}.weight", rows, columns)}
        return state | ({f"{target}.bias": self.take(f"{name}.bias", rows)} if bias else {})

    def norm(self, name: str, target: str, width: int, gain: str = "weight", shift: str = "bias") -> State:
        """Return a LayerNorm's gain and shift (width), renamed to `target`."""
        gains, shifts = self.take(f"{name}.{gain}", width), self.take(f"{name}.{shift}", width)
        return {f"{target}.weight": gains, f"{target}.bias": shifts}

    def feed_forward(self, first: str, second: str, target: str, width: int, inner: int) -> State:
        """Return the two linear layers of a feed-forward network, renamed for our layer `target`."""
        return self.linear(first, f"{target}.feed_forward.fc1", inner, width) | self.linear(
            second, f"{target}.feed_forward.fc2", width, inner
        )

    def drop(self, is_buffer: Callable[[str], bool], what: str, expected: torch.Tensor) -> None:
        """Leave out buffers that our models compute themselves, if they hold the expected values.

        Args:
            is_buffer: tells the buffers by their names.
            what: "mask" or "table of positions".
            expected: the mask or table, (rows, columns). A table may have further rows,
                and both further dimensions of size 1.
        """
        for name in filter(is_buffer, tuple(self.left)):
            self.left.discard(name)
            buffer = self.state[name]
            rows = buffer.numel() // expected.shape[1] if buffer.shape[-1:] == expected.shape[1:] else 0
            is_right_size = rows == len(expected) if what == "mask" else rows >= len(expected)
            values = buffer.float().flatten()[: expected.numel()]
            # half precision keeps sinusoids to 0.004
            if not is_right_size or not torch.allclose(values, expected.flatten().to(values), atol=4e-3):
                self.misshapen.append(f"{name} is another {what} than the article's, which our model computes")

    def check(self, source: str) -> None:
        """Raise ValueError that lists every missing, unknown and misshapen tensor."""
        problems = []
        for title, names in (("missing", self.missing), ("not of this article", sorted(self.left))):
            if names:
                more = f" and {len(names) - 8} more" if len(names) > 8 else ""
                problems.append(f"{title}: {', '.join(names[:8])}{more}")
        problems += self.misshapen[:8]
        if problems:
            raise ValueError(
                f"The state dict is not that of {source!r} with these hyperparameters: {'; '.join(problems)}."
            )


def _gpt_playground(read: _Reader, config: PreTrainedConfig) -> State:
    width, inner = config.hidden_size, config.intermediate_size
    state = {
        "model.embed_tokens.weight": read.take("transformer.emb.weight", config.vocab_size, width),
        "model.embed_positions.weight": read.take("transformer.pos.weight", config.max_position_embeddings, width),
        "lm_head.weight": read.take("head.weight", config.vocab_size, width),
        **read.norm("transformer.ln", "model.norm", width),
    }
    for i in range(config.num_hidden_layers):
        theirs, ours = f"transformer.attention.{i}", f"model.layers.{i}"
        packed = read.linear(f"{theirs}.attn.attention", "packed", 3 * width, width)
        for kind in ("weight", "bias"):  # queries, keys and values are the thirds of one projection
            for name, part in zip("qkv", packed[f"packed.{kind}"].chunk(3), strict=True):
                state[f"{ours}.self_attn.{name}_proj.{kind}"] = part
        state |= read.linear(f"{theirs}.attn.fc", f"{ours}.self_attn.o_proj", width, width)
        state |= read.norm(f"{theirs}.ln1", f"{ours}.self_attn_norm", width)
        state |= read.norm(f"{theirs}.ln2", f"{ours}.feed_forward_norm", width)
        state |= read.feed_forward(f"{theirs}.fc1", f"{theirs}.fc2", ours, width, inner)
    length = config.max_position_embeddings
    read.drop(lambda name: name.endswith(".attn.bias"), "mask", torch.ones(length, length).tril())
    return state


def _tinystories_notes(read: _Reader, config: PreTrainedConfig) -> State:
    width, inner, head = config.hidden_size, config.intermediate_size, config.head_dim
    # the notes' `LanguageModel` contains a `Transformer`, which alone is an encoder without a head
    has_head = any(name.startswith("transformer.") for name in read.state)
    prefix, target = ("transformer.", "model.") if has_head else ("", "")
    tokens, positions = f"{prefix}embeddings.token_embd.weight", f"{prefix}embeddings.pos_embd.weight"
    state = {
        f"{target}embed_tokens.weight": read.take(tokens, config.vocab_size, width),
        f"{target}embed_positions.weight": read.take(positions, config.max_position_embeddings, width),
        **read.norm(f"{prefix}embeddings.layer_norm", f"{target}embed_norm", width),
    }
    if has_head:
        state |= read.linear("classifier", "lm_head", config.vocab_size, width)
    for i in range(config.num_hidden_layers):
        theirs, ours = f"{prefix}transformer_layers.{i}", f"{target}layers.{i}"
        heads = [f"{theirs}.mha.attention_heads.{j}" for j in range(config.num_attention_heads)]
        for name in ("query", "key", "value"):  # each head's projection becomes some rows of ours
            rows = [read.take(f"{each}.{name}.weight", head, width) for each in heads]
            state[f"{ours}.self_attn.{name[0]}_proj.weight"] = torch.cat(rows)
        state |= read.linear(f"{theirs}.mha.linear_proj", f"{ours}.self_attn.o_proj", width, width)
        state |= read.norm(f"{theirs}.layer_norm_1", f"{ours}.self_attn_norm", width)
        state |= read.norm(f"{theirs}.layer_norm_2", f"{ours}.feed_forward_norm", width)
        state |= read.feed_forward(f"{theirs}.ffn.layer1", f"{theirs}.ffn.layer2", ours, width, inner)
    length = config.max_position_embeddings
    read.drop(lambda name: name.endswith(".tril"), "mask", torch.ones(length, length).tril())
    return state


def _attention(read: _Reader, theirs: str, ours: str, config: PreTrainedConfig, names: str) -> State:
    """Read an attention block.

    Args:
        read: the article's state dict.
        theirs: the block's name in the article.
        ours: the block's name in our model.
        config: our configuration.
        names: the article's names of the query, key, value and output projections, separated by spaces.
    """
    width, heads = config.d_model, config.encoder_attention_heads
    head = config.head_dim or width // heads
    values = heads * (config.v_head_dim or head)
    q, k, v, o = names.split()
    state = {}
    for name, target, rows in ((q, "q_proj", heads * head), (k, "k_proj", heads * head), (v, "v_proj", values)):
        state |= read.linear(f"{theirs}.{name}", f"{ours}.{target}", rows, width, config.attention_bias)
    return state | read.linear(f"{theirs}.{o}", f"{ours}.o_proj", width, values, config.attention_output_bias)


def _post_norm_layer(
    read: _Reader, theirs: str, ours: str, config: PreTrainedConfig, blocks: dict[str, str], names: str, inner: str
) -> State:
    """Read a post-norm layer, whose norm1, norm2, ... with `gamma` and `beta` follow its blocks.

    Args:
        read: the article's state dict.
        theirs: the layer's name in the article.
        ours: the layer's name in our model.
        config: our configuration.
        blocks: the attention blocks, the article's name: our name.
        names: as for `_attention`.
        inner: the article's names of the two feed-forward layers, separated by a space.
    """
    state, (first, second) = {}, inner.split()
    for name, target in blocks.items():
        state |= _attention(read, f"{theirs}.{name}", f"{ours}.{target}", config, names)
    state |= read.feed_forward(f"{theirs}.{first}", f"{theirs}.{second}", ours, config.d_model, config.encoder_ffn_dim)
    for j, target in enumerate([*blocks.values(), "feed_forward"], start=1):
        state |= read.norm(f"{theirs}.norm{j}", f"{ours}.{target}_norm", config.d_model, "gamma", "beta")
    return state


def _annotated_seq2seq(read: _Reader, config: PreTrainedConfig) -> State:
    width = config.d_model
    state = read.linear("linear", "lm_head", config.decoder_vocab_size, width)
    for stack, size in (("encoder", config.vocab_size), ("decoder", config.decoder_vocab_size)):
        state[f"model.{stack}.embed_tokens.weight"] = read.take(f"{stack}.embeddings.embedding.weight", size, width)
        blocks = {"maskmultihead": "self_attn", "multihead": "cross_attn"}
        if stack == "encoder":
            blocks = {"multihead": "self_attn"}
        for i in range(config.encoder_layers):
            theirs, ours = f"{stack}.stack.{i}", f"model.{stack}.layers.{i}"
            state |= _post_norm_layer(
                read, theirs, ours, config, blocks, "wq wk wv wo", "feedforward.w1 feedforward.w2"
            )
    for name, tensor in state.items():
        if name.endswith("_norm.weight"):  # the article divides by the unbiased deviation
            state[name] = (tensor.double() * math.sqrt((width - 1) / width)).to(tensor.dtype)
    table = SinusoidalPositionalEmbedding(config.max_position_embeddings, width).make_table()
    read.drop(lambda name: name.endswith(".pos_encodings.pos_encodings"), "table of positions", table)
    return state


def _gelu_seq2seq(read: _Reader, config: PreTrainedConfig) -> State:
    width, inner, names = config.d_model, config.encoder_ffn_dim, "queries keys values fc"

    def encoder_block(theirs: str, ours: str, attention: str) -> State:
        block = _attention(read, f"{theirs}.attention", f"{ours}.{attention}", config, names)
        block |= read.feed_forward(f"{theirs}.feed_forward.0", f"{theirs}.feed_forward.2", ours, width, inner)
        block |= read.norm(f"{theirs}.layer_norm1", f"{ours}.{attention}_norm", width)
        return block | read.norm(f"{theirs}.layer_norm2", f"{ours}.feed_forward_norm", width)

    state = {}
    for stack, size in _stacks(read, config):
        state[f"model.{stack}.embed_tokens.weight"] = read.take(f"{stack}.embed.weight", size, width)
        for i in range(config.encoder_layers):
            ours = f"model.{stack}.layers.{i}"
            if stack == "encoder":
                state |= encoder_block(f"encoder.encoder_layers.{i}", ours, "self_attn")
                continue
            theirs = f"decoder.decoder_layer.{i}"
            state |= _attention(read, f"{theirs}.attention", f"{ours}.self_attn", config, names)
            state |= read.norm(f"{theirs}.layer_norm", f"{ours}.self_attn_norm", width)
            state |= encoder_block(f"{theirs}.encoder_block", ours, "cross_attn")
        if stack == "decoder":
            state |= read.linear("decoder.fc", "lm_head", size, width)
    for name, tensor in state.items():
        if ".q_proj." in name:  # the article divides scores by sqrt(d_model), we divide by sqrt(d_model / heads)
            state[name] = (tensor.double() / math.sqrt(config.encoder_attention_heads)).to(tensor.dtype)
    # the article does not define its `PositionalEncoding`; it means the paper's sinusoids
    table = SinusoidalPositionalEmbedding(config.max_position_embeddings, width).make_table()
    read.drop(lambda name: ".position_embed." in name, "table of positions", table)
    return state


def sum_of_values(module, query, key, value, attention_mask, **kwargs) -> tuple[torch.Tensor, None]:
    """The "attention" that gelu-seq2seq's code computes: the sum of all values, without scores or mask.

    Shapes are those of `eager_attention_forward`. It cannot use a cache, because later tokens count too.
    """
    return value.sum(2, keepdim=True).expand(-1, -1, query.shape[2], -1).transpose(1, 2), None


AttentionInterface.register("sum_of_values", sum_of_values)


def _paper_seq2seq(read: _Reader, config: PreTrainedConfig) -> State:
    width, names = config.d_model, "w_q w_k w_v w_combination"
    state = {}
    for stack, size in _stacks(read, config):
        state[f"model.{stack}.embed_tokens.weight"] = read.take(f"{stack}.embedding.weight", size, width)
        blocks = {"attention": "self_attn"}
        if stack == "decoder":
            blocks["cross_attention"] = "cross_attn"
            state |= read.linear("decoder.linear", "lm_head", size, width)
        for i in range(config.encoder_layers):
            theirs, ours = f"{stack}.layers.{i}", f"model.{stack}.layers.{i}"
            state |= _post_norm_layer(read, theirs, ours, config, blocks, names, "ffn.fc1 ffn.fc2")
    return state


def _stacks(read: _Reader, config: PreTrainedConfig) -> list[tuple[str, int]]:
    """The name and vocabulary size of each stack in the state dict, which may hold the encoder alone."""
    stacks = [("encoder", config.vocab_size), ("decoder", config.decoder_vocab_size)]
    return stacks if any(name.startswith("decoder.") for name in read.state) else stacks[:1]


# for each article the function that reads its weights, and the end of a name that only its state dict has
ARTICLES = {
    "gpt-playground": (_gpt_playground, "transformer.emb.weight"),
    "annotated-seq2seq": (_annotated_seq2seq, "encoder.embeddings.embedding.weight"),
    "gelu-seq2seq": (_gelu_seq2seq, "encoder.embed.weight"),
    "paper-seq2seq": (_paper_seq2seq, "encoder.embedding.weight"),
    "tinystories-notes": (_tinystories_notes, "embeddings.token_embd.weight"),
}


def _is_named_tensor(item: tuple) -> bool:
    """Whether an item of a state dict is a name with a dense tensor that holds values."""
    name, tensor = item
    is_dense = isinstance(tensor, torch.Tensor) and tensor.layout == torch.strided and not tensor.is_meta
    return isinstance(name, str) and is_dense


def from_article(source: str, state_dict: Mapping[str, torch.Tensor], **hyperparameters) -> PreTrainedModel:
    """Convert an article's trained model to one of ours that computes the same function.

    Args:
        source: "gpt-playground", "annotated-seq2seq", "gelu-seq2seq", "paper-seq2seq" or "tinystories-notes".
        state_dict: with the names of the article's modules, with or without DataParallel's prefix "module.".
        hyperparameters: those of the article's own constructor (see `hf_scratch.convert.presets`).

    Returns:
        A `ScratchGPTForCausalLM` or `ScratchTransformerForConditionalGeneration`; a `ScratchGPTModel` for the notes'
        `Transformer` without its classifier. It is in evaluation mode and has the weights' dtype; if they are mixed,
        the one that holds them all. The encoder-decoder articles do not say which ids start and end a sentence: set
        them in `config` and `generation_config` before you call `generate()`.

    Raises:
        ValueError: something else than a state dict, another article's weights, missing, unknown or misshapen
            weights, another mask or table of positions than the article's, or hyperparameters that make no model.
    """
    config = make_preset(source, **hyperparameters)
    if not isinstance(state_dict, Mapping) or not all(map(_is_named_tensor, state_dict.items())):
        raise ValueError("`state_dict` must map names to dense tensors, as `model.state_dict()` does.")
    if state_dict and all(name.startswith("module.") for name in state_dict):
        state_dict = {name.removeprefix("module."): tensor for name, tensor in state_dict.items()}
    read_weights, signature = ARTICLES[source]
    if not any(name.endswith(signature) for name in state_dict):
        others = [other for other, (_, name) in ARTICLES.items() if any(key.endswith(name) for key in state_dict)]
        looks = (
            f"It looks like {others[0]!r}."
            if others
            else f"Its first names are {', '.join(list(state_dict)[:5]) or 'none'}."
        )
        raise ValueError(f"The state dict is not that of {source!r}: it has no {signature}. {looks}")
    reader = _Reader(state_dict)
    state = read_weights(reader, config)
    reader.check(source)

    if isinstance(config, ScratchTransformerConfig):
        model = ScratchTransformerForConditionalGeneration(config)
    elif source == "tinystories-notes" and "lm_head.weight" not in state:
        model = ScratchGPTModel(config)
    else:
        model = ScratchGPTForCausalLM(config)
    model = model.to(reduce(torch.promote_types, (tensor.dtype for tensor in state.values())))
    fresh, _ = model.load_state_dict(state, strict=False)
    if fresh:
        logger.warning(
            f"The state dict holds only the encoder of {source!r}. These weights are newly initialised and must be "
            f"trained: {', '.join(fresh)}."
        )
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
