# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""The figures of the published translators' cards, computed from their folders and Multi30k."""

from pathlib import Path
from statistics import mean

from huggingface_hub import EvalResult, ModelCardData
from readme_tables import published_seed, read_seeds
from recipe_changes import format_changes
from sacrebleu.metrics import BLEU
from sacrebleu.significance import PairedTest, Result
from transformers import AutoModelForSeq2SeqLM, pipeline

import hf_scratch  # noqa: F401  registers the models
from hf_scratch.data.loading import load_splits
from hf_scratch.data.pairs import take_pairs
from hf_scratch.evaluation.translation import evaluate_translation, score_translations
from hf_scratch.loading import load_tokenizer
from hf_scratch.reporting.cards import format_time, format_training, format_updates
from hf_scratch.reporting.records import Record, read_records
from hf_scratch.reporting.tables import format_table

SENTENCES = {
    "en": (
        "A little girl in a red dress throws a ball to her dog in the park.",
        "Two men in orange vests are repairing the roof of a house.",
        "An old woman is selling vegetables at a market.",
        "The boy on the bicycle is jumping over a wall.",
        "My computer crashed while I was writing a letter to the bank.",
    ),
    "de": (
        "Ein kleines Mädchen in einem roten Kleid wirft ihrem Hund im Park einen Ball zu.",
        "Zwei Männer in orangefarbenen Westen reparieren das Dach eines Hauses.",
        "Eine alte Frau verkauft auf einem Markt Gemüse.",
        "Der Junge auf dem Fahrrad springt über eine Mauer.",
        "Mein Computer stürzte ab, während ich einen Brief an die Bank schrieb.",
    ),
}
LANGUAGES = {"en": "English", "de": "German"}
LENGTH_PENALTIES = (0.0, 0.5, 1.0, 1.5, 2.0)
# the trainings that led to the published one, by what their records' names begin with
ROUNDS = {
    "r_drop_seed": "trained alone, then with R-Drop",
    "diversified_seed": "from scratch on diversified data",
    "distilled_seed": "trained further, distilled from three models",
    "seed": "distilled again, with less dropout",
}
SCORES = ("validation loss", "validation, greedy", "test, cased", "test, Moses", "test, chrF")
RUN_COLUMNS = (
    "updates",
    "M source tokens",
    "time",
    "validation loss",
    "validation, greedy",
    "test, cased",
    "test, Moses",
)


def validation_figures(record: Record) -> list[float]:
    """Validation loss and greedy BLEU of the weights that a run kept, or of its last evaluation."""
    metrics = record["metrics"]["validation"]
    return [metrics["loss"], metrics["bleu"]]


def format_run(record: Record, translations: list[str] | None, references: list[str]) -> list:
    """A run's cells for `RUN_COLUMNS`.

    Args:
        record: the run.
        translations: its translations of the test set; None for an interrupted run.
        references: the test set's.
    """
    scores = {"bleu": "", "bleu_moses": ""}
    if translations is not None:
        scores = score_translations(translations, references, "de")
    loss, bleu = validation_figures(record)
    return [
        format_updates(record),
        f"{record['input_tokens'] / 1e6:.1f}",
        format_time(record),
        f"{loss:.3f}",
        bleu,
        scores["bleu"],
        scores["bleu_moses"],
    ]


def translation_figures(folder: Path, dataset: str) -> dict[str, str]:
    """The values of the placeholders that the cards in `scripts/publish/cards` have in common.

    Args:
        folder: the published folder.
        dataset: Multi30k, a Hub id or a folder.
    """
    model = AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    tokenizer = load_tokenizer(folder)
    source, target = model.config.source_lang, model.config.target_lang
    splits = load_splits(dataset)
    validation, test = (take_pairs(splits[name], source, target, name) for name in ("validation", "test"))
    own_penalty = model.generation_config.length_penalty
    scores = {
        penalty: [
            evaluate_translation(model, tokenizer, pairs["source"], pairs["target"], length_penalty=penalty)[0]
            for pairs in (validation, test)
        ]
        for penalty in sorted({*LENGTH_PENALTIES, own_penalty})
    }
    penalties = [[str(penalty), *(split["bleu"] for split in splits)] for penalty, splits in scores.items()]
    own_scores = scores[own_penalty][1]
    published = published_seed(read_seeds(folder))
    translator = pipeline("translation", model=model, tokenizer=tokenizer)
    examples = [[sentence, translator(sentence)[0]["translation_text"]] for sentence in SENTENCES[source]]
    command = published["command"].replace("--dataset_name multi30k ", "--dataset_name bentrevett/multi30k ")
    return {
        "front_matter": describe_for_hub(folder.name, [source, target], own_scores),
        "parameters": f"{model.num_parameters():,}",
        "results": format_scores(own_scores),
        "beams": str(model.generation_config.num_beams),
        "length_penalty": str(own_penalty),
        "penalties": format_table(["length penalty", "validation BLEU, cased", "test BLEU, cased"], penalties),
        "training": format_training(published),
        "validation": "a loss of {:.3f} nats per token and {:.2f} BLEU".format(*validation_figures(published)),
        "time": format_time(published),
        # the runs used local copies of the data set and of the published model
        "command": command.replace("--model_name_or_path scratch", "--model_name_or_path model_cards/scratch"),
        "examples": format_table([LANGUAGES[source], "this model"], examples),
    }


