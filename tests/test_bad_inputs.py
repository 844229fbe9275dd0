"""Mistakes that users make: each ends a command with one clear line on stderr and status 2, before any training."""

import gzip
import json
import shutil
import subprocess
import sys

import pytest
import torch
from conftest import ROOT, load_script, make_gpt, make_transformer
from datasets import disable_progress_bars, enable_progress_bars
from safetensors.torch import save_file

from hf_scratch.tokenization import train_tokenizer

PAIRS = [{"en": f"{a} {b}", "de": f"{b}, {a}"} for a in ("one", "two", "six", "ten") for b in ("dog", "cat", "fox")]
TEXTS = [{"text": f"{pair['en']} and {pair['de']}"} for pair in PAIRS]
RECIPES = {
    "word.yaml": b"learning_rate: fast",
    "tag.yaml": b"run_name: !!python/object/apply:os.system ['true']",
    "nothing.yaml": b"",
    "key.yaml": b"sead: 1",
    "cut.json": b'{"seed": 1',
}
DATA = {
    "latin.jsonl": '{"text": "a"}\n{"text": "für"}\n'.encode("latin-1"),
    "utf16.jsonl": '{"text": "a"}\n'.encode("utf-16"),
    "table.jsonl": b"text,source\na,b\n",
    "broken.jsonl": b'{"text": "a"}\n{"text": "b\n',
    "number.jsonl": b'{"text": "a"}\n{"text": 3}\n',
    "list.jsonl": b'{"text": ["a"]}\n',
    "bare.jsonl": b'"a"\n"b"\n',
    "mixed.jsonl": b'{"text": "a"}\n{"words": "b"}\n',
    "surrogate.jsonl": b'{"text": "a"}\n{"text": "\\ud800"}\n',
    "twice.jsonl": b'{"text": "a", "text": "b"}\n',
    "dates.jsonl": b'{"text": "2024-01-01"}\n',
    "spaces.jsonl": b"\n\n",
    "null.jsonl": b"null\n",
    "null_later.jsonl": b'{"text": "a"}\nnull\n',
    "null.json": b'[null, {"text": "a"}]',
    "named.jsonl.gz": b'{"text": "a"}\n',
    "empty.jsonl": b"",
    "cut.jsonl.gz": gzip.compress(b'{"text": "a"}\n' * 99)[:30],
}


