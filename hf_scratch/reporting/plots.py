# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Pictures: learning curves, attention maps and masks, positional encodings."""

import os

import matplotlib
import torch

matplotlib.use("Agg")  # draws into files: the scripts also run where there is no screen

import matplotlib.pyplot as plt


def plot_learning_curve(log_history: list[dict], output_dir: str, name: str = "learning_curve.png") -> str:
    """Draw losses over steps. Below them: BLEU and exact matches if the run has them, else the learning rate.

    BLEU needs four words in a row, so it is 0 for one-word answers; exact matches cover those.

    Args:
        log_history: `trainer.state.log_history`.
        output_dir: the folder of the picture.
        name: the picture's file name.

    Returns:
        The picture's path in `output_dir`.
    """
    series = {"loss": [], "eval_loss": [], "eval_bleu": [], "eval_exact_match": [], "learning_rate": []}
    for entry in log_history:
        for key, points in series.items():
            if key in entry:
                points.append((entry["step"], entry[key]))
    figure, (losses, below) = plt.subplots(
        2, 1, figsize=(7, 5.5), sharex=True, height_ratios=(2, 1), layout="constrained"
    )
    for key, label in (("loss", "training (with label smoothing, if any)"), ("eval_loss", "validation")):
        if series[key]:
            losses.plot(*zip(*series[key], strict=True), label=label)
    losses.set_ylabel("loss [nats per token]")
    if losses.lines:
        losses.legend()
    losses.grid(alpha=0.3)
    if series["eval_bleu"]:
        below.plot(*zip(*series["eval_bleu"], strict=True), color="tab:green", marker="o", label="BLEU")
        if series["eval_exact_match"]:
            percent = [(step, 100 * share) for step, share in series["eval_exact_match"]]
            below.plot(*zip(*percent, strict=True), color="tab:red", marker="x", label="exact matches [%]")
        below.set_ylabel("validation")
        below.legend()
    elif series["learning_rate"]:
        below.plot(*zip(*series["learning_rate"], strict=True), color="tab:green")
        below.set_ylabel("learning rate")
    below.set_xlabel("step")
    below.grid(alpha=0.3)
    return _save(figure, output_dir, name)


