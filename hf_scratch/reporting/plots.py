# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""The picture of a run: its learning curve."""

import os

from ..errors import extra

with extra("train"):
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogFormatter

FEW_POINTS = 30  # up to this many, each point has a marker


class _PlainLogFormatter(LogFormatter):
    """Writes 0.6 where matplotlib writes 6e-1."""

    def __call__(self, x: float, pos: int | None = None) -> str:
        return f"{x:g}" if super().__call__(x, pos) else ""


def plot_learning_curve(log_history: list[dict], output_dir: str, objective: str = "training objective") -> None:
    """Draw losses over steps. Below them: BLEU and exact matches if the run has them, else the learning rate.

    Args:
        log_history: `trainer.state.log_history`.
        output_dir: the folder of the picture.
        objective: what the training loss is, which may hold more than the cross-entropy with the labels.
    """
    series = {"loss": [], "eval_loss": [], "eval_bleu": [], "eval_exact_match": [], "learning_rate": []}
    has_ended = False
    for entry in log_history:
        # between the end of a training and the next one's first loss: evaluations of weights to choose from
        has_ended = "train_loss" in entry or (has_ended and "loss" not in entry)
        for key, points in series.items():
            if key in entry and not has_ended:
                points.append((entry["step"], entry[key]))
    if not series["loss"]:  # a run shorter than `logging_steps` has the mean of all its steps alone
        series["loss"] = [(entry["step"], entry["train_loss"]) for entry in log_history if "train_loss" in entry]
    figure = Figure(figsize=(7, 5.5), layout="constrained")
    losses, below = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
    for key, label in (("loss", objective), ("eval_loss", "validation loss")):
        _plot_points(losses, series[key], label=label)
    losses.set_title("learning curve", fontsize=10, loc="left")
    losses.set_ylabel("loss [nats per token]")
    if losses.lines:
        losses.legend()
    losses.set_yscale("log")  # the high losses at the start, or of a run that diverges, do not flatten the rest
    losses.yaxis.set_major_formatter(_PlainLogFormatter())
    losses.yaxis.set_minor_formatter(_PlainLogFormatter(minor_thresholds=(2, 0.5)))
    if series["eval_bleu"] or series["eval_exact_match"]:
        _plot_points(below, series["eval_bleu"], color="tab:green", marker="o", label="BLEU")
        percent = [(step, 100 * share) for step, share in series["eval_exact_match"]]
        _plot_points(below, percent, color="tab:red", marker="x", label="exact matches [%]")
        below.set_ylabel("validation")
        below.legend()
    else:
        _plot_points(below, series["learning_rate"], color="tab:green")
        below.set_ylabel("learning rate")
    below.set_xlabel("step")
    for axis in (losses, below):
        axis.grid(alpha=0.3)
    figure.savefig(os.path.join(output_dir, "learning_curve.png"), dpi=120)


def _plot_points(axis: Axes, points: list[tuple[float, float]], **style) -> None:
    """Draw a line through (x, y) points. A few points have markers, so that a single one shows."""
    if points:
        style.setdefault("marker", "." if len(points) <= FEW_POINTS else None)
        axis.plot(*zip(*points, strict=True), **style)
