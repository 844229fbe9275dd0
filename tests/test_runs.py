# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""A run's folder: who may write into it, which checkpoint is resumed, and what happens when it is stopped."""

import json
import logging
import os
import shutil
import signal
import time
from contextlib import nullcontext
from pathlib import Path

import pytest
from test_training import make_trainer, negate  # noqa: F401  a fixture
from transformers import Seq2SeqTrainingArguments, TrainerCallback

from hf_scratch.errors import UserError
from hf_scratch.manifest import MANIFEST, DamagedFolderError, check_manifest, write_manifest
from hf_scratch.training import runs
from hf_scratch.training.averaging import evaluate_and_select_weights, save_final_model
from hf_scratch.training.callbacks import StopCallback
from hf_scratch.training.checkpoints import choose_checkpoint, step_of, whole_checkpoints
from hf_scratch.training.runs import open_run

PARTS = ("model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json")


def make_checkpoint(output_dir: Path, step: int, manifest: bool = True, **facts) -> Path:
    folder = output_dir / f"checkpoint-{step}"
    folder.mkdir(parents=True)
    for name in PARTS:
        (folder / name).write_text(f"{name} of update {step}")
    if manifest:
        write_manifest(folder, step=step, **{"num_processes": 1, "rows_per_update": 8, **facts})
    return folder


def arguments(output_dir: Path, resume_from_checkpoint=None, **kwargs) -> Seq2SeqTrainingArguments:
    return Seq2SeqTrainingArguments(
        output_dir=str(output_dir), resume_from_checkpoint=resume_from_checkpoint, use_cpu=True, **kwargs
    )


def test_a_manifest_tells_each_kind_of_damage(tmp_path):
    folder = make_checkpoint(tmp_path, 1)
    assert check_manifest(folder) == {"step": 1, "num_processes": 1, "rows_per_update": 8}
    file = folder / "optimizer.pt"
    before = file.read_bytes()
    for content, message in (
        (before[:-1], r"optimizer\.pt is not what was saved"),
        (b"X" + before[1:], r"optimizer\.pt is not what was saved: its SHA-256 differs"),
        (None, r"optimizer\.pt is missing"),
    ):
        file.unlink() if content is None else file.write_bytes(content)
        with pytest.raises(DamagedFolderError, match=message):
            check_manifest(folder)
    for text in ('{"files"', '{"step": 1}', "\x00"):
        (folder / MANIFEST).write_text(text)
        with pytest.raises(DamagedFolderError, match=r"manifest\.json is damaged"):
            check_manifest(folder)
    assert check_manifest(tmp_path) is None


def test_the_last_whole_checkpoint_is_chosen(tmp_path, caplog):
    with pytest.raises(UserError, match="There is no whole checkpoint"):
        choose_checkpoint(arguments(tmp_path, "last"))
    assert choose_checkpoint(arguments(tmp_path, "auto")) is None
    for step in (20, 100, 120, 140):
        make_checkpoint(tmp_path, step, manifest=step != 140)
    (tmp_path / "checkpoint-best").mkdir()
    (tmp_path / "checkpoint-120" / "model.safetensors").write_text("other")
    with caplog.at_level(logging.WARNING):
        for word in ("last", "true", "True", "auto"):
            assert choose_checkpoint(arguments(tmp_path, word)) == str(tmp_path / "checkpoint-100")
    assert "checkpoint-140 is incomplete" in caplog.text
    assert "checkpoint-120/model.safetensors is not what was saved" in caplog.text
    assert (tmp_path / "damaged-checkpoint-140").is_dir()  # kept, but no longer in the way
    assert [path.name for path in whole_checkpoints(tmp_path)] == ["checkpoint-20", "checkpoint-100"]
    with pytest.raises(UserError, match="is not empty: another run may be in it"):
        choose_checkpoint(arguments(tmp_path))


