# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""A run that was interrupted and resumed ends as one that was not: its weights, its evaluations, its checkpoints."""

import os
import shutil
import signal
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from datasets import Dataset
from test_training import make_trainer, negate  # noqa: F401  a fixture
from torch._dynamo.utils import counters
from transformers import EarlyStoppingCallback

from hf_scratch.errors import UserError
from hf_scratch.manifest import MANIFEST
from hf_scratch.training.averaging import evaluate_and_select_weights, save_final_model
from hf_scratch.training.callbacks import StopCallback
from hf_scratch.training.checkpoints import is_early, whole_checkpoints
from hf_scratch.training.resuming import hash_rows
from hf_scratch.training.runs import open_run

CRASH, TERM, CTRL_C, TIME = InterruptedError, signal.SIGTERM, signal.SIGINT, "time"
SETTINGS = {"max_steps": 6, "learning_rate": 1e-2, "dropout": 0.1, "per_device_train_batch_size": 2}


class Interrupt(StopCallback):
    """Ends a run at step `step`, by `how`: an error after its checkpoint, a signal, or the time limit."""

    def __init__(self, how, step: int):
        super().__init__()
        self.how, self.step = how, step

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == self.step - 1 and isinstance(self.how, signal.Signals):
            os.kill(os.getpid(), self.how)
        if self.how == TIME:
            self.minutes = -1 if state.global_step == self.step - 1 else 1000

    def on_save(self, args, state, control, **kwargs):
        if state.global_step == self.step and self.how is CRASH:
            raise CRASH


def weights_of(model) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


def train_in(folder: Path, make_trainer, *callbacks, resume=False, patience=None, **settings):  # noqa: F811
    callbacks = [*callbacks, *([] if patience is None else [EarlyStoppingCallback(patience)])]
    if not any(isinstance(callback, StopCallback) for callback in callbacks):
        callbacks.append(StopCallback())
    trainer = make_trainer(callbacks=callbacks, **{**SETTINGS, **settings})
    trainer.args.output_dir = str(folder)
    trainer.args.resume_from_checkpoint = "last" if resume else None
    with open_run(trainer.args) as checkpoint:
        trainer.train(resume_from_checkpoint=checkpoint)
    return trainer


def assert_same_end(whole, resumed):
    """The same weights, evaluations and checkpoints."""
    assert whole.state.global_step == resumed.state.global_step
    assert all(map(torch.equal, weights_of(whole.model), weights_of(resumed.model)))
    losses = [[(e["step"], e["eval_loss"]) for e in t.state.log_history if "eval_loss" in e] for t in (whole, resumed)]
    assert losses[0] == losses[1]
    folders = [whole_checkpoints(trainer.args.output_dir) for trainer in (whole, resumed)]
    assert not any(map(is_early, [*folders[0], *folders[1][:-1]]))  # the last one stays
    due = [[path.name for path in each if not is_early(path)] for each in folders]
    assert due[0] == due[1]


def steps(number: int, **settings):
    return {"save_strategy": "steps", "save_steps": number, **settings}


