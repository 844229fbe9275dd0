# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""The articles' checkpoints: converted models compute what the equations and the articles' own code compute."""

import math
import re
from types import SimpleNamespace

import article_reference as reference
import numpy
import pytest
import torch
from article_reference import Weights
from conftest import ROOT
from torch import nn

from hf_scratch import ScratchGPTModel
from hf_scratch.convert import from_article, make_preset

SEEDS = ROOT.parent / "shared" / "seeds"
LENGTHS = [(1, 1), (7, 5), (12, 12)]  # source and target

GPT_PLAYGROUND = [
    {"n_layer": 1, "n_head": 1, "embedding_dim": 8, "vocab_size": 11, "block_size": 12},
    {"n_layer": 2, "n_head": 4, "embedding_dim": 32, "vocab_size": 40, "block_size": 16},
    {"n_layer": 3, "n_head": 8, "embedding_dim": 96, "vocab_size": 65, "block_size": 20},
]
TINYSTORIES_NOTES = [
    {"vocab_size": 11, "seq_length": 12, "embed_dim": 8, "num_heads": 1, "num_transformer_layers": 1},
    {"vocab_size": 40, "seq_length": 16, "embed_dim": 32, "num_heads": 4, "num_transformer_layers": 2},
    {"vocab_size": 90, "seq_length": 20, "embed_dim": 64, "num_heads": 8, "num_transformer_layers": 4},
]
ANNOTATED_SEQ2SEQ = [
    {"vocab_enc": 11, "vocab_dec": 13, "maxlen": 12, "pad_id": 0, "dm": 8, "dk": 3, "dv": 4, "nhead": 2, "layers": 1,
     "dff": 10},
    {"vocab_enc": 40, "vocab_dec": 30, "maxlen": 16, "pad_id": 2, "dm": 32, "dk": 16, "dv": 8, "nhead": 4, "layers": 2,
     "dff": 64, "bias": True, "scale": False},
    {"vocab_enc": 70, "vocab_dec": 80, "maxlen": 20, "pad_id": 1, "dm": 64, "dk": 8, "dv": 8, "nhead": 8, "layers": 3,
     "dff": 96, "eps": 1e-3},
]  # fmt: skip
GELU_SEQ2SEQ = [
    {"vocab_size": 11, "embed_size": 8, "heads": 1, "num_layers": 1, "max_len": 12},
    {"vocab_size": (40, 30), "embed_size": 32, "heads": 4, "num_layers": 2, "max_len": 16, "bias": True},
    {"vocab_size": 70, "embed_size": 64, "heads": 8, "num_layers": 3, "max_len": 20},
]
PAPER_SEQ2SEQ = [
    {"vocab_size": 11, "d_model": 8, "n_head": 1, "hidden_dim": 10, "num_layers": 1, "max_len": 12},
    {"vocab_size": (40, 30), "d_model": 32, "n_head": 4, "hidden_dim": 64, "num_layers": 2, "max_len": 16},
    {"vocab_size": 70, "d_model": 64, "n_head": 8, "hidden_dim": 96, "num_layers": 3, "max_len": 20},
]


def draw(size: int | tuple, shape: tuple[int, int], seed: int, side: int = 0) -> torch.Tensor:
    size = size if isinstance(size, int) else size[side]
    return torch.randint(3, size, shape, generator=torch.Generator().manual_seed(seed))


