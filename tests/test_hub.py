# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Push to and load from a Hub with the real client, against the small Hub of hub_server.py.

huggingface_hub reads the Hub's address when it is imported. So each client is a process of its own, this file as a
script: `python test_hub.py CLIENT ARGUMENTS...` calls the function of that name and prints what it saw as JSON.
"""

import hashlib
import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from conftest import GPT, TRANSFORMER
from hub_server import Repository, run_hub
from huggingface_hub import HfApi, ModelCard, ModelCardData
from huggingface_hub.errors import HfHubHTTPError
from safetensors.torch import load as load_tensors
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer, pipeline

from hf_scratch import (
    ScratchGPTConfig,
    ScratchGPTForCausalLM,
    ScratchTransformerConfig,
    ScratchTransformerForConditionalGeneration,
)
from hf_scratch.tokenization import train_tokenizer

AUTO_CLASSES = {"gpt": AutoModelForCausalLM, "transformer": AutoModelForSeq2SeqLM}
TASKS = {"gpt": "text-generation", "transformer": "translation"}
TEXT = "A man sleeps."


def make_model(seed: int, family: str = "gpt", **overrides):
    torch.manual_seed(seed)
    if family == "gpt":
        model = ScratchGPTForCausalLM(ScratchGPTConfig(**{**GPT, **overrides}))
    else:
        model = ScratchTransformerForConditionalGeneration(ScratchTransformerConfig(**{**TRANSFORMER, **overrides}))
    return model.eval()


def make_tokenizer(family: str):
    texts = [TEXT, "Ein Mann schläft.", "two dogs run", "zwei Hunde laufen"] * 5
    return train_tokenizer(texts, "bpe" if family == "gpt" else "joint", 300, 40, show_progress=False)


def make_card(family: str) -> ModelCard:
    data = ModelCardData(library_name="transformers", pipeline_tag=TASKS[family], tags=["hf_scratch"], language="en")
    return ModelCard(f"---\n{data.to_yaml()}\n---\n\n# A {family} of the tests\n")


def fingerprint(model) -> str:
    tensors = [name.encode() + tensor.numpy().tobytes() for name, tensor in sorted(model.state_dict().items())]
    return hashlib.sha256(b"".join(tensors)).hexdigest()


def use(family: str, model, tokenizer) -> dict:
    """What someone sees of a model: its weights, its tokens, what it samples and what its pipeline says."""
    inputs = tokenizer(TEXT, return_tensors="pt")
    torch.manual_seed(0)
    sampled = model.generate(**inputs, do_sample=True)  # as long as its generation config says
    return {
        "weights": fingerprint(model),
        "inputs": inputs["input_ids"].tolist(),
        "sampled": sampled.tolist(),
        "pipeline": ask(pipeline(TASKS[family], model=model, tokenizer=tokenizer)),
    }


def ask(pipe) -> list:
    torch.manual_seed(0)
    return pipe(TEXT, do_sample=True, max_new_tokens=9)


# the clients


def publish() -> dict:
    seen = {}
    for family in AUTO_CLASSES:
        repo_id, tokenizer = f"alice/{family}", make_tokenizer(family)
        model = make_model(0, family, vocab_size=len(tokenizer))
        model.generation_config.update(max_length=17)
        HfApi().create_repo(repo_id)
        with patch.object(ModelCard, "validate"):  # huggingface_hub 1 asks huggingface.co, whatever HF_ENDPOINT says
            make_card(family).push_to_hub(repo_id)
        model.push_to_hub(repo_id)
        tokenizer.push_to_hub(repo_id)
        seen[family] = use(family, model, tokenizer)
    return seen


def load_by_id() -> dict:
    seen = {}
    for family, auto_class in AUTO_CLASSES.items():
        repo_id = f"alice/{family}"
        seen[family] = use(family, auto_class.from_pretrained(repo_id), AutoTokenizer.from_pretrained(repo_id))
        seen[family]["pipeline by id"] = ask(pipeline(TASKS[family], model=repo_id))
        seen[family]["card"] = str(ModelCard.load(repo_id))
    return seen


def load(repo_id: str, **kwargs) -> str:
    return fingerprint(AutoModelForCausalLM.from_pretrained(repo_id, **kwargs))


def push_private() -> dict:
    make_model(1).push_to_hub("alice/private", private=True)
    seen = {}
    for name, token in {"nobody": False, "another": "hf_bob", "a stranger": "hf_carol", "its owner": None}.items():
        try:
            seen[name] = load("alice/private", token=token)
        except OSError as error:
            seen[name] = str(error)
    return seen


def push_revisions() -> dict:
    first = make_model(1).push_to_hub("alice/revisions").oid
    make_model(2).push_to_hub("alice/revisions")
    make_model(3).push_to_hub("alice/revisions", revision="draft")
    with pytest.raises(OSError, match="nowhere is not a valid git identifier"):
        load("alice/revisions", revision="nowhere")
    weights = [load("alice/revisions", revision=revision) for revision in (first, None, "main", "draft")]
    return {"first commit": first, "weights": weights}


def open_pull_request() -> dict:
    make_model(1).push_to_hub("alice/open")
    model, tokenizer = make_model(2), make_tokenizer("gpt")
    with pytest.raises(HfHubHTTPError, match="403 Forbidden"):
        model.push_to_hub("alice/open", token="hf_bob")
    heads = [HfApi().model_info("alice/open").sha]
    revision = model.push_to_hub("alice/open", token="hf_bob", create_pr=True).pr_revision
    tokenizer.push_to_hub("alice/open", token="hf_bob", revision=revision)  # adds to the pull request
    heads.append(HfApi().model_info("alice/open").sha)
    weights = [load("alice/open"), load("alice/open", revision="refs/pr/1")]
    inputs = AutoTokenizer.from_pretrained("alice/open", revision="refs/pr/1")(TEXT)["input_ids"]
    files = HfApi().list_repo_files("alice/open")
    HfApi().merge_pull_request("alice/open", 1)
    weights.append(load("alice/open"))
    right = inputs == tokenizer(TEXT)["input_ids"]
    return {"revision": revision, "heads": heads, "weights": weights, "files of main": files, "tokenizer": right}


def push_in_each_way() -> dict:
    """One process for the three: most of a client's time goes into importing transformers."""
    return {"private": push_private(), "revisions": push_revisions(), "pull request": open_pull_request()}


