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
from hf_scratch.models.scratch_layers import SinusoidalPositionalEmbedding

SEEDS = ROOT.parent / "shared" / "seeds"
LENGTHS = [(1, 1), (7, 5), (12, 12)]  # source and target

# hyperparameters of a small, a medium and a large model
ARTICLES = {
    "gpt-playground": [
        {"n_layer": 1, "n_head": 1, "embedding_dim": 8, "vocab_size": 11, "block_size": 12},
        {"n_layer": 2, "n_head": 4, "embedding_dim": 32, "vocab_size": 40, "block_size": 16},
        {"n_layer": 3, "n_head": 8, "embedding_dim": 96, "vocab_size": 65, "block_size": 20},
    ],
    "tinystories-notes": [
        {"vocab_size": 11, "seq_length": 12, "embed_dim": 8, "num_heads": 1, "num_transformer_layers": 1},
        {"vocab_size": 40, "seq_length": 16, "embed_dim": 32, "num_heads": 4, "num_transformer_layers": 2},
        {"vocab_size": 90, "seq_length": 20, "embed_dim": 64, "num_heads": 8, "num_transformer_layers": 4},
    ],
    "annotated-seq2seq": [
        {"vocab_enc": 11, "vocab_dec": 13, "maxlen": 12, "pad_id": 0, "dm": 8, "dk": 3, "dv": 4, "nhead": 2,
         "layers": 1, "dff": 10},
        {"vocab_enc": 40, "vocab_dec": 30, "maxlen": 16, "pad_id": 2, "dm": 32, "dk": 16, "dv": 8, "nhead": 4,
         "layers": 2, "dff": 64, "bias": True, "scale": False},
        {"vocab_enc": 70, "vocab_dec": 80, "maxlen": 20, "pad_id": 1, "dm": 64, "dk": 8, "dv": 8, "nhead": 8,
         "layers": 3, "dff": 96, "eps": 1e-3},
    ],
    "gelu-seq2seq": [
        {"vocab_size": 11, "embed_size": 8, "heads": 1, "num_layers": 1, "max_len": 12},
        {"vocab_size": (40, 30), "embed_size": 32, "heads": 4, "num_layers": 2, "max_len": 16, "bias": True},
        {"vocab_size": 70, "embed_size": 64, "heads": 8, "num_layers": 3, "max_len": 20},
    ],
    "paper-seq2seq": [
        {"vocab_size": 11, "d_model": 8, "n_head": 1, "hidden_dim": 10, "num_layers": 1, "max_len": 12},
        {"vocab_size": (40, 30), "d_model": 32, "n_head": 4, "hidden_dim": 64, "num_layers": 2, "max_len": 16},
        {"vocab_size": 70, "d_model": 64, "n_head": 8, "hidden_dim": 96, "num_layers": 3, "max_len": 20},
    ],
}  # fmt: skip
MEDIUM = {source: sizes[1] for source, sizes in ARTICLES.items()}
DECODERS = ("gpt-playground", "tinystories-notes")


def each_size(source: str):
    return pytest.mark.parametrize("hyperparameters", ARTICLES[source], ids=["small", "medium", "large"])


def vocabularies(hyperparameters: dict) -> tuple[int, int]:
    """The sizes of source and target."""
    sizes = hyperparameters.get("vocab_size") or (hyperparameters["vocab_enc"], hyperparameters["vocab_dec"])
    return (sizes, sizes) if isinstance(sizes, int) else sizes


def draw(size: int, shape: tuple[int, int], seed: int) -> torch.Tensor:
    return torch.randint(3, size, shape, generator=torch.Generator().manual_seed(seed))


