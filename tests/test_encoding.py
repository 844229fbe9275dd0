"""Files are read and written as UTF-8, whatever the locale is."""

import os
import subprocess
import sys

import pytest

CODE = """
import sys
from pathlib import Path
from hf_scratch.data import load_splits, take_texts
from hf_scratch.evaluation.translation import write_lines
from hf_scratch.loading import load_tokenizer
from hf_scratch.recipes import read_recipe
from hf_scratch.tokenization import train_tokenizer

folder = Path(sys.argv[1])
assert sys.getfilesystemencoding() != "utf-8"
texts = list(take_texts(load_splits(train_file=str(folder / "train.jsonl"))["train"])["text"])
train_tokenizer(texts, "char", 30, show_progress=False).save_pretrained(folder / "tokenizer")
tokenizer = load_tokenizer(folder / "tokenizer")
assert tokenizer.decode(tokenizer(texts[0])["input_ids"][1:]) == texts[0]
write_lines(folder / "lines.txt", texts)
assert read_recipe(folder / "recipe.yaml") == {"run_name": texts[0]}
"""


@pytest.mark.slow
def test_an_ascii_locale_changes_nothing(tmp_path):
    (tmp_path / "train.jsonl").write_text('{"text": "für 世界"}\n', encoding="utf-8")
    (tmp_path / "recipe.yaml").write_text("run_name: für 世界\n", encoding="utf-8")
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-c", CODE, str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "lines.txt").read_text(encoding="utf-8") == "für 世界\n"
