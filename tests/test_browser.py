# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""The explorer in headless Chromium, run by `make test-browser`: each view is used as a person would.

HF_SCRATCH_SCREENSHOTS names a folder for the screenshots. CHROMIUM names the browser, by default Debian's `chromium`.
"""

import base64
import json
import os
import shutil
import subprocess
from pathlib import Path
from urllib.parse import urlencode
from xml.etree import ElementTree

import pytest
import torch
from conftest import ROOT, make_gpt, make_transformer
from explained import compute_attention, load_model, predict_tokens, search_beams
from test_explorer import serving

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install 'hf-scratch[dev]'")
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium: apt-get install chromium, or set CHROMIUM"),
]
TRANSLATOR = ROOT / "model_cards" / "scratch-transformer-multi30k-en-de"
STORYTELLER = ROOT / "model_cards" / "scratch-gpt-tinystories"
WAY_BACK = ROOT / "model_cards" / "scratch-transformer-multi30k-de-en"
CONTRASTS = (ROOT / "tests" / "contrasts.js").read_text(encoding="utf-8")
SENTENCE = "A man in a blue shirt is standing on a ladder."  # 12 tokens with the full stop and the end
MARKUP = "<img src=x onerror=alert(1)><script>alert(2)</script> & \"'{{7*7}}"
# each view, and what is there when it is ready
VIEWS = {"translate": "#weave-target .chip", "write": "#next-bars .bar", "inside": "#way li"}


def show_score(score: float) -> str:
    return f"{score:.2f}".replace("-", "\N{MINUS SIGN}")


def show_share(share: float) -> str:
    return f"{share:.0%}".replace("%", " %")


@pytest.fixture(scope="module")
def address():
    with serving("scripts/explorer/serve.py", "--port", "0") as url:
        yield url


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
        self.page.set_default_timeout(30_000)  # milliseconds
        self.requests, self.complaints = [], []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", lambda message: self.complaints.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.complaints.append(dialog.message), dialog.dismiss()))
        self.url = url.split("#")[0]
        self.page.goto(url)

    def find(self, selector: str):
        return self.page.locator(selector)

    def wait_until_ready(self, view: str) -> None:
        self.find(VIEWS[view]).first.wait_for()

    def open(self, view: str) -> None:
        self.page.get_by_role("tab", name=view).click()
        self.wait_until_ready(view)

    def open_folder(self, folder: Path) -> None:
        self.find("#folder").set_input_files(folder)

    def choose(self, model: str) -> None:
        self.page.get_by_label("Model", exact=True).select_option(model)

    def press(self, name: str) -> None:
        self.page.get_by_role("button", name=name, exact=True).click()

    def write(self, count: int) -> None:
        """Write tokens one by one, in an empty story."""
        for i in range(count):
            self.press("One token")
            self.find("#story .piece").nth(i).wait_for()

    def wait(self, condition: str, given=None) -> None:
        """Wait until an expression of JavaScript is true; `$` finds an element and `$$` all."""
        head = "const $ = (s) => document.querySelector(s), $$ = (s) => [...document.querySelectorAll(s)];"
        self.page.wait_for_function(f"(given) => {{ {head} return {condition} }}", arg=given)

    def wait_for_text(self, selector: str, text: str) -> None:
        self.wait("$(given[0])?.textContent.includes(given[1])", [selector, text])

    def text(self, selector: str) -> str:
        return self.find(selector).first.inner_text()

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
def visit(browser, address):
    """Opens the page in a tab of its own, by default until the view is ready, and checks it at the test's end."""
    visitors = []

    def start(is_ready: bool = True, url: str = address, options=None, **link) -> Visitor:
        visitor = Visitor(browser, f"{url}#{urlencode(link)}" if link else url, **(options or {}))
        visitors.append(visitor)
        if is_ready:
            visitor.wait_until_ready(link.get("view", "translate"))
        return visitor

    yield start
    for visitor in visitors:
        visitor.close()


@pytest.fixture
def screenshots(tmp_path) -> Path:
    folder = Path(os.environ.get("HF_SCRATCH_SCREENSHOTS", tmp_path))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


