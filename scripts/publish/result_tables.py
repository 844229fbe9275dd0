# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""The tables of results in the cards and documents, from the published folders' figures and the recipes' records."""

import json
import math
import re
import shlex
from pathlib import Path
from statistics import mean
from typing import Any

from hf_scratch.recipes import parse_yaml
from hf_scratch.reporting.cards import format_time, format_updates
from hf_scratch.reporting.records import Record, read_records
from hf_scratch.reporting.tables import format_table

RECORDS = Path(__file__).parents[1] / "recipes" / "records"
ARTICLES = Path(__file__).with_name("articles.yaml")
MODEL_CARDS = Path(__file__).parents[2] / "model_cards"
TRANSLATOR, WRITER = "scratch-transformer-multi30k-en-de", "scratch-gpt-tinystories"
WAY_BACK, LARGER = "scratch-transformer-multi30k-de-en", f"{TRANSLATOR}-7m"
WU = "[Wu et al. 2021](https://aclanthology.org/2021.acl-long.480), text only"
WU_BLEU = 41.02  # lower-cased, with Moses tokens, as they report
# the trainings that led to each published model, by the beginning of their records' names
ROUNDS = {
    TRANSLATOR: {
        "long_seed": "Multi30k only, no teacher",
        "r_drop_seed": "then with R-Drop",
        "diversified_seed": "from scratch, on Multi30k and our models' translations of it",
        "distilled_seed": "then distilled from three models",
        "distilled_again_seed": "then distilled a second time, dropout 0.05",
        "seed": "then distilled from the 7 M model, 4,000 steps",
    },
    WAY_BACK: {
        "diversified_seed": "from an English-German model's weights, on Multi30k and models' translations of it",
        "seed": "then distilled from these three",
    },
    LARGER: {"seed": "distilled from three small models, on Multi30k and their translations of it"},
}
# flags that are not shown: where data and runs are, how and how often a run computes and saves
UNSHOWN = (
    "dataset_name", "output_dir", "use_cpu", "bf16", "disable_tqdm", "eval_steps", "save_steps", "save_total_limit",
    "preprocessing_num_workers", "resume_from_checkpoint",
)  # fmt: skip


def read_evaluation(name: str) -> dict[str, Any]:
    """What the weights of a published folder reach."""
    return json.loads((MODEL_CARDS / name / "evaluation.json").read_text(encoding="utf-8"))


def read_stories() -> dict[str, Any]:
    """The GPT's samples: prompts, settings with their figures, and three stories per prompt."""
    return json.loads((MODEL_CARDS / WRITER / "stories.json").read_text(encoding="utf-8"))


def read_group(name: str, prefix: str) -> dict[str, Record]:
    """A folder's records of one training with several seeds, by name."""
    records = read_records(MODEL_CARDS / name / "records")
    return {key: record for key, record in records.items() if re.fullmatch(rf"{prefix}\d", key)}


def published_record(name: str) -> Record:
    """The record of the published weights: of several seeds, the one with the lowest validation loss."""
    if name == WRITER:
        return read_records(MODEL_CARDS / name / "records")["best"]
    return min(read_group(name, "seed").values(), key=lambda record: record["metrics"]["validation"]["loss"])


def format_range(values: list[float], digits: int = 0) -> str:
    """For example "110 to 116", or "111"."""
    return " to ".join(dict.fromkeys(f"{value:.{digits}f}" for value in (min(values), max(values))))


def format_budget(records: list[Record]) -> str:
    """The minutes of the same training with several seeds, and its epochs if they have a sum."""
    text, epochs = f"{format_range([record['minutes'] for record in records])} minutes", records[0]["epochs"]
    return text if epochs is None else f"{text}, {epochs:.0f} epochs"


def format_millions(record: Record) -> str:
    """A record's number of parameters, for example "2.3 M"."""
    return f"{record['parameters'] / 1e6:.1f} M"


def bits_per_byte(record: Record) -> str:
    """A language model's validation figure."""
    return f"{record['metrics']['validation']['bits_per_byte']:.3f}"


def mean_score(name: str, prefix: str, score: str = "bleu_moses") -> float:
    """The mean of a test score over the seeds of one training."""
    return mean(read_evaluation(name)["runs"][key][score] for key in read_group(name, prefix))


# the documents