@pytest.fixture(scope="module")
def bad(tmp_path_factory):
    """A folder of good and bad files, folders and models."""
    folder = tmp_path_factory.mktemp("bad")
    for name, content in {**RECIPES, **DATA}.items():
        (folder / name).write_bytes(content)
    (folder / "folder.yaml").mkdir()
    (folder / "none").mkdir()
    for name, rows in {"pairs": PAIRS, "texts": TEXTS}.items():
        (folder / name).mkdir()
        for split in ("train", "validation", "test"):
            lines = "".join(json.dumps(row) + "\n" for row in rows)
            (folder / name / f"{split}.jsonl").write_text(lines, encoding="utf-8")
    shutil.copytree(folder / "texts", folder / "unlike")
    (folder / "unlike" / "test.jsonl").write_text('{"words": "a"}\n', encoding="utf-8")
    long = [*PAIRS[:3], {"en": "one " * 60, "de": "eins"}]
    (folder / "long.jsonl").write_text("".join(json.dumps(row) + "\n" for row in long), encoding="utf-8")

    tokenizer = train_tokenizer([text for row in PAIRS for text in row.values()], "joint", 300, 40, add_eos=True)
    other = train_tokenizer(["quick brown jumps over lazy"] * 9, "joint", 300, 40, add_eos=True)
    for name, model in {"translator": make_transformer(vocab_size=300), "gpt": make_gpt(vocab_size=300)}.items():
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    other.save_pretrained(folder / "other")
    for name, file in {
        "cut_tokenizer": "tokenizer.json",
        "cut_settings": "tokenizer_config.json",
        "cut_generation": "generation_config.json",
        "cut_weights": "model.safetensors",
        "cut_config": "config.json",
    }.items():
        shutil.copytree(folder / "translator", folder / name)
        content = (folder / name / file).read_bytes()
        (folder / name / file).write_bytes(content[: len(content) // 2])
    shutil.copytree(folder / "translator", folder / "no_tokenizer")
    (folder / "no_tokenizer" / "tokenizer.json").unlink()
    torch.save([1, 2], folder / "list.pt")
    (folder / "garbage.pt").write_bytes(b"not a checkpoint")
    save_file({"weight": torch.zeros(1)}, folder / "foreign.safetensors")
    return folder


TRANSLATE = "train_translation --dataset_name {bad}/pairs --source_lang en --target_lang de --vocab_size 300 "
MODEL = "--dataset_name {bad}/texts --vocab_size 300 --block_size 16 "
WRITE = "train_language_model " + MODEL
TEST = "evaluate_translation --test_file {bad}/pairs/test.jsonl --source_lang en --target_lang de --model {bad}/"
SCORE = "evaluate_language_model --test_file {bad}/texts/test.jsonl --model {bad}/"
MODEL_OF_GPT2 = "train_stock_gpt2 --tokenizer_name {bad}/gpt " + MODEL
CONVERT = "convert_checkpoint --input {bad}/"
# the command line, and what its error must say
TABLE = [
    # recipes
    ("train_language_model {bad}/word.yaml " + MODEL, "invalid float value: 'fast'"),
    ("train_language_model {bad}/tag.yaml " + MODEL, "could not determine a constructor for the tag"),
    ("train_language_model {bad}/nothing.yaml " + MODEL, "must be a mapping"),
    ("train_language_model {bad}/key.yaml " + MODEL, "Did you mean `seed`?"),
    ("train_language_model {bad}/cut.json " + MODEL, "cannot be read"),
    ("train_language_model {bad}/folder.yaml " + MODEL, "Is a directory"),
    ("train_translation {bad}/missing.yaml", "No such file or directory"),
    # flags
    (WRITE + "--learning_rate fast", "invalid float value: 'fast'"),
    (WRITE + "--global_batch_size 8 --gradient_accumulation_steps 2", "follows from the size of an update"),
    (WRITE + "--dataloader_drop_last true --global_batch_size 999", "an update has 999 rows, but there are"),
    (WRITE + "--early_stopping_patience 2", "`early_stopping_patience` is 2, which needs `load_best_model_at_end`"),
    (TRANSLATE + "--global_batch_size 8 --max_tokens_per_update 90", "do not go together. Leave one of them out"),
    (TRANSLATE + "--max_tokens_per_update 90 --gradient_accumulation_steps 2", "follows from the size of an update"),
    (TRANSLATE + "--max_tokens_per_update 2", "`max_tokens_per_update` is 2, but the longest row has"),
    (WRITE + "--answer_after =", "`answer_after` is '=', which is not in row 0"),
    (WRITE + "--answer_after and --block_size 5", "but the model has 5 positions. Raise `block_size`, or shorten"),
    (MODEL_OF_GPT2 + "--mlm_probability 0.2", "`mlm_probability` is not an option of this script"),
    (MODEL_OF_GPT2 + "--streaming true", "`streaming` is not an option of this script"),
    (MODEL_OF_GPT2 + "--r_drop_alpha 1", "`r_drop_alpha` is not an option of this script"),
    (SCORE + "gpt --mlm_probability 0.5 --answer_after =", "`mlm_probability` and `answer_after` do not go together"),
    (
        WRITE + "--block_size 64 --config_overrides max_position_embeddings=32",
        "`block_size` is 64, but the model has 32",
    ),
    (
        WRITE + "--config_overrides hidden_act=!!python/name:os.system",
        "must be JSON or a=1,b=2",
    ),
    (WRITE + "--config_overrides hidden_size=wide", "expected int, got str"),
    (WRITE + "--config_overrides hidden_dropout=2.0", "Value must be a probability"),
    (WRITE + "--attn_implementation quick", "quick"),
    (WRITE + "--seed -1", "Seed must be between 0"),
    (WRITE + "--tokenizer_name {bad}/none", "holds no tokenizer"),
    (WRITE + "--model_name_or_path {bad}/translator", "Unrecognized configuration class"),
    (WRITE + "--average_checkpoints 2 --save_strategy no", "`average_checkpoints` is 2, but the run keeps 0"),
    (TRANSLATE + "--average_checkpoints 2 --save_total_limit 1", "`average_checkpoints` is 2, but the run keeps 1"),
    (
        TRANSLATE + "--teacher_models {bad}/translator --tokenizer_name {bad}/other",
        "translator has another vocabulary",
    ),
    (WRITE + "--ema_decay 1", "`ema_decay` must be above 0 and below 1, got 1.0"),
    (
        WRITE + "--tokenizer_name {bad}/gpt --teacher_models {bad}/gpt --mlm_probability 0.2 "
        "--config_overrides is_causal=false",
        "gpt has `is_causal` True, and the model that learns has False",
    ),
    (WRITE + "--teacher_models ./nothing", "`teacher_models`: './nothing' is not a folder."),
    (WRITE + "--teacher_models {bad}/translator", "which AutoModelForCausalLM does not load"),
    (WRITE + "--distillation_alpha 0.7", "`distillation_alpha` is 0.7, but there are no `teacher_models`"),
    (WRITE + "--distillation_alpha 2", "`distillation_alpha` is 2.0, but there are no `teacher_models`"),
    (MODEL_OF_GPT2 + "--teacher_models x", "`teacher_models` is not an option of this script"),
    (TRANSLATE + "--source_lang fr", "`source_lang` is 'fr', but the columns"),
    (
        TRANSLATE + "--bpe_dropout 0.5 --config_overrides max_position_embeddings=100",
        "`max_source_length` and `max_target_length` are 128 and 128, but the model has 100 positions.",
    ),
    (
        TRANSLATE + "--config_overrides max_position_embeddings=2",
        "pairs of train are longer than the model's 2 positions",
    ),
    (
        TRANSLATE.replace(
            "--dataset_name {bad}/pairs", "--train_file {bad}/pairs/train.jsonl --test_file {bad}/long.jsonl"
        )
        + "--config_overrides max_position_embeddings=40",
        "1 of 4 sources of {bad}/long.jsonl are longer than the model's 40 positions (`max_position_embeddings`); the "
        "first is row 3",
    ),
    (TRANSLATE + "--model_name_or_path {bad}/translator --tokenizer_name {bad}/other", "has another vocabulary"),
    (TRANSLATE + "--model_name_or_path {bad}/translator --config_overrides d_model=64", "cannot be loaded"),
    (WRITE + "--logging_steps inf", "infinity"),
    (WRITE + "--dataloader_num_workers -1", "num_workers option should be non-negative"),
    (WRITE + "--dataloader_persistent_workers true", "persistent_workers option needs num_workers > 0"),
    (WRITE + '--accelerator_config {{"split":1}}', "unexpected keyword argument 'split'"),
    (TRANSLATE + "--eval_strategy epoch --metric_for_best_model bleu", "Others need `--predict_with_generate true`"),
    (TRANSLATE + "--model_name_or_path {bad}/cut_tokenizer", "tokenizer.json is not whole"),
    (TRANSLATE + "--model_name_or_path {bad}/cut_config", "config.json is not whole"),
    # data
    *(
        (f"train_language_model --train_file {{bad}}/{name} --vocab_size 300", message)
        for name, message in {
            "latin.jsonl": "line 2 is not UTF-8 text (byte 11 of it). Save the file as UTF-8",
            "utf16.jsonl": "it is UTF-16 text",
            "table.jsonl": "line 1 is not one JSON object: 'text,source'",
            "broken.jsonl": "line 2 is not one JSON object",
            "number.jsonl": "row 1, counted from 0, has no text, but int (3), in column 'text'",
            "list.jsonl": "no text, but list",
            "bare.jsonl": "line 1 is not a JSON object",
            "mixed.jsonl": "1 of 2 rows with no text in column 'text' (rows 1",
            "surrogate.jsonl": "line 2 has half of a surrogate pair",
            "twice.jsonl": "'text' is given twice",
            "dates.jsonl": "was read as timestamp",
            "spaces.jsonl": "it has no rows",
            "null.jsonl": "line 1 is not a JSON object",
            "null_later.jsonl": "line 2 is not a JSON object",
            "null.json": "row 0, counted from 0, is not an object",
            "named.jsonl.gz": "named.jsonl.gz): Not a gzipped file",
            "empty.jsonl": "is empty",
            "cut.jsonl.gz": "cannot be read",
            "missing.jsonl": "there is no such file",
            "none": "which is a folder",
        }.items()
    ),
    (
        "train_language_model --train_file {bad}/texts/train.jsonl --validation_file {bad}/dates.jsonl",
        "was read as timestamp",
    ),
    ("train_language_model --dataset_name {bad}/unlike", "The files have different columns: test.jsonl has words"),
    ("train_language_model --dataset_name {bad}/none", "doesn't contain any data files"),
    # evaluation
    (TEST + "missing", "is not a folder"),
    (TEST + "gpt", "Unrecognized configuration class"),
    (TEST + "cut_tokenizer", "tokenizer.json is not whole"),
    (TEST + "cut_settings", "tokenizer_config.json is not whole"),
    (TEST + "cut_generation", "generation_config.json is not whole"),
    (TEST + "cut_weights", "cut short or damaged"),
    (TEST + "no_tokenizer", "holds no tokenizer"),
    (TEST + "translator --num_beams 0", "`num_beams` must be 1 or more"),
    (TEST + "translator --json {bad}/nowhere/a.json", "there is no folder for it"),
    (TEST + "translator --length_penalty 1e9", "`length_penalty`"),
    (TEST + "translator --device meta", "`device` is 'meta'"),
    (
        MODEL_OF_GPT2 + "--early_stopping_patience 1",
        "`early_stopping_patience` is 1, which needs",
    ),
    (TEST + "translator --device moon", "`device` is 'moon'"),
    (TEST + "translator --dtype int8", "`dtype` must be one of float32, bfloat16, float16"),
    (TEST + "translator --test_file {bad}/long.jsonl", "tokens, but `max_position_embeddings` of this model is"),
    (SCORE + "gpt --text_column words", "`text_column` is 'words'"),
    (SCORE + "gpt --block_size 99", "at most the model's 40 positions; got 49 and 99"),
    (SCORE + "gpt --stride 40", "`stride` must be less than `block_size`"),
    (SCORE + "gpt --answer_after =", "is not in row 0"),
    # conversion
    (CONVERT + "garbage.pt --source gpt-playground", "garbage.pt"),
    (CONVERT + "list.pt --source gpt-playground", "holds no state dict"),
    (CONVERT + "foreign.safetensors --source gpt-playground --hyperparameters n_layer", "must be JSON or a=1,b=2"),
    (CONVERT + "foreign.safetensors --source gpt3", "invalid choice: 'gpt3'"),
    (CONVERT + "cut_weights --target marian", "model.safetensors"),
    (CONVERT + "none --target gpt2", "holds no model"),
    (CONVERT + "cut_generation --target marian", "generation_config.json is not whole"),
]


@pytest.fixture(scope="module")
def scripts():
    disable_progress_bars()
    yield {name: load_script(name) for name in dict.fromkeys(line.split()[0] for line, _ in TABLE)}
    enable_progress_bars()


def words_of(line: str, bad, out) -> list[str]:
    name, *words = line.format(bad=bad).split()
    if not name.startswith("evaluate"):
        words += ["--output_dir", str(out)]
    return [str(ROOT / "scripts" / f"{name}.py"), *words]


@pytest.mark.parametrize(("line", "message"), TABLE, ids=range(len(TABLE)))
def test_a_mistake_is_one_line_and_leaves_nothing_behind(line, message, scripts, bad, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", words_of(line, bad, tmp_path / "run"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)  # no waiting for a network
    for name in ("ACCELERATE_DYNAMO_BACKEND", "ACCELERATE_DYNAMO_MODE"):
        monkeypatch.setenv(name, "no")  # restored at the end: `torch_compile` of TrainingArguments sets them
    with pytest.raises(SystemExit) as ended:
        scripts[line.split()[0]].main()
    stderr = capsys.readouterr().err
    assert ended.value.code == 2, stderr
    *_, last = stderr.splitlines()
    assert last.startswith(f"{line.split()[0]}.py: error: ")
    assert message.format(bad=bad) in last
    assert stderr.count("error:") == 1
    assert "Traceback" not in stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("line", [WRITE + "--learning_rate fast", TEST + "cut_tokenizer"])
def test_a_process_ends_so_too(line, bad, tmp_path):
    command = [sys.executable, *words_of(line, bad, tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    lines = [line for line in done.stderr.splitlines() if line and "Loading weights" not in line]
    assert len(lines) <= 2
    assert "error: " in lines[-1]
    assert not (tmp_path / "run").exists()


def test_a_length_penalty_needs_beams_only_where_it_is_used(scripts, bad, tmp_path, monkeypatch):
    options = "--num_beams 1 --length_penalty 0.6 --max_steps 1 --save_steps 1 --use_cpu true --report_to none"
    sizes = "d_model=16,encoder_layers=1,decoder_layers=1,encoder_attention_heads=2,decoder_attention_heads=2"
    line = f"{TRANSLATE}{options} --config_overrides {sizes}"
    monkeypatch.setattr(sys, "argv", words_of(line, bad, tmp_path / "run"))
    scripts["train_translation"].main()
    assert (tmp_path / "run" / "test_translations.txt").is_file()


@pytest.mark.parametrize("script", ["evaluate_translation", "evaluate_language_model"])
def test_figures_are_printed_though_their_file_cannot_be_written(script, scripts, bad, monkeypatch, capsys):
    line = TEST + "translator --num_beams 1" if script == "evaluate_translation" else SCORE + "gpt"
    monkeypatch.setattr(sys, "argv", words_of(line + " --json /dev/full", bad, None))
    with pytest.raises((SystemExit, OSError)):
        scripts[script].main()
    assert '"seconds"' in capsys.readouterr().out