def test_a_named_checkpoint_is_checked(tmp_path):
    first, second = make_checkpoint(tmp_path / "run", 2), make_checkpoint(tmp_path / "run", 4)
    assert choose_checkpoint(arguments(tmp_path / "run", str(second))) == str(second)
    assert choose_checkpoint(arguments(tmp_path / "new", str(first))) == str(first)
    with pytest.raises(UserError, match=r"has later checkpoints \(checkpoint-4\)"):
        choose_checkpoint(arguments(tmp_path / "run", str(first)))
    with pytest.raises(UserError, match="nowhere"):
        choose_checkpoint(arguments(tmp_path / "run", "nowhere"))
    make_checkpoint(tmp_path / "other", 9)
    with pytest.raises(UserError, match="is not empty"):
        choose_checkpoint(arguments(tmp_path / "other", str(second)))
    (second / "scheduler.pt").unlink()
    with pytest.raises(UserError, match=r"scheduler\.pt is missing. Resume from another"):
        choose_checkpoint(arguments(tmp_path / "run", str(second)))


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


@pytest.mark.parametrize("manifest", [True, False])
def test_a_checkpoint_without_the_optimizer_is_refused(tmp_path, manifest):
    folder = make_checkpoint(tmp_path / "run", 2, manifest=False)
    (folder / "optimizer.pt").unlink()
    if manifest:
        write_manifest(folder)
    with pytest.raises(UserError, match=r"has no optimizer\.pt"):
        choose_checkpoint(arguments(tmp_path / "new", str(folder)))


def test_a_folder_is_one_runs_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "SECONDS_TO_WAIT", 0.1)
    out = tmp_path / "run"
    out.mkdir()
    (out / runs.LOCK).touch()  # a killed run leaves the file, but its lock ends
    with open_run(arguments(out)) as checkpoint:
        assert checkpoint is None
        (out / "tokenizer.json").write_text("{}")
        for resume in (None, "last", "auto"):
            with pytest.raises(UserError, match="is in use by another run"), open_run(arguments(out, resume)):
                pass
    assert [path.name for path in out.iterdir()] == ["tokenizer.json"]


def test_a_failed_start_leaves_nothing_and_takes_nothing(tmp_path):
    with pytest.raises(UserError, match="broken"), open_run(arguments(tmp_path / "new")):
        raise UserError("broken")
    assert not (tmp_path / "new").exists()
    make_checkpoint(tmp_path / "run", 2)
    with pytest.raises(UserError, match="broken"), open_run(arguments(tmp_path / "run", "last")):
        raise UserError("broken")
    assert check_manifest(tmp_path / "run" / "checkpoint-2")


def test_results_that_a_killed_run_left_half_written_are_removed(tmp_path):
    make_checkpoint(tmp_path, 2)
    (tmp_path / "all_results.json").write_text("", encoding="utf-8")
    with open_run(arguments(tmp_path, "last")):
        assert not (tmp_path / "all_results.json").exists()


def test_old_checkpoints_are_deleted_when_the_new_one_is_whole(make_trainer):  # noqa: F811
    trainer = make_trainer(max_steps=4, save_strategy="steps", save_steps=1, save_total_limit=2)
    kept, write = [], write_manifest

    def look(folder, **facts):
        kept.append([path.name for path in whole_checkpoints(trainer.args.output_dir)])
        write(folder, **facts)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hf_scratch.training.resuming.write_manifest", look)
        trainer.train()
    names = [f"checkpoint-{step}" for step in (1, 2, 3, 4)]
    assert kept == [[], names[:1], names[:2], names[1:3]]
    assert [path.name for path in whole_checkpoints(trainer.args.output_dir)] == names[2:]
    assert trainer.args.save_total_limit == 2
    last = whole_checkpoints(trainer.args.output_dir)[-1]
    facts, expected = check_manifest(last), {"step": 4, "is_early": False, "num_processes": 1, "rows_per_update": 8}
    assert facts.items() >= {**expected, "train_rows": 4, "tokens_per_update": None}.items()
    assert facts["arguments"].items() >= {"seed": 42, "r_drop_alpha": 0.0}.items()


def test_the_best_checkpoint_is_not_deleted(make_trainer):  # noqa: F811
    settings = {"eval_strategy": "steps", "eval_steps": 1, "load_best_model_at_end": True, "greater_is_better": True}
    trainer = make_trainer(  # the first evaluation has the highest loss
        max_steps=4, save_strategy="steps", save_steps=1, save_total_limit=1, learning_rate=1e-3, **settings
    )
    trainer.train()
    assert [path.name for path in whole_checkpoints(trainer.args.output_dir)] == ["checkpoint-1", "checkpoint-4"]


