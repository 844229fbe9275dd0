# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""The table of what the articles' choices are worth, and the command that trains its runs."""

import json
import subprocess
import sys

from conftest import ROOT

sys.path[:0] = [str(ROOT / "scripts" / "benchmark")]
SCRIPT = "benchmark/choices"


def record(loss, bleu=30.0, epochs=11.76, parameters=2_349_568):
    metrics = {"validation": {"loss": loss, "bleu": bleu}}
    return {"command": "train.py", "updates": 1400, "epochs": epochs, "parameters": parameters, "metrics": metrics}


def test_a_difference_is_compared_with_the_spread_between_seeds():
    from choice_tables import format_choices

    # deviations between seeds: 0.1 and 0.1 (variances 0.01), so a difference of means has a standard error of 0.1
    near = {"gelu_seed1": record(2.1 - 0.005**0.5), "gelu_seed2": record(2.1 + 0.005**0.5)}
    base = {"base_seed1": record(2.0 - 0.005**0.5), "base_seed2": record(2.0 + 0.005**0.5)}
    far = {"post_norm_seed1": record(2.4)}  # one seed: a standard error of 0.1 * sqrt(1 + 1 / 2)
    rows = format_choices(base | near | far).splitlines()
    assert "| 2.000 |" in rows[2]
    assert "| 2.400 (+0.400) |" in rows[3]
    assert "| 2.100 (+0.100, within the spread) |" in rows[4]
    assert "deviation of 0.1000 for validation loss" in rows[-1]


def test_without_runs_to_compare_there_is_no_table():
    from choice_tables import format_choices

    assert format_choices({"gelu_seed1": record(2.0)}) == "Not measured yet."
    assert format_choices({"base_seed1": record(2.0)}) == "Not measured yet."


def test_levers_have_a_table_of_their_own():
    from choice_tables import LEVERS, format_choices

    records = {"base_seed1": record(2.0), "gelu_seed1": record(2.1), "teacher_seed1": record(1.9)}
    assert [row.split("|")[3].split()[0] for row in format_choices(records).splitlines()[2:4]] == ["2.000", "2.100"]
    assert "1.900 (-0.100" in format_choices(records, LEVERS).splitlines()[3]


def test_the_table_says_which_arithmetic_its_runs_used():
    from choice_tables import format_choices

    half = record(2.0) | {"command": "train.py --bf16 true"}
    text = format_choices({"base_seed1": half, "base_seed2": half, "gelu_seed1": half, "gelu_seed2": record(2.1)})
    assert ". Runs: 3 in bfloat16 and 1 in float32. " in text


def test_losses_of_another_vocabulary_are_not_compared():
    from choice_tables import LEVERS, format_choices

    records = {"base_seed1": record(2.0), "vocab_4000_seed1": record(2.3, 29.0, epochs=10.61, parameters=1_837_568)}
    rows = format_choices(records, LEVERS).splitlines()
    assert rows[2].endswith("| 2.35 M | 11.8 | 1 |")
    assert rows[3].endswith("| 2.300 | 29.0 (-1.0) | 1.84 M | 10.6 | 1 |")


def test_a_single_seed_has_no_spread_to_compare_with():
    from choice_tables import format_choices

    rows = format_choices({"base_seed1": record(2.0), "gelu_seed1": record(3.0)}).splitlines()
    assert "| 3.000 (+1.000) |" in rows[3]
    assert "No choice has two seeds yet" in rows[-1]


def test_the_table_of_the_held_out_tenth_has_the_runs_that_are_kept():
    from choice_tables import format_held_out

    test = {"bleu": 37.661, "bleu_moses": 37.814, "chrf": 62.431}
    run = {"updates": 4000, "minutes": 53.53, "metrics": {"validation": {"loss": 1.6722}, "test": test}}
    rows = format_held_out({"distilled": run | {"updates": 5100}, "alone": run}).splitlines()
    assert len(rows) == 4
    assert rows[2] == "| trained alone | 4,000 | 54 | 1.672 | 37.66 | 37.81 | 62.43 |"
    assert rows[3].startswith("| trained alone, then on diversified data, with itself as the teacher | 5,100 |")
    assert format_held_out({}) == "Not measured yet."


def test_a_wrong_choice_is_refused_before_any_training(run_here, tmp_path):
    flags = ["--data", tmp_path, "--output_dir", tmp_path / "runs", "--only", "gelu,prenorm"]
    process = run_here(SCRIPT, *flags, check=False)
    assert process.returncode == 2
    assert "'prenorm' is none of base" in process.stderr
    assert not (tmp_path / "runs").exists()


def flags_with_run(tmp_path, name) -> list:
    """The flags for a choice with seed 7, in a folder that has such a run, without any flag."""
    run = tmp_path / f"{name}_seed7" / "run.json"
    run.parent.mkdir()
    run.write_text(json.dumps(record(1.5)))
    return ["--data", "nowhere", "--only", name, "--seeds", "7", "--output_dir", tmp_path]


def test_a_run_with_other_flags_is_not_taken_for_this_one(run_here, tmp_path):
    process = run_here(SCRIPT, *flags_with_run(tmp_path, "gelu"), check=False)
    assert process.returncode == 2
    assert "is of a run without --config_overrides activation_function=gelu" in process.stderr


def test_runs_of_another_length_are_found_before_a_training(run_here, tmp_path):
    run = tmp_path / "base_seed7" / "run.json"
    run.parent.mkdir()
    run.write_text(json.dumps(record(1.5) | {"updates": 3}))
    process = run_here(SCRIPT, "--data", "x", "--output_dir", tmp_path, check=False)
    assert process.returncode == 2
    assert "Runs of unequal length cannot be compared" in process.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["base_seed7"]


def test_finished_runs_are_not_trained_again(tmp_path):
    command = [sys.executable, ROOT / "scripts" / f"{SCRIPT}.py", *flags_with_run(tmp_path, "base")]
    process = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    assert "the recipe: norm before" in process.stdout
