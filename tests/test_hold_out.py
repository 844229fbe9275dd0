# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""A part of the training data that is held out by a hash of its texts."""

import json

import pytest
from test_scripts import write_splits

ROWS = [{"en": f"sentence {i % 150}", "de": f"Satz {i}"} for i in range(200)]  # 50 sources occur twice
OTHERS = {"validation": ROWS[:3], "test": ROWS[:5]}


def read(path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_the_same_texts_are_held_out_in_any_order(run_here, tmp_path):
    parts = []
    for name, rows in {"a": ROWS, "b": [*ROWS[::-1], {"en": "another", "de": "ein anderer"}]}.items():
        out = tmp_path / f"{name}_out"
        data = write_splits(tmp_path / name, train=rows, **OTHERS)
        flags = ["--dataset_name", data, "--column", "en", "--output_dir", out]
        printed = run_here("hold_out", *flags).stdout
        train, held_out = read(out / "train.jsonl"), read(out / "test.jsonl")
        assert printed.strip() == f"train: {len(train)} rows, validation: 3 rows, test: {len(held_out)} rows"
        assert sorted(row["de"] for row in [*train, *held_out]) == sorted(row["de"] for row in rows)
        assert not {row["en"] for row in train} & {row["en"] for row in held_out}
        assert read(out / "validation.jsonl") == ROWS[:3]
        parts.append({row["en"] for row in held_out} - {"another"})
    assert parts[0] == parts[1]
    assert 0.02 < len(parts[0]) / 150 < 0.2


def test_pairs_in_one_column_are_held_out_by_a_language(run_here, tmp_path):
    outs = []
    for name, rows in {"flat": ROWS, "nested": [{"translation": row} for row in ROWS]}.items():
        data = write_splits(tmp_path / name, train=rows)
        outs.append(tmp_path / f"{name}_out")
        run_here("hold_out", "--dataset_name", data, "--column", "en", "--output_dir", outs[-1])
    assert read(outs[0] / "test.jsonl") == [row["translation"] for row in read(outs[1] / "test.jsonl")]


def test_dates_stay_dates(run_here, tmp_path):
    data = write_splits(tmp_path / "data", train=[{**row, "when": "2024-01-01T00:00:00"} for row in ROWS])
    run_here("hold_out", "--dataset_name", data, "--column", "en", "--output_dir", tmp_path / "out")
    assert {row["when"][:19] for row in read(tmp_path / "out" / "train.jsonl")} == {"2024-01-01T00:00:00"}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--column", "fr"], "`column` is 'fr'"),
        (["--column", "en", "--share", 1], "`share`"),
        (["--column", "en", "--share", 1e-9], "would be empty"),
        (["--column", "en", "--output_dir", "."], "`output_dir` (.) exists"),
        (["--column", "en", "--output_dir", "{data}/part"], "Choose an `--output_dir` outside"),
    ],
)
def test_bad_input_is_named_and_leaves_nothing(run_here, tmp_path, flags, message):
    data = write_splits(tmp_path / "data", train=ROWS, **OTHERS)
    flags = [str(flag).format(data=data) for flag in flags]
    process = run_here("hold_out", "--dataset_name", data, "--output_dir", tmp_path / "out", *flags, check=False)
    assert process.returncode == 2
    assert message in process.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["data"]
