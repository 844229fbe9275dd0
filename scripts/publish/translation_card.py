# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""The figures of the published translators' cards, computed from their folders and Multi30k."""

from pathlib import Path
from statistics import mean

from readme_tables import TRANSLATOR, WAY_BACK, published_seed
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
# the trainings that led to each published model, by what their records' names begin with
ROUNDS = {
    TRANSLATOR: {
        "r_drop_seed": "trained alone, then with R-Drop",
        "diversified_seed": "from scratch on diversified data",
        "distilled_seed": "trained further, distilled from three models",
        "distilled_again_seed": "distilled again, with less dropout",
        "seed": "distilled from the 7 M model alone, for longer",
    },
    WAY_BACK: {
        "diversified_seed": "from the weights of a translator, on diversified data",
        "seed": "trained further, distilled from these three",
    },
}
TEST_SCORES = {"bleu": "test, cased", "bleu_moses": "test, Moses", "chrf": "test, chrF"}
SCORES = ("validation loss", "validation, greedy", *TEST_SCORES.values())


def translation_figures(folder: Path, dataset: str) -> dict[str, str]:
    """The values of the placeholders that the cards in `scripts/publish/cards` have in common."""
    model = AutoModelForSeq2SeqLM.from_pretrained(folder, dtype="float32").eval()
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
    records, runs = measure_runs(folder, list(splits["test"][target]), target)
    seeds = {name: record for name, record in records.items() if name.startswith("seed")}
    others = {name: record for name, record in records.items() if name not in seeds}
    labels = [
        [name, format_changes(run), format_updates(run), f"{run['input_tokens'] / 1e6:.1f}", format_time(run)]
        for name, run in others.items()
    ]
    header = ["run", "changes", "updates", "M source tokens", "time"]
    published = published_seed(list(seeds.values()))
    translator = pipeline("translation", model=model, tokenizer=tokenizer)
    examples = [[sentence, translator(sentence)[0]["translation_text"]] for sentence in SENTENCES[source]]
    # the runs used local copies of the data set, and models that were published then
    command = published["command"].replace("--dataset_name multi30k ", "--dataset_name bentrevett/multi30k ")
    command = command.replace("--model_name_or_path scratch", "--model_name_or_path model_cards/scratch")
    command = command.replace(f"_models model_cards/{TRANSLATOR} ", "_models runs/distilled_again_seed1 ")
    command = command.replace(f"model_cards/{TRANSLATOR}/seed", "runs/distilled_again_seed")
    return {
        "front_matter": format_front_matter(folder.name, [source, target], own_scores),
        "parameters": f"{model.num_parameters():,}",
        "results": format_scores(own_scores),
        "seeds": format_seeds(seeds, [runs[name] for name in seeds]),
        "rounds": format_rounds(records, runs, ROUNDS[folder.name]) if folder.name in ROUNDS else "",
        "ablations": format_runs(header, labels, [runs[name][:-1] for name in others]),
        "beams": str(model.generation_config.num_beams),
        "length_penalty": str(own_penalty),
        "penalties": format_table(["length penalty", "validation BLEU, cased", "test BLEU, cased"], penalties),
        "training": format_training(published, model.config),
        "command": command.replace(f"model_cards/{WAY_BACK} ", "runs/way_back_diversified "),
        "examples": format_table([LANGUAGES[source], "this model"], examples),
    }


def reference_figures(folder: Path, dataset: str) -> dict[str, str]:
    """Those of `translation_figures`, and comparisons of the runs that led to the published English-German model."""
    references = list(load_splits(dataset)["test"]["de"])
    records = read_records(folder / "records")
    long_scores = [
        record["metrics"]["test"]["bleu"] for name, record in records.items() if name.startswith("long_seed")
    ]
    article, cosine = compare_systems(*(read_translations(folder, name) for name in ("article", "cosine")), references)
    return {
        **translation_figures(folder, dataset),
        "seed_spread": f"{max(long_scores) - min(long_scores):.2f}",
        "article": f"{article.mean:.2f} ± {article.ci:.2f}",
        "article_parameters": f"{records['article']['parameters']:,}",
        "article_time": format_time(records["article"]),
        "cosine": f"{cosine.mean:.2f} ± {cosine.ci:.2f}",
        "cosine_time": format_time(records["cosine"]),
        "p_value": f"{cosine.p_value:.3f}",
    }


def measure_runs(folder: Path, references: list[str], language: str) -> tuple[dict[str, Record], dict[str, list]]:
    """A folder's records, and the `SCORES` of each. Those of the test set are "" for an interrupted run."""
    records, runs = read_records(folder / "records"), {}
    for name, record in records.items():
        translations = read_translations(folder, name)
        test = score_translations(translations, references, language) if translations else {}
        validation = record["metrics"]["validation"]  # of the weights that the run kept, or its last evaluation
        runs[name] = [validation["loss"], validation["bleu"], *(test.get(score, "") for score in TEST_SCORES)]
    return records, runs


def read_translations(folder: Path, name: str) -> list[str]:
    """A run's translations of the test set, none for an interrupted run."""
    path = folder / "records" / f"{name}.txt"
    return path.read_text(encoding="utf-8").splitlines() if path.is_file() else []


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
    """The table of the published training with each of its seeds, then mean, lowest and highest of several."""
    labels = [[record["seed"], format_time(record)] for record in seeds.values()]
    columns = list(zip(*figures, strict=True))
    functions = {"mean": mean, "lowest": min, "highest": max} if len(seeds) > 1 else {}
    labels += [[f"**{word}**", ""] for word in functions]
    return format_runs(
        ["seed", "time"],
        labels,
        [*figures, *([function(column) for column in columns] for function in functions.values())],
    )


def format_rounds(records: dict[str, Record], runs: dict[str, list], rounds: dict[str, str]) -> str:
    """The table of some `ROUNDS`: the means of the time and of the `SCORES` over the models of each."""
    groups = [[name for name in runs if name.startswith(prefix)] for prefix in rounds]
    labels = [
        [what, len(group), f"{mean(records[name]['minutes'] for name in group):.0f}"]
        for what, group in zip(rounds.values(), groups, strict=True)
    ]
    means = [[mean(column) for column in zip(*(runs[name] for name in group), strict=True)] for group in groups]
    return format_runs(["training", "models", "minutes"], labels, means)


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
