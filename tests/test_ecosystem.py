# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""One real use of accelerate and of evaluate; PEFT's is in test_finetuning.py, TRL's in test_stock_trainers.py."""

import evaluate
import pytest
import torch
from conftest import make_gpt, make_transformer
from datasets import Dataset, Features, Value

from hf_scratch import TranslationPipeline
from hf_scratch.evaluation import ChrF, ExactMatch
from hf_scratch.tokenization import train_tokenizer


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(["the cat sat on the mat", "the dog ran"] * 4, "bpe", 290, 40)


@pytest.fixture
def gpt(tokenizer):
    return make_gpt(vocab_size=len(tokenizer), initializer_range=0.05)


def test_an_accelerate_loop_trains(gpt, tokenizer):
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    rows = tokenizer(["the cat sat on the mat"] * 4, return_tensors="pt")["input_ids"]
    loader = torch.utils.data.DataLoader(rows, batch_size=1)
    optimizer = torch.optim.AdamW(gpt.parameters(), lr=1e-2)
    model, optimizer, loader = accelerator.prepare(gpt.train(), optimizer, loader)
    losses = []
    for _ in range(5):
        for batch in loader:
            with accelerator.accumulate(model):
                loss = model(input_ids=batch, labels=batch).loss
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]
    assert accelerator.unwrap_model(model) is gpt


@pytest.mark.parametrize("as_list", [False, True])
def test_evaluates_evaluator_scores_a_translator(as_list, joint_tokenizer, tmp_path):
    pytest.importorskip("scipy")
    model = make_transformer(vocab_size=len(joint_tokenizer))
    for part in (model, joint_tokenizer):
        part.save_pretrained(tmp_path)
    translator = TranslationPipeline(model=model, tokenizer=joint_tokenizer)
    texts = ["A man sleeps.", "two dogs run"]
    labels = [translator(texts[0])[0]["translation_text"], "zwei Hunde"]
    data = Dataset.from_dict({"text": texts, "label": [[label] for label in labels] if as_list else labels})
    # the task that transformers 5 took away, and that `import hf_scratch` brings back
    evaluator, metric = evaluate.evaluator("translation"), evaluate.combine([ExactMatch(), ChrF()])
    for found in (
        evaluator.compute(str(tmp_path), data=data, metric=metric),
        evaluator.compute(model, tokenizer=joint_tokenizer, data=data, metric=metric),
    ):
        assert found["exact_match"] == 0.5
        assert 0 < found["chrf"] < 100


def test_evaluates_evaluator_measures_what_a_gpt_writes(gpt, tokenizer, tmp_path):
    pytest.importorskip("scipy")
    gpt.generation_config.max_new_tokens = 5  # a pipeline's default is more than the model's positions
    for part in (gpt, tokenizer):
        part.save_pretrained(tmp_path)

    class Texts(evaluate.Measurement):  # evaluate gives such a metric the written texts alone
        def _info(self):
            return evaluate.MeasurementInfo("", "", Features({"data": Value("string")}))

        def _compute(self, data):
            return {"texts": data}

    data = Dataset.from_dict({"text": ["the cat", "the dog ran"]})
    written = evaluate.evaluator("text-generation").compute(str(tmp_path), data=data, metric=Texts())["texts"]
    assert [text[: len(prompt)] for text, prompt in zip(written, data["text"], strict=True)] == data["text"][:]