def pad(ids: torch.Tensor, pad_id: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """The second row's last third is padding."""
    mask = torch.ones_like(ids)
    mask[1, ids.shape[1] - ids.shape[1] // 3 :] = 0
    return ids.masked_fill(mask == 0, pad_id), mask


def assert_same(ours: torch.Tensor, theirs: torch.Tensor, mask: torch.Tensor | None = None) -> None:
    """Logits within 1e-5 of each other at the positions that are not padding."""
    difference = (ours - theirs).abs()
    difference = difference if mask is None else difference[mask.bool()]
    assert theirs.std() > 0.1  # there is something to compare
    assert difference.max() < 1e-5, difference.max()


@torch.no_grad()
def run(model, **inputs) -> torch.Tensor:
    return model(**inputs).logits


# against the equations


@pytest.mark.parametrize("hyperparameters", GPT_PLAYGROUND, ids=["small", "medium", "large"])
def test_gpt_playground(hyperparameters):
    weights = Weights()
    for length in (1, 12):
        ids = draw(hyperparameters["vocab_size"], (2, length), seed=length)
        theirs = reference.gpt_playground(weights, ids, **hyperparameters)
        assert_same(run(from_article("gpt-playground", weights, **hyperparameters), input_ids=ids), theirs)


@pytest.mark.parametrize("mask", [True, False])
@pytest.mark.parametrize("hyperparameters", TINYSTORIES_NOTES, ids=["small", "medium", "large"])
def test_tinystories_notes(hyperparameters, mask):
    weights, hyperparameters = Weights(), {**hyperparameters, "mask": mask}
    ids = draw(hyperparameters["vocab_size"], (2, 12), seed=1)
    theirs = reference.tinystories_notes(weights, ids, **hyperparameters)
    assert_same(run(from_article("tinystories-notes", weights, **hyperparameters), input_ids=ids), theirs)


def test_the_notes_transformer_without_its_classifier_is_an_encoder():
    weights, hyperparameters = Weights(), {**TINYSTORIES_NOTES[1], "mask": False}
    ids = draw(hyperparameters["vocab_size"], (2, 12), seed=1)
    theirs = reference.tinystories_notes(weights, ids, **hyperparameters, prefix="")
    model = from_article("tinystories-notes", weights, **hyperparameters)
    assert type(model) is ScratchGPTModel
    assert_same(model(ids).last_hidden_state, theirs)


@pytest.mark.parametrize("hyperparameters", ANNOTATED_SEQ2SEQ, ids=["small", "medium", "large"])
def test_annotated_seq2seq(hyperparameters):
    weights, pad_id = Weights(), hyperparameters["pad_id"]
    for source_length, target_length in LENGTHS:
        src, source_mask = pad(draw(hyperparameters["vocab_enc"], (2, source_length), seed=1), pad_id)
        trg, target_mask = pad(draw(hyperparameters["vocab_dec"], (2, target_length), seed=2), pad_id)
        theirs = reference.annotated_seq2seq(weights, src, trg, **hyperparameters)
        model = from_article("annotated-seq2seq", weights, **hyperparameters)
        ours = run(
            model, input_ids=src, attention_mask=source_mask, decoder_input_ids=trg, decoder_attention_mask=target_mask
        )
        assert_same(ours, theirs, target_mask)


@pytest.mark.parametrize("hyperparameters", PAPER_SEQ2SEQ, ids=["small", "medium", "large"])
def test_paper_seq2seq(hyperparameters):
    weights = Weights()
    for source_length, target_length in LENGTHS:
        src, mask = pad(draw(hyperparameters["vocab_size"], (2, source_length), seed=1), 1)
        trg = draw(hyperparameters["vocab_size"], (2, target_length), seed=2, side=1)
        theirs = reference.paper_seq2seq(weights, src, trg, mask, **hyperparameters)
        model = from_article("paper-seq2seq", weights, **hyperparameters)
        assert_same(run(model, input_ids=src, attention_mask=mask, decoder_input_ids=trg), theirs)


@pytest.mark.parametrize("hyperparameters", GELU_SEQ2SEQ, ids=["small", "medium", "large"])
def test_gelu_seq2seq_with_the_decoders_residual_corrected(hyperparameters, caplog):
    weights = Weights()
    for source_length, target_length in LENGTHS:
        src, mask = pad(draw(hyperparameters["vocab_size"], (2, source_length), seed=1))
        trg = draw(hyperparameters["vocab_size"], (2, target_length), seed=2, side=1)
        states, logits = reference.gelu_seq2seq(weights, src, trg, mask, **hyperparameters)
        caplog.clear()
        model = from_article("gelu-seq2seq", weights, **hyperparameters)
        (warning,) = caplog.records
        assert "cross-attention" in warning.getMessage()
        positions = torch.arange(src.shape[1])[None]  # it counts padding too, which its sum of all values reads
        ours = model.model.encoder(src, attention_mask=mask, position_ids=positions)
        assert_same(ours.last_hidden_state, states, mask)
        assert_same(run(model, input_ids=src, attention_mask=mask, decoder_input_ids=trg), logits)
    _, uncorrected = reference.gelu_seq2seq(weights, src, trg, mask, **hyperparameters, corrected=False)
    assert not torch.allclose(uncorrected, logits, atol=0.1)  # the warning is about something


# against the articles' own code


def execute(name: str, correct: tuple[str, str] = ("", ""), **names) -> SimpleNamespace:
    """The classes that an article defines."""
    (path,) = SEEDS.glob(f"{name}_*.txt") if SEEDS.is_dir() else [None]
    if path is None:
        pytest.skip("the articles are not at hand")
    text = path.read_text(encoding="utf-8").replace(*correct)
    if "```" in text:
        text = "\n".join(re.findall(r"```python\n(.*?)```", text, flags=re.S))
    elif name == "004":  # its code has lost its indentation
        text = indent(text[text.rindex("class Config:") :].split("Transformer(Config)")[0]) + indent(
            "class LanguageModel" + text.split("class LanguageModel")[1].split("model = LanguageModel")[0]
        )
    space = {
        "torch": torch, "nn": nn, "F": nn.functional, "math": math, "sqrt": math.sqrt, "np": numpy, "init": nn.init,
        "device": "cpu", **names,
    }  # fmt: skip
    for block in re.split(r"^(?=class )", text, flags=re.M)[1:]:
        head, *lines = block.splitlines()
        outside = [i for i, line in enumerate(lines) if line.strip() and not line.startswith(" ")]
        lines = [head, *lines[: outside[0] if outside else None]]
        end = max((i for i, line in enumerate(lines) if line.startswith(" ") and "return" in line), default=0)
        if end:  # what follows a class's last method is not its own
            exec("\n".join(lines[: end + 1]), space)
    if function := re.search(r"^def xavier_init.*?(?=^\S)", text, flags=re.M | re.S):
        exec(function[0], space)
    return SimpleNamespace(**space)


def indent(code: str) -> str:
    lines, inside = [], False
    for line in code.splitlines():
        if line.startswith("class "):
            depth = 0
        elif line.startswith("def "):
            depth = 1
        else:
            depth = 3 if inside else 2
        inside = line.startswith(("if ", "for ")) and line.endswith(":")
        lines.append("    " * depth + line)
    return "\n".join(lines) + "\n"


def randomise(module: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    for name, parameter in module.named_parameters():
        std = parameter.shape[-1] ** -0.5 if parameter.dim() > 1 else 0.2
        nn.init.normal_(parameter, mean=float("norm" in name and "weight" in name), std=std)
    return module.eval()


@pytest.mark.parametrize("hyperparameters", GPT_PLAYGROUND, ids=["small", "medium", "large"])
def test_gpt_playgrounds_own_code(hyperparameters):
    theirs = randomise(execute("000").GPT(**hyperparameters))
    model = from_article("gpt-playground", nn.DataParallel(theirs).state_dict(), **hyperparameters)
    ids = draw(hyperparameters["vocab_size"], (2, 12), seed=1)
    with torch.no_grad():
        assert_same(run(model, input_ids=ids), theirs(ids)[0])
        # greedy, past the block size
        start = ids[:1, :3]
        assert model.generate(start, max_new_tokens=30, do_sample=False).equal(theirs.generate(start, 30))


def test_gpt_playgrounds_sampling_has_its_generation_config():
    """With one draw seeded alike, top-k sampling gives the article's tokens: the distributions are the same."""
    theirs = randomise(execute("000").GPT(**GPT_PLAYGROUND[1]))
    model = from_article("gpt-playground", theirs.state_dict(), **GPT_PLAYGROUND[1])
    start = torch.tensor([[3, 4, 5]])
    for top_k in (1, 3, 10):
        torch.manual_seed(0)
        expected = theirs.generate(start, 30, sampling=True, top_k=top_k)
        torch.manual_seed(0)
        assert model.generate(start, max_new_tokens=30, do_sample=True, top_k=top_k).equal(expected)


@pytest.mark.parametrize("hyperparameters", ANNOTATED_SEQ2SEQ, ids=["small", "medium", "large"])
def test_annotated_seq2seqs_own_code(hyperparameters):
    article = execute("001")
    theirs = randomise(article.Transformer(**hyperparameters))
    model = from_article("annotated-seq2seq", theirs.state_dict(), **hyperparameters)
    pad_id = hyperparameters["pad_id"]
    src, source_mask = pad(draw(hyperparameters["vocab_enc"], (2, 9), seed=1), pad_id)
    trg, target_mask = pad(draw(hyperparameters["vocab_dec"], (2, 6), seed=2), pad_id)
    inputs = {
        "input_ids": src, "attention_mask": source_mask, "decoder_input_ids": trg,
        "decoder_attention_mask": target_mask,
    }  # fmt: skip
    causal = (trg != pad_id)[:, None] & reference.causal(6)
    with torch.no_grad():
        assert_same(run(model, **inputs), theirs(src, trg, (src != pad_id)[:, None], causal), target_mask)


@pytest.mark.parametrize("hyperparameters", GELU_SEQ2SEQ, ids=["small", "medium", "large"])
@pytest.mark.parametrize("attention", ["sdpa", "sum_of_values"])
def test_gelu_seq2seqs_own_code(hyperparameters, attention):
    """As it is, it sums all values; with its einsum corrected, it weights them."""

    class PositionalEncoding(nn.Module):  # named by the article, and not defined
        def __init__(self, width, max_len, dropout):
            super().__init__()
            self.register_buffer("encoding", reference.sinusoids(max_len, width))

        def forward(self, x):
            return x + self.encoding[: x.shape[1]]

    correct = ("bvhd", "bkhd") if attention == "sdpa" else ("", "")
    article = execute("002", correct, PositionalEncoding=PositionalEncoding)
    arguments = {key: value for key, value in hyperparameters.items() if key != "vocab_size"} | {"dropout": 0.1}
    sizes = hyperparameters["vocab_size"]
    source, target = (sizes, sizes) if isinstance(sizes, int) else sizes
    theirs = nn.ModuleDict(
        {"encoder": article.Encoder(source, **arguments), "decoder": article.Decoder(target, **arguments)}
    )
    randomise(theirs)
    model = from_article("gelu-seq2seq", theirs.state_dict(), **hyperparameters)
    model.set_attn_implementation(attention)
    src, mask = pad(draw(source, (2, 9), seed=1))
    with torch.no_grad():
        states = theirs["encoder"](src, mask[:, None, None])
        positions = torch.arange(src.shape[1])[None]  # it counts padding too, which its sum of all values reads
        ours = model.model.encoder(src, attention_mask=mask, position_ids=positions)
        assert_same(ours.last_hidden_state, states, mask)
        # the decoder's self-attention, the first step of its first layer
        x = torch.randn(2, 6, hyperparameters["embed_size"])
        block, layer = theirs["decoder"].decoder_layer[0], model.model.decoder.layers[0]
        expected = block.layer_norm(x + block.attention(x, x, x, reference.causal(6)[None, None]))
        ours = layer.self_attn_norm(x + layer.self_attn(x)[0])
        assert_same(ours, expected)


class PaperSeq2Seq(nn.Module):
    """The blocks of paper-seq2seq's own code, put together as its prose says."""

    def __init__(self, article, vocab_size, d_model, n_head, hidden_dim, num_layers, max_len):
        super().__init__()
        source, target = (vocab_size, vocab_size) if isinstance(vocab_size, int) else vocab_size

        def layer(*names: str) -> nn.ModuleDict:
            blocks = {name: article.MultiHeadAttention(d_model, n_head) for name in names}
            norms = {f"norm{i + 1}": article.LayerNorm(d_model) for i in range(len(names) + 1)}
            return nn.ModuleDict({**blocks, **norms, "ffn": article.FFN(d_model, hidden_dim)})

        def stack(size: int, *names: str) -> nn.ModuleDict:
            layers = nn.ModuleList([layer(*names) for _ in range(num_layers)])
            return nn.ModuleDict({"embedding": nn.Embedding(size, d_model, padding_idx=1), "layers": layers})

        self.encoder, self.decoder = stack(source, "attention"), stack(target, "attention", "cross_attention")
        self.decoder["linear"] = nn.Linear(d_model, target)

    def forward(self, src, trg, mask):
        length, width = src.shape[1], self.encoder["embedding"].embedding_dim
        states = self.encoder["embedding"](src) + reference.sinusoids(length, width)
        for layer in self.encoder["layers"]:
            states = layer["norm1"](states + layer["attention"](states, states, states, mask))
            states = layer["norm2"](states + layer["ffn"](states))
        x = self.decoder["embedding"](trg) + reference.sinusoids(length, width)
        for layer in self.decoder["layers"]:
            x = layer["norm1"](x + layer["attention"](x, x, x, reference.causal(length)[None, None]))
            x = layer["norm2"](x + layer["cross_attention"](x, states, states, mask))
            x = layer["norm3"](x + layer["ffn"](x))
        return self.decoder["linear"](x)


@pytest.mark.parametrize("hyperparameters", PAPER_SEQ2SEQ, ids=["small", "medium", "large"])
def test_paper_seq2seqs_own_blocks(hyperparameters):
    theirs = randomise(PaperSeq2Seq(execute("003"), **hyperparameters))
    model = from_article("paper-seq2seq", theirs.state_dict(), **hyperparameters)
    # its attention takes the queries' length for the keys' as well: source and target are equally long
    src, mask = pad(draw(hyperparameters["vocab_size"], (2, 12), seed=1), 1)
    trg = draw(hyperparameters["vocab_size"], (2, 12), seed=2, side=1)
    with torch.no_grad():
        for given in (mask, torch.ones_like(mask)):
            ours = run(model, input_ids=src, attention_mask=given, decoder_input_ids=trg)
            assert_same(ours, theirs(src, trg, given[:, None, None]))


@pytest.mark.parametrize("mask", [True, False])
@pytest.mark.parametrize("hyperparameters", TINYSTORIES_NOTES, ids=["small", "medium", "large"])
def test_tinystories_notes_own_code(hyperparameters, mask):
    config = SimpleNamespace(
        **hyperparameters, head_dim=hyperparameters["embed_dim"] // hyperparameters["num_heads"], dropout_prob=0.1
    )
    tokenizer = SimpleNamespace(vocab_size=hyperparameters["vocab_size"])
    article = execute("004", tokenizer=tokenizer)
    ids = draw(hyperparameters["vocab_size"], (2, 12), seed=1)
    with torch.no_grad():
        if mask:
            theirs = randomise(article.LanguageModel(config))
            model = from_article("tinystories-notes", theirs.state_dict(), **hyperparameters)
            assert_same(run(model, input_ids=ids), theirs(ids))
        theirs = randomise(article.Transformer(config, mask=mask))
        model = from_article("tinystories-notes", theirs.state_dict(), **hyperparameters, mask=mask)
        assert_same(model(ids).last_hidden_state, theirs(ids))


@pytest.mark.parametrize("source", ["gpt-playground", "annotated-seq2seq", "tinystories-notes"])
def test_a_preset_draws_its_weights_as_the_article_does(source):
    """The standard deviation of each weight and bias, and the first loss, over six draws each."""
    torch.manual_seed(0)
    if source == "gpt-playground":
        hyperparameters, name = GPT_PLAYGROUND[2], "000"
        theirs = [execute(name).GPT(**hyperparameters) for _ in range(6)]
    elif source == "annotated-seq2seq":
        hyperparameters, name = ANNOTATED_SEQ2SEQ[2] | {"dm": 96, "dropout": 0.0}, "001"
        theirs = [execute(name).Transformer(**hyperparameters) for _ in range(6)]
    else:
        hyperparameters, name = TINYSTORIES_NOTES[2], "004"
        config = SimpleNamespace(**hyperparameters, head_dim=8, dropout_prob=0.0)
        theirs = [execute(name, tokenizer=SimpleNamespace(vocab_size=90)).LanguageModel(config) for _ in range(6)]
    converted = [from_article(source, model.state_dict(), **hyperparameters) for model in theirs]
    ours = [type(converted[0])(make_preset(source, **hyperparameters)) for _ in range(6)]
    for key, weight in converted[0].named_parameters():
        expected, drawn = (
            torch.stack([model.get_parameter(key).detach() for model in models]) for models in (converted, ours)
        )
        torch.testing.assert_close(drawn.mean(), expected.mean(), atol=0.05 * float(expected.std()) + 0.02, rtol=0)
        tolerance = 0.1 if weight.dim() > 1 else 0.3  # a bias has few numbers
        torch.testing.assert_close(drawn.std(), expected.std(), atol=1e-7, rtol=tolerance, msg=key)
    ids = draw(65, (8, 12), seed=3)
    inputs = {"input_ids": ids, "labels": ids}
    if source == "annotated-seq2seq":  # it says of no token that it starts a sentence
        inputs["decoder_input_ids"] = ids
    with torch.no_grad():
        losses = [[float(model.eval()(**inputs).loss) for model in models] for models in (converted, ours)]
    assert sum(losses[0]) == pytest.approx(sum(losses[1]), rel=0.05)