on_each_screen = pytest.mark.parametrize(("width", "scheme"), [(1400, "light"), (400, "dark")])


@on_each_screen
def test_translate_is_used(width, scheme, visit, screenshots):
    visitor = visit(options={"width": width, "scheme": scheme})  # with an example
    loaded = load_model(TRANSLATOR)
    ids = loaded.encode(SENTENCE)
    tree = search_beams(loaded, ids, 5, 128)

    # typing translates, and the last text counts
    visitor.find("#source").fill("")
    visitor.find("#source").press_sequentially(SENTENCE, delay=5)
    visitor.wait_for_text("#translation", tree.texts[0])
    visitor.wait("$('#translate').ariaBusy === 'false'")
    assert visitor.find("#weave-target .chip").count() == len(tree.sequences[0]) - 1
    assert visitor.texts("#found bdi") == [text or "(no words)" for text in tree.texts]
    assert visitor.texts("#found .number") == [show_score(score) for score in tree.scores]
    nodes = sum(len(step) for step in tree.steps)
    assert visitor.find(".tree .node").count() == nodes

    # a word that is pointed at draws lines and names what it looked at
    words = visitor.find("#weave-target .chip")
    words.nth(1).hover()
    visitor.wait_for_text("#weave-reading", "“man”")
    assert visitor.find("#weave path").count() > 2
    visitor.screenshot(screenshots, f"translate_{width}_{scheme}")
    visitor.find("#look-controls button").nth(4).click()
    visitor.find("#look-controls button").last.click()
    words.nth(2).focus()
    words.nth(2).press("ArrowRight")
    assert words.nth(3).evaluate("word => word === document.activeElement")

    # the tree grows step by step
    visitor.press("One step back")
    visitor.press("One step back")
    assert visitor.find(".tree .node.later").count() == sum(len(step) for step in tree.steps[-2:])
    visitor.press("Play the search")
    visitor.wait("$$('.tree .node.later').length === 0")

    # another choice goes on from there
    words.nth(2).click()
    expected = [each.text for each in predict_tokens(loaded, ids, tree.sequences[0][None])[2].alternatives]
    assert visitor.texts("#alternatives .name") == expected
    visitor.screenshot(screenshots, f"alternatives_{width}_{scheme}")
    visitor.find("#alternatives .bar").nth(1).click()
    visitor.wait("$$('#weave-target [data-chosen]').length === 3")
    assert words.nth(2).inner_text() == expected[1]
    visitor.find("#translation-note .link").click()
    visitor.wait_for_text("#translation", tree.texts[0])

    # the beams are a table too
    visitor.wait("$$('.tree .node').length === given && $('#translate').ariaBusy === 'false'", nodes)
    visitor.find("#beam-menu summary").click()
    visitor.find("#beam-menu").get_by_role("button", name="Show as table").click()
    assert visitor.find("#beam-menu tr").count() == nodes + 1


@on_each_screen
def test_write_is_used(width, scheme, visit, screenshots):
    visitor = visit(view="write", text="Once upon a time", options={"width": width, "scheme": scheme})
    bars, pieces = visitor.find("#next-bars .bar"), visitor.find("#story .piece")
    loaded = load_model(STORYTELLER)
    ids = loaded.encode("Once upon a time")
    prediction = predict_tokens(loaded, loaded.encode("Once upon a time,"))[-1]
    assert visitor.texts("#next-bars .name") == [each.text for each in prediction.alternatives]

    # the sliders move the bars of the next token
    visitor.set("#temperature", 0)
    assert visitor.text("#next-bars .number") == "100 %"
    assert visitor.find("#next-bars .impossible").count() == 9
    visitor.set("#temperature", 1)
    visitor.set("#top_p", 1)
    visitor.set("#top_k", 4)
    assert visitor.find("#next-bars .impossible").count() == 6
    visitor.set("#top_k", 0)
    assert visitor.text("#next-bars .number") == show_share(prediction.alternatives[0].probability)

    # greedy is what generate() writes
    visitor.set("#temperature", 0)
    expected = loaded.model.generate(ids, do_sample=False, max_new_tokens=5)[0, ids.shape[1] :]
    visitor.write(5)
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


