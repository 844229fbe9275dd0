# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""The documents are true: what they name exists, their links resolve, and their Python runs."""

import ast
import importlib
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from accelerate.utils.memory import release_memory
from conftest import ROOT, make_gpt
from test_cards import train  # noqa: F401  a fixture
from test_scripts import TINY_GPT
from transformers import TrainingArguments, default_data_collator
from transformers.hyperparameter_search import ALL_HYPERPARAMETER_SEARCH_BACKENDS
from transformers.trainer_utils import BestRun, HPSearchBackend

FOLDERS = ("hf_scratch", "model_cards", "scripts", "tests")
DOCUMENTS = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for path in (*ROOT.glob("*.md"), *(path for folder in FOLDERS for path in ROOT.glob(f"{folder}/**/*.md")))
    if "publish" not in path.parts and path.name != "RUNS.md"  # the cards' introductions, and commands of old runs
}
# the changelog names what no longer exists
READMES = {name: text for name, text in DOCUMENTS.items() if name != "CHANGELOG.md"}
MAPS = "hf_scratch/models/README.md"


@pytest.fixture(params=READMES)
def name(request) -> str:
    return request.param


def python_blocks(text: str) -> list[tuple[bool, str, str]]:
    """Each ```python block: whether the line before it is `<!-- run -->`, the code, and a ```text block below it."""
    blocks = re.findall(r"(<!-- run -->\n)?```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", text, flags=re.S)
    return [(bool(marker), code, output) for marker, code, output in blocks]


def heading_anchors(text: str) -> set[str]:
    """As GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", text, flags=re.S), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_named_tests_files_and_folders_exist(name):
    """Paths from the root, such as `scripts/demo.py` or `tests/`, and names of files in a README's own folder."""
    text = READMES[name]
    sources = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").glob("test_*.py"))
    assert set(re.findall(r"`(test_\w+)`", text)) <= set(re.findall(r"def (test_\w+)\(", sources))
    for path in re.findall(rf"(?<![\w/.])(?:{'|'.join(FOLDERS)})/[\w./-]*", text):
        assert (ROOT / path.rstrip(".")).exists(), path
    for path in re.findall(r"`(test_\w+\.py)`", text):
        assert (ROOT / "tests" / path).is_file(), path
    folder = (ROOT / name).parent
    for path in re.findall(r"^\| `([\w.-]+\.py)`", text, flags=re.M):
        assert (folder / path).is_file(), path


def test_links_resolve(name):
    for link in re.findall(r"\]\(([^)\s]+)\)", DOCUMENTS[name]):
        if link.startswith(("http://", "https://")):
            continue
        path, _, anchor = link.partition("#")
        target = (ROOT / name).parent / path if path else ROOT / name
        assert target.exists(), link
        if anchor:
            assert anchor in heading_anchors(target.read_text(encoding="utf-8")), link


def test_the_maps_name_functions_of_the_files_they_link_to():
    """In the tables with columns "function" and "file", each function or `Class.method` is defined in such a file.

    A link to a folder stands for its files.
    """
    checked = 0
    for table in re.findall(r"\| function \| file \|\n\|[-|]+\n((?:\|.+\n)+)", READMES[MAPS]):
        for row in table.splitlines():
            functions, cell = row.strip("|").split("|")[-2:]
            links = re.findall(r"\]\((\S+)\)", cell)
            paths = [(ROOT / MAPS).parent / link for link in links]
            files = [file for path in paths for file in (path.glob("*.py") if path.is_dir() else [path])]
            sources = "\n".join(file.read_text(encoding="utf-8") for file in files)
            for function in re.findall(r"`([\w.]+)`", functions) if links else ():
                for part in function.split("."):
                    assert re.search(rf"^ *(?:def|class) {part}\b", sources, flags=re.M), (function, links)
                checked += 1
    assert checked > 25


def test_readme_is_short():
    assert len(READMES["README.md"].splitlines()) <= 120


def test_python_blocks_parse_and_import_what_exists(name):
    for _, code, _ in python_blocks(READMES[name]):
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    importlib.import_module(alias.name)
            elif isinstance(node, ast.ImportFrom):
                module = importlib.import_module(node.module)
                assert all(hasattr(module, alias.name) for alias in node.names), ast.unparse(node)


@pytest.mark.slow
def test_marked_python_blocks_run(name):
    """In the repository's root, as the READMEs say, each block in a process of its own."""
    for is_marked, code, output in python_blocks(READMES[name]):
        if is_marked:
            run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=600)
            assert run.returncode == 0, run.stderr[-3000:]
            assert not output or run.stdout == output


def test_some_python_blocks_are_marked_to_run():
    marked = {name for name, text in READMES.items() if any(is_marked for is_marked, *_ in python_blocks(text))}
    assert {"README.md", MAPS, "hf_scratch/convert/README.md"} <= marked


class Search:
    """What transformers does for optuna, where that is not installed: one trial with each end of the range."""

    def ensure_available(self):
        pass

    def run(self, trainer, n_trials, direction):
        runs = []
        for number in range(n_trials):
            params = {}
            suggest = lambda name, *ends, log: params.setdefault(name, ends[number])  # noqa: B023, E731
            trainer.objective = None
            trainer.train(trial=SimpleNamespace(number=number, params=params, suggest_float=suggest))
            runs.append(BestRun(str(number), trainer.compute_objective(trainer.evaluate()), params))
            trainer.model_wrapped, trainer.model = release_memory(trainer.model_wrapped, trainer.model)
        return min(runs, key=lambda run: run.objective)


def test_the_readmes_search_finds_the_better_learning_rate(tmp_path, monkeypatch):
    if find_spec("optuna") is None:
        monkeypatch.setitem(ALL_HYPERPARAMETER_SEARCH_BACKENDS, HPSearchBackend.OPTUNA, Search)
        monkeypatch.setattr("transformers.integrations.hp_params", lambda trial: trial.params)
    ids = torch.arange(1, 9).repeat(8, 1).tolist()
    names = {
        "make_model": lambda: make_gpt(),
        "args": TrainingArguments(str(tmp_path), max_steps=4, save_steps=4, use_cpu=True, disable_tqdm=True),
        "rows": [{"input_ids": row, "labels": row} for row in ids],
        "collate": default_data_collator,
    }
    (code,) = [code for _, code, _ in python_blocks(READMES["scripts/README.md"]) if "hyperparameter_search" in code]
    exec(code.replace("n_trials=20", "n_trials=2"), names)
    assert 1e-4 < names["best"].hyperparameters["learning_rate"] <= 1e-2
    assert [path.name for path in sorted(tmp_path.glob("run-*"))] == ["run-0", "run-1"]


def test_a_training_reports_to_tensorboard(tmp_path, monkeypatch, train):  # noqa: F811
    if find_spec("tensorboard") is None:
        (tmp_path / "tensorboardX.py").write_text(WRITER, encoding="utf-8")
        monkeypatch.syspath_prepend(tmp_path)
    out = train(
        "train_language_model", "out", config_overrides=TINY_GPT, report_to="tensorboard", logging_steps=1, max_steps=2
    )
    (events,) = Path(out, "runs").glob("*/events*")
    assert events.read_bytes().count(b"train/loss") == 2


# stands for tensorboardX
WRITER = """
import os
class SummaryWriter:
    def __init__(self, log_dir):
        os.makedirs(log_dir)
        self.file = open(os.path.join(log_dir, "events"), "a")
    def add_scalar(self, tag, value, step):
        print(tag, value, step, file=self.file, flush=True)
    def __getattr__(self, name):
        return lambda *args, **kwargs: None
"""
