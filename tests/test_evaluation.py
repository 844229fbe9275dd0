# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Evaluations in little memory, of every family of models, and shared out in whole batches."""

import math

import pytest
import torch
from conftest import FAMILIES, make_gpt, make_transformer
from datasets import Dataset
from peft import PromptTuningConfig, get_peft_model
from test_loss_without_logits import LargestTensor
from torch.nn.functional import cross_entropy
from transformers import (
    DataCollatorForSeq2Seq,
    GPT2Config,
    GPT2LMHeadModel,
    GraniteConfig,
    GraniteForCausalLM,
    Seq2SeqTrainingArguments,
    TrainingArguments,
)

from hf_scratch import TranslationPipeline
from hf_scratch.evaluation.language_modeling import evaluate_language_model
from hf_scratch.tokenization import train_tokenizer
from hf_scratch.training.trainers import LanguageModelTrainer, TranslationTrainer

VOCABULARY, TEXTS = 4000, ["ab" * 17 + "c" * i for i in range(70)]
LOGITS = 4 * 70 * 40 * VOCABULARY  # bytes: 45 MB, of which a block has 4 MB
SIZES = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 128, "bos_token_id": 1, "eos_token_id": 2}


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(["abcß"], "char", 30, 128, show_progress=False)


def make_trainer(model, rows, folder, **options):
    options = {"per_device_eval_batch_size": 70, "report_to": "none", "disable_tqdm": True, "use_cpu": True, **options}
    if model.config.is_encoder_decoder:
        args = Seq2SeqTrainingArguments(folder, predict_with_generate=True, **options)
        model.generation_config.max_length = 3
        return TranslationTrainer(model=model, args=args, eval_dataset=rows)
    return LanguageModelTrainer(model=model, args=TrainingArguments(folder, **options), eval_dataset=rows)


def largest_tensor(evaluate) -> int:
    with LargestTensor() as mode:
        evaluate()
    return mode.nbytes


def test_bits_per_byte_need_no_tensor_of_all_logits(tokenizer):
    model = make_gpt(vocab_size=VOCABULARY, hidden_size=16, max_position_embeddings=128)
    assert largest_tensor(lambda: evaluate_language_model(model, tokenizer, TEXTS, batch_size=70)) < LOGITS / 8


@pytest.mark.parametrize("family", FAMILIES)
def test_trainers_evaluation_needs_no_tensor_of_all_logits(family, tmp_path):
    """Also where it translates."""
    ids = torch.randint(5, VOCABULARY, (70, 40)).tolist()
    model = FAMILIES[family](vocab_size=VOCABULARY)
    rows = Dataset.from_dict({"input_ids": ids, "attention_mask": [[1] * 40] * 70, "labels": ids})
    trainer = make_trainer(model, rows, tmp_path)
    if family == "transformer":
        trainer.compute_metrics = lambda prediction: {"rows": len(prediction.predictions)}
    assert largest_tensor(trainer.evaluate) < LOGITS / 8
    with torch.no_grad():
        expected = model(torch.tensor(ids), labels=torch.tensor(ids)).loss.item()
    figures = trainer.evaluate()
    assert figures["eval_loss"] == pytest.approx(expected, rel=1e-6)
    if family == "transformer":
        assert figures["eval_rows"] == 70
    else:
        assert trainer.predict(rows).predictions.shape == (70, 40, VOCABULARY)  # these are the logits


def test_rows_are_translated_in_their_order_where_training_groups_them_by_length(tokenizer, tmp_path):
    lengths = [5, 3, 9, 7, 2, 8, 4, 6]
    ids = [[5] * n for n in lengths]
    rows = Dataset.from_dict({"input_ids": ids, "attention_mask": [[1] * n for n in lengths], "labels": ids})
    trainer = make_trainer(make_transformer(), rows, tmp_path, train_sampling_strategy="group_by_length")
    trainer.data_collator = DataCollatorForSeq2Seq(tokenizer)
    trainer.compute_metrics = lambda prediction: {"lengths": (prediction.label_ids == 5).sum(1).tolist()}
    assert trainer.evaluate()["eval_lengths"] == lengths


COMMON = {"vocab_size": 30, "initializer_range": 0.3}
SCALED = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
MODELS = {
    "scratch_gpt": lambda: make_gpt(vocab_size=30, max_position_embeddings=128),
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config(**COMMON, **SIZES)),
    # divides the head's output by 4
    "granite": lambda: GraniteForCausalLM(
        GraniteConfig(logits_scaling=4.0, max_position_embeddings=128, **COMMON, **SCALED)
    ),
}


@pytest.mark.parametrize("family", MODELS)
def test_each_family_is_charged_for_each_token_once_what_its_own_loss_says(family, tokenizer):
    torch.manual_seed(0)
    model, texts = MODELS[family]().eval(), ["abc", "b" * 30, "ca" * 20, "aß"]
    nats, tokens = 0.0, sum(len(text) + 1 for text in texts)
    for text in texts:
        ids = torch.tensor([[*tokenizer(text)["input_ids"], tokenizer.eos_token_id]])
        with torch.no_grad():
            nats += model(ids, labels=ids).loss.item() * (ids.shape[1] - 1)
    result = evaluate_language_model(model, tokenizer, texts, batch_size=2)
    assert result["tokens"] == tokens
    assert result["loss"] == pytest.approx(nats / tokens, rel=1e-5) == math.log(result["perplexity"])
    assert result["bits_per_byte"] == pytest.approx(nats / math.log(2) / (3 + 30 + 40 + 3), rel=1e-5)
    windows = evaluate_language_model(model, tokenizer, texts, batch_size=2, block_size=16)
    assert windows["tokens"] == tokens
    with pytest.raises(ValueError, match="`block_size` must be from 2"):
        evaluate_language_model(model, tokenizer, texts, block_size=1)


def test_a_tuned_prompt_stands_before_the_tokens(tokenizer):
    config = PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)
    model = get_peft_model(make_gpt(vocab_size=len(tokenizer)), config).eval()
    ids = torch.tensor([[*tokenizer(TEXTS[0])["input_ids"], tokenizer.eos_token_id]])
    with torch.inference_mode():
        expected = cross_entropy(model(ids).logits[0, 3:-1], ids[0, 1:]).item()
    assert evaluate_language_model(model, tokenizer, TEXTS[:1], block_size=37)["loss"] == pytest.approx(expected)


def test_shares_of_the_batches_are_together_all_translations(joint_tokenizer):
    model = make_transformer(vocab_size=len(joint_tokenizer), max_position_embeddings=128)
    model.generation_config.max_length = 12
    translator = TranslationPipeline(model=model, tokenizer=joint_tokenizer)
    sources = ["A man sleeps.", "A dog.", "Two dogs run through the snow.", "A", "A woman.", "Men", "Two men sit."]
    whole = dict(translator.translate_by_length(sources, batch_size=2))
    shares = [dict(translator.translate_by_length(sources, slice(i, None, 3), batch_size=2)) for i in range(3)]
    assert [len(share) for share in shares] == [3, 2, 2]
    assert {i: text for share in shares for i, text in share.items()} == whole
    assert not list(translator.translate_by_length(sources, slice(4, None, 5), batch_size=2))
    with pytest.raises(ValueError, match="Input 1 has"):  # each share looks at all rows
        list(translator.translate_by_length(["A man.", "A man. " * 99], slice(0, None, 2), batch_size=1))
