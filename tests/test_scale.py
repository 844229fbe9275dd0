# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Trainings on several processes. `make test-scale` runs these.

FSDP2: tests/fsdp_on_cpus.py makes accelerate shard on CPUs. Only on GPUs can be seen: NCCL, `fsdp_offload_params`
(torch copies to an accelerator), and how communication and computation overlap.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import ROOT
from safetensors.torch import load_file
from test_scripts import LAUNCHER, PACKED, PAIRED, PAIRS, STORIES, flags, read_json, write_splits

from hf_scratch.loading import SHARDS
from hf_scratch.manifest import check_manifest
from hf_scratch.training.averaging import average_checkpoints
from hf_scratch.training.fsdp import read_shards

pytestmark = pytest.mark.slow

FSDP2 = ROOT / "scripts" / "accelerate" / "fsdp2.yaml"
# at this learning rate, the average of the GPT's last checkpoints is better than the last one
OPTIONS = {
    "max_steps": 6, "save_steps": 2, "eval_strategy": "steps", "eval_steps": 2, "logging_steps": 1, "use_cpu": "true",
    "seed": 3, "average_checkpoints": 3, "learning_rate": 0.1, "lr_scheduler_type": "constant",
    "per_device_eval_batch_size": 2,
}  # fmt: skip
LOSSES = ("loss", "eval_loss")
# a folder is loaded without this package, by the code beside its weights
LOAD = """
import sys
sys.modules["hf_scratch"] = None
import torch
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer
auto = AutoModelForCausalLM if sys.argv[2] == "language_model" else AutoModelForSeq2SeqLM
model, info = auto.from_pretrained(sys.argv[1], trust_remote_code=True, output_loading_info=True)
assert not info["missing_keys"] and not info["unexpected_keys"], info
torch.save(model.state_dict(), sys.argv[3])
model.generate(**AutoTokenizer.from_pretrained(sys.argv[1])("A dog", return_tensors="pt"), max_new_tokens=3)
"""


def translation(folder: Path) -> list[str]:
    write_splits(folder, train=PAIRS, validation=PAIRS[:7], test=PAIRS[:3])
    config = PAIRED["config_overrides"] + ",dropout=0,attention_dropout=0,activation_dropout=0"
    options = OPTIONS | PAIRED | {
        "dataset_name": folder, "config_overrides": config, "max_tokens_per_batch": 40, "generation_num_beams": 2,
        "predict_with_generate": "true", "label_smoothing_factor": 0.1, "r_drop_alpha": 1,
        "load_best_model_at_end": "true", "average_checkpoints": 1, "muon": "true",
    }  # fmt: skip
    return ["train_translation.py", *flags(options)]


def language_model(folder: Path) -> list[str]:
    write_splits(folder, train=STORIES * 20, validation=STORIES)
    config = PACKED["config_overrides"] + ",embedding_dropout=0,hidden_dropout=0,attention_dropout=0"
    options = {"dataset_name": folder, "per_device_train_batch_size": 4, "config_overrides": config}
    return ["train_language_model.py", *flags(OPTIONS | PACKED | options)]


TRAININGS = {"translation": translation, "language_model": language_model}


def train(command: list[str], output_dir: Path, *args, num_processes: int = 2, sharding: Path | None = None) -> str:
    """Run a training command to its end, by DDP or with a configuration of FSDP.

    Returns:
        What it printed on stderr. With FSDP, the parameters are sharded: the launcher has looked.
    """
    words = [sys.executable, *LAUNCHER, num_processes]
    if sharding is not None:
        words.remove("--multi_gpu")
        words += ["--config_file", sharding, ROOT / "tests" / "fsdp_on_cpus.py"]
    words += [ROOT / "scripts" / command[0], *command[1:], "--output_dir", output_dir, *args]
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, timeout=300)
    if done.returncode == 0 and sharding is not None:
        (found,) = re.findall(r"sharded: \d+ parameters, (\d+) of (\d+) values", done.stderr)
        assert int(found[0]) == pytest.approx(int(found[1]) / num_processes, rel=0.1)
    assert done.returncode == 0 or " error: " in done.stderr, done.stderr[-4000:]
    return done.stderr


def losses(run: Path) -> list[tuple]:
    history = read_json(run / "trainer_state.json")["log_history"]
    return [(entry["step"], name, entry[name]) for entry in history for name in LOSSES if name in entry]


