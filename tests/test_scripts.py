"""The scripts as users run them: each in a process of its own once, and then in this one."""

import json
import re
import subprocess
import sys
from functools import partial
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


def run(script, *args, check=True, launcher=()):
    command = [sys.executable, *launcher, str(ROOT / "scripts" / script), *map(str, args)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    if check:
        assert done.returncode == 0, done.stderr[-3000:]
    return done


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture
def pairs(tmp_path):
    folder = tmp_path / "pairs"
    folder.mkdir()
    for split in ("train", "val", "test"):
        write(folder / f"{split}.jsonl", PAIRS)
    return folder


@pytest.fixture
def translation(pairs, tmp_path):
    """A command line that trains for a second."""
    recipe = ROOT / "scripts" / "recipes" / "multi30k_tiny.yaml"
    options = {
        "dataset_name": pairs, "output_dir": tmp_path / "run", "vocab_size": 300, "config_overrides": TINY_TRANSFORMER,
        "pad_vocab_to_multiple_of": 64, "max_source_length": 20, "max_target_length": 20, "max_tokens_per_batch": 60,
        "warmup_steps": 2, "max_steps": 4, "save_steps": 2, "eval_steps": 2, "logging_steps": 1,
        "average_checkpoints": 2, "num_beams": 2, "use_cpu": "true",
    }  # fmt: skip
    return [
        "train_translation.py",
        recipe,
        *(str(word) for name, value in options.items() for word in (f"--{name}", value)),
    ]


def test_train_resume_and_evaluate_a_translator(translation, pairs, run_here, tmp_path):
    run(*translation)
    train_here = partial(run_here, "train_translation", *translation[1:])
    out = tmp_path / "run"
    for name in (
        "config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json",
        "trainer_state.json", "learning_curve.png", "README.md", "checkpoint-4",
    ):  # fmt: skip
        assert (out / name).exists(), name
    config = json.loads((out / "config.json").read_text(encoding="utf-8"))
    assert (config["source_lang"], config["target_lang"], config["vocab_size"]) == ("en", "de", 320)
    generation = json.loads((out / "generation_config.json").read_text(encoding="utf-8"))
    assert (generation["num_beams"], generation["max_length"]) == (2, 20)
    assert "top_k" not in generation  # no defaults written out
    logged = json.loads((out / "trainer_state.json").read_text(encoding="utf-8"))["log_history"]
    assert {"loss", "learning_rate", "train_tokens_per_second"} <= logged[1].keys()
    assert any("eval_bleu" in entry for entry in logged)

    again = train_here(check=False)
    assert again.returncode != 0
    assert "is not empty: another run may be in it" in again.stderr.splitlines()[-1]
    train_here("--resume_from_checkpoint", "last", "--max_steps", 6)
    assert json.loads((out / "trainer_state.json").read_text(encoding="utf-8"))["global_step"] == 6

    figures = tmp_path / "figures.json"
    test_file = write(tmp_path / "other.jsonl", [{"translation": pair} for pair in PAIRS])
    run(
        "evaluate_translation.py", "--model", out, "--test_file", test_file, "--source_lang", "en",
        "--target_lang", "de", "--num_beams", 2, "--json", figures, "--output_file", tmp_path / "hypotheses.txt",
    )  # fmt: skip
    result = json.loads(figures.read_text(encoding="utf-8"))
    assert {"bleu", "bleu_signature", "bleu_lc", "chrf", "sentences", "seconds"} <= result.keys()
    assert (
        result["sentences"]
        == len(PAIRS)
        == len((tmp_path / "hypotheses.txt").read_text(encoding="utf-8").splitlines())
    )
    test = json.loads((out / "test_results.json").read_text(encoding="utf-8"))
    for metric in ("bleu", "chrf"):
        assert result[metric] == pytest.approx(test[metric])


@pytest.mark.slow
def test_a_translator_of_two_word_vocabularies_is_trained_resumed_and_evaluated(translation, pairs, tmp_path):
    words = (*translation, "--tokenizer_kind", "word", "--min_frequency", 2, "--config_overrides")
    run(*words, TINY_TRANSFORMER)
    out = tmp_path / "run"
    config = json.loads((out / "config.json").read_text(encoding="utf-8"))
    # 11 and 12: the words, the specials, and a comma
    assert (config["vocab_size"], config["decoder_vocab_size"]) == (64, 64)
    run(*words, TINY_TRANSFORMER, "--resume_from_checkpoint", "last", "--max_steps", 6)
    figures = tmp_path / "figures.json"
    run(
        "evaluate_translation.py", "--model", out, "--test_file", pairs / "test.jsonl", "--source_lang", "en",
        "--target_lang", "de", "--num_beams", 2, "--json", figures,
    )  # fmt: skip
    result, test = (json.loads(path.read_text(encoding="utf-8")) for path in (figures, out / "test_results.json"))
    assert result["chrf"] == pytest.approx(test["chrf"])


def test_a_training_whose_loss_is_nan_ends_without_a_card(translation, run_here, tmp_path):
    done = run_here("train_translation", *translation[1:], "--learning_rate", "1e30", check=False)
    assert done.returncode == 1
    assert re.search(r"error: The loss is nan at step \d; the last finite one was .* at step \d\.", done.stderr)
    assert not {"README.md", "model.safetensors"} & {path.name for path in (tmp_path / "run").iterdir()}


def test_a_training_goes_on_from_a_model_and_changes_its_config(translation, pairs, run_here, tmp_path):
    run_here("train_translation", *translation[1:], "--max_steps", 1)
    second = [
        ROOT / "scripts" / "recipes" / "multi30k_tiny_rdrop.yaml", "--dataset_name", pairs,
        "--output_dir", tmp_path / "second", "--config_overrides", "dropout=0.25", "--max_steps", 2, "--save_steps", 1,
        "--average_checkpoints", 1, "--max_source_length", 20, "--max_target_length", 20, "--max_tokens_per_batch", 60,
        "--use_cpu", "true", "--teacher_models", tmp_path / "run", "--model_name_or_path",
    ]  # fmt: skip
    missing = run_here("train_translation", *second, "./nothing", check=False)
    assert missing.returncode != 0
    assert missing.stderr.splitlines()[-1].endswith("'./nothing' is not a folder.")
    assert not (tmp_path / "second").exists()
    run_here("train_translation", *second, tmp_path / "run")
    assert "It has learnt from `run` as well." in (tmp_path / "second" / "README.md").read_text("utf-8")
    first, config = (
        json.loads((tmp_path / name / "config.json").read_text(encoding="utf-8")) for name in ("run", "second")
    )
    assert (first["dropout"], config["dropout"], config["d_model"]) == (0.3, 0.25, 16)
    assert (tmp_path / "second" / "tokenizer.json").read_text(encoding="utf-8") == (
        tmp_path / "run" / "tokenizer.json"
    ).read_text(encoding="utf-8")


def test_train_and_evaluate_a_language_model(run_here, tmp_path):
    train, validation = write(tmp_path / "a.jsonl", STORIES), write(tmp_path / "b.jsonl", STORIES[:3])
    out = tmp_path / "run"
    run(
        "train_language_model.py", ROOT / "scripts" / "recipes" / "tinystories_char.yaml", "--train_file", train,
        "--validation_file", validation, "--output_dir", out, "--config_overrides", TINY_GPT, "--block_size", 24,
        "--num_train_epochs", 1, "--use_cpu", "true", "--bf16", "true",
    )  # fmt: skip
    assert {"model.safetensors", "tokenizer.json", "README.md", "learning_curve.png"} <= {
        p.name for p in out.iterdir()
    }
    figures = tmp_path / "figures.json"
    run("evaluate_language_model.py", "--model", out, "--test_file", validation, "--json", figures)
    result = json.loads(figures.read_text(encoding="utf-8"))
    assert {"loss", "perplexity", "bits_per_byte", "tokens", "seconds"} == result.keys()
    assert result["tokens"] == sum(len(story["text"]) + 1 for story in STORIES[:3])
    saved = json.loads((out / "validation_results.json").read_text(encoding="utf-8"))
    assert result["bits_per_byte"] == pytest.approx(saved["bits_per_byte"])

    student = tmp_path / "student"
    run_here(
        "train_language_model", "--train_file", train, "--output_dir", student, "--config_overrides", TINY_GPT,
        "--block_size", 24, "--max_steps", 2, "--logging_steps", 1, "--use_cpu", "true", "--bf16", "true",
        "--teacher_models", out, "--tokenizer_name", out, "--distillation_alpha", 1,
        "--torch_compile_backend", "aot_eager",
    )  # fmt: skip
    state = json.loads((student / "trainer_state.json").read_text(encoding="utf-8"))
    assert 0 < state["log_history"][0]["loss"] < 10


def test_two_processes_train_one_model(translation, tmp_path):
    # `--multi_gpu` makes accelerate start several processes; the option `use_cpu` keeps them off the GPUs
    launcher = ("-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1",
                "--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0")  # fmt: skip
    run(*translation, "--torch_compile_backend", "aot_eager", launcher=launcher)
    assert (tmp_path / "run" / "model.safetensors").is_file()
    assert "2 x" in (tmp_path / "run" / "README.md").read_text(encoding="utf-8")


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
    data = tmp_path / "data"
    data.mkdir()
    for name in ("train", "validation"):
        write(data / f"{name}.jsonl", [{"text": text} for text in texts])
    train_tokenizer(texts, "bpe", 300, 32, add_eos=False, show_progress=False).save_pretrained(tmp_path / "tokenizer")
    out = tmp_path / "out"
    recipe = ROOT / "scripts" / "recipes" / "stock_gpt2.yaml"
    options = (
        recipe, "--dataset_name", data, "--block_size", 32, "--config_overrides", "n_embd=16,n_layer=1,n_head=2",
        "--use_cpu", "true", "--tokenizer_name", tmp_path / "tokenizer",
    )  # fmt: skip
    run("train_stock_gpt2.py", *options, "--num_train_epochs", 2, "--output_dir", out)
    model = AutoModelForCausalLM.from_pretrained(out)
    assert type(model).__name__ == "GPT2LMHeadModel"
    record = json.loads((out / "run.json").read_text(encoding="utf-8"))
    tokenizer = AutoTokenizer.from_pretrained(out)
    assert record["input_tokens"] >= 2 * sum(map(len, tokenizer(texts)["input_ids"]))  # of two epochs
    expected = evaluate_language_model(model, tokenizer, texts)
    assert record["metrics"]["validation"]["bits_per_byte"] == pytest.approx(expected["bits_per_byte"], rel=1e-5)
    further = ("--model_name_or_path", out, "--learning_rate", 0, "--output_dir", tmp_path / "further")
    run_here("train_stock_gpt2", *options, *further)
    after = AutoModelForCausalLM.from_pretrained(tmp_path / "further").state_dict()
    assert all(weights.equal(after[name]) for name, weights in model.state_dict().items())
    words = ("--dataset_name", data, "--output_dir", tmp_path / "none")
    done = run_here("train_stock_gpt2", recipe, *words, check=False)
    assert "`tokenizer_name` must be given" in done.stderr
    assert not (tmp_path / "none").exists()


def test_each_recipe_is_a_model_that_can_be_built():
    recipes = sorted((ROOT / "scripts" / "recipes").glob("*.yaml"))
    assert len(recipes) >= 6
    for recipe in recipes:
        translation = re.search("^max_source_length", recipe.read_text(encoding="utf-8"), re.M)
        data, training = (
            (TranslationArguments, Seq2SeqTrainingArguments)
            if translation
            else (LanguageModelArguments, TrainingArguments)
        )
        words = [str(recipe), "--use_cpu", "true", "--dataset_name", "embedded:stories", "--output_dir", "x"]
        (model_args, _, args), name = parse_arguments(ModelArguments, data, training, args=words)
        config_class = ScratchTransformerConfig if translation else ScratchGPTConfig
        if name == "stock_gpt2":
            config_class = GPT2Config
        config_class(**read_model_fields(model_args, config_class))
        assert name == recipe.stem
        assert args.seed == 1


def test_the_benchmark_prints_a_table_and_writes_its_figures(tmp_path):
    options = ["--rounds", 1, "--threads", 1, "--output_dir", tmp_path]
    done = run("benchmark/benchmark.py", "--only", "generate_gpt,import_time", *options)
    rows = re.findall(r"^\| `(\w+)`: .*? \| \*\*([\d.]+)(?: s)?\*\* \|", done.stdout, flags=re.M)
    figures = json.loads((tmp_path / "benchmark.json").read_text(encoding="utf-8"))
    generation, start = (row["measures"] for row in figures["rows"])
    expected = [
        ("generate_gpt", f"{generation['GPT2LMHeadModel'][0] / generation['hf_scratch'][0]:.2f}"),
        ("import_time", f"{start['hf_scratch'][0]:.3f}"),
    ]
    assert rows == expected
