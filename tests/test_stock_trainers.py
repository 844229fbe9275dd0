# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""`skip_logits` in the configuration: stock trainers and own loops get the loss of a training step without logits."""

import json

import pytest
import torch
from conftest import AUTO, FAMILIES, assert_same_step, loss_and_gradients, make_gpt
from datasets import Dataset
from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments, Trainer, TrainingArguments

from hf_scratch.tokenization import train_tokenizer

STOCK = {"gpt": (Trainer, TrainingArguments), "transformer": (Seq2SeqTrainer, Seq2SeqTrainingArguments)}


def test_from_pretrained_takes_the_switch_and_training_has_no_logits(family, model, labelled, tmp_path):
    model.save_pretrained(tmp_path)
    lean, plain = (
        AUTO[family].from_pretrained(tmp_path, **options).train() for options in ({"skip_logits": True}, {})
    )
    assert (lean.config.skip_logits, plain.config.skip_logits) == (True, False)
    assert lean(**labelled).logits is None
    assert plain(**labelled).logits is not None
    assert_same_step(loss_and_gradients(lean, labelled), loss_and_gradients(plain, labelled))


def test_evaluation_and_generation_get_their_logits(model, inputs, labelled):
    options = {"max_new_tokens": 5, "do_sample": False}
    logits, tokens = model(**labelled).logits, model.generate(labelled["input_ids"], **options)
    model.config.skip_logits = True
    assert torch.equal(model(**labelled).logits, logits)
    assert torch.equal(model.generate(labelled["input_ids"], **options), tokens)
    assert model.train()(**inputs).logits is not None  # without labels


def test_an_argument_wins_over_the_configuration(model, labelled):
    model.config.skip_logits = True
    assert model.train()(**labelled, skip_logits=False).logits is not None
    assert model.eval()(**labelled, skip_logits=True).logits is None
    model.config.skip_logits = False
    assert model.train()(**labelled, skip_logits=True).logits is None


def test_the_switch_is_not_saved_and_old_folders_load(family, model, labelled, tmp_path):
    model.config.skip_logits = True
    model.save_pretrained(tmp_path)
    assert "skip_logits" not in json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    again = AUTO[family].from_pretrained(tmp_path)  # as from a folder saved before there was the field
    assert not again.config.skip_logits
    assert again.train()(**labelled).logits is not None
    with pytest.raises(Exception, match="skip_logits"):
        AUTO[family].from_pretrained(tmp_path, skip_logits="yes")


def train(family: str, skip_logits: bool, tmp_path, **options) -> tuple[list, Trainer]:
    """Three updates of two steps each by the stock trainer, and an evaluation.

    The list has, for each call of the model: did it train, had it labels, and did it return logits?
    """
    model, calls = FAMILIES[family](), []
    model.config.skip_logits = skip_logits
    model.register_forward_hook(
        lambda model, args, kwargs, output: calls.append(
            (model.training, kwargs.get("labels") is not None, output.logits is not None)
        ),
        with_kwargs=True,
    )
    rows = {"input_ids": torch.randint(3, 60, (12, 8), generator=torch.Generator().manual_seed(5))}
    rows["labels"] = rows["input_ids"].clone()
    rows["labels"][::3, 5:] = -100  # steps of an update have unequal numbers of labels
    if family == "transformer":  # as a DataCollatorForSeq2Seq adds them: smoothing keeps the labels from the model
        rows["decoder_input_ids"] = model.prepare_decoder_input_ids_from_labels(rows["labels"])
    dataset = Dataset.from_dict({name: ids.tolist() for name, ids in rows.items()})
    trainer_class, arguments_class = STOCK[family]
    arguments = arguments_class(
        output_dir=str(tmp_path), per_device_train_batch_size=2, gradient_accumulation_steps=2, learning_rate=0.5,
        optim="sgd",  # Adam would scale the rounding of the key biases' gradients, which are 0
        max_steps=3, logging_steps=1, eval_strategy="steps", eval_steps=3, save_strategy="no", report_to="none",
        use_cpu=True, disable_tqdm=True, seed=3, **options,
    )  # fmt: skip
    trainer = trainer_class(
        model=model,
        args=arguments,
        train_dataset=dataset,
        eval_dataset=dataset,
        compute_metrics=lambda prediction: {"shape": str(getattr(prediction.predictions, "shape", None))},
    )
    trainer.train()
    return calls, trainer


@pytest.mark.parametrize(
    "options", [{}, {"label_smoothing_factor": 0.1}, {"gradient_checkpointing": True}], ids=["plain", "smooth", "ckpt"]
)
def test_stock_trainers_take_the_same_steps_with_less(family, options, tmp_path):
    (lean, trainer), (plain, expected) = (train(family, skip, tmp_path, **options) for skip in (True, False))
    for name, parameter in trainer.model.named_parameters():
        torch.testing.assert_close(parameter, expected.model.get_parameter(name), atol=1e-4, rtol=1e-3)
    for log, other in zip(trainer.state.log_history, expected.state.log_history, strict=True):
        for key in {"loss", "eval_loss", "eval_shape"} & log.keys():
            assert log[key] == (other[key] if key == "eval_shape" else pytest.approx(other[key], rel=1e-4))
    # with `label_smoothing_factor`, stock trainers keep the labels to themselves and smooth the logits
    in_training = (True, False, True) if "label_smoothing_factor" in options else (True, True, False)
    assert {call for call in lean if call[0]} == {in_training}
    assert all(has_logits for is_training, _, has_logits in lean if not is_training)
    assert all(has_logits for _, _, has_logits in plain)


def test_distributed_data_parallel_returns_the_loss(model, labelled, one_process_group):
    expected = model.train()(**labelled).loss
    model.config.skip_logits = True
    output = torch.nn.parallel.DistributedDataParallel(model)(**labelled)
    output.loss.backward()
    assert output.logits is None
    torch.testing.assert_close(output.loss, expected)
    assert all(p.grad is not None for p in model.parameters() if p.requires_grad)


def test_trls_sft_trainer_takes_the_same_step(tmp_path):
    trl = pytest.importorskip("trl")
    tokenizer = train_tokenizer(["the cat sat on the mat", "the dog ran"] * 4, "bpe", 290, 40, show_progress=False)
    losses = []
    for skip_logits in (True, False):
        model = make_gpt(vocab_size=len(tokenizer))
        model.config.skip_logits = skip_logits
        config = trl.SFTConfig(
            output_dir=str(tmp_path), max_steps=2, max_length=16, bf16=False, use_cpu=True, report_to="none",
            save_strategy="no", disable_tqdm=True, seed=3, gradient_accumulation_steps=2,
        )  # fmt: skip
        texts = Dataset.from_dict({"text": ["the cat sat", "the dog ran", "the mat"] * 4})
        trainer = trl.SFTTrainer(model=model, args=config, train_dataset=texts, processing_class=tokenizer)
        losses.append(trainer.train().training_loss)
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
