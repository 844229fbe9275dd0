# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""The explorer in headless Chromium, run by `make test-browser`.

HF_SCRATCH_SCREENSHOTS names a folder for the screenshots. CHROMIUM names the browser, by default Debian's `chromium`.
"""

import html
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import ROOT

from hf_scratch.explaining import load_model, search_beams, write_tokens

pytest.importorskip("gradio", reason="the explorer needs gradio: pip install 'hf-scratch[explore]'")
playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install 'hf-scratch[dev]'")
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium: apt-get install chromium, or set CHROMIUM"),
]
TRANSLATOR = ROOT / "model_cards" / "scratch-transformer-multi30k-en-de"
STORYTELLER = ROOT / "model_cards" / "scratch-gpt-tinystories"
PATIENCE = 60_000  # milliseconds
PICTURE = ".picture img:visible"


def start(folder: Path, log: Path, **environment) -> tuple[subprocess.Popen, str]:
    """Start app.py of a folder, and wait until its page answers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", **environment}
    command = [sys.executable, "app.py", "--port", str(port)]
    with log.open("w") as output:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=output, stderr=output)
    for _ in range(1200):
        if "Running on local URL" in log.read_text():
            return process, f"http://127.0.0.1:{port}"
        assert process.poll() is None, log.read_text()
        time.sleep(0.1)
    process.kill()
    raise AssertionError(log.read_text())


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    log = tmp_path_factory.mktemp("explorer") / "log.txt"
    process, url = start(ROOT / "scripts" / "explorer", log, PYTHONPATH=str(ROOT))
    yield url
    process.terminate()
    process.wait(20)
    assert "Traceback" not in log.read_text()


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []  # Chromium's sandbox refuses root
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=sandbox)
        yield browser
        browser.close()


class Visitor:
    """One browser tab, which notes what the page asks for and what its console says."""

    def __init__(self, browser, url: str, width: int = 1400, scheme: str = "light"):
        self.page = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme).new_page()
        self.page.set_default_timeout(PATIENCE)
        self.requests, self.console = [], []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", lambda message: self.console.append((message.type, message.text)))
        self.page.on("pageerror", lambda error: self.console.append(("error", str(error))))
        self.page.goto(url)
        self.page.locator(PICTURE).nth(1).wait_for()

    def open(self, view: str) -> None:
        self.page.get_by_role("tab", name=view).click()

    def press(self, name: str) -> None:
        self.page.get_by_role("button", name=name, exact=True).click()

    def change(self, action, target: str) -> str:
        """Do something, wait until the HTML of a visible element is another, and return it."""
        before = self.page.locator(target).first.evaluate("element => element.outerHTML")
        action()
        self.page.wait_for_function(
            "([target, before]) => { const found = [...document.querySelectorAll(target.replace(':visible', ''))]"
            ".find(element => element.offsetParent); return found && found.outerHTML !== before }",
            arg=[target, before],
        )
        return self.page.locator(target).first.evaluate("element => element.outerHTML")

    def choose(self, label: str, option: str) -> None:
        self.page.get_by_label(label, exact=True).locator("visible=true").click()
        self.page.get_by_role("option", name=option, exact=True).click()

    def tokens(self):
        return self.page.locator(".tokens:visible .token")

    def pictures(self) -> list[str]:
        return [image.get_attribute("alt") for image in self.page.locator(PICTURE).all()]

    def wait_for_picture(self, part: str) -> None:
        self.page.locator(f'.picture img[alt*="{part}"]').locator("visible=true").first.wait_for()

    def table(self) -> list[list[str]]:
        text = self.page.locator(".table:visible").first.inner_html()
        rows = re.findall(r"<tr>(.*?)</tr>", text)[1:]
        return [[html.unescape(re.sub("<.*?>", "", cell)) for cell in re.findall(r"<td.*?</td>", row)] for row in rows]

    def screenshot(self, folder: Path, name: str) -> None:
        self.page.wait_for_timeout(300)  # transitions end
        self.page.screenshot(path=folder / f"{name}.png", full_page=True)
        width = self.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert width <= 0, f"{name}: the page is {width} pixels too wide"


@pytest.fixture
def screenshots(tmp_path) -> Path:
    folder = Path(os.environ.get("HF_SCRATCH_SCREENSHOTS", tmp_path))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1400, 400])
