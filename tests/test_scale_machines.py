# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Several processes and machines: killed, restarted, resumed on others. `make test-scale` runs these."""

import json
import os
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
from test_runs import make_checkpoint
from test_scripts import TINY_GPT

from hf_scratch.manifest import write_manifest
from hf_scratch.training.checkpoints import numbered_checkpoints, step_of, whole_checkpoints

pytestmark = pytest.mark.slow

# ---- several machines, restarts ----


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


def start_machines(
    command: list[str], folders: list[Path], *options: str, launcher: tuple = ()
) -> list[subprocess.Popen]:
    """A launcher for each folder, with one process; the first folder's is the first machine."""
    return [
        torchrun(command, folder, *options, launcher=(*machine, *launcher))
        for folder, machine in zip(folders, two_machines(), strict=True)
    ]


def worker(launcher: subprocess.Popen, rank: int) -> psutil.Process | None:
    """The process of this rank, if it runs."""
    for process in psutil.Process(launcher.pid).children():
        try:
            if process.environ().get("RANK") == str(rank):
                return process
        except psutil.Error:
            continue
    return None


def kill_worker(launcher: subprocess.Popen, rank: int, is_time: Callable[[], bool]) -> None:
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
    (tmp_path / "data").mkdir()
    return [*language_model(tmp_path / "data"), "--max_steps", "30"]


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("training", TRAININGS)
def test_a_killed_worker_is_restarted(training, first, tmp_path):
    """One of the processes at some moment, then the other one while a checkpoint is written."""
    (tmp_path / "data").mkdir()
    command = [*TRAININGS[training](tmp_path / "data"), "--max_steps", "30"]
    two = ("--standalone", "--nproc-per-node", "2", "--max-restarts", "2")
    finish(torchrun(command, tmp_path / "whole", launcher=two))
    run, generator = tmp_path / "run", random.Random(f"{training} {first}")
    launcher = torchrun(command, run, "--resume_from_checkpoint", "auto", launcher=two)
    step = generator.choice((0, 3, 6, 9))
    kill_worker(launcher, first, lambda: last_step(run) >= step and worker(launcher, first) is not None)
    killed_at = last_step(run)
    kill_worker(launcher, 1 - first, lambda: last_step(run) > killed_at and is_saving(run))
    finish(launcher)
    assert_same_weights(tmp_path / "whole", run, is_exact=False)


@pytest.mark.parametrize("has_own_folders", [False, True], ids=["shared folder", "own folders"])
def test_a_killed_run_goes_on_on_other_machines(has_own_folders, command, tmp_path):
    """All of it is killed while a checkpoint is written. The machines then come in the other order."""
    command += ["--save_on_each_node", str(has_own_folders).lower()]
    whole, run = ([tmp_path / name / ("b" if has_own_folders and i else "a") for i in (0, 1)] for name in ("w", "r"))
    for launcher in start_machines(command, whole):
        finish(launcher)
    launchers = start_machines(command, run)
    while launchers[0].poll() is None and not (len(whole_checkpoints(run[0])) > 1 and is_saving(run[0])):
        time.sleep(0.0005)
    for launcher in launchers:
        kill(launcher)
    run.reverse()
    for launcher in start_machines(command, run, "--resume_from_checkpoint", "auto"):
        finish(launcher)
    for folder in {*whole, *run}:
        assert_same_weights(whole[0], folder, is_exact=False)
        assert {"README.md", "trainer_state.json", "tokenizer.json"} <= {path.name for path in folder.iterdir()}
    states = [json.loads((folder / "trainer_state.json").read_text()) for folder in (whole[0], *run)]
    assert [state["global_step"] for state in states] == [30] * 3


