# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""What the explorer's views show is what `generate()` and `forward` compute. test_browser.py uses the page itself."""

import html
import re
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import yaml
from conftest import ROOT, make_gpt
from packaging.requirements import Requirement

from hf_scratch.explaining import LoadedModel, load_model

gr = pytest.importorskip("gradio", reason="the explorer needs gradio: pip install 'hf-scratch[explore]'")
EXPLORER = ROOT / "scripts" / "explorer"
sys.path.insert(0, str(EXPLORER))

import app  # noqa: E402
import inside_view  # noqa: E402
import page  # noqa: E402
import translate_view  # noqa: E402
import write_view  # noqa: E402

SENTENCE = "A dog runs through the snow."


@pytest.fixture(scope="module")
def models() -> list[LoadedModel]:
    return [load_model(path) for path in app.find_published()]


@pytest.fixture
def pictures(monkeypatch) -> list[str]:
    """Descriptions of the pictures, which are not rendered."""
    shown = []
    for view in (translate_view, write_view, inside_view):
        monkeypatch.setattr(view, "show_figure", lambda figure, text: shown.append(text) or f"<img alt={text!r}>")
    return shown


def cells(table: str) -> list[list[str]]:
    rows = re.findall(r"<tr>(.*?)</tr>", table)[1:]
    return [[html.unescape(re.sub("<.*?>", "", cell)) for cell in re.findall(r"<td.*?</td>", row)] for row in rows]


@pytest.mark.parametrize("num_beams", [1, 4])
def test_translate_shows_generates_n_best(models, num_beams, pictures):
    loaded = models[0]
    translation, table, tokens, _ = translate_view.translate(loaded, SENTENCE, num_beams)
    inputs = loaded.tokenizer(SENTENCE, return_tensors="pt")
    options = {"return_dict_in_generate": True, "output_scores": True, "num_return_sequences": num_beams}
    outputs = loaded.model.generate(**inputs, num_beams=num_beams, max_new_tokens=80, **options)
    texts = loaded.tokenizer.batch_decode(outputs.sequences, skip_special_tokens=True)
    assert [row[1] for row in cells(table)] == [text or "(no words)" for text in texts]
    if num_beams > 1:
        assert [float(row[2]) for row in cells(table)] == pytest.approx(outputs.sequences_scores.tolist(), abs=1e-4)
    with torch.no_grad():
        logits = loaded.model(**inputs, decoder_input_ids=translation.target_ids).logits[0]
    shares = logits.softmax(-1)[torch.arange(len(logits) - 1), translation.target_ids[0, 1:]]
    bounds = {"over 90%": (0.9, 1), "50 to 90%": (0.5, 0.9), "10 to 50%": (0.1, 0.5), "1 to 10%": (0.01, 0.1),
              "under 1%": (0, 0.01)}  # fmt: skip
    for (_, shade), share in zip(tokens, shares.tolist(), strict=True):
        assert bounds[shade][0] <= share <= bounds[shade][1]


def test_write_streams_what_generate_draws(models):
    loaded = models[1]
    ids = loaded.encode("Once upon a time")
    shape = {"temperature": 0.8, "top_k": 0, "top_p": 0.9}
    lengths, story = [], None
    for story in write_view.write(loaded, "Once upon a time", 20, 5, **shape):
        lengths.append(len(story.written))
    assert lengths == list(range(1, 21))
    torch.manual_seed(5)
    expected = loaded.model.generate(ids, do_sample=True, max_new_tokens=20, **shape)[0]
    assert [each.token for each in story.written] == expected[ids.shape[1] :].tolist()


def test_the_sliders_show_what_they_do_to_the_selected_token(models, monkeypatch):
    drawn = []
    monkeypatch.setattr(write_view, "draw_alternatives", lambda prediction, title: drawn.append(prediction))
    monkeypatch.setattr(write_view, "show_figure", lambda figure, text: text)
    loaded = models[1]
    *_, story = write_view.write(loaded, "Once upon a time", 6, 0, temperature=1.0, top_k=0, top_p=1.0)
    story.selected = 4
    title = write_view.show_distribution(loaded, story, 0.5, 5, 0.9)
    assert "temperature 0.5, top-k 5, top-p 0.9" in title
    assert drawn[0].token == story.written[4].token
    assert drawn[0].probability == pytest.approx(story.written[4].probability, abs=1e-5)
    assert sum(each.shaped > 0 for each in drawn[0].alternatives) <= 5
    write_view.show_distribution(loaded, story, 0, 0, 1.0)
    assert [each.shaped for each in drawn[1].alternatives] == [1.0] + [0.0] * 9


