# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Pictures say what they show: titles, axis labels, units, markers, and axes that fit most of the values."""

import json

import pytest
from conftest import ROOT
from matplotlib.figure import Figure

from hf_scratch.reporting import plots


def texts_of(figure: Figure) -> str:
    figure.canvas.draw()
    return "\n".join(text.get_text() for text in figure.findobj(lambda each: hasattr(each, "get_text")))


@pytest.fixture
def saved(monkeypatch) -> list[Figure]:
    """The figures that are saved, in place of their files."""
    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, path, **kwargs: figures.append(figure))
    return figures


def test_single_points_have_a_marker_and_the_loss_a_name(saved, tmp_path):
    history = [
        {"step": 1, "loss": 3.0, "learning_rate": 0.1},
        {"step": 2, "eval_loss": 0.01, "eval_exact_match": 0.5},
    ]
    plots.plot_learning_curve(history, str(tmp_path), "training objective, with R-Drop")
    losses, below = saved[0].axes
    assert [line.get_label() for line in losses.lines] == ["training objective, with R-Drop", "validation loss"]
    assert losses.get_ylim()[0] == 0  # and not what matplotlib leaves below 0.01
    assert [line.get_marker() for line in losses.lines] == [".", "."]
    assert [line.get_label() for line in below.lines] == ["exact matches [%]"]
    assert losses.get_ylabel() == "loss [nats per token]"
    history[1]["eval_bleu"] = 12.0
    plots.plot_learning_curve(history, str(tmp_path))
    assert [line.get_label() for line in saved[1].axes[1].lines] == ["BLEU", "exact matches [%]"]


def test_a_run_shorter_than_its_logging_steps_shows_its_mean(saved, tmp_path):
    plots.plot_learning_curve([{"step": 3, "train_loss": 4.0}], str(tmp_path))
    assert [list(line.get_xydata()[0]) for line in saved[0].axes[0].lines] == [[3.0, 4.0]]


def test_twenty_runs_have_a_panel_each_and_no_outlier_squeezes_them(saved, tmp_path):
    logs = {f"run{i}": [{"step": n, "eval_loss": 2 + i / 20 + 1 / n} for n in range(1, 9)] for i in range(19)}
    logs["diverged"] = [{"step": 1, "eval_loss": 4000.0}]
    plots.plot_runs(logs, str(tmp_path))
    axes = saved[0].axes
    assert len(axes) == 20
    assert [axis.get_title().split(":")[0] for axis in axes] == [f"run{i}" for i in range(19)] + ["diverged"]
    assert axes[0].get_ylim()[1] < 5
    assert "1 of 1 values are outside" in {text.get_text() for text in axes[-1].texts}
    assert "validation loss [nats per token]" in texts_of(saved[0])


@pytest.mark.parametrize("card", ["scratch-gpt-tinystories", "scratch-transformer-multi30k-en-de"])
def test_the_published_runs_fill_their_axes(card, saved, tmp_path):
    files = sorted((ROOT / "model_cards" / card / "records").glob("*.json"))
    logs = {path.stem: json.loads(path.read_text(encoding="utf-8"))["log"] for path in files}
    plots.plot_runs(logs, str(tmp_path))
    axes = saved[0].axes
    bottom, top = axes[0].get_ylim()
    values = [value for axis in axes for value in axis.lines[-1].get_ydata()]
    assert sum(bottom <= value <= top for value in values) >= 0.85 * len(values)


def test_few_or_equal_values_have_no_outlier():
    assert plots.find_limits([1.0, 2.0, 500.0]) is None
    assert plots.find_limits([1.0] * 9) is None
    assert plots.find_limits([1.0, 2.0, 3.0, 4.0, float("nan")]) is None
    assert plots.find_limits([1.0, 2.0, 3.0, 4.0, 2.0, 3.0, 900.0]) == (1.0, 4.0)