@on_each_screen
def test_inside_is_used(width, scheme, visit, screenshots):
    text = "A dog runs through the snow."
    visitor = visit(view="inside", text=text, options={"width": width, "scheme": scheme})
    encoder, decoder = 3 + 1 + 2 * 3 + 1, 3 + 1 + 3 * 3 + 1 + 2  # a layer of each stack
    assert visitor.find("#map .block").count() == encoder + decoder
    visitor.screenshot(screenshots, f"inside_{width}_{scheme}")

    # every block opens, and the arrow keys lead through all layers
    visitor.find("#map .block[aria-pressed=true]").focus()
    titles = set()
    for _ in range(60):
        visitor.page.keyboard.press("ArrowDown")
    visitor.wait_for_text("#block .kicker", "translation so far")
    for _ in range(4 + 4 * 9 + 3 - 1):
        titles.add(visitor.text("#block h2"))
        visitor.page.keyboard.press("ArrowUp")
    visitor.wait_for_text("#block .kicker", "Softmax")
    assert len(titles) == 13
    loaded = load_model(TRANSLATOR)
    ids = loaded.encode(text)
    target = search_beams(loaded, ids, 5, 64).sequences[0][None]
    visitor.page.keyboard.press("ArrowRight")
    visitor.wait("$$('#inside-tokens .chip')[3].ariaPressed === 'true'")
    best = predict_tokens(loaded, ids, target)[3].alternatives[0]
    assert visitor.text("#block .bar .name") == best.text
    assert visitor.text("#block .bar .number") == show_share(best.probability)
    visitor.wait_for_text("#way li:first-child bdi", best.text.strip("·"))

    # the encoder, another model, and a heat map under the pointer
    visitor.find("#map .block[data-stack=encoder][data-kind=feed-forward]").click()
    visitor.wait_for_text("#block .kicker", "encoder, layer 1, Feed-forward")
    visitor.choose(STORYTELLER.name)
    visitor.wait_for_text("#block .kicker", "layer 1, Masked self-attention")
    visitor.find("#block .thumbnail").nth(5).click()
    visitor.press("Weights")
    visitor.find("#block .heat canvas").hover(position={"x": 5, "y": 5})
    visitor.wait_for_text("#block .heat.square .reading", "“<s>”, “<s>”:")
    visitor.screenshot(screenshots, f"inside_gpt_{width}_{scheme}")


def test_a_link_carries_model_view_and_text(visit):
    visitor = visit(view="translate", model=WAY_BACK.name, text="Ein Hund schläft.", beams=2)
    loaded = load_model(WAY_BACK)
    visitor.wait_for_text("#translation", search_beams(loaded, loaded.encode("Ein Hund schläft."), 2, 128).texts[0])
    assert visitor.text("#beam-controls [aria-pressed=true]") == "2"
    visitor.find("#source").fill("Zwei Hunde & eine Katze?")
    visitor.wait("location.hash.includes('Zwei+Hunde+%26+eine+Katze%3F')")
    link = visitor.page.evaluate("location.href")
    visitor.wait("$('#translate').ariaBusy === 'false'")
    expected = visitor.text("#translation")
    visitor.open("inside")
    visitor.wait("location.hash.includes('view=inside')")
    assert visitor.find("#inside-text").input_value() == "Zwei Hunde & eine Katze?"
    visit(url=link).wait_for_text("#translation", expected)


def test_what_a_user_writes_is_text(visit):
    visitor = visit()
    tags = "() => ['img', 'script', 'iframe', 'style'].map((tag) => document.querySelectorAll(tag).length)"
    before = visitor.page.evaluate(tags)
    visitor.find("#source").fill(MARKUP)
    visitor.wait("$('#weave-source').textContent.includes('script')")
    visitor.find("#weave-target .chip").first.click()
    visitor.open("write")
    visitor.find("#beginning").fill(MARKUP)
    visitor.wait("$('#story').textContent.includes('onerror')")
    visitor.wait_until_ready("write")
    visitor.open("inside")
    visitor.choose(STORYTELLER.name)
    visitor.wait_for_text("#block .kicker", "layer 1, Masked")
    visitor.find("#inside-text").fill(MARKUP)
    visitor.wait("$('#inside-tokens').textContent.includes('script')")
    assert visitor.page.evaluate(tags) == before


