# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""The benchmark's pictures, from the same values as its tables."""

import itertools
from pathlib import Path
from statistics import mean
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from choice_tables import BASE, METRICS, RUNS, group_by_choice, metric_values
from matplotlib.axes import Axes
from tables import share_of_target

from hf_scratch.reporting.plots import find_limits
from hf_scratch.reporting.records import Record


def plot_ratios(rows: list[dict[str, Any]], path: Path, longest: float = 2.5) -> None:
    """Draw one bar per row, as long as the share of its target that it reaches.

    Args:
        rows: the report's rows; those that were not measured are left out.
        path: the picture's file.
        longest: bars are cut at this share.
    """
    rows = [row for row in rows if not row["missing"]][::-1]
    figure, axis = plt.subplots(figsize=(8, 1 + 0.34 * len(rows)), layout="constrained")
    for i, row in enumerate(rows):
        length = min(share_of_target(row), longest)
        axis.barh(i, length, color="tab:green" if length >= 1 else "tab:orange", height=0.7)
        text = f"{row['ratio']:.2f} ({'<' if row['at_most'] else '≥'} {row['target']:g})"
        text += f" against {row['peer']}" if row["peer"] else " seconds"
        axis.text(max(length, 1) + 0.03, i, text, va="center", fontsize=8)
    axis.axvline(1, color="black", linewidth=1)
    axis.set_yticks(range(len(rows)), [row["name"] for row in rows])
    axis.set_xticks([0, 0.5, 1, 1.5, 2, longest], ["0", "0.5", "target", "1.5", "2", f"≥ {longest}"])
    axis.set_xlim(0, longest + 1.5)
    axis.set_title("each bar: its measured ratio, the target in brackets, and the peer", fontsize=10, loc="left")
    axis.set_xlabel("share of the target that is reached")
    axis.set_ylabel("work")
    axis.set_axisbelow(True)
    axis.grid(axis="x", alpha=0.3)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def plot_growth(points: list[dict[str, Any]], path: Path) -> None:
    """Draw seconds and memory over length, width and batch size, with logarithmic axes.

    Args:
        points: the report's growth.
        path: the picture's file.
    """
    titles = {
        "length": "4,096 tokens, 256 wide",
        "width": "4 rows of 256 tokens",
        "batch": "rows of 256 tokens, 256 wide",
    }
    units = {"length": "length [tokens]", "width": "width [dimensions]", "batch": "batch [rows]"}
    colors = dict(zip(points[0]["training"], ("tab:blue", "tab:orange"), strict=True))
    figure, axes = plt.subplots(2, 3, figsize=(11, 6), sharex="col", sharey="row", layout="constrained")
    for (row, key), (column, name) in itertools.product(enumerate(("seconds", "MiB")), enumerate(titles)):
        axis, selected = axes[row, column], [point for point in points if point["axis"] == name]
        values = [point["value"] for point in selected]
        for model, mode in itertools.product(colors, ("training", "inference")):
            style = {"color": colors[model], "marker": "o", "markersize": 4, "label": f"{model}, {mode}"}
            style["linestyle"] = "-" if mode == "training" else "--"
            axis.plot(values, [point[mode][model][key] for point in selected], **style)
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.set_xticks(values, [f"{value:,}" for value in values])
        axis.grid(alpha=0.3)
        if row == 0:
            axis.set_title(titles[name])
        else:
            axis.set_xlabel(units[name])
    figure.suptitle("seconds and memory of one step; both axes are logarithmic", fontsize=10)
    axes[0, 0].set_ylabel("time [seconds per step]")
    axes[1, 0].set_ylabel("peak memory [MiB]")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def plot_choices(records: dict[str, Record], path: Path) -> None:
    """Draw each run's validation loss and BLEU as a point, one line per choice. An outlier is written at the edge.

    Args:
        records: by `name_seed1`.
        path: the picture's file.
    """
    runs = group_by_choice(records, RUNS)
    figure, axes = plt.subplots(1, 2, figsize=(10, 1.2 + 0.34 * len(runs)), sharey=True, layout="constrained")
    for axis, (metric, (title, unit, digits)) in zip(axes, METRICS.items(), strict=True):
        limits = find_limits([value for seeds in runs.values() for value in metric_values(seeds, metric)])
        if limits is not None:
            margin = 0.15 * (limits[1] - limits[0])
            axis.set_xlim(limits[0] - margin, limits[1] + margin)
        for i, (name, seeds) in enumerate(runs.items()):
            values = sorted(metric_values(seeds, metric))
            axis.plot(values, [i] * len(values), "o-", color="black" if name == BASE else "tab:blue")
            _write_outliers(axis, i, values, digits)
        axis.axvline(mean(metric_values(runs[BASE], metric)), color="black", linewidth=1, linestyle=":")
        axis.set_xlabel(f"{title} [{unit}]")
        axis.grid(alpha=0.3)
    axes[0].set_yticks(range(len(runs)), list(runs))
    axes[0].set_ylabel("choice")
    axes[0].invert_yaxis()
    figure.suptitle("each point: one seed; dotted: the mean of the unchanged recipe", fontsize=10, x=0.01, ha="left")
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _write_outliers(axis: Axes, y: float, values: list[float], digits: int) -> None:
    """Write the values that are outside the x axis at its ends."""
    low, high = axis.get_xlim()
    style = {"transform": axis.get_yaxis_transform(), "va": "center", "fontsize": 8}
    if below := [f"{value:.{digits}f}" for value in values if value < low]:
        axis.text(0.01, y, f"← {', '.join(below)}", ha="left", **style)
    if above := [f"{value:.{digits}f}" for value in values if value > high]:
        axis.text(0.99, y, f"{', '.join(above)} →", ha="right", **style)
