# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Training data that are streamed: the rows, their order, the position, and runs that are killed and resumed."""

import json
import time
from collections import Counter
from itertools import islice

import datasets
import pytest
import torch
from conftest import make_gpt
from datasets import Dataset
from test_data import rewrite
from test_faults import assert_same_weights, finish, kill, language_model, start, translation
from test_scripts import PAIRS, STORIES, flags, read_json, write, write_splits
from torch.utils.data import DataLoader
from transformers import TrainerCallback, TrainingArguments

from hf_scratch import ScratchGPTConfig
from hf_scratch.data.cache import describe_source
from hf_scratch.data.pairs import PairEncoder, take_pairs
from hf_scratch.data.sampling import round_up
from hf_scratch.data.splits import load_splits
from hf_scratch.data.streaming import POSITION, RowStream, StreamCollator, load_stream
from hf_scratch.data.texts import PackedTextsCollator, TextPacker, pack_texts, take_texts
from hf_scratch.errors import UserError
from hf_scratch.tokenization import train_tokenizer
from hf_scratch.training.arguments import LanguageModelArguments, TranslationArguments
from hf_scratch.training.command_line import TrainingCommand
from hf_scratch.training.trainers import LanguageModelTrainer

TEXTS = [{"text": f"Text {i} says {'na ' * (i % 7)}end."} for i in range(2300)]


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer([row["text"] for row in TEXTS], "char", 60)


def write_shards(folder, shards):
    return write_splits(folder, **{f"train-{i:02}": rows for i, rows in enumerate(shards)})


@pytest.fixture
def make_stream(tmp_path, tokenizer):
    """Stream shards of texts."""

    def make(shards, buffer_size=0, block_size=16):
        args = LanguageModelArguments(dataset_name=str(write_shards(tmp_path / "data", shards)))
        encode = TextPacker(tokenizer, block_size)
        return RowStream(load_stream(args)[0], lambda rows, name: take_texts(rows, "text", name), encode, buffer_size)

    return make


def read(stream, count):
    """The first rows, and the position after each."""
    rows, positions = [], []
    for items, position in islice(stream, count):
        rows += [row["input_ids"] for row in items]
        positions.append(position)
    return rows, positions


def split(texts, count):
    return [texts[i::count] for i in range(count)]


@pytest.mark.parametrize("source", ["file", "folder"])
def test_a_changed_file_of_the_old_time_is_streamed_anew(tmp_path, source):
    train = write(tmp_path / "train.jsonl", [{"text": "cats"}])
    args = {"train_file": str(train)} if source == "file" else {"dataset_name": str(tmp_path)}
    data_args = LanguageModelArguments(**args, streaming=True)
    load_splits(**args)
    load_stream(data_args)  # their columns are kept in the cache
    before = describe_source(data_args)
    assert describe_source(data_args) == before
    rewrite(train, [{"words": "cat"}])  # of the same size
    assert describe_source(data_args) != before
    rows, _ = load_stream(data_args)
    assert list(rows) == [{"words": "cat"}]


def test_packing_in_a_stream_equals_packing_in_memory(make_stream, tokenizer):
    expected = pack_texts(take_texts(Dataset.from_list(TEXTS)), tokenizer, 16)["input_ids"][:]
    rows, _ = read(make_stream([TEXTS]), 2 * len(expected))
    assert rows == expected + expected  # a second pass follows the first
    stream = make_stream([TEXTS], buffer_size=10 * len(expected))
    rows, _ = read(stream, 2 * len(expected))
    passes = rows[: len(expected)], rows[len(expected) :]
    assert sorted(passes[0]) == sorted(passes[1]) == sorted(expected)
    assert passes[0] != passes[1]
    assert passes[0] != expected


@pytest.mark.parametrize("multiple", [None, 8])
def test_pairs_in_a_stream_are_batched_by_tokens(tmp_path, joint_tokenizer, multiple):
    pairs = [{"en": "dog " * (i % 5 + 1), "de": f"Hund {i}"} for i in range(60)]
    args = TranslationArguments(dataset_name=str(write_shards(tmp_path / "data", split(pairs, 2))))
    encode = PairEncoder(joint_tokenizer, 40, 40)
    stream = RowStream(load_stream(args)[0], lambda rows, name: take_pairs(rows, "en", "de", name), encode, 1000)
    stream.max_tokens, stream.pad_to_multiple_of = 60, multiple
    stream.assign_shard(0, 1, 3)
    batches, seen = [], 0
    for rows, _ in stream:
        batches.append(rows)
        seen += len(rows)
        if seen >= 60:
            break
    assert seen == 60
    assert all(len(rows) * round_up(max(row["length"] for row in rows), multiple) <= 60 for rows in batches)
    expected = encode(take_pairs(Dataset.from_list(pairs), "en", "de")[:]).to_pylist()
    assert sorted(map(str, expected)) == sorted(str(row) for rows in batches for row in rows)