def test_a_text_that_is_empty_or_too_long_is_a_sentence(visit):
    visitor = visit()
    visitor.find("#source").fill("")
    visitor.wait("$('#translation').textContent === '' && $$('#weave .chip').length === 0")
    visitor.find("#source").fill("\N{DOG FACE}" * 190)
    visitor.wait_for_text("#error", "positions")
    visitor.find("#source").fill("A man.")
    visitor.wait_for_text("#translation", "Ein Mann")
    assert visitor.find("#error").is_hidden()


# folders of a user


@pytest.fixture
def own_model(tmp_path, joint_tokenizer) -> Path:
    """A translator whose vocabulary holds markup."""
    folder = tmp_path / "my_translator"
    joint_tokenizer.save_pretrained(folder)
    model = make_transformer(vocab_size=len(joint_tokenizer), norm_first=True, position_embedding_type="learned")
    model.generation_config.update(num_beams=2, max_length=12)
    model.save_pretrained(folder)
    file = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    vocabulary = file["model"]["vocab"]
    renamed = max((token for token, index in vocabulary.items() if index > 250), key=vocabulary.get)
    vocabulary["<img/src=x/onerror=alert(3)>"] = vocabulary.pop(renamed)
    file["model"]["merges"] = [pair for pair in file["model"]["merges"] if "".join(pair) != renamed]
    (folder / "tokenizer.json").write_text(json.dumps(file), encoding="utf-8")
    return folder


def save_gpt(model, folder: Path) -> Path:
    """Save a GPT of 4000 tokens with the published tokenizer."""
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(STORYTELLER / name, folder)
    return folder


def test_a_folder_of_ones_own_is_opened(own_model, visit):
    visitor = visit()
    visitor.page.evaluate(
        "() => { window.seen = []; const bar = document.querySelector('#loaded');"
        " new MutationObserver(() => window.seen.push(Number(bar.ariaValueNow)))"
        ".observe(bar, {attributeFilter: ['aria-valuenow']}) }"
    )
    visitor.open_folder(own_model)
    visitor.wait("$('#model').value === 'my_translator'")
    progress = visitor.page.evaluate("window.seen")
    assert progress == sorted(progress)
    assert (progress[-1], visitor.find("#loaded").is_hidden()) == (100, True)
    visitor.find("#source").fill("two dogs run")
    loaded = load_model(own_model)
    tree = search_beams(loaded, loaded.encode("two dogs run"), 2, 39)
    visitor.wait("$$('#found li').length === 2")
    visitor.wait("$$('.tree .node').length === given", sum(len(step) for step in tree.steps))
    assert visitor.texts("#found .number") == [show_score(score) for score in tree.scores]
    assert visitor.find("#copy-link").is_disabled()  # a link cannot carry it
    visitor.open("inside")


def test_a_folder_is_dropped(tmp_path, visit):
    model = make_gpt(vocab_size=4000, norm_first=False, position_embedding_type="sinusoidal")
    model.generation_config.update(repetition_penalty=1.5, no_repeat_ngram_size=2)
    folder = save_gpt(model, tmp_path / "dropped")
    files = [(path.name, base64.b64encode(path.read_bytes()).decode()) for path in folder.iterdir()]
    visitor = visit()
    visitor.page.evaluate(
        "(files) => { const dropped = new DataTransfer();"
        " const read = (bytes) => Uint8Array.from(atob(bytes), (each) => each.charCodeAt(0));"
        " for (const [name, bytes] of files) dropped.items.add(new File([read(bytes)], name));"
        " window.dispatchEvent(new DragEvent('dragover', {dataTransfer: dropped, cancelable: true}));"
        " window.dispatchEvent(new DragEvent('drop', {dataTransfer: dropped, cancelable: true})) }",
        files,
    )
    visitor.wait("$('#model').value === 'dropped model'")
    visitor.wait_until_ready("write")

    # its generation_config.json is applied, and said
    visitor.find("#beginning").fill("the fox saw the fox")
    assert "repetition penalty 1.5" in visitor.text("#penalty-note")
    visitor.set("#temperature", 0)
    loaded = load_model(folder)
    ids = loaded.encode("the fox saw the fox")
    expected = loaded.read(loaded.model.generate(ids, do_sample=False, max_new_tokens=6)[0, ids.shape[1] :])
    visitor.wait("$('#story').textContent.includes('the fox saw the fox')")
    visitor.write(6)
    assert visitor.find("#story .piece").all_text_contents() == [text.replace("·", " ") for text in expected]
    visitor.open("inside")
    visitor.choose("dropped model")
    visitor.wait("$$('#way li').length === 5")


