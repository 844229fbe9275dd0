"""Mistakes that users make: each ends a command with one clear line on stderr and status 2, before any training."""

import gzip
import shutil

import pytest
import torch
from conftest import make_gpt, make_transformer
from safetensors.torch import save_file
from test_scripts import PAIRS, write, write_splits

from hf_scratch.tokenization import train_tokenizer

TEXTS = [{"text": f"{pair['en']} and {pair['de']}"} for pair in PAIRS]
RECIPES = {
    "latin.yaml": ("seed: 1  # für".encode("latin-1"), "cannot be read"),
    "word.yaml": (b"learning_rate: fast", "--learning_rate"),
    "mapping.yaml": (b"seed: {a: 1}", "--seed"),
    "twice.yaml": (b"seed: 1\nseed: 2", "cannot be read"),
    "tag.yaml": (b"run_name: !!python/object/apply:os.system ['true']", "cannot be read"),
    "nothing.yaml": (b"", "must be a mapping"),
    "cut.json": (b'{"seed": 1', "cannot be read"),
}
DATA = {
    "latin.jsonl": ('{"text": "a"}\n{"text": "für"}\n'.encode("latin-1"), "save it as UTF-8"),
    "utf16.jsonl": ('{"text": "a"}\n'.encode("utf-16"), "write one JSON object on each line"),
    "table.jsonl": (b"text,source\na,b\n", "write one JSON object on each line"),
    "broken.jsonl": (b'{"text": "a"}\n{"text": "b\n', "write one JSON object on each line"),
    "number.jsonl": (b'{"text": "a"}\n{"text": 3}\n', "column 'text' holds Json"),
    "list.jsonl": (b'{"text": ["a"]}\n', "column 'text' holds List"),
    "bare.jsonl": (b'"a"\n"b"\n', "write one JSON object on each line"),
    "mixed.jsonl": (b'{"text": "a"}\n{"words": "b"}\n', "1 of 2 rows with no text in column 'text' (rows 1,"),
    "surrogate.jsonl": (b'{"text": "a"}\n{"text": "\\ud800"}\n', "surrogate"),
    "twice.jsonl": (b'{"text": "a", "text": "b"}\n', "twice"),
    "dates.jsonl": (b'{"text": "2024-01-01"}\n', "column 'text' holds Value('timestamp"),
    "spaces.jsonl": (b"\n\n", "no data"),
    "named.jsonl.gz": (b'{"text": "a"}\n', "named.jsonl.gz"),
    "empty.jsonl": (b"", "empty.jsonl"),
    "cut.jsonl.gz": (gzip.compress(b'{"text": "a"}\n' * 99)[:30], "cut.jsonl.gz"),
}


