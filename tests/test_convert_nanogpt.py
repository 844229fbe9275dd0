# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""nanoGPT's checkpoints: a converted model computes what they compute, and opens with its tokenizer."""

import os
import pickle

import pytest
import torch
from test_convert_stock import make_stock
from test_explorer_model import NODE, read_rows, run_node  # noqa: F401  a fixture
from transformers import AutoModelForCausalLM, GPT2LMHeadModel, pipeline

from hf_scratch.convert import from_nanogpt, read_characters, to_gguf
from hf_scratch.tokenization import train_tokenizer

TEXT = "First Citizen:\nBefore we proceed"
MATRICES = ("c_attn.weight", "c_proj.weight", "c_fc.weight")  # GPT-2 stores these as (input, output)


def make_checkpoint(bias: bool = False, prefix: str = "", vocab_size: int = 64) -> tuple[dict, GPT2LMHeadModel]:
    """What nanoGPT's train.py saves, and the GPT-2 of these weights. nanoGPT is one, with an exact GELU."""
    sizes = {"n_layer": 2, "n_head": 4, "n_embd": 32, "vocab_size": vocab_size}
    gpt2 = make_stock("gpt2", **sizes, n_positions=24, activation_function="gelu")
    state = {}
    for name, tensor in gpt2.state_dict().items():
        if name.endswith(".bias") and not bias:
            tensor.zero_()
        else:
            state[f"{prefix}{name}"] = tensor.t().contiguous() if name.endswith(MATRICES) else tensor
    args = {**sizes, "block_size": 24, "dropout": 0.1, "bias": bias}
    return {"model": state, "model_args": args, "iter_num": 9, "config": {"dataset": "shakespeare_char"}}, gpt2


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
    checkpoint, gpt2 = make_checkpoint(bias, prefix)
    ids = torch.randint(64, (3, 24), generator=torch.Generator().manual_seed(1))
    model = from_nanogpt(checkpoint)
    torch.testing.assert_close(model(ids).logits, gpt2(ids).logits, atol=1e-5, rtol=1e-5)
    assert model.config.hidden_dropout == 0.1
    mask = {f"{prefix}transformer.h.0.attn.bias": torch.ones(1, 1, 24, 24)}  # a buffer of older torch
    assert from_nanogpt({**checkpoint, "model": checkpoint["model"] | mask})(ids).logits.equal(model(ids).logits)


@pytest.mark.parametrize("missing", ["model", "model_args", "transformer.ln_f.weight"])
def test_what_is_not_nanogpts_is_refused(missing):
    checkpoint, _ = make_checkpoint()
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
    checkpoint, gpt2 = make_checkpoint(vocab_size=size)
    torch.save({**checkpoint, "best_val_loss": torch.tensor(1.5)}, tmp_path / "ckpt.pt")
    flags = ("--source", "nanogpt", "--input", tmp_path / "ckpt.pt", "--tokenizer", path)
    done = run_here("convert_checkpoint", *flags, "--output_dir", tmp_path / "out")
    assert "ScratchGPTForCausalLM" in done.stdout
    assert (tmp_path / "out" / "tokenizer.json").is_file()
    (made,) = pipeline("text-generation", str(tmp_path / "out"))("First", max_new_tokens=9, do_sample=False)
    assert made["generated_text"].startswith("First")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    ids = torch.randint(size, (1, 9))
    torch.testing.assert_close(model(ids).logits, gpt2(ids).logits, atol=1e-5, rtol=1e-5)
    if kind == "bpe":
        assert model.config.eos_token_id == tokenizer.eos_token_id
        pytest.importorskip("gguf")
        assert to_gguf(model, tokenizer, tmp_path / "gguf").is_file()


@pytest.mark.skipif(NODE is None, reason="the explorer's model is JavaScript: install Node 20 or newer")
def test_the_explorer_opens_a_model_of_characters(run_node, meta, tmp_path):  # noqa: F811
    (checkpoint, gpt2), tokenizer = make_checkpoint(), read_characters(meta)
    from_nanogpt(checkpoint, tokenizer).save_pretrained(tmp_path / "out")
    tokenizer.save_pretrained(tmp_path / "out")
    folder, ids = str(tmp_path / "out"), tokenizer(TEXT[:15])["input_ids"]
    encode = {"kind": "encode", "file": f"{folder}/tokenizer.json", "texts": [TEXT]}
    logits = {"kind": "logits", "folder": folder, "rows": [ids], "source": None, "steps": True}
    ((encoded,), computed) = run_node(encode, logits)
    assert (encoded["ids"], encoded["text"]) == (tokenizer(TEXT)["input_ids"], TEXT)
    expected = gpt2(torch.tensor([ids])).logits[0]
    torch.testing.assert_close(torch.tensor(read_rows(computed["whole"])), expected, atol=1e-4, rtol=1e-4)


def test_a_tokenizer_that_is_too_large_is_refused(run_here, meta, tmp_path):
    torch.save(make_checkpoint(vocab_size=5)[0], tmp_path / "ckpt.pt")
    flags = ("--source", "nanogpt", "--input", tmp_path / "ckpt.pt", "--tokenizer", meta)
    done = run_here("convert_checkpoint", *flags, "--output_dir", tmp_path / "out", check=False)
    assert done.returncode == 2
    assert "the model's `vocab_size` is 5" in done.stderr
    assert not (tmp_path / "out").exists()