def test_a_parent_of_two_models_gives_both(tmp_path, own_model, visit):
    for name in ("first", "second"):
        shutil.copytree(own_model, tmp_path / "runs" / name)
    visitor = visit()
    visitor.open_folder(tmp_path / "runs")
    visitor.wait_for_text("#notice", "holds 2 models")
    assert visitor.texts("#model option")[-2:] == ["first", "second"]
    visitor.choose("second")
    visitor.wait("location.hash.includes('model=second')")


@pytest.mark.parametrize("family", ["gpt", "transformer"])
def test_every_block_of_other_configurations_opens(family, tmp_path, joint_tokenizer, visit, screenshots):
    folder = tmp_path / "other"
    joint_tokenizer.save_pretrained(folder)
    size = {"vocab_size": len(joint_tokenizer)}
    blocks, ends = ["tokens", "embedding", "position", "sum"], ["linear", "softmax"]
    if family == "gpt":
        options = {"embedding_layernorm": True, "final_layernorm": False, "attention_bias": False}
        make_gpt(**size, **options, hidden_act="silu").save_pretrained(folder)
        layer = ["norm", "attention", "add", "norm", "feed-forward", "add"]
        expected = {"decoder": [*blocks, "embed_norm", *layer * 2, *ends]}
    else:
        options = {"norm_first": False, "share_encoder_decoder_embeddings": False, "head_dim": 6, "v_head_dim": 10}
        make_transformer(**size, **options, activation_function="gelu_new").save_pretrained(folder)
        attention, rest = ["attention", "add"], ["feed-forward", "add"]
        expected = {
            "encoder": [*blocks, *[*attention, *rest] * 2],
            "decoder": [*blocks, *[*attention, *attention, *rest] * 3, *ends],
        }
    visitor = visit(view="inside")
    visitor.open_folder(folder)
    visitor.wait("$('#model').value === 'other'")
    visitor.find("#inside-text").fill("two dogs run")
    for stack, kinds in expected.items():
        visitor.find(f"#map [data-stack={stack}][data-kind=tokens]").click()
        found = []
        for _ in range(len(kinds) + 1):  # once more, at the top
            visitor.wait("$('#block h2')")
            found.append(visitor.find("#map [aria-pressed=true]").get_attribute("data-kind"))
            visitor.page.keyboard.press("ArrowUp")
        assert found == [*kinds, kinds[-1]]
    visitor.screenshot(screenshots, f"other_{family}")


@pytest.mark.parametrize("is_config", [True, False])
def test_a_wrong_folder_is_one_sentence_and_the_page_goes_on(is_config, tmp_path, visit):
    """test_explorer_model.py has the other sentences."""
    folder = save_gpt(make_gpt(vocab_size=4000), tmp_path / "wrong")
    if is_config:
        (folder / "config.json").write_text(json.dumps({"model_type": MARKUP}))
    else:
        (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:-1000])
    visitor = visit()
    visitor.open_folder(folder)
    visitor.wait_for_text("#error", "wrong: ")
    assert (f"config.json names {MARKUP}" if is_config else "cut short or damaged") in visitor.text("#error")
    assert "wrong" not in visitor.texts("#model option")
    visitor.open("write")


