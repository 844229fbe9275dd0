# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Pictures: learning curves, masks, positional encodings."""

import math
import os

import torch

from ..errors import extra

with extra("train"):
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FEW_POINTS = 30  # up to this many, each point has a marker


def escape(text: str) -> str:
    """Keep matplotlib from reading "$" as the begin of a formula."""
    return text.replace("$", r"\$")


def plot_learning_curve(log_history: list[dict], output_dir: str, objective: str = "training objective") -> str:
    """Draw losses over steps. Below them: BLEU and exact matches if the run has them, else the learning rate.

    Args:
        log_history: `trainer.state.log_history`.
        output_dir: the folder of the picture.
        objective: what the training loss is, which may hold more than the cross-entropy with the labels.

    Returns:
        The picture's path in `output_dir`.
    """
    series = {"loss": [], "eval_loss": [], "eval_bleu": [], "eval_exact_match": [], "learning_rate": []}
    for entry in log_history:
        if "train_runtime" in entry:  # what follows are evaluations of weights to choose from
            break
        for key, points in series.items():
            if key in entry:
                points.append((entry["step"], entry[key]))
    if not series["loss"]:  # a run shorter than `logging_steps` has the mean of all its updates alone
        series["loss"] = [(entry["step"], entry["train_loss"]) for entry in log_history if "train_loss" in entry]
    figure = Figure(figsize=(7, 5.5), layout="constrained")
    losses, below = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
    for key, label in (("loss", objective), ("eval_loss", "validation loss")):
        _plot_points(losses, series[key], label=label)
    losses.set_title("learning curve", fontsize=10, loc="left")
    losses.set_ylabel("loss [nats per token]")
    if losses.lines:
        losses.legend()
    values = [value for key in ("loss", "eval_loss") for _, value in series[key]]
    _limit_axis(losses, values, find_limits(values))
    if series["eval_bleu"] or series["eval_exact_match"]:
        _plot_points(below, series["eval_bleu"], color="tab:green", marker="o", label="BLEU")
        percent = [(step, 100 * share) for step, share in series["eval_exact_match"]]
        _plot_points(below, percent, color="tab:red", marker="x", label="exact matches [%]")
        below.set_ylabel("validation")
        below.legend()
    else:
        _plot_points(below, series["learning_rate"], color="tab:green")
        below.set_ylabel("learning rate")
    below.set_xlabel("step [updates]")
    for axis in (losses, below):
        axis.grid(alpha=0.3)
    return save_figure(figure, output_dir, "learning_curve.png")


def plot_runs(logs: dict[str, list[dict]], output_dir: str) -> str:
    """Draw the validation scores of several runs over steps: BLEU, else bits per byte, else the loss.

    Each run has a panel of its own, with all other runs in grey behind it, and its best score in the title.

    Args:
        logs: for each run's name its `trainer.state.log_history`.
        output_dir: the folder of the picture.

    Returns:
        The picture's path in `output_dir`.
    """
    names = {
        "eval_bleu": "validation BLEU, greedy",
        "eval_bits_per_byte": "validation bits per byte",
        "eval_loss": "validation loss [nats per token]",
    }
    logged = {key for log in logs.values() for entry in log for key in entry}
    key = next((key for key in names if key in logged), "eval_loss")
    choose_best = max if key == "eval_bleu" else min
    runs = {label: [(entry["step"], entry[key]) for entry in log if key in entry] for label, log in logs.items()}
    runs = {label: points for label, points in runs.items() if points}
    best = {label: choose_best(value for _, value in points) for label, points in runs.items()}
    limits = find_limits([value for points in runs.values() for _, value in points])
    columns = min(max(len(runs), 1), 4)
    rows = -(-max(len(runs), 1) // columns)
    figure = Figure(figsize=(1 + 2.4 * columns, 0.8 + 1.7 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    for axis in axes.flat[len(runs) :]:
        axis.remove()
    ordered = sorted(runs, key=best.__getitem__, reverse=choose_best is max)
    for i, (label, axis) in enumerate(zip(ordered, axes.flat, strict=False)):
        for other in runs.values():
            _plot_points(axis, other, color="0.85", linewidth=0.8, marker=".", markersize=2)
        _plot_points(axis, runs[label], color="tab:blue", marker=".")
        _limit_axis(axis, [value for _, value in runs[label]], limits)
        axis.set_title(escape(f"{label}: {best[label]:.4g}"), fontsize=8)
        axis.tick_params(labelsize=7, labelbottom=i + columns >= len(runs))
        axis.locator_params(axis="x", nbins=4)  # more labels would touch
        axis.grid(alpha=0.3)
    figure.supxlabel("step [updates]", fontsize=9)
    figure.supylabel(names[key], fontsize=9)
    figure.suptitle("each run against all others (grey); its best score is in the title", fontsize=9)
    return save_figure(figure, output_dir, "runs.png")


def _plot_points(axis: Axes, points: list[tuple[float, float]], **style) -> None:
    """Draw a line through (x, y) points. A few points have markers, so that a single one shows."""
    if points:
        style.setdefault("marker", "." if len(points) <= FEW_POINTS else None)
        axis.plot(*zip(*points, strict=True), **style)


def find_limits(values: list[float]) -> tuple[float, float] | None:
    """Where a y axis should end, so that outliers do not squeeze the rest: the last values inside the outer fences.

    The outer fences (Tukey) are three times the distance of the quartiles beyond them.

    Args:
        values: all values to draw.

    Returns:
        The lowest and the highest value inside. None: all values are inside.
    """
    finite = torch.tensor([value for value in values if math.isfinite(value)], dtype=torch.double)
    if len(finite) < 4:
        return None
    low, high = torch.quantile(finite, torch.tensor([0.25, 0.75], dtype=torch.double)).tolist()
    inside = finite[(finite >= low - 3 * (high - low)) & (finite <= high + 3 * (high - low))]
    if high == low or len(inside) == len(finite):
        return None
    return float(inside.min()), float(inside.max())


def _limit_axis(axis: Axes, values: list[float], limits: tuple[float, float] | None) -> None:
    """End the y axis at the limits, but not below 0, and count the values outside where the curves leave room."""
    if limits is None:
        axis.set_ylim(bottom=max(axis.get_ylim()[0], 0))
        return
    bottom, top = limits
    outside = sum(not bottom <= value <= top for value in values)
    space = 0.15 if outside else 0.05  # below the curves, for the note
    start = bottom - space * (top - bottom)
    axis.set_ylim(max(start, 0), top + 0.05 * (top - bottom))
    if outside:
        text, height = f"{outside} of {len(values)} values are outside", 0.03 if start >= 0 else 0.5
        axis.text(0.98, height, text, transform=axis.transAxes, ha="right", va="bottom", fontsize=7, color="0.3")


def save_figure(figure: Figure, output_dir: str, name: str) -> str:
    """Write a figure into a folder as a PNG file, and return its path."""
    path = os.path.join(output_dir, name)
    figure.savefig(path, dpi=120)
    return path