def reference_figures(folder: Path, dataset: str) -> dict[str, str]:
    """The values of `translation_figures`, and of what was tried on the way to the published English-German model.

    Args:
        folder: the published folder.
        dataset: Multi30k, a Hub id or a folder.
    """
    references = list(load_splits(dataset)["test"]["de"])
    records = read_records(folder / "records")
    texts = {path.stem: path.read_text(encoding="utf-8").splitlines() for path in (folder / "records").glob("*.txt")}
    seeds = take(records, "seed")
    others = [
        [name, format_changes(record), *format_run(record, texts.get(name), references)]
        for name, record in records.items()
        if name not in seeds
    ]
    article, cosine = records["article"], records["cosine"]
    scores = [record["metrics"]["test"]["bleu"] for record in take(records, "long_seed").values()]
    article_bleu, cosine_bleu = compare_systems(texts["article"], texts["cosine"], references)
    return {
        **translation_figures(folder, dataset),
        "rounds": format_rounds(records, texts, references),
        "seeds": format_seeds(seeds, texts, references),
        "seed_spread": f"{max(scores) - min(scores):.2f}",
        "article": f"{article_bleu.mean:.2f} ± {article_bleu.ci:.2f}",
        "article_parameters": f"{article['parameters']:,}",
        "article_time": format_time(article),
        "cosine": f"{cosine_bleu.mean:.2f} ± {cosine_bleu.ci:.2f}",
        "cosine_time": format_time(cosine),
        "p_value": f"{cosine_bleu.p_value:.3f}",
        "ablations": format_table(["run", "changes", *RUN_COLUMNS], others),
    }


def compare_systems(baseline: list[str], system: list[str], references: list[str]) -> list[Result]:
    """Cased BLEU of two systems' translations with their confidence intervals, by sacrebleu's paired bootstrap.

    The second result has the p-value of the difference.
    """
    systems = [("baseline", baseline), ("system", system)]
    _, results = PairedTest(systems, {"BLEU": BLEU(references=[references])}, None, "bs", n_samples=1000)()
    return results["BLEU"]


def format_seeds(seeds: dict[str, Record], texts: dict[str, list[str]], references: list[str]) -> str:
    """The table of the published training with each of its seeds, then mean, lowest and highest.

    Args:
        seeds: the records by name.
        texts: for each name the run's translations of the test set.
        references: the test set's.
    """
    labels = [[record["seed"], format_time(record)] for record in seeds.values()]
    measured = measure_runs(seeds, texts, references)
    columns = list(zip(*measured, strict=True))
    for word, function in (("mean", mean), ("lowest", min), ("highest", max)):
        labels.append([f"**{word}**", ""])
        measured.append([function(column) for column in columns])
    rows = [[*label, f"{loss:.3f}", *rest] for label, (loss, *rest) in zip(labels, measured, strict=True)]
    return format_table(["seed", "time", *SCORES], rows)


def format_rounds(records: dict[str, Record], texts: dict[str, list[str]], references: list[str]) -> str:
    """The table of `ROUNDS`: means over the models of each.

    Args:
        records: all records by name.
        texts: for each name the run's translations of the test set.
        references: the test set's.
    """
    rows = []
    for prefix, what in ROUNDS.items():
        runs = take(records, prefix)
        loss, *rest = (mean(column) for column in zip(*measure_runs(runs, texts, references), strict=True))
        rows.append([what, len(runs), f"{loss:.3f}", *rest])
    return format_table(["training", "models", *SCORES], rows)


def take(records: dict[str, Record], prefix: str) -> dict[str, Record]:
    """The records whose names begin so."""
    return {name: record for name, record in records.items() if name.startswith(prefix)}


def measure_runs(runs: dict[str, Record], texts: dict[str, list[str]], references: list[str]) -> list[list[float]]:
    """The `SCORES` of each run."""
    measured = []
    for name, record in runs.items():
        scores = score_translations(texts[name], references, "de")
        measured.append([*validation_figures(record), *(scores[key] for key in ("bleu", "bleu_moses", "chrf"))])
    return measured


def format_scores(scores: dict) -> str:
    """The table of the published model's test scores with sacrebleu's signatures."""
    rows = [
        ["BLEU, cased", f"**{scores['bleu']:.2f}**", _code(scores["bleu_signature"])],
        ["BLEU, lower-cased", scores["bleu_lc"], _code(scores["bleu_lc_signature"])],
        ["BLEU, lower-cased, Moses tokens", scores["bleu_moses"], _code(scores["bleu_moses_signature"])],
        ["chrF", scores["chrf"], _code(scores["chrf_signature"])],
    ]
    return format_table(["metric", "value", "signature"], rows)


def describe_for_hub(name: str, languages: list[str], scores: dict) -> str:
    """The card's front matter: languages, licence, data and test scores."""
    labels = {"bleu": "BLEU, cased", "bleu_moses": "BLEU", "chrf": "chrF"}
    results = [
        EvalResult(
            "translation",
            "bentrevett/multi30k",
            "Multi30k",
            "chrf" if key == "chrf" else "sacrebleu",
            round(scores[key], 2),
            metric_name=f"{label} ({scores[f'{key}_signature']})",
            dataset_split="test",
        )
        for key, label in labels.items()
    ]
    data = ModelCardData(
        language=languages,
        license="apache-2.0",
        library_name="transformers",
        pipeline_tag="translation",
        tags=["hf_scratch", "scratch_transformer"],
        datasets=["bentrevett/multi30k"],
        metrics=["sacrebleu", "chrf"],
        model_name=name,
        eval_results=results,
    )
    return data.to_yaml().strip()


def _code(signature: str) -> str:
    return "`" + signature.replace("|", "\\|") + "`"