def test_numbers_that_are_not_finite_are_told(tmp_path, visit):
    model = make_gpt(vocab_size=4000)
    model.model.layers[1].feed_forward.fc2.weight.data.fill_(3e38)
    visitor = visit()
    visitor.open_folder(save_gpt(model, tmp_path / "wrong"))
    visitor.wait_for_text("#error", "not finite")


# errors are loud


@pytest.fixture
def space(tmp_path):
    """A folder for a static host, which `make space` wrote, and its address."""
    folder = tmp_path / "space"
    subprocess.run(["make", "space", f"OUT={folder}"], cwd=ROOT, check=True, capture_output=True)
    with serving("-m", "http.server", "0", "--bind", "127.0.0.1", folder=folder) as url:
        yield folder, url


def test_the_folder_for_a_static_host_runs_as_it_is(space, visit):
    folder, url = space
    assert not [path for path in folder.rglob("*") if path.is_symlink() or path.suffix == ".py"]
    again = subprocess.run(["make", "space", f"OUT={folder}"], cwd=ROOT, capture_output=True, text=True)
    assert again.returncode != 0
    assert "exists" in again.stdout
    visitor = visit(url=url)
    visitor.wait_for_text("#translation", "Zwei Frauen unterhalten sich auf einer Bank im Park.")
    visitor.open("write")


def test_a_name_without_a_model_hides_no_other(space, visit):
    folder, url = space
    names = json.loads((folder / "models.json").read_text(encoding="utf-8"))
    (folder / "models.json").write_text(json.dumps(["not there", *names]))
    visitor = visit(url=url)
    assert "not there" in visitor.text("#notice")
    visitor.press("Close")
    assert visitor.find("#notice").is_hidden()
    visitor.choose("not there")
    visitor.wait_for_text("#error", "there is no config.json")
    visitor.complaints.clear()  # the console names what was not found


def test_a_download_that_fails_can_be_tried_again(space, visit):
    folder, url = space
    weights = folder / "models" / STORYTELLER.name / "model.safetensors"
    weights.unlink()
    visitor = visit(url=url, view="write", model=STORYTELLER.name, text="A dog", is_ready=False)
    visitor.wait_for_text("#error", f"{STORYTELLER.name}: This folder holds no weights")
    assert visitor.find("#model").input_value() == STORYTELLER.name
    assert visitor.find("#story").is_hidden()
    shutil.copy(STORYTELLER / "model.safetensors", weights)
    visitor.press("Try again")
    visitor.wait_until_ready("write")
    assert visitor.find("#beginning").input_value() == "A dog"
    visitor.complaints.clear()


@pytest.mark.parametrize(
    ("file", "answer", "message"),
    [
        ("model.safetensors", lambda route: route.abort(), "does not answer"),
        ("worker.js", lambda route: route.fulfill(status=404), "could not be loaded"),
    ],
    ids=["a cut connection", "a worker that fails"],
)
def test_what_could_not_be_fetched_is_told_and_tried_again(file, answer, message, address, visit):
    visitor = visit(url=f"{address}models.json", is_ready=False)
    visitor.page.route(f"**/{file}", answer)
    visitor.page.goto(address)
    visitor.wait_for_text("#error", message)
    assert visitor.find("#loaded").is_hidden()
    visitor.page.unroute(f"**/{file}")
    visitor.press("Try again")
    visitor.wait_until_ready("translate")
    visitor.complaints.clear()
    visitor.requests.clear()


def test_a_link_to_a_model_that_is_not_here_shows_no_other(own_model, visit):
    visitor = visit(view="translate", model="my_translator", text="two dogs", is_ready=False)
    visitor.wait_for_text("#error", "my_translator: this model is not here")
    assert visitor.find("#translation").is_hidden()
    visitor.open_folder(own_model)
    visitor.wait_until_ready("translate")
    assert visitor.find("#source").input_value() == "two dogs"


