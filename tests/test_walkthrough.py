# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""The walk-through, the tables of a batch, the plain training loop, and the notebook."""

import ast
import base64
import io
import re
from pathlib import Path

import nbformat
import numpy as np
import pytest
import torch
from conftest import FAMILIES, ROOT, load_script, make_gpt, make_inputs_for
from matplotlib.image import imread
from nbclient import NotebookClient
from test_scripts import STORIES, TINY_GPT, run, write
from transformers import default_data_collator

from hf_scratch.evaluation.language_modeling import sample_text
from hf_scratch.explaining.shapes import record_shapes
from hf_scratch.reporting.batches import attention_masks, format_batch

MODELS = ROOT / "hf_scratch" / "models"
NOTEBOOK = ROOT / "scripts" / "walkthrough.ipynb"
TRAINING, PROMPT = "## 7. Train a small GPT", "Once upon a time"  # a heading, and what the GPT continues
README = (MODELS / "README.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def walkthrough():
    return load_script("walkthrough")


@pytest.fixture(scope="module")
def lines(walkthrough):
    example = walkthrough.make_example()
    return record_shapes(example.model, lambda: example.model(**example.batch))


def numbers_and_text(text: str) -> tuple[list[float], str]:
    pattern = r"-?\d+\.\d+"
    return [float(number) for number in re.findall(pattern, text)], re.sub(r" *" + pattern, " #", text)


def test_the_stored_output_is_what_the_command_writes(walkthrough, monkeypatch, tmp_path):
    """To renew it: python scripts/walkthrough.py --markdown scripts/walkthrough.md"""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["walkthrough.py", "--markdown", "walkthrough.md"])
    walkthrough.main()
    written = numbers_and_text((tmp_path / "walkthrough.md").read_text(encoding="utf-8"))
    numbers, text = numbers_and_text((ROOT / "scripts" / "walkthrough.md").read_text(encoding="utf-8"))
    assert text == written[1]
    assert numbers == pytest.approx(written[0], abs=2e-3)
    assert "False" not in text
    assert {path.name for path in Path("runs/walkthrough").iterdir()} == {"masks.png", "sine_curves.png"}


def test_each_line_of_code_stands_in_the_file_and_function_that_are_named(lines):
    for line in lines:
        tree = ast.parse((MODELS / line.file).read_text(encoding="utf-8"))
        name = line.function.split(".")[-1]
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == name]
        statements = {ast.unparse(node) for function in functions for node in ast.walk(function)}
        assert line.code in statements, line


def shapes_of(lines, module: str, start: str) -> list[tuple[int, ...]]:
    (line,) = [line for line in lines if line.module.endswith(module) and line.code.startswith(start)]
    return [shape for _, shape in line.operations]


def test_the_sizes_are_the_articles_there_and_back(lines):
    query = shapes_of(lines, "encoder.layers.0.self_attn", "query = ")
    assert query == [(2, 4, 8), (2, 4, 2, 4), (2, 2, 4, 4)]
    assert shapes_of(lines, "encoder.layers.0.self_attn", "weights = ") == [(2, 2, 4, 4)]
    assert shapes_of(lines, "encoder.layers.0.self_attn", "return (self.o_proj") == [(2, 4, 8), (2, 4, 8)]
    assert shapes_of(lines, "encoder.layers.0.feed_forward", "hidden_states = ") == [(2, 4, 16)] * 2
    assert shapes_of(lines, "decoder.layers.0.cross_attn", "weights = ") == [(2, 2, 5, 4)]
    assert shapes_of(lines, "", "logits = ") == [(2, 5, 10)]


def test_masks_are_where_the_attention_is_not_zero(family):
    model = FAMILIES[family]()
    batch = {**make_inputs_for(model)}
    batch["labels"] = batch.pop("decoder_input_ids", batch["input_ids"])
    batch["attention_mask"] = torch.ones_like(batch["input_ids"])
    batch["attention_mask"][1, -2:] = 0
    masks = attention_masks(model, batch)
    outputs = model(**batch, output_attentions=True)
    weights = {"decoder": outputs.get("decoder_attentions", outputs.get("attentions"))}
    if family == "transformer":
        weights |= {"encoder": outputs.encoder_attentions, "cross": outputs.cross_attentions}
    assert weights.keys() == masks.keys()
    for name, mask in masks.items():
        assert torch.equal(weights[name][0].amax(1) > 0, mask), name


def test_packed_texts_are_shown_apart():
    batch = {"input_ids": torch.tensor([[1, 5, 2, 1, 6]]), "labels": torch.tensor([[-100, 5, 2, -100, 6]])}
    batch["position_ids"] = torch.tensor([[0, 1, 2, 0, 1]])
    table = format_batch(make_gpt(), batch, lambda token: f"t{token}").splitlines()[3:]
    cells = [re.split(r" {2,}", line.strip()) for line in table]
    assert [line[5:] for line in cells[1:]] == [
        ["'t5'", "0"], ["'t2'", "0-1"], ["nothing", "0-2"], ["'t6'", "3"], ["nothing", "3-4"],
    ]  # fmt: skip


