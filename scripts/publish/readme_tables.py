# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""The results tables of the READMEs, from the records of the published folders and of the articles' recipes."""

import math
from pathlib import Path
from statistics import mean

from hf_scratch.reporting.records import Record, read_records
from hf_scratch.reporting.tables import format_table

RECORDS = Path(__file__).parents[1] / "recipes" / "records"
MODEL_CARDS = Path(__file__).parents[2] / "model_cards"
TRANSLATOR, WRITER = "scratch-transformer-multi30k-en-de", "scratch-gpt-tinystories"
WAY_BACK, LARGER = "scratch-transformer-multi30k-de-en", f"{TRANSLATOR}-7m"

# what others report
ARTICLE_BLEU = 25.7  # annotated-seq2seq, without a signature
TRANSFORMER_TINY_BLEU = 41.02  # Wu et al. 2021, text only, lower-cased with Moses tokens

# for each experiment: the article, the start of its records' names, what the article reports, and what differs here
EXPERIMENTS = (
    (
        "gpt-playground",
        "multiplication_random",
        "93.60 % of held-out products right (its repository)",
        "The repository does not give the model's size; here 4 layers, 128 wide.",
    ),
    (
        "gpt-playground",
        "multiplication_both_orders",
        "nothing",
        "A harder split: a * b is held out together with b * a.",
    ),
    (
        "gpt-playground",
        "tinystories_char",
        "nothing: it names no data for its text by characters",
        "The data, the size (6 layers, 256 wide) and the training are ours.",
    ),
    (
        "annotated-seq2seq",
        "multi30k_article",
        "training loss 1.2493, test loss 2.5804, BLEU 25.7 without a signature, after 1,000 epochs on A10 GPUs",
        "The article gives no vocabularies; here words that occur at least twice. The LayerNorm is the standard one, "
        "into which the article's folds exactly.",
    ),
    (
        "gelu-seq2seq",
        "multi30k_gelu",
        "nothing: it describes no training",
        "Its code cannot be trained to translate; what was corrected is listed below. Size and training are ours.",
    ),
    (
        "paper-seq2seq",
        "multi30k_paper",
        "nothing: it describes no training",
        "Its blocks are put together as its prose says, corrected as below. Size and training are ours. It has no "
        "dropout: the validation loss is lowest after 1,500 updates, whose weights are kept.",
    ),
    (
        "paper-seq2seq",
        "summaries",
        "nothing: it names summarization as a use",
        "Stories from a small grammar, and a sentence each.",
    ),
    (
        "tinystories-notes",
        "tinystories_article",
        "no figure: it prints the training loss of one epoch",
        "2.35 MB of stories in many epochs, not 500,000 stories in one; 4,000 tokens learnt here, not BERT's 30,522. "
        "The loss does not count `[PAD]`, see below.",
    ),
)


def readme_blocks() -> dict[str, str]:
    """The results of /README.md."""
    seeds, stories = read_seeds(MODEL_CARDS / TRANSLATOR), read_records(MODEL_CARDS / WRITER / "records")
    bleu, moses = (mean_score(seeds, name) for name in ("bleu", "bleu_moses"))
    notes = read_records(RECORDS)["tinystories_article"]
    best, article, stock = (validation_bits(record) for record in (stories["best"], notes, stories["stock_gpt2"]))
    larger = mean_score(read_seeds(MODEL_CARDS / LARGER), "bleu_moses")
    minutes = [record["minutes"] for record in seeds]
    rows = [
        [
            f"[Transformer](model_cards/{TRANSLATOR}), {format_millions(seeds[0])} parameters",
            f"Multi30k en-de ([and back](model_cards/{WAY_BACK})), 1,000 test sentences",
            f"**{bleu:.2f} BLEU** (cased, 13a); {moses:.2f} lower-cased with Moses tokens "
            f"([7 M](model_cards/{LARGER}): {larger:.2f})",
            f"annotated-seq2seq: {ARTICLE_BLEU}; Wu et al. 2021: {TRANSFORMER_TINY_BLEU} (Moses)",
            f"mean of {len(seeds)} seeds of the last training; {min(minutes):.0f} to {max(minutes):.0f} minutes each "
            "without their teachers, one CPU core",
        ],
        [
            f"[GPT](model_cards/{WRITER}), {format_millions(stories['best'])} parameters",
            "2.35 MB of TinyStories, 160 validation stories",
            f"**{best:.3f} bits per byte**",
            f"the model of tinystories-notes, trained here: {article:.3f}; GPT-2 of the same size: {stock:.3f}",
            f"one seed; {stories['best']['minutes']:.0f} minutes, one CPU core",
        ],
    ]
    return {"results": format_table(["trained here", "data", "result", "for comparison", "training"], rows)}


