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
from transformers import TrainingArguments

from hf_scratch import ScratchGPTModel
from hf_scratch.convert import from_article
from hf_scratch.convert.presets import make_preset
from hf_scratch.recipes import read_recipe
from hf_scratch.training.trainers import LanguageModelTrainer

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
        assert_same(model.model.encoder(src, attention_mask=mask).last_hidden_state, states, mask)
        assert_same(run(model, input_ids=src, attention_mask=mask, decoder_input_ids=trg), logits)
    _, uncorrected = reference.gelu_seq2seq(weights, src, trg, mask, **hyperparameters, corrected=False)
    assert not torch.allclose(uncorrected, logits, atol=0.1)  # the warning is about something


@pytest.mark.parametrize("source", ["gelu-seq2seq", "paper-seq2seq"])
def test_an_encoder_alone_is_converted_and_the_rest_named(source, caplog):
    hyperparameters = {"gelu-seq2seq": GELU_SEQ2SEQ, "paper-seq2seq": PAPER_SEQ2SEQ}[source][1]
    weights = Weights()
    src, mask = pad(draw(40, (2, 7), seed=1))
    theirs = getattr(reference, source.replace("-", "_"))(weights, src, src % 30, mask, **hyperparameters)
    alone = {name: tensor for name, tensor in weights.items() if name.startswith("encoder.")}
    model = from_article(source, alone, **hyperparameters)
    (warning,) = [record for record in caplog.records if "initialised" in record.getMessage()]
    for name in ("model.decoder.embed_tokens.weight", "lm_head.weight", "cross_attn"):
        assert name in warning.getMessage()
    assert "model.encoder" not in warning.getMessage()
    if source == "gelu-seq2seq":
        assert_same(model.model.encoder(src, attention_mask=mask).last_hidden_state, theirs[0], mask)
    assert all(parameter.isfinite().all() for parameter in model.parameters())


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
    if "def xavier_init" in text:
        exec("def xavier_init(module): pass", space)
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
        assert_same(model.model.encoder(src, attention_mask=mask).last_hidden_state, states, mask)
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


# training parity


RECIPES = ROOT / "scripts" / "recipes"
STEPS = 20


class LossesInOrder(LanguageModelTrainer):
    """Keeps each step's loss, unrounded, and takes the rows as they stand."""

    losses: list[float]

    def compute_loss(self, *args, **kwargs):
        loss = super().compute_loss(*args, **kwargs)
        self.losses.append(loss.item())
        return loss

    def _get_train_sampler(self, train_dataset=None):
        return torch.utils.data.SequentialSampler(self.train_dataset)


def train_by_recipe(model, recipe: str, rows: list[dict], folder) -> list[float]:
    """The losses of twenty steps of four rows under Trainer with the optimiser of a recipe."""
    recipe = read_recipe(RECIPES / recipe)
    optimiser = {
        name: recipe[name] for name in recipe if name.startswith(("adam", "optim", "weight_decay", "max_grad"))
    }
    args = TrainingArguments(
        folder, learning_rate=recipe["learning_rate"], lr_scheduler_type="constant", per_device_train_batch_size=4,
        num_train_epochs=1, report_to="none", save_strategy="no", disable_tqdm=True, use_cpu=True,
        dataloader_pin_memory=False, **optimiser,
    )  # fmt: skip
    decay_all = recipe.get("decay_all_parameters", False)
    trainer = LossesInOrder(model=model, args=args, train_dataset=rows, decay_all_parameters=decay_all)
    trainer.losses = []
    trainer.train()
    return trainer.losses


