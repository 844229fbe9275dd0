# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Models and tokenizers are pushed to the Hub, and load by their repository's id.

The Hub is huggingface_hub's cache on disk: a push writes its files there, and an offline client reads them.
"""

from pathlib import Path

import pytest
import torch
from conftest import AUTO, FAMILIES
from huggingface_hub import HfApi, RepoUrl
from safetensors.torch import load_file
from transformers import AutoTokenizer, pipeline

from hf_scratch.tokenization import train_tokenizer

TASKS = {"gpt": "text-generation", "transformer": "translation"}
TEXT = "A man sleeps."
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def hub(monkeypatch, tmp_path) -> Path:
    """A folder of the cache that is the Hub; `REPOSITORY/snapshots/COMMIT` holds a repository's files."""

    def create_commit(self, repo_id, operations, **kwargs):
        folder = tmp_path / f"models--{repo_id.replace('/', '--')}"
        for operation in operations:
            path = folder / "snapshots" / COMMIT / operation.path_in_repo
            path.parent.mkdir(parents=True, exist_ok=True)
            with operation.as_file() as file:
                path.write_bytes(file.read())
        (folder / "refs").mkdir(exist_ok=True)
        (folder / "refs" / "main").write_text(COMMIT, encoding="utf-8")

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr(HfApi, "create_repo", lambda self, repo_id, **kwargs: RepoUrl(f"hf://{repo_id}"))
    monkeypatch.setattr(HfApi, "create_commit", create_commit)
    return tmp_path


def ask(pipe) -> list:
    torch.manual_seed(0)
    return pipe(TEXT, do_sample=True, max_new_tokens=9)


@pytest.mark.parametrize("way", ["push_to_hub", "save_pretrained"])
def test_load_by_repository_id(hub, family, way, tmp_path):
    texts = [TEXT, "Ein Mann schläft.", "two dogs run", "zwei Hunde laufen"] * 5
    tokenizer = train_tokenizer(texts, "bpe" if family == "gpt" else "joint", 300, 40, show_progress=False)
    model = FAMILIES[family](vocab_size=len(tokenizer))
    model.generation_config.update(max_length=17)
    if way == "push_to_hub":
        model.push_to_hub(f"alice/{family}")
    else:
        model.save_pretrained(tmp_path / "saved", push_to_hub=True, repo_id=f"alice/{family}")
    tokenizer.push_to_hub(f"alice/{family}")

    loaded = AUTO[family].from_pretrained(f"alice/{family}")
    for name, tensor in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor), name
    assert loaded.generation_config.max_length == 17
    assert AutoTokenizer.from_pretrained(f"alice/{family}")(TEXT).input_ids == tokenizer(TEXT).input_ids
    by_id = pipeline(TASKS[family], model=f"alice/{family}")
    assert ask(by_id) == ask(pipeline(TASKS[family], model=model, tokenizer=tokenizer))

    folder = hub / f"models--alice--{family}" / "snapshots" / COMMIT
    files = {path.name for path in folder.iterdir()}
    assert {"config.json", "generation_config.json", "tokenizer.json", "README.md"} < files
    assert f"modeling_{model.config.model_type}.py" in files  # for `trust_remote_code=True`
    assert {Path(name).suffix for name in files} == {".json", ".md", ".py", ".safetensors"}
    assert load_file(folder / "model.safetensors")
