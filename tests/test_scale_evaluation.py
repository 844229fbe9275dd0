# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Several processes evaluate what one evaluates: the same figures, and the same translations in the same order."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT
from test_scripts import PACKED, PAIRED, PAIRS, STORIES, TRANSLATE, flags, read_json, write_splits

pytestmark = pytest.mark.slow

LAUNCH = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node")
# evaluates everything with tiny models and writes one file per process
WORKER = """
import json, os, sys
sys.path.insert(0, "tests")
import numpy as np
from accelerate import PartialState
from conftest import make_gpt, make_transformer
from datasets import Dataset
from transformers import (
    DataCollatorForSeq2Seq, Seq2SeqTrainingArguments, TrainingArguments, default_data_collator,
)

from hf_scratch.evaluation.language_modeling import (
    evaluate_answers, evaluate_language_model, evaluate_masked_language_model,
)
from hf_scratch.evaluation.translation import evaluate_translation
from hf_scratch.tokenization import MASK, train_tokenizer
from hf_scratch.training.trainers import LanguageModelTrainer, TranslationTrainer

PartialState(cpu=True)
tokenizer = train_tokenizer(["abcdefgh =."], "char", 30, 60, show_progress=False)
tokenizer.add_special_tokens({"mask_token": MASK})
sizes = {"vocab_size": len(tokenizer), "max_position_embeddings": 60}
gpt, encoder, translator = make_gpt(**sizes), make_gpt(is_causal=False, **sizes), make_transformer(**sizes)
translator.generation_config.max_length = 9
texts = ["abcdefgh"[i % 8] * (1 + 5 * i % 33) + " = " + "fab"[: 1 + i % 3] for i in range(23)]
quiet = {"report_to": "none", "disable_tqdm": True, "use_cpu": True, "per_device_eval_batch_size": 4}


def rows_of(count):
    ids = [tokenizer(text)["input_ids"] for text in texts[:count]]
    return ids, [row[::-1][: 3 + i % 5] for i, row in enumerate(ids)]


def validate(count):
    ids, _ = rows_of(count)
    padded = [(row + [0] * 60)[:40] for row in ids]
    labels = [[token or -100 for token in row] for row in padded]
    trainer = LanguageModelTrainer(
        model=gpt, args=TrainingArguments(f"{sys.argv[1]}/unused", **quiet), data_collator=default_data_collator,
        eval_dataset=Dataset.from_dict({"input_ids": padded, "labels": labels}),
    )
    return trainer.evaluate()["eval_loss"]


def validate_translations(count):
    sources, targets = rows_of(count)
    rows = {"input_ids": sources, "attention_mask": [[1] * len(row) for row in sources], "labels": targets}

    def decode(prediction):
        ids = np.where(prediction.predictions < 0, 0, prediction.predictions)
        return {"texts": tokenizer.batch_decode(ids, skip_special_tokens=True)}

    trainer = TranslationTrainer(
        model=translator, args=Seq2SeqTrainingArguments(f"{sys.argv[1]}/unused", predict_with_generate=True, **quiet),
        eval_dataset=Dataset.from_dict(rows), data_collator=DataCollatorForSeq2Seq(tokenizer, model=translator),
        processing_class=tokenizer, compute_metrics=decode,
    )
    figures = trainer.evaluate()
    return figures["eval_loss"], figures["eval_texts"]


results = {}
for count in (23, 20, 5, 1):  # batches of 4: not even, even, and fewer than processes
    some = texts[:count]
    results[f"language model {count}"] = evaluate_language_model(gpt, tokenizer, some, 4, 20)
    results[f"masked {count}"] = evaluate_masked_language_model(
        encoder, tokenizer, Dataset.from_dict({"text": some}), 0.3, 4
    )
    questions = [text.partition("=")[0] + "=" for text in some]
    results[f"answers {count}"] = evaluate_answers(gpt, tokenizer, some, questions, 4)
    references = [text[::-1] for text in some]
    results[f"beams {count}"] = evaluate_translation(translator, tokenizer, some, references, 4, num_beams=2)
    results[f"loss {count}"] = validate(count)
    results[f"loss with translations {count}"], results[f"translations {count}"] = validate_translations(count)
with open(f"{sys.argv[1]}/{os.environ.get('RANK', 0)}.json", "w") as file:
    json.dump(results, file)
"""


def launch(num_processes: int, *words: str | Path) -> subprocess.CompletedProcess:
    launcher = (*LAUNCH, str(num_processes)) if num_processes > 1 else ()
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, *launcher, *map(str, words)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return done


def without_seconds(figures):
    if isinstance(figures, dict):
        return {name: without_seconds(value) for name, value in figures.items() if name != "seconds"}
    return [without_seconds(value) for value in figures] if isinstance(figures, list) else figures


def run_worker(num_processes: int, folder: Path) -> list[dict]:
    folder.mkdir()
    (folder / "worker.py").write_text(WORKER, encoding="utf-8")
    launch(num_processes, folder / "worker.py", folder)
    return [without_seconds(read_json(folder / f"{i}.json")) for i in range(num_processes)]


def test_three_processes_evaluate_what_one_evaluates(tmp_path):
    (expected,) = run_worker(1, tmp_path / "one")
    for name in [name for name in expected if name.startswith("loss")]:
        expected[name] = pytest.approx(expected[name], rel=1e-6)
    assert run_worker(3, tmp_path / "three") == [expected] * 3  # each process gets the whole result


COMMON = {"max_steps": 3, "eval_strategy": "no", "save_strategy": "no", "use_cpu": "true"}
# for each command its rows, and the options of the training and of the evaluation
COMMANDS = {
    "translation": (
        (PAIRS * 6)[:67],
        PAIRED | {"predict_with_generate": "true", "per_device_eval_batch_size": 8},
        TRANSLATE | {"batch_size": 64},
    ),
    "language_model": ((STORIES * 9)[:35], PACKED, {}),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_two_processes_score_what_one_scores_in_a_training_and_afterwards(name, tmp_path):
    rows, trained, evaluated = COMMANDS[name]
    out, lines = tmp_path / "out", tmp_path / "lines.txt"
    data = write_splits(tmp_path / "data", train=rows, validation=rows, test=rows)
    options = COMMON | trained | {"dataset_name": data, "output_dir": out}
    done = launch(2, ROOT / "scripts" / f"train_{name}.py", *flags(options))
    assert done.stdout.count("The model, its curve and its card are in") == 1
    evaluated = evaluated | {"model": out, "test_file": data / "test.jsonl", "json": tmp_path / "figures.json"}
    if name == "translation":
        evaluated["output_file"] = lines
    for num_processes in (1, 2):
        done = launch(num_processes, ROOT / "scripts" / f"evaluate_{name}.py", *flags(evaluated))
        assert done.stdout.count("seconds") == 1  # one process prints
        figures, expected = map(read_json, (tmp_path / "figures.json", out / "test_results.json"))
        assert without_seconds(figures) == without_seconds(expected)
        if name == "translation":
            translations = lines.read_text(encoding="utf-8")
            assert translations == (out / "test_translations.txt").read_text(encoding="utf-8")
            assert len(translations.splitlines()) == 67