def train_as_the_article(model, optimizer, step) -> list[float]:
    model.train()
    losses = []
    for index in range(STEPS):
        loss = step(slice(4 * index, 4 * index + 4))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_trainer_gives_the_losses_of_annotated_seq2seqs_own_loop(tmp_path):
    hyperparameters = {**ANNOTATED_SEQ2SEQ[2], "dropout": 0.0, "eps": 1e-6}
    theirs = randomise(execute("001").Transformer(**hyperparameters))
    model = from_article("annotated-seq2seq", theirs.state_dict(), **hyperparameters)
    pad_id = hyperparameters["pad_id"]
    src = draw(70, (4 * STEPS, 9), seed=1)
    labels = draw(80, (4 * STEPS, 7), seed=2)
    src[1::2, 6:], labels[::3, 5:] = pad_id, pad_id
    trg, out = labels[:, :-1], labels[:, 1:]

    def step(rows):
        masks = (src[rows] != pad_id)[:, None], (trg[rows] != pad_id)[:, None] & reference.causal(6)
        logits = theirs(src[rows], trg[rows], *masks)
        return nn.functional.cross_entropy(logits.flatten(0, 1), out[rows].flatten(), ignore_index=pad_id)

    batch = {
        "input_ids": src, "attention_mask": (src != pad_id).long(), "decoder_input_ids": trg,
        "labels": out.masked_fill(out == pad_id, -100),
    }  # fmt: skip
    rows = [{name: tensor[i] for name, tensor in batch.items()} for i in range(len(src))]
    losses = train_by_recipe(model, "multi30k_article.yaml", rows, tmp_path)
    adam = torch.optim.Adam(theirs.parameters(), lr=1e-5, betas=(0.9, 0.98))
    expected = train_as_the_article(theirs, adam, step)
    assert losses == pytest.approx(expected, abs=1e-4)
    assert len({round(loss, 3) for loss in losses}) > 10


def test_trainer_gives_the_losses_of_tinystories_notes_own_loop(tmp_path):
    hyperparameters = TINYSTORIES_NOTES[1]
    config = SimpleNamespace(**hyperparameters, head_dim=8, dropout_prob=0.0)
    theirs = randomise(execute("004", tokenizer=SimpleNamespace(vocab_size=40)).LanguageModel(config))
    model = from_article("tinystories-notes", theirs.state_dict(), **hyperparameters)
    ids = draw(40, (4 * STEPS, 16), seed=1)

    def step(rows):
        logits = theirs(ids[rows, :-1])
        return nn.functional.cross_entropy(logits.flatten(0, 1), ids[rows, 1:].flatten())

    rows = [{"input_ids": row, "labels": row} for row in ids]
    losses = train_by_recipe(model, "tinystories_article.yaml", rows, tmp_path)
    expected = train_as_the_article(theirs, torch.optim.AdamW(theirs.parameters(), lr=1e-3), step)
    assert losses == pytest.approx(expected, abs=1e-4)
    assert losses[-1] < 0.9 * losses[0]


# errors


def make_state(source: str, hyperparameters: dict) -> Weights:
    weights = Weights()
    if source in ("gpt-playground", "tinystories-notes"):
        getattr(reference, source.replace("-", "_"))(weights, torch.tensor([[3]]), **hyperparameters)
    elif source == "annotated-seq2seq":
        reference.annotated_seq2seq(weights, torch.tensor([[3]]), torch.tensor([[3]]), **hyperparameters)
    else:
        ids = torch.tensor([[3]])
        getattr(reference, source.replace("-", "_"))(weights, ids, ids, torch.ones_like(ids), **hyperparameters)
    return weights


ALL = {
    "gpt-playground": GPT_PLAYGROUND[1],
    "annotated-seq2seq": ANNOTATED_SEQ2SEQ[1],
    "gelu-seq2seq": GELU_SEQ2SEQ[1],
    "paper-seq2seq": PAPER_SEQ2SEQ[1],
    "tinystories-notes": TINYSTORIES_NOTES[1],
}


@pytest.mark.parametrize("source", ALL)
@pytest.mark.parametrize("other", ALL)
def test_another_articles_weights_are_recognised(source, other):
    if source != other:
        with pytest.raises(ValueError, match=f"It looks like '{other}'"):
            from_article(source, make_state(other, ALL[other]), **ALL[source])


