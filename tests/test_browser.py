# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""The explorer in headless Chromium, run by `make test-browser`: each view is used as a person would.

HF_SCRATCH_SCREENSHOTS names a folder for the screenshots. CHROMIUM names the browser, by default Debian's `chromium`.
"""

import base64
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from conftest import ROOT, make_gpt, make_transformer
from explained import compute_attention, load_model, predict_tokens, search_beams
from safetensors.torch import load_file, save_file

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install 'hf-scratch[dev]'")
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium: apt-get install chromium, or set CHROMIUM"),
]
TRANSLATOR = ROOT / "model_cards" / "scratch-transformer-multi30k-en-de"
STORYTELLER = ROOT / "model_cards" / "scratch-gpt-tinystories"
PATIENCE = 30_000  # milliseconds
SENTENCE = "A man in a blue shirt is standing on a ladder."  # 12 tokens with the full stop and the end
MARKUP = "<img src=x onerror=alert(1)><script>alert(2)</script> & \"'{{7*7}}"


def show_score(score: float) -> str:
    return f"{score:.2f}".replace("-", "\N{MINUS SIGN}")


def show_share(share: float) -> str:
    return f"{share:.0%}".replace("%", " %")


def start(command: list, folder: Path = ROOT) -> tuple[subprocess.Popen, str]:
    """Start a server that prints its address."""
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    port = re.search(r"(?:127\.0\.0\.1:| port )(\d+)", process.stdout.readline())
    assert port is not None
    return process, f"http://127.0.0.1:{port[1]}/"


@pytest.fixture(scope="module")
def address():
    process, url = start([sys.executable, ROOT / "scripts" / "explorer" / "serve.py", "--port", "0"])
    yield url
    process.terminate()
    process.wait(20)


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []  # Chromium's sandbox refuses root
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=sandbox)
        yield browser
        browser.close()


class Visitor:
    """One browser tab, which notes what the page asks for, what its console says, and dialogs that markup opened."""

    def __init__(self, browser, url: str, width: int = 1400, scheme: str = "light", **options):
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, **options)
        self.page = context.new_page()
        self.page.set_default_timeout(PATIENCE)
        self.requests, self.complaints = [], []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", lambda message: self.complaints.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.complaints.append(dialog.message), dialog.dismiss()))
        self.url = url.split("#")[0]
        self.page.goto(url)

    def find(self, selector: str):
        return self.page.locator(selector)

    def open(self, view: str) -> None:
        self.page.get_by_role("tab", name=view).click()

    def press(self, name: str) -> None:
        self.page.get_by_role("button", name=name, exact=True).click()

    def wait(self, condition: str, given=None) -> None:
        """Wait until an expression of JavaScript is true; `$` finds an element and `$$` all."""
        head = "const $ = (s) => document.querySelector(s), $$ = (s) => [...document.querySelectorAll(s)];"
        self.page.wait_for_function(f"(given) => {{ {head} return {condition} }}", arg=given)

    def wait_for_text(self, selector: str, text: str) -> None:
        self.wait("$(given[0])?.textContent.includes(given[1])", [selector, text])

    def texts(self, selector: str) -> list[str]:
        return self.find(selector).all_inner_texts()

    def set(self, slider: str, value: float) -> None:
        self.find(slider).evaluate(
            "(slider, value) => { slider.value = value; slider.dispatchEvent(new Event('input')) }", value
        )

    def screenshot(self, folder: Path, name: str) -> None:
        self.page.wait_for_timeout(400)  # transitions end
        self.page.screenshot(path=folder / f"{name}.png", full_page=True)
        width = self.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert width <= 0, f"{name}: the page is {width} pixels too wide"
        nameless = self.page.evaluate(
            "[...document.querySelectorAll('button, input, select, textarea, [role=button], [role=img]')]"
            ".filter((each) => each.checkVisibility())"
            ".filter((each) => !(each.ariaLabel || each.labels?.length || each.textContent.trim()))"
            ".map((each) => each.outerHTML)"
        )
        assert nameless == [], f"{name}: a screen reader would find no name"

    def close(self) -> None:
        """Check that there was no error, and no request to another machine."""
        assert self.complaints == []
        assert [url for url in self.requests if not url.startswith((self.url, "data:", f"blob:{self.url}"))] == []
        self.page.context.close()


@pytest.fixture
def screenshots(tmp_path) -> Path:
    folder = Path(os.environ.get("HF_SCRATCH_SCREENSHOTS", tmp_path))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1400, 400])
def test_translate_is_used(width, scheme, address, browser, screenshots):
    visitor = Visitor(browser, address, width, scheme)
    loaded = load_model(TRANSLATOR)
    ids = loaded.encode(SENTENCE)
    tree = search_beams(loaded, ids, 5, 128)

    # typing translates, and the last text counts
    visitor.wait("$('#translation').textContent")  # a field that is empty when the model is there gets an example
    visitor.find("#source").fill("")
    visitor.find("#source").press_sequentially(SENTENCE, delay=5)
    visitor.wait_for_text("#translation", tree.texts[0])
    visitor.wait("$('#translate').ariaBusy === 'false'")
    assert visitor.find("#weave-target .chip").count() == len(tree.sequences[0]) - 1
    assert visitor.texts("#found bdi") == [text or "(no words)" for text in tree.texts]
    assert visitor.texts("#found .number") == [show_score(score) for score in tree.scores]
    assert visitor.find(".tree .node").count() == sum(len(step) for step in tree.steps)

    # a word that is pointed at draws lines and names what it looked at
    words = visitor.find("#weave-target .chip")
    words.nth(1).hover()
    visitor.wait_for_text("#weave-reading", "“man”")
    lines = visitor.find("#weave path").count()
    assert lines > 2
    visitor.screenshot(screenshots, f"translate_{width}_{scheme}")
    visitor.find("#look-controls button").nth(4).click()
    visitor.find("#look-controls button").last.click()
    words.nth(2).focus()
    words.nth(2).press("ArrowRight")
    assert words.nth(3).evaluate("word => word === document.activeElement")

    # the tree grows step by step
    visitor.press("One step back")
    visitor.press("One step back")
    later = sum(len(step) for step in tree.steps[-2:])
    assert visitor.find(".tree .node.later").count() == later
    visitor.press("Play the search")
    visitor.wait("$$('.tree .node.later').length === 0")

    # another choice goes on from there
    words.nth(2).click()
    predictions = predict_tokens(loaded, ids, tree.sequences[0][None])
    expected = [each.text for each in predictions[2].alternatives]
    assert visitor.texts("#alternatives .name") == expected
    visitor.screenshot(screenshots, f"alternatives_{width}_{scheme}")
    visitor.find("#alternatives .bar").nth(1).click()
    visitor.wait("$$('#weave-target [data-chosen]').length === 3")
    assert words.nth(2).inner_text() == expected[1]
    visitor.find("#translation-note .link").click()
    visitor.wait_for_text("#translation", tree.texts[0])
    visitor.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1400, 400])
def test_write_is_used(width, scheme, address, browser, screenshots):
    visitor = Visitor(browser, f"{address}#view=write&text=Once+upon+a+time", width, scheme)
    bars = visitor.find("#next-bars .bar")
    bars.first.wait_for()
    loaded = load_model(STORYTELLER)
    ids = loaded.encode("Once upon a time")
    (prediction,) = predict_tokens(loaded, loaded.encode("Once upon a time,"))[-1:]
    assert visitor.texts("#next-bars .name") == [each.text for each in prediction.alternatives]

    # the sliders move the bars of the next token
    visitor.set("#temperature", 0)
    assert visitor.find("#next-bars .number").first.inner_text() == "100 %"
    assert visitor.find("#next-bars .impossible").count() == 9
    visitor.set("#temperature", 1)
    visitor.set("#top_p", 1)
    visitor.set("#top_k", 4)
    assert visitor.find("#next-bars .impossible").count() == 6
    visitor.set("#top_k", 0)
    assert visitor.find("#next-bars .number").first.inner_text() == show_share(prediction.alternatives[0].probability)

    # greedy is what generate() writes
    visitor.set("#temperature", 0)
    expected = loaded.model.generate(ids, do_sample=False, max_new_tokens=5)[0, ids.shape[1] :]
    pieces = visitor.find("#story .piece")
    for i in range(5):
        visitor.press("One token")
        pieces.nth(i).wait_for()
    assert visitor.texts("#story .piece") == [text.replace("·", " ") for text in loaded.read(expected)]

    # step back, choose by hand, write on, and choose again in the middle
    visitor.press("Step back")
    assert pieces.count() == 4
    bars.nth(2).click()
    pieces.nth(4).wait_for()
    visitor.set("#temperature", 0.9)
    visitor.press("Write")
    pieces.nth(30).wait_for()
    visitor.press("Pause")
    visitor.screenshot(screenshots, f"write_{width}_{scheme}")
    pieces.nth(10).click()
    visitor.wait_for_text("#next-note", "stands here")
    bars.nth(1).click()
    visitor.wait("$$('#story .piece').length === 11")
    visitor.close()


def test_the_same_dice_write_the_same_text(address, browser):
    texts = []
    for _ in range(2):
        visitor = Visitor(browser, f"{address}#view=write&text=Tom+saw&seed=4&temperature=1&top_p=1&top_k=0")
        visitor.find("#next-bars .bar").first.wait_for()
        visitor.press("Write")
        visitor.find("#story .piece").nth(14).wait_for()
        visitor.press("Pause")
        texts.append(visitor.texts("#story .piece")[:15])
        visitor.close()
    assert texts[0] == texts[1]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1400, 400])
def test_inside_is_used(width, scheme, address, browser, screenshots):
    visitor = Visitor(browser, f"{address}#view=inside&text=A+dog+runs+through+the+snow.", width, scheme)
    way = visitor.find("#way li")
    way.first.wait_for()
    assert visitor.find("#map .block").count() == (3 + 1 + 2 * 3 + 1) + (
        3 + 1 + 3 * 3 + 1 + 2
    )  # a layer of each stack
    visitor.screenshot(screenshots, f"inside_{width}_{scheme}")

    # every block opens, and the arrow keys lead through all layers
    current = visitor.find("#map .block[aria-pressed=true]")
    current.focus()
    titles = set()
    for _ in range(60):
        visitor.page.keyboard.press("ArrowDown")
    visitor.wait_for_text("#block .kicker", "translation so far")
    for _ in range(4 + 4 * 9 + 3 - 1):
        titles.add(visitor.find("#block h2").inner_text())
        visitor.page.keyboard.press("ArrowUp")
    visitor.wait_for_text("#block .kicker", "Softmax")
    assert len(titles) == 13
    loaded = load_model(TRANSLATOR)
    ids = loaded.encode("A dog runs through the snow.")
    target = search_beams(loaded, ids, 5, 64).sequences[0][None]
    position = 3
    visitor.page.keyboard.press("ArrowRight")
    visitor.wait("$$('#inside-tokens .chip')[given].ariaPressed === 'true'", position)
    (best, *_) = predict_tokens(loaded, ids, target)[position].alternatives
    assert visitor.find("#block .bar .name").first.inner_text() == best.text
    assert visitor.find("#block .bar .number").first.inner_text() == show_share(best.probability)
    visitor.wait_for_text("#way li:first-child bdi", best.text.strip("·"))

    # the encoder, another model, and a heat map under the pointer
    visitor.find("#map .block[data-stack=encoder][data-kind=feed-forward]").click()
    visitor.wait_for_text("#block .kicker", "encoder, layer 1, Feed-forward")
    visitor.page.get_by_label("Model", exact=True).select_option(STORYTELLER.name)
    visitor.wait_for_text("#block .kicker", "layer 1, Masked self-attention")
    visitor.find("#block .thumbnail").nth(5).click()
    visitor.press("Weights")
    visitor.find("#block .heat canvas").hover(position={"x": 5, "y": 5})
    visitor.wait_for_text("#block .heat.square .reading", "“<s>”, “<s>”:")
    visitor.screenshot(screenshots, f"inside_gpt_{width}_{scheme}")
    visitor.close()


def test_a_link_carries_model_view_and_text(address, browser):
    name = "scratch-transformer-multi30k-de-en"
    visitor = Visitor(browser, f"{address}#view=translate&model={name}&text=Ein+Hund+schläft.&beams=2")
    loaded = load_model(ROOT / "model_cards" / name)
    visitor.wait_for_text("#translation", search_beams(loaded, loaded.encode("Ein Hund schläft."), 2, 128).texts[0])
    assert visitor.find("#beam-controls [aria-pressed=true]").inner_text() == "2"
    visitor.find("#source").fill("Zwei Hunde & eine Katze?")
    visitor.wait("location.hash.includes('Zwei+Hunde+%26+eine+Katze%3F')")
    link = visitor.page.evaluate("location.href")
    visitor.wait("$('#translate').ariaBusy === 'false'")
    expected = visitor.find("#translation").inner_text()
    visitor.open("Inside")
    visitor.wait("location.hash.includes('view=inside')")
    assert visitor.find("#inside-text").input_value() == "Zwei Hunde & eine Katze?"
    visitor.close()
    visitor = Visitor(browser, link)
    visitor.wait_for_text("#translation", expected)
    visitor.close()


def test_what_a_user_writes_is_text(address, browser):
    visitor = Visitor(browser, address)
    visitor.wait("$$('#weave-target .chip').length")
    tags = "() => ['img', 'script', 'iframe', 'style'].map((tag) => document.querySelectorAll(tag).length)"
    before = visitor.page.evaluate(tags)
    visitor.find("#source").fill(MARKUP)
    visitor.wait("$('#weave-source').textContent.includes('script')")
    visitor.find("#weave-target .chip").first.click()
    visitor.open("Write")
    visitor.find("#beginning").fill(MARKUP)
    visitor.wait("$('#story').textContent.includes('onerror')")
    visitor.find("#next-bars .bar").first.wait_for()
    visitor.open("Inside")
    visitor.page.get_by_label("Model", exact=True).select_option(STORYTELLER.name)
    visitor.wait_for_text("#block .kicker", "layer 1, Masked")
    visitor.find("#inside-text").fill(MARKUP)
    visitor.wait("$('#inside-tokens').textContent.includes('script')")
    assert visitor.page.evaluate(tags) == before
    visitor.close()


def test_a_text_that_is_empty_or_too_long_is_a_sentence(address, browser):
    visitor = Visitor(browser, address)
    visitor.wait("$$('#weave-target .chip').length")
    visitor.find("#source").fill("")
    visitor.wait("$('#translation').textContent === '' && $$('#weave .chip').length === 0")
    visitor.find("#source").fill("\N{DOG FACE}" * 190)
    visitor.wait_for_text("#error", "positions")
    visitor.find("#source").fill("A man.")
    visitor.wait_for_text("#translation", "Ein Mann")
    assert visitor.find("#error").is_hidden()
    visitor.close()


@pytest.fixture
def own_model(tmp_path, joint_tokenizer) -> Path:
    """A folder of a user: a translator in two shards, whose vocabulary holds markup."""
    folder = tmp_path / "my_translator"
    joint_tokenizer.save_pretrained(folder)
    model = make_transformer(vocab_size=len(joint_tokenizer), norm_first=True, position_embedding_type="learned")
    model.generation_config.update(num_beams=2, max_length=12)
    model.save_pretrained(folder, max_shard_size="60KB")
    file = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    vocabulary = file["model"]["vocab"]
    renamed = max((token for token, index in vocabulary.items() if index > 250), key=vocabulary.get)
    vocabulary["<img/src=x/onerror=alert(3)>"] = vocabulary.pop(renamed)
    file["model"]["merges"] = [pair for pair in file["model"]["merges"] if "".join(pair) != renamed]
    (folder / "tokenizer.json").write_text(json.dumps(file), encoding="utf-8")
    assert len(list(folder.glob("*.safetensors"))) > 1
    return folder


def test_a_folder_of_ones_own_is_opened(own_model, address, browser):
    visitor = Visitor(browser, address)
    visitor.wait("$$('#weave-target .chip').length")
    visitor.page.evaluate(
        "() => { window.seen = []; const bar = document.querySelector('#loaded');"
        " new MutationObserver(() => window.seen.push(Number(bar.ariaValueNow)))"
        ".observe(bar, {attributeFilter: ['aria-valuenow']}) }"
    )
    visitor.find("#folder").set_input_files(own_model)
    visitor.wait("$('#model').value === 'my_translator'")
    progress = visitor.page.evaluate("window.seen")
    assert progress == sorted(progress)
    assert len(set(progress)) > 2
    assert (progress[-1], visitor.find("#loaded").is_hidden()) == (100, True)
    visitor.find("#source").fill("two dogs run")
    loaded = load_model(own_model)
    tree = search_beams(loaded, loaded.encode("two dogs run"), 2, 39)
    visitor.wait("$$('#found li').length === 2")
    visitor.wait("$$('.tree .node').length === given", sum(len(step) for step in tree.steps))
    assert visitor.texts("#found .number") == [show_score(score) for score in tree.scores]
    assert visitor.find("#copy-link").is_disabled()  # a link cannot carry it
    visitor.open("Inside")
    visitor.find("#way li").first.wait_for()
    visitor.close()


def test_a_folder_is_dropped(tmp_path, address, browser):
    folder = tmp_path / "dropped"
    model = make_gpt(vocab_size=4000, norm_first=False, position_embedding_type="sinusoidal")
    model.generation_config.update(repetition_penalty=1.5, no_repeat_ngram_size=2)
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(STORYTELLER / name, folder)
    files = [(path.name, base64.b64encode(path.read_bytes()).decode()) for path in folder.iterdir()]
    visitor = Visitor(browser, address)
    visitor.wait("$$('#weave-target .chip').length")
    visitor.page.evaluate(
        "(files) => { const dropped = new DataTransfer();"
        " const read = (bytes) => Uint8Array.from(atob(bytes), (each) => each.charCodeAt(0));"
        " for (const [name, bytes] of files) dropped.items.add(new File([read(bytes)], name));"
        " window.dispatchEvent(new DragEvent('dragover', {dataTransfer: dropped, cancelable: true}));"
        " window.dispatchEvent(new DragEvent('drop', {dataTransfer: dropped, cancelable: true})) }",
        files,
    )
    visitor.wait("$('#model').value === 'dropped model'")
    visitor.find("#next-bars .bar").first.wait_for()

    # its generation_config.json is applied, and said
    visitor.find("#beginning").fill("the fox saw the fox")
    assert "repetition penalty 1.5" in visitor.find("#penalty-note").inner_text()
    visitor.set("#temperature", 0)
    loaded = load_model(folder)
    ids = loaded.encode("the fox saw the fox")
    expected = loaded.read(loaded.model.generate(ids, do_sample=False, max_new_tokens=6)[0, ids.shape[1] :])
    visitor.wait("$('#story').textContent.includes('the fox saw the fox')")
    for i in range(6):
        visitor.press("One token")
        visitor.find("#story .piece").nth(i).wait_for()
    texts = visitor.page.evaluate("[...document.querySelectorAll('#story .piece')].map((each) => each.textContent)")
    assert texts == [text.replace("·", " ") for text in expected]
    visitor.open("Inside")
    visitor.page.get_by_label("Model", exact=True).select_option("dropped model")
    visitor.wait("$$('#way li').length === 5")
    visitor.close()


# errors are loud


@pytest.fixture(scope="module")
def space(tmp_path_factory):
    """A folder for a static host with two models that load and two that do not, and its address."""
    folder = tmp_path_factory.mktemp("host") / "space"
    shutil.copytree(ROOT / "scripts" / "explorer", folder)
    for model in (TRANSLATOR, STORYTELLER):
        (folder / "models" / model.name).mkdir(parents=True)
        for path in [*model.glob("*.json"), model / "model.safetensors"]:
            shutil.copy(path, folder / "models" / model.name)
    damaged = folder / "models" / "damaged"
    shutil.copytree(folder / "models" / STORYTELLER.name, damaged)
    (damaged / "model.safetensors").unlink()
    names = ["not there", TRANSLATOR.name, "damaged", STORYTELLER.name]
    (folder / "models.json").write_text(json.dumps(names))
    process, url = start([sys.executable, "-m", "http.server", "0", "--bind", "127.0.0.1"], folder)
    yield folder, url
    process.terminate()
    process.wait(20)


def test_a_name_without_a_model_hides_no_other(space, browser):
    visitor = Visitor(browser, space[1])
    visitor.wait("$$('#weave-target .chip').length")
    assert "not there" in visitor.find("#notice").inner_text()
    visitor.press("Close")
    assert visitor.find("#notice").is_hidden()
    visitor.page.get_by_label("Model", exact=True).select_option("not there")
    visitor.wait_for_text("#error", "there is no config.json")
    visitor.complaints.clear()  # the console names what was not found
    visitor.close()


def test_a_download_that_fails_can_be_tried_again(space, browser):
    folder, url = space
    visitor = Visitor(browser, f"{url}#view=write&model=damaged&text=A+dog")
    visitor.wait_for_text("#error", "damaged: This folder holds no weights")
    assert visitor.find("#model").input_value() == "damaged"
    assert visitor.find("#story").is_hidden()
    shutil.copy(STORYTELLER / "model.safetensors", folder / "models" / "damaged")
    visitor.press("Try again")
    visitor.find("#next-bars .bar").first.wait_for()
    assert visitor.find("#beginning").input_value() == "A dog"
    visitor.complaints.clear()
    visitor.close()


def test_a_connection_that_is_cut_is_no_damage(address, browser):
    visitor = Visitor(browser, f"{address}models.json")
    visitor.page.route("**/model.safetensors", lambda route: route.abort())
    visitor.page.goto(address)
    visitor.wait_for_text("#error", "does not answer")
    visitor.page.unroute("**/model.safetensors")
    visitor.press("Try again")
    visitor.wait("$$('#weave-target .chip').length")
    visitor.page.context.close()


def test_a_worker_that_fails_is_told_and_started_again(address, browser):
    visitor = Visitor(browser, f"{address}models.json")
    visitor.page.route("**/worker.js", lambda route: route.fulfill(status=404))
    visitor.page.goto(address)
    visitor.wait_for_text("#error", "could not be loaded")
    assert visitor.find("#loaded").is_hidden()
    visitor.page.unroute("**/worker.js")
    visitor.press("Try again")
    visitor.wait("$$('#weave-target .chip').length")
    visitor.page.context.close()


def test_a_link_to_a_model_that_is_not_here_shows_no_other(own_model, address, browser):
    visitor = Visitor(browser, f"{address}#view=translate&model=my_translator&text=two+dogs")
    visitor.wait_for_text("#error", "my_translator: this model is not here")
    assert visitor.find("#translation").is_hidden()
    visitor.find("#folder").set_input_files(own_model)
    visitor.wait("$$('#weave-target .chip').length")
    assert visitor.find("#source").input_value() == "two dogs"
    visitor.close()


def test_a_parent_of_two_models_gives_both(tmp_path, own_model, address, browser):
    parent = tmp_path / "runs"
    shutil.copytree(own_model, parent / "first")
    shutil.copytree(own_model, parent / "second")
    visitor = Visitor(browser, address)
    visitor.wait("$$('#weave-target .chip').length")
    visitor.find("#folder").set_input_files(parent)
    visitor.wait_for_text("#notice", "holds 2 models")
    assert visitor.texts("#model option")[-2:] == ["first", "second"]
    visitor.page.get_by_label("Model", exact=True).select_option("second")
    visitor.wait("location.hash.includes('model=second')")
    visitor.close()


def test_the_worker_is_under_the_pages_policy_and_frees_models(address, browser):
    visitor = Visitor(browser, address)
    visitor.wait("$$('#weave-target .chip').length")
    (worker,) = visitor.page.workers
    asked = "fetch('data:,x').then(() => 'answered', () => 'refused')"
    assert worker.evaluate(asked) == "refused"
    visitor.page.evaluate(
        "() => { window.freed = []; const post = Worker.prototype.postMessage; Worker.prototype.postMessage ="
        " function (message) { if (message.type === 'free') freed.push(message.model); post.call(this, message) } }"
    )
    names = [f"{TRANSLATOR.name}-7m", "scratch-transformer-multi30k-de-en"]
    for name in names:
        visitor.page.get_by_label("Model", exact=True).select_option(name)
        visitor.wait("location.hash.includes(`model=${given}&`) && $('#translate').ariaBusy === 'false'", name)
    assert [name.split()[0] for name in visitor.page.evaluate("freed")] == [TRANSLATOR.name, names[0]]
    visitor.close()


@pytest.mark.parametrize("value", [float("nan"), 3e38])
def test_numbers_that_are_not_finite_are_told(value, tmp_path, address, browser):
    folder = tmp_path / "wrong"
    model = make_gpt(vocab_size=4000)
    model.model.layers[1].feed_forward.fc2.weight.data.fill_(value)
    model.save_pretrained(folder)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(STORYTELLER / file, folder)
    visitor = Visitor(browser, address)
    visitor.wait("$$('#weave-target .chip').length")
    visitor.find("#folder").set_input_files(folder)
    visitor.wait_for_text("#error", "not finite")
    visitor.close()


def test_without_javascript_no_button_is_dead(address, browser):
    visitor = Visitor(browser, address, java_script_enabled=False)
    visitor.page.wait_for_timeout(2500)
    assert visitor.find("#without").is_visible()
    assert not any(button.is_visible() for button in visitor.find("button").all())
    visitor.close()


# every number can be read


@pytest.mark.parametrize("is_touch", [False, True])
def test_a_cell_is_read_by_tap_or_click_and_keys_and_stays(is_touch, address, browser):
    options = {"has_touch": True, "is_mobile": True} if is_touch else {}
    text = "A dog runs through the snow."
    url = (
        f"{address}#view=inside&text={text.replace(' ', '+')}&block=decoder.sublayer.1.cross_attn&step=Weights&head=2"
    )
    visitor = Visitor(browser, url, 390 if is_touch else 1366, **options)
    visitor.find("#way li").first.wait_for()
    loaded = load_model(TRANSLATOR)
    ids = loaded.encode(text)
    target = search_beams(loaded, ids, 5, 64).sequences[0][None, :-1]
    weights = compute_attention(loaded, ids, target)["cross-attention"][1, 2]
    canvas = visitor.find("#block .heat canvas")
    box = canvas.bounding_box()
    cell = box["width"] / weights.shape[1]
    where = {"position": {"x": 1.5 * cell, "y": 2.5 * box["height"] / weights.shape[0]}}
    canvas.tap(**where) if is_touch else canvas.click(**where)
    visitor.wait("$$('#inside-tokens .chip')[2].ariaPressed === 'true'")
    visitor.page.mouse.move(0, 0)
    assert visitor.find("#block .reading").inner_text().endswith(f": {weights[2, 1]:.3f}")
    canvas.focus()
    canvas.press("ArrowRight")
    canvas.press("ArrowDown")
    assert visitor.find("#block .reading").inner_text().endswith(f": {weights[3, 2]:.3f}")
    if is_touch:
        visitor.find("#block").get_by_role("button", name="One cell left").tap()
        assert visitor.find("#block .reading").inner_text().endswith(f": {weights[3, 1]:.3f}")
    visitor.find("#block .heat summary").click()
    visitor.press("Show as table")
    cells = visitor.texts("#block .heat td")
    assert cells == [f"{weight:.3f}" for row in weights.tolist() for weight in row]
    visitor.close()


def test_the_beams_are_a_table_too(address, browser):
    visitor = Visitor(browser, address)
    visitor.wait("$$('#weave-target .chip').length")
    visitor.find("#beam-menu summary").click()
    visitor.find("#beam-menu").get_by_role("button", name="Show as table").click()
    nodes = visitor.find(".tree .node").count()
    assert visitor.find("#beam-menu tr").count() == nodes + 1
    visitor.close()


CONTRASTS = (ROOT / "tests" / "contrasts.js").read_text(encoding="utf-8")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_have_a_contrast_of_4_5(scheme, address, browser):
    visitor = Visitor(browser, f"{address}#view=write&text=A&temperature=2&top_p=1", 1400, scheme)
    visitor.find("#next-bars .bar").first.wait_for()
    for i in range(8):
        visitor.press("One token")
        visitor.find("#story .piece").nth(i).wait_for()
    assert visitor.page.evaluate(CONTRASTS) == []
    for view, last in (("Translate", "#weave-target .chip"), ("Inside", "#way li")):
        visitor.open(view)
        visitor.find(last).first.wait_for()
        visitor.page.wait_for_timeout(400)
        assert visitor.page.evaluate(CONTRASTS) == []
    visitor.close()


# saving


def test_figures_and_numbers_are_saved(address, browser, tmp_path):
    visitor = Visitor(browser, address, 1366)
    visitor.wait("$$('#weave-target .chip').length")

    def save(button, ending: str) -> Path:
        with visitor.page.expect_download() as download:
            button.click()
        name = download.value.suggested_filename
        assert name.startswith(f"{TRANSLATOR.name}_Two_women_are_talking")
        assert name.endswith(ending)
        download.value.save_as(tmp_path / name)
        return tmp_path / name

    def pictures(menu: str) -> str:
        visitor.find(f"{menu} summary").first.click()
        buttons = visitor.find(menu).first.get_by_role("button", name="Save")
        assert save(buttons.last, ".png").read_bytes().startswith(b"\x89PNG")
        picture = ElementTree.parse(save(buttons.first, ".svg"))
        return "".join(picture.getroot().itertext())

    assert "unterhalten" in pictures("#weave-menu")
    assert "97 %" in pictures("#beam-menu")
    loaded = load_model(TRANSLATOR)
    ids = loaded.encode("Two women are talking on a bench in the park.")
    tree = search_beams(loaded, ids, 5, 128)
    numbers = json.loads(save(visitor.find("#save-numbers"), ".json").read_text(encoding="utf-8"))
    assert [each["text"] for each in numbers["sequences"]] == tree.texts
    expected = compute_attention(loaded, ids, tree.sequences[0][None, :-1])["cross-attention"]
    torch.testing.assert_close(torch.tensor(numbers["cross_attention"]["layers"]), expected, rtol=0, atol=1e-4)
    visitor.open("Inside")
    visitor.find("#way li").first.wait_for()
    assert "Masked" in pictures("#map-menu")
    assert "unterhalten" in pictures("#block .heat")
    numbers = json.loads(save(visitor.find("#save-numbers"), ".json").read_text(encoding="utf-8"))
    torch.testing.assert_close(torch.tensor(numbers["numbers"]["weights"]), expected[0], rtol=0, atol=1e-4)
    visitor.close()


# one thread


def test_a_chosen_word_goes_along_into_inside_and_the_link(address, browser):
    visitor = Visitor(browser, address)
    visitor.wait("$$('#weave-target .chip').length")
    visitor.find("#look-controls .choice").first.get_by_role("button", name="3", exact=True).click()
    visitor.find("#weave-target .chip").nth(2).click()
    visitor.find("#alternatives .bar").nth(1).click()
    visitor.wait("$$('#weave-target [data-chosen]').length === 3")
    words = visitor.texts("#weave-target .chip")
    visitor.open("Inside")
    visitor.find("#way li").first.wait_for()
    assert visitor.texts("#inside-tokens .chip")[1:] == words[:-1]
    visitor.wait_for_text("#block .kicker", "layer 3")
    assert "You chose the first 3 tokens" in visitor.find("#inside-note").inner_text()
    visitor.wait("location.hash.includes('chosen=')")
    again = Visitor(browser, visitor.page.evaluate("location.href"))
    again.find("#way li").first.wait_for()
    assert again.texts("#inside-tokens .chip")[1:] == words[:-1]
    again.wait_for_text("#block .kicker", "layer 3")
    again.close()
    visitor.page.go_back()
    visitor.wait("!$('#translate').hidden && $('#translate').ariaBusy === 'false'")
    assert visitor.texts("#weave-target .chip") == words
    visitor.close()


def test_a_story_goes_along_into_inside_and_the_link(address, browser):
    visitor = Visitor(browser, f"{address}#view=write&text=Tom+saw&seed=4")
    visitor.find("#next-bars .bar").first.wait_for()
    for i in range(3):
        visitor.press("One token")
        visitor.find("#story .piece").nth(i).wait_for()
    pieces = visitor.texts("#story .piece")
    visitor.wait("/written=\\d+%2C\\d+%2C\\d+/.test(location.hash)")
    link = visitor.page.evaluate("location.href")
    visitor.open("Inside")
    visitor.find("#way li").first.wait_for()
    assert visitor.find("#model").input_value() == STORYTELLER.name
    assert [text.replace("·", " ") for text in visitor.texts("#inside-tokens .chip")][-3:] == pieces
    visitor.page.go_back()
    visitor.wait("!$('#write').hidden")
    assert visitor.texts("#story .piece") == pieces
    visitor.close()
    visitor = Visitor(browser, link)
    visitor.find("#story .piece").nth(2).wait_for()
    assert visitor.texts("#story .piece") == pieces
    visitor.close()


def test_one_row_of_attention_is_computed_step_by_step(address, browser):
    url = f"{address}#view=inside&text=A+dog+runs.&block=decoder.sublayer.0.cross_attn&token=1"
    visitor = Visitor(browser, f"{url}&step=One+row", 1366, reduced_motion="reduce")
    visitor.find(".one-row").wait_for()
    for i in range(5):
        assert f"{i + 1} of 6" in visitor.find(".stage-text").inner_text()
        visitor.press("Next ▸")
    loaded = load_model(TRANSLATOR)
    ids = loaded.encode("A dog runs.")
    target = search_beams(loaded, ids, 5, 64).sequences[0][None, :-1]
    weights = compute_attention(loaded, ids, target)["cross-attention"][0, 0, 1]
    shown = visitor.texts(".one-row td[data-title=softmax]")
    assert [float(text.split()[-2]) for text in shown] == pytest.approx(
        [100 * float(each) for each in weights], abs=0.6
    )
    assert visitor.find(".one-row .later").count() == 0
    visitor.close()


@pytest.mark.parametrize("family", ["gpt", "transformer"])
def test_every_block_of_other_configurations_opens(family, tmp_path, joint_tokenizer, address, browser, screenshots):
    folder = tmp_path / "other"
    joint_tokenizer.save_pretrained(folder)
    size = {"vocab_size": len(joint_tokenizer)}
    if family == "gpt":
        options = {"embedding_layernorm": True, "final_layernorm": False, "attention_bias": False}
        make_gpt(**size, **options, hidden_act="silu").save_pretrained(folder)
    else:
        options = {"norm_first": False, "share_encoder_decoder_embeddings": False, "head_dim": 6, "v_head_dim": 10}
        make_transformer(**size, **options, activation_function="gelu_new").save_pretrained(folder)
    visitor = Visitor(browser, f"{address}#view=inside")
    visitor.find("#way li").first.wait_for()
    visitor.find("#folder").set_input_files(folder)
    visitor.wait("$('#model').value === 'other'")
    visitor.find("#inside-text").fill("two dogs run")
    for stack in ["decoder"] if family == "gpt" else ["encoder", "decoder"]:
        visitor.find(f"#map [data-stack={stack}][data-kind=tokens]").click()
        kinds = []
        for _ in range(60):
            visitor.wait("$('#block h2')")
            kinds.append(visitor.find("#map [aria-pressed=true]").get_attribute("data-kind"))
            before = visitor.find("#block .kicker").inner_text()
            visitor.page.keyboard.press("ArrowUp")
            if visitor.find("#block .kicker").inner_text() == before:
                break
        layer = ["attention", "add"] * (1 + (family == "transformer" and stack == "decoder")) + ["feed-forward", "add"]
        if family == "gpt":
            expected = ["embed_norm", *["norm", "attention", "add", "norm", "feed-forward", "add"] * 2]
        else:
            expected = layer * (2 if stack == "encoder" else 3)
        ends = ["linear", "softmax"] if stack == "decoder" else []
        assert kinds == ["tokens", "embedding", "position", "sum", *expected, *ends]
    visitor.screenshot(screenshots, f"other_{family}")
    visitor.close()


def damage(name: str, folder: Path) -> None:
    config = folder / "config.json"
    weights = folder / "model.safetensors"
    if name == "no config":
        config.unlink()
    elif name == "no JSON":
        config.write_text("<html>")
    elif name == "another family":
        config.write_text(json.dumps({"model_type": MARKUP}))
    elif name == "no weights":
        weights.unlink()
    elif name == "half the weights":
        weights.write_bytes(weights.read_bytes()[:-1000])
    elif name == "other sizes":
        config.write_text(json.dumps({**json.loads(config.read_text()), "hidden_size": 48}))
    elif name == "a tensor is missing":
        tensors = load_file(weights)
        del tensors["model.norm.weight"]
        save_file(tensors, weights, metadata={"format": "pt"})
    elif name == "no tokenizer":
        (folder / "tokenizer.json").unlink()
    elif name == "a header of nonsense":
        weights.write_bytes(b"\xff" * 64)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no config", "no config.json"),
        ("no JSON", "config.json is damaged"),
        ("another family", f"config.json names {MARKUP}"),
        ("no weights", "no weights"),
        ("half the weights", "cut short or damaged"),
        ("other sizes", "do not fit config.json"),
        ("a tensor is missing", '"model.norm.weight" is missing'),
        ("no tokenizer", "no tokenizer"),
        ("a header of nonsense", "wrong: "),
    ],
)
def test_a_wrong_folder_is_one_sentence_and_the_page_goes_on(name, message, tmp_path, address, browser):
    folder = tmp_path / "wrong"
    make_gpt(vocab_size=4000).save_pretrained(folder)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(STORYTELLER / file, folder)
    damage(name, folder)
    visitor = Visitor(browser, address)
    visitor.wait("$$('#weave-target .chip').length")
    visitor.find("#folder").set_input_files(folder)
    visitor.wait_for_text("#error", "wrong: ")
    assert message in visitor.find("#error").inner_text()
    assert "wrong" not in visitor.texts("#model option")
    visitor.open("Write")
    visitor.find("#next-bars .bar").first.wait_for()
    visitor.close()


def test_the_tour_leads_through_the_views(address, browser, screenshots):
    visitor = Visitor(browser, address, reduced_motion="reduce")
    visitor.wait("$$('#weave-target .chip').length")
    visitor.press("Tour")
    visitor.find("#tour .examples button").first.click()
    visitor.wait("$('#tour-action').classList.contains('done')")
    views = []
    for place in range(1, 12):
        visitor.wait_for_text("#tour .kicker", f"{place} of 11")
        visitor.find(".pointed").wait_for()
        views.append(visitor.find("[role=tab][aria-selected=true]").inner_text())
        visitor.find("#tour .primary").click()
    assert sorted(set(views)) == ["Inside", "Translate", "Write"]
    assert visitor.find("#tour").is_hidden()
    visitor.press("Tour")
    visitor.page.keyboard.press("Escape")
    assert visitor.find("#tour").is_hidden()
    term = visitor.find("#translate .term:visible").first
    term.focus()
    visitor.wait("!$('#tooltip').hidden")
    visitor.close()


@pytest.mark.parametrize("width", [320, 380, 768, 1600])
def test_other_widths(width, address, browser, screenshots):
    visitor = Visitor(browser, address, width)
    for view, last in (("Translate", "#weave-target .chip"), ("Write", "#next-bars .bar"), ("Inside", "#way li")):
        visitor.open(view)
        visitor.find(last).first.wait_for()
        visitor.screenshot(screenshots, f"{view.lower()}_{width}")
    visitor.close()


def test_the_folder_for_a_static_host_runs_as_it_is(tmp_path, browser):
    folder = tmp_path / "space"
    subprocess.run(["make", "space", f"OUT={folder}"], cwd=ROOT, check=True, capture_output=True)
    assert not [path for path in folder.rglob("*") if path.is_symlink() or path.suffix == ".py"]
    again = subprocess.run(["make", "space", f"OUT={folder}"], cwd=ROOT, capture_output=True, text=True)
    assert again.returncode != 0
    assert "exists: choose another folder" in again.stdout
    process, url = start([sys.executable, "-m", "http.server", "0", "--bind", "127.0.0.1"], folder)
    try:
        visitor = Visitor(browser, url)
        visitor.wait_for_text("#translation", "Zwei Frauen unterhalten sich auf einer Bank im Park.")
        visitor.open("Write")
        visitor.find("#next-bars .bar").first.wait_for()
        visitor.close()
    finally:
        process.terminate()
        process.wait(20)
