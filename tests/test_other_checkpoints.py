# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""A checkpoint of another model, other data or another optimiser is refused, in one line."""

import json

import pytest
import torch
from test_training import make_trainer  # noqa: F401  a fixture

from hf_scratch.errors import UserError
from hf_scratch.manifest import MANIFEST
from hf_scratch.training.checkpoints import whole_checkpoints
from hf_scratch.training.resuming import check_same_weights


def test_a_checkpoint_of_another_model_is_refused(make_trainer):  # noqa: F811
    trainer = make_trainer(max_steps=1, save_strategy="steps", save_steps=1)
    trainer.train()
    (checkpoint,) = whole_checkpoints(trainer.args.output_dir)
    check_same_weights(trainer.model, str(checkpoint))
    for name, size in (("fc1", (48, 16)), ("fc3", (48, 32))):
        other = make_trainer(max_steps=1).model
        feed_forward = other.model.decoder.layers[0].feed_forward
        setattr(feed_forward, name, torch.nn.Linear(size[1], size[0]))
        with pytest.raises(UserError, match=rf"weights of another model: .*{name}\.(weight|bias) is"):
            check_same_weights(other, str(checkpoint))


@pytest.mark.parametrize(("change", "name"), [("rows", "train_rows"), ("budget", "tokens_per_update")])
def test_other_data_or_batches_are_refused(make_trainer, change, name):  # noqa: F811
    trainer = make_trainer(budget=12, max_steps=2, save_strategy="steps", save_steps=1)
    trainer.train()
    checkpoint = str(whole_checkpoints(trainer.args.output_dir)[0])
    make_trainer(budget=12, max_steps=2).checkpoints.check_same_run(checkpoint)
    other = make_trainer(budget=16 if change == "budget" else 12, max_steps=2)
    if change == "rows":
        other.train_dataset = other.train_dataset.select(range(3))
    with pytest.raises(UserError, match=rf"was saved with `{name}` \d+, and this run has \d+"):
        other.checkpoints.check_same_run(checkpoint)


@pytest.mark.parametrize(("before", "after"), [(None, 12), (12, None)])
@pytest.mark.parametrize("is_older", [False, True])
def test_a_budget_of_tokens_that_comes_or_goes_is_refused(make_trainer, before, after, is_older):  # noqa: F811
    trainer = make_trainer(budget=before, max_steps=1, save_strategy="steps", save_steps=1)
    trainer.train()
    (checkpoint,) = whole_checkpoints(trainer.args.output_dir)
    if is_older:  # a manifest that names the budget only where there is one
        manifest = json.loads((checkpoint / MANIFEST).read_text())
        if before is None:
            del manifest["tokens_per_update"]
        (checkpoint / MANIFEST).write_text(json.dumps(manifest))
    make_trainer(budget=before, max_steps=1).checkpoints.check_same_run(checkpoint)
    with pytest.raises(UserError, match=r"was saved with `(rows|tokens)_per_update` "):
        make_trainer(budget=after, max_steps=1).checkpoints.check_same_run(checkpoint)


def test_other_rows_of_the_same_number_are_refused(make_trainer):  # noqa: F811
    trainer = make_trainer(max_steps=1, save_strategy="steps", save_steps=1)
    trainer.train()
    (checkpoint,) = whole_checkpoints(trainer.args.output_dir)
    other = make_trainer(max_steps=2)
    rows = other.train_dataset
    other.train_dataset = rows.rename_columns({"input_ids": "labels", "labels": "input_ids"})
    with pytest.raises(UserError, match="with other training data"):
        other.train(resume_from_checkpoint=str(checkpoint))
    other.args.ignore_data_skip = True
    other.checkpoints.check_same_run(checkpoint)


def test_another_config_with_weights_of_the_same_shapes_is_refused(make_trainer):  # noqa: F811
    trainer = make_trainer(max_steps=1, save_strategy="steps", save_steps=1)
    trainer.train()
    (checkpoint,) = whole_checkpoints(trainer.args.output_dir)
    for name, value in (("encoder_attention_heads", 2), ("dropout", 0.5), ("source_lang", "fr")):
        other = make_trainer(max_steps=1)
        setattr(other.model.config, name, value)
        with pytest.raises(UserError, match=rf"was saved with .*`{name}` .*; this run has .*`{name}` {value!r}"):
            other.checkpoints.check_same_run(checkpoint)


def test_other_seeds_and_rates_are_named(make_trainer, caplog):  # noqa: F811
    trainer = make_trainer(max_steps=1, save_strategy="steps", save_steps=1)
    trainer.train()
    (checkpoint,) = whole_checkpoints(trainer.args.output_dir)
    make_trainer(max_steps=1).checkpoints.check_same_run(checkpoint)
    assert "was saved with" not in caplog.text
    make_trainer(max_steps=1, seed=7, learning_rate=1.0).checkpoints.check_same_run(checkpoint)
    assert "other arguments: `learning_rate` 5e-05 (now 1.0), `seed` 42 (now 7). The run may" in caplog.text
    make_trainer(max_steps=1, lr_scheduler_kwargs={"a": 1}).checkpoints.check_same_run(checkpoint)
    assert "`lr_scheduler_kwargs` None (now {'a': 1})" in caplog.text


@pytest.mark.parametrize("optim", ["adafactor", "sgd"])
def test_another_optimiser_is_refused(make_trainer, optim):  # noqa: F811
    trainer = make_trainer(max_steps=1, save_strategy="steps", save_steps=1)
    trainer.train()
    (checkpoint,) = whole_checkpoints(trainer.args.output_dir)
    other = make_trainer(max_steps=2, optim=optim)
    with pytest.raises(UserError, match=rf"`optim` adamw_torch_fused, and this run has {optim}"):
        other.train(resume_from_checkpoint=str(checkpoint))


def test_other_groups_of_parameters_are_refused(make_trainer, monkeypatch):  # noqa: F811
    trainer = make_trainer(max_steps=1, save_strategy="steps", save_steps=1)
    trainer.train()
    (checkpoint,) = whole_checkpoints(trainer.args.output_dir)
    other = make_trainer(max_steps=2)
    monkeypatch.setattr(
        other, "get_decay_parameter_names", lambda model: [name for name, _ in model.named_parameters()]
    )
    with pytest.raises(UserError, match=r"The training cannot begin: .*parameter group"):
        other.train(resume_from_checkpoint=str(checkpoint))
