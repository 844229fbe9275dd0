# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""The figures of the published translator's card, computed from its folder and Multi30k."""

from pathlib import Path
from statistics import mean

from huggingface_hub import EvalResult, ModelCardData
from recipe_changes import format_changes
from sacrebleu.metrics import BLEU
from sacrebleu.significance import PairedTest
from transformers import AutoModelForSeq2SeqLM, pipeline

import hf_scratch  # noqa: F401  registers the models
from hf_scratch.data.loading import load_splits
from hf_scratch.data.pairs import take_pairs
from hf_scratch.evaluation.translation import evaluate_translation, score_translations
from hf_scratch.loading import load_tokenizer
from hf_scratch.reporting.cards import format_time, format_training, format_updates
from hf_scratch.reporting.records import Record, read_records
from hf_scratch.reporting.tables import format_table

SENTENCES = (
    "A little girl in a red dress throws a ball to her dog in the park.",
    "Two men in orange vests are repairing the roof of a house.",
    "An old woman is selling vegetables at a market.",
    "The boy on the bicycle is jumping over a wall.",
    "My computer crashed while I was writing a letter to the bank.",
)
LENGTH_PENALTIES = (0.0, 0.5, 1.0, 1.5, 2.0)


def validation_figures(record: Record) -> list[float]:
    """Validation loss and greedy BLEU of the weights that a run kept, or of its last evaluation."""
    metrics = record["metrics"]["validation"]
    return [metrics["loss"], metrics["bleu"]]


def format_run(record: Record, translations: list[str] | None, references: list[str]) -> list:
    """A row of the table of runs, after its name and changes.

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
    """The values of the placeholders in `scripts/publish/cards/scratch-transformer-multi30k-en-de.md`.

    Args:
        folder: the published folder.
        dataset: Multi30k, a Hub id or a folder.
    """
    splits = load_splits(dataset)
    test, held_out = (take_pairs(splits[name], "en", "de", name) for name in ("test", "validation"))
    references = list(test["target"])
    model = AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    tokenizer = load_tokenizer(folder)
    own_penalty = model.generation_config.length_penalty
    evaluated = {
        penalty: [
            evaluate_translation(model, tokenizer, side["source"], side["target"], length_penalty=penalty)
            for side in (held_out, test)
        ]
        for penalty in sorted({*LENGTH_PENALTIES, own_penalty})
    }
    penalties = [[str(penalty), *(side["bleu"] for side, _ in sides)] for penalty, sides in evaluated.items()]
    scores, _ = evaluated[own_penalty][1]

    runs = read_records(folder / "records")
    texts = {path.stem: path.read_text(encoding="utf-8").splitlines() for path in (folder / "records").glob("*.txt")}
    seeds = [name for name in runs if name.startswith("seed")]
    results = {name: score_translations(texts[name], references, "de") for name in seeds}
    measured = [
        [*validation_figures(runs[name]), *(results[name][key] for key in ("bleu", "bleu_moses", "chrf"))]
        for name in seeds
    ]
    labels = [[runs[name]["seed"], format_time(runs[name])] for name in seeds]
    if len(seeds) > 1:
        columns = list(zip(*measured, strict=True))
        for word, function in (("mean", mean), ("lowest", min), ("highest", max)):
            labels.append([f"**{word}**", ""])
            measured.append([function(column) for column in columns])
    seed_rows = [[*label, f"{loss:.3f}", *rest] for label, (loss, *rest) in zip(labels, measured, strict=True)]

    # sacrebleu compares all systems with the first
    systems = [(name, texts[name]) for name in ("article", "cosine")]
    _, tested = PairedTest(systems, {"BLEU": BLEU(references=[references])}, None, "bs", n_samples=1000)()
    article, ours = tested["BLEU"]
    ablations = [
        [name, format_changes(run["command"]), *format_run(run, texts.get(name), references)]
        for name, run in runs.items()
        if name not in seeds
    ]
    shipped = runs["seed1"]
    data = ModelCardData(
        language=["en", "de"],
        license="apache-2.0",
        library_name="transformers",
        pipeline_tag="translation",
        tags=["hf_scratch", "scratch_transformer"],
        datasets=["bentrevett/multi30k"],
        metrics=["sacrebleu", "chrf"],
        model_name=folder.name,
        eval_results=[
            EvalResult(
                "translation",
                "bentrevett/multi30k",
                "Multi30k",
                kind,
                round(scores[key], 2),
                metric_name=label,
                dataset_split="test",
            )
            for key, kind, label in (
                ("bleu", "sacrebleu", f"BLEU, cased ({scores['bleu_signature']})"),
                ("bleu_moses", "sacrebleu", f"BLEU ({scores['bleu_moses_signature']})"),
                ("chrf", "chrf", f"chrF ({scores['chrf_signature']})"),
            )
        ],
    )
    translator = pipeline("translation", model=model, tokenizer=tokenizer)
    examples = [[sentence, translator(sentence)[0]["translation_text"]] for sentence in SENTENCES]
    return {
        "front_matter": data.to_yaml().strip(),
        "parameters": f"{model.num_parameters():,}",
        "results": format_table(
            ["metric", "value", "signature"],
            [
                ["BLEU, cased", f"**{scores['bleu']:.2f}**", _code(scores["bleu_signature"])],
                ["BLEU, lower-cased", scores["bleu_lc"], _code(scores["bleu_lc_signature"])],
                ["BLEU, lower-cased, Moses tokens", scores["bleu_moses"], _code(scores["bleu_moses_signature"])],
                ["chrF", scores["chrf"], _code(scores["chrf_signature"])],
            ],
        ),
        "beams": str(model.generation_config.num_beams),
        "length_penalty": str(model.generation_config.length_penalty),
        "seeds": format_table(
            [
                "seed",
                "time",
                "validation loss",
                "validation, greedy",
                "test, cased",
                "test, Moses",
                "test, chrF",
            ],
            seed_rows,
        ),
        "article": f"{article.mean:.2f} ± {article.ci:.2f}",
        "article_parameters": f"{runs['article']['parameters']:,}",
        "article_time": format_time(runs["article"]),
        "cosine": f"{ours.mean:.2f} ± {ours.ci:.2f}",
        "cosine_time": format_time(runs["cosine"]),
        "p_value": f"{ours.p_value:.3f}",
        "penalties": format_table(["length penalty", "validation BLEU, cased", "test BLEU, cased"], penalties),
        "ablations": format_table(
            [
                "run",
                "changes",
                "updates",
                "M source tokens",
                "time",
                "validation loss",
                "validation, greedy",
                "test, cased",
                "test, Moses",
            ],
            ablations,
        ),
        "training": format_training(shipped),
        # the runs used a local copy of the Hub's data set
        "command": shipped["command"].replace("--dataset_name multi30k ", "--dataset_name bentrevett/multi30k "),
        "examples": format_table(["English", "this model"], examples),
    }


def _code(signature: str) -> str:
    return "`" + signature.replace("|", "\\|") + "`"