def test_a_second_ctrl_c_ends_at_once(make_trainer):  # noqa: F811
    class Twice(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(0.01)

    trainer = make_trainer(callbacks=[StopCallback(), Twice()], max_steps=3, save_strategy="no")
    before = signal.getsignal(signal.SIGINT)
    try:
        with pytest.raises(SystemExit) as exit_status, open_run(trainer.args):
            trainer.train()
    finally:
        signal.signal(signal.SIGINT, before)
    assert exit_status.value.code == 130
    assert trainer.state.global_step == 0


class RaiseOnce(TrainerCallback):
    """Raise in the first training's second update."""

    def __init__(self, error: BaseException):
        self.error: BaseException | None = error

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == 1 and self.error is not None:
            error, self.error = self.error, None
            raise error


@pytest.mark.parametrize("error", [RuntimeError("CUDA out of memory."), KeyboardInterrupt()])
def test_a_training_leaves_what_it_found_however_it_ends(make_trainer, error):  # noqa: F811
    settings = {"auto_find_batch_size": True, "save_strategy": "steps", "save_steps": 1, "save_total_limit": 2}
    trainer = make_trainer(callbacks=[StopCallback(), RaiseOnce(error)], max_steps=3, **settings)
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    is_retried = isinstance(error, RuntimeError)
    with nullcontext() if is_retried else pytest.raises(type(error)):
        trainer.train()
    try:
        assert {number: signal.getsignal(number) for number in before} == before
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert trainer.args.save_total_limit == 2
    steps = [step_of(path) for path in whole_checkpoints(trainer.args.output_dir)]
    assert steps == ([2, 3] if is_retried else [1])


def test_a_second_run_in_a_folder_keeps_and_averages_its_own(make_trainer):  # noqa: F811
    settings = {"save_strategy": "steps", "learning_rate": 1e-3}
    make_trainer(max_steps=8, save_steps=4, **settings).train()
    trainer = make_trainer(max_steps=6, save_steps=2, save_total_limit=2, **settings)
    trainer.train()
    assert [step_of(path) for path in whole_checkpoints(trainer.args.output_dir)] == [4, 6, 8]
    negate(trainer.model)
    assert evaluate_and_select_weights(trainer, 3)["weights"] == "averaged over 2 checkpoints"


def test_a_resumed_run_saves_at_its_own_steps(make_trainer):  # noqa: F811
    make_trainer(max_steps=4, save_strategy="steps", save_steps=2).train()
    trainer = make_trainer(max_steps=9, save_strategy="steps", save_steps=3)
    trainer.train(resume_from_checkpoint=True)
    assert [step_of(path) for path in whole_checkpoints(trainer.args.output_dir)] == [2, 4, 6, 9]


def test_half_a_deleted_checkpoint_is_not_whole(make_trainer, monkeypatch):  # noqa: F811
    trainer = make_trainer(max_steps=2, save_strategy="steps", save_steps=1, save_total_limit=1)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", lambda folder, **kwargs: (_ for _ in ()).throw(InterruptedError))
        with pytest.raises(InterruptedError):
            trainer.train()
    folder = Path(trainer.args.output_dir)
    assert [path.name for path in whole_checkpoints(folder)] == ["checkpoint-2"]
    resumed = make_trainer(max_steps=3, save_strategy="steps", save_steps=1, save_total_limit=1)
    resumed.train(resume_from_checkpoint=str(folder / "checkpoint-2"))
    assert [path.name for path in whole_checkpoints(folder)] == ["checkpoint-3"]


def test_the_saved_config_is_the_models_own(make_trainer):  # noqa: F811
    trainer = make_trainer(max_steps=1, save_strategy="no")
    trainer.train()
    save_final_model(trainer)
    folder = Path(trainer.args.output_dir)
    assert json.loads((folder / "config.json").read_text())["use_cache"] is True
    assert check_manifest(folder) == {}
    listed = json.loads((folder / MANIFEST).read_text())["files"]
    assert sorted(listed) == ["model.safetensors", "tokenizer.json"]