@pytest.fixture(scope="module")
def bad(tmp_path_factory):
    """A folder of good and bad files, folders and models."""
    folder = tmp_path_factory.mktemp("bad")
    for name, (content, _) in {**RECIPES, **DATA}.items():
        (folder / name).write_bytes(content)
    (folder / "none").mkdir()
    for name, rows in {"pairs": PAIRS, "texts": TEXTS}.items():
        write_splits(folder / name, train=rows, validation=rows, test=rows)
    shutil.copytree(folder / "texts", folder / "unlike")
    write(folder / "unlike" / "test.jsonl", [{"words": "a"}])
    write(folder / "long.jsonl", [*PAIRS[:3], {"en": "one " * 60, "de": "eins"}])

    tokenizer = train_tokenizer([text for row in PAIRS for text in row.values()], "joint", 300, 40, add_eos=True)
    other = train_tokenizer(["quick brown jumps over lazy"] * 9, "joint", 300, 40, add_eos=True)
    for name, model in {"translator": make_transformer(vocab_size=300), "gpt": make_gpt(vocab_size=300)}.items():
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    other.save_pretrained(folder / "other")
    cut = {"cut_tokenizer": "tokenizer.json", "cut_weights": "model.safetensors", "cut_config": "config.json"}
    for name, file in cut.items():
        shutil.copytree(folder / "translator", folder / name)
        content = (folder / name / file).read_bytes()
        (folder / name / file).write_bytes(content[: len(content) // 2])
    save_file({"weight": torch.zeros(1)}, folder / "foreign.safetensors")
    return folder


TRANSLATE = "train_translation --dataset_name {bad}/pairs --source_lang en --target_lang de --vocab_size 300 "
MODEL = "--dataset_name {bad}/texts --vocab_size 300 --block_size 16 "
WRITE = "train_language_model " + MODEL
TEST = "evaluate_translation --test_file {bad}/pairs/test.jsonl --source_lang en --target_lang de --model {bad}/"
SCORE = "evaluate_language_model --test_file {bad}/texts/test.jsonl --model {bad}/"
CONVERT = "convert_checkpoint --input {bad}/"
# the command line, and what its error must say
TABLE = [
    *((f"train_language_model {{bad}}/{name} {MODEL}", message) for name, (_, message) in RECIPES.items()),
    ("train_translation {bad}/missing.yaml", "missing.yaml"),
    *((f"train_language_model --train_file {{bad}}/{name}", message) for name, (_, message) in DATA.items()),
    ("train_language_model --train_file {bad}/missing.jsonl", "`train_file` ({bad}/missing.jsonl)"),
    ("train_language_model --train_file {bad}/none", "`train_file` ({bad}/none)"),
    ("train_language_model --dataset_name {bad}/unlike", "column names don't match"),
    ("train_language_model --dataset_name {bad}/none", "`dataset_name` ({bad}/none)"),
    ("train_language_model --dataset_name {bad}/texts/test.jsonl", "is a file. Give it as `--train_file`"),
    ("train_language_model --dataset_name {bad}/nowhere", "`dataset_name` is '{bad}/nowhere'"),
    # flags
    (WRITE + "--learning_rate fast", "invalid float value: 'fast'"),
    (WRITE + "--block_size 64 --config_overrides max_position_embeddings=32", "`block_size` is 64"),
    (WRITE + "--config_overrides hidden_size=wide", "hidden_size"),
    (WRITE + "--config_overrides hiden_size=8", "hiden_size"),
    (WRITE + "--attn_implementation quick", "quick"),
    (WRITE + "--tokenizer_name {bad}/none", "holds no tokenizer"),
    (WRITE + "--model_name_or_path {bad}/translator", "which AutoModelForCausalLM does not load"),
    (WRITE + "--teacher_models ./nothing", "'./nothing' is not a folder."),
    ("train_stock_gpt2 --tokenizer_name {bad}/gpt --streaming true " + MODEL, "`streaming`"),
    (TRANSLATE + "--teacher_models {bad}/translator --tokenizer_name {bad}/other", "another vocabulary"),
    (TRANSLATE + "--global_batch_size 8 --max_tokens_per_update 90", "do not go together"),
    (TRANSLATE + "--max_tokens_per_update 2", "`max_tokens_per_update` is 2, but the longest row has"),
    (TRANSLATE + "--source_lang fr", "`source_lang` is 'fr', but the columns"),
    ("train_translation --dataset_name {bad}/pairs --target_lang de", "Set `--source_lang`"),
    (TRANSLATE + "--config_overrides max_position_embeddings=2", "are longer than the model's 2 positions"),
    (TRANSLATE + "--model_name_or_path {bad}/translator --tokenizer_name {bad}/other", "has another vocabulary"),
    (TRANSLATE + "--model_name_or_path {bad}/translator --config_overrides d_model=64", "cannot be loaded"),
    (TRANSLATE + "--model_name_or_path ./nothing", "'./nothing' is not a folder."),
    (TRANSLATE + "--model_name_or_path {bad}/cut_tokenizer", "cut_tokenizer"),
    (TRANSLATE + "--model_name_or_path {bad}/cut_config", "cut_config"),
    (
        "train_translation --source_lang en --target_lang de --vocab_size 300 --train_file {bad}/pairs/train.jsonl "
        "--test_file {bad}/long.jsonl --config_overrides max_position_embeddings=40",
        "1 of 4 sources of {bad}/long.jsonl are longer than the model's 40 positions",
    ),
    # evaluation
    (TEST + "missing", "is not a folder"),
    (TEST + "gpt", "Give another model: '{bad}/gpt' is a scratch_gpt, which AutoModelForSeq2SeqLM does not load"),
    (TEST + "cut_tokenizer", "cut_tokenizer"),
    (TEST + "cut_weights", "cut_weights"),
    (TEST + "translator --json {bad}/nowhere/a.json", "{bad}/nowhere/a.json"),
    (TEST + "translator --device moon", "'moon'"),
    (TEST + "translator --test_file {bad}/long.jsonl", "Input 3 has 62 tokens"),
    (SCORE + "gpt --text_column words", "`text_column` is 'words'"),
    (SCORE + "gpt --block_size 99", "40 positions"),
    # conversion
    (CONVERT + "foreign.safetensors --source gpt3", "'gpt3'"),
    (CONVERT + "cut_weights --target marian", "cut_weights"),
    (CONVERT + "none --target gpt2", "none"),
]


def words_of(line: str, bad, out) -> list[str]:
    name, *words = line.format(bad=bad).split()
    return [name, *words, *([] if name.startswith("evaluate") else ["--output_dir", str(out)])]


@pytest.mark.parametrize(("line", "message"), TABLE, ids=range(len(TABLE)))
def test_a_mistake_is_one_line_and_leaves_nothing_behind(line, message, run_here, bad, tmp_path):
    ended = run_here(*words_of(line, bad, tmp_path / "run"), check=False)
    assert ended.returncode == 2, ended.stderr
    *_, last = ended.stderr.splitlines()
    assert last.startswith(f"{line.split()[0]}.py: error: ")
    assert message.format(bad=bad) in last
    assert ended.stderr.count(".py: error:") == 1
    assert "Traceback" not in ended.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("line", [TEST + "translator --num_beams 1", SCORE + "gpt"])
def test_figures_are_printed_though_their_file_cannot_be_written(line, run_here, bad):
    ended = run_here(*words_of(line + " --json /dev/full", bad, None), check=False)
    assert ended.returncode == 2
    assert '"seconds"' in ended.stdout