@pytest.mark.parametrize("source", ALL)
def test_what_does_not_fit_is_listed(source):
    state = dict(make_state(source, ALL[source]))
    name = [name for name in state if name.endswith("weight") and state[name].dim() == 2][1]
    short = {key: tensor for key, tensor in state.items() if key != name}
    with pytest.raises(ValueError, match=f"missing: {re.escape(name)}"):
        from_article(source, short, **ALL[source])
    with pytest.raises(ValueError, match=r"not of this article: something\.else"):
        from_article(source, {**state, "something.else": torch.zeros(1)}, **ALL[source])
    wrong = {**state, name: torch.zeros(2, 3)}
    with pytest.raises(ValueError, match=re.escape(f"{name} is (2, 3), but the hyperparameters make it")):
        from_article(source, wrong, **ALL[source])


@pytest.mark.parametrize(
    ("source", "hyperparameters", "message"),
    [
        ("gpt-playgrounds", {}, "gpt-playground, annotated-seq2seq"),
        ("gpt-playground", {**GPT_PLAYGROUND[0], "heads": 2}, "heads is not one of them"),
        ("gpt-playground", {"n_layer": 2}, "n_head, embedding_dim, vocab_size, block_size must be given"),
    ],
)
def test_wrong_hyperparameters_are_named(source, hyperparameters, message):
    with pytest.raises(ValueError, match=message):
        make_preset(source, **hyperparameters)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_the_weights_keep_their_dtype_and_their_owner(dtype):
    state = {
        name: tensor.to(dtype) for name, tensor in make_state("annotated-seq2seq", ALL["annotated-seq2seq"]).items()
    }
    before = {name: tensor.clone() for name, tensor in state.items()}
    model = from_article("annotated-seq2seq", state, **ALL["annotated-seq2seq"])
    assert {parameter.dtype for parameter in model.parameters()} == {dtype}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert all(state[name].equal(before[name]) for name in state)


@pytest.mark.parametrize("source", ALL)
def test_a_converted_model_is_saved_and_loaded(source, tmp_path):
    model = from_article(source, make_state(source, ALL[source]), **ALL[source])
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path)
    assert loaded.state_dict().keys() == model.state_dict().keys()
    for name, tensor in model.state_dict().items():
        assert loaded.state_dict()[name].equal(tensor)


@pytest.mark.parametrize(
    ("hyperparameters", "message"),
    [
        ({"n_layer": "six"}, "'num_hidden_layers' expected int"),
        ({"n_layer": 0}, "'num_hidden_layers': ValueError: Value must be a positive integer, got 0"),
        ({"n_layer": 10**9}, "more than 10000 layers"),
        ({"n_head": 3}, "does not divide"),
        ({"embedding_dim": 10**9}, r"model of 2.4e\+19 weights"),
        ({"vocab_size": 10**10}, r"hyperparameters make it \(10000000000, 32\)"),  # and takes no memory for it
    ],
)
def test_hyperparameters_that_make_no_model_are_refused_in_one_line(hyperparameters, message):
    given = {"n_layer": 2, "n_head": 4, "embedding_dim": 32, "vocab_size": 40, "block_size": 16}
    weights = reference.Weights()
    reference.gpt_playground(weights, torch.tensor([[3, 4]]), **given)
    with pytest.raises(ValueError, match=message) as error:
        from_article("gpt-playground", dict(weights), **{**given, **hyperparameters})
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "state", [None, [1], {1: torch.ones(2)}, {"w": 1}, {"w": torch.ones(2, device="meta")}], ids=str
)
def test_what_is_no_state_dict_is_refused(state):
    with pytest.raises(ValueError, match="`state_dict` must map names to dense tensors"):
        from_article("tinystories-notes", state)
