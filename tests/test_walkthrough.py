# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""The walk-through, which is a notebook, and the plain training loop."""

import ast
import base64
import io
import re

import nbformat
import numpy as np
import pytest
import torch
from conftest import FAMILIES, ROOT, make_gpt, make_inputs_for
from matplotlib.image import imread
from nbclient import NotebookClient
from test_cards import train  # noqa: F401  a fixture
from test_scripts import TINY_GPT
from transformers import default_data_collator

from hf_scratch.evaluation.language_modeling import sample_text

NOTEBOOK = ROOT / "scripts" / "walkthrough.ipynb"
PROMPT = "Once upon a time"  # what the GPT continues
README = (ROOT / "hf_scratch" / "models" / "README.md").read_text(encoding="utf-8")


def assert_same_text(text: str, now: str, tolerance: float = 2e-3) -> None:
    """Equal words, and numbers within a tolerance."""
    decimal = r"-?\d+\.\d+"
    assert re.sub(" *" + decimal, " #", text) == re.sub(" *" + decimal, " #", now)
    numbers, numbers_now = ([float(number) for number in re.findall(decimal, each)] for each in (text, now))
    assert numbers == pytest.approx(numbers_now, abs=tolerance)


def test_a_sample_repeats_and_leaves_the_random_state(joint_tokenizer):
    model = make_gpt(vocab_size=300)
    state = torch.get_rng_state()
    texts = [sample_text(model, joint_tokenizer, "A man", 10) for _ in range(2)]
    assert texts[0] == texts[1]
    assert texts[0].startswith("A man")
    assert torch.equal(torch.get_rng_state(), state)
    with pytest.raises(ValueError, match="max_length"):
        sample_text(model, joint_tokenizer, "A man" * 40)


def test_the_readmes_loop_trains_both_families(family):
    (block,) = [code for code in re.findall(r"```python\n(.*?)```", README, flags=re.S) if "def train" in code]
    nodes = [n for n in ast.parse(block).body if isinstance(n, ast.Import | ast.ImportFrom | ast.FunctionDef)]
    namespace = {}
    exec(compile(ast.Module(nodes, []), "README.md", "exec"), namespace)
    model = FAMILIES[family]()
    ids = make_inputs_for(model, source=7)["input_ids"]
    rows = [{"input_ids": row, "labels": row} for row in ids]
    losses = namespace["train"](model, rows, default_data_collator, epochs=30)
    assert losses[-1] < losses[0] / 3


def run_notebook() -> nbformat.NotebookNode:
    """The notebook with what its cells print and show now. What goes to stderr is left out."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(notebook, timeout=600, record_timing=False, coalesce_streams=True).execute()
    for cell in code_cells(notebook):
        cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    notebook.metadata["language_info"] = {"name": "python"}  # and not the version, which differs between machines
    return notebook


def code_cells(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def text_and_pictures(cell: nbformat.NotebookNode) -> tuple[str, np.ndarray]:
    texts = [output.get("text") or output.data["text/plain"] for output in cell.outputs]
    pngs = [output.data["image/png"] for output in cell.outputs if "image/png" in output.get("data", {})]
    return "".join(texts), np.array([imread(io.BytesIO(base64.b64decode(png))) for png in pngs])


@pytest.mark.slow
def test_the_notebooks_stored_outputs_are_what_it_writes():
    """To renew them: python tests/test_walkthrough.py"""
    stored = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(stored)
    assert not any("stderr" in str(cell.outputs) or "execution" in cell.metadata for cell in code_cells(stored))
    for before, now in zip(code_cells(stored), code_cells(run_notebook()), strict=True):
        (text, pictures), (text_now, pictures_now) = text_and_pictures(before), text_and_pictures(now)
        assert pictures.shape == pictures_now.shape
        assert pictures.size == 0 or abs(pictures - pictures_now).mean() < 0.005  # another matplotlib may shift a line
        if text.startswith(PROMPT):  # drawn at random: rounding may change a word
            text, text_now = PROMPT, text_now[: len(PROMPT)]
        assert_same_text(text, text_now, 0.05 if text.startswith("epoch") else 2e-3)


def test_the_notebooks_code_before_the_training_prints_its_stored_texts(capsys, monkeypatch):
    monkeypatch.setattr("matplotlib.pyplot.show", lambda: None)
    namespace = {}
    for cell in code_cells(nbformat.read(NOTEBOOK, as_version=4)):
        if "stories = " in cell.source:
            break
        exec(cell.source, namespace)
        printed = "".join(output.text for output in cell.outputs if output.output_type == "stream")
        assert_same_text(printed, capsys.readouterr().out)


def test_a_training_prints_samples(train, capsys):  # noqa: F811
    train("train_language_model", "out", config_overrides=TINY_GPT, sample_prompt="A dog")
    printed = capsys.readouterr().out
    assert "Before training: A dog" in printed
    assert "After training: A dog" in printed


if __name__ == "__main__":
    nbformat.write(run_notebook(), NOTEBOOK)