def pad(ids: torch.Tensor, pad_id: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The second row's last third is padding."""
    mask = torch.ones_like(ids)
    mask[1, ids.shape[1] - ids.shape[1] // 3 :] = 0
    return ids.masked_fill(mask == 0, pad_id), mask


def make_inputs(source: str, hyperparameters: dict, lengths: tuple[int, int] = (12, 12)) -> dict[str, torch.Tensor]:
    """Two rows for our model. Sources are padded, and the targets of the one article that masks them."""
    sizes, pad_id = vocabularies(hyperparameters), hyperparameters.get("pad_id", 1)
    ids, target = (draw(size, (2, length), seed) for size, length, seed in zip(sizes, lengths, (1, 2), strict=True))
    if source in DECODERS:
        return {"input_ids": ids}
    ids, mask = pad(ids, pad_id)
    inputs = {"input_ids": ids, "attention_mask": mask, "decoder_input_ids": target}
    if source == "annotated-seq2seq":
        inputs["decoder_input_ids"], inputs["decoder_attention_mask"] = pad(target, pad_id)
    return inputs


def compute(source: str, weights: Weights, inputs: dict[str, torch.Tensor], **hyperparameters):
    """What the equations give; the weights are drawn as they are asked for."""
    names = ["input_ids", "decoder_input_ids", "attention_mask"][: 2 if source == "annotated-seq2seq" else 3]
    given = [inputs[name] for name in names if name in inputs]
    return getattr(reference, source.replace("-", "_"))(weights, *given, **hyperparameters)


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

CASES = [(source, hyperparameters) for source, sizes in ARTICLES.items() for hyperparameters in sizes]
CASES.append(("tinystories-notes", {**MEDIUM["tinystories-notes"], "mask": False}))


@pytest.mark.parametrize(("source", "hyperparameters"), CASES)
def test_a_converted_model_computes_the_articles_equations(source, hyperparameters):
    weights = Weights()
    for lengths in LENGTHS:
        inputs = make_inputs(source, hyperparameters, lengths)
        expected = compute(source, weights, inputs, **hyperparameters)
        expected = expected[1] if source == "gelu-seq2seq" else expected
        ours = run(from_article(source, weights, **hyperparameters), **inputs)
        assert_same(ours, expected, inputs.get("decoder_attention_mask"))


def test_the_notes_transformer_without_its_classifier_is_an_encoder():
    source, weights, hyperparameters = "tinystories-notes", Weights(), {**MEDIUM["tinystories-notes"], "mask": False}
    inputs = make_inputs(source, hyperparameters)
    theirs = compute(source, weights, inputs, **hyperparameters, prefix="")
    model = from_article(source, weights, **hyperparameters)
    assert type(model) is ScratchGPTModel
    assert_same(model(**inputs).last_hidden_state, theirs)


def encode_counting_padding(model, input_ids, attention_mask) -> torch.Tensor:
    """The encoder's states, as gelu-seq2seq: it counts padding too, which its sum of all values reads."""
    positions = torch.arange(input_ids.shape[1])[None]
    return model.model.encoder(input_ids, attention_mask=attention_mask, position_ids=positions).last_hidden_state


def test_gelu_seq2seq_warns_of_the_decoders_residual_that_is_corrected(caplog):
    source, weights, hyperparameters = "gelu-seq2seq", Weights(), MEDIUM["gelu-seq2seq"]
    inputs = make_inputs(source, hyperparameters)
    states, logits = compute(source, weights, inputs, **hyperparameters)
    model = from_article(source, weights, **hyperparameters)
    (warning,) = caplog.records
    assert "cross-attention" in warning.getMessage()
    ids, mask = inputs["input_ids"], inputs["attention_mask"]
    assert_same(encode_counting_padding(model, ids, mask), states, mask)
    _, uncorrected = compute(source, weights, inputs, **hyperparameters, corrected=False)
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


def make_article(source: str, hyperparameters: dict) -> nn.Module:
    """The article's own model."""
    if source == "gpt-playground":
        return execute("000").GPT(**hyperparameters)
    if source == "annotated-seq2seq":
        return execute("001").Transformer(**hyperparameters, dropout=0.0)
    return notes_code(hyperparameters).LanguageModel(notes_config(hyperparameters))


def notes_code(hyperparameters: dict) -> SimpleNamespace:
    return execute("004", tokenizer=SimpleNamespace(vocab_size=hyperparameters["vocab_size"]))


def notes_config(hyperparameters: dict) -> SimpleNamespace:
    head_dim = hyperparameters["embed_dim"] // hyperparameters["num_heads"]
    return SimpleNamespace(**hyperparameters, head_dim=head_dim, dropout_prob=0.0)


@each_size("gpt-playground")
@torch.no_grad()
def test_gpt_playgrounds_own_code(hyperparameters):
    theirs = randomise(make_article("gpt-playground", hyperparameters))
    model = from_article("gpt-playground", nn.DataParallel(theirs).state_dict(), **hyperparameters)
    ids = make_inputs("gpt-playground", hyperparameters)["input_ids"]
    assert_same(run(model, input_ids=ids), theirs(ids)[0])
    start = ids[:1, :3]
    # past the block size
    assert model.generate(start, max_new_tokens=30, do_sample=False).equal(theirs.generate(start, 30))
    for top_k in (1, 3, 10):
        torch.manual_seed(0)
        expected = theirs.generate(start, 30, sampling=True, top_k=top_k)
        torch.manual_seed(0)
        assert model.generate(start, max_new_tokens=30, do_sample=True, top_k=top_k).equal(expected)


@each_size("annotated-seq2seq")
@torch.no_grad()
def test_annotated_seq2seqs_own_code(hyperparameters):
    theirs = randomise(make_article("annotated-seq2seq", hyperparameters))
    model = from_article("annotated-seq2seq", theirs.state_dict(), **hyperparameters)
    inputs = make_inputs("annotated-seq2seq", hyperparameters, (9, 6))
    source_mask, target_mask = (inputs[name][:, None].bool() for name in ("attention_mask", "decoder_attention_mask"))
    masks = source_mask, target_mask & reference.causal(6)
    expected = theirs(inputs["input_ids"], inputs["decoder_input_ids"], *masks)
    assert_same(run(model, **inputs), expected, inputs["decoder_attention_mask"])


@each_size("gelu-seq2seq")
@pytest.mark.parametrize("attention", ["sdpa", "sum_of_values"])
@torch.no_grad()
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
    source, target = vocabularies(hyperparameters)
    theirs = nn.ModuleDict(
        {"encoder": article.Encoder(source, **arguments), "decoder": article.Decoder(target, **arguments)}
    )
    randomise(theirs)
    model = from_article("gelu-seq2seq", theirs.state_dict(), **hyperparameters)
    model.set_attn_implementation(attention)
    src, mask = pad(draw(source, (2, 9), seed=1), 0)
    states = theirs["encoder"](src, mask[:, None, None])
    assert_same(encode_counting_padding(model, src, mask), states, mask)
    # the decoder's self-attention, the first step of its first layer
    x = torch.randn(2, 6, hyperparameters["embed_size"])
    block, layer = theirs["decoder"].decoder_layer[0], model.model.decoder.layers[0]
    expected = block.layer_norm(x + block.attention(x, x, x, reference.causal(6)[None, None]))
    assert_same(layer.self_attn_norm(x + layer.self_attn(x)[0]), expected)


class PaperSeq2Seq(nn.Module):
    """The blocks of paper-seq2seq's own code, put together as its prose says."""

    def __init__(self, article, vocab_size, d_model, n_head, hidden_dim, num_layers, max_len):
        super().__init__()
        source, target = vocabularies({"vocab_size": vocab_size})

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


@each_size("paper-seq2seq")
@torch.no_grad()
def test_paper_seq2seqs_own_blocks(hyperparameters):
    theirs = randomise(PaperSeq2Seq(execute("003"), **hyperparameters))
    model = from_article("paper-seq2seq", theirs.state_dict(), **hyperparameters)
    # its attention takes the queries' length for the keys' as well: source and target are equally long
    inputs = make_inputs("paper-seq2seq", hyperparameters)
    for mask in (inputs["attention_mask"], torch.ones_like(inputs["attention_mask"])):
        expected = theirs(inputs["input_ids"], inputs["decoder_input_ids"], mask[:, None, None])
        assert_same(run(model, **{**inputs, "attention_mask": mask}), expected)


@pytest.mark.parametrize("mask", [True, False])
@each_size("tinystories-notes")
@torch.no_grad()
def test_tinystories_notes_own_code(hyperparameters, mask):
    ids = make_inputs("tinystories-notes", hyperparameters)["input_ids"]
    if mask:
        theirs = randomise(make_article("tinystories-notes", hyperparameters))
        model = from_article("tinystories-notes", theirs.state_dict(), **hyperparameters)
        assert_same(run(model, input_ids=ids), theirs(ids))
    theirs = randomise(notes_code(hyperparameters).Transformer(notes_config(hyperparameters), mask=mask))
    model = from_article("tinystories-notes", theirs.state_dict(), **hyperparameters, mask=mask)
    assert_same(model(ids).last_hidden_state, theirs(ids))


@pytest.mark.parametrize("source", ["gpt-playground", "annotated-seq2seq", "tinystories-notes"])
def test_a_preset_draws_its_weights_as_the_article_does(source):
    """The standard deviation of each weight and bias, and the first loss, over six draws each."""
    torch.manual_seed(0)
    hyperparameters = ARTICLES[source][2] | ({"dm": 96} if source == "annotated-seq2seq" else {})
    theirs = [make_article(source, hyperparameters) for _ in range(6)]
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


# what does not fit, and what comes out


def make_state(source: str) -> dict[str, torch.Tensor]:
    weights = Weights()
    compute(source, weights, make_inputs(source, MEDIUM[source]), **MEDIUM[source])
    return dict(weights)


@pytest.mark.parametrize("source", ARTICLES)
def test_what_does_not_fit_is_refused(source):
    state = make_state(source)
    name = [name for name in state if name.endswith("weight") and state[name].dim() == 2][1]
    short = {key: tensor for key, tensor in state.items() if key != name}
    other = make_state("paper-seq2seq" if source == "gelu-seq2seq" else "gelu-seq2seq")
    for wrong in (short, {**state, "something.else": torch.zeros(1)}, {**state, name: torch.zeros(2, 3)}, other):
        with pytest.raises(ValueError, match=f"The state dict is not that of '{source}' with these hyperparameters"):
            from_article(source, wrong, **MEDIUM[source])


@pytest.mark.parametrize(("source", "name"), [("annotated-seq2seq", "pos_encodings.pos_encodings"),
                                              ("gelu-seq2seq", "position_embed.weight")])  # fmt: skip
def test_other_positions_are_not_dropped_silently(source, name):
    table = SinusoidalPositionalEmbedding(50, 32).make_table()
    state = make_state(source) | {f"{stack}.{name}": table[:, None] for stack in ("encoder", "decoder")}
    from_article(source, state, **MEDIUM[source])
    for other in (1 - table, table[:, :-1], torch.zeros(())):
        with pytest.raises(ValueError, match=re.escape(f"{name} holds other positions than the paper's sinusoids")):
            from_article(source, {**state, f"decoder.{name}": other}, **MEDIUM[source])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_the_weights_keep_their_dtype_and_their_owner(dtype):
    state = {name: tensor.to(dtype) for name, tensor in make_state("annotated-seq2seq").items()}
    before = {name: tensor.clone() for name, tensor in state.items()}
    model = from_article("annotated-seq2seq", state, **MEDIUM["annotated-seq2seq"])
    assert {parameter.dtype for parameter in model.parameters()} == {dtype}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert all(state[name].equal(before[name]) for name in state)


def test_mixed_dtypes_become_the_one_that_holds_them_all():
    state = make_state("gpt-playground")
    state["transformer.attention.0.fc1.bias"] += 1e5  # infinite in float16
    mixed = {name: tensor.half() if name == "transformer.emb.weight" else tensor for name, tensor in state.items()}
    model = from_article("gpt-playground", mixed, **MEDIUM["gpt-playground"])
    assert model.dtype == torch.float32
    assert torch.equal(model.model.layers[0].feed_forward.fc1.bias, state["transformer.attention.0.fc1.bias"])
