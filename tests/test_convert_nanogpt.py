# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""nanoGPT's checkpoints: a converted model computes nanoGPT's equations, and opens with its tokenizer."""

import os
import pickle

import pytest
import torch
from test_explorer_model import NODE, read_rows, run_node  # noqa: F401  a fixture
from torch.nn import functional
from transformers import AutoModelForCausalLM, pipeline

from hf_scratch.convert import from_nanogpt, read_characters, to_gguf
from hf_scratch.tokenization import train_tokenizer

TEXT = "First Citizen:\nBefore we proceed"
SIZES = {"n_layer": 2, "n_head": 4, "n_embd": 32, "block_size": 24, "vocab_size": 64, "dropout": 0.1}


def make_checkpoint(bias: bool, prefix: str = "", **sizes) -> dict:
    """A checkpoint with random weights, as nanoGPT's train.py saves it."""
    generator = torch.Generator().manual_seed(0)
    args = {**SIZES, "bias": bias, **sizes}
    width, names = args["n_embd"], {}

    def add(name, *shape):
        names[f"{prefix}transformer.{name}.weight"] = shape
        if bias and "wte" not in name and "wpe" not in name:
            names[f"{prefix}transformer.{name}.bias"] = shape[:1]

    add("wte", args["vocab_size"], width)
    add("wpe", args["block_size"], width)
    for i in range(args["n_layer"]):
        add(f"h.{i}.ln_1", width)
        add(f"h.{i}.attn.c_attn", 3 * width, width)
        add(f"h.{i}.attn.c_proj", width, width)
        add(f"h.{i}.ln_2", width)
        add(f"h.{i}.mlp.c_fc", 4 * width, width)
        add(f"h.{i}.mlp.c_proj", width, 4 * width)
    add("ln_f", width)
    state = {name: 0.3 * torch.randn(shape, generator=generator) for name, shape in names.items()}
    state[f"{prefix}lm_head.weight"] = state[f"{prefix}transformer.wte.weight"]
    return {"model": state, "model_args": args, "iter_num": 9, "config": {"dataset": "shakespeare_char"}}


