# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""`hf-scratch`, the commands as modules, and their help."""

import importlib
import subprocess
import sys

import pytest
from conftest import ROOT

from hf_scratch import cli
from hf_scratch.errors import command_words

COMMANDS = sorted(path.stem for path in (ROOT / "scripts").glob("*.py"))
TRAININGS = ("prepare_data", "train_language_model", "train_stock_gpt2", "train_translation")


@pytest.fixture
def hf_scratch(monkeypatch, capsys):
    """Runs `hf-scratch` in this process: its exit status, and what it prints."""

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["bin/hf-scratch", *words])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return ended.value.code or 0, "".join(capsys.readouterr())

    return run


def test_it_lists_the_commands_and_recipes(hf_scratch):
    code, text = hf_scratch("--help")
    assert code == 0
    assert all(f"    {name.replace('_', '-')}" in text for name in COMMANDS)
    assert {"multi30k_tiny,", "tinystories_small,"} <= set(text.split())


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_has_help_with_one_spelling_of_each_flag(name, hf_scratch):
    code, text = hf_scratch(name.replace("_", "-"), "--help")
    assert code == 0
    if name != "serve":  # which shows transformers' own
        assert all("-" not in word.strip("-[],.") for word in text.split() if word.startswith("--") and word != "--")
    if name in TRAININGS:
        assert text.index("\nmodel:\n") < text.index("\ndata:\n") < text.index("\ntraining:\n")
        assert "--adam_beta1" not in text
        assert len(text.splitlines()) < 200


def test_the_help_of_a_training_names_its_recipes_and_lists_all_options_if_asked(hf_scratch):
    code, text = hf_scratch("train-translation", "--help_all")
    assert code == 0
    assert "--adam_beta1" in text
    recipes = text.partition("options:")[0]
    assert "multi30k_tiny" in recipes
    assert "tinystories" not in recipes


def test_errors_and_the_command_to_resume_by_name_it(hf_scratch):
    code, text = hf_scratch("train-translation", "demo_numbers", "--source-lan", "de")
    assert (code, text) == (
        2,
        "hf-scratch train-translation: error: unexpected: --source_lan. Did you mean `source_lang`?\n",
    )
    assert command_words() == ["hf-scratch", "train-translation"]


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        ("own_pair", "Did you mean `own_pairs`?"),
        ("own_texts", "--packing=True. Is it a recipe of another command?"),
    ],
)
def test_a_wrong_recipe_is_named(recipe, message, hf_scratch):
    code, text = hf_scratch("train-translation", recipe, "--output_dir", "x", "--dataset_name", "embedded:numbers")
    assert code == 2
    assert message in text


def test_both_spellings_of_a_flag_are_taken(run_here, tmp_path):
    words = (
        "--dataset-name",
        "embedded:numbers",
        "--output-dir",
        tmp_path / "x",
        "--target-lang=de",
        "--use_cpu=true",
    )
    done = run_here("train_translation", *words, "--eval-strategy", "daily", check=False)
    assert "invalid choice: 'daily'" in done.stderr


def test_a_command_is_a_module_in_a_clone_too(tmp_path):
    assert importlib.import_module("hf_scratch.scripts.run_onnx").__file__ == str(ROOT / "scripts" / "run_onnx.py")
    words = [sys.executable, "-m", "hf_scratch.scripts.hold_out", "--help"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout[:19]) == (0, "usage: hold_out.py ")
