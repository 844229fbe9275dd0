# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Data prepared once: the cache, the folder of prepare_data.py, and what two processes make of it."""

import copy
import multiprocessing
import os
import time
from contextlib import chdir

import pytest
from datasets import Dataset, Value
from test_data import rewrite
from test_scripts import STORIES, TINY_GPT, flags, write

from hf_scratch.data.cache import is_prepared, make_once
from hf_scratch.data.columns import id_type, sample_rows
from hf_scratch.errors import UserError
from hf_scratch.tokenization import train_tokenizer
from hf_scratch.training import preparation
from hf_scratch.training.arguments import LanguageModelArguments, ModelArguments
from hf_scratch.training.preparation import TextPreparation

PAIRS = [{"en": "a red cat", "de": "eine rote Katze"}, {"en": "a dog", "de": "ein Hund"}] * 4


def prepare(tmp_path, folder=None, checkpoint=None, tokenizer_name=None, **options):
    model_args = ModelArguments(cache_dir=str(tmp_path / "cache"), vocab_size=300, tokenizer_name=tokenizer_name)
    options = {"block_size": 16} | {name: str(x) if name.endswith("file") else x for name, x in options.items()}
    data = TextPreparation(model_args, LanguageModelArguments(**options), checkpoint)
    data.run(lambda splits: None, folder)
    return data


@pytest.fixture
def no_reading(monkeypatch):
    """Lets nothing read the data from now on."""

    def refuse():
        monkeypatch.setattr(preparation, "load_from_arguments", lambda *args: pytest.fail("the data were read again"))

    return refuse


@pytest.mark.parametrize("source", ["file", "folder"])
def test_a_changed_file_of_the_old_time_and_size_is_prepared_again(tmp_path, no_reading, source):
    (tmp_path / "data").mkdir()
    train = write(tmp_path / "data" / "train.jsonl", [{"text": "A dog."}] * 9)
    options = {"train_file": train} if source == "file" else {"dataset_name": str(tmp_path / "data")}
    first = prepare(tmp_path, **options)
    rewrite(train, [{"text": "A fox."}] * 9)
    second = prepare(tmp_path, **options)
    texts = [data.tokenizer.decode(data.rows["train"][0]["input_ids"]) for data in (first, second)]
    assert texts[0].startswith("<s>A dog.</s>")
    assert texts[1].startswith("<s>A fox.</s>")
    no_reading()
    os.utime(train)  # another time alone is no other data
    assert prepare(tmp_path, **options).rows["train"][:] == second.rows["train"][:]


def test_plain_text_is_prepared_again_if_it_is_divided_otherwise(tmp_path):
    train = tmp_path / "train.txt"
    train.write_text("A dog.\nA cat.\n\nA fox.\n", encoding="utf-8")
    lines, paragraphs = (
        prepare(tmp_path, train_file=train, packing=False, sample_by=by) for by in (None, "paragraph")
    )
    assert [len(data.rows["train"]) for data in (lines, paragraphs)] == [3, 2]


def test_a_resumed_run_finds_the_rows_by_its_tokenizers_content(tmp_path, no_reading):
    train = write(tmp_path / "train.jsonl", STORIES)
    first = prepare(tmp_path, train_file=train)
    first.tokenizer("text", truncation=True, max_length=4)  # changes the tokenizer's state, not its ids
    first.tokenizer.save_pretrained(tmp_path / "checkpoint-1")
    no_reading()
    assert prepare(tmp_path, checkpoint=str(tmp_path / "checkpoint-1"), train_file=train).rows["train"][:]


@pytest.mark.parametrize("change", ["option", "limit", "tokenizer"])
def test_other_options_are_prepared_anew_or_refused(tmp_path, change):
    train = write(tmp_path / "train.jsonl", STORIES)
    train_tokenizer(["abc"], "char", 40).save_pretrained(tmp_path / "chars")
    options = {"option": {"block_size": 8}, "limit": {"max_train_samples": 1}}
    options = options.get(change, {"tokenizer_name": str(tmp_path / "chars")})
    first = prepare(tmp_path, train_file=train)
    assert prepare(tmp_path, train_file=train, **options).rows["train"][:] != first.rows["train"][:]
    prepare(tmp_path, str(tmp_path / "prepared"), train_file=train)
    with pytest.raises(UserError, match="were prepared with `"):
        prepare(tmp_path, dataset_name=str(tmp_path / "prepared"), **options)