def test_the_worker_is_under_the_pages_policy_and_frees_models(visit):
    visitor = visit()
    (worker,) = visitor.page.workers
    asked = "fetch('data:,x').then(() => 'answered', () => 'refused')"
    assert worker.evaluate(asked) == "refused"
    visitor.page.evaluate(
        "() => { window.freed = []; const post = Worker.prototype.postMessage; Worker.prototype.postMessage ="
        " function (message) { if (message.type === 'free') freed.push(message.model); post.call(this, message) } }"
    )
    names = [f"{TRANSLATOR.name}-7m", WAY_BACK.name]
    for name in names:
        visitor.choose(name)
        visitor.wait("location.hash.includes(`model=${given}&`) && $('#translate').ariaBusy === 'false'", name)
    assert [name.split()[0] for name in visitor.page.evaluate("freed")] == [TRANSLATOR.name, names[0]]


def test_without_javascript_no_button_is_dead(visit):
    visitor = visit(is_ready=False, options={"java_script_enabled": False})
    visitor.page.wait_for_timeout(2500)
    assert visitor.find("#without").is_visible()
    assert not any(button.is_visible() for button in visitor.find("button").all())


# every number can be read


def compute_cross_attention(text: str) -> torch.Tensor:
    """The weights (layers, heads, queries, keys) of the published translator's best translation."""
    loaded = load_model(TRANSLATOR)
    ids = loaded.encode(text)
    target = search_beams(loaded, ids, 5, 128).sequences[0][None, :-1]
    return compute_attention(loaded, ids, target)["decoder", "cross_attn"]


@pytest.mark.parametrize("is_touch", [False, True])
def test_a_cell_is_read_by_tap_or_click_and_keys_and_stays(is_touch, visit):
    options = {"width": 390, "has_touch": True, "is_mobile": True} if is_touch else {}
    text, block = "A dog runs through the snow.", "decoder.sublayer.1.cross_attn"
    visitor = visit(view="inside", text=text, block=block, step="Weights", head=2, options=options)
    weights = compute_cross_attention(text)[1, 2]
    canvas = visitor.find("#block .heat canvas")
    box = canvas.bounding_box()
    where = {"x": 1.5 * box["width"] / weights.shape[1], "y": 2.5 * box["height"] / weights.shape[0]}
    canvas.tap(position=where) if is_touch else canvas.click(position=where)
    visitor.wait("$$('#inside-tokens .chip')[2].ariaPressed === 'true'")
    visitor.page.mouse.move(0, 0)
    assert visitor.text("#block .reading").endswith(f": {weights[2, 1]:.3f}")
    canvas.focus()
    canvas.press("ArrowRight")
    canvas.press("ArrowDown")
    assert visitor.text("#block .reading").endswith(f": {weights[3, 2]:.3f}")
    if is_touch:
        visitor.find("#block").get_by_role("button", name="One cell left").tap()
        assert visitor.text("#block .reading").endswith(f": {weights[3, 1]:.3f}")
    visitor.find("#block .heat summary").click()
    visitor.press("Show as table")
    assert visitor.texts("#block .heat td") == [f"{weight:.3f}" for weight in weights.flatten().tolist()]


def test_one_row_of_attention_is_computed_step_by_step(visit):
    link = {"view": "inside", "text": "A dog runs.", "block": "decoder.sublayer.0.cross_attn", "token": 1}
    visitor = visit(**link, step="One row", options={"reduced_motion": "reduce"})
    visitor.find(".one-row").wait_for()
    for i in range(5):
        assert f"{i + 1} of 6" in visitor.text(".stage-text")
        visitor.press("Next ▸")
    expected = 100 * compute_cross_attention("A dog runs.")[0, 0, 1]
    shown = visitor.texts(".one-row td[data-title=softmax]")
    assert [float(text.split()[-2]) for text in shown] == pytest.approx(expected.tolist(), abs=0.6)
    assert visitor.find(".one-row .later").count() == 0


