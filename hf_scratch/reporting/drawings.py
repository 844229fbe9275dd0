# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Figures of what a model does with one sentence. Colours are dark on white, and darker means more."""

import textwrap
from collections.abc import Sequence
from pathlib import Path

import torch

from ..explaining import BeamTree, LoadedModel, Prediction, compute_attention, load_model
from ..extras import extra
from .plots import escape, save_figure

with extra("train"):
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

OUTCOME_COLORS = {"kept": "#cfe2f5", "dropped": "#ffffff", "ended": "#c5e8c8", "cut": "#fbe3b5"}
DARK = "#08519c"
GRAY = "#767676"
WIDEST = 24  # inches of a row of attention maps
NEXT = "row t predicts token t + 1"


def show_share(share: float) -> str:
    """A probability in percent; a small one does not become 0."""
    return f"{share:.1%}" if share >= 0.0005 else "<0.1%"


def draw_last_layer(folder: Path, text: str) -> str:
    """Draw the last layer's attention: of a translation over its source, or of a language model's text over itself.

    Args:
        folder: a saved model with its tokenizer; receives the picture.
        text: what the model reads.

    Returns:
        The picture's path.
    """
    loaded = load_model(folder)
    ids, target_ids, kind = loaded.encode(text), None, "self-attention"
    if loaded.is_translator:
        target_ids, kind = loaded.model.generate(ids)[:, :-1], "cross-attention"  # nothing reads the last token
    weights = compute_attention(loaded, ids, target_ids)[kind]
    figure = draw_attention(loaded, kind, weights, len(weights) - 1, text, ids, target_ids)
    return save_figure(figure, str(folder), "attention.png")


