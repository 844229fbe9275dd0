# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""`scripts/convert_checkpoint.py`: an article's file in, a folder that any Auto class loads out."""

import gzip
import importlib.util
import json
import os
import pickle
import subprocess
import sys
import traceback
import zipfile
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
    defaults = dict.fromkeys(("source", "target", "quantization", "hyperparameters"))
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


def test_a_pickle_with_code_in_it_is_refused(script, tmp_path):
    torch.save({"transformer.emb.weight": Trap(str(tmp_path / "sprung"))}, tmp_path / "model.pt")
    with pytest.raises(ValueError, match="holds more than tensors"):
        script.read_state_dict(str(tmp_path / "model.pt"))
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "either `--source`"),
        ({"source": "gpt-playground", "target": "gpt2"}, "either `--source`"),
        ({"source": "gpt3"}, "'gpt3'; it must be one of gpt-playground"),
        ({"target": "bert"}, "'bert'; it must be one of gpt2, marian"),
        ({"source": "gpt-playground", "hyperparameters": "n_layer"}, "`hyperparameters` must be JSON or a=1,b=2"),
        ({"source": "gpt-playground", "input": "nowhere.pt", "hyperparameters": "n_layer=2"}, "no such file"),
    ],
)
def test_bad_usage_is_named_and_nothing_written(script, given, message, tmp_path):
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        script.run(arguments(tmp_path, **{"input": "model.pt", **given}))
    assert not (tmp_path / "out").exists()


def test_a_model_that_the_target_cannot_express_is_refused_by_field(script, tmp_path):
    make_transformer(norm_first=True).save_pretrained(tmp_path / "ours")
    with pytest.raises(ValueError, match="norm_first"):
        script.run(arguments(tmp_path, target="marian", input=str(tmp_path / "ours")))


def cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def write_zip(path):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme.txt", "hello")


STATE = {"weight": torch.ones(30, 30)}
# a file's name, what is written there, and what is said about it
GARBAGE = {
    "empty.pt": (lambda path: path.touch(), "no checkpoint, or is damaged"),
    "empty.safetensors": (lambda path: path.touch(), "no checkpoint, or is damaged"),
    "text.pt": (lambda path: path.write_text("hello\n" * 30), "no checkpoint, or is damaged"),
    "text.safetensors": (lambda path: path.write_text("hello\n" * 30), "no checkpoint, or is damaged"),
    "json.pt": (lambda path: path.write_text('{"a": 1}'), "no checkpoint, or is damaged"),
    "gzip.pt": (lambda path: path.write_bytes(gzip.compress(b"hello")), "no checkpoint, or is damaged"),
    "zip.pt": (write_zip, "no checkpoint, or is damaged"),
    "cut.pt": (lambda path: (torch.save(STATE, path), cut(path)), "no checkpoint, or is damaged"),
    "cut_old.pt": (
        lambda path: (torch.save(STATE, path, _use_new_zipfile_serialization=False), cut(path)),
        "no checkpoint, or is damaged",
    ),
    "cut.safetensors": (lambda path: (save_file(STATE, path), cut(path)), "no checkpoint, or is damaged"),
    "trap.pt": (lambda path: torch.save({"w": Trap(str(path) + ".sprung")}, path), "could run code"),
    "trap.pkl": (lambda path: path.write_bytes(pickle.dumps({"w": Trap(f"{path}.sprung")})), "could run code"),
    "module.pt": (lambda path: torch.save(torch.nn.Linear(2, 2), path), "could run code"),
    "list.pt": (lambda path: torch.save([1, 2], path), "holds no state dict"),
    "tensor.pt": (lambda path: torch.save(torch.ones(2), path), "holds no state dict"),
    "nothing.pt": (lambda path: torch.save({}, path), "holds no state dict"),
    "numbers.pt": (lambda path: torch.save({1: torch.ones(2)}, path), "holds no state dict"),
    "folder.pt": (lambda path: path.mkdir(), "which is a folder"),
    "folder.safetensors": (lambda path: path.mkdir(), "which is a folder"),
    "gone.pt": (lambda path: None, "no such file"),
}


@pytest.mark.parametrize("name", GARBAGE)
def test_a_file_without_a_state_dict_is_named(script, name, tmp_path):
    path = tmp_path / name
    write, message = GARBAGE[name]
    write(path)
    with pytest.raises((ValueError, FileNotFoundError), match=message) as error:
        script.run(arguments(tmp_path, source="gpt-playground", input=str(path), hyperparameters="n_layer=2"))
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)
    # torch's message says that `weights_only=False` will likely succeed
    assert "likely" not in "".join(traceback.format_exception(error.value))
    assert not (tmp_path / f"{name}.sprung").exists()


def test_what_is_converted_to_may_be_read_by_whom_the_umask_lets(script, tmp_path, monkeypatch):
    make_gpt().save_pretrained(tmp_path / "ours")
    out = tmp_path / "out"
    monkeypatch.setattr(
        sys, "argv", ["x", "--target", "gpt2", "--input", f"{tmp_path}/ours", "--output_dir", str(out)]
    )
    script.main()
    assert (out / "model.safetensors").stat().st_mode == (out / "config.json").stat().st_mode