EPOCHS = {"save_strategy": "epoch", "eval_strategy": "epoch"}
EACH_STEP = {"eval_strategy": "steps", "eval_steps": 1, "load_best_model_at_end": True}
HIGHEST = {**EACH_STEP, "metric_for_best_model": "loss", "greater_is_better": True}  # the first evaluation is best
CONTINUED = {"restore_callback_states_from_checkpoint": True}  # the patience
PLATEAU = {"lr_scheduler_type": "reduce_lr_on_plateau", "lr_scheduler_kwargs": {"patience": 0, "factor": 0.5}}
INTERRUPTIONS = {  # an epoch has two steps
    "crashed, evaluated each epoch": (steps(2, eval_strategy="epoch"), CRASH, 4),
    "crashed, with Muon": (steps(2, muon=True), CRASH, 4),
    "crashed within an epoch grouped by length": (
        steps(3, train_sampling_strategy="group_by_length", data_seed=5), CRASH, 3
    ),
    "crashed after a best update that was not saved": (
        steps(2, **HIGHEST, **CONTINUED, max_steps=9, patience=4), CRASH, 2
    ),
    "stopped before a checkpoint is due": (steps(100), TERM, 4),
    "stopped without checkpoints": ({"save_strategy": "no"}, CTRL_C, 3),
    "stopped at the last step": ({"save_strategy": "no"}, TERM, 6),
    "stopped at the last step, within an epoch": (
        {**EPOCHS, "max_steps": 5, "load_best_model_at_end": True}, TERM, 5
    ),
    "stopped within an epoch": (EPOCHS, TERM, 3),
    "stopped, and few are kept": (steps(2, save_total_limit=2), TERM, 5),
    "stopped at the best checkpoint": (
        {**EACH_STEP, "save_strategy": "best", "metric_for_best_model": "loss"}, TERM, 2
    ),
    "stopped where the best alone is saved": ({**HIGHEST, "save_strategy": "best", "max_steps": 7}, TERM, 4),
    "out of time, evaluated by steps": (steps(4, eval_strategy="steps", eval_steps=4), TIME, 3),
    "out of time at the end of an epoch": (EPOCHS, TIME, 4),
    "out of time, evaluated each epoch": (steps(4, eval_strategy="epoch"), TIME, 1),
    "out of time, with a plateau": (steps(3, **HIGHEST | {"eval_steps": 3}, **PLATEAU, max_steps=9), TIME, 4),
    "ended": (steps(1, max_steps=3), None, 3),
    "ended early": (steps(1, **HIGHEST, **CONTINUED, max_steps=9, patience=2), None, 3),  # the loss falls
}  # fmt: skip


@pytest.mark.parametrize(("settings", "how", "step"), INTERRUPTIONS.values(), ids=INTERRUPTIONS)
def test_an_interrupted_run_ends_as_one_that_was_not(make_trainer, tmp_path, capfd, settings, how, step):  # noqa: F811
    whole = train_in(tmp_path / "whole", make_trainer, **settings)
    handlers, is_signal = list(map(signal.getsignal, (TERM, CTRL_C))), isinstance(how, signal.Signals)
    with nullcontext() if how in (TIME, None) else pytest.raises(SystemExit if is_signal else CRASH) as ended:
        trainer = train_in(tmp_path / "run", make_trainer, Interrupt(how, step), **settings)
        assert trainer.state.global_step == step
        save_final_model(trainer)
    assert list(map(signal.getsignal, (TERM, CTRL_C))) == handlers
    last = whole_checkpoints(tmp_path / "run")[-1]
    assert last.name == f"checkpoint-{step}"
    if is_signal:
        assert ended.value.code == 128 + how
        assert f"Stopped after step {step}. The last whole checkpoint is {last}" in capfd.readouterr().err
    assert_same_end(whole, train_in(tmp_path / "run", make_trainer, resume=True, **settings))


def test_a_run_that_ends_at_its_time_limit_has_the_best_weights_and_averages_the_last(make_trainer, tmp_path):  # noqa: F811
    settings = steps(4, **EACH_STEP, max_steps=8)
    trainer = train_in(tmp_path / "run", make_trainer, Interrupt(TIME, 6), **settings)  # the loss falls
    assert trainer.state.best_global_step == 6
    assert trainer.state.best_model_checkpoint.endswith("checkpoint-6")
    negate(trainer.model)
    assert evaluate_and_select_weights(trainer, 2)["weights"] == "averaged over 2 checkpoints"


def test_an_early_checkpoint_is_not_averaged(make_trainer, tmp_path):  # noqa: F811
    with pytest.raises(SystemExit):
        train_in(tmp_path / "run", make_trainer, Interrupt(TERM, 7), **steps(4, max_steps=9))
    checkpoints = whole_checkpoints(tmp_path / "run")
    assert [is_early(folder) for folder in checkpoints] == [False, True]
    trainer = train_in(tmp_path / "run", make_trainer, resume=True, save_strategy="no", max_steps=9)
    assert evaluate_and_select_weights(trainer, 3)["weights"] == "trained"  # one checkpoint has no average


