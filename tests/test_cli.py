# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""`hf-scratch`, the commands as modules, and their help."""

import ast
import os
import runpy
import subprocess
import sys
from importlib.util import find_spec

import hf_scratch_launcher
import pytest
from conftest import ROOT, load_script

from hf_scratch import __version__
from hf_scratch.errors import command_words

COMMANDS = sorted({path.stem for path in (ROOT / "scripts").glob("*.py")} - {"hf_scratch_launcher"})
TRAININGS = ("prepare_data", "train_language_model", "train_stock_gpt2", "train_translation")


@pytest.fixture
def hf_scratch(monkeypatch, capsys):
    """Runs `hf-scratch` in this process: its exit status, and what it prints."""

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["bin/hf-scratch", *words])
        with pytest.raises(SystemExit) as ended:
            hf_scratch_launcher.main()
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
        assert "--dataset_name" in text
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
    code, text = hf_scratch("train-translation", "demo_numbers", "--source-lan", "de", "--output_dir", "x")
    assert code == 2
    assert text == "hf-scratch train-translation: error: unexpected: --source_lan. Did you mean `source_lang`?\n"
    assert command_words() == ["hf-scratch", "train-translation"]


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ("--help", 0, "train-translation"),
        ("--version", 0, f"hf-scratch {__version__}"),
        ("", 2, "COMMAND"),
        ("train", 2, "'train-translation'"),
        ("train-translation own_pair --output_dir x", 2, "Did you mean `own_pairs`?"),
        ("prepare-data own_pair.yml", 2, "Did you mean `own_pairs`?"),
        ("train-translation none/own_pairs.yaml", 2, "'none/own_pairs.yaml'"),
        ("train-translation own_pairs --train_file none.csv", 2, "'none.csv'"),
        ("train-language-model --seed 1 --validation-file=~/none.csv", 2, "'~/none.csv'"),
        ("evaluate-translation --test_file none.csv", 2, "'none.csv'"),
    ],
)
def test_it_answers_without_torch(words, code, message):
    run = "import sys; sys.modules['torch'] = None; import hf_scratch_launcher; hf_scratch_launcher.main()"
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'scripts'}"}
    command = [sys.executable, "-c", run, *words.split()]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, "Traceback" in done.stderr) == (code, False), done.stderr
    assert message in done.stdout + done.stderr


@pytest.mark.parametrize("words", ["", "own_pairs", "own_pairs.yaml", "README.md", "--train_file README.md", "--seed"])
def test_it_leaves_all_else_to_the_command(words, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert hf_scratch_launcher.find_mistake(words.split(), ["own_pairs"]) is None


def test_a_missing_extra_is_named(hf_scratch, monkeypatch):
    monkeypatch.setattr(hf_scratch_launcher, "TRAIN", ("sacrebleu", "not_installed"))
    code, text = hf_scratch("train-translation", "own_pairs")
    assert (code, text.split(": ")[-2:]) == (2, ["not_installed not installed", "pip install 'hf-scratch[train]'\n"])


@pytest.mark.parametrize(
    ("given", "load", "chosen"),
    [
        ({}, 1.0, {"GOMP_SPINCOUNT": "20000"}),
        ({}, 3.0, {"OMP_WAIT_POLICY": "PASSIVE"}),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, 3.0, {"OMP_WAIT_POLICY": "ACTIVE"}),
        ({"GOMP_SPINCOUNT": "7"}, 1.0, {"GOMP_SPINCOUNT": "7"}),
    ],
)
def test_threads_sleep_while_they_wait_on_a_busy_machine_unless_the_user_chose(given, load, chosen, monkeypatch):
    monkeypatch.setattr(os, "environ", dict(given))
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    load_script("hf_scratch_launcher")
    assert os.environ == chosen


def test_a_command_is_a_module_in_a_clone_too(monkeypatch, capsys):
    assert find_spec("hf_scratch.scripts.run_onnx").origin == str(ROOT / "scripts" / "run_onnx.py")
    monkeypatch.setattr(sys, "argv", ["hold_out", "--help"])
    with pytest.raises(SystemExit, match="0"):
        runpy.run_module("hf_scratch.scripts.hold_out", run_name="__main__", alter_sys=True)
    assert capsys.readouterr().out.startswith("usage: hold_out.py ")


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "run_onnx"])
def test_each_script_imports_the_launcher_before_torch(name):
    tree = ast.parse((ROOT / "scripts" / f"{name}.py").read_text(encoding="utf-8"))
    imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    modules = [getattr(node, "module", None) or node.names[0].name for node in imports]
    assert next(each for each in modules if each.split(".")[0] not in sys.stdlib_module_names) == "hf_scratch_launcher"
