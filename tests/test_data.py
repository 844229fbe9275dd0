import gzip
import os
import re
from itertools import pairwise

import pytest
import torch
from conftest import GPT, make_gpt
from datasets import Dataset
from hypothesis import given, settings
from hypothesis import strategies as st
from test_scripts import write
from torch.utils.data import RandomSampler
from transformers.trainer_pt_utils import LengthGroupedSampler

from hf_scratch.data.pairs import count_cut, take_pairs, tokenize_pairs
from hf_scratch.data.sampling import EmptyPartCollator, RowBatchSampler, TokenBudgetBatchSampler
from hf_scratch.data.splits import load_splits
from hf_scratch.data.streaming import load_stream
from hf_scratch.data.texts import PackedTextsCollator, TextPacker, pack_texts, take_texts
from hf_scratch.evaluation.language_modeling import evaluate_language_model
from hf_scratch.tokenization import train_tokenizer
from hf_scratch.training.arguments import LanguageModelArguments, ModelArguments
from hf_scratch.training.model_loading import choose_model

ROWS = [{"en": "a cat", "de": "eine Katze"}, {"en": "a dog", "de": "ein Hund"}]


def rewrite(path, rows):
    """Change a file's content and keep its modification time, as `cp -p` and `rsync -a` do."""
    times = os.stat(path)
    write(path, rows)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def test_a_file_that_a_folders_card_names_elsewhere_is_read_again(tmp_path):
    folder, cache, file = tmp_path / "data", str(tmp_path / "cache"), tmp_path / "elsewhere.jsonl"
    folder.mkdir()
    card = f"---\nconfigs:\n- config_name: default\n  data_files:\n  - split: train\n    path: {file}\n---\n"
    (folder / "README.md").write_text(card, encoding="utf-8")
    for text in ("a cat", "a bat"):
        (rewrite if file.exists() else write)(file, [{"text": text}])
        first, again = (load_splits(str(folder), cache_dir=cache)["train"] for _ in range(2))
        assert first["text"][:] == again["text"][:] == [text]
        assert first.cache_files == again.cache_files  # unchanged: out of the cache


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({}, "either `dataset_name`"),
        ({"dataset_name": "embedded:numbers", "train_file": "x"}, "either `dataset_name`"),
        ({"dataset_name": "embedded:poems"}, "embedded:numbers"),
        ({"dataset_name": "embedded:stories", "dataset_config_name": "long"}, "'long'"),
    ],
)
def test_a_wrong_source_is_named(kwargs, message):
    with pytest.raises(ValueError, match=message):
        load_splits(**kwargs)


@pytest.mark.parametrize("name", ["json", "text"])
def test_a_folder_with_the_name_of_a_loader_is_read(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for folder, text in ((name, "mine"), ("other", "not mine")):
        (tmp_path / folder).mkdir()
        write(tmp_path / folder / "train.jsonl", [{"text": text}])
    assert load_splits(name)["train"].to_list() == [{"text": "mine"}]
    stream, _ = load_stream(LanguageModelArguments(dataset_name=name, streaming=True))
    assert list(stream) == [{"text": "mine"}]


def test_numbers_are_held_out_and_right():
    splits = load_splits("embedded:numbers")
    assert {name: len(rows) for name, rows in splits.items()} == {"train": 9000, "validation": 500, "test": 500}
    known = {en: de for rows in splits.values() for en, de in zip(rows["en"], rows["de"], strict=True)}
    assert len(known) == 10000
    assert known["forty-two"] == "zweiundvierzig"
    assert known["nine thousand and one"] == "neuntausendeins"


def test_stories_are_the_same_each_time_and_held_out():
    splits = load_splits("embedded:stories")
    assert splits["train"]["text"] == load_splits("embedded:stories")["train"]["text"]
    assert not set(splits["train"]["text"]) & set(splits["test"]["text"])


def test_summaries_are_of_the_stories():
    stories, summaries = load_splits("embedded:stories"), load_splits("embedded:summaries")
    for name, rows in summaries.items():
        assert list(rows["document"]) == list(stories[name]["text"])
        for document, summary in zip(rows["document"], rows["summary"], strict=True):
            name, animal, place, thing = re.fullmatch(
                r"(\w+) met (an? \w+ \w+) (.+), and (?:they found|gave it) (.+)\.", summary
            ).groups()
            assert f"{name} met {animal}." in document
            assert f"{place}." in document
            assert f"{thing}." in document


@pytest.mark.parametrize("config_name", [None, "both_orders"])
def test_products_are_right_and_held_out(config_name):
    splits = load_splits("embedded:multiplication", config_name)
    factors = {name: [(row["prompt"][:2], row["prompt"][2:]) for row in rows] for name, rows in splits.items()}
    for name, rows in splits.items():
        for (a, b), row in zip(factors[name], rows, strict=True):
            assert len(row["answer"]) == 4
            assert int(row["answer"][::-1]) == int(a) * int(b)
        assert name == "train" or 980 <= len(rows) <= 1000
    assert sum(map(len, splits.values())) == 100**2
    kind = frozenset if config_name else tuple
    train, validation, test = ({*map(kind, factors[name])} for name in ("train", "validation", "test"))
    assert not train & (validation | test)
    assert not validation & test
    ordered = {*factors["train"]}
    swapped = sum((b, a) in ordered for a, b in factors["test"])
    assert (swapped == 0) == (config_name == "both_orders")


def test_a_path_begins_at_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "rows").mkdir()
    write(tmp_path / "rows" / "train.jsonl", ROWS)
    assert len(load_splits("~/rows")["train"]) == len(load_splits(train_file="~/rows/train.jsonl")["train"]) == 2


