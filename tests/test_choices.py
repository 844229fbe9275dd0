# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""The table of what the articles' choices are worth, and the command that trains its runs."""

import json
import sys

from conftest import ROOT

sys.path[:0] = [str(ROOT / "scripts" / "benchmark")]


def record(loss, bleu=30.0, epochs=11.76, parameters=2_349_568):
    metrics = {"validation": {"loss": loss, "bleu": bleu}}
    return {"command": "train.py", "updates": 1400, "epochs": epochs, "parameters": parameters, "metrics": metrics}


def test_a_difference_is_compared_with_the_spread_between_seeds():
    from choices import format_choices

    # deviations between seeds: 0.1 and 0.1 (variances 0.01), so a difference of means has a standard error of 0.1
    near = {"gelu_seed1": record(2.1 - 0.005**0.5), "gelu_seed2": record(2.1 + 0.005**0.5)}
    base = {"base_seed1": record(2.0 - 0.005**0.5), "base_seed2": record(2.0 + 0.005**0.5)}
    far = {"post_norm_seed1": record(2.4)}  # one seed: a standard error of 0.1 * sqrt(1 + 1 / 2)
    rows = format_choices(base | near | far).splitlines()
    assert "| 2.000 |" in rows[2]
    assert "| 2.400 (+0.400) |" in rows[3]
    assert "| 2.100 (+0.100, within the spread) |" in rows[4]
    assert "deviation of 0.1000 for validation loss" in rows[-1]


def test_losses_of_another_vocabulary_are_not_compared():
    from choices import LEVERS, format_choices

    base = {"base_seed1": record(2.0), "base_seed2": record(2.0)}
    records = base | {"vocab_4000_seed1": record(2.3, 29.0, epochs=10.61, parameters=1_837_568)}
    rows = format_choices(records, LEVERS).splitlines()
    assert rows[2].endswith("| 2.35 M | 11.8 | 2 |")
    assert rows[3].endswith("| 2.300 | 29.0 (-1.0) | 1.84 M | 10.6 | 1 |")


def test_finished_runs_are_not_trained_again(run_here, tmp_path):
    run = tmp_path / "base_seed7" / "run.json"
    run.parent.mkdir()
    run.write_text(json.dumps(record(1.5)))
    flags = ("--data", "nowhere", "--only", "base", "--seeds", "7", "--output_dir", tmp_path)
    assert "the recipe: norm before" in run_here("benchmark/choices", *flags).stdout
