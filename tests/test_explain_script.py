# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""scripts/explain.py as users run it."""

import importlib.util
import json

import pytest
import torch
from conftest import ROOT
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

TRANSLATOR = ROOT / "model_cards" / "scratch-transformer-multi30k-en-de"
STORYTELLER = ROOT / "model_cards" / "scratch-gpt-tinystories"


@pytest.fixture
def explain(monkeypatch, tmp_path):
    """Runs the command with these options."""
    spec = importlib.util.spec_from_file_location("explain", ROOT / "scripts" / "explain.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def run(*options):
        words = ["explain.py", "--output_dir", tmp_path, *options]
        monkeypatch.setattr("sys.argv", [str(word) for word in words])
        module.main()

    return run


def test_a_translation_is_explained_with_generates_numbers(explain, tmp_path, capsys):
    text = "A dog runs through the snow."
    explain("--model", TRANSLATOR, "--text", text)
    printed = capsys.readouterr().out.split()
    pictures = {path.name for path in tmp_path.glob("*.png")}
    kinds = ("cross_attention", "decoder_self_attention", "encoder_self_attention")
    assert pictures == {"beams.png", "probabilities.png"} | {
        f"{kind}_layer{i}.png" for kind in kinds for i in range(4)
    }
    assert sorted(printed) == sorted(str(path) for path in tmp_path.iterdir())
    assert all((tmp_path / name).read_bytes().startswith(b"\x89PNG") for name in pictures)
    numbers = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in tmp_path.glob("*.json")}
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(TRANSLATOR), AutoTokenizer.from_pretrained(TRANSLATOR)
    inputs = tokenizer(text, return_tensors="pt")
    options = {"return_dict_in_generate": True, "output_scores": True, "num_return_sequences": 5}
    outputs = model.generate(**inputs, **options)
    assert numbers["beams"]["scores"] == pytest.approx(outputs.sequences_scores.tolist(), abs=1e-5)
    assert numbers["beams"]["texts"] == tokenizer.batch_decode(outputs.sequences, skip_special_tokens=True)
    best = torch.tensor([numbers["beams"]["sequences"][0]])
    with torch.no_grad():
        shares = model(**inputs, decoder_input_ids=best).logits[0].softmax(-1)
    for i, each in enumerate(numbers["probabilities"]):
        assert each["probability"] == pytest.approx(float(shares[i, best[0, i + 1]]), abs=1e-5)
    weights = torch.tensor(numbers["attention"]["cross-attention"])
    tokens = numbers["attention"]["tokens"]
    assert weights.shape == (4, 4, len(tokens["decoder input"]), len(tokens["input"]))


def test_a_text_is_explained(explain, tmp_path):
    text = "Once upon a time, there was a $5 dog."
    explain("--model", STORYTELLER, "--text", text, "--num_beams", 2, "--max_new_tokens", 3)
    assert len(list(tmp_path.glob("self_attention_layer*.png"))) == 6
    beams = json.loads((tmp_path / "beams.json").read_text(encoding="utf-8"))
    assert [len(step) for step in beams["steps"]] == [4, 4, 4]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--text", " "], "must be some words"),
        (["--text", "dog " * 150], "must be some words of at most 100 tokens"),
        (["--text", "A dog.", "--max_new_tokens", "900"], "`max_position_embeddings` of this model is 256"),
        (["--text", "A dog.", "--model", "./nowhere"], "is not a folder"),
    ],
)
def test_a_mistake_is_one_line(options, message, explain, tmp_path, capsys):
    with pytest.raises(SystemExit, match="2"):
        explain("--model", STORYTELLER, *options)
    assert message in capsys.readouterr().err.splitlines()[-1]
    assert not list(tmp_path.iterdir())
