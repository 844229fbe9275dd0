# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""The wheel in an environment of its own: the commands by name, and the models without the extra `train`."""

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest
from conftest import ROOT

pytestmark = pytest.mark.slow
TEN_UPDATES = ["--max_steps", "10", "--eval_strategy", "no", "--save_strategy", "no", "--load_best_model_at_end",
               "false", "--use_cpu", "true"]  # fmt: skip
# what a project of one's own does, with torch and the seven packages of Hugging Face alone
WITHOUT_EXTRAS = """
import hf_scratch
from transformers import AutoModelForCausalLM, AutoTokenizer, pipeline

translator = pipeline("translation", model="{translator}")
assert "Hund" in translator("A dog runs through the snow.")[0]["translation_text"]
model = AutoModelForCausalLM.from_pretrained("{writer}")
model.save_pretrained("copy")
import hf_scratch.convert, hf_scratch.evaluation, hf_scratch.loading, hf_scratch.tokenization
tokenizer = AutoTokenizer.from_pretrained("{writer}")
assert hf_scratch.evaluation.evaluate_language_model(model, tokenizer, ["Once upon a time"])["bits_per_byte"] > 0
try:
    hf_scratch.evaluation.score_translations([""], [""])
except ImportError as error:
    assert str(error) == "sacrebleu is not installed: pip install 'hf-scratch[train]'", error
else:
    raise AssertionError("sacrebleu is not hidden")
"""
HIDE = """
import sys

class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("sacrebleu", "sacremoses", "matplotlib", "ruamel"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hide())
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory) -> Path:
    """The Python of an empty environment with the wheel. Its dependencies are those of this environment."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*build, "--wheel-dir", folder, ROOT], check=True)
    venv.create(folder / "env", with_pip=False)
    python = folder / "env" / "bin" / "python"
    (wheel,) = folder.glob("*.whl")
    install = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", wheel]
    subprocess.run(install, check=True)
    (packages,) = (folder / "env").glob("lib/python*/site-packages")
    # a folder that a .pth file adds has no .pth files of its own: this clone's editable install is not seen
    (packages / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n", encoding="utf-8")
    return python


def run(python: Path, folder: Path, *words, check: bool = True, **environment) -> subprocess.CompletedProcess:
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment = {**inherited, "HF_HUB_OFFLINE": "1", **environment}
    done = subprocess.run([python, *words], cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0 or not check, done.stderr[-3000:]
    return done


@pytest.mark.parametrize(
    ("script", "recipe"), [("train_translation", "demo_numbers"), ("train_language_model", "demo_stories")]
)
def test_a_recipe_is_trained_by_name(python, script, recipe, tmp_path):
    name = script.replace("_", "-")
    words = [recipe, "--output_dir", "run", *TEN_UPDATES]
    run(python, tmp_path, python.with_name("hf-scratch"), name, *words)
    assert (tmp_path / "run" / "model.safetensors").is_file()
    card = (tmp_path / "run" / "README.md").read_text(encoding="utf-8")
    assert f"hf-scratch {name} {recipe} --output_dir run --max_steps 10" in card
    listed = run(python, tmp_path, python.with_name("hf-scratch"), "--help").stdout
    assert name in listed
    assert " demo " not in listed  # it needs the clone
    assert "init" not in listed


def test_accelerate_launches_a_module(python, tmp_path):
    words = ["hf_scratch.scripts.train_language_model", "demo_stories", "--output_dir", "run", *TEN_UPDATES]
    run(python, tmp_path, "-m", "accelerate.commands.launch", "--num_processes", "1", "--cpu", "-m", *words)
    assert (tmp_path / "run" / "model.safetensors").is_file()


def test_the_models_need_no_extra(python, tmp_path):
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / "sitecustomize.py").write_text(HIDE, encoding="utf-8")
    cards = ROOT / "model_cards"
    code = WITHOUT_EXTRAS.format(
        translator=cards / "scratch-transformer-multi30k-en-de", writer=cards / "scratch-gpt-tinystories"
    )
    run(python, tmp_path, "-c", code, PYTHONPATH=str(tmp_path / "hidden"))
    command = ["-m", "hf_scratch.scripts.train_translation", "demo_numbers", "--output_dir", "run"]
    done = run(python, tmp_path, *command, check=False, PYTHONPATH=str(tmp_path / "hidden"))
    assert done.returncode != 0
    assert "pip install 'hf-scratch[train]'" in done.stderr
