# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""A run that was interrupted and resumed ends as one that was not: its weights, its evaluations, its checkpoints."""

import json
import logging
import shutil
import signal
from pathlib import Path

import pytest
import torch
from datasets import Dataset
from test_runs import Send, arguments, make_checkpoint, weights_of
from test_training import make_trainer  # noqa: F401  a fixture
from transformers import EarlyStoppingCallback, TrainerCallback

from hf_scratch.errors import UserError
from hf_scratch.manifest import MANIFEST
from hf_scratch.training.averaging import evaluate_and_select_weights, last_checkpoints, save_final_model
from hf_scratch.training.callbacks import StopOnSignal, TimeLimit
from hf_scratch.training.checkpoints import choose_checkpoint, is_early, whole_checkpoints
from hf_scratch.training.resuming import hash_rows
from hf_scratch.training.runs import open_run

SETTINGS = {"max_steps": 6, "learning_rate": 1e-2, "dropout": 0.1, "per_device_train_batch_size": 2}
BEST = {"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 2,
        "load_best_model_at_end": True, "greater_is_better": True}  # fmt: skip


class Crash(TrainerCallback):
    """Raise after the checkpoint of update `step`."""

    def __init__(self, step: int):
        self.step = step

    def on_save(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            raise InterruptedError


def train_in(folder: Path, make_trainer, *callbacks, resume=False, **settings):  # noqa: F811
    trainer = make_trainer(callbacks=[*callbacks, StopOnSignal()], **{**SETTINGS, **settings})
    trainer.args.output_dir = str(folder)
    trainer.args.resume_from_checkpoint = "last" if resume else None
    with open_run(trainer.args) as checkpoint:
        trainer.train(resume_from_checkpoint=checkpoint)
    return trainer


def assert_same_end(whole, resumed):
    """The same weights, evaluations and checkpoints."""
    assert all(map(torch.equal, weights_of(whole.model), weights_of(resumed.model)))
    losses = [[(e["step"], e["eval_loss"]) for e in t.state.log_history if "eval_loss" in e] for t in (whole, resumed)]
    assert losses[0] == losses[1]
    folders = [
        [path.name for path in whole_checkpoints(trainer.args.output_dir) if not is_early(path)]
        for trainer in (whole, resumed)
    ]
    assert folders[0] == folders[1]


@pytest.mark.parametrize(
    ("settings", "step"),
    [
        ({"save_strategy": "steps", "save_steps": 2, "eval_strategy": "epoch"}, 4),  # the second epoch's end
        ({"save_strategy": "steps", "save_steps": 3, "train_sampling_strategy": "group_by_length"}, 3),
        ({"save_strategy": "steps", "save_steps": 1, "train_sampling_strategy": "group_by_length", "data_seed": 5}, 5),
    ],
    ids=["evaluated each epoch", "group_by_length", "group_by_length, with a seed"],
)
def test_a_resumed_run_ends_as_one_that_was_not_interrupted(make_trainer, tmp_path, settings, step):  # noqa: F811
    whole = train_in(tmp_path / "whole", make_trainer, **settings)
    with pytest.raises(InterruptedError):
        train_in(tmp_path / "run", make_trainer, Crash(step), **settings)
    resumed = train_in(tmp_path / "run", make_trainer, resume=True, **settings)
    assert_same_end(whole, resumed)


def test_a_resumed_runs_moving_average_goes_on(make_trainer, tmp_path):  # noqa: F811
    settings = {"save_strategy": "steps", "save_steps": 2, "ema_decay": 0.9}
    whole = train_in(tmp_path / "whole", make_trainer, **settings)
    with pytest.raises(InterruptedError):
        train_in(tmp_path / "run", make_trainer, Crash(4), **settings)
    resumed = train_in(tmp_path / "run", make_trainer, resume=True, **settings)
    averages = [trainer.moving_average.weights for trainer in (whole, resumed)]
    assert averages[0].keys() == averages[1].keys()
    assert all(torch.equal(averages[1][name], weight) for name, weight in averages[0].items())
    last = whole_checkpoints(tmp_path / "run")[-1]
    assert "moving_average.safetensors" in json.loads((last / "manifest.json").read_text())["files"]


def test_a_run_without_a_moving_average_is_not_resumed_with_one(make_trainer, tmp_path):  # noqa: F811
    with pytest.raises(InterruptedError):
        train_in(tmp_path / "run", make_trainer, Crash(2), save_strategy="steps", save_steps=2)
    with pytest.raises(UserError, match="was begun without `ema_decay`"):
        train_in(tmp_path / "run", make_trainer, resume=True, save_strategy="steps", save_steps=2, ema_decay=0.9)


EACH_STEP = {"eval_strategy": "steps", "eval_steps": 1, "load_best_model_at_end": True}


@pytest.mark.parametrize(
    ("settings", "step"),
    [
        ({"max_steps": 5, "save_strategy": "epoch", "eval_strategy": "epoch", "load_best_model_at_end": True}, 5),
        ({**EACH_STEP, "save_strategy": "best", "metric_for_best_model": "loss"}, 2),
    ],
    ids=["at the last update, within an epoch", "at the best checkpoint"],
)
def test_a_stopped_run_ends_as_one_that_was_not(make_trainer, tmp_path, settings, step):  # noqa: F811
    whole = train_in(tmp_path / "whole", make_trainer, **settings)
    with pytest.raises(SystemExit):
        train_in(tmp_path / "run", make_trainer, Send(signal.SIGTERM, step), **settings)
    resumed = train_in(tmp_path / "run", make_trainer, resume=True, **settings)
    assert_same_end(whole, resumed)


HIGHEST = {**EACH_STEP, "metric_for_best_model": "loss", "greater_is_better": True}  # the first evaluation is best


@pytest.mark.parametrize("strategy", ["steps", "epoch"])
def test_a_stopped_run_that_saves_the_best_alone_saves_its_last_update(make_trainer, tmp_path, strategy):  # noqa: F811
    settings = {**HIGHEST, "eval_strategy": strategy, "save_strategy": "best", "max_steps": 7}
    whole = train_in(tmp_path / "whole", make_trainer, **settings)
    with pytest.raises(SystemExit):
        train_in(tmp_path / "run", make_trainer, Send(signal.SIGTERM, 4), **settings)
    last = whole_checkpoints(tmp_path / "run")[-1]
    # update 4 ends an epoch, after which an evaluation says alone what is saved
    assert last.name == "checkpoint-5"
    assert is_early(last)
    resumed = train_in(tmp_path / "run", make_trainer, resume=True, **settings)
    assert_same_end(whole, resumed)


def test_the_best_metric_is_kept_where_its_update_was_not_saved(make_trainer, tmp_path, caplog):  # noqa: F811
    settings = {**HIGHEST, "save_strategy": "steps", "save_steps": 2, "max_steps": 9,
                "restore_callback_states_from_checkpoint": True}  # fmt: skip
    whole = train_in(tmp_path / "whole", make_trainer, EarlyStoppingCallback(4), **settings)
    with pytest.raises(InterruptedError):
        train_in(tmp_path / "run", make_trainer, EarlyStoppingCallback(4), Crash(2), **settings)
    with caplog.at_level(logging.WARNING):
        resumed = train_in(tmp_path / "run", make_trainer, EarlyStoppingCallback(4), resume=True, **settings)
    assert "It was the best checkpoint so far" not in caplog.text
    assert whole.state.global_step == 5
    assert_same_end(whole, resumed)


def test_the_evaluation_of_the_loaded_checkpoint_is_reported(make_trainer, tmp_path):  # noqa: F811
    settings = {**HIGHEST, "save_strategy": "steps", "save_steps": 2, "greater_is_better": False, "max_steps": 4}
    trainer = train_in(tmp_path / "run", make_trainer, **settings)
    trainer.state.best_global_step = 3  # as if the third update had the lowest loss, but was not saved
    assert trainer.state.best_model_checkpoint.endswith("checkpoint-4")
    assert evaluate_and_select_weights(trainer, 0)["eval_loss"] == trainer.evaluate()["eval_loss"]


class StopAt(TimeLimit):
    """A time limit that is reached at update `step`."""

    def __init__(self, step: int):
        super().__init__(1000)
        self.step = step

    def on_step_begin(self, args, state, control, **kwargs):
        self.seconds = 0 if state.global_step == self.step - 1 else 1000


@pytest.mark.parametrize(
    ("settings", "step"),
    [
        ({"save_strategy": "steps", "save_steps": 4, "eval_strategy": "steps", "eval_steps": 4}, 3),
        ({"save_strategy": "epoch", "eval_strategy": "epoch"}, 3),
        ({"save_strategy": "epoch", "eval_strategy": "epoch"}, 4),
        ({"save_strategy": "steps", "save_steps": 4, "eval_strategy": "epoch"}, 1),
        ({**HIGHEST, "save_strategy": "best", "max_steps": 7}, 3),
        ({**HIGHEST, "save_strategy": "steps", "save_steps": 3, "lr_scheduler_type": "reduce_lr_on_plateau",
          "lr_scheduler_kwargs": {"patience": 0, "factor": 0.5}, "eval_steps": 3, "max_steps": 9}, 4),
    ],
    ids=["steps", "within an epoch", "at its end", "saved by steps", "the best alone", "plateau"],
)  # fmt: skip
def test_a_time_limit_leaves_no_trace_in_a_resumed_run(make_trainer, tmp_path, settings, step):  # noqa: F811
    whole = train_in(tmp_path / "whole", make_trainer, **settings)
    stopped = train_in(tmp_path / "run", make_trainer, StopAt(step), **settings)
    assert stopped.state.global_step == step
    assert whole_checkpoints(tmp_path / "run")[-1].name == f"checkpoint-{step}"
    assert evaluate_and_select_weights(stopped, 0)["eval_loss"] == stopped.evaluate()["eval_loss"]
    save_final_model(stopped)
    resumed = train_in(tmp_path / "run", make_trainer, resume=True, **settings)
    assert_same_end(whole, resumed)


def test_a_run_that_ends_at_its_time_limit_has_the_best_weights_and_averages_the_last(make_trainer, tmp_path):  # noqa: F811
    settings = {**EACH_STEP, "save_strategy": "steps", "save_steps": 4, "max_steps": 8}
    trainer = train_in(tmp_path / "run", make_trainer, StopAt(6), **settings)  # the loss falls
    assert trainer.state.best_global_step == 6
    assert trainer.state.best_model_checkpoint.endswith("checkpoint-6")
    with torch.no_grad():
        for parameter in trainer.model.parameters():
            parameter.neg_()
    trainer.state.log_history.clear()
    assert evaluate_and_select_weights(trainer, 2)["weights"] == "averaged over 2 checkpoints"


def test_a_time_limit_saves_nothing_where_nothing_is_to_be_saved(make_trainer, tmp_path):  # noqa: F811
    trainer = train_in(tmp_path / "run", make_trainer, StopAt(2), save_strategy="no", eval_strategy="epoch")
    assert trainer.state.global_step == 2
    assert whole_checkpoints(tmp_path / "run") == []


@pytest.mark.parametrize("limit", [2, None])
def test_a_signals_checkpoint_neither_counts_nor_stays(make_trainer, tmp_path, limit):  # noqa: F811
    settings = {"save_strategy": "steps", "save_steps": 2, "save_total_limit": limit}
    train_in(tmp_path / "whole", make_trainer, **settings)
    with pytest.raises(SystemExit):
        train_in(tmp_path / "run", make_trainer, Send(signal.SIGTERM, 5), **settings)
    assert whole_checkpoints(tmp_path / "run")[-1].name == "checkpoint-5"
    assert last_checkpoints(str(tmp_path / "run"), 1) == [str(tmp_path / "run" / "checkpoint-4")]
    train_in(tmp_path / "run", make_trainer, resume=True, **settings)
    folders = [[path.name for path in whole_checkpoints(tmp_path / name)] for name in ("whole", "run")]
    assert folders[0] == folders[1]


def test_a_run_that_is_stopped_at_its_last_update_can_be_resumed(make_trainer, tmp_path):  # noqa: F811
    with pytest.raises(SystemExit):
        train_in(tmp_path / "run", make_trainer, Send(signal.SIGTERM, 6), save_strategy="no")
    (last,) = whole_checkpoints(tmp_path / "run")
    assert is_early(last)
    resumed = train_in(tmp_path / "run", make_trainer, resume=True, save_strategy="no")
    assert resumed.state.global_step == 6


@pytest.mark.parametrize("damage", ["missing", "changed"])
def test_a_lost_best_checkpoint_is_named_and_not_reported(make_trainer, tmp_path, caplog, damage):  # noqa: F811
    with pytest.raises(InterruptedError):
        train_in(tmp_path / "run", make_trainer, Crash(4), **BEST)
    best = tmp_path / "run" / "checkpoint-2"  # the highest loss was asked for
    if damage == "missing":
        shutil.rmtree(best)
    else:
        content = (best / "model.safetensors").read_bytes()
        (best / "model.safetensors").write_bytes(content[:-1] + bytes([content[-1] ^ 64]))
    with caplog.at_level(logging.WARNING):
        resumed = train_in(tmp_path / "run", make_trainer, resume=True, **BEST)
    assert "It was the best checkpoint so far" in caplog.text
    assert resumed.state.best_global_step == 6
    assert evaluate_and_select_weights(resumed, 0)["eval_loss"] == resumed.evaluate()["eval_loss"]


def test_the_best_checkpoint_of_a_moved_run_is_found(make_trainer, tmp_path):  # noqa: F811
    trainer = train_in(tmp_path / "run", make_trainer, **BEST)
    (tmp_path / "run").rename(tmp_path / "moved")
    resumed = train_in(tmp_path / "moved", make_trainer, resume=True, **BEST)
    assert resumed.state.best_model_checkpoint == str(tmp_path / "moved" / "checkpoint-2")
    assert all(map(torch.equal, weights_of(trainer.model), weights_of(resumed.model)))


def test_an_evaluation_before_the_resumption_is_not_reported(make_trainer, tmp_path):  # noqa: F811
    settings = {"save_strategy": "steps", "save_steps": 6, "eval_strategy": "steps", "eval_steps": 6}
    train_in(tmp_path / "run", make_trainer, **settings)
    resumed = make_trainer(callbacks=[StopOnSignal()], **SETTINGS, **settings)
    resumed.eval_dataset = resumed.eval_dataset.select([1])  # other validation data
    resumed.args.output_dir = str(tmp_path / "run")
    resumed.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-6"))
    assert evaluate_and_select_weights(resumed, 0)["eval_loss"] == resumed.evaluate()["eval_loss"]


def test_an_evaluation_sees_all_rows(make_trainer):  # noqa: F811
    trainer = make_trainer(dataloader_drop_last=True, per_device_eval_batch_size=3)
    assert sum(len(batch["input_ids"]) for batch in trainer.get_eval_dataloader()) == 4
    assert trainer.args.dataloader_drop_last


def test_auto_starts_anew_where_no_checkpoint_is_whole(tmp_path):
    make_checkpoint(tmp_path, 7, manifest=False)
    (tmp_path / "runs").mkdir()  # Trainer's log for TensorBoard
    for _ in range(2):
        assert choose_checkpoint(arguments(tmp_path, "auto")) is None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["damaged-checkpoint-7", "runs"]
    (tmp_path / "model.safetensors").write_text("")
    with pytest.raises(UserError, match="is not empty"):
        choose_checkpoint(arguments(tmp_path, "auto"))


def test_a_copy_under_another_number_is_not_the_last_checkpoint(tmp_path, caplog):
    for step in (2, 4):
        make_checkpoint(tmp_path, step)
    shutil.copytree(tmp_path / "checkpoint-2", tmp_path / "checkpoint-900")
    with caplog.at_level(logging.WARNING):
        assert choose_checkpoint(arguments(tmp_path, "last")) == str(tmp_path / "checkpoint-4")
    assert "checkpoint-900 was saved after update 2" in caplog.text


def test_other_rows_per_update_are_refused(make_trainer, tmp_path):  # noqa: F811
    settings = {"save_strategy": "steps", "save_steps": 2}
    train_in(tmp_path / "run", make_trainer, **{**settings, "max_steps": 2})
    with pytest.raises(UserError, match="`rows_per_update` 2, and this run has 4"):
        train_in(tmp_path / "run", make_trainer, resume=True, **settings, gradient_accumulation_steps=2)
    settings |= {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 2}
    assert train_in(tmp_path / "run", make_trainer, resume=True, **settings).state.global_step == 6


def test_a_checkpoint_without_random_state_is_refused(make_trainer, tmp_path):  # noqa: F811
    train_in(tmp_path / "run", make_trainer, save_strategy="steps", save_steps=6)
    folder = tmp_path / "run" / "checkpoint-6"
    (folder / MANIFEST).unlink()
    (folder / "rng_state.pth").unlink()
    with pytest.raises(UserError, match=r"has no rng_state\.pth: training cannot go on from it"):
        choose_checkpoint(arguments(tmp_path / "new", str(folder)))


def test_a_lock_that_was_removed_does_not_spoil_the_end(tmp_path):
    with open_run(arguments(tmp_path / "run")):
        (tmp_path / "run" / ".lock").unlink()
        (tmp_path / "run" / "model.safetensors").write_text("")


def test_rotation_takes_a_linked_checkpoint_out(make_trainer, tmp_path):  # noqa: F811
    settings = {"save_strategy": "steps", "save_steps": 2, "save_total_limit": 1}
    with pytest.raises(InterruptedError):
        train_in(tmp_path / "run", make_trainer, Crash(4), **settings)
    (tmp_path / "run" / "checkpoint-4").rename(tmp_path / "elsewhere")
    (tmp_path / "run" / "checkpoint-4").symlink_to(tmp_path / "elsewhere")
    train_in(tmp_path / "run", make_trainer, resume=True, **settings)
    assert [path.name for path in whole_checkpoints(tmp_path / "run")] == ["checkpoint-6"]
    assert (tmp_path / "elsewhere" / MANIFEST).is_file()


def test_another_metric_for_the_best_evaluation_is_refused(make_trainer, tmp_path):  # noqa: F811
    train_in(tmp_path / "run", make_trainer, **{**BEST, "max_steps": 4})
    with pytest.raises(UserError, match="`greater_is_better` True, and this run has False"):
        train_in(tmp_path / "run", make_trainer, resume=True, **{**BEST, "greater_is_better": False})


def test_other_validation_data_is_refused_where_the_best_is_kept(make_trainer, tmp_path):  # noqa: F811
    trainer = train_in(tmp_path / "run", make_trainer, **{**BEST, "max_steps": 4})
    trainer.eval_dataset = trainer.eval_dataset.select([0, 1])
    with pytest.raises(UserError, match="was saved with other validation data"):
        trainer.checkpoints.check_same_run(tmp_path / "run" / "checkpoint-4")
    trainer.args.metric_for_best_model = None
    trainer.checkpoints.check_same_run(tmp_path / "run" / "checkpoint-4")  # evaluations choose nothing


def test_one_changed_row_is_noticed(make_trainer, tmp_path):  # noqa: F811
    trainer = train_in(tmp_path / "run", make_trainer, save_strategy="steps", save_steps=6)
    rows = trainer.train_dataset.to_list()
    trainer.train_dataset = Dataset.from_list(rows, features=trainer.train_dataset.features)
    trainer.checkpoints.check_same_run(tmp_path / "run" / "checkpoint-6")  # the same rows, in another table
    rows[2]["labels"] = rows[2]["labels"][::-1]
    trainer.train_dataset = Dataset.from_list(rows * 300, features=trainer.train_dataset.features)
    before = hash_rows(trainer.train_dataset)
    rows = trainer.train_dataset.to_list()
    rows[777]["input_ids"][0] += 1
    assert hash_rows(Dataset.from_list(rows, features=trainer.train_dataset.features)) != before
    shuffled = trainer.train_dataset.select(range(5, 1000))
    assert hash_rows(shuffled) == hash_rows(shuffled.flatten_indices()) != before


@pytest.mark.parametrize(("option", "value"), [("num_train_epochs", 9.0), ("r_drop_alpha", 2.0)])
def test_a_changed_option_is_reported(make_trainer, tmp_path, option, value, caplog):  # noqa: F811
    trainer = train_in(tmp_path / "run", make_trainer, save_strategy="steps", save_steps=6)
    setattr(trainer if option == "r_drop_alpha" else trainer.args, option, value)
    trainer.checkpoints.check_same_run(tmp_path / "run" / "checkpoint-6")
    assert f"was saved with other arguments: `{option}`" in caplog.text


def test_a_second_training_after_early_stopping_trains(make_trainer):  # noqa: F811
    settings = {**BEST, "eval_steps": 1, "save_steps": 1, "greater_is_better": True, "max_steps": 9}
    trainer = make_trainer(callbacks=[EarlyStoppingCallback(1)], **{**SETTINGS, **settings})
    for _ in range(2):
        trainer.train()
        assert trainer.state.global_step > 0


def test_signals_are_given_back_after_an_error(make_trainer):  # noqa: F811
    before = signal.getsignal(signal.SIGTERM)
    trainer = make_trainer(callbacks=[StopOnSignal(), Crash(1)], **SETTINGS, save_strategy="steps", save_steps=1)
    with pytest.raises(InterruptedError):
        trainer.train()
    assert signal.getsignal(signal.SIGTERM) is before


def test_train_itself_checks_the_checkpoint(make_trainer, tmp_path):  # noqa: F811
    settings = {**SETTINGS, "save_strategy": "steps", "save_steps": 2}
    trainer = make_trainer(**settings)
    trainer.args.output_dir = str(tmp_path / "run")
    with pytest.raises(UserError, match="There is no whole checkpoint"):
        trainer.train(resume_from_checkpoint=True)
    trainer.train()
    weights = tmp_path / "run" / "checkpoint-6" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(UserError, match=r"model\.safetensors is not what was saved"):
        trainer.train(resume_from_checkpoint=str(weights.parent))
    trainer.train(resume_from_checkpoint=True)  # from the one before
    trainer.train_dataset = trainer.train_dataset.select([1, 0, 2, 3])
    with pytest.raises(UserError, match="was saved with other training data"):
        trainer.train(resume_from_checkpoint=True)


def test_train_resumes_from_the_checkpoints_of_a_stock_trainer(make_trainer, tmp_path):  # noqa: F811
    settings = {**SETTINGS, "save_strategy": "steps", "save_steps": 2}
    whole, resumed = make_trainer(**settings), make_trainer(**settings)
    for trainer in (whole, resumed):
        trainer.args.output_dir = str(tmp_path / "run")
    whole.train()
    for folder in whole_checkpoints(tmp_path / "run"):
        (folder / MANIFEST).unlink()
    shutil.rmtree(tmp_path / "run" / "checkpoint-6")
    resumed.train(resume_from_checkpoint=True)
    assert all(map(torch.equal, weights_of(whole.model), weights_of(resumed.model)))
    assert (tmp_path / "run" / "checkpoint-2").is_dir()


def test_a_training_that_is_told_not_to_resume_is_new(make_trainer):  # noqa: F811
    trainer = make_trainer(callbacks=[EarlyStoppingCallback(1)], **{**SETTINGS, **HIGHEST, "max_steps": 9})
    for _ in range(2):
        trainer.train(resume_from_checkpoint=False)
        assert trainer.state.global_step > 0
    assert evaluate_and_select_weights(trainer, 0)["weights"] == "trained"


def test_rows_that_are_made_on_the_fly_do_not_hinder(make_trainer, tmp_path):  # noqa: F811
    def shake(rows):
        noise = [int(torch.randint(5, 20, ())) for _ in rows["input_ids"]]
        ids = [[noise, *ids[1:]] for ids, noise in zip(rows["input_ids"], noise, strict=True)]
        return {**rows, "input_ids": ids}

    def train(folder, *callbacks, save_steps, **kwargs):
        settings = {**SETTINGS, "save_strategy": "steps", "save_steps": save_steps, "remove_unused_columns": False}
        trainer = make_trainer(callbacks=list(callbacks), **settings)
        trainer.train_dataset = trainer.train_dataset.select_columns(["input_ids", "labels"]).with_transform(shake)
        trainer.args.output_dir = str(folder)
        trainer.train(**kwargs)
        return weights_of(trainer.model)

    whole = train(tmp_path / "whole", save_steps=100)
    assert all(map(torch.equal, whole, train(tmp_path / "often", save_steps=1)))
    with pytest.raises(InterruptedError):
        train(tmp_path / "run", Crash(4), save_steps=4)  # the second epoch's end
    assert all(map(torch.equal, whole, train(tmp_path / "run", save_steps=4, resume_from_checkpoint=True)))


def test_a_named_checkpoint_may_be_a_link(tmp_path):
    checkpoint = make_checkpoint(tmp_path / "elsewhere", 3)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoint-3").symlink_to(checkpoint)
    wanted = str(tmp_path / "run" / "checkpoint-3")
    assert choose_checkpoint(arguments(tmp_path / "run", wanted)) == wanted
