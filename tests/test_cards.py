"""What the training scripts write at their end, run in this process on a few rows."""

import re
import sys
from types import SimpleNamespace

import pytest
import torch
from conftest import load_script, make_transformer
from huggingface_hub import ModelCard
from test_bad_inputs import TEXTS
from test_scripts import PAIRS, TINY_GPT, TINY_TRANSFORMER, flags, read_json, write

from hf_scratch.evaluation.translation import evaluate_translation
from hf_scratch.reporting.cards import Card, describe_for_hub, describe_objective


@pytest.fixture
def train(tmp_path, monkeypatch):
    """Runs a training script of one update, and returns its folder."""
    pairs, texts = write(tmp_path / "pairs.jsonl", PAIRS), write(tmp_path / "texts.jsonl", TEXTS)

    def run(name, out, *words, languages=("en", "de"), **others):
        options = {
            "output_dir": tmp_path / out, "vocab_size": 300, "max_steps": 1, "use_cpu": "true", "report_to": "none",
            "disable_tqdm": "true", "save_strategy": "no",
        }  # fmt: skip
        if name == "train_translation":
            options |= {"train_file": pairs, "source_lang": languages[0], "target_lang": languages[1], "num_beams": 1}
        else:
            options |= {"train_file": texts, "block_size": 16}
        if "model_name_or_path" not in others:
            options["config_overrides"] = TINY_TRANSFORMER if name == "train_translation" else TINY_GPT
        monkeypatch.setattr(sys, "argv", [f"scripts/{name}.py", *flags(options | others), *words])
        load_script(name).main()
        return tmp_path / out

    return run


def run_example(card: ModelCard, folder):
    (usage,) = re.findall(r"```python\n(.*?)```", card.text, flags=re.S)
    exec(usage.replace(f"USER/{folder.name}", str(folder)), {})


def read_examples(text: str) -> list[str]:
    """The rows of the table of examples."""
    return text.split("## Examples")[1].split("## Training")[0].strip().splitlines()[4:]


@pytest.mark.parametrize("name", ["train_language_model", "train_translation"])
def test_a_run_without_validation_and_test_has_a_card_and_a_record(name, train):
    folder = train(name, name)
    card, record = ModelCard.load(folder / "README.md"), read_json(folder / "run.json")
    assert card.data.base_model is None
    recipe = "own_pairs" if name == "train_translation" else "own_texts"
    assert (record["recipe"], record["seed"], record["metrics"]) == (recipe, 1, {})
    config = read_json(folder / "config.json")
    layers, positions = "num_hidden_layers 1", "learned"
    if name == "train_translation":
        assert record["train_rows"] == len(PAIRS)
        layers, positions = "encoder_layers 1, decoder_layers 1, num_hidden_layers 1", "sinusoidal"
    for row in (
        f"training rows | {record['train_rows']}",
        f"config | {layers}, hidden_size 16, norm_first {config['norm_first']}, position_embedding_type {positions}, "
        f"max_position_embeddings {config['max_position_embeddings']}",
        f"threads | {torch.get_num_threads()}",
    ):
        assert f"| {row} |" in card.text


def test_a_card_claims_no_licence_and_has_five_examples(train, tmp_path):
    files = {"validation_file": tmp_path / "pairs.jsonl", "test_file": write(tmp_path / "unseen.jsonl", PAIRS)}
    folder = train("train_translation", "translator", **files)
    card = ModelCard.load(folder / "README.md")
    assert card.data.license is None
    run_example(card, folder)
    assert "The test set's 12 texts by greedy search." in card.text
    assert re.search(r"\| chrF \| [\d.]+ \| test set, `unseen.jsonl` \|", card.text)
    assert {result.dataset_name for result in card.data.eval_results} == {"pairs.jsonl", "unseen.jsonl"}
    rows = read_examples(card.text)
    assert len(rows) == 5
    translations = (folder / "test_translations.txt").read_text(encoding="utf-8").split("\n")
    for row, pair, translation in zip(rows, PAIRS, translations, strict=False):
        printable = "".join(char if char.isprintable() else " " for char in translation)
        expected = [pair["en"], printable.replace("|", r"\|"), pair["de"]]
        assert row == f"| {' | '.join(' '.join(text.split()) for text in expected)} |"


def test_a_card_names_the_licence_and_the_repository_that_are_given_and_the_device_that_was_used(train, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: "An unused GPU")
    folder = train("train_language_model", "out", "--license", "mit", "--hub_model_id", "ada/writer")
    card = ModelCard.load(folder / "README.md")
    assert card.data.license == "mit"
    assert "The weights' licence is `mit`." in card.text
    assert 'name = "ada/writer"' in card.text
    assert "An unused GPU" not in card.text


@pytest.mark.parametrize("is_short", [True, False])
def test_one_or_two_words_have_exact_matches_and_no_bleu(is_short, train, tmp_path):
    pairs = PAIRS if is_short else [{"en": pair["en"], "de": f"{pair['de']} and a hen"} for pair in PAIRS]
    files = {f"{split}_file": write(tmp_path / f"{split}.jsonl", pairs) for split in ("train", "validation", "test")}
    evaluations = {"eval_strategy": "steps", "predict_with_generate": "true"}
    folder = train("train_translation", "short", **files, **evaluations)
    card, record = ModelCard.load(folder / "README.md"), read_json(folder / "run.json")
    for names in (card.text, str(card.data.to_dict()), str(record)):
        assert ("bleu" in names.lower()) is not is_short
    assert {"exact_match", "chrf"} <= record["metrics"]["test"].keys()
    assert any("eval_exact_match" in entry for entry in record["log"])
    assert "| exact matches [%] | 0.00 | test set, `test.jsonl` |" in card.text


