# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""The explorer's files and its server. test_explorer_model.py tests its models, and test_browser.py uses the page."""

import json
import re
import subprocess
import sys
import urllib.error
import urllib.request

import pytest
import yaml
from conftest import ROOT

EXPLORER = ROOT / "scripts" / "explorer"
PAGE = [path for path in EXPLORER.rglob("*") if path.suffix in (".html", ".css", ".js")]


@pytest.fixture
def address(tmp_path):
    """A server of one model's folder, in which a file is a link, as in the cache of the Hub."""
    (tmp_path / "blob").write_bytes(b"weights")
    model = tmp_path / "my model"
    model.mkdir()
    (model / "config.json").write_text('{"model_type": "scratch_gpt"}')
    (model / "model.safetensors").symlink_to("../blob")
    command = [sys.executable, EXPLORER / "serve.py", "--port", "0", "--model", model]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    found = re.search(r"http://127\.0\.0\.1:\d+", process.stdout.readline())
    assert found is not None
    yield found.group()
    process.terminate()
    process.wait(20)


def test_the_server_gives_the_page_and_its_models_and_nothing_else(address):
    def read(path: str) -> bytes:
        with urllib.request.urlopen(address + path, timeout=20) as response:
            return response.read()

    assert read("/") == (EXPLORER / "index.html").read_bytes()
    assert json.loads(read("/models.json")) == ["my model"]
    assert json.loads(read("/models/my%20model/config.json")) == {"model_type": "scratch_gpt"}
    assert read("/models/my%20model/model.safetensors") == b"weights"
    for path in ("/views/", "/models/my%20model/", "/models/my%20model/..%2Fblob",
                 "/models/other/config.json", "/../demo.py", "/%2e%2e/demo.py"):  # fmt: skip
        with pytest.raises(urllib.error.HTTPError, match="404"):
            read(path)


def test_a_folder_that_holds_no_model_is_named(tmp_path):
    command = [sys.executable, EXPLORER / "serve.py", "--model", tmp_path]
    refused = subprocess.run(command, capture_output=True, text=True)
    assert refused.returncode == 2
    assert f"{tmp_path} is not the folder of a model" in refused.stderr


def test_the_page_is_small_and_names_no_other_machine():
    assert sum(path.stat().st_size for path in PAGE) < 240_000
    for path in PAGE:
        text = path.read_text(encoding="utf-8")
        assert set(re.findall(r"https?://[^\s\"']+", text)) <= {"http://www.w3.org/2000/svg"}, path
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(", text), path
    assert "default-src 'none'" in (EXPLORER / "index.html").read_text(encoding="utf-8")


def test_the_published_models_are_in_the_page_and_in_the_space():
    names = json.loads((EXPLORER / "models.json").read_text(encoding="utf-8"))
    assert sorted(names) == sorted(path.name for path in (ROOT / "model_cards").glob("scratch-*"))
    front_matter = yaml.safe_load((EXPLORER / "README.md").read_text(encoding="utf-8").split("---\n")[1])
    assert (front_matter["sdk"], front_matter["app_file"]) == ("static", "index.html")
