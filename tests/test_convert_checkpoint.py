# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""`scripts/convert_checkpoint.py`: an article's file in, a folder that any Auto class loads out."""

import importlib.util
import json
import os
import pickle
import subprocess
import sys
from argparse import Namespace

import article_reference as reference
import pytest
import torch
from conftest import ROOT, make_gpt, make_transformer
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, GPT2LMHeadModel

SCRIPT = ROOT / "scripts" / "convert_checkpoint.py"
HYPERPARAMETERS = {"n_layer": 2, "n_head": 4, "embedding_dim": 32, "vocab_size": 40, "block_size": 16}
IDS = torch.tensor([[3, 4, 5, 6]])


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("convert_checkpoint", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def weights():
    weights = reference.Weights()
    reference.gpt_playground(weights, IDS, **HYPERPARAMETERS)
    return dict(weights)


def arguments(tmp_path, **given) -> Namespace:
    defaults = dict.fromkeys(("source", "target", "quantization", "hyperparameters", "tokenizer"))
    defaults["output_dir"] = str(tmp_path / "out")
    return Namespace(**{**defaults, **given})


def test_one_command_makes_a_model_of_an_articles_checkpoint(weights, tmp_path):
    torch.save({"epoch": 3, "model_state_dict": {f"module.{k}": v for k, v in weights.items()}}, tmp_path / "last.pt")
    text = ",".join(f"{name}={value}" for name, value in HYPERPARAMETERS.items())
    command = [sys.executable, str(SCRIPT), "--source", "gpt-playground", "--input", str(tmp_path / "last.pt")]
    done = subprocess.run(
        [*command, "--output_dir", str(tmp_path / "out"), "--hyperparameters", text],
        capture_output=True, text=True, timeout=100, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "ScratchGPTForCausalLM" in done.stdout
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    theirs = reference.gpt_playground(reference_of(weights), IDS, **HYPERPARAMETERS)
    torch.testing.assert_close(model(IDS).logits, theirs, atol=1e-5, rtol=0)
    # past the block size, as the article's own `generate`: the option was saved
    assert model.generate(IDS, max_new_tokens=20, do_sample=False).shape == (1, 24)


def reference_of(weights: dict) -> reference.Weights:
    filled = reference.Weights()
    filled.update(weights)
    return filled


def test_safetensors_and_json_hyperparameters_do_as_well(script, weights, tmp_path):
    save_file(weights, tmp_path / "model.safetensors")
    model = script.run(
        arguments(
            tmp_path, source="gpt-playground", input=str(tmp_path / "model.safetensors"),
            hyperparameters=json.dumps(HYPERPARAMETERS),
        )
    )  # fmt: skip
    theirs = reference.gpt_playground(reference_of(weights), IDS, **HYPERPARAMETERS)
    torch.testing.assert_close(model(IDS).logits, theirs, atol=1e-5, rtol=0)


def test_a_gpt_of_ours_becomes_a_gpt2_folder_and_comes_back(script, tmp_path):
    ours = make_gpt()
    ours.save_pretrained(tmp_path / "ours")
    theirs = script.run(arguments(tmp_path, target="gpt2", input=str(tmp_path / "ours")))
    assert type(theirs) is GPT2LMHeadModel
    theirs.save_pretrained(tmp_path / "theirs")
    back = script.run(arguments(tmp_path, source="gpt2", input=str(tmp_path / "theirs")))
    for name, tensor in ours.state_dict().items():
        assert back.state_dict()[name].equal(tensor), name


class Trap:
    def __init__(self, folder):
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (self.folder,)


STATE = {"weight": torch.ones(30, 30)}
GARBAGE = {
    "empty.pt": lambda path: path.touch(),
    "text.pt": lambda path: path.write_text("hello\n" * 30),
    "text.safetensors": lambda path: path.write_text("hello\n" * 30),
    "cut.pt": lambda path: (torch.save(STATE, path), path.write_bytes(path.read_bytes()[:999])),
    "cut_old.pt": lambda path: (
        torch.save(STATE, path, _use_new_zipfile_serialization=False), path.write_bytes(path.read_bytes()[:999])
    ),
    "trap.pt": lambda path: torch.save({"w": Trap(str(path) + ".sprung")}, path),
    "trap.pkl": lambda path: path.write_bytes(pickle.dumps({"w": Trap(f"{path}.sprung")})),
    "module.pt": lambda path: torch.save(torch.nn.Linear(2, 2), path),
    "list.pt": lambda path: torch.save([1, 2], path),
}  # fmt: skip


@pytest.mark.parametrize("name", GARBAGE)
def test_a_file_without_a_state_dict_is_refused_and_runs_no_code(script, name, tmp_path):
    path = tmp_path / name
    GARBAGE[name](path)
    with pytest.raises(ValueError, match="is damaged, holds no state dict, or holds more than tensors") as error:
        script.run(arguments(tmp_path, source="gpt-playground", input=str(path), hyperparameters="n_layer=2"))
    assert str(path) in str(error.value)
    assert not (tmp_path / f"{name}.sprung").exists()


def test_bad_usage_is_named_and_nothing_written(script, tmp_path):
    make_transformer(norm_first=True).save_pretrained(tmp_path / "ours")
    ours = str(tmp_path / "ours")
    for given, message in (
        ({}, "either `--source`"),
        ({"source": "gpt-playground", "target": "gpt2"}, "either `--source`"),
        ({"target": "marian", "input": ours, "quantization": "int8"}, "only ctranslate2 and gguf take one"),
        ({"target": "marian", "input": ours}, "norm_first"),
        ({"target": "gpt2", "input": ours}, "A ScratchGPTForCausalLM without adapters can be converted"),
    ):
        with pytest.raises(ValueError, match=message):
            script.run(arguments(tmp_path, **{"input": "model.pt", **given}))
        assert not (tmp_path / "out").exists()
