# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""The explorer's files and its server. test_explorer_model.py tests its models, and test_browser.py uses the page."""

import json
import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml
from conftest import ROOT

EXPLORER = ROOT / "scripts" / "explorer"
PAGE = [path for path in EXPLORER.rglob("*") if path.suffix in (".html", ".css", ".js")]


@contextmanager
def serving(*command, folder: Path = ROOT) -> Iterator[str]:
    """The address of a server in Python, which prints its port."""
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        [sys.executable, *command], cwd=folder, env=environment, stdout=subprocess.PIPE, text=True
    )
    try:
        yield f"http://127.0.0.1:{re.search(r'(?:127.0.0.1:| port )([0-9]+)', process.stdout.readline())[1]}/"
    finally:
        process.terminate()
        process.wait(20)


def test_the_server_gives_the_page_and_its_models_and_nothing_else(tmp_path):
    (tmp_path / "blob").write_bytes(b"weights")
    model = tmp_path / "my model"
    model.mkdir()
    (model / "config.json").write_text('{"model_type": "scratch_gpt"}')
    (model / "model.safetensors").symlink_to("../blob")  # as in the cache of the Hub
    with serving(EXPLORER / "serve.py", "--port", "0", "--model", model) as address:

        def read(path: str) -> bytes:
            with urllib.request.urlopen(address + path, timeout=20) as response:
                return response.read()

        assert read("") == (EXPLORER / "index.html").read_bytes()
        assert json.loads(read("models.json")) == ["my model"]
        assert json.loads(read("models/my%20model/config.json")) == {"model_type": "scratch_gpt"}
        assert read("models/my%20model/model.safetensors") == b"weights"
        outside = ("models/other/config.json", "models/my%20model/..%2Fblob", "../demo.py", "%2e%2e/demo.py")
        for path in ("views/", "models/my%20model/", *outside):
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
