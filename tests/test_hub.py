# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Models and tokenizers are pushed to the Hub, and load by their repository's id.

The Hub is huggingface_hub's cache on disk: a push writes its files there, and an offline client reads them.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import AUTO, FAMILIES, GPT, TRANSFORMER
from huggingface_hub import HfApi, RepoUrl
from safetensors.torch import load_file
from transformers import AutoTokenizer, Trainer, TrainingArguments, pipeline

import hf_scratch
from hf_scratch import ScratchGPTConfig, ScratchTransformerConfig, ScratchTransformerForConditionalGeneration
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


# of each head: what it learns from, what its pipeline is asked, and what it answers
HEADS = {
    "ForCausalLM": ("text-generation", "generated_text"),
    "ForMaskedLM": ("fill-mask", "token_str"),
    "ForSequenceClassification": ("text-classification", "label"),
    "ForTokenClassification": ("token-classification", "entity"),
    "ForConditionalGeneration": ("translation", "translation_text"),
}
WITHOUT_THE_PACKAGE = """
import json, sys
sys.modules["hf_scratch"] = None  # importing it is an error
import torch
from transformers import AutoTokenizer, Trainer, TrainingArguments, pipeline

answers = {}
for head, (task, key) in json.loads(sys.argv[1]).items():
    name = f"alice/{head}"
    pipe = pipeline(task, model=name, trust_remote_code=True)
    text = f"two dogs {pipe.tokenizer.mask_token}" if task == "fill-mask" else "two dogs run"
    options = {"max_new_tokens": 5} if pipe.model.can_generate() else {}
    answers[head] = pipe(text, **options)[0][key]
    rows = [json.loads(row) for row in open(f"{sys.argv[2]}/{head}.jsonl")]
    arguments = TrainingArguments(f"{sys.argv[2]}/{head}", max_steps=1, report_to="none", use_cpu=True)
    trainer = Trainer(pipe.model.float(), arguments, train_dataset=rows)
    assert trainer.train().training_loss > 0
print(json.dumps(answers))
"""


@pytest.mark.slow
def test_each_head_is_trained_pushed_and_used_without_the_package(hub, tmp_path, bert_tokenizer):
    bert_tokenizer.model_max_length = 40
    size = {"vocab_size": len(bert_tokenizer), "pad_token_id": 0}
    gpt = ScratchGPTConfig(**{**GPT, **size, "bos_token_id": 2, "eos_token_id": 3})
    encoder = ScratchGPTConfig(**{**gpt.to_diff_dict(), "is_causal": False})
    ids = bert_tokenizer(["two dogs run", "a cat sat", "once upon", "then it ran"], padding=True)
    for head in HEADS:
        if head == "ForConditionalGeneration":
            model = ScratchTransformerForConditionalGeneration(ScratchTransformerConfig(**{**TRANSFORMER, **size}))
        else:
            model = getattr(hf_scratch, f"ScratchGPT{head}")(encoder if head == "ForMaskedLM" else gpt)
        rows = [{"input_ids": a, "attention_mask": b} for a, b in zip(*ids.values(), strict=True)]
        for i, row in enumerate(rows):
            row["labels"] = i % 2 if head == "ForSequenceClassification" else row["input_ids"]
            if head == "ForTokenClassification":
                row["labels"] = [id_ % 2 for id_ in row["input_ids"]]
        (tmp_path / f"{head}.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
        arguments = TrainingArguments(str(tmp_path / head), max_steps=3, report_to="none", use_cpu=True)
        Trainer(model, arguments, train_dataset=rows).train()
        model.push_to_hub(f"alice/{head}")
        bert_tokenizer.push_to_hub(f"alice/{head}")
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_THE_PACKAGE, json.dumps(HEADS), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=tmp_path,
        env={**os.environ, "HF_HUB_CACHE": str(hub), "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answers = json.loads(done.stdout.splitlines()[-1])
    assert answers.keys() == HEADS.keys()
    assert all(isinstance(answer, str) for answer in answers.values())