def test_each_view_is_used(width, scheme, address, browser, screenshots):
    visitor = Visitor(browser, address, width, scheme)
    name = f"{width}_{scheme}"

    visitor.page.get_by_label("source").fill("A dog runs through the snow.")
    visitor.press("Translate")
    visitor.wait_for_picture("tree of beams of: A dog runs")
    loaded = load_model(TRANSLATOR)
    tree = search_beams(loaded, loaded.encode("A dog runs through the snow."), 5, 80)
    expected = zip(tree.texts, tree.scores, strict=True)
    assert visitor.table() == [
        [str(i), text or "(no words)", f"{score:.4f}"] for i, (text, score) in enumerate(expected, 1)
    ]
    visitor.tokens().nth(3).click()
    visitor.wait_for_picture("alternatives of")
    visitor.choose("layer", "1")
    visitor.wait_for_picture("cross-attention, layer 1, head all")
    visitor.choose("head", "2")
    visitor.wait_for_picture("cross-attention, layer 1, head 2")
    visitor.choose("attention", "encoder self-attention")
    visitor.wait_for_picture("encoder self-attention, layer 3, head all")
    visitor.screenshot(screenshots, f"translate_{name}")

    visitor.open("Write")
    visitor.press("Write")
    visitor.wait_for_picture("token 1,")
    writer = load_model(STORYTELLER)
    story = write_tokens(writer, writer.encode("Once upon a time"), 60, temperature=0.8, top_p=0.9)
    given = writer.read(writer.encode("Once upon a time")[0])
    assert visitor.tokens().all_inner_texts() == [*given, *(each.text for each in story)]
    visitor.tokens().nth(12).click()
    visitor.wait_for_picture("token 8,")
    slider = visitor.page.get_by_role("slider").locator("visible=true").first
    slider.press("End")
    slider.dispatch_event("pointerup")
    visitor.wait_for_picture("temperature 2,")
    visitor.screenshot(screenshots, f"write_{name}")

    visitor.open("Inside")
    visitor.wait_for_picture("decoder, token")
    visitor.tokens().nth(1).click()
    visitor.wait_for_picture("at position 1:")
    visitor.choose("layer", "2")
    visitor.wait_for_picture("decoder self-attention, layer 2")
    visitor.screenshot(screenshots, f"inside_{name}")
    visitor.page.get_by_text("encoder", exact=True).locator("visible=true").click()
    visitor.wait_for_picture("encoder, token")
    visitor.choose("model", "scratch-gpt-tinystories")
    visitor.wait_for_picture("decoder, token")
    visitor.screenshot(screenshots, f"inside_gpt_{name}")

    assert not [message for message in visitor.console if message[0] in ("error", "warning")]
    others = {url for url in visitor.requests if not url.startswith((address, "data:", "blob:"))}
    assert not others
    visitor.page.context.close()


def test_a_wrong_input_is_a_message_and_the_page_goes_on(address, browser):
    visitor = Visitor(browser, address)
    for text, message in (("", "must be some words"), ("dog " * 90, "at most 64 tokens")):
        visitor.page.get_by_label("source").fill(text)
        visitor.press("Translate")
        visitor.page.get_by_text(message).first.wait_for()
    visitor.page.get_by_label("source").fill("A man.")
    visitor.press("Translate")
    visitor.wait_for_picture("tree of beams of: A man.")
    visitor.page.context.close()


SLOW = """
import time
from hf_scratch.explaining import probabilities

make_prediction = probabilities.make_prediction

def make_slowly(*args, **kwargs):
    time.sleep(0.1)
    return make_prediction(*args, **kwargs)

probabilities.make_prediction = make_slowly
"""


@pytest.fixture
def slow_address(tmp_path):
    """An explorer that takes a tenth of a second for a token: nobody could stop it in time otherwise."""
    (tmp_path / "sitecustomize.py").write_text(SLOW, encoding="utf-8")
    path = os.pathsep.join((str(tmp_path), str(ROOT)))
    process, url = start(ROOT / "scripts" / "explorer", tmp_path / "log.txt", PYTHONPATH=path)
    yield url
    process.terminate()
    process.wait(20)


def test_a_stopped_text_ends(slow_address, browser):
    visitor = Visitor(browser, slow_address)
    visitor.open("Write")
    visitor.page.get_by_label("number input for new tokens").fill("120")
    visitor.press("Write")
    visitor.tokens().nth(8).wait_for()
    visitor.press("Stop")
    visitor.page.wait_for_timeout(1500)
    stopped = visitor.tokens().count()
    visitor.page.wait_for_timeout(1500)
    assert visitor.tokens().count() == stopped < 125
    visitor.page.context.close()


def test_eight_browsers_at_once_get_their_own_answers(address, browser):
    sentences = [f"A {color} {animal} sleeps." for color in ("black", "white") for animal in
                 ("dog", "cat", "horse", "man")]  # fmt: skip
    visitors = [Visitor(browser, address) for _ in sentences]
    for visitor, sentence in zip(visitors, sentences, strict=True):
        visitor.page.get_by_label("source").fill(sentence)
    for visitor in visitors:
        visitor.press("Translate")
    loaded = load_model(TRANSLATOR)
    for visitor, sentence in zip(visitors, sentences, strict=True):
        visitor.wait_for_picture(f"tree of beams of: {sentence}")
        tree = search_beams(loaded, loaded.encode(sentence), 5, 80)
        assert [row[1] for row in visitor.table()] == [text or "(no words)" for text in tree.texts]
    # each page still knows its own sentence
    for visitor in visitors:
        visitor.choose("layer", "0")
    for visitor, sentence in zip(visitors, sentences, strict=True):
        visitor.wait_for_picture(f"cross-attention, layer 0, head all: {sentence}")
        visitor.page.context.close()


def test_the_folder_of_the_space_runs_as_it_is(tmp_path, browser):
    """Outside the repository, and without the package installed for it: `hf_scratch` lies beside app.py."""
    folder = tmp_path / "space"
    subprocess.run(["make", "space", f"OUT={folder}"], cwd=ROOT, check=True, capture_output=True)
    assert not [path for path in folder.rglob("*") if path.is_symlink() or path.name == "__pycache__"]
    again = subprocess.run(["make", "space", f"OUT={folder}"], cwd=ROOT, capture_output=True, text=True)
    assert again.returncode != 0
    assert "exists: choose another folder" in again.stdout
    environment = {name: "" for name in ("PYTHONPATH",) if name in os.environ}
    process, url = start(folder, tmp_path / "log.txt", **environment)
    try:
        visitor = Visitor(browser, url)
        assert visitor.table()[0][1] == "Zwei Frauen unterhalten sich auf einer Bank im Park."
        visitor.page.context.close()
    finally:
        process.terminate()
        process.wait(20)