def test_restarted_machines_go_on(command, tmp_path):
    """A worker of the second machine is killed, and both launchers start theirs again."""
    for launcher in start_machines(command, [tmp_path / "whole"] * 2):
        finish(launcher)
    run = tmp_path / "run"
    options = ("--resume_from_checkpoint", "auto")
    launchers = start_machines(command, [run, run], *options, launcher=("--max-restarts", "2"))
    kill_worker(launchers[1], 1, lambda: bool(whole_checkpoints(run)))
    for launcher in launchers:
        finish(launcher)
    assert_same_weights(tmp_path / "whole", run, is_exact=False)


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2), (2, 4)])
def test_another_number_of_processes_goes_on(before, after, command, tmp_path):
    """An update has four rows, whatever the number of processes. Without dropout, the weights are the same."""
    command += ["--config_overrides", TINY_GPT]
    counts = {count: ("--per_device_train_batch_size", str(4 // count)) for count in (1, 2, 4)}

    def start(count: int, folder: Path, *options: str) -> subprocess.Popen:
        return torchrun(
            command, folder, *counts[count], *options, launcher=("--standalone", f"--nproc-per-node={count}")
        )

    finish(start(before, tmp_path / "whole", "--max_steps", "9"))
    process = start(before, tmp_path / "run", "--max_steps", "9")
    while process.poll() is None and not whole_checkpoints(tmp_path / "run"):
        time.sleep(0.0005)
    kill(process)
    finish(start(after, tmp_path / "run", "--max_steps", "9", "--resume_from_checkpoint", "auto"))
    assert_same_weights(tmp_path / "whole", tmp_path / "run", is_exact=False)


def test_machines_with_different_data_are_refused(command, tmp_path):
    (tmp_path / "other").mkdir()
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
        assert "has other training data than process 0 on" in text, text[-3000:]


OPEN_RUNS = """
import json, sys
from pathlib import Path
from transformers import TrainingArguments
from hf_scratch.errors import UserError
from hf_scratch.training import machines, runs
machines.SECONDS_TO_APPEAR = 0.5
results = {}
for name, folder, wanted, own in json.loads(Path(sys.argv[1]).read_text())[int(sys.argv[2])]:
    args = TrainingArguments(
        folder, resume_from_checkpoint=wanted, save_on_each_node=own, use_cpu=True, per_device_train_batch_size=4
    )
    try:
        with runs.open_run(args) as checkpoint:
            results[name] = checkpoint
    except UserError as error:
        results[name] = f"error: {error}"
Path(sys.argv[1] + sys.argv[2]).write_text(json.dumps(results))
"""


def open_runs(cases: dict[str, tuple], folder: Path) -> dict[str, list[str | None]]:
    """What `open_run` gives on each of two machines.

    Args:
        cases: by name, the folders of both machines, `resume_from_checkpoint` of both, and `save_on_each_node`.
        folder: for files.
    """
    plan = [[(name, str(c[0][i]), c[1], c[2]) for name, c in cases.items()] for i in (0, 1)]
    (folder / "plan").write_text(json.dumps(plan))
    port = free_port()
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", OPEN_RUNS, str(folder / "plan"), str(rank)],
            env={
                **os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1",
                "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
            },
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )
        for rank in (0, 1)
    ]  # fmt: skip
    for process in processes:
        finish(process)
    results = [json.loads((folder / f"plan{rank}").read_text()) for rank in (0, 1)]
    return {name: [result[name] for result in results] for name in cases}


def test_machines_agree_on_a_checkpoint(tmp_path):
    facts = {"num_processes": 2, "rows_per_update": 8}

    def folders(name: str, first: tuple, second: tuple) -> list[Path]:
        both = [tmp_path / name / "a", tmp_path / name / "b"]
        for folder, steps in zip(both, (first, second), strict=True):
            for step in steps:
                make_checkpoint(folder, step, **facts)
        return both

    shared = folders("shared", (3, 6), ())[:1] * 2
    other = folders("other weights", (3,), (3,))
    (other[1] / "checkpoint-3" / "model.safetensors").write_text("of another run")
    write_manifest(other[1] / "checkpoint-3", step=3, **facts)
    cases = {
        "shared": (shared, "last", False),
        "shared twice": (shared, "last", True),
        "not shared": (folders("not shared", (3,), (3,)), "last", False),
        "own": (folders("own", (3, 6), (3, 6)), "auto", True),
        "killed while saving": (folders("killed", (3, 6, 9), (3, 6)), "last", True),
        "one empty, auto": (folders("empty", (3, 6), ()), "auto", True),
        "none in common": (folders("none", (6, 9), (3,)), "last", True),
        "other weights": (other, "last", True),
        "elsewhere": (folders("e", (), ()), str(shared[0] / "checkpoint-3"), True),
        "new": (folders("new", (), ()), "auto", True),
        "new, last": (folders("new", (), ()), "last", True),
        "used": (folders("used", (), (3,)), None, True),
    }
    results = open_runs(cases, tmp_path)
    for name, (first, second) in results.items():
        assert ("error: " in str(first)) == ("error: " in str(second)), (name, first, second)

    def checkpoints(name: str, step: int) -> list[str]:
        return [str(folder / f"checkpoint-{step}") for folder in cases[name][0]]

    assert results["shared"] == checkpoints("shared", 6)
    assert results["own"] == checkpoints("own", 6)
    assert results["killed while saving"] == checkpoints("killed while saving", 6)
    assert (cases["killed while saving"][0][0] / "damaged-checkpoint-9").is_dir()
    assert results["elsewhere"] == [str(shared[0] / "checkpoint-3")] * 2
    assert results["new"] == [None, None]
    for name, words in {
        "shared twice": "`save_on_each_node` is true, but process 0 on",
        "not shared": "is not the folder of process 0 on",
        "one empty, auto": "no whole checkpoint in common: checkpoint-3, checkpoint-6 in ",
        "none in common": "no whole checkpoint in common: checkpoint-6, checkpoint-9 in ",
        "other weights": "hold different weights: they are not of one run",
        "new, last": "There is no whole checkpoint in `output_dir`",
        "used": "process 1 on",
    }.items():
        assert words in results[name][0], (name, results[name])
        assert results[name][0] == results[name][1]
    assert f"none in {cases['one empty, auto'][0][1]}" in results["one empty, auto"][0]
    assert len(whole_checkpoints(cases["none in common"][0][0])) == 2  # nothing was renamed