def draw_attention(
    loaded: LoadedModel,
    kind: str,
    weights: torch.Tensor,
    layer: int,
    text: str,
    input_ids: torch.Tensor,
    decoder_input_ids: torch.Tensor | None = None,
) -> Figure:
    """Draw one layer's attention: a map per head, with one scale from 0 to 1.

    A row has at most four maps, of many tokens two.

    Args:
        loaded: the model.
        kind: a name that `compute_attention` gives.
        weights: (layers, heads, queries, keys), of that name.
        layer: the layer's index.
        text: what the model read, for the title.
        input_ids: (1, length), as given to `compute_attention`.
        decoder_input_ids: (1, target length), as given to `compute_attention`.
    """
    label = "source token" if loaded.is_translator else "token"
    source = target = label, loaded.read(input_ids[0], from_source=True)
    if decoder_input_ids is not None:
        target = "decoder's input", loaded.read(decoder_input_ids[0])
    query_label, queries = source if kind == "encoder self-attention" else target
    key_label, keys = target if kind == "decoder self-attention" else source
    heads = weights.shape[1]
    columns = min(heads, 4, max(int(WIDEST / (0.24 * len(keys))), 2))
    rows = -(-heads // columns)
    size = (max(1.6 + 0.24 * len(keys) * columns, 5.5), 1.6 + (0.7 + 0.22 * len(queries)) * rows)
    figure, axes = _make_axes(rows, columns, size, f"{kind}, layer {layer}: {text}", sharex=True, sharey=True)
    for axis in axes[heads:]:
        axis.remove()
    for head, axis in enumerate(axes[:heads]):
        image = axis.imshow(weights[layer, head].numpy(), cmap="Blues", vmin=0, vmax=1, aspect="auto")
        axis.set_title(f"head {head}", fontsize=9)
        axis.set_xticks(range(len(keys)), list(map(escape, keys)), rotation=90, fontsize=8)
        axis.set_yticks(range(len(queries)), list(map(escape, queries)), fontsize=8)
        # where the last row is not full, the labels stand below the row above
        axis.tick_params(labelbottom=head + columns >= heads)
    figure.supxlabel(f"{key_label} that is attended to", fontsize=9)
    figure.supylabel(query_label if kind == "encoder self-attention" else f"{query_label} ({NEXT})", fontsize=9)
    figure.colorbar(image, ax=axes[:heads], aspect=40, label="attention weight; each row's sum is 1")
    return figure


def draw_beam_tree(tree: BeamTree, title: str) -> Figure:
    """Draw the candidates of each step in a column, the best on top, with lines to the beams that they continue.

    Args:
        tree: the search.
        title: the sentence.
    """
    steps, rows = len(tree.steps), max(len(step) for step in tree.steps)
    size = (1.4 + 0.95 * steps, 1.9 + 0.42 * rows)
    figure, (axis,) = _make_axes(1, 1, (max(size[0], 6.5), size[1]), title)
    best = _best_path(tree)
    for number, step in enumerate(tree.steps):
        for rank, candidate in enumerate(step):
            is_best = (number, rank) in best
            if number:
                axis.plot(
                    [number - 1, number],
                    [candidate.parent, rank],
                    color=DARK if is_best else "#d4d4d4" if candidate.outcome == "dropped" else GRAY,
                    linewidth=2.2 if is_best else 0.8,
                    zorder=2 if is_best else 1,
                )
            place = "" if candidate.place is None else f"  #{candidate.place + 1}"
            score = candidate.score if candidate.final_score is None else candidate.final_score
            axis.text(
                number,
                rank,
                f"{escape(_shorten(candidate.text))}{place}\n{score:.2f}",
                ha="center",
                va="center",
                fontsize=7.5,
                color=GRAY if candidate.outcome == "dropped" else "black",
                fontweight="bold" if is_best else "normal",
                bbox={
                    "boxstyle": "round,pad=0.25",
                    "facecolor": OUTCOME_COLORS[candidate.outcome],
                    "edgecolor": DARK if is_best else "#c8c8c8",
                    "linewidth": 1.6 if is_best else 0.7,
                },
            )
    for outcome, color in OUTCOME_COLORS.items():
        axis.scatter([], [], marker="s", s=70, color=color, edgecolors="#888888", label=outcome)
    axis.plot([], [], color=DARK, linewidth=2.2, label="best result")
    figure.legend(loc="outside lower left", ncols=5, fontsize=8, frameon=False)
    axis.set_xlim(-0.6, steps - 0.4)
    axis.set_ylim(rows - 0.4, -0.6)
    axis.set_xticks(range(steps), [str(i + 1) for i in range(steps)])
    axis.set_yticks(range(rows), [str(i + 1) for i in range(rows)])
    axis.set_xlabel(
        "step: number of the new token. Below each token its score: the sum of log-probabilities [nats];\n"
        "if ended, or cut at the longest length, "
        f"divided by length ^ {tree.length_penalty:g}, with the place among the results (#1 is the best)",
        fontsize=9,
        loc="left",
    )
    axis.set_ylabel("rank among the step's candidates", fontsize=9)
    axis.spines[["top", "right"]].set_visible(False)
    return figure


def draw_predictions(predictions: Sequence[Prediction], title: str) -> Figure:
    """Draw each token's probability as a bar, and name the likeliest alternatives beside it.

    Args:
        predictions: of the tokens in their order.
        title: the sentence.
    """
    figure, (axis,) = _make_axes(1, 1, (8.5, 1.6 + 0.27 * len(predictions)), title)
    values = [each.probability for each in predictions]
    axis.barh(range(len(values)), values, color="#9ecae1", height=0.75)
    for i, each in enumerate(predictions):
        axis.text(0.01, i, show_share(each.probability), va="center", fontsize=8)
        others = [other for other in each.alternatives if other.token != each.token][:3]
        text = "   ".join(f"{_shorten(other.text)} {show_share(other.probability)}" for other in others)
        axis.text(1.02, i, escape(text), va="center", fontsize=8, color="#444444")
    axis.text(1.02, -1, "likeliest alternatives", va="center", fontsize=8, fontweight="bold")
    axis.set_yticks(range(len(values)), [escape(_shorten(each.text)) for each in predictions], fontsize=8)
    axis.set_ylim(len(values) - 0.4, -1.5)
    axis.set_xlim(0, 1.9)
    axis.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0%", "25%", "50%", "75%", "100%"])
    axis.spines["bottom"].set_bounds(0, 1)
    axis.set_xlabel("probability of the token, given all tokens before it", fontsize=9, loc="left")
    axis.set_ylabel("token", fontsize=9)
    axis.spines[["top", "right"]].set_visible(False)
    return figure


def _make_axes(
    rows: int, columns: int, size: tuple[float, float], title: str, **kwargs
) -> tuple[Figure, Sequence[Axes]]:
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, **kwargs)
    # a letter of 10 points is about 0.085 inches wide
    figure.suptitle(escape(textwrap.fill(title, max(int(size[0] / 0.085), 30))), fontsize=10, x=0.01, ha="left")
    return figure, list(axes.flat)


def _best_path(tree: BeamTree) -> set[tuple[int, int]]:
    """Step and rank of each candidate on the way to the best result."""
    found = [(n, rank) for n, step in enumerate(tree.steps) for rank, each in enumerate(step) if each.place == 0]
    path = set()
    for number, rank in found:
        while number >= 0:
            path.add((number, rank))
            rank, number = tree.steps[number][rank].parent, number - 1
    return path


def _shorten(text: str, longest: int = 12) -> str:
    return text if len(text) <= longest else text[: longest - 1] + "…"