def test_a_resumed_runs_card_is_of_the_whole_run(train):
    options = {"save_strategy": "steps", "save_steps": 3, "max_steps": 4}
    folder = train("train_language_model", "run", "--max_minutes", "1e-9", **options)
    first = read_json(folder / "run.json")
    for word in ("last", "auto"):
        train("train_language_model", "run", f"--resume_from_checkpoint={word}", **options)
    whole = read_json(folder / "run.json")
    assert [entry["step"] for entry in whole["log"] if "loss" in entry] == [1, 3, 4]  # no update was due to be logged
    assert whole["log"][0] == first["log"][0]
    assert whole["minutes"] > first["minutes"] > 0
    command = first["command"].removesuffix(" --max_minutes 1e-9")
    assert whole["command"].splitlines() == [first["command"], f"{command} --resume_from_checkpoint last"]


@pytest.mark.parametrize(
    ("smoothing", "options", "name"),
    [
        (0.0, {}, "training loss"),
        (0.0, {"r_drop_alpha": 0.0, "distillation_alpha": 0.0}, "training loss"),
        (0.1, {"r_drop_alpha": 5.0}, "training objective, with label smoothing, R-Drop"),
        (0.0, {"distillation_alpha": 0.5}, "training objective, with teachers"),
    ],
)
def test_the_curve_names_what_the_training_loss_is(smoothing, options, name):
    trainer = SimpleNamespace(args=SimpleNamespace(label_smoothing_factor=smoothing), **options)
    assert describe_objective(trainer) == name


def test_a_writers_examples_begin_differently_and_are_cut(train, tmp_path):
    begun = "Once upon a time there was"
    rows = [f"{begun} a dog.", f"{begun} a cat.", "word " * 3, "y" * 500, *(f"{i} is a number." for i in range(4))]
    texts = write(tmp_path / "stories.jsonl", [{"text": row} for row in rows])
    overrides = f"{TINY_GPT},max_position_embeddings=800"
    folder = train("train_language_model", "writer", config_overrides=overrides, validation_file=texts)
    text = (folder / "README.md").read_text(encoding="utf-8")
    assert "Different beginnings of the validation set, drawn with seed 0." in text
    rows = read_examples(text)
    beginnings = [row.split("|")[1].strip() for row in rows]
    assert beginnings == [begun, "word word word", "y" * 396 + " ...", "0 is a number.", "1 is a number."]
    assert all(len(row) < 850 for row in rows)


def test_a_translator_that_learns_to_summarise_is_scored_with_rouge_and_forgets_its_languages(train, tmp_path):
    first = train("train_translation", "first")
    files = {"validation_file": tmp_path / "pairs.jsonl", "test_file": tmp_path / "pairs.jsonl"}
    options = {"eval_strategy": "steps", "predict_with_generate": "true", "task": "summarization"}
    folder = train("train_translation", "summarizer", model_name_or_path=first, **files, **options)
    metrics = read_json(folder / "run.json")["metrics"]
    assert {"loss", "rougeL", "exact_match"} == metrics["validation"].keys()
    assert {"rouge1", "rouge2", "rougeL"} <= metrics["test"].keys()
    assert not any("bleu" in name for split in metrics.values() for name in split)
    card = ModelCard.load(folder / "README.md")
    assert card.data.pipeline_tag == "summarization"
    run_example(card, folder)
    assert card.data.language is None
    assert "| ROUGE-L |" in card.text
    assert "f-measure|stemmer:no|" in card.text
    assert read_json(first / "config.json")["target_lang"] == "de"
    config = read_json(folder / "config.json")
    assert (config.get("source_lang"), config.get("target_lang"), config["task"]) == (None, None, "summarization")


def test_the_hub_is_told_the_codes_of_languages_alone():
    card = Card(name="name", task="translation", opening="", sections="", languages=["German", "en"])
    text = describe_for_hub(card, "scratch_transformer", ("pairs", "pairs"), [])
    assert ModelCard(f"---\n{text}\n---\n").data.language == ["en"]


def test_a_training_on_another_pair_is_of_that_pair(train, tmp_path, caplog):
    first = train("train_translation", "first")
    options = {"model_name_or_path": first, "test_file": tmp_path / "pairs.jsonl", "max_source_length": 3}
    second = train("train_translation", "second", languages=("de", "en"), **options)
    config = read_json(second / "config.json")
    assert (config["source_lang"], config["target_lang"]) == ("de", "en")
    text = (second / "README.md").read_text(encoding="utf-8")
    assert "translates from `de` to `en`. Trained further from `first` with" in text
    assert ModelCard(text).data.base_model == "first"
    assert read_json(second / "test_results.json")["bleu_moses_signature"].startswith("moses-en|")
    assert "| cut rows | train: 12 of 12 sources at 3 tokens |" in text
    assert "train: cut 12 of 12 sources at 3 tokens." in caplog.text


def test_a_model_that_names_no_language_is_evaluated(joint_tokenizer):
    model = make_transformer(vocab_size=len(joint_tokenizer))
    model.generation_config.update(max_length=8)
    assert getattr(model.config, "target_lang", None) is None
    scores, translations = evaluate_translation(model, joint_tokenizer, ["A man"], ["Ein Mann"])
    assert len(translations) == 1
    assert "bleu_moses" not in scores
    scores, _ = evaluate_translation(model, joint_tokenizer, ["A man"], ["Ein Mann"], target_lang="de")
    assert "moses-de" in scores["bleu_moses_signature"]