def format_results() -> str:
    """The table of /README.md. Each row has the same data on both sides, and both budgets."""
    translator, writer = (read_records(MODEL_CARDS / name / "records") for name in (TRANSLATOR, WRITER))
    early, gpt2 = writer["r_drop"], writer["stock_gpt2"]
    moses = read_evaluation(TRANSLATOR)["metrics"]["test"]["bleu_moses"]
    bits = read_evaluation(WRITER)["metrics"]["validation"]["bits_per_byte"]
    rows = []
    for what, prefix in (("Multi30k only", "long_seed"), ("and 17 epochs with R-Drop", "r_drop_seed")):
        name = f"Transformer, {format_millions(translator['seed1'])}, {what}, mean of 3 seeds"
        budget = format_budget([*read_group(TRANSLATOR, prefix).values()])
        rows.append([name, "BLEU (Moses)", mean_score(TRANSLATOR, prefix), budget, WU, WU_BLEU, "not reported"])
    name, budget = (
        f"[distilled (the published model)](model_cards/{TRANSLATOR})",
        format_time(published_record(TRANSLATOR)),
    )
    rows.append([name, "BLEU (Moses)", moses, f"{budget}, without its teachers", "", "", ""])
    name, score, budget = f"GPT, {format_millions(early)}", bits_per_byte(early), format_budget([early])
    others = bits_per_byte(gpt2), format_budget([gpt2])
    rows.append([name, "bits per byte", score, budget, "GPT-2 of the same size", *others])
    name, budget = f"[after all stages (the published model)](model_cards/{WRITER})", format_budget([writer["best"]])
    rows.append([name, "bits per byte", f"{bits:.3f}", budget, "no GPT-2 was trained for as long", "", ""])
    header = ["trained here", "metric", "result", "budget", "for comparison", "its result", "its budget"]
    seeds = [read_evaluation(TRANSLATOR)["runs"][key]["bleu_moses"] for key in read_group(TRANSLATOR, "r_drop_seed")]
    half, mean_published = writer["stock_gpt2_10"], mean_score(TRANSLATOR, "seed")
    notes = (
        "- Translators: lower-cased BLEU with Moses tokens on the 1,000 test sentences of Multi30k en-de; higher is "
        "better. Wu et al. train a post-norm model of the same size. The seeds with R-Drop reach "
        f"{format_range(seeds, 2)}; that stage also has weight decay and a cosine. Published is the seed with "
        f"the lowest validation loss; the mean of its three is {mean_published:.2f}. Its teachers saw the same 29,000 "
        f"pairs. [All runs](model_cards/{TRANSLATOR}/RUNS.md).\n"
        "- GPTs: 2.35 MB of TinyStories; bits per byte of 160 validation stories, which also chose the checkpoint; "
        "lower is better. Ours was trained in bfloat16, in its last 4 epochs with R-Drop. GPT-2 was trained in "
        f"float32; in bfloat16, {half['epochs']:.0f} epochs took {half['minutes']:.0f} minutes and reached "
        f"{bits_per_byte(half)}. [All runs](model_cards/{WRITER}/RUNS.md). All ran on one CPU core of a kind that "
        "was not recorded."
    )
    return f"{format_table(header, rows)}\n\n{notes}"


def format_models() -> str:
    """The table of model_cards/README.md: what the published weights reach."""
    rows = []
    for name in (TRANSLATOR, LARGER, WAY_BACK, WRITER):
        record, metrics = published_record(name), read_evaluation(name)["metrics"]
        if name == WRITER:
            score, others = f"{metrics['validation']['bits_per_byte']:.3f} bits per byte", ""
        else:
            score, seeds = f"{metrics['test']['bleu']:.2f} BLEU", read_group(name, "seed")
            others = f"{mean_score(name, 'seed', 'bleu'):.2f}, {len(seeds)} seeds" if len(seeds) > 1 else ""
        cells = [f"{record['parameters']:,}", record["recipe"], score, others, format_time(record)]
        rows.append([f"[{name}]({name}/README.md)", *cells])
    header = [
        "model",
        "parameters",
        "last recipe",
        "published weights",
        "mean over seeds of the last stage",
        "minutes, without teachers",
    ]
    return format_table(header, rows)


def format_articles() -> str:
    """The table of hf_scratch/convert/README.md that compares the articles' experiments with ours."""
    records, rows = read_records(RECORDS), []
    for each in parse_yaml(ARTICLES.read_text(encoding="utf-8")):
        runs = [record for key, record in records.items() if key.startswith(each["records"])]
        cells = [each["reports"], _results(runs), _budget(runs), each["differs"]]
        rows.append([f"`{each['article']}`", f"`{runs[0]['recipe']}`", *cells])
    head = ["article", "recipe", "the article reports", "its recipe gives here", "budget", "what differs, and why"]
    return format_table(head, rows)


