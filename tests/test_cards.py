"""What the training scripts write at their end, run in this process on a few rows."""

import json
import sys

import pytest
from conftest import load_script, make_transformer
from huggingface_hub import ModelCard
from test_bad_inputs import PAIRS, TEXTS
from test_scripts import TINY_GPT, TINY_TRANSFORMER, write

from hf_scratch.evaluation.translation import evaluate_translation


@pytest.fixture
def train(tmp_path, monkeypatch):
    """Runs a training script of one update, and returns its folder."""
    pairs, texts = write(tmp_path / "pairs.jsonl", PAIRS), write(tmp_path / "texts.jsonl", TEXTS)

    def run(name, out, *flags, languages=("en", "de"), **options):
        if name == "train_translation":
            options = {"train_file": pairs, "source_lang": languages[0], "target_lang": languages[1], **options}
            options |= {"num_beams": 1}
        else:
            options = {"train_file": texts, "block_size": 16, **options}
        options = {
            "output_dir": tmp_path / out, "vocab_size": 300, "max_steps": 1, "use_cpu": "true", "report_to": "none",
            "disable_tqdm": "true", "save_strategy": "no", **options,
        }  # fmt: skip
        words = [str(word) for key, value in options.items() for word in (f"--{key}", value)]
        monkeypatch.setattr(sys, "argv", [f"scripts/{name}.py", *words, *flags])
        load_script(name).main()
        return tmp_path / out

    return run


@pytest.mark.parametrize(
    ("name", "overrides"), [("train_language_model", TINY_GPT), ("train_translation", TINY_TRANSFORMER)]
)
def test_a_run_without_validation_and_test_has_a_card_and_a_record(name, overrides, train):
    folder = train(name, name, config_overrides=overrides)
    card = ModelCard.load(folder / "README.md")
    assert card.data.base_model is None
    record = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    assert (record["seed"], record["metrics"]) == (42, {})
    assert f"| training rows | {record['train_rows']} |" in card.text
    if name == "train_translation":
        assert record["train_rows"] == len(PAIRS)


def test_a_card_has_a_licence_and_five_examples(train, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    files = {"validation_file": tmp_path / "pairs.jsonl", "test_file": tmp_path / "pairs.jsonl"}
    train("train_translation", "", config_overrides=TINY_TRANSFORMER, **files, output_dir="runs/translator")
    folder = tmp_path / "runs" / "translator"
    card = ModelCard.load(folder / "README.md")
    assert card.data.license == "apache-2.0"
    assert 'pipeline("translation", model="runs/translator")' in card.text
    assert "The test set's 12 texts by greedy search." in card.text
    rows = card.text.split("## Examples")[1].split("## Training")[0].strip().splitlines()[4:]
    assert len(rows) == 5
    translations = (folder / "test_translations.txt").read_text(encoding="utf-8").split("\n")
    for row, pair, translation in zip(rows, PAIRS, translations, strict=False):
        expected = [pair["en"], translation.replace("|", r"\|"), pair["de"]]
        assert row == f"| {' | '.join(' '.join(text.split()) for text in expected)} |"


def test_a_writers_examples_begin_differently_and_are_cut(train, tmp_path):
    begun = "Once upon a time there was"
    rows = [f"{begun} a dog.", f"{begun} a cat.", "word " * 3, "y" * 500, *(f"{i} is a number." for i in range(4))]
    texts = write(tmp_path / "stories.jsonl", [{"text": row} for row in rows])
    overrides = f"{TINY_GPT},max_position_embeddings=800"
    folder = train("train_language_model", "writer", config_overrides=overrides, validation_file=texts)
    text = (folder / "README.md").read_text(encoding="utf-8")
    assert "Different beginnings of the validation set, drawn with seed 0." in text
    rows = text.split("## Examples")[1].split("## Training")[0].strip().splitlines()[4:]
    beginnings = [row.split("|")[1].strip() for row in rows]
    assert beginnings == [begun, "word word word", "y" * 396 + " ...", "0 is a number.", "1 is a number."]
    assert all(len(row) < 850 for row in rows)


def test_a_summarizer_is_scored_with_rouge(train, tmp_path):
    files = {"validation_file": tmp_path / "pairs.jsonl", "test_file": tmp_path / "pairs.jsonl"}
    evaluations = {"eval_strategy": "steps", "predict_with_generate": "true", "config_overrides": TINY_TRANSFORMER}
    folder = train("train_translation", "summarizer", task="summarization", **files, **evaluations)
    metrics = json.loads((folder / "run.json").read_text(encoding="utf-8"))["metrics"]
    assert {"loss", "rougeL", "exact_match"} == metrics["validation"].keys()
    assert {"rouge1", "rouge2", "rougeL"} <= metrics["test"].keys()
    assert not any("bleu" in name for split in metrics.values() for name in split)
    card = ModelCard.load(folder / "README.md")
    assert card.data.pipeline_tag == "summarization"
    assert card.data.language is None
    assert "| ROUGE-L |" in card.text
    assert "f-measure|stemmer:no|" in card.text
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert (config.get("source_lang"), config.get("target_lang")) == (None, None)


def test_a_translator_that_learns_to_summarise_forgets_its_languages(train):
    first = train("train_translation", "first", config_overrides=TINY_TRANSFORMER)
    second = train("train_translation", "second", task="summarization", model_name_or_path=first)
    configs = [json.loads((folder / "config.json").read_text(encoding="utf-8")) for folder in (first, second)]
    assert [config.get("target_lang") for config in configs] == ["de", None]


def test_a_training_on_another_pair_is_of_that_pair(train, tmp_path, caplog):
    first = train("train_translation", "first", config_overrides=TINY_TRANSFORMER)
    options = {"model_name_or_path": first, "test_file": tmp_path / "pairs.jsonl", "max_source_length": 3}
    second = train("train_translation", "second", languages=("de", "en"), **options)
    config = json.loads((second / "config.json").read_text(encoding="utf-8"))
    assert (config["source_lang"], config["target_lang"]) == ("de", "en")
    assert "The model's `source_lang` was 'en'; it is 'de' from now on." in caplog.text
    text = (second / "README.md").read_text(encoding="utf-8")
    assert "translates from `de` to `en`. Trained further from `first` with" in text
    assert ModelCard(text).data.base_model == "first"
    assert "moses-en|" in text
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