def test_inside_follows_a_token_of_either_stack_and_family(models, pictures):
    for name, loaded, stack, layers in (
        ("translator", models[0], "encoder", 4),
        ("translator", models[0], "decoder", 4),
        ("gpt", models[1], "decoder", 6),
    ):
        reading = inside_view.read(name, loaded, SENTENCE, stack)
        _, table = inside_view.show_stages(loaded, reading)
        rows = cells(table)
        assert len(rows) == 4 + layers * (3 if name == "translator" and stack == "decoder" else 2)
        assert rows[0][0] == "last LayerNorm"
        assert all(row[5].startswith("modeling_scratch") for row in rows)
        assert f"{stack} self-attention" in inside_view.show_self_attention(loaded, reading, 0) or name == "gpt"
    reading = inside_view.read("translator", models[0], SENTENCE, "decoder")
    expected = models[0].model.generate(models[0].encode(SENTENCE), num_beams=1, do_sample=False)
    assert reading.stack_ids.tolist() == expected[:, :-1].tolist()


def test_what_a_user_writes_is_text_in_the_page(models):
    text = 'A <b>dog</b> & "$x$" <script>alert(1)</script>'
    _, table, _, tree = translate_view.translate(models[0], text, 2)
    assert "<script>" not in table + tree
    assert 'alt="The tree of beams of: A &lt;b&gt;dog' in tree
    assert page.show_table(("a",), [("<i>",)]).count("<i>") == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [("", "must be some words"), ("dog " * 99, "at most 64 tokens"), ("a" * 401, "401 characters, but at most 400")],
)
def test_a_wrong_input_is_a_message(models, text, message):
    for use in (
        lambda: translate_view.translate(models[0], text, 4),
        lambda: next(write_view.write(models[1], text, 5, 0)),
        lambda: inside_view.read("gpt", models[1], text, "decoder"),
    ):
        with pytest.raises(gr.Error, match=message), page.errors_as_messages():
            use()


def test_the_page_has_the_views_of_its_models(models):
    def tabs(loaded):
        blocks = app.build_page(loaded).blocks.values()
        return [block.label for block in blocks if isinstance(block, gr.Tab)]

    assert tabs(models) == ["Translate", "Write", "Inside"]
    assert tabs(models[:1]) == ["Translate", "Inside"]
    assert tabs(models[1:]) == ["Write", "Inside"]
    assert list(app.name_models([*models, models[0]])) == [
        models[0].name, models[1].name, f"{models[0].name} (2)"
    ]  # fmt: skip


def test_views_share_no_state_between_users(models, pictures):
    sentences = [f"A {color} {animal} sleeps." for color in ("black", "white") for animal in
                 ("dog", "cat", "horse", "man")]  # fmt: skip
    alone = [translate_view.translate(models[0], sentence, 3)[1] for sentence in sentences]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda sentence: translate_view.translate(models[0], sentence, 3)[1], sentences))
    assert [[row[1] for row in cells(table)] for table in together] == [
        [row[1] for row in cells(table)] for table in alone
    ]


@pytest.mark.parametrize(
    ("folder", "message"), [("./nowhere", "is not a folder"), ("{masked}", "fills in masked tokens")]
)
def test_a_mistake_on_the_command_line_is_one_line(folder, message, tmp_path, monkeypatch, capsys):
    make_gpt(is_causal=False).save_pretrained(tmp_path)
    monkeypatch.setattr("sys.argv", ["app.py", "--model", folder.format(masked=tmp_path)])
    with pytest.raises(SystemExit, match="2"):
        app.main()
    assert message in capsys.readouterr().err.splitlines()[-1]


def test_the_spaces_requirements_are_the_projects():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = [*project["dependencies"], *project["optional-dependencies"]["explore"]]
    allowed = {Requirement(line).name: Requirement(line).specifier for line in lines}
    for line in (EXPLORER / "requirements.txt").read_text(encoding="utf-8").splitlines():
        requirement = Requirement(line)
        assert allowed[requirement.name] == requirement.specifier
    front_matter = yaml.safe_load((EXPLORER / "README.md").read_text(encoding="utf-8").split("---\n")[1])
    assert (front_matter["sdk"], front_matter["app_file"]) == ("gradio", "app.py")
    pinned = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    assert f"gradio=={front_matter['sdk_version']}" in pinned
