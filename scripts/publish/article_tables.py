# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""The table of hf_scratch/convert/README.md that compares the articles' experiments with ours, from runs' records."""

import math
from pathlib import Path

from hf_scratch.reporting.records import Record, read_records
from hf_scratch.reporting.tables import format_table

RECORDS = Path(__file__).parents[1] / "recipes" / "records"

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


def article_blocks(folder: Path = RECORDS) -> dict[str, str]:
    """The marked blocks of hf_scratch/convert/README.md.

    Args:
        folder: the records.
    """
    records = read_records(folder)
    rows = []
    for article, name, reports, differs in EXPERIMENTS:
        runs = [record for key, record in records.items() if key.startswith(name)]
        if runs:
            rows.append([f"`{article}`", f"`{runs[0]['recipe']}`", reports, _results(runs), _budget(runs), differs])
    head = ["article", "recipe", "the article reports", "its recipe gives here", "budget", "what differs, and why"]
    return {"articles": format_table(head, rows)}


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
