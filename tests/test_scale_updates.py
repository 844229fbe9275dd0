# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Each update sees the same rows on one process and on several. `make test-scale` runs these."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from test_faults import finish, start
from test_scripts import PACKED, PAIRED, PAIRS, STORIES, TINY_GPT, TINY_TRANSFORMER, flags, read_json, write_splits

pytestmark = pytest.mark.slow

OPTIONS = {
    "max_steps": 30, "logging_steps": 1, "learning_rate": 1e-3, "use_cpu": "true", "seed": 3, "eval_strategy": "no",
    "save_strategy": "no", "label_smoothing_factor": 0.1, "r_drop_alpha": 1,
}  # fmt: skip
NO_DROPOUT = {**PAIRED, "config_overrides": TINY_TRANSFORMER + ",dropout=0.0"}
CASES = {
    "pairs by tokens": ("train_translation.py", {**NO_DROPOUT, "max_tokens_per_update": 90}),
    "pairs by tokens, accumulated": (
        "train_translation.py", {**NO_DROPOUT, "max_tokens_per_update": 90, "max_tokens_per_batch": 22}
    ),
    "pairs by rows": ("train_translation.py", {**NO_DROPOUT, "global_batch_size": 8}),
    "texts by themselves": (
        "train_language_model.py",
        {**PACKED, "global_batch_size": 8, "packing": "false", "train_sampling_strategy": "group_by_length"},
    ),
    "packed texts": ("train_language_model.py", {**PACKED, "global_batch_size": 8}),
    "packed texts, accumulated": (
        "train_language_model.py", {**PACKED, "global_batch_size": 8, "per_device_train_batch_size": 1}
    ),
    "masked texts": (
        "train_language_model.py",
        {**PACKED, "config_overrides": TINY_GPT + ",is_causal=false", "mlm_probability": 0.3, "global_batch_size": 8},
    ),
}  # fmt: skip


def losses(output_dir: Path) -> list[float]:
    history = read_json(output_dir / "trainer_state.json")["log_history"]
    return [entry["loss"] for entry in history if "loss" in entry]


@pytest.mark.parametrize("case", CASES)
def test_thirty_updates_are_the_same_on_one_two_and_four_processes(case, tmp_path):
    script, options = CASES[case]
    data = write_splits(tmp_path / "data", train=(PAIRS if script == "train_translation.py" else STORIES) * 3)
    command = [script, *flags(OPTIONS | options | {"dataset_name": data})]
    for processes in (1, 2, 4):
        finish(start(command, tmp_path / str(processes), processes))
    expected, weights = losses(tmp_path / "1"), load_file(tmp_path / "1" / "model.safetensors")
    assert len(expected) == 30
    for processes in (2, 4):
        assert losses(tmp_path / str(processes)) == pytest.approx(expected, abs=1e-5)
        for name, tensor in load_file(tmp_path / str(processes) / "model.safetensors").items():
            if not name.endswith("k_proj.bias"):  # its gradient is rounding alone, which Adam makes large
                torch.testing.assert_close(tensor, weights[name], rtol=0, atol=1e-4)
