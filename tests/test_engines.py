# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""The published models in other engines, each converted by its command: `make test-engines`."""

import importlib.util
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request

import pytest
from conftest import ROOT
from transformers import AutoModelForCausalLM, AutoTokenizer

pytestmark = pytest.mark.slow
STORYTELLER = "model_cards/scratch-gpt-tinystories"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
# engine and quantization, of translations or texts: the least share of tokens before a text's first difference
SHARES = {
    ("hf_scratch", "float32", "translation"): 1.0,
    ("transformers", "float32", "translation"): 1.0,
    ("ctranslate2", "float32", "translation"): 1.0,
    ("ctranslate2", "int8", "translation"): 0.9,
    ("onnx", "float32", "translation"): 1.0,
    ("onnx", "int8", "translation"): 0.8,
    ("hf_scratch", "float32", "text"): 1.0,
    ("transformers", "float32", "text"): 1.0,
    ("ctranslate2", "float32", "text"): 1.0,
    ("ctranslate2", "int8", "text"): 0.2,
    ("gguf", "float32", "text"): 0.9,  # its GELU is an approximation
    ("gguf", "float16", "text"): 0.9,
    ("gguf", "int8", "text"): 0.5,
    ("onnx", "float32", "text"): 1.0,
    ("onnx", "int8", "text"): 0.2,
}


def run(*words: str, code: int = 0) -> subprocess.CompletedProcess:
    done = subprocess.run([sys.executable, *words], cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == code, done.stderr[-3000:]
    return done


@pytest.fixture(scope="module")
def rows(tmp_path_factory, multi30k) -> list[dict]:
    """The figures of engines.py on a part of its inputs."""
    folder = tmp_path_factory.mktemp("engines")
    sizes = ["--sentences", "30", "--prompts", "6", "--new_tokens", "40", "--rounds", "1"]
    run("scripts/benchmark/engines.py", "--data", multi30k, "--output_dir", str(folder), *sizes)
    return json.loads((folder / "engines.json").read_text(encoding="utf-8"))["rows"]


@pytest.mark.parametrize(("engine", "quantization", "kind"), SHARES)
def test_an_engine_gives_our_tokens(rows, engine, quantization, kind):
    key = (engine, quantization)
    found = [row for row in rows if (row["engine"], row["quantization"]) == key and row["what"].startswith(kind)]
    if not found and engine in ("ctranslate2", "gguf", "onnx"):
        pytest.skip(f"{engine} is not installed")
    assert found
    for row in found:
        share = row["equal_tokens"] / row["tokens"]
        assert share >= SHARES[engine, quantization, kind], row
        assert (row["equal"] == row["of"]) >= (SHARES[engine, quantization, kind] == 1.0)
        assert row["per_second"] > 0


@pytest.mark.parametrize("engine", ["ctranslate2", "gguf", "onnx"])
def test_int8_takes_a_third_of_the_space(rows, engine):
    sizes = {row["quantization"]: row["megabytes"] for row in rows if row["engine"] == engine}
    if not sizes:
        pytest.skip(f"{engine} is not installed")
    assert sizes["int8"] < sizes["float32"] / 2.9


def test_onnxruntime_runs_without_torch_and_transformers(tmp_path):
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package)
    pytest.importorskip("transformers.exporters")
    run("scripts/export_onnx.py", "--model", STORYTELLER, "--output_dir", str(tmp_path / "onnx"))
    code = (
        "import runpy, sys; runpy.run_path('scripts/run_onnx.py', run_name='__main__'); "
        "assert not {'torch', 'transformers', 'hf_scratch'} & set(sys.modules)"
    )
    text = run("-c", code, str(tmp_path / "onnx"), "Once upon a time").stdout
    assert text.startswith("Once upon a time, there was a little girl named Lily.")


@pytest.fixture
def server():
    """The address of `scripts/serve.py` with the published GPT in float32."""
    for package in ("fastapi", "uvicorn", "openai"):
        pytest.importorskip(package)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    words = [sys.executable, "scripts/serve.py", STORYTELLER, "--port", port, "--device", "cpu", "--dtype", "float32"]
    process = subprocess.Popen(words, cwd=ROOT, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(120):
            assert process.poll() is None, "the server ended"
            try:
                with urllib.request.urlopen(f"http://localhost:{port}/health", timeout=5):
                    break
            except OSError:
                time.sleep(0.5)
        yield f"http://localhost:{port}/v1"
    finally:
        process.terminate()
        process.wait(20)


def test_a_client_streams_the_gpts_text_from_transformers_serve(server):
    from openai import OpenAI

    model = AutoModelForCausalLM.from_pretrained(ROOT / STORYTELLER, dtype="float32")
    tokenizer = AutoTokenizer.from_pretrained(ROOT / STORYTELLER)
    prompt = "Lily had a blue kite."
    inputs = tokenizer(prompt, return_tensors="pt")
    expected = model.generate(**inputs, do_sample=False, max_new_tokens=40)[0, inputs["input_ids"].shape[1] :]
    options = {"model": STORYTELLER, "prompt": prompt, "max_tokens": 40, "temperature": 0}
    client = OpenAI(base_url=server, api_key="none", max_retries=0)
    pieces = [chunk.choices[0].text for chunk in client.completions.create(**options, stream=True)]
    assert "".join(pieces) == tokenizer.decode(expected, skip_special_tokens=True)
    assert len([piece for piece in pieces if piece]) > 20  # it came in pieces
    assert client.completions.create(**options).choices[0].text == "".join(pieces)


def test_what_is_missing_is_named():
    if importlib.util.find_spec("fastapi") is not None:
        pytest.skip("the server's packages are installed")
    assert "pip install 'hf-scratch[serve]'" in run("scripts/serve.py", STORYTELLER, code=2).stderr
