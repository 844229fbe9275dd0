# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""A learning curve says what it shows: labels, units, markers."""

import pytest
from matplotlib.figure import Figure

from hf_scratch.reporting import plots


@pytest.fixture
def saved(monkeypatch) -> list[Figure]:
    """The figures that are saved, in place of their files."""
    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, path, **kwargs: figures.append(figure))
    return figures


def test_a_run_shorter_than_its_logging_steps_shows_its_mean(saved, tmp_path):
    plots.plot_learning_curve([{"step": 3, "train_loss": 4.0}], str(tmp_path))
    assert [list(line.get_xydata()[0]) for line in saved[0].axes[0].lines] == [[3.0, 4.0]]


def test_the_curve_of_joined_runs_goes_to_their_end_without_evaluations_of_weights(saved, tmp_path):
    log = [
        {"step": 1, "loss": 4.0, "train_runtime": 1.0},
        {"step": 1, "train_loss": 4.0},
        {"step": 1, "eval_loss": 9.0},
        {"step": 2, "loss": 3.0},
        {"step": 2, "eval_loss": 2.0},
        {"step": 2, "train_loss": 3.0},
    ]
    plots.plot_learning_curve(log, str(tmp_path))
    losses, validation = saved[0].axes[0].lines
    assert losses.get_ydata().tolist() == [4.0, 3.0]
    assert validation.get_ydata().tolist() == [2.0]