@pytest.mark.parametrize("best", [False, True])
def test_other_validation_data_are_refused_where_they_have_chosen_a_checkpoint(make_trainer, tmp_path, best):  # noqa: F811
    settings = steps(2, eval_strategy="steps", eval_steps=2, max_steps=2, load_best_model_at_end=best)
    train_in(tmp_path / "run", make_trainer, **settings)

    def make_with_other_data(**options):
        trainer = make_trainer(**options)
        trainer.eval_dataset = trainer.eval_dataset.select([0])
        return trainer

    with pytest.raises(UserError, match="`eval_data_sha256`") if best else nullcontext():
        train_in(tmp_path / "run", make_with_other_data, resume=True, **settings)


def test_the_best_checkpoint_of_a_moved_run_is_found(make_trainer, tmp_path):  # noqa: F811
    settings = steps(2, **HIGHEST | {"eval_steps": 2})
    trainer = train_in(tmp_path / "run", make_trainer, **settings)
    (tmp_path / "run").rename(tmp_path / "moved")
    resumed = train_in(tmp_path / "moved", make_trainer, resume=True, **settings)
    assert resumed.state.best_model_checkpoint == str(tmp_path / "moved" / "checkpoint-2")
    assert all(map(torch.equal, weights_of(trainer.model), weights_of(resumed.model)))


def test_other_rows_per_update_are_refused(make_trainer, tmp_path):  # noqa: F811
    train_in(tmp_path / "run", make_trainer, **steps(2, max_steps=2))
    settings = steps(2, gradient_accumulation_steps=2)
    with pytest.raises(UserError, match=r"`rows_per_update` 2 \(now 4\)"):
        train_in(tmp_path / "run", make_trainer, resume=True, **settings)
    settings |= {"per_device_train_batch_size": 1}
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


def test_train_itself_checks_the_checkpoint(make_trainer, tmp_path):  # noqa: F811
    settings = SETTINGS | steps(2)
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


def test_train_resumes_from_the_checkpoints_of_a_stock_trainer(make_trainer, tmp_path):  # noqa: F811
    settings = SETTINGS | steps(2)
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
    trainer = make_trainer(callbacks=[EarlyStoppingCallback(1)], **SETTINGS | HIGHEST | {"max_steps": 9})
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
        settings = SETTINGS | steps(save_steps, remove_unused_columns=False)
        trainer = make_trainer(callbacks=list(callbacks), **settings)
        trainer.train_dataset = trainer.train_dataset.select_columns(["input_ids", "labels"]).with_transform(shake)
        trainer.args.output_dir = str(folder)
        trainer.train(**kwargs)
        return weights_of(trainer.model)

    whole = train(tmp_path / "whole", save_steps=100)
    assert all(map(torch.equal, whole, train(tmp_path / "often", save_steps=1)))
    with pytest.raises(InterruptedError):
        train(tmp_path / "run", Interrupt(CRASH, 4), save_steps=4)  # the second epoch's end
    assert all(map(torch.equal, whole, train(tmp_path / "run", save_steps=4, resume_from_checkpoint=True)))


def test_a_compiled_run_trains_as_an_eager_one_and_goes_on(make_trainer, tmp_path):  # noqa: F811
    settings = steps(0.5, dropout=0.0, budget=12, max_steps=4)  # every second; batches of several shapes
    eager = train_in(tmp_path / "eager", make_trainer, **settings)
    counters.clear()
    settings |= {"torch_compile_backend": "aot_eager"}  # torch's kernels, in the compiler's graphs
    whole = train_in(tmp_path / "whole", make_trainer, **settings)
    assert counters["stats"]["unique_graphs"] > 0
    assert not counters["graph_break"]
    losses = [[entry["loss"] for entry in t.state.log_history if "loss" in entry] for t in (eager, whole)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    shutil.copytree(tmp_path / "whole" / "checkpoint-2", tmp_path / "run" / "checkpoint-2")
    assert_same_end(whole, train_in(tmp_path / "run", make_trainer, resume=True, **settings))