def load_both_ways(path, **options) -> list[dict]:
    """A file's rows, which are the same when they are streamed."""
    rows = load_splits(train_file=str(path), **options)["train"].to_list()
    streamed, _ = load_stream(LanguageModelArguments(train_file=str(path), streaming=True, **options))
    assert list(streamed) == rows
    return rows


TABLE = [{"en": "007", "de": "NA"}, {"en": "null", "de": "1.50"}, {"en": "2024-01-01", "de": "für"}]


@pytest.mark.parametrize(
    "name",
    ["a.csv", "a.CSV", "a.tsv", "a.csv.gz", "mark.csv", "a.parquet", "a.jsonl", "a.jsonl.gz", "mark.jsonl"],
)
def test_tables_are_read_as_the_text_that_stands_there(name, tmp_path):
    path, sep = tmp_path / name, "\t" if name == "a.tsv" else ","
    content = "".join(sep.join(row) + "\n" for row in [["en", "de"], *(row.values() for row in TABLE)]).encode()
    if name == "a.parquet":
        Dataset.from_list(TABLE).to_parquet(path)
    else:
        if "jsonl" in name:
            write(path, TABLE)
            content = path.read_bytes()
        content = b"\xef\xbb\xbf" * name.startswith("mark") + content
        path.write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    assert load_both_ways(path) == TABLE