@pytest.fixture(scope="module", params=TRAININGS)
def fsdp_run(request, tmp_path_factory) -> tuple[str, list[str], Path]:
    """A family, its command, and the folder of its run under FSDP2."""
    folder = tmp_path_factory.mktemp(request.param)
    command = TRAININGS[request.param](folder / "data")
    train(command, folder / "run", sharding=FSDP2)
    return request.param, command, folder / "run"


@pytest.mark.parametrize("other", ["DDP", "compiled"])
def test_fsdp2_has_the_losses_of_ddp_and_compiled_its_own(fsdp_run, tmp_path, other):
    _, command, run = fsdp_run
    if other == "DDP":
        train(command, tmp_path)
    else:
        train(command, tmp_path, "--torch_compile_backend", "aot_eager", sharding=FSDP2)
    found, expected = losses(run), losses(tmp_path)
    assert [entry[:2] for entry in found] == [entry[:2] for entry in expected]
    assert len(found) >= 9
    tolerance = 1e-5 if other == "DDP" else 1e-4
    assert [entry[2] for entry in found] == pytest.approx([entry[2] for entry in expected], rel=tolerance)
    weights = [load_file(folder / "model.safetensors").keys() for folder in (run, tmp_path)]
    assert weights[0] == weights[1]


def test_a_run_of_fsdp2_ends_with_a_whole_model(fsdp_run, tmp_path):
    family, _, run = fsdp_run
    shards = {f"{SHARDS}/__{rank}_0.distcp" for rank in range(2)} | {f"{SHARDS}/.metadata"}
    for step in (2, 4, 6):
        checkpoint = run / f"checkpoint-{step}"
        assert check_manifest(checkpoint)["num_processes"] == 2
        listed = read_json(checkpoint / "manifest.json")["files"]
        assert shards | {"optimizer_0/__0_0.distcp", "optimizer_0/__1_0.distcp", "config.json"} <= listed.keys()
        assert "model.safetensors" not in listed
    record, state = read_json(run / "run.json"), read_json(run / "trainer_state.json")
    if family == "language_model":
        assert record["weights"] == "averaged over 3 checkpoints"
        expected = average_checkpoints([run / f"checkpoint-{step}" for step in (2, 4, 6)])
    else:
        assert record["weights"] == "trained"
        expected = read_shards(state["best_model_checkpoint"])
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    words = [sys.executable, "-P", "-c", LOAD, str(run), family, str(tmp_path / "loaded.pt")]
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-3000:]
    for name, weight in torch.load(tmp_path / "loaded.pt").items():
        assert weight.equal(expected[name]), name


def resume(fsdp_run, folder: Path, *options, **kwargs) -> None:
    """Train from checkpoint-4 of the run on."""
    _, command, run = fsdp_run
    for step in (2, 4):
        shutil.copytree(run / f"checkpoint-{step}", folder / f"checkpoint-{step}")
    train(command, folder, "--resume_from_checkpoint", "last", *options, sharding=FSDP2, **kwargs)


def test_a_run_of_fsdp2_resumes_from_shards(fsdp_run, tmp_path):
    _, _, run = fsdp_run
    resume(fsdp_run, tmp_path)
    assert losses(tmp_path) == losses(run)
    whole, resumed = (load_file(each / "model.safetensors") for each in (run, tmp_path))
    assert all(resumed[name].equal(weight) for name, weight in whole.items())


@pytest.mark.parametrize("fsdp_run", ["language_model"], indirect=True)
def test_a_run_of_fsdp2_resumes_on_more_processes(fsdp_run, tmp_path):
    _, _, run = fsdp_run
    resume(fsdp_run, tmp_path, "--per_device_train_batch_size", 2, num_processes=4)
    found, expected = ([e[2] for e in losses(each) if e[1] == "loss"] for each in (tmp_path, run))
    assert found == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("fsdp_run", ["language_model"], indirect=True)
def test_other_configurations_of_fsdp_are_refused(fsdp_run, tmp_path):
    _, command, _ = fsdp_run
    first = {
        "fsdp_version: 2": "fsdp_version: 1",
        "reshard_after_forward: true": "reshard_after_forward: FULL_SHARD",
        "fsdp_config:": "fsdp_config:\n  fsdp_sync_module_states: false",
    }
    for changes in (first, {"efficient_loading: false": "efficient_loading: true"}):
        text = FSDP2.read_text(encoding="utf-8")
        for before, after in changes.items():
            text = text.replace(before, after)
        (tmp_path / "other.yaml").write_text(text, encoding="utf-8")
        printed = train(command, tmp_path / "new", sharding=tmp_path / "other.yaml")
        assert "see scripts/accelerate/fsdp2.yaml" in printed
