"""The scripts as users run them, from data to a model that is evaluated."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, Seq2SeqTrainingArguments, TrainingArguments

from hf_scratch import ScratchGPTConfig, ScratchTransformerConfig
from hf_scratch.evaluation.language_modeling import evaluate_language_model
from hf_scratch.tokenization import train_tokenizer
from hf_scratch.training.arguments import LanguageModelArguments, ModelArguments, TranslationArguments
from hf_scratch.training.command_line import parse_arguments, read_model_fields

PAIRS = [{"en": f"{a} {b}", "de": f"{b}, {a}"} for a in ("one", "two", "six", "ten") for b in ("dog", "cat", "fox")]
STORIES = [{"text": f"A {a} saw a {b}. The {b} ran."} for a in ("dog", "cat", "fox") for b in ("hen", "man", "cow")]
TINY_TRANSFORMER = "d_model=16,encoder_layers=1,decoder_layers=1,encoder_attention_heads=2,decoder_attention_heads=2"
TINY_GPT = "hidden_size=16,num_hidden_layers=1,num_attention_heads=2"


TRANSLATE = {"source_lang": "en", "target_lang": "de", "num_beams": 2}
PAIRED = TRANSLATE | {"vocab_size": 300, "max_source_length": 20, "max_target_length": 20,
                      "config_overrides": TINY_TRANSFORMER}  # fmt: skip
PACKED = {"tokenizer_kind": "char", "block_size": 24, "config_overrides": TINY_GPT}
# `--multi_gpu` makes accelerate start several processes; the option `use_cpu` keeps them off the GPUs
LAUNCHER = ("-m", "accelerate.commands.launch", "--multi_gpu", "--num_machines", "1", "--mixed_precision", "no",
            "--dynamo_backend", "no", "--main_process_port", "0", "--num_processes")  # fmt: skip


def flags(options: dict) -> list[str]:
    given = {name: value for name, value in options.items() if value is not None}
    return [str(word) for name, value in given.items() for word in (f"--{name}", value)]


def run(script, *args, check=True, launcher=()):
    command = [sys.executable, *launcher, str(ROOT / "scripts" / script), *map(str, args)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    if check:
        assert done.returncode == 0, done.stderr[-3000:]
    return done


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def write_splits(folder, **splits):
    folder.mkdir(exist_ok=True)
    for name, rows in splits.items():
        write(folder / f"{name}.jsonl", rows)
    return folder


def read_json(path):
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.fixture
def translation(tmp_path):
    """The options of a training that takes a second."""
    data = write_splits(tmp_path / "pairs", train=PAIRS, val=PAIRS, test=PAIRS)
    options = PAIRED | {
        "dataset_name": data, "output_dir": tmp_path / "run", "pad_vocab_to_multiple_of": 64,
        "max_tokens_per_batch": 60, "warmup_steps": 2, "max_steps": 4, "save_steps": 2, "eval_steps": 2,
        "logging_steps": 1, "average_checkpoints": 2, "use_cpu": "true",
    }  # fmt: skip
    return ["multi30k_tiny", *flags(options)]


def test_two_processes_train_a_translator_that_one_resumes_and_evaluates(translation, run_here, tmp_path):
    run("train_translation.py", *translation, launcher=(*LAUNCHER, "2"))
    out = tmp_path / "run"
    assert "2 x" in (out / "README.md").read_text(encoding="utf-8")
    for name in (
        "model.safetensors", "tokenizer.json", "tokenizer_config.json", "learning_curve.png", "README.md",
        "checkpoint-4",
    ):  # fmt: skip
        assert (out / name).exists(), name
    config, generation = read_json(out / "config.json"), read_json(out / "generation_config.json")
    assert (config["source_lang"], config["target_lang"], config["vocab_size"]) == ("en", "de", 320)
    assert (generation["num_beams"], generation["max_length"]) == (2, 20)
    assert "top_k" not in generation  # no defaults written out
    logged = read_json(out / "trainer_state.json")["log_history"]
    assert {"loss", "learning_rate", "train_tokens_per_second"} <= logged[1].keys()
    assert any("eval_bleu" in entry for entry in logged)

    again = run_here("train_translation", *translation, check=False)
    assert again.returncode != 0
    assert "is not empty: another run may be in it" in again.stderr.splitlines()[-1]
    run_here("train_translation", *translation, "--resume_from_checkpoint", "last", "--max_steps", 6)
    assert read_json(out / "trainer_state.json")["global_step"] == 6

    figures, hypotheses = tmp_path / "figures.json", tmp_path / "hypotheses.txt"
    test_file = write(tmp_path / "other.jsonl", [{"translation": pair} for pair in PAIRS])
    options = TRANSLATE | {"model": out, "test_file": test_file, "json": figures, "output_file": hypotheses}
    run_here("evaluate_translation", *flags(options))
    result, test = read_json(figures), read_json(out / "test_results.json")
    assert {"bleu", "bleu_signature", "bleu_lc", "chrf", "sentences", "seconds"} <= result.keys()
    assert result["sentences"] == len(PAIRS) == len(hypotheses.read_text(encoding="utf-8").splitlines())
    for metric in ("bleu", "chrf"):
        assert result[metric] == pytest.approx(test[metric])


@pytest.mark.slow
def test_a_translator_of_two_word_vocabularies_is_trained_resumed_and_evaluated(translation, run_here, tmp_path):
    words, out = (*translation, "--tokenizer_kind", "word", "--min_frequency", 2), tmp_path / "run"
    run_here("train_translation", *words)
    config = read_json(out / "config.json")
    # 11 and 12: the words, the specials, and a comma
    assert (config["vocab_size"], config["decoder_vocab_size"]) == (64, 64)
    run_here("train_translation", *words, "--resume_from_checkpoint", "last", "--max_steps", 6)
    options = {"model": out, "test_file": tmp_path / "pairs" / "test.jsonl", "json": tmp_path / "figures.json"}
    run_here("evaluate_translation", *flags(TRANSLATE | options))
    result, test = read_json(tmp_path / "figures.json"), read_json(out / "test_results.json")
    assert result["chrf"] == pytest.approx(test["chrf"])


def test_a_training_whose_loss_is_nan_ends_without_a_card(translation, run_here, tmp_path):
    done = run_here("train_translation", *translation, "--learning_rate", "1e30", check=False)
    assert done.returncode == 1
    assert re.search(r"error: The loss is nan at step \d; the last finite one was .* at step \d\.", done.stderr)
    assert not {"README.md", "model.safetensors"} & {path.name for path in (tmp_path / "run").iterdir()}


def test_a_training_goes_on_from_a_model_and_changes_its_config(translation, run_here, tmp_path):
    first, second = tmp_path / "run", tmp_path / "second"
    run_here("train_translation", *translation, "--max_steps", 1)
    options = PAIRED | {
        "dataset_name": tmp_path / "pairs", "output_dir": second, "config_overrides": "dropout=0.25", "max_steps": 2,
        "save_steps": 1, "average_checkpoints": 1, "max_tokens_per_batch": 60, "use_cpu": "true",
        "teacher_models": first, "model_name_or_path": first, "vocab_size": None,
    }  # fmt: skip
    run_here("train_translation", "multi30k_tiny_rdrop", *flags(options))
    assert "It has learnt from `run` as well." in (second / "README.md").read_text("utf-8")
    before, config = read_json(first / "config.json"), read_json(second / "config.json")
    assert (before["dropout"], config["dropout"], config["d_model"]) == (0.3, 0.25, 16)
    assert read_json(second / "tokenizer.json") == read_json(first / "tokenizer.json")


def test_train_and_evaluate_a_language_model(run_here, tmp_path):
    train, validation = write(tmp_path / "a.jsonl", STORIES), write(tmp_path / "b.jsonl", STORIES[:3])
    out, figures, student = tmp_path / "run", tmp_path / "figures.json", tmp_path / "student"
    options = {
        "train_file": train, "config_overrides": TINY_GPT, "block_size": 24, "use_cpu": "true", "bf16": "true",
    }  # fmt: skip
    trained = {"output_dir": out, "validation_file": validation, "num_train_epochs": 1}
    run_here("train_language_model", "tinystories_char", *flags(options | trained))
    assert all((out / name).exists() for name in ("model.safetensors", "tokenizer.json", "learning_curve.png"))
    run_here("evaluate_language_model", *flags({"model": out, "test_file": validation, "json": figures}))
    result = read_json(figures)
    assert {"loss", "perplexity", "bits_per_byte", "tokens", "seconds"} == result.keys()
    assert result["tokens"] == sum(len(story["text"]) + 1 for story in STORIES[:3])
    assert result["bits_per_byte"] == pytest.approx(read_json(out / "validation_results.json")["bits_per_byte"])

    taught = {
        "output_dir": student, "teacher_models": out, "tokenizer_name": out, "distillation_alpha": 1, "max_steps": 2,
        "logging_steps": 1,
    }  # fmt: skip
    run_here("train_language_model", *flags(options | taught))
    assert 0 < read_json(student / "trainer_state.json")["log_history"][0]["loss"] < 10


@pytest.mark.slow
def test_the_demo_ends_in_its_figures(tmp_path):
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "demo.py"), "--output_dir", str(tmp_path / "demo")],
        capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    last = done.stdout.strip().splitlines()[-1]
    exact_match, output = re.fullmatch(r"demo: exact_match=(\d\.\d\d) output=(.+)", last).groups()
    assert float(exact_match) >= 0.95
    assert output == str(tmp_path / "demo")
    for picture in re.findall(r"^  (.+\.png)$", done.stdout, re.M):
        assert Path(picture).is_file()


def test_a_stock_gpt2_is_trained_and_scored_as_ours_are(run_here, tmp_path):
    texts = [f"Ben has {n} red balls. He gives one to Mia." for n in range(60)]
    out, further, rows = tmp_path / "out", tmp_path / "further", [{"text": text} for text in texts]
    data = write_splits(tmp_path / "data", train=rows, validation=rows)
    train_tokenizer(texts, "bpe", 300, 32, add_eos=False, show_progress=False).save_pretrained(tmp_path / "tokenizer")
    options = {
        "dataset_name": data, "block_size": 32, "config_overrides": "n_embd=16,n_layer=1,n_head=2", "use_cpu": "true",
        "tokenizer_name": tmp_path / "tokenizer", "num_train_epochs": 2,
    }  # fmt: skip
    run_here("train_stock_gpt2", "stock_gpt2", *flags(options | {"output_dir": out}))
    model, tokenizer = AutoModelForCausalLM.from_pretrained(out), AutoTokenizer.from_pretrained(out)
    assert type(model).__name__ == "GPT2LMHeadModel"
    record = read_json(out / "run.json")
    assert record["input_tokens"] >= 2 * sum(map(len, tokenizer(texts)["input_ids"]))  # of two epochs
    expected = evaluate_language_model(model, tokenizer, texts)
    assert record["metrics"]["validation"]["bits_per_byte"] == pytest.approx(expected["bits_per_byte"], rel=1e-5)
    options |= {"model_name_or_path": out, "learning_rate": 0, "output_dir": further}
    run_here("train_stock_gpt2", "stock_gpt2", *flags(options))
    after = AutoModelForCausalLM.from_pretrained(further).state_dict()
    assert all(weights.equal(after[name]) for name, weights in model.state_dict().items())
    words = ("--dataset_name", data, "--output_dir", tmp_path / "none")
    done = run_here("train_stock_gpt2", "stock_gpt2", *words, check=False)
    assert "`tokenizer_name` must be given" in done.stderr
    assert not (tmp_path / "none").exists()


def test_each_recipe_is_a_model_that_can_be_built():
    recipes = sorted((ROOT / "scripts" / "recipes").glob("*.yaml"))
    assert len(recipes) >= 6
    for recipe in recipes:
        data, training, config = LanguageModelArguments, TrainingArguments, ScratchGPTConfig
        if re.search("^max_source_length", recipe.read_text(encoding="utf-8"), re.M):
            data, training, config = TranslationArguments, Seq2SeqTrainingArguments, ScratchTransformerConfig
        words = [str(recipe), "--use_cpu", "true", "--dataset_name", "embedded:stories", "--output_dir", "x"]
        (model_args, _, args), name = parse_arguments(ModelArguments, data, training, args=words)
        config = GPT2Config if name == "stock_gpt2" else config
        config(**read_model_fields(model_args, config))
        assert (name, args.seed) == (recipe.stem, 1)


@pytest.mark.slow
def test_the_benchmark_prints_a_table_and_writes_its_figures(tmp_path):
    options = ["--rounds", 1, "--threads", 1, "--output_dir", tmp_path]
    done = run("benchmark/benchmark.py", "--only", "generate_gpt", *options)
    rows = re.findall(r"^\| `(\w+)`: .*? \| \*\*([\d.]+)\*\* \|", done.stdout, flags=re.M)
    figures = read_json(tmp_path / "benchmark.json")
    ((ours, peer),) = (row["measures"].values() for row in figures["rows"])
    assert rows == [("generate_gpt", f"{peer[0] / ours[0]:.2f}")]
