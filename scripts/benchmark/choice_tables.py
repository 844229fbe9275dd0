# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""The choices that choices.py compares, with the table and the picture of its runs."""

from pathlib import Path
from statistics import mean, variance

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt

from hf_scratch.reporting.records import Record
from hf_scratch.reporting.tables import format_table

BASE = "base"
# for each name: what differs from the base, and the flags that say so
CHOICES = {
    BASE: ("the recipe: norm before, label smoothing 0.1, warm-up, sinusoids, tied, dropout 0.3", ""),
    "post_norm": ("norm after the sub-layers, as in the paper", "--config_overrides norm_first=false"),
    "no_label_smoothing": ("no label smoothing", "--label_smoothing_factor 0"),
    "no_warmup": ("no warm-up", "--warmup_steps 0"),
    "learned_positions": ("learned positions", "--config_overrides position_embedding_type=learned"),
    "unscaled_embeddings": ("embeddings not scaled by sqrt(d_model)", "--config_overrides scale_embedding=false"),
    "untied_head": ("a head of its own, not the embeddings", "--config_overrides tie_word_embeddings=false"),
    "normal_init": ("all weights drawn from N(0, 0.02)", "--config_overrides initializer=normal"),
    "xavier_all": ("Xavier for embeddings too", "--config_overrides initializer=xavier_uniform_all"),
    "torch_init": ("torch's own initial weights", "--config_overrides initializer=torch"),
    "gelu": ("GELU for ReLU", "--config_overrides activation_function=gelu"),
    "dropout_01": ("dropout 0.1, as in the paper", "--config_overrides dropout=0.1"),
    "separate_vocabularies": ("a vocabulary for each language", "--tokenizer_kind separate"),
}
COLUMNS = (
    ("validation loss", "validation", "loss"),
    ("validation BLEU", "validation", "bleu"),
    ("test BLEU", "test", "bleu"),
)


def format_choices(records: dict[str, Record]) -> str:
    """The table of the choices that have runs, and a line that says what its numbers are.

    Args:
        records: by `name_seed1`.
    """
    runs = _by_choice(records)
    if BASE not in runs:
        return "Not measured yet."
    spreads = {column: _spread(runs, column) for column in COLUMNS}
    rows = []
    for name, seeds in runs.items():
        cells = []
        for column in COLUMNS:
            values, base = _values(seeds, column), _values(runs[BASE], column)
            difference, digits = mean(values) - mean(base), 3 if column[2] == "loss" else 1
            error = spreads[column] * (1 / len(values) + 1 / len(base)) ** 0.5
            text = f"{mean(values):.{digits}f}"
            if name != BASE:
                text += f" ({difference:+.{digits}f}{'' if abs(difference) > 2 * error else ', within the spread'})"
            cells.append(text)
        what, flags = CHOICES[name]
        rows.append([what, f"`{flags}`" if flags else "", *cells, len(seeds)])
    table = format_table(["choice", "flag", *(column[0] for column in COLUMNS), "seeds"], rows)
    record = next(iter(runs[BASE]))
    deviations = ", ".join(
        f"{spreads[column]:.{3 if column[2] == 'loss' else 2}f} for {column[0]}" for column in COLUMNS
    )
    precision = "bfloat16" if "--bf16 true" in record["command"] else "float32"
    return (
        f"{table}\n\nMeans over the seeds, {record['updates']:,} updates ({record['epochs']:.1f} epochs) each, in "
        f"{precision}. In brackets: the difference from the first row. Two seeds of one choice differ by a standard "
        f"deviation of {deviations}, over all choices with two seeds; a difference of less than two standard errors "
        "is within the spread. BLEU is cased (13a): greedy on the validation set, with 5 beams on the test set."
    )


def plot_choices(records: dict[str, Record], path: Path) -> None:
    """Draw each run's validation loss and BLEU as a point, one line per choice.

    Args:
        records: by `name_seed1`.
        path: the picture's file.
    """
    runs = _by_choice(records)
    figure, axes = plt.subplots(1, 2, figsize=(10, 1.2 + 0.34 * len(runs)), sharey=True, layout="constrained")
    for axis, column, unit in zip(axes, COLUMNS, ("nats per token", "cased, 13a"), strict=False):
        for i, (name, seeds) in enumerate(runs.items()):
            values = _values(seeds, column)
            axis.plot(values, [i] * len(values), "o-", color="black" if name == BASE else "tab:blue")
        axis.axvline(mean(_values(runs[BASE], column)), color="black", linewidth=1, linestyle=":")
        axis.set_xlabel(f"{column[0]} [{unit}]")
        axis.grid(alpha=0.3)
    axes[0].set_yticks(range(len(runs)), list(runs))
    axes[0].set_ylabel("choice")
    axes[0].invert_yaxis()
    figure.suptitle("each point: one seed; dotted: the mean of the unchanged recipe", fontsize=10, x=0.01, ha="left")
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _by_choice(records: dict[str, Record]) -> dict[str, list[Record]]:
    runs = {
        name: [record for key, record in records.items() if key.rpartition("_seed")[0] == name] for name in CHOICES
    }
    return {name: seeds for name, seeds in runs.items() if seeds}


def _values(runs: list[Record], column: tuple[str, str, str]) -> list[float]:
    _, split, metric = column
    return [run["metrics"][split][metric] for run in runs]


def _spread(runs: dict[str, list[Record]], column: tuple[str, str, str]) -> float:
    """The standard deviation between seeds of the same choice, over all choices; infinite if each has one seed."""
    variances = [variance(_values(seeds, column)) for seeds in runs.values() if len(seeds) > 1]
    return mean(variances) ** 0.5 if variances else float("inf")