@pytest.mark.parametrize("processes", [2, 3])
@pytest.mark.parametrize("shards", [1, 4, 6])
def test_each_text_is_dealt_to_one_process_in_a_pass(make_stream, tokenizer, shards, processes):
    texts = [{"text": f"{i}"} for i in range(60)]
    stream = make_stream(split(texts, shards), buffer_size=5)
    stream.encode = TextPacker(tokenizer, 16, packing=False, overlap=0)  # a row is a text
    seen = Counter()
    for process in range(processes):
        stream.assign_shard(process, processes, seed=3)
        seen.update(tokenizer.decode(row, skip_special_tokens=True) for row in read(stream, 6 * 60 // processes)[0])
    assert set(seen) == {row["text"] for row in texts}
    if shards % processes == 0 or shards < processes:
        assert set(seen.values()) == {6}


@pytest.mark.parametrize(("shards", "processes"), [(1, 1), (3, 1), (5, 2), (1, 2)])
@pytest.mark.parametrize("buffer_size", [0, 7, 50])
def test_a_stream_goes_on_at_each_position(make_stream, shards, processes, buffer_size):
    stream = make_stream(split(TEXTS[:120], shards), buffer_size)
    stream.assign_shard(processes - 1, processes, seed=3)
    rows, positions = read(stream, 700)
    for count in (1, 2, 6, 7, 8, 49, 50, 51, 99, 100, 333, 500):
        stream.positions = [positions[count - 1]]
        assert json.loads(json.dumps(stream.positions)) == stream.positions
        assert read(stream, 40)[0] == rows[count : count + 40]


def test_a_position_in_a_second_thousand_of_texts_is_found(make_stream):
    stream = make_stream([TEXTS], 300)
    rows, positions = read(stream, 2500)
    assert positions[-1]["text"] == 1000
    stream.positions = [positions[-201]]
    assert read(stream, 200)[0] == rows[-200:]


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_the_positions_of_a_data_loaders_workers_are_those_of_its_batches(make_stream, tokenizer, workers):
    def batches(count):
        loader = DataLoader(
            stream, batch_size=3, num_workers=workers, collate_fn=StreamCollator(PackedTextsCollator(tokenizer, 16))
        )
        return list(islice(loader, count))

    stream = make_stream(split(TEXTS[:120], 4), 20)
    expected = batches(17)
    positions = {}
    for batch in expected[:7]:
        positions.pop(batch[POSITION]["reader"], None)
        positions[batch[POSITION]["reader"]] = batch[POSITION]
    stream.positions = list(positions.values())
    for found, batch in zip(batches(10), expected[7:], strict=True):
        assert torch.equal(found["input_ids"], batch["input_ids"])


def test_another_seed_gives_another_order(make_stream):
    stream = make_stream(split(TEXTS[:200], 4), 1000)
    orders = []
    for seed in (1, 1, 2):
        stream.assign_shard(0, 1, seed)
        orders.append(read(stream, 200)[0])
    assert orders[0] == orders[1] != orders[2]


def make_trainer(stream, tokenizer, folder, workers, *callbacks):
    args = TrainingArguments(
        folder, use_cpu=True, max_steps=9, save_steps=5, per_device_train_batch_size=2, gradient_accumulation_steps=2,
        learning_rate=1e-2, dataloader_num_workers=workers, logging_steps=1, remove_unused_columns=False,
        disable_tqdm=True, dataloader_pin_memory=False, report_to="none",
    )  # fmt: skip
    torch.manual_seed(3)
    return LanguageModelTrainer(
        model=make_gpt(vocab_size=len(tokenizer), hidden_dropout=0.1), args=args, train_dataset=stream,
        callbacks=list(callbacks), processing_class=tokenizer, data_collator=PackedTextsCollator(tokenizer, 16),
    )  # fmt: skip


@pytest.mark.parametrize("workers", [0, 2])
def test_a_trainer_resumes_to_the_bit_without_reading_again(make_stream, tokenizer, tmp_path, workers):
    class Stop(TrainerCallback):
        def on_save(self, args, state, control, **kwargs):
            raise InterruptedError

    def make(name, *callbacks):
        stream = make_stream(split(TEXTS[:120], 4), 10)
        return make_trainer(stream, tokenizer, tmp_path / name, workers, *callbacks)

    whole = make("whole")
    whole.train()
    with pytest.raises(InterruptedError):
        make("run", Stop()).train()
    resumed, checkpoint = make("run"), str(tmp_path / "run" / "checkpoint-5")
    resumed.train(resume_from_checkpoint=checkpoint)
    for one, other in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(one, other)
    logs = [[(e["step"], e["epoch"], e["loss"]) for e in t.state.log_history if "loss" in e] for t in (whole, resumed)]
    assert logs[0] == logs[1]
    other = make("run")
    other.train_dataset.buffer_size = 11
    with pytest.raises(UserError, match=r"`shuffle_buffer_size` 10 \(now 11\)"):
        other.train(resume_from_checkpoint=checkpoint)


def test_a_data_loaders_worker_reports_a_fault_in_a_line(make_stream, tokenizer, tmp_path):
    trainer = make_trainer(make_stream([TEXTS[:5], [{"text": " "}]]), tokenizer, tmp_path / "run", 1)
    with pytest.raises(UserError, match=r"^train, shard 1, from text 0 on: this part has 1 of 1 rows.*$"):
        trainer.train()


def test_a_reader_without_rows_is_named(make_stream):
    stream = make_stream([TEXTS[:1], TEXTS[:1]])
    stream.assign_shard(3, 4, 0)
    with pytest.raises(UserError, match="train has no rows for reader 3, counted from 0, of 4"):
        read(stream, 1)


STREAMED = {"streaming": "true", "shuffle_buffer_size": 7}


@pytest.mark.parametrize("options", [{"save_strategy": "epoch"}, {"max_train_samples": 3}])
def test_options_that_a_stream_cannot_have_are_refused(options):
    classes = (LanguageModelArguments, TrainingArguments, ScratchGPTConfig)
    with pytest.raises(ValueError, match=f"`streaming` does not go together with `{next(iter(options))}"):
        TrainingCommand(*classes, flags(STREAMED | {"train_file": "x", "output_dir": "x", "max_steps": 1} | options))


def test_a_stream_is_not_copied_to_the_cache(tmp_path):
    write_shards(tmp_path / "data", split(STORIES * 50, 3))
    write_splits(tmp_path / "data", validation=STORIES)
    args = LanguageModelArguments(dataset_name=str(tmp_path / "data"), max_eval_samples=5)
    stream, others = load_stream(args, str(tmp_path / "cache"))
    assert isinstance(stream, datasets.IterableDataset)
    assert stream.num_shards == 3
    assert others["validation"]["text"][:] == [row["text"] for row in STORIES[:5]]
    assert not any(path.suffix == ".arrow" for path in (tmp_path / "cache").rglob("*"))


BY_ROWS = {"max_tokens_per_update": None, "global_batch_size": 4}
TRAININGS = {
    "translation": (translation, PAIRS * 4, BY_ROWS),
    "by tokens": (translation, PAIRS * 4, {"max_tokens_per_update": 160}),
    "language model": (language_model, STORIES * 8, {}),
}


@pytest.mark.slow
@pytest.mark.parametrize("num_processes", [1, 2])
@pytest.mark.parametrize("training", TRAININGS)
def test_a_killed_streamed_run_ends_as_one_that_was_not(training, num_processes, tmp_path):
    make, rows, options = TRAININGS[training]
    command = make(tmp_path / "data", **STREAMED, **options)
    (tmp_path / "data" / "train.jsonl").unlink()
    write_shards(tmp_path / "data", split(rows, 3))
    finish(start(command, tmp_path / "whole", num_processes))
    process = start(command, tmp_path / "run", num_processes)
    while process.poll() is None and not (tmp_path / "run" / "checkpoint-6" / "manifest.json").is_file():
        time.sleep(0.001)
    assert process.poll() is None
    kill(process)
    finish(start(command, tmp_path / "run", num_processes, "--resume_from_checkpoint", "last"))
    assert_same_weights(tmp_path / "whole", tmp_path / "run", num_processes == 1)
    record = read_json(tmp_path / "run" / "run.json")
    assert record["epochs"] is None
    assert "train_rows" not in record
    if num_processes == 2:
        refused = start(command, tmp_path / "run", 1, "--resume_from_checkpoint", "last")
        assert "`num_processes` 2 (now 1)" in finish(refused, 2)
