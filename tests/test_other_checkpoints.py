# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""A checkpoint of another model or other data is refused; other options are named."""

import pytest
from test_training import make_trainer  # noqa: F401  a fixture

from hf_scratch.errors import UserError
from hf_scratch.training.checkpoints import whole_checkpoints


def check(trainer, checkpoint: str) -> None:
    with trainer.checkpoints.begin(checkpoint):
        pass


def save_one(make_trainer, **kwargs) -> str:  # noqa: F811
    trainer = make_trainer(max_steps=1, save_strategy="steps", save_steps=1, **kwargs)
    trainer.train()
    (checkpoint,) = whole_checkpoints(trainer.args.output_dir)
    return str(checkpoint)


@pytest.mark.parametrize(("before", "after"), [(None, 12), (12, None), (12, 16)])
def test_another_budget_of_tokens_is_refused(make_trainer, before, after):  # noqa: F811
    checkpoint = save_one(make_trainer, budget=before)
    check(make_trainer(budget=before), checkpoint)
    with pytest.raises(UserError, match=rf"`tokens_per_update` {before} \(now {after}\)"):
        check(make_trainer(budget=after), checkpoint)


def test_other_rows_are_refused(make_trainer):  # noqa: F811
    checkpoint = save_one(make_trainer)
    other = make_trainer(max_steps=2)
    rows = other.train_dataset
    other.train_dataset = rows.select(range(3))
    with pytest.raises(UserError, match=r"`train_rows` 4 \(now 3\)"):
        other.train(resume_from_checkpoint=checkpoint)
    other.train_dataset = rows.rename_columns({"input_ids": "labels", "labels": "input_ids"})
    with pytest.raises(UserError, match="`train_data_sha256`"):
        other.train(resume_from_checkpoint=checkpoint)
    other.args.ignore_data_skip = True
    check(other, checkpoint)


def test_another_config_with_weights_of_the_same_shapes_is_refused(make_trainer):  # noqa: F811
    checkpoint = save_one(make_trainer)
    for name, value in (("encoder_attention_heads", 2), ("dropout", 0.5), ("source_lang", "fr")):
        other = make_trainer()
        setattr(other.model.config, name, value)
        with pytest.raises(UserError, match=rf"was saved with other .*`{name}` .* \(now {value}\)"):
            check(other, checkpoint)


def test_a_checkpoint_of_adamw_is_not_resumed_with_muon(make_trainer):  # noqa: F811
    checkpoint = save_one(make_trainer)
    with pytest.raises(UserError, match="`muon` False \\(now True\\)"):
        check(make_trainer(muon=True), checkpoint)


def test_other_options_are_named(make_trainer, caplog):  # noqa: F811
    checkpoint = save_one(make_trainer)
    check(make_trainer(max_steps=1), checkpoint)
    assert "was saved with" not in caplog.text
    check(make_trainer(max_steps=1, seed=7, learning_rate=1.0, r_drop_alpha=2.0, optim="sgd"), checkpoint)
    for change in ("`learning_rate` 5e-05 (now 1.0)", "`seed` 42 (now 7)", "`r_drop_alpha` 0.0 (now 2.0)",
                   "`optim` adamw_torch_fused (now sgd)"):  # fmt: skip
        assert change in caplog.text
    other = make_trainer(max_steps=1)
    other.data_collator.pad_to_multiple_of = 8  # as `mlm_probability` of another collator
    other.model.set_attn_implementation("eager")
    check(other, checkpoint)
    assert "`attn_implementation` sdpa (now eager), `collator.pad_to_multiple_of` None (now 8)" in caplog.text
    check(make_trainer(max_steps=1, lr_scheduler_kwargs={"a": 1}), checkpoint)
    assert "`lr_scheduler_kwargs` None (now {'a': 1})" in caplog.text


def test_other_groups_of_parameters_are_refused(make_trainer, monkeypatch):  # noqa: F811
    checkpoint, other = save_one(make_trainer), make_trainer(max_steps=2)
    monkeypatch.setattr(
        other, "get_decay_parameter_names", lambda model: [name for name, _ in model.named_parameters()]
    )
    with pytest.raises(UserError, match=r"The training cannot begin: .*parameter group"):
        other.train(resume_from_checkpoint=checkpoint)


def test_what_belongs_to_the_run_and_not_to_the_model_does_not_hinder(make_trainer):  # noqa: F811
    first, second = (make_trainer(max_steps=steps, save_strategy="steps", save_steps=1) for steps in (1, 2))
    for trainer, resume in ((first, None), (second, True)):
        trainer.model.config.skip_logits = True
        trainer.model.config.eos_token_id = None  # which Trainer takes from the tokenizer
        trainer.train(resume_from_checkpoint=resume)
    assert second.state.global_step == 2