def compute_logits(checkpoint: dict, ids: torch.Tensor) -> torch.Tensor:
    """The logits by the equations that nanoGPT's README and GPT-2's paper give: pre-norm blocks, an exact GELU."""
    weights = {name.removeprefix("_orig_mod.transformer."): w for name, w in checkpoint["model"].items()}
    weights = {name.removeprefix("transformer."): w for name, w in weights.items()}
    heads, width, length = checkpoint["model_args"]["n_head"], checkpoint["model_args"]["n_embd"], ids.shape[1]

    def linear(x, name):
        return functional.linear(x, weights[f"{name}.weight"], weights.get(f"{name}.bias"))

    def norm(x, name):
        return functional.layer_norm(x, (width,), weights[f"{name}.weight"], weights.get(f"{name}.bias"), 1e-5)

    x = weights["wte.weight"][ids] + weights["wpe.weight"][:length]
    later = torch.ones(length, length, dtype=torch.bool).triu(1)
    for i in range(checkpoint["model_args"]["n_layer"]):
        q, k, v = linear(norm(x, f"h.{i}.ln_1"), f"h.{i}.attn.c_attn").split(width, dim=-1)
        q, k, v = (part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in (q, k, v))
        scores = (q @ k.transpose(-1, -2) / (width // heads) ** 0.5).masked_fill(later, -torch.inf)
        x = x + linear((scores.softmax(-1) @ v).transpose(1, 2).flatten(-2), f"h.{i}.attn.c_proj")
        x = x + linear(functional.gelu(linear(norm(x, f"h.{i}.ln_2"), f"h.{i}.mlp.c_fc")), f"h.{i}.mlp.c_proj")
    return functional.linear(norm(x, "ln_f"), weights["wte.weight"])


@pytest.fixture
def meta(tmp_path):
    """A folder with nanoGPT's meta.pkl."""
    characters = sorted(set(TEXT))
    stoi = {character: i for i, character in enumerate(characters)}
    content = {"vocab_size": len(stoi), "itos": dict(enumerate(characters)), "stoi": stoi}
    (tmp_path / "meta.pkl").write_bytes(pickle.dumps(content))
    return tmp_path / "meta.pkl"


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("prefix", ["", "_orig_mod."])
def test_logits_are_nanogpts(bias, prefix):
    checkpoint = make_checkpoint(bias, prefix)
    ids = torch.randint(64, (3, 24), generator=torch.Generator().manual_seed(1))
    model = from_nanogpt(checkpoint)
    torch.testing.assert_close(model(ids).logits, compute_logits(checkpoint, ids), atol=1e-5, rtol=1e-5)
    assert model.config.hidden_dropout == 0.1
    mask = {f"{prefix}transformer.h.0.attn.bias": torch.ones(1, 1, 24, 24)}  # a buffer of older torch
    assert from_nanogpt({**checkpoint, "model": checkpoint["model"] | mask})(ids).logits.equal(model(ids).logits)


@pytest.mark.parametrize("missing", ["model", "model_args", "transformer.ln_f.weight"])
def test_what_is_not_nanogpts_is_refused(missing):
    checkpoint = make_checkpoint(True)
    for part in (checkpoint, checkpoint["model"]):
        part.pop(missing, None)
    with pytest.raises(ValueError, match=f"(?s)not one of nanoGPT's.*{missing}"):
        from_nanogpt(checkpoint)
    with pytest.raises(ValueError, match="not one of nanoGPT's"):
        from_nanogpt(None)


def test_characters_are_read_and_code_is_not_run(meta, tmp_path):
    tokenizer = read_characters(meta)
    assert tokenizer.decode(tokenizer(TEXT)["input_ids"]) == TEXT
    assert tokenizer(TEXT[:2])["input_ids"] == [sorted(set(TEXT)).index(character) for character in TEXT[:2]]

    class Trap:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "sprung"),)

    meta.write_bytes(pickle.dumps({"stoi": {"a": 0}, "trap": Trap()}))
    with pytest.raises(ValueError, match="could run code"):
        read_characters(meta)
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize("kind", ["characters", "bpe"])
def test_one_command_makes_a_folder_that_pipelines_open(kind, run_here, meta, tmp_path):
    path, size = meta, len(set(TEXT))
    if kind == "bpe":
        tokenizer, path = train_tokenizer([TEXT], "bpe", 300, show_progress=False), tmp_path / "tokenizer"
        tokenizer.save_pretrained(path)
        size = 320  # padded to a multiple of 64
    checkpoint = make_checkpoint(False, vocab_size=size)
    torch.save({**checkpoint, "best_val_loss": torch.tensor(1.5)}, tmp_path / "ckpt.pt")
    flags = ("--source", "nanogpt", "--input", tmp_path / "ckpt.pt", "--tokenizer", path)
    done = run_here("convert_checkpoint", *flags, "--output_dir", tmp_path / "out")
    assert "ScratchGPTForCausalLM" in done.stdout
    assert (tmp_path / "out" / "tokenizer.json").is_file()
    (made,) = pipeline("text-generation", str(tmp_path / "out"))("First", max_new_tokens=9, do_sample=False)
    assert made["generated_text"].startswith("First")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    ids = torch.randint(size, (1, 9))
    torch.testing.assert_close(model(ids).logits, compute_logits(checkpoint, ids), atol=1e-5, rtol=1e-5)
    if kind == "bpe":
        assert model.config.eos_token_id == tokenizer.eos_token_id
        pytest.importorskip("gguf")
        assert to_gguf(model, tokenizer, tmp_path / "gguf").is_file()


@pytest.mark.skipif(NODE is None, reason="the explorer's model is JavaScript: install Node 20 or newer")
def test_the_explorer_opens_a_model_of_characters(run_node, meta, tmp_path):  # noqa: F811
    checkpoint, tokenizer = make_checkpoint(False), read_characters(meta)
    from_nanogpt(checkpoint, tokenizer).save_pretrained(tmp_path / "out")
    tokenizer.save_pretrained(tmp_path / "out")
    folder, ids = str(tmp_path / "out"), tokenizer(TEXT[:15])["input_ids"]
    encode = {"kind": "encode", "file": f"{folder}/tokenizer.json", "texts": [TEXT]}
    logits = {"kind": "logits", "folder": folder, "rows": [ids], "source": None, "steps": True}
    ((encoded,), computed) = run_node(encode, logits)
    assert (encoded["ids"], encoded["text"]) == (tokenizer(TEXT)["input_ids"], TEXT)
    expected = compute_logits(checkpoint, torch.tensor([ids]))[0]
    torch.testing.assert_close(torch.tensor(read_rows(computed["whole"])), expected, atol=1e-4, rtol=1e-4)


def test_a_tokenizer_that_is_too_large_is_refused(run_here, meta, tmp_path):
    torch.save(make_checkpoint(False, vocab_size=5), tmp_path / "ckpt.pt")
    flags = ("--source", "nanogpt", "--input", tmp_path / "ckpt.pt", "--tokenizer", meta)
    done = run_here("convert_checkpoint", *flags, "--output_dir", tmp_path / "out", check=False)
    assert done.returncode == 2
    assert "the model's `vocab_size` is 5" in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be_written_is_named(run_here, meta, tmp_path):
    flags = ("--source", "nanogpt", "--input", tmp_path / "ckpt.pt", "--output_dir", meta / "out")
    done = run_here("convert_checkpoint", *flags, check=False)
    assert done.returncode == 2
    assert "Choose another `--output_dir`" in done.stderr
