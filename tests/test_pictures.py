# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Pictures say what they show: titles, axis labels, units, markers, and axes that fit most of the values."""

import json

import pytest
import torch
from conftest import FAMILIES, ROOT
from matplotlib.figure import Figure
from test_explaining import make_ids, make_loaded

from hf_scratch.explaining import compute_attention, predict_tokens, search_beams
from hf_scratch.reporting import drawings, plots


def texts_of(figure: Figure) -> str:
    figure.canvas.draw()
    return "\n".join(text.get_text() for text in figure.findobj(lambda each: hasattr(each, "get_text")))


@pytest.fixture
def saved(monkeypatch) -> list[Figure]:
    """The figures that are saved, in place of their files."""
    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, path, **kwargs: figures.append(figure))
    return figures


@pytest.mark.parametrize("family", FAMILIES)
def test_an_attention_map_names_its_axes_scale_layer_and_sentence(family):
    loaded = make_loaded(family)
    inputs = make_ids(loaded)
    for kind, weights in compute_attention(loaded, **inputs).items():
        figure = drawings.draw_attention(loaded, kind, weights, 1, "$x$ and $y$", *inputs.values())
        texts = texts_of(figure)
        for part in (f"{kind}, layer 1: \\$x\\$", "that is attended to", "attention weight", "head 1"):
            assert part in texts
        assert ("row t predicts token t + 1" in texts) == (kind != "encoder self-attention")
        images = [axis.images[0] for axis in figure.axes if axis.images]
        for image, head in zip(images, weights[1], strict=True):
            assert image.get_clim() == (0, 1)
            assert torch.equal(torch.tensor(image.get_array()), head)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_tree_shows_each_candidate_with_its_score(family):
    loaded = make_loaded(family)
    tree = search_beams(loaded, make_ids(loaded)["input_ids"], 3, max_new_tokens=4)
    texts = texts_of(drawings.draw_beam_tree(tree, "a sentence"))
    for step in tree.steps:
        for each in step:
            place = "" if each.place is None else f"  #{each.place + 1}"
            score = each.score if each.final_score is None else each.final_score
            assert f"{each.text}{place}\n{score:.2f}" in texts
    assert "nats" in texts


def test_probabilities_are_the_numbers_that_were_computed():
    loaded = make_loaded("gpt")
    inputs = make_ids(loaded)
    predictions = predict_tokens(loaded, **inputs)
    figure = drawings.draw_predictions(predictions, "a text")
    assert [bar.get_width() for bar in figure.axes[0].patches] == [each.probability for each in predictions]


def test_a_share_is_never_rounded_to_nothing():
    assert [drawings.show_share(share) for share in (1, 0.123, 0.0006, 1e-9)] == ["100.0%", "12.3%", "0.1%", "<0.1%"]


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
