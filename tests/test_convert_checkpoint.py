# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""`scripts/convert_checkpoint.py`: an article's file in, a folder that any Auto class loads out."""

import json
import os
import pickle

import article_reference as reference
import pytest
import torch
from conftest import make_gpt, make_transformer
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

HYPERPARAMETERS = {"n_layer": 2, "n_head": 4, "embedding_dim": 32, "vocab_size": 40, "block_size": 16}
IDS = torch.tensor([[3, 4, 5, 6]])


@pytest.fixture
def convert(run_here, tmp_path):
    """Runs the command, by default into the folder `out`."""

    def run(check=True, **options):
        options = {"output_dir": tmp_path / "out", **options}
        words = [word for name, value in options.items() for word in (f"--{name}", value)]
        return run_here("convert_checkpoint", *words, check=check)

    return run


@pytest.mark.parametrize("kind", ["pt", "safetensors"])
def test_one_command_makes_a_model_of_an_articles_checkpoint(convert, kind, tmp_path):
    weights = reference.Weights()
    expected = reference.gpt_playground(weights, IDS, **HYPERPARAMETERS)
    file = tmp_path / f"last.{kind}"
    if kind == "pt":
        torch.save({"epoch": 3, "model_state_dict": {f"module.{k}": v for k, v in weights.items()}}, file)
        text = ",".join(f"{name}={value}" for name, value in HYPERPARAMETERS.items())
    else:
        save_file(dict(weights), file)
        text = json.dumps(HYPERPARAMETERS)
    done = convert(source="gpt-playground", input=file, hyperparameters=text)
    assert "ScratchGPTForCausalLM" in done.stdout
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    torch.testing.assert_close(model(IDS).logits, expected, atol=1e-5, rtol=0)
    # past the block size, as the article's own `generate`: the option was saved
    assert model.generate(IDS, max_new_tokens=20, do_sample=False).shape == (1, 24)


def test_a_gpt_of_ours_becomes_a_gpt2_folder_and_comes_back(convert, tmp_path):
    make_gpt().save_pretrained(tmp_path / "ours")
    assert "GPT2LMHeadModel" in convert(target="gpt2", input=tmp_path / "ours", output_dir=tmp_path / "theirs").stdout
    convert(source="gpt2", input=tmp_path / "theirs", output_dir=tmp_path / "back")
    ours, back = (load_file(tmp_path / name / "model.safetensors") for name in ("ours", "back"))
    assert ours.keys() == back.keys()
    assert all(back[name].equal(tensor) for name, tensor in ours.items())


class Trap:
    def __init__(self, path):
        self.folder = f"{path}.sprung"

    def __reduce__(self):
        return os.mkdir, (self.folder,)


GARBAGE = {
    "text.pt": lambda path: path.write_text("hello\n" * 30),
    "text.safetensors": lambda path: path.write_text("hello\n" * 30),
    "cut.pt": lambda path: (torch.save({"w": torch.ones(30, 30)}, path), path.write_bytes(path.read_bytes()[:999])),
    "trap.pt": lambda path: torch.save({"w": Trap(path)}, path),
    "trap.pkl": lambda path: path.write_bytes(pickle.dumps({"w": Trap(path)})),
    "list.pt": lambda path: torch.save([1, 2], path),
}


@pytest.mark.parametrize("name", GARBAGE)
def test_a_file_without_a_state_dict_is_refused_and_runs_no_code(convert, name, tmp_path):
    path = tmp_path / name
    GARBAGE[name](path)
    done = convert(check=False, source="gpt-playground", input=path, hyperparameters="n_layer=2")
    assert done.returncode == 2
    assert f"{path} is damaged, holds no state dict, or holds more than tensors" in done.stderr
    assert not (tmp_path / f"{name}.sprung").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"input": "model.pt"}, "either `--source`"),
        ({"input": "model.pt", "source": "gpt-playground", "target": "gpt2"}, "either `--source`"),
        ({"target": "marian", "quantization": "int8"}, "only ctranslate2 and gguf take one"),
        ({"target": "marian"}, "norm_first"),
        ({"target": "pegasus", "output_dir": "ours/config.json/out"}, "Choose another `--output_dir`"),
        ({"target": "gpt2"}, "A ScratchGPTForCausalLM without adapters can be converted"),
    ],
)
def test_bad_usage_is_named_and_nothing_written(convert, options, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_transformer(norm_first=True).save_pretrained("ours")
    done = convert(check=False, **{"input": "ours", **options})
    assert done.returncode == 2
    assert message in done.stderr
    assert not (tmp_path / "out").exists()
