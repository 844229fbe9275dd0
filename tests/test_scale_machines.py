# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Several processes and machines: killed, restarted, resumed on others. `make test-scale` runs these."""

import json
import random
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from conftest import ROOT
from test_faults import TRAININGS, assert_same_weights, finish, is_saving, kill, language_model

from hf_scratch.training.checkpoints import numbered_checkpoints, step_of, whole_checkpoints

pytestmark = pytest.mark.slow


def free_port() -> str:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return str(server.getsockname()[1])


def torchrun(command: list[str], output_dir: Path, *options: str, launcher: tuple = ()) -> subprocess.Popen:
    script = [ROOT / "scripts" / command[0], *command[1:], "--output_dir", output_dir, *options]
    words = [sys.executable, "-m", "torch.distributed.run", *launcher, *script]
    return subprocess.Popen(list(map(str, words)), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def two_machines() -> list[tuple[str, ...]]:
    """torchrun's options for each of two machines with one process."""
    port = free_port()
    address = ("--nnodes", "2", "--nproc-per-node", "1", "--master-addr", "127.0.0.1", "--master-port", port)
    return [(*address, "--node-rank", rank) for rank in ("0", "1")]


def start_machines(command: list[str], folders: list[Path], *options: str) -> list[subprocess.Popen]:
    """A launcher for each folder, with one process; the first folder's is the first machine."""
    return [
        torchrun(command, folder, *options, launcher=machine)
        for folder, machine in zip(folders, two_machines(), strict=True)
    ]


@pytest.fixture
def fresh_stores(monkeypatch):
    """Without this setting, a restarted process may wait for a killed one: pytorch issue 135712."""
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")


def worker(launcher: subprocess.Popen, rank: int | None = None) -> psutil.Process | None:
    """The launcher's process of this rank, or of any, if it runs."""
    for process in psutil.Process(launcher.pid).children():
        try:
            if process.environ().get("RANK") in ([str(rank)] if rank is not None else ["0", "1"]):
                return process
        except psutil.Error:
            continue
    return None


def kill_worker(launcher: subprocess.Popen, rank: int | None, is_time: Callable[[], bool]) -> None:
    """Wait for the moment, and kill this process alone."""
    while launcher.poll() is None and not is_time():
        time.sleep(0.0005)
    if launcher.poll() is None and (process := worker(launcher, rank)) is not None:
        process.kill()


def last_step(run: Path) -> int:
    """The update of the last checkpoint, whole or not; 0 without one."""
    return max(map(step_of, numbered_checkpoints(run)), default=0)


@pytest.fixture
def command(tmp_path) -> list[str]:
    return language_model(tmp_path / "data", max_steps=30)


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("training", TRAININGS)
def test_a_killed_worker_is_restarted(training, first, tmp_path, fresh_stores):
    """One of the processes at some moment, then the other one while a checkpoint is written."""
    command = TRAININGS[training](tmp_path / "data", max_steps=30)
    two = ("--standalone", "--nproc-per-node", "2", "--max-restarts", "5")
    finish(torchrun(command, tmp_path / "whole", launcher=two))
    run, generator = tmp_path / "run", random.Random(f"{training} {first}")
    launcher = torchrun(command, run, "--resume_from_checkpoint", "auto", launcher=two)
    step = generator.choice((0, 3, 6, 9))
    kill_worker(launcher, first, lambda: last_step(run) >= step and worker(launcher, first) is not None)
    killed_at = last_step(run)
    kill_worker(launcher, 1 - first, lambda: last_step(run) > killed_at and is_saving(run))
    finish(launcher)
    assert_same_weights(tmp_path / "whole", run, is_exact=False)


def test_a_killed_run_goes_on_on_other_machines(command, tmp_path):
    """All of it is killed while a checkpoint is written. The machines then come in the other order."""
    whole, run = tmp_path / "whole", tmp_path / "run"
    for launcher in start_machines(command, [whole, whole]):
        finish(launcher)
    launchers = start_machines(command, [run, run])
    while launchers[0].poll() is None and not (len(whole_checkpoints(run)) > 1 and is_saving(run)):
        time.sleep(0.0005)
    for launcher in launchers:
        kill(launcher)
    for launcher in reversed(start_machines(command, [run, run], "--resume_from_checkpoint", "auto")):
        finish(launcher)
    assert_same_weights(whole, run, is_exact=False)
    assert {"README.md", "trainer_state.json", "tokenizer.json"} <= {path.name for path in run.iterdir()}
    assert json.loads((run / "trainer_state.json").read_text())["global_step"] == 30


def test_restarted_machines_go_on(command, tmp_path, fresh_stores):
    """A worker of one machine is killed, and both launchers start theirs again."""
    for launcher in start_machines(command, [tmp_path / "whole"] * 2):
        finish(launcher)
    run, endpoint = tmp_path / "run", f"127.0.0.1:{free_port()}"
    machine = ("--nnodes", "2", "--nproc-per-node", "1", "--max-restarts", "5")
    machine += ("--rdzv-backend", "c10d", "--rdzv-id", "1", "--rdzv-endpoint", endpoint)
    options = ("--resume_from_checkpoint", "auto")
    launchers = [torchrun(command, run, *options, launcher=machine) for _ in range(2)]
    kill_worker(launchers[1], None, lambda: bool(whole_checkpoints(run)))
    for launcher in launchers:
        finish(launcher)
    assert_same_weights(tmp_path / "whole", run, is_exact=False)


def test_machines_with_different_data_are_refused(command, tmp_path):
    other = language_model(tmp_path / "other")
    stories = tmp_path / "other" / "train.jsonl"
    stories.write_text(stories.read_text().replace("a", "e"))
    launchers = [
        torchrun(words, tmp_path / "run", launcher=machine)
        for words, machine in zip((command, other), two_machines(), strict=True)
    ]
    errors = [finish(launcher, None) for launcher in launchers]
    assert all(launcher.returncode for launcher in launchers)
    for text in errors:
        assert "Process 1 has other training data than process 0" in text, text[-3000:]


def test_machines_without_a_shared_folder_are_refused(command, tmp_path):
    launchers = start_machines(command, [tmp_path / "a", tmp_path / "b"])
    for text in [finish(launcher, None) for launcher in launchers]:
        assert "Process 1 does not see `output_dir`" in text, text[-3000:]
    assert not whole_checkpoints(tmp_path / "a")