def push_over_a_bad_line(seed: str) -> dict:
    errors = []
    try:
        with patch("time.sleep"):  # the client tries each upload six times, for 23 seconds
            make_model(int(seed)).push_to_hub("alice/gpt")
    except Exception as error:
        errors = [cls.__name__ for e in (error, error.__cause__) for cls in type(e).__mro__]
    return {"errors": errors, "weights": load("alice/gpt")}


# the tests


@pytest.fixture(scope="module")
def hub():
    with run_hub() as hub:
        yield hub


@pytest.fixture(scope="module")
def run_client(hub, tmp_path_factory):
    """Run a client in a process with an empty cache."""
    foreign = ("HF_", "HUGGING", "TRANSFORMERS_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    environment |= {"HF_ENDPOINT": hub.url, "HF_TOKEN": "hf_alice"}
    environment |= dict.fromkeys(("NO_PROXY", "no_proxy"), "127.0.0.1,localhost")
    environment |= {"HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}

    def run(client: str, *arguments: str) -> dict:
        home = {"HF_HOME": str(tmp_path_factory.mktemp("hf_home"))}
        command = [sys.executable, __file__, client, *arguments]
        process = subprocess.run(command, env=environment | home, capture_output=True, text=True, timeout=120)
        assert process.returncode == 0, process.stderr[-5000:]
        return json.loads(process.stdout.splitlines()[-1])

    return run


@pytest.fixture(scope="module")
def published(run_client) -> dict:
    return run_client("publish")


@pytest.fixture(scope="module")
def pushed(run_client) -> dict:
    return run_client("push_in_each_way")


def state(repo: Repository) -> tuple:
    return dict(repo.refs), len(repo.commits), {path: file.oid for path, file in repo.files().items()}


def test_load_by_repository_id(hub, published, run_client):
    loaded = run_client("load_by_id")
    for family in AUTO_CLASSES:
        by_id, card = loaded[family].pop("pipeline by id"), loaded[family].pop("card")
        assert by_id == loaded[family]["pipeline"]
        assert loaded[family] == published[family]
        assert len(loaded[family]["sampled"][0]) == 17
        assert card == str(make_card(family))  # pushing the model and the tokenizer left it alone
    assert "translation_text" in loaded["transformer"]["pipeline"][0]


def test_only_safetensors_are_pushed(hub, published):
    for family in AUTO_CLASSES:
        files = hub.repositories[f"alice/{family}"].files()
        assert {"config.json", "generation_config.json", "tokenizer.json", "README.md"} < set(files)
        assert {Path(path).suffix for path in files} <= {".json", ".md", ".py", ".safetensors", ""}
        assert [path for path, file in files.items() if file.is_lfs] == ["model.safetensors"]
        assert load_tensors(files["model.safetensors"].data)


def test_a_private_repository(hub, pushed):
    seen = pushed["private"]
    assert hub.repositories["alice/private"].private
    assert "If this is a private repository, make sure to pass a token" in seen["nobody"]
    assert "If this is a private repository, make sure to pass a token" in seen["another"]
    assert "Invalid credentials in Authorization header" in seen["a stranger"]
    assert seen["its owner"] == fingerprint(make_model(1))


def test_revisions(hub, pushed):
    seen = pushed["revisions"]
    first, second, third = (fingerprint(make_model(seed)) for seed in (1, 2, 3))
    assert len({first, second, third}) == 3
    assert seen["weights"] == [first, second, second, third]
    refs = hub.repositories["alice/revisions"].refs
    assert set(refs) == {"main", "draft"}
    assert len({seen["first commit"], refs["main"], refs["draft"]}) == 3


def test_a_pull_request(pushed):
    seen = pushed["pull request"]
    old, new = (fingerprint(make_model(seed)) for seed in (1, 2))
    assert seen["revision"] == "refs/pr/1"
    assert seen["heads"][0] == seen["heads"][1]
    assert "tokenizer.json" not in seen["files of main"]
    assert seen["tokenizer"]
    assert seen["weights"] == [old, new, new]  # main, the pull request, main after it was merged


@pytest.mark.parametrize("half", ["PUT /storage/", "POST /api/models/alice/gpt/commit/"], ids=["weights", "commit"])
def test_an_upload_cut_off_half_way(hub, published, run_client, monkeypatch, half):
    before, start = state(hub.repositories["alice/gpt"]), len(hub.requests)
    monkeypatch.setattr(hub, "cut_off", half)
    seed = "1" if half.startswith("PUT") else "2"  # weights that are in the storage would not be sent again
    seen = run_client("push_over_a_bad_line", seed)
    cut_off = [request for request, status in hub.requests[start:] if status == 0]
    assert cut_off
    assert all(request.startswith(half) for request in cut_off)
    assert "TransportError" in seen["errors"]
    assert state(hub.repositories["alice/gpt"]) == before
    assert seen["weights"] == published["gpt"]["weights"]


def test_the_hub_takes_no_commit_without_its_weights(hub):
    """The small Hub itself: otherwise it could look whole in the test above for lack of a check."""

    def send(method: str, url: str, body: bytes) -> int:
        headers = {} if url.startswith(hub.storage_url) else {"Authorization": "Bearer hf_alice"}
        try:
            with urllib.request.urlopen(urllib.request.Request(url, body, headers, method=method)) as response:
                return response.status
        except urllib.error.HTTPError as error:
            return error.code

    repo = hub.repositories["alice/raw"] = Repository("alice/raw", private=False)
    before = state(repo)
    oid = hashlib.sha256(b"weights").hexdigest()
    storage, verify = f"{hub.storage_url}/storage/{oid}", f"{hub.url}/alice/raw.git/info/lfs/verify"
    commit = f"{hub.url}/api/models/alice/raw/commit/main"
    whole, short = (json.dumps({"oid": oid, "size": size}).encode() for size in (7, 6))
    line = json.dumps({"key": "lfsFile", "value": {"path": "w.bin", "oid": oid, "size": 7}}).encode()
    assert send("POST", commit, line) == 400
    assert send("PUT", storage, b"weight") == 400
    assert send("POST", verify, whole) == 404
    assert send("PUT", storage, b"weights") == 200
    assert send("POST", verify, short) == 404
    assert send("POST", commit, line) == 400
    assert send("POST", verify, whole) == 200
    assert state(repo) == before
    assert send("POST", commit, line) == 200
    assert repo.files()["w.bin"].data == b"weights"


if __name__ == "__main__":
    client, *arguments = sys.argv[1:]
    print(json.dumps(globals()[client](*arguments)))
