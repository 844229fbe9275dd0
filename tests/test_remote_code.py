# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""A saved folder is enough: it loads through `trust_remote_code=True` where this package cannot be imported."""

import json
import os
import subprocess
import sys

import torch
from conftest import FAMILIES, make_gpt
from transformers import pipeline

from hf_scratch import TranslationPipeline
from hf_scratch.tokenization import train_tokenizer

WITHOUT_THE_PACKAGE = """
import importlib.abc, json, sys

class NotInstalled(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "hf_scratch":
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, NotInstalled())
try:
    import hf_scratch
except ModuleNotFoundError:
    pass
else:
    raise AssertionError("the package can be imported: the test would prove nothing")

import torch
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForMaskedLM, AutoModelForSeq2SeqLM
from transformers import AutoTokenizer, Trainer, TrainingArguments, pipeline

results = {}
for family, auto in (("gpt", AutoModelForCausalLM), ("transformer", AutoModelForSeq2SeqLM)):
    folder, again = f"{sys.argv[1]}/{family}", f"{sys.argv[1]}/{family}-again"
    trust = {"trust_remote_code": True}
    config = AutoConfig.from_pretrained(folder, **trust)
    tokenizer = AutoTokenizer.from_pretrained(folder, **trust)
    base = AutoModel.from_pretrained(folder, **trust)
    model = auto.from_pretrained(folder, **trust)
    assert model.model.state_dict().keys() == base.state_dict().keys()
    ids = torch.tensor([[5, 6, 7]])
    tokens = model.generate(ids, max_new_tokens=6, do_sample=False).tolist()
    model.save_pretrained(again)
    tokenizer.save_pretrained(again)
    base.save_pretrained(f"{sys.argv[1]}/{family}-base")
    reloaded = auto.from_pretrained(again, **trust)
    assert reloaded.generate(ids, max_new_tokens=6, do_sample=False).tolist() == tokens
    results[family] = {"tokens": tokens, "type": config.model_type, "module": type(model).__module__}
    if family == "transformer":
        translator = pipeline("translation", model=folder, **trust)
        assert type(translator).__module__.startswith("transformers_modules.")
        results["translation"] = translator(["to be", "or"], max_new_tokens=5)
        assert pipeline(model=again, **trust)(["to be", "or"], max_new_tokens=5) == results["translation"]
        model.config.task = "summarization"
        model.save_pretrained(f"{again}-summaries")
        tokenizer.save_pretrained(f"{again}-summaries")
        texts = [{"summary_text": record["translation_text"]} for record in results["translation"]]
        for task in ("summarization", None):
            summarizer = pipeline(task, model=f"{again}-summaries", **trust)
            assert summarizer(["to be", "or"], max_new_tokens=5) == texts
    if family == "gpt":
        writer = pipeline("text-generation", model=folder, **trust)
        results["text"] = writer("to be", max_new_tokens=5, do_sample=False)[0]["generated_text"]
        for task, labels in {"text-classification": 1, "token-classification": [1, 0, 1]}.items():
            classifier = pipeline(task, model=folder, **trust)
            assert classifier("to be")
            arguments = TrainingArguments(f"{again}-{task}", max_steps=1, report_to="none", use_cpu=True)
            rows = [{"input_ids": [5, 6, 7], "labels": labels}]
            assert Trainer(classifier.model, arguments, train_dataset=rows).train().training_loss > 0
encoder = AutoModelForMaskedLM.from_pretrained(f"{sys.argv[1]}/encoder", trust_remote_code=True)
assert encoder(ids, labels=ids).loss.isfinite()
print(json.dumps(results))
"""


def test_a_saved_folder_loads_generates_and_saves_without_the_package(tmp_path):
    expected = {}
    for family, make in FAMILIES.items():
        tokenizer = train_tokenizer(["to be or not to be"], "joint" if family == "transformer" else "bpe", 280, 40)
        model = make(vocab_size=len(tokenizer))
        model.save_pretrained(tmp_path / family)
        tokenizer.save_pretrained(tmp_path / family)
        expected[family] = model.generate(torch.tensor([[5, 6, 7]]), max_new_tokens=6, do_sample=False).tolist()

    make_gpt(is_causal=False).save_pretrained(tmp_path / "encoder")

    script = tmp_path / "without_the_package.py"
    script.write_text(WITHOUT_THE_PACKAGE, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=200,
        env={**os.environ, "HF_HOME": str(tmp_path / "home")},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    results = json.loads(done.stdout.splitlines()[-1])
    for family in FAMILIES:
        assert results[family]["tokens"] == expected[family]
        assert results[family]["module"].startswith("transformers_modules.")
        again = json.loads((tmp_path / f"{family}-again" / "config.json").read_text(encoding="utf-8"))
        assert again == json.loads((tmp_path / family / "config.json").read_text(encoding="utf-8"))
        assert {"AutoConfig", "AutoModel"} < set(again["auto_map"])
        base = json.loads((tmp_path / f"{family}-base" / "config.json").read_text(encoding="utf-8"))
        assert base["auto_map"] == again["auto_map"]
    assert results["text"].startswith("to be")
    here = pipeline("translation", model=str(tmp_path / "transformer"))  # with the package, nothing is asked
    assert type(here) is TranslationPipeline
    assert here(["to be", "or"], max_new_tokens=5) == results["translation"]
    # a user can do nothing about a class name that a table does not know
    assert "not supported" not in done.stderr
