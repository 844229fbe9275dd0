# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Masked language modelling: an encoder alone, which predicts the tokens that are hidden from it."""

import math

import pytest
import torch
from conftest import make_gpt
from datasets import Dataset
from transformers import TrainingArguments

from hf_scratch.data.columns import encode_rows
from hf_scratch.data.masking import MaskingCollator
from hf_scratch.data.texts import TextPacker
from hf_scratch.evaluation.language_modeling import evaluate_language_model, evaluate_masked_language_model
from hf_scratch.tokenization import MASK, train_tokenizer
from hf_scratch.training.arguments import LanguageModelArguments
from hf_scratch.training.trainers import LanguageModelTrainer

TEXTS = ["a cat sat", "the dog ran off", "a hen", "the cat saw a dog and ran"] * 5
ROWS = Dataset.from_dict({"text": TEXTS})


@pytest.fixture(scope="module")
def tokenizer():
    tokenizer = train_tokenizer(TEXTS, "char", 40, 40, show_progress=False)
    tokenizer.add_special_tokens({"mask_token": MASK})
    return tokenizer


def split_texts(rows, tokenizer, block_size):
    return encode_rows(rows, TextPacker(tokenizer, block_size, packing=False, overlap=0), "rows")


def make_encoder(tokenizer, **overrides):
    return make_gpt(vocab_size=len(tokenizer), is_causal=False, **overrides)


def make_trainer(tokenizer, rows, folder, collator, **options):
    args = TrainingArguments(
        folder, per_device_train_batch_size=20, per_device_eval_batch_size=20, save_strategy="no", report_to="none",
        disable_tqdm=True, use_cpu=True, dataloader_pin_memory=False, **options,
    )  # fmt: skip
    data = {"train_dataset": rows, "eval_dataset": rows, "data_collator": collator}
    return LanguageModelTrainer(model=make_encoder(tokenizer), args=args, **data)


def test_a_row_is_one_text_or_part_of_one(tokenizer):
    rows = split_texts(ROWS, tokenizer, 9)["input_ids"]
    assert max(map(len, rows)) == 9
    tokens = [token for row in rows for token in row]
    assert tokens == [token for text in TEXTS for token in [*tokenizer(text)["input_ids"], tokenizer.eos_token_id]]
    assert all(token != tokenizer.bos_token_id for row in rows for token in row[1:])


def test_no_row_has_the_end_token_alone_which_is_never_masked(tokenizer):
    beginnings = [{"text": TEXTS[0][:length]} for length in range(1, 1 + len(TEXTS[0]))]
    rows = split_texts(Dataset.from_list(beginnings), tokenizer, 5)["input_ids"][:]
    assert [tokenizer.eos_token_id] not in rows


def test_masked_tokens_alone_have_labels(tokenizer):
    rows = split_texts(ROWS, tokenizer, 40).to_list()
    batch = MaskingCollator(tokenizer, mlm_probability=0.5)(rows)
    original = torch.full_like(batch["input_ids"], tokenizer.pad_token_id)
    for i, row in enumerate(rows):
        original[i, : len(row["input_ids"])] = torch.tensor(row["input_ids"])
    assert torch.equal(batch["attention_mask"], (original != tokenizer.pad_token_id).long())
    masked = batch["labels"] != -100
    assert torch.equal(batch["labels"][masked], original[masked])
    assert torch.equal(batch["input_ids"][~masked], original[~masked])
    assert not torch.isin(original[masked], torch.tensor(tokenizer.all_special_ids)).any()
    ordinary = ~torch.isin(original, torch.tensor(tokenizer.all_special_ids))
    assert masked.sum() / ordinary.sum() == pytest.approx(0.5, abs=0.1)
    assert (batch["input_ids"][masked] == tokenizer.mask_token_id).float().mean() == pytest.approx(0.8, abs=0.1)


def test_a_rows_masks_follow_from_the_row_and_the_epoch(tokenizer):
    rows = split_texts(ROWS, tokenizer, 40).to_list()
    collate = MaskingCollator(tokenizer, mlm_probability=0.3)
    first, other = collate(rows), collate(rows[::-1])
    assert all(torch.equal(first[name], other[name].flip(0)) for name in first)
    for i, row in enumerate(rows):  # whatever the batch, and its padding
        alone = collate([row])
        length = alone["labels"].shape[1]
        assert all(torch.equal(first[name][i, :length], alone[name][0]) for name in first)
    collate.set_epoch(1)
    assert not torch.equal(first["labels"], collate(rows)["labels"])
    collate.set_epoch(0)
    assert torch.equal(first["labels"], collate(rows)["labels"])


def test_each_epoch_of_a_training_masks_other_tokens_and_each_evaluation_the_same(tokenizer, tmp_path):
    rows, seen = split_texts(ROWS, tokenizer, 40), []

    class Spy(MaskingCollator):
        def torch_call(self, examples):
            batch = super().torch_call(examples)
            labels = zip(examples, batch["labels"].tolist(), strict=True)
            seen.append((self.epoch, {tuple(row["input_ids"]): ids for row, ids in labels}))
            return batch

    collator = Spy(tokenizer, mlm_probability=0.3)
    make_trainer(tokenizer, rows, tmp_path, collator, num_train_epochs=3, eval_strategy="epoch").train()
    assert [epoch for epoch, _ in seen] == [0, 0, 1, 0, 2, 0]
    assert seen[0][1] == seen[1][1] == seen[3][1] == seen[5][1]
    assert seen[0][1] != seen[2][1] != seen[4][1]


def test_a_row_has_a_masked_token_though_masks_are_rare(tokenizer):
    rows = split_texts(ROWS, tokenizer, 40).to_list()
    batch = MaskingCollator(tokenizer, mlm_probability=1e-9)(rows[:2])
    collate = MaskingCollator(tokenizer, mlm_probability=1e-9)
    masked = (batch["labels"] != -100).nonzero().tolist()
    assert [row for row, _ in masked] == [0, 1]
    for row, column in masked:
        assert batch["input_ids"][row, column] == tokenizer.mask_token_id
        assert batch["labels"][row, column] == rows[row]["input_ids"][column]
    empty = collate([{"input_ids": [tokenizer.bos_token_id, tokenizer.eos_token_id]}])
    assert (empty["labels"] == -100).all()


def test_trainer_and_the_evaluation_have_the_same_loss(tokenizer, tmp_path):
    rows, collator = split_texts(ROWS, tokenizer, 40), MaskingCollator(tokenizer, mlm_probability=0.3)
    trainer = make_trainer(tokenizer, rows, tmp_path, collator, learning_rate=1e-2, max_steps=25)
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    after = trainer.evaluate()["eval_loss"]
    result = evaluate_masked_language_model(trainer.model, tokenizer, ROWS, 0.3, batch_size=20)
    assert result["loss"] == pytest.approx(after, rel=1e-5)
    assert result["perplexity"] == pytest.approx(math.exp(after), rel=1e-5)
    assert after < before / 2
    assert 0.5 < result["masked_accuracy"] <= 1
    assert result["tokens"] == (collator(rows.to_list())["labels"] != -100).sum()


def test_what_does_not_go_together_is_named(tokenizer):
    with pytest.raises(ValueError, match=r"is an encoder: .*Evaluate it by `mlm_probability`"):
        evaluate_language_model(make_encoder(tokenizer), tokenizer, TEXTS)
    with pytest.raises(ValueError, match="`mlm_probability` and `sample_prompt` do not go together"):
        LanguageModelArguments(mlm_probability=0.15, sample_prompt="Once")