def plot_runs(logs: dict[str, list[dict]], output_dir: str, name: str = "runs.png") -> str:
    """Draw the validation scores of several runs over steps: BLEU, else bits per byte, else the loss.

    Args:
        logs: for each run's name its `trainer.state.log_history`.
        output_dir: the folder of the picture.
        name: the picture's file name.

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
    figure, axis = plt.subplots(figsize=(7, 5), layout="constrained")
    axis.set_prop_cycle(color=matplotlib.color_sequences["tab20"])
    for label, log in logs.items():
        points = [(entry["step"], entry[key]) for entry in log if key in entry]
        if points:
            axis.plot(*zip(*points, strict=True), marker=".", label=label)
    axis.set_xlabel("step")
    axis.set_ylabel(names[key])
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8)
    return _save(figure, output_dir, name)


def plot_attention(
    weights: torch.Tensor, queries: list[str], keys: list[str], output_dir: str, name: str = "attention.png"
) -> str:
    """Draw one attention map per head, at most four in a row.

    Args:
        weights: (heads, queries, keys), of one layer and one sentence. Only a model with
            `attn_implementation="eager"`, called with `output_attentions=True`, returns them.
        queries: the tokens that attend.
        keys: the tokens that are attended to.
        output_dir: the folder of the picture.
        name: the picture's file name.

    Returns:
        The picture's path in `output_dir`.

    Raises:
        ValueError: the weights' shape does not match the numbers of tokens.
    """
    if weights.dim() != 3 or weights.shape[1:] != (len(queries), len(keys)):
        raise ValueError(
            f"`weights` must be (heads, {len(queries)}, {len(keys)}) for these tokens, got {tuple(weights.shape)}."
        )
    heads = weights.shape[0]
    columns = min(heads, 4)
    rows = -(-heads // columns)
    figure, axes = plt.subplots(
        rows,
        columns,
        figsize=(1.2 + 0.32 * len(keys) * columns, (1.2 + 0.28 * len(queries)) * rows),
        squeeze=False,
        sharey=True,
        layout="constrained",
    )
    for axis in axes.flat[heads:]:
        axis.remove()
    for head, axis in enumerate(axes.flat[:heads]):
        axis.imshow(weights[head].detach().float().cpu().numpy(), cmap="viridis", vmin=0, vmax=1, aspect="auto")
        axis.set_title(f"head {head}", fontsize=9)
        axis.set_xticks(range(len(keys)), keys, rotation=90, fontsize=8)
        axis.set_yticks(range(len(queries)), queries, fontsize=8)
    return _save(figure, output_dir, name)


def plot_positional_encoding(table: torch.Tensor, output_dir: str, name: str = "positions.png") -> str:
    """Draw the positional encoding of section 3.5 of the paper as an image.

    Args:
        table: (positions, width).
        output_dir: the folder of the picture.
        name: the picture's file name.

    Returns:
        The picture's path in `output_dir`.
    """
    figure, axis = plt.subplots(figsize=(7, 4), layout="constrained")
    image = axis.imshow(table.detach().float().cpu().numpy(), cmap="RdBu", aspect="auto")
    axis.set_xlabel("dimension")
    axis.set_ylabel("position")
    figure.colorbar(image)
    return _save(figure, output_dir, name)


def plot_sine_curves(table: torch.Tensor, output_dir: str, name: str = "sine_curves.png") -> str:
    """Draw columns of the positional encoding as curves over positions: at most four pairs of sine and cosine.

    Args:
        table: (positions, width), sine on even and cosine on odd columns.
        output_dir: the folder of the picture.
        name: the picture's file name.

    Returns:
        The picture's path in `output_dir`.
    """
    table = table.detach().float().cpu()
    pairs = table.shape[1] // 2
    shown = sorted({round(i * (pairs - 1) / 3) for i in range(4)})
    figure, axes = plt.subplots(
        len(shown), 1, figsize=(7, 1.5 * len(shown)), sharex=True, squeeze=False, layout="constrained"
    )
    for axis, pair in zip(axes.flat, shown, strict=True):
        for column, style in ((2 * pair, "-"), (2 * pair + 1, "--")):
            axis.plot(table[:, column].numpy(), style, label=f"column {column}")
        axis.set_ylim(-1.1, 1.1)
        axis.legend(fontsize=8, loc="right")
    axes.flat[-1].set_xlabel("position")
    return _save(figure, output_dir, name)


def plot_masks(
    masks: dict[str, tuple[torch.Tensor, list[str], list[str]]], output_dir: str, name: str = "masks.png"
) -> str:
    """Draw attention masks side by side: bright where a query may attend to a key.

    Args:
        masks: for each title a mask (queries, keys), True where attention is allowed, and both sides' tokens.
        output_dir: the folder of the picture.
        name: the picture's file name.

    Returns:
        The picture's path in `output_dir`.
    """
    height = 1.2 + 0.3 * max(len(queries) for _, queries, _ in masks.values())
    width = sum(1.2 + 0.3 * len(keys) for _, _, keys in masks.values())
    figure, axes = plt.subplots(
        1, len(masks), figsize=(max(width, 2.5 * len(masks)), max(height, 2.5)), squeeze=False, layout="constrained"
    )
    for axis, (title, (mask, queries, keys)) in zip(axes.flat, masks.items(), strict=True):
        axis.imshow(mask.cpu().numpy(), cmap="viridis", vmin=0, vmax=1)
        axis.set_title(title, fontsize=9)
        axis.set_xticks(range(len(keys)), keys, rotation=90, fontsize=8)
        axis.set_yticks(range(len(queries)), queries, fontsize=8)
    return _save(figure, output_dir, name)


def _save(figure, output_dir: str, name: str) -> str:
    path = os.path.join(output_dir, name)
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return path
