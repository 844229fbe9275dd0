# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""A run that was interrupted and resumed ends as one that was not: its weights, its evaluations, its checkpoints."""

import json
import shutil
import signal
from functools import partial
from pathlib import Path

import pytest
import torch
from datasets import Dataset
from test_runs import Send, arguments, make_checkpoint, weights_of
from test_training import make_trainer  # noqa: F401  a fixture
from torch._dynamo.utils import counters
from transformers import EarlyStoppingCallback, TrainerCallback

from hf_scratch.errors import UserError
from hf_scratch.manifest import MANIFEST
from hf_scratch.training.averaging import evaluate_and_select_weights, save_final_model
from hf_scratch.training.callbacks import StopCallback
from hf_scratch.training.checkpoints import choose_checkpoint, is_early, whole_checkpoints
from hf_scratch.training.resuming import hash_rows
from hf_scratch.training.runs import open_run

SETTINGS = {"max_steps": 6, "learning_rate": 1e-2, "dropout": 0.1, "per_device_train_batch_size": 2}
BEST = {"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 2,
        "load_best_model_at_end": True, "greater_is_better": True}  # fmt: skip


class Crash(TrainerCallback):
    """Raise after the checkpoint of step `step`."""

    def __init__(self, step: int):
        self.step = step

    def on_save(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            raise InterruptedError


def train_in(folder: Path, make_trainer, *callbacks, resume=False, **settings):  # noqa: F811
    stops = [] if any(isinstance(callback, StopCallback) for callback in callbacks) else [StopCallback()]
    trainer = make_trainer(callbacks=[*callbacks, *stops], **{**SETTINGS, **settings})
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


EACH_STEP = {"eval_strategy": "steps", "eval_steps": 1, "load_best_model_at_end": True}
HIGHEST = {**EACH_STEP, "metric_for_best_model": "loss", "greater_is_better": True}  # the first evaluation is best
BY_LENGTH = {"save_strategy": "steps", "train_sampling_strategy": "group_by_length"}
TERMINATE = partial(Send, signal.SIGTERM)
INTERRUPTIONS = {
    "evaluated each epoch": ({"save_strategy": "steps", "save_steps": 2, "eval_strategy": "epoch"}, Crash(4)),
    "group_by_length": ({**BY_LENGTH, "save_steps": 3}, Crash(3)),
    "group_by_length, with a seed": ({**BY_LENGTH, "save_steps": 1, "data_seed": 5}, Crash(5)),
    "stopped at the last step, within an epoch": (
        {"max_steps": 5, "save_strategy": "epoch", "eval_strategy": "epoch", "load_best_model_at_end": True},
        TERMINATE(5),
    ),
    "stopped at the best checkpoint": (
        {**EACH_STEP, "save_strategy": "best", "metric_for_best_model": "loss"}, TERMINATE(2)
    ),
    "stopped where the best alone is saved": ({**HIGHEST, "save_strategy": "best", "max_steps": 7}, TERMINATE(4)),
}  # fmt: skip


@pytest.mark.parametrize(("settings", "interruption"), INTERRUPTIONS.values(), ids=INTERRUPTIONS)
def test_an_interrupted_run_ends_as_one_that_was_not(make_trainer, tmp_path, settings, interruption):  # noqa: F811
    whole = train_in(tmp_path / "whole", make_trainer, **settings)
    with pytest.raises((InterruptedError, SystemExit)):
        train_in(tmp_path / "run", make_trainer, interruption, **settings)
    last = whole_checkpoints(tmp_path / "run")[-1]
    assert last.name == f"checkpoint-{interruption.step}"
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


def test_the_best_metric_is_kept_where_its_update_was_not_saved(make_trainer, tmp_path):  # noqa: F811
    settings = {**HIGHEST, "save_strategy": "steps", "save_steps": 2, "max_steps": 9,
                "restore_callback_states_from_checkpoint": True}  # fmt: skip
    whole = train_in(tmp_path / "whole", make_trainer, EarlyStoppingCallback(4), **settings)
    with pytest.raises(InterruptedError):
        train_in(tmp_path / "run", make_trainer, EarlyStoppingCallback(4), Crash(2), **settings)
    resumed = train_in(tmp_path / "run", make_trainer, EarlyStoppingCallback(4), resume=True, **settings)
    assert whole.state.global_step == 5
    assert_same_end(whole, resumed)


class StopAt(StopCallback):
    """A time limit that is reached at step `step`."""

    def __init__(self, step: int):
        super().__init__()
        self.step = step

    def on_step_begin(self, args, state, control, **kwargs):
        self.minutes = -1 if state.global_step == self.step - 1 else 1000


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


def test_an_early_checkpoint_is_not_averaged(make_trainer, tmp_path):  # noqa: F811
    settings = {"save_strategy": "steps", "save_steps": 4, "max_steps": 9}
    with pytest.raises(SystemExit):
        train_in(tmp_path / "run", make_trainer, Send(signal.SIGTERM, 7), **settings)
    checkpoints = whole_checkpoints(tmp_path / "run")
    assert [is_early(folder) for folder in checkpoints] == [False, True]
    trainer = train_in(tmp_path / "run", make_trainer, resume=True, save_strategy="no", max_steps=9)
    assert evaluate_and_select_weights(trainer, 3)["weights"] == "trained"  # one checkpoint has no average


def test_other_validation_data_are_evaluated_anew_after_resuming(make_trainer, tmp_path):  # noqa: F811
    settings = {"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 2, "max_steps": 4}
    train_in(tmp_path / "run", make_trainer, **settings)
    train_in(tmp_path / "best", make_trainer, **settings, load_best_model_at_end=True)

    def make_with_other_data(**options):
        trainer = make_trainer(**options)
        trainer.eval_dataset = trainer.eval_dataset.select([0])
        return trainer

    resumed = train_in(tmp_path / "run", make_with_other_data, resume=True, **settings)
    found = evaluate_and_select_weights(resumed, 0)["eval_loss"]
    assert found == resumed.evaluate()["eval_loss"]
    assert found != [e["eval_loss"] for e in resumed.state.log_history if "eval_loss" in e][1]  # of update 4
    with pytest.raises(UserError, match="`eval_data_sha256`"):  # by which the best checkpoint was chosen
        train_in(tmp_path / "best", make_with_other_data, resume=True, **settings, load_best_model_at_end=True)


@pytest.mark.parametrize("limit", [2, None])
def test_a_signals_checkpoint_neither_counts_nor_stays(make_trainer, tmp_path, limit):  # noqa: F811
    settings = {"save_strategy": "steps", "save_steps": 2, "save_total_limit": limit}
    train_in(tmp_path / "whole", make_trainer, **settings)
    with pytest.raises(SystemExit):
        train_in(tmp_path / "run", make_trainer, Send(signal.SIGTERM, 5), **settings)
    assert whole_checkpoints(tmp_path / "run")[-1].name == "checkpoint-5"
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


def test_the_best_checkpoint_of_a_moved_run_is_found(make_trainer, tmp_path):  # noqa: F811
    trainer = train_in(tmp_path / "run", make_trainer, **BEST)
    (tmp_path / "run").rename(tmp_path / "moved")
    resumed = train_in(tmp_path / "moved", make_trainer, resume=True, **BEST)
    assert resumed.state.best_model_checkpoint == str(tmp_path / "moved" / "checkpoint-2")
    assert all(map(torch.equal, weights_of(trainer.model), weights_of(resumed.model)))


def test_an_evaluation_sees_all_rows(make_trainer):  # noqa: F811
    trainer = make_trainer(dataloader_drop_last=True, per_device_eval_batch_size=3)
    assert sum(len(batch["input_ids"]) for batch in trainer.get_eval_dataloader()) == 4
    assert trainer.args.dataloader_drop_last


def test_auto_starts_anew_where_no_checkpoint_is_whole(tmp_path):
    make_checkpoint(tmp_path, 7, manifest=False)
    (tmp_path / "runs").mkdir()  # Trainer's log for TensorBoard
    assert choose_checkpoint(arguments(tmp_path, "auto")) is None
    with pytest.raises(UserError, match="There is no whole checkpoint"):
        choose_checkpoint(arguments(tmp_path, "last"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-7", "runs"]
    (tmp_path / "model.safetensors").write_text("")
    with pytest.raises(UserError, match="is not empty"):
        choose_checkpoint(arguments(tmp_path, "auto"))


def test_other_rows_per_update_are_refused(make_trainer, tmp_path):  # noqa: F811
    settings = {"save_strategy": "steps", "save_steps": 2}
    train_in(tmp_path / "run", make_trainer, **{**settings, "max_steps": 2})
    with pytest.raises(UserError, match=r"`rows_per_update` 2 \(now 4\)"):
        train_in(tmp_path / "run", make_trainer, resume=True, **settings, gradient_accumulation_steps=2)
    settings |= {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 2}
    assert train_in(tmp_path / "run", make_trainer, resume=True, **settings).state.global_step == 6


def test_one_changed_row_is_noticed(make_trainer):  # noqa: F811
    dataset = make_trainer().train_dataset
    rows = dataset.to_list() * 300
    many = Dataset.from_list(rows, features=dataset.features)
    assert hash_rows(many) == hash_rows(many.select(range(1200))) == hash_rows(Dataset.from_list(rows, many.features))
    shuffled = many.select(range(5, 1000))
    assert hash_rows(shuffled) == hash_rows(shuffled.flatten_indices()) != hash_rows(many)
    rows[777]["input_ids"][0] += 1
    assert hash_rows(Dataset.from_list(rows, features=many.features)) != hash_rows(many)
    with_dropout = make_trainer(bpe_dropout=0.1).train_dataset
    assert hash_rows(with_dropout) == hash_rows(dataset)


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
    with pytest.raises(UserError, match="`train_data_sha256`"):
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
    resumed.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-4"))
    assert all(map(torch.equal, weights_of(whole.model), weights_of(resumed.model)))


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


@pytest.mark.parametrize("budget", [None, 12])
def test_a_compiled_run_trains_as_an_eager_one_and_goes_on(make_trainer, tmp_path, budget):  # noqa: F811
    settings = {"save_strategy": "steps", "save_steps": 0.3, "dropout": 0.0, "budget": budget}  # of 6: every second
    eager = train_in(tmp_path / "eager", make_trainer, **settings)
    counters.clear()
    settings |= {"torch_compile_backend": "aot_eager"}  # torch's kernels, in the compiler's graphs
    whole = train_in(tmp_path / "whole", make_trainer, **settings)
    assert counters["stats"]["unique_graphs"] > 0
    assert not counters["graph_break"]
    losses = [[entry["loss"] for entry in t.state.log_history if "loss" in entry] for t in (eager, whole)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    with pytest.raises(InterruptedError):
        train_in(tmp_path / "run", make_trainer, Crash(2), **settings)
    assert_same_end(whole, train_in(tmp_path / "run", make_trainer, resume=True, **settings))