def test_a_folder_of_prepared_data_is_used_as_it_is(tmp_path, no_reading):
    train, folder = write(tmp_path / "train.jsonl", STORIES), tmp_path / "prepared"
    made = prepare(tmp_path, str(folder), train_file=train, test_file=train)
    assert is_prepared(str(folder))
    no_reading()
    data = prepare(tmp_path, dataset_name=str(folder))
    assert data.rows["train"][:] == made.rows["train"][:]
    assert data.texts["test"]["text"][:] == [row["text"] for row in STORIES]
    with pytest.raises(UserError, match="were prepared with `train_file` None, and this run has"):
        prepare(tmp_path, dataset_name=str(folder), train_file=train)
    (rows,) = (folder / "rows" / "train").glob("*.arrow")
    rows.write_bytes(rows.read_bytes()[:-1] + b"?")
    with pytest.raises(UserError, match=r"is not what was saved.* prepare the data again"):
        prepare(tmp_path, dataset_name=str(folder))


def test_token_ids_take_two_bytes(tmp_path):
    data = prepare(tmp_path, train_file=write(tmp_path / "train.jsonl", STORIES))
    assert data.rows["train"].column_names == ["input_ids"]
    assert data.rows["train"].features["input_ids"].feature == Value("uint16")
    large = copy.deepcopy(data.tokenizer)
    large.add_tokens([f"<{i}>" for i in range(2**16)])
    assert id_type(large) == Value("int32")


def count_calls(folder):
    def make(unfinished):
        (folder.with_name("log") / str(os.getpid())).touch()
        time.sleep(0.3)
        (unfinished / "file").write_text("all")

    assert (make_once(folder, make) / "file").read_text() == "all"


def test_of_several_processes_one_prepares_and_the_others_wait(tmp_path):
    (tmp_path / "log").mkdir()
    with multiprocessing.get_context("fork").Pool(3) as pool:
        pool.map(count_calls, [tmp_path / "made"] * 3, chunksize=1)
    assert len(list((tmp_path / "log").iterdir())) == 1


def test_half_a_preparation_is_never_used(tmp_path):
    folder, unfinished = tmp_path / "made", tmp_path / "made.unfinished"
    unfinished.mkdir()  # of a process that was killed
    (unfinished / "half").write_text("half")

    def fail(path):
        (path / "part").write_text("part")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_once(folder, fail)
    assert not folder.exists()
    assert not unfinished.exists()
    make_once(folder, lambda path: (path / "whole").write_text("whole"))
    assert [path.name for path in folder.iterdir()] == ["whole"]


def test_a_tokenizer_is_trained_on_a_sample():
    rows = Dataset.from_dict({"text": [f"{i:04}" for i in range(1000)], "other": ["x" * 6] * 1000})
    assert len(sample_rows(rows, ["text"], 1)) == 1000
    sample = sample_rows(rows, ["text"], 0.0004)  # 400 bytes of 4,000
    assert sample["text"][:] == [f"{i:04}" for i in range(0, 1000, 10)]
    assert len(sample_rows(rows, ["text", "other"], 0.0004)) == 40


@pytest.mark.parametrize("recipe", ["demo_stories", "demo_numbers.yaml"])
def test_a_recipe_of_the_package_is_prepared_by_its_name(run_here, tmp_path, recipe):
    """The recipe also says whether the data are pairs."""
    with chdir(tmp_path):
        run_here("prepare_data", recipe, "--output_dir", "prepared", "--max_train_samples", 50)
    assert is_prepared(str(tmp_path / "prepared"))


def test_the_commands_prepare_and_train(run_here, tmp_path):
    train, folder = write(tmp_path / "train.jsonl", STORIES * 3), tmp_path / "prepared"
    folder.mkdir()
    options = {"vocab_size": 300, "block_size": 16, "config_overrides": TINY_GPT}
    preparing = ("prepare_data", *flags(options | {"train_file": train, "output_dir": folder}))
    assert f"Train with `--dataset_name {folder}`" in run_here(*preparing).stdout
    refused = run_here(*preparing, check=False)
    assert refused.returncode == 2
    assert "is not empty" in refused.stderr
    options |= {"dataset_name": folder, "output_dir": tmp_path / "run", "max_steps": 2, "save_strategy": "no"}
    run_here("train_language_model", *flags(options), "--use_cpu", "true")
    assert (tmp_path / "run" / "model.safetensors").is_file()