@pytest.mark.parametrize(
    ("name", "content", "rows"),
    [
        ("a.csv", 'en,de\n"a ""b"",\nc",d\n', [{"en": 'a "b",\nc', "de": "d"}]),
        ("a.tsv", 'en\tde\n"a," he said\t"b\n"c\td\n', [{"en": '"a," he said', "de": '"b'}, {"en": '"c', "de": "d"}]),
        ("a.csv", 'en;de\n"a, b";1,5\n007;"c;d"\n', [{"en": "a, b", "de": "1,5"}, {"en": "007", "de": "c;d"}]),
        ("a.csv", ",en,de\n0,a cat,eine Katze\n1,a dog,ein Hund\n", ROWS),
    ],
    ids=["quotes", "quotes are text in TSV", "semicolons", "the index that pandas writes"],
)
def test_dialects_of_csv(name, content, rows, tmp_path, caplog):
    caplog.set_level("INFO", "hf_scratch")
    (tmp_path / name).write_text(content, encoding="utf-8")
    assert load_both_ways(tmp_path / name) == rows
    assert ("its columns are divided by semicolons" in caplog.text) == content.startswith("en;de")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("a", r"1 of 3 rows with no text in column 'de' \(rows 1,"),
        ("a,", r"1 of 3 rows with no text in column 'de' \(rows 1,"),
        ("a, man,b", "Expected 2 fields in line 3, saw 3"),
        ('"a,b', "EOF inside string"),
    ],
)
def test_cells_that_are_missing_or_too_many_are_refused(row, message, tmp_path):
    (tmp_path / "a.csv").write_text(f"en,de\nx,y\n{row}\nx,y\n", encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        take_pairs(load_splits(train_file=str(tmp_path / "a.csv"))["train"], "en", "de")


PLAIN = "\ufeffa\nb\n\n\nc\n \n\nd\n\n"


@pytest.mark.parametrize(
    ("sample_by", "texts"),
    [
        (None, ["a", "b", "c", "d"]),
        ("line", ["a", "b", "c", "d"]),
        ("paragraph", ["a\nb", "c\n ", "d"]),
        ("document", [PLAIN.strip("\ufeff\n")]),
    ],
)
def test_plain_text_is_divided_as_sample_by_says(sample_by, texts, tmp_path, caplog):
    caplog.set_level("INFO", "hf_scratch")
    (tmp_path / "train.txt").write_text(PLAIN, encoding="utf-8", newline="\r\n")
    assert load_both_ways(tmp_path / "train.txt", sample_by=sample_by) == [{"text": text} for text in texts]
    assert f"train.txt: {len(texts)} texts, one per {sample_by or 'line'}" in caplog.messages[0]
    with gzip.open(tmp_path / "zipped.txt.gz", "wb") as file:
        file.write((tmp_path / "train.txt").read_bytes())
    assert load_both_ways(tmp_path / "zipped.txt.gz", sample_by=sample_by) == [{"text": text} for text in texts]
    assert ("5 blank lines are left out" in caplog.text) == (sample_by in (None, "line"))
    if sample_by == "document":
        assert len(load_splits(str(tmp_path), sample_by=sample_by)["train"]) == 1  # a folder's files, too


@pytest.mark.parametrize(
    ("name", "content", "advice"),
    [
        ("a.csv", "text\nfür\n".encode("latin-1"), "save it as UTF-8"),
        ("a.txt", "für\n".encode("latin-1"), "save it as UTF-8"),
        ("a.json", '[{"text": "für"}]'.encode("latin-1"), "save it as UTF-8"),
        ("a.csv", b"text\n", "add some after the line of column names"),
        ("a.csv", b"", "it has no rows"),
        ("a.txt", b"\n \n", "has no rows"),
        ("a.csv", b"a man sleeps\nc\n", "put a line with the columns' names before it"),
        ("a.csv", b"text\nHello, you\nHello, me\n", "put cells that hold a comma into double quotes"),
    ],
)
def test_errors_say_what_to_do(name, content, advice, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=advice) as raised:
        take_texts(load_splits(train_file=str(tmp_path / name))["train"], "text", name)
    assert name in str(raised.value)
    assert len(str(raised.value).splitlines()) == 1


def test_missing_columns_and_texts_are_named():
    rows = Dataset.from_list([*ROWS, {"en": "a mouse", "de": " "}, {"en": "a fox", "de": None}])
    with pytest.raises(ValueError, match=r"train has 2 of 4 rows with no text in column 'de' \(rows 2, 3,"):
        take_pairs(rows, "en", "de", "train")
    with pytest.raises(ValueError, match="`target_lang` is 'fr', but the columns of train are en, de"):
        take_pairs(rows, "en", "fr", "train")
    with pytest.raises(ValueError, match="`text_column` is 'text', but the columns of train are en, de"):
        take_texts(rows, "text", "train")


def test_tokenised_pairs_end_in_the_end_token_even_when_cut(joint_tokenizer):
    pairs = Dataset.from_list([{"source": "A man sleeps.", "target": "Ein Mann schläft. " * 5}])
    (row,) = tokenize_pairs(pairs, joint_tokenizer, 40, 8, "train")
    assert joint_tokenizer.decode(row["input_ids"]) == "A man sleeps.</s>"
    assert len(row["labels"]) == 8
    assert row["labels"][-1] == joint_tokenizer.eos_token_id
    assert row["length"] == max(8, len(row["input_ids"]))


def test_what_is_cut_is_counted(joint_tokenizer, caplog):
    fits, long = "A man", "A man sleeps. " * 5
    limit = len(joint_tokenizer(fits)["input_ids"])
    pairs = Dataset.from_list([{"source": s, "target": t} for s, t in ((fits, fits), (long, fits), (long, long))])
    encoded = tokenize_pairs(pairs, joint_tokenizer, limit, limit, "train")
    assert (encoded["source_cut"][:], encoded["target_cut"][:]) == ([False, True, True], [False, False, True])
    counted = count_cut(encoded, "train", limit, limit)
    assert counted == f"2 of 3 sources at {limit} tokens and 1 of 3 targets at {limit} tokens"
    assert f"train: cut {counted}." in caplog.text
    assert count_cut(tokenize_pairs(pairs, joint_tokenizer, 99, 99, "train"), "train", 99, 99) == ""


def test_workers_change_nothing(joint_tokenizer):
    rows = Dataset.from_list([{"en": f"two dogs {i}", "de": f"zwei Hunde {i}" * (i % 3 + 1)} for i in range(50)])
    pairs = take_pairs(rows, "en", "de")
    alone, several = (tokenize_pairs(pairs, joint_tokenizer, 9, 9, "train", workers) for workers in (1, 3))
    assert several[:] == alone[:]
    texts = Dataset.from_dict({"text": TEXTS * 620})  # blocks of 1,000 are packed by themselves
    alone, several = (pack_texts(texts, CHARS, 8, num_proc=workers) for workers in (1, 3))
    assert several[:] == alone[:]


TEXTS = ["abc", "de", "a", "bcdefgh" * 3, "cc"]
CHARS = train_tokenizer(TEXTS, "char", 40)


def packed_rows(texts, tokenizer, block_size, attend_across_texts=False, packing=True):
    """The collator's batch of all rows, as a list of rows."""
    rows = pack_texts(Dataset.from_dict(texts), tokenizer, block_size, packing=packing)
    collate = PackedTextsCollator(tokenizer, block_size if packing else None, attend_across_texts)
    batch = collate(rows.to_list())
    return [{name: tensor[i].tolist() for name, tensor in batch.items()} for i in range(len(rows))]


@settings(max_examples=60)
@given(
    texts=st.lists(st.sampled_from(TEXTS), min_size=1, max_size=9),
    block_size=st.integers(2, 12),
    packing=st.booleans(),
)
def test_every_token_is_predicted_once(texts, block_size, packing):
    expected = [token for text in texts for token in [*CHARS(text)["input_ids"][1:], CHARS.eos_token_id]]
    targets, stream = [], []
    rows = packed_rows({"text": texts}, CHARS, block_size, packing=packing)
    assert len({len(row["input_ids"]) for row in rows}) == 1
    for row in rows:
        assert len(row["input_ids"]) == len(row["labels"]) == len(row["position_ids"]) <= block_size
        assert max(row["position_ids"]) < block_size
        targets += [label for label in row["labels"][1:] if label != -100]
        kept = row["input_ids"] if not stream else row["input_ids"][1:]
        stream += [token for token in kept if token != CHARS.pad_token_id]
    assert targets == expected
    if packing:
        assert len(stream) == len(expected) + len(texts)


def test_packed_positions_start_again_with_each_text():
    (row,) = packed_rows({"text": ["abc", "de"]}, CHARS, 12)
    assert row["position_ids"] == [0, 1, 2, 3, 4, 0, 1, 2, 3, 0, 0, 0]
    assert [label == -100 for label in row["labels"]] == [True, *[False] * 4, True, *[False] * 3, *[True] * 3]
    (plain,) = packed_rows({"text": ["abc", "de"]}, CHARS, 12, attend_across_texts=True)
    assert "position_ids" not in plain
    assert plain["labels"][1:9] == plain["input_ids"][1:9]


def test_without_packing_each_text_begins_a_row():
    rows = pack_texts(Dataset.from_dict({"text": ["abc", "de", "abcde"]}), CHARS, 5, packing=False)
    bos, eos, pad = CHARS.bos_token_id, CHARS.eos_token_id, CHARS.pad_token_id
    a, b, c, d, e = CHARS("abcde", add_special_tokens=False)["input_ids"]
    assert rows["input_ids"][:] == [[bos, a, b, c, eos], [bos, d, e, eos], [bos, a, b, c, d], [d, e, eos]]
    batch = PackedTextsCollator(CHARS, None, attend_across_texts=True)([rows[3], rows[1]])
    assert batch["input_ids"].tolist() == [[d, e, eos, pad], [bos, d, e, eos]]
    assert batch["labels"].tolist() == [[-100, e, eos, -100], [-100, d, e, eos]]
    assert "position_ids" not in batch


@pytest.mark.parametrize("attend_across_texts", [False, True])
def test_prompts_are_read_and_not_predicted(attend_across_texts):
    rows = Dataset.from_dict({"question": ["ab", "d"], "reply": ["c", "ea"]})
    texts = take_texts(rows, "reply", prompt_column="question")
    assert texts["text"][:] == ["abc", "dea"]
    (row,) = packed_rows(texts[:], CHARS, 12, attend_across_texts)
    bos, eos, pad = CHARS.bos_token_id, CHARS.eos_token_id, CHARS.pad_token_id
    a, b, c, d, e = CHARS("abcde", add_special_tokens=False)["input_ids"]
    assert row["input_ids"] == [bos, a, b, c, eos, bos, d, e, a, eos, pad, pad]
    assert row["labels"] == [-100, -100, -100, c, eos, -100, -100, e, a, eos, -100, -100]
    with pytest.raises(ValueError, match="`prompt_column` is 'q', but the columns of the data are question, reply"):
        take_texts(rows, "reply", prompt_column="q")


@settings(max_examples=100)
@given(
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=80),
    max_tokens=st.integers(30, 200),
    processes=st.integers(1, 4),
    limit=st.none() | st.integers(30, 60),
)
def test_token_budget_batches(lengths, max_tokens, processes, limit):
    sampler = TokenBudgetBatchSampler(lengths, max_tokens)
    updates = list(sampler)
    assert sorted(row for update in updates for row in update) == list(range(len(lengths)))
    assert all(update and len(update) * max(lengths[row] for row in update) <= max_tokens for update in updates)
    steps = sampler.share(processes, limit)
    parts, count = list(sampler), processes * steps
    assert len(parts) == len(sampler) == count * len(updates)
    for i, update in enumerate(updates):  # the same rows, dealt to the processes
        dealt = parts[i * count : (i + 1) * count]
        assert sorted(row for part in dealt for row in part) == sorted(update)
        assert max(map(len, dealt)) - min(map(len, dealt)) <= 1
        assert all(len(part) * max(lengths[row] for row in part) <= (limit or max_tokens) for part in dealt if part)


