# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Training commands that are killed, stopped or run out of disk, and then resumed. `make test-faults` runs these."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch
from conftest import ROOT
from safetensors.torch import load_file
from test_scripts import LAUNCHER, PACKED, PAIRED, PAIRS, STORIES, TINY_GPT, TINY_TRANSFORMER, flags, write_splits

from hf_scratch.manifest import MANIFEST
from hf_scratch.training.checkpoints import numbered_checkpoints, whole_checkpoints

pytestmark = pytest.mark.slow

KILLS = int(os.environ.get("HF_SCRATCH_KILLS", 6))  # for each script and number of processes
OPTIONS = {
    "max_steps": 12, "save_steps": 3, "eval_strategy": "steps", "eval_steps": 6, "logging_steps": 1,
    "save_total_limit": 2, "average_checkpoints": 2, "learning_rate": 1e-3, "use_cpu": "true",
    "adam_epsilon": 1e-3,  # far above the rounding of gradients, which Adam would make as large as any other update
    "seed": 3,
}  # fmt: skip


def translation(folder: Path, **others) -> list[str]:
    """The script and its options, with data in a new folder."""
    write_splits(folder, train=PAIRS, validation=PAIRS, test=PAIRS)
    options = OPTIONS | PAIRED | {
        "dataset_name": folder, "config_overrides": TINY_TRANSFORMER + ",dropout=0.1", "max_tokens_per_update": 80,
        "num_beams": 1, "predict_with_generate": "true", "label_smoothing_factor": 0.1,
    }  # fmt: skip
    return ["train_translation.py", *flags(options | others)]


def language_model(folder: Path, **others) -> list[str]:
    write_splits(folder, train=STORIES * 3, validation=STORIES * 3)
    config = TINY_GPT + ",hidden_dropout=0.1,attention_dropout=0.1"
    options = OPTIONS | PACKED | {"dataset_name": folder, "global_batch_size": 4, "config_overrides": config}
    return ["train_language_model.py", *flags(options | others)]


TRAININGS = {"translation": translation, "language_model": language_model}


def start(command: list[str], output_dir: Path, num_processes: int = 1, *args: str) -> subprocess.Popen:
    launcher = (*LAUNCHER, str(num_processes)) if num_processes > 1 else ()
    words = [sys.executable, *launcher, ROOT / "scripts" / command[0], *command[1:], "--output_dir", output_dir, *args]
    return subprocess.Popen(list(map(str, words)), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen, status: int | None = 0) -> str:
    _, errors = process.communicate(timeout=300)
    assert status is None or process.returncode == status, errors[-3000:]
    return errors


def kill(process: subprocess.Popen, number: int = signal.SIGKILL) -> None:
    """The process and all that it started."""
    family = [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]
    for member in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.send_signal(number)
    process.communicate(timeout=60)


def is_saving(output_dir: Path) -> bool:
    try:
        return len(numbered_checkpoints(output_dir)) > len(whole_checkpoints(output_dir))
    except FileNotFoundError:
        return False


def assert_same_weights(first: Path, second: Path, is_exact: bool = True) -> None:
    first, second = (load_file(folder / "model.safetensors") for folder in (first, second))
    assert first.keys() == second.keys()
    torch.testing.assert_close(first, second, rtol=0, atol=0 if is_exact else 1e-6)


@pytest.mark.parametrize("num_processes", [1, 2])
@pytest.mark.parametrize("training", TRAININGS)
def test_a_killed_run_ends_as_one_that_was_not(training, num_processes, tmp_path):
    command = TRAININGS[training](tmp_path / "data")
    begin = time.monotonic()
    finish(start(command, tmp_path / "whole", num_processes))
    seconds = time.monotonic() - begin
    generator = random.Random(f"{training} {num_processes}")
    for attempt in range(KILLS):
        output_dir = tmp_path / str(attempt)
        process = start(command, output_dir, num_processes)
        if attempt % 2:  # while a checkpoint is written
            saves = generator.randint(1, 4)
            for _ in range(saves):
                while process.poll() is None and not is_saving(output_dir):
                    time.sleep(0.0005)
                last = numbered_checkpoints(output_dir)
                if saves > 1:
                    while process.poll() is None and last and not (last[-1] / MANIFEST).is_file():
                        time.sleep(0.0005)
            time.sleep(generator.random() * 0.03)
        else:
            time.sleep(seconds * generator.uniform(0.3, 1.0))
        if process.poll() is None:
            kill(process)
        was_whole = bool(whole_checkpoints(output_dir))
        resumed = start(command, output_dir, num_processes, "--resume_from_checkpoint", "last")
        errors = finish(resumed, None)
        if resumed.returncode:
            assert not was_whole, errors[-3000:]
            assert "There is no whole checkpoint in `output_dir`" in errors
            finish(start(command, output_dir, num_processes, "--resume_from_checkpoint", "auto"))
        assert_same_weights(tmp_path / "whole", output_dir, num_processes == 1)


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2), (2, 4)])
@pytest.mark.parametrize("training", TRAININGS)
def test_another_number_of_processes_goes_on_at_the_same_rows(training, before, after, tmp_path):
    no_dropout = TINY_GPT if training == "language_model" else TINY_TRANSFORMER + ",dropout=0.0"
    command = TRAININGS[training](tmp_path / "data", config_overrides=no_dropout)
    finish(start(command, tmp_path / "whole", before))
    process = start(command, tmp_path / "run", before)
    while process.poll() is None and not whole_checkpoints(tmp_path / "run"):
        time.sleep(0.001)
    kill(process)
    finish(start(command, tmp_path / "run", after, "--resume_from_checkpoint", "last"))
    assert_same_weights(tmp_path / "whole", tmp_path / "run", is_exact=False)


@pytest.mark.parametrize("num_processes", [1, 2])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stopped_command_says_how_to_go_on(number, num_processes, tmp_path):
    command = language_model(tmp_path / "data")
    finish(start(command, tmp_path / "whole", num_processes))
    process = start(command, tmp_path / "run", num_processes)
    while process.poll() is None and not whole_checkpoints(tmp_path / "run"):
        time.sleep(0.001)
    process.send_signal(number)
    errors = finish(process, None)
    assert "Stopped after step" in errors, errors[-3000:]
    assert "--resume_from_checkpoint last" in errors
    if num_processes == 1:
        assert process.returncode == 128 + number
        assert "Traceback" not in errors
    finish(start(command, tmp_path / "run", num_processes, "--resume_from_checkpoint", "last"))
    assert_same_weights(tmp_path / "whole", tmp_path / "run", num_processes == 1)


def test_a_full_disk_keeps_the_last_checkpoint(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=900k", "tmpfs", str(disk)], capture_output=True)
    if mounted.returncode:
        pytest.skip("a small file system cannot be mounted here")
    try:
        command = language_model(tmp_path / "data", save_steps=1, save_total_limit=100)
        errors = finish(start(command, disk / "run"), None)
        last = whole_checkpoints(disk / "run")[-1]
        assert f"The last whole checkpoint is {last}. Resume with" in errors
        subprocess.run(["mount", "-o", "remount,size=50m", str(disk)], check=True)
        finish(start(command, disk / "run", 1, "--resume_from_checkpoint", "last"))
        finish(start(command, tmp_path / "whole"))
        assert_same_weights(tmp_path / "whole", disk / "run")
    finally:
        subprocess.run(["umount", str(disk)], check=True)
