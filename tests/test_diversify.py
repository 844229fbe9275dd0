# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Training data that trained models have translated, beside the old pairs."""

import json
import shutil

import pytest
from conftest import ROOT, make_transformer
from test_scripts import run, write, write_splits

from hf_scratch import TranslationPipeline
from hf_scratch.loading import load_tokenizer

FORWARD = ROOT / "model_cards" / "scratch-transformer-multi30k-en-de"
PAIRS = [
    {"en": "Two dogs run.", "de": "Zwei Hunde rennen."},
    {"en": "A man sleeps.", "de": "Ein Mann liegt im Bett."},
    {"en": "A man sleeps.", "de": "Ein Mann liegt im Bett."},
    {"en": "A man sleeps.", "de": "Ein Mann schläft."},
]


@pytest.fixture
def data(tmp_path):
    return write_splits(tmp_path / "data", train=PAIRS, validation=PAIRS[:2], test=PAIRS[1:2])


@pytest.fixture
def backward(tmp_path):
    """A model with random weights that translates from German to English."""
    tokenizer = load_tokenizer(FORWARD)
    model = make_transformer(vocab_size=len(tokenizer))
    model.config.source_lang, model.config.target_lang = "de", "en"
    model.generation_config.max_length = 6
    model.save_pretrained(tmp_path / "backward")
    tokenizer.save_pretrained(tmp_path / "backward")
    return tmp_path / "backward", TranslationPipeline(model=model.eval(), tokenizer=tokenizer)


def read(path) -> list[tuple[str, str]]:
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert all(list(row) == ["en", "de"] for row in rows)
    return [(row["en"], row["de"]) for row in rows]


def test_both_directions_add_what_they_translate_once(run_here, data, backward, tmp_path):
    folder, translator = backward
    out = tmp_path / "more"
    flags = ("--dataset_name", data, "--models", FORWARD, folder, "--num_beams", 1, "--output_dir", out)
    printed = run_here("diversify", *flags).stdout
    old = list(dict.fromkeys((pair["en"], pair["de"]) for pair in PAIRS))
    german = list(dict.fromkeys(pair["de"] for pair in PAIRS))
    english = [record["translation_text"] for record in translator(german, num_beams=1)]
    pairs = read(out / "train.jsonl")
    assert pairs[:3] == old
    assert ("Two dogs run.", "Zwei Hunde rennen.") in old  # what the forward model says of it is no new pair
    assert set(pairs) == {*old, ("A man sleeps.", "Ein Mann schläft."), *zip(english, german, strict=True)}
    assert len(pairs) == len(set(pairs))
    assert read(out / "validation.jsonl") == old[:2]
    assert read(out / "test.jsonl") == old[1:2]
    assert f"{FORWARD} (en-de): 0 new pairs" in printed
    assert f"train: {len(pairs)} pairs, validation: 2 pairs, test: 1 pairs" in printed


@pytest.mark.slow
def test_two_processes_write_what_one_does(run_here, data, tmp_path):
    flags = ["--dataset_name", data, "--models", FORWARD, "--num_beams", 2, "--batch_size", 1, "--output_dir"]
    run_here("diversify", *flags, tmp_path / "one")
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2")
    process = run("diversify.py", *flags, tmp_path / "two", launcher=launcher)
    for name in ("train", "validation", "test"):
        assert read(tmp_path / "two" / f"{name}.jsonl") == read(tmp_path / "one" / f"{name}.jsonl")
    assert process.stdout.count("train: ") == 1


def test_bad_input_is_named_and_leaves_nothing(run_here, data, backward, tmp_path):
    nameless = make_transformer(vocab_size=8000)
    nameless.save_pretrained(tmp_path / "nameless")
    load_tokenizer(FORWARD).save_pretrained(tmp_path / "nameless")
    write_splits(tmp_path / "other", train=[{"en": "a", "fr": "b"}])
    for folder, split, rows in (
        ("blank", "test", [*PAIRS, {"en": "A cat.", "de": " "}]),
        ("long", "train", [*PAIRS, {"en": "dog " * 400, "de": "Hund"}]),
    ):
        shutil.copytree(data, tmp_path / folder)
        write(tmp_path / folder / f"{split}.jsonl", rows)
    before = sorted(path.name for path in tmp_path.iterdir())
    for flags, message in (
        (["--models", tmp_path / "nameless"], "All must translate between the same two languages"),
        (["--models", FORWARD, "--output_dir", data], "exists. Choose a new folder."),
        (["--models", FORWARD, "--dataset_name", tmp_path / "other"], "`target_lang` is 'de', but the columns of"),
        (["--models", FORWARD, "--dataset_name", tmp_path / "blank"], "test data has 1 of 5 rows with no text"),
        (["--models", FORWARD, "--dataset_name", tmp_path / "long"], "1 of 5 training sources ('en') of"),
        (["--models", FORWARD, "--dataset_name", tmp_path / "long"], "the first is row 4, counted from 0"),
    ):
        process = run_here("diversify", "--dataset_name", data, "--output_dir", tmp_path / "out", *flags, check=False)
        assert process.returncode == 2
        assert message in process.stderr
        assert sorted(path.name for path in tmp_path.iterdir()) == before