def index_blocks() -> dict[str, str]:
    """The tables of model_cards/README.md."""
    stories = read_records(MODEL_CARDS / WRITER / "records")
    stories_rows = [
        [f"`{name}`", f"{record['parameters']:,}", f"{validation_bits(record):.3f}", f"{record['minutes']:.0f}"]
        for name, record in sorted(stories.items(), key=lambda item: validation_bits(item[1]))
    ]
    return {
        "translator": format_test_scores(read_seeds(MODEL_CARDS / TRANSLATOR)),
        "way_back": format_test_scores(read_seeds(MODEL_CARDS / WAY_BACK)),
        "writer": format_table(["run", "parameters", "bits per byte", "minutes"], stories_rows),
    }


def format_test_scores(seeds: list[Record]) -> str:
    """The table of a translator's test scores: mean, lowest and highest of its seeds, and the published one's."""
    published = published_seed(seeds)
    header = ["metric", f"mean of {len(seeds)} models", "lowest", "highest", f"seed {published['seed']}, published"]
    metrics = {"BLEU, cased (13a)": "bleu", "BLEU, lower-cased, Moses tokens": "bleu_moses", "chrF": "chrf"}
    rows = []
    for label, name in metrics.items():
        values = [record["metrics"]["test"][name] for record in seeds]
        rows.append([label, mean(values), min(values), max(values), published["metrics"]["test"][name]])
    return format_table(header, rows)


def article_blocks() -> dict[str, str]:
    """The table of hf_scratch/convert/README.md that compares the articles' experiments with ours."""
    records, rows = read_records(RECORDS), []
    for article, name, reports, differs in EXPERIMENTS:
        runs = [record for key, record in records.items() if key.startswith(name)]
        rows.append([f"`{article}`", f"`{runs[0]['recipe']}`", reports, _results(runs), _budget(runs), differs])
    head = ["article", "recipe", "the article reports", "its recipe gives here", "budget", "what differs, and why"]
    return {"articles": format_table(head, rows)}


def read_seeds(folder: Path) -> list[Record]:
    """The records of the published training with each of its seeds."""
    return [record for name, record in read_records(folder / "records").items() if name.startswith("seed")]


def published_seed(seeds: list[Record]) -> Record:
    """The one of them that is published: it has the lowest validation loss."""
    return min(seeds, key=lambda record: record["metrics"]["validation"]["loss"])


def mean_score(records: list[Record], name: str) -> float:
    """The mean of a test metric."""
    return mean(record["metrics"]["test"][name] for record in records)


def validation_bits(record: Record) -> float:
    """A language model's validation bits per byte."""
    return record["metrics"]["validation"]["bits_per_byte"]


def format_millions(record: Record) -> str:
    """A record's number of parameters, for example "2.3 M"."""
    return f"{record['parameters'] / 1e6:.1f} M"


def _results(runs: list[Record]) -> str:
    """What a recipe reached, with one value for each seed."""
    validation = [run["metrics"]["validation"] for run in runs]
    test = [run["metrics"].get("test", {}) for run in runs]
    if "accuracy" in test[0]:
        right = ", ".join(f"{100 * metrics['accuracy']:.1f}" for metrics in test)
        seeds = f"seed{'s' * (len(runs) > 1)} " + ", ".join(str(run["seed"]) for run in runs)
        return f"**{right} %** of {test[0]['answers']:,} test products right ({seeds})"
    if "rougeL" in test[0]:
        return f"ROUGE-L **{test[0]['rougeL']:.1f}** on {test[0]['sentences']} test stories"
    if "bleu" in test[0]:
        text = f"validation loss {validation[0]['loss']:.2f}, test BLEU **{test[0]['bleu']:.2f}** (13a, cased)"
        if runs[0]["recipe"] == "multi30k_article":  # the others smooth the labels in training
            losses = [entry["loss"] for entry in runs[0]["log"] if "loss" in entry]
            text = f"training loss {losses[-1] if losses else math.nan:.2f}, {text}"
        return text
    return f"**{validation[0]['bits_per_byte']:.2f} bits per byte**, {validation[0]['loss']:.2f} nats per token"


def _budget(runs: list[Record]) -> str:
    """How long the runs were, and for annotated-seq2seq how long its 1,000 epochs would be."""
    run, minutes = runs[0], [run["minutes"] for run in runs if run["minutes"] is not None]
    spent = " to ".join(dict.fromkeys(f"{value:.0f}" for value in (min(minutes), max(minutes))))
    epochs = run["epochs"]
    text = f"{run['updates']:,} updates{'' if epochs is None else f' ({epochs:.1f} epochs)'}, {spent} minutes"
    if run["recipe"] == "multi30k_article" and epochs is not None:
        days = 1000 * run["minutes"] / epochs / 60 / 24
        text += f"; 1,000 epochs would take {days:.0f} days"
    return text