def test_updates_of_padded_tokens_count_the_padding():
    sampler = TokenBudgetBatchSampler([1, 8, 9, 3, 16, 20], 32, pad_to_multiple_of=8)
    updates = sorted(sorted(update) for update in sampler)
    assert updates == [[0, 1, 3], [2, 4], [5]]  # of 8, 16 and 24 tokens per row
    assert [sampler.share(processes, 24) for processes in (1, 2, 3)] == [2, 1, 1]
    with pytest.raises(ValueError, match="the longest row has 24 tokens"):
        TokenBudgetBatchSampler([20], 23, pad_to_multiple_of=8)


def test_updates_of_tokens_are_as_full_as_can_be():
    # two rows of length 3 fit into 8 tokens, three do not
    assert TokenBudgetBatchSampler([3, 3, 3, 4, 4], 8).update_sizes().tolist() == [2, 2, 1]
    assert TokenBudgetBatchSampler([4] * 11, 20).update_sizes().tolist() == [5, 5, 1]


@settings(max_examples=60)
@given(
    rows=st.integers(1, 50),
    size=st.integers(1, 12),
    steps=st.integers(1, 4),
    processes=st.integers(1, 3),
    drop_last=st.booleans(),
    epoch=st.integers(0, 2),
    is_grouped=st.booleans(),
)
def test_updates_of_rows(rows, size, steps, processes, drop_last, epoch, is_grouped):
    def make(parts, process=0, processes=1):
        order = LengthGroupedSampler(size, lengths=list(range(rows))) if is_grouped else RandomSampler(range(rows))
        sampler = RowBatchSampler(order, size, parts, drop_last, seed=3)
        sampler.process_index, sampler.num_processes = process, processes
        sampler.set_epoch(epoch)
        return sampler

    updates = list(make(1))
    samplers = [make(steps * processes, process, processes) for process in range(processes)]
    dealt = [list(sampler) for sampler in samplers]
    used = [min(steps, -(-len(update) // processes)) for update in updates]  # steps in which a process has a row
    assert [len(parts) for parts in dealt] == [len(sampler) for sampler in samplers] == [sum(used)] * processes
    for update, count in zip(updates, used, strict=True):
        parts = [parts.pop(0) for parts in dealt for _ in range(count)]
        assert sorted(row for part in parts for row in part) == sorted(update)
    seen = [row for update in updates for row in update]
    assert len(set(seen)) == len(seen) == (rows // size * size if drop_last else rows)
    assert all(len(update) == size for update in updates[:-1])
    generator = torch.Generator().manual_seed(3 + epoch)
    if not is_grouped:
        assert seen == torch.randperm(rows, generator=generator).tolist()[: len(seen)]  # as stock on one process
    elif rows >= size:
        assert updates[0][0] == rows - 1  # the longest row


def test_updates_of_rows_grouped_by_length_are_in_random_order():
    """Trainer's own come by falling length."""
    grouped, generator = LengthGroupedSampler(4, lengths=list(range(400))), torch.Generator().manual_seed(3)
    updates = list(RowBatchSampler(grouped, 4, seed=3))
    grouped.generator = generator
    rows = list(grouped)
    stock = [rows[begin : begin + 4] for begin in range(0, 400, 4)]
    assert updates[0] == stock[0]
    assert updates != stock
    assert sorted(updates) == sorted(stock)
    falls = sum(max(following) < max(update) for update, following in pairwise(updates))
    assert 35 < falls < 65


def test_an_empty_part_has_no_labels():
    collate = EmptyPartCollator(PackedTextsCollator(CHARS, 8), [{"input_ids": [1, 5, 6, 2]}])
    assert (collate([{"input_ids": [1, 5, 2]}])["labels"] != -100).sum() == 2
    batch = collate([])
    assert batch["input_ids"].shape == (1, 8)
    assert (batch["labels"] == -100).all()


def test_token_budget_batches_are_shuffled_anew_each_epoch_and_the_same_again():
    sampler = TokenBudgetBatchSampler([3] * 50 + [9] * 50, 90)
    first = list(sampler)
    sampler.set_epoch(1)
    assert list(sampler) != first
    sampler.set_epoch(0)
    assert list(sampler) == first


def test_a_row_over_the_budget_is_named():
    with pytest.raises(ValueError, match="`max_tokens_per_batch` is 20, but the longest row has 21"):
        TokenBudgetBatchSampler([3, 21], 80, 4, 20)
    with pytest.raises(ValueError, match="`max_tokens_per_batch` is 20, but the longest row has 21"):
        TokenBudgetBatchSampler([3, 21], 80).share(1, 20)


def test_texts_end_with_berts_separator_where_there_is_no_end_token(bert_tokenizer):
    assert (bert_tokenizer.bos_token_id, bert_tokenizer.eos_token_id) == (None, None)
    texts = ["a cat sat.", "then it ran away!"]
    (row,) = packed_rows({"text": texts}, bert_tokenizer, 40)
    ids = [token for text in texts for token in bert_tokenizer(text)["input_ids"]]
    assert row["input_ids"][: len(ids)] == ids  # one [SEP] per text, not two
    assert set(row["input_ids"][len(ids) :]) == {bert_tokenizer.pad_token_id}
    assert (ids.count(bert_tokenizer.sep_token_id), ids.count(bert_tokenizer.cls_token_id)) == (2, 2)
    (split,) = TextPacker(bert_tokenizer, 40, packing=False, overlap=0)({"text": texts[:1]})["input_ids"].to_pylist()
    assert split == bert_tokenizer(texts[0])["input_ids"]


@pytest.mark.parametrize("attend_across_texts", [False, True])
def test_without_a_padding_token_the_end_token_fills_rows_up(attend_across_texts):
    tokenizer = train_tokenizer(TEXTS, "char", 40)
    tokenizer.pad_token = None
    ours, padded = (packed_rows({"text": TEXTS}, each, 12, attend_across_texts) for each in (tokenizer, CHARS))
    for row, expected in zip(ours, padded, strict=True):
        pads = [i for i, token in enumerate(expected["input_ids"]) if token == CHARS.pad_token_id]
        assert all(row["input_ids"][i] == tokenizer.eos_token_id for i in pads)
        assert row["labels"] == expected["labels"]
        assert row.get("position_ids") == expected.get("position_ids")


def test_evaluation_counts_berts_separator_as_the_end(bert_tokenizer):
    model = make_gpt(vocab_size=len(bert_tokenizer))
    ids = torch.tensor([bert_tokenizer("a cat sat.")["input_ids"]])
    result = evaluate_language_model(model, bert_tokenizer, ["a cat sat."])
    assert result["tokens"] == ids.shape[1] - 1
    assert result["loss"] == pytest.approx(model(ids, labels=ids).loss.item(), rel=1e-5)
    args = ModelArguments(config_overrides="{}")
    fields = GPT | {"vocab_size": len(bert_tokenizer)}
    config = choose_model(type(model), None, args, fields, bert_tokenizer).config
    assert config.eos_token_id == GPT["eos_token_id"]
    fields = {name: value for name, value in fields.items() if not name.endswith("_token_id")}
    config = choose_model(type(model), None, args, fields, bert_tokenizer).config
    assert (config.eos_token_id, config.pad_token_id) == (bert_tokenizer.sep_token_id, bert_tokenizer.pad_token_id)