def test_it_walks_a_sentence_through_a_saved_model(walkthrough, tmp_path):
    example = walkthrough.load_example(str(ROOT / "model_cards" / "scratch-gpt-tinystories"), "Once upon a time")
    text = walkthrough.walk(example, str(tmp_path))
    assert "' upon'" in text
    assert "Equal: True" in text
    assert "create_causal_mask's: True" in text
    assert "False" not in text


def test_a_model_needs_a_text(run_here):
    done = run_here("walkthrough", "--model", "runs", check=False)
    assert done.returncode == 2
    assert "`model` and `text` together" in done.stderr


def test_a_sample_repeats_and_leaves_the_random_state(joint_tokenizer):
    model = make_gpt(vocab_size=300)
    state = torch.get_rng_state()
    texts = [sample_text(model, joint_tokenizer, "A man", 10) for _ in range(2)]
    assert texts[0] == texts[1]
    assert texts[0].startswith("A man")
    assert torch.equal(torch.get_rng_state(), state)
    with pytest.raises(ValueError, match="max_length"):
        sample_text(model, joint_tokenizer, "A man" * 40)


def readmes_loop():
    """The function `train` of the README, and nothing else of its block."""
    (block,) = [code for code in re.findall(r"```python\n(.*?)```", README, flags=re.S) if "def train" in code]
    nodes = [n for n in ast.parse(block).body if isinstance(n, ast.Import | ast.ImportFrom | ast.FunctionDef)]
    namespace = {}
    exec(compile(ast.Module(nodes, []), "README.md", "exec"), namespace)
    return namespace["train"]


def test_the_readmes_loop_trains_both_families(family):
    model = FAMILIES[family]()
    ids = make_inputs_for(model, source=7)["input_ids"]
    rows = [{"input_ids": row, "labels": row} for row in ids]
    losses = readmes_loop()(model, rows, default_data_collator, epochs=30)
    assert losses[-1] < losses[0] / 3


def run_notebook(heading: str | None = None) -> nbformat.NotebookNode:
    """The notebook with what its cells print and show now, up to a heading. What goes to stderr is left out."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    if heading is not None:
        notebook.cells = notebook.cells[: [cell.source.splitlines()[0] for cell in notebook.cells].index(heading)]
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


@pytest.mark.parametrize("heading", [TRAINING, pytest.param(None, marks=pytest.mark.slow)], ids=["model", "training"])
def test_the_notebooks_stored_outputs_are_what_it_writes(heading):
    """To renew them: python tests/test_walkthrough.py"""
    stored = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(stored)
    assert not any("stderr" in str(cell.outputs) or "execution" in cell.metadata for cell in code_cells(stored))
    for before, now in zip(code_cells(stored), code_cells(run_notebook(heading)), strict=heading is None):
        (text, pictures), (text_now, pictures_now) = text_and_pictures(before), text_and_pictures(now)
        assert pictures.shape == pictures_now.shape
        assert pictures.size == 0 or abs(pictures - pictures_now).mean() < 0.005  # another matplotlib may shift a line
        if text.startswith(PROMPT):  # drawn at random: rounding may change a word
            text, text_now = PROMPT, text_now[: len(PROMPT)]
        (numbers, text), (numbers_now, text_now) = numbers_and_text(text), numbers_and_text(text_now)
        assert text == text_now
        assert numbers == pytest.approx(numbers_now, abs=0.05 if text.startswith("epoch") else 2e-3)


def test_the_stored_notebook_shows_equal_results_and_a_falling_loss():
    text = "".join(text_and_pictures(cell)[0] for cell in code_cells(nbformat.read(NOTEBOOK, as_version=4)))
    assert text.count("equal: True") == 4
    losses = [float(loss) for loss in re.findall(r"epoch \d: (\S+) nats", text)]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 1.5


@pytest.mark.slow
def test_a_training_prints_a_batch_and_samples(tmp_path):
    data = write(tmp_path / "train.jsonl", STORIES)
    command = ["train_language_model.py", "--train_file", data, "--output_dir", tmp_path / "run", "--vocab_size", 300,
               "--block_size", 32, "--config_overrides", TINY_GPT, "--max_steps", 2, "--use_cpu", "true"]  # fmt: skip
    printed = run(*command, "--show_batch", "true").stdout
    assert "attends to" in printed
    assert not (tmp_path / "run").exists()
    printed = run(*command, "--sample_prompt", "A dog").stdout
    assert "Before training: A dog" in printed
    assert "After training: A dog" in printed


if __name__ == "__main__":
    nbformat.write(run_notebook(), NOTEBOOK)