def test_figures_and_numbers_are_saved(visit, tmp_path):
    visitor = visit()

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

    def numbers() -> dict:
        return json.loads(save(visitor.find("#save-numbers"), ".json").read_text(encoding="utf-8"))

    assert "unterhalten" in pictures("#weave-menu")
    assert "97 %" in pictures("#beam-menu")
    text = "Two women are talking on a bench in the park."
    loaded, expected = load_model(TRANSLATOR), compute_cross_attention(text)
    saved = numbers()
    assert [each["text"] for each in saved["sequences"]] == search_beams(loaded, loaded.encode(text), 5, 128).texts
    torch.testing.assert_close(torch.tensor(saved["cross_attention"]["layers"]), expected, rtol=0, atol=1e-4)
    visitor.open("inside")
    assert "Masked" in pictures("#map-menu")
    assert "unterhalten" in pictures("#block .heat")
    torch.testing.assert_close(torch.tensor(numbers()["numbers"]["weights"]), expected[0], rtol=0, atol=1e-4)


# one thread


def test_a_chosen_word_goes_along_into_inside_and_the_link(visit):
    visitor = visit()
    visitor.find("#look-controls .choice").first.get_by_role("button", name="3", exact=True).click()
    visitor.find("#weave-target .chip").nth(2).click()
    visitor.find("#alternatives .bar").nth(1).click()
    visitor.wait("$$('#weave-target [data-chosen]').length === 3")
    words = visitor.texts("#weave-target .chip")
    visitor.open("inside")
    assert "You chose the first 3 tokens" in visitor.text("#inside-note")
    visitor.wait("location.hash.includes('chosen=')")
    again = visit(url=visitor.page.evaluate("location.href"), is_ready=False)
    again.wait_until_ready("inside")
    for each in (visitor, again):
        assert each.texts("#inside-tokens .chip")[1:] == words[:-1]
        each.wait_for_text("#block .kicker", "layer 3")
    visitor.page.go_back()
    visitor.wait("!$('#translate').hidden && $('#translate').ariaBusy === 'false'")
    assert visitor.texts("#weave-target .chip") == words


def test_a_story_goes_along_into_inside_and_the_link(visit):
    visitor, other = (visit(view="write", text="Tom saw", seed=4, temperature=1, top_p=1, top_k=0) for _ in range(2))
    for each in (visitor, other):
        each.write(6)
    pieces = visitor.texts("#story .piece")
    assert other.texts("#story .piece") == pieces  # the same dice
    visitor.wait("/written=(\\d+%2C){5}\\d+/.test(location.hash)")
    link = visitor.page.evaluate("location.href")
    visitor.open("inside")
    assert visitor.find("#model").input_value() == STORYTELLER.name
    assert [text.replace("·", " ") for text in visitor.texts("#inside-tokens .chip")][-6:] == pieces
    visitor.page.go_back()
    visitor.wait("!$('#write').hidden")
    again = visit(url=link, is_ready=False)
    again.find("#story .piece").nth(5).wait_for()
    assert visitor.texts("#story .piece") == again.texts("#story .piece") == pieces


def test_the_tour_leads_through_the_views(visit):
    visitor = visit(options={"reduced_motion": "reduce"})
    visitor.press("Tour")
    visitor.find("#tour .examples button").first.click()
    visitor.wait("$('#tour-action').classList.contains('done')")
    views = set()
    for place in range(1, 12):
        visitor.wait_for_text("#tour .kicker", f"{place} of 11")
        visitor.find(".pointed").wait_for()
        views.add(visitor.text("[role=tab][aria-selected=true]"))
        visitor.find("#tour .primary").click()
    assert views == {"Inside", "Translate", "Write"}
    assert visitor.find("#tour").is_hidden()
    visitor.press("Tour")
    visitor.page.keyboard.press("Escape")
    assert visitor.find("#tour").is_hidden()
    visitor.find("#translate .term:visible").first.focus()
    visitor.wait("!$('#tooltip').hidden")


@pytest.mark.parametrize(("width", "scheme"), [(320, "light"), (380, "dark"), (768, "light"), (1600, "dark")])
def test_other_widths_and_texts_have_a_contrast_of_4_5(width, scheme, visit, screenshots):
    options = {"width": width, "scheme": scheme}
    visitor = visit(view="write", text="A", temperature=2, top_p=1, options=options)
    visitor.write(8)
    for view in VIEWS:
        visitor.open(view)
        visitor.screenshot(screenshots, f"{view}_{width}")
        assert visitor.page.evaluate(CONTRASTS) == []