def _results(runs: list[Record]) -> str:
    """What a recipe reached, with one value for each seed."""
    validation, test = (runs[0]["metrics"].get(split, {}) for split in ("validation", "test"))
    if "accuracy" in test:
        right = ", ".join(f"{100 * run['metrics']['test']['accuracy']:.1f}" for run in runs)
        seeds = ", ".join(str(run["seed"]) for run in runs)
        return f"**{right} %** of {test['answers']:,} test products right (seeds {seeds})"
    if "rougeL" in test:
        return f"ROUGE-L **{test['rougeL']:.1f}** on {test['sentences']} test stories"
    if "bleu" in test:
        text = f"validation loss {validation['loss']:.2f}, test BLEU **{test['bleu']:.2f}** (13a, cased)"
        if runs[0]["recipe"] == "multi30k_article":  # the others smooth the labels in training
            losses = [entry["loss"] for entry in runs[0]["log"] if "loss" in entry]
            text = f"training loss {losses[-1] if losses else math.nan:.2f}, {text}"
        return text
    return f"**{validation['bits_per_byte']:.2f} bits per byte**, {validation['loss']:.2f} nats per token"


def _budget(runs: list[Record]) -> str:
    """How long the runs were, and for annotated-seq2seq how long its 1,000 epochs would be."""
    run, minutes = runs[0], [run["minutes"] for run in runs if run["minutes"] is not None]
    text = f"{run['updates']:,} steps ({run['epochs']:.1f} epochs), {format_range(minutes)} minutes"
    if run["recipe"] == "multi30k_article" and run["epochs"] is not None:
        text += f"; 1,000 epochs would take {1000 * run['minutes'] / run['epochs'] / 60 / 24:.0f} days"
    return text


# the cards, and the RUNS.md beside each


def format_rounds(name: str) -> str:
    """A translator's trainings one after the other: means over the models of each, beside what others report."""
    figures, rows = read_evaluation(name)["runs"], []
    for prefix, what in ROUNDS[name].items():
        group = read_group(name, prefix)
        losses = [record["metrics"]["validation"]["loss"] for record in group.values()]
        scores = [mean(figures[key][score] for key in group) for score in ("bleu", "bleu_moses", "chrf")]
        minutes = format_range([record["minutes"] for record in group.values()])
        rows.append([what, len(group), minutes, f"{mean(losses):.3f}", *scores])
    if name == TRANSLATOR:
        rows.append([WU, "", "", "", "", WU_BLEU, ""])
    header = ["training", "models", "minutes", "validation loss", "test BLEU, cased", "Moses, lower-cased", "chrF"]
    return format_table(header, rows)


def format_stories_budgets() -> str:
    """The GPT beside GPT-2, with the budget of each."""
    records = read_records(MODEL_CARDS / WRITER / "records")
    rows = []
    names = {"stock_gpt2": "GPT-2 of the same size, stock Trainer", "r_drop": "this model, after two of its stages"}
    for name, what in {**names, "best": "this model, published"}.items():
        rows.append([what, f"`{name}`", format_budget([records[name]]), bits_per_byte(records[name])])
    return format_table(["model", "run", "budget", "bits per byte"], rows)


def format_runs(name: str) -> str:
    """The table of all runs of a published folder."""
    is_writer, lines = name == WRITER, []
    figures = read_evaluation(name).get("runs", {})
    for key, run in read_records(MODEL_CARDS / name / "records").items():
        metrics, test = run["metrics"]["validation"], figures.get(key, {})
        cells = [f"`{key}`", f"`{run['recipe']}`", format_changes(run), format_updates(run), format_time(run)]
        if is_writer:
            lines.append([*cells, f"{run['parameters']:,}", bits_per_byte(run)])
        else:
            scores = [test.get(score, "") for score in ("bleu", "bleu_moses", "chrf")]
            lines.append([*cells, f"{metrics['loss']:.3f}", metrics["bleu"], *scores])
    scores = ["validation loss", "validation BLEU, greedy", "test BLEU, cased", "Moses, lower-cased", "chrF"]
    scores = ["parameters", "bits per byte"] if is_writer else scores
    return format_table(["run", "recipe", "changes", "steps", "time", *scores], lines)


def format_changes(record: Record) -> str:
    """The flags of a run's last command, without `UNSHOWN`, but with data that a run has made."""
    words = shlex.split(record["command"].splitlines()[-1])
    flags = {}
    for flag in re.split(r"\s(?=--)", " ".join(words))[1:]:
        flags[re.split("[ =]", flag[2:])[0].replace("-", "_")] = flag  # the last of several counts
    shown = (flag for name, flag in flags.items() if name not in UNSHOWN or flag.startswith("--dataset_name runs/"))
    return " ".join(f"`{flag}`" for flag in shown)


def format_sampling() -> str:
    """The sampling settings that the GPT's defaults were chosen from, with the figures of 20 stories each."""
    names, figures = ("temperature", "top_p", "top_k"), ("bits_per_byte", "repetition", "words")
    settings = read_stories()["settings"]
    rows = [[*(setting.get(name, "") for name in names), *(setting[name] for name in figures)] for setting in settings]
    return format_table([*names, "bits per byte", "repeated 4-grams [%]", "words"], rows)
