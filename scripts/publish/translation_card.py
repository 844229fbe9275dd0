# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""The figures of the published translators' cards, computed from their folders and Multi30k."""

from pathlib import Path
from statistics import mean

from readme_tables import published_seed, read_seeds
from recipe_changes import format_changes
from sacrebleu.metrics import BLEU
from sacrebleu.significance import PairedTest, Result
from transformers import AutoModelForSeq2SeqLM, pipeline

import hf_scratch  # noqa: F401  registers the models
from hf_scratch.data.pairs import take_pairs
from hf_scratch.data.splits import load_splits
from hf_scratch.evaluation.metrics import score_translations
from hf_scratch.evaluation.translation import evaluate_translation
from hf_scratch.loading import load_tokenizer
from hf_scratch.reporting.cards import describe_for_hub, format_time, format_training, format_updates
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
TEST_SCORES = {"bleu": "test, cased", "bleu_moses": "test, Moses", "chrf": "test, chrF"}
SCORES = ("validation loss", "validation, greedy", *TEST_SCORES.values())


def translation_figures(folder: Path, dataset: str) -> dict[str, str]:
    """The values of the placeholders that the cards in `scripts/publish/cards` have in common."""
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
    validation_loss, validation_bleu = validation_figures(published)
    return {
        "front_matter": format_front_matter(folder.name, [source, target], own_scores),
        "parameters": f"{model.num_parameters():,}",
        "results": format_scores(own_scores),
        "beams": str(model.generation_config.num_beams),
        "length_penalty": str(own_penalty),
        "penalties": format_table(["length penalty", "validation BLEU, cased", "test BLEU, cased"], penalties),
        "training": format_training(published, model.config),
        "validation": f"a loss of {validation_loss:.3f} nats per token and {validation_bleu:.2f} BLEU",
        "time": format_time(published),
        # the runs used local copies of the data set and of the published model
        "command": command.replace("--model_name_or_path scratch", "--model_name_or_path model_cards/scratch"),
        "examples": format_table([LANGUAGES[source], "this model"], examples),
    }


def reference_figures(folder: Path, dataset: str) -> dict[str, str]:
    """Those of `translation_figures`, and what was tried on the way to the published English-German model."""
    references = list(load_splits(dataset)["test"]["de"])
    records = read_records(folder / "records")
    texts = {path.stem: path.read_text(encoding="utf-8").splitlines() for path in (folder / "records").glob("*.txt")}
    runs = {name: measure_run(record, texts.get(name), references) for name, record in records.items()}
    seeds = {name: record for name, record in records.items() if name.startswith("seed")}
    others = {name: record for name, record in records.items() if name not in seeds}
    labels = [
        [name, format_changes(run), format_updates(run), f"{run['input_tokens'] / 1e6:.1f}", format_time(run)]
        for name, run in others.items()
    ]
    header = ["run", "changes", "updates", "M source tokens", "time"]
    long_scores = [
        record["metrics"]["test"]["bleu"] for name, record in others.items() if name.startswith("long_seed")
    ]
    article, cosine = compare_systems(texts["article"], texts["cosine"], references)
    return {
        **translation_figures(folder, dataset),
        "rounds": format_rounds(runs),
        "seeds": format_seeds(seeds, [runs[name] for name in seeds]),
        "seed_spread": f"{max(long_scores) - min(long_scores):.2f}",
        "article": f"{article.mean:.2f} ± {article.ci:.2f}",
        "article_parameters": f"{records['article']['parameters']:,}",
        "article_time": format_time(records["article"]),
        "cosine": f"{cosine.mean:.2f} ± {cosine.ci:.2f}",
        "cosine_time": format_time(records["cosine"]),
        "p_value": f"{cosine.p_value:.3f}",
        "ablations": format_runs(header, labels, [runs[name][:-1] for name in others]),
    }


def measure_run(record: Record, translations: list[str] | None, references: list[str]) -> list:
    """A run's `SCORES`. `translations` of the test set are None, and its scores "", for an interrupted run."""
    test = dict.fromkeys(TEST_SCORES, "")
    if translations is not None:
        test = score_translations(translations, references, "de")
    return [*validation_figures(record), *(test[name] for name in TEST_SCORES)]


def validation_figures(record: Record) -> list[float]:
    """Validation loss and greedy BLEU of the weights that a run kept, or of its last evaluation."""
    metrics = record["metrics"]["validation"]
    return [metrics["loss"], metrics["bleu"]]


def compare_systems(baseline: list[str], system: list[str], references: list[str]) -> list[Result]:
    """Cased BLEU of two systems' translations with their confidence intervals, by sacrebleu's paired bootstrap.

    The second result has the p-value of the difference.
    """
    systems = [("baseline", baseline), ("system", system)]
    _, results = PairedTest(systems, {"BLEU": BLEU(references=[references])}, None, "bs", n_samples=1000)()
    return results["BLEU"]


def format_runs(header: list[str], labels: list[list], figures: list[list]) -> str:
    """A table of runs: a few labels each, and their `SCORES` or the first of them, the loss with three decimals."""
    rows = [[*label, f"{loss:.3f}", *rest] for label, (loss, *rest) in zip(labels, figures, strict=True)]
    return format_table([*header, *SCORES[: len(figures[0])]], rows)


def format_seeds(seeds: dict[str, Record], figures: list[list]) -> str:
    """The table of the published training with each of its seeds, then mean, lowest and highest."""
    labels = [[record["seed"], format_time(record)] for record in seeds.values()]
    columns = list(zip(*figures, strict=True))
    functions = {"mean": mean, "lowest": min, "highest": max}
    labels += [[f"**{word}**", ""] for word in functions]
    return format_runs(
        ["seed", "time"],
        labels,
        [*figures, *([function(column) for column in columns] for function in functions.values())],
    )


def format_rounds(runs: dict[str, list]) -> str:
    """The table of `ROUNDS`: the means of the `SCORES` over the models of each."""
    groups = [[figures for name, figures in runs.items() if name.startswith(prefix)] for prefix in ROUNDS]
    labels = [[what, len(group)] for what, group in zip(ROUNDS.values(), groups, strict=True)]
    means = [[mean(column) for column in zip(*group, strict=True)] for group in groups]
    return format_runs(["training", "models"], labels, means)


def format_scores(scores: dict) -> str:
    """The table of the published model's test scores with sacrebleu's signatures."""
    labels = {"bleu": "BLEU, cased", "bleu_lc": "BLEU, lower-cased", "bleu_moses": "BLEU, lower-cased, Moses tokens"}
    rows = []
    for key, label in (labels | {"chrf": "chrF"}).items():
        value = f"**{scores[key]:.2f}**" if key == "bleu" else scores[key]
        signature = scores[f"{key}_signature"].replace("|", "\\|")
        rows.append([label, value, f"`{signature}`"])
    return format_table(["metric", "value", "signature"], rows)


def format_front_matter(name: str, languages: list[str], scores: dict) -> str:
    """The card's front matter: languages, licence, data and test scores."""
    labels = {"bleu": "BLEU, cased", "bleu_moses": "BLEU", "chrf": "chrF"}
    results = [
        (
            f"{label} ({scores[f'{key}_signature']})",
            "chrf" if key == "chrf" else "sacrebleu",
            round(scores[key], 2),
            "test",
        )
        for key, label in labels.items()
    ]
    data, metrics = ("bentrevett/multi30k", "Multi30k"), ("sacrebleu", "chrf")
    kind, options = "scratch_transformer", {"metrics": metrics, "license": "apache-2.0"}
    return describe_for_hub(name, "translation", kind, data, results, languages, **options)
