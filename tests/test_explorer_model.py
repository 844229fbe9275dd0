# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""The explorer's model in JavaScript, run by Node, computes what the Python does: logits, tokens, searches."""

import base64
import json
import random
import shutil
import subprocess
import unicodedata

import numpy as np
import pytest
import torch
from conftest import FAMILIES, ROOT, VARIANTS, each_variant, make_inputs_for, make_variant, shake
from transformers import AutoTokenizer
from transformers.activations import ACT2FN

from hf_scratch.explaining import (
    compute_attention,
    follow_token,
    load_model,
    predict_tokens,
    search_beams,
    shape_probabilities,
    show_token,
)
from hf_scratch.tokenization import train_tokenizer

NODE = shutil.which("node")
pytestmark = pytest.mark.skipif(NODE is None, reason="the explorer's model is JavaScript: install Node 20 or newer")

CARDS = ROOT / "model_cards"
TRANSLATOR, GPT = CARDS / "scratch-transformer-multi30k-en-de", CARDS / "scratch-gpt-tinystories"
PUBLISHED = [TRANSLATOR, CARDS / "scratch-transformer-multi30k-de-en", GPT]
SENTENCES = [
    "A man in a blue shirt is standing on a ladder cleaning a window.",
    "Two dogs run through the snow.",
    "A little girl climbing into a wooden playhouse.",
    "People are fixing the roof of a house.",
    "A woman in a red dress is dancing with a man in a black suit at a party by the sea.",
    "Children",
    "A group of people standing in front of an igloo.",
    "An old man, his dog and a tree: what a picture!",
    "Three young men jump off a cliff into the water while their friends take pictures with their phones.",
    "The quick brown fox jumps over 13 lazy dogs.",
]


@pytest.fixture(scope="session")
def run_node(tmp_path_factory):
    """Runs cases of explorer_cases.mjs in one process of Node."""

    def run(*cases: dict) -> list:
        path = tmp_path_factory.mktemp("node") / "cases.json"
        path.write_text(json.dumps(cases))
        command = [NODE, str(ROOT / "tests" / "explorer_cases.mjs"), str(path)]
        done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", check=False)
        assert done.returncode == 0, done.stderr
        return [case["result"] for case in json.loads(done.stdout)]

    return run


def read_floats(text: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), np.float32)


def read_rows(rows: list[str]) -> np.ndarray:
    return np.stack([read_floats(row) for row in rows])


# logits


@pytest.fixture(scope="module")
def variants(run_node, tmp_path_factory) -> dict:
    """Each variant's logits, by Python and by JavaScript."""
    cases, expected = [], {}
    for family in FAMILIES:
        for variant in VARIANTS[family]:
            model = shake(make_variant(family, variant))
            folder = tmp_path_factory.mktemp("variant")
            model.save_pretrained(folder)
            inputs = make_inputs_for(model)
            source = None
            if model.config.is_encoder_decoder:
                source = inputs["input_ids"][0].tolist()
                inputs["input_ids"] = inputs["input_ids"][:1].expand(3, -1)
            rows = inputs.get("decoder_input_ids", inputs["input_ids"]).tolist()
            with torch.no_grad():
                expected[family, variant] = model(**inputs).logits.numpy()
            steps = getattr(model.config, "is_causal", True)
            cases.append({"kind": "logits", "folder": str(folder), "rows": rows, "source": source, "steps": steps})
    return {name: (expected[name], result) for name, result in zip(expected, run_node(*cases), strict=True)}


@each_variant()
def test_logits_are_pythons_with_and_without_a_cache(family, variant, variants):
    expected, result = variants[family, variant]
    whole = read_rows(result["whole"]).reshape(expected.shape)
    np.testing.assert_allclose(whole, expected, rtol=0, atol=1e-4)
    if result["stepwise"]:
        steps, rows = expected.shape[1], expected.shape[0]
        stepwise = read_rows(result["stepwise"]).reshape(steps, rows, -1).transpose(1, 0, 2)
        np.testing.assert_allclose(stepwise, expected, rtol=0, atol=1e-4)


def test_published_models_logits_are_pythons(run_node):
    cases, expected = [], []
    for folder in PUBLISHED:
        loaded = load_model(folder)
        source = loaded.encode(SENTENCES[0] if folder != PUBLISHED[1] else "Ein Mann steht auf einer Leiter.")
        inputs = {"input_ids": source}
        if loaded.is_translator:
            inputs["decoder_input_ids"] = torch.tensor([[1, *source[0, 1:].tolist()]])
        rows = inputs.get("decoder_input_ids", source).tolist()
        with torch.no_grad():
            expected.append(loaded.model(**inputs).logits[0].numpy())
        cases.append(
            {"kind": "logits", "folder": str(folder), "rows": rows, "source": source[0].tolist(), "steps": True}
        )
    for logits, result in zip(expected, run_node(*cases), strict=True):
        for name in ("whole", "stepwise"):
            np.testing.assert_allclose(read_rows(result[name]), logits, rtol=0, atol=1e-4)


def test_activations_are_transformers(run_node):
    numbers = torch.linspace(-8, 8, 321)
    (result,) = run_node({"kind": "activations", "numbers": numbers.tolist()})
    for name, values in result.items():
        np.testing.assert_allclose(values, ACT2FN[name](numbers).numpy(), rtol=0, atol=1e-6, err_msg=name)


# tokens


def make_strange_texts(count: int) -> list[str]:
    """Emoji, marks that combine, text from right to left, controls, spaces of all kinds.

    Only characters that both Unicode versions know: a BERT tokenizer's is of 2015.
    """
    draw = random.Random(0)
    ranges = [
        (0x00, 0x20), (0x20, 0x7F), (0x7F, 0x100), (0x300, 0x370), (0x370, 0x400), (0x590, 0x61C), (0x61E, 0x700), (0x900, 0x970),
        (0xE00, 0xE80), (0x1E00, 0x1F00), (0x2000, 0x2070), (0x20D0, 0x2100), (0x3000, 0x3100), (0x4E00, 0x4F00),
        (0xAC00, 0xAD00), (0xFE00, 0xFF00), (0xFF00, 0xFFF0), (0x10400, 0x10450), (0x1D400, 0x1D800),
        (0x1F300, 0x1F700), (0x1F900, 0x1FA00), (0x20000, 0x20100), (0xE0020, 0xE0080),
    ]  # fmt: skip
    pieces = ["\r\n", "👩‍👩‍👧", "🇩🇪", "👍🏽", "e\u0301", "\ufeff", "\x85", "\u2028", " ", "  ", "don't", "İ", "ΣΑΣ", "</s>", "<s>a", "ﬁ",
              "½", "②", "\u200f", "x" * 30, "__proto__", "�"]  # fmt: skip
    texts = []
    while len(texts) < count:
        text = ""
        for _ in range(draw.randint(1, 12)):
            if draw.random() < 0.3:
                text += draw.choice(pieces)
                continue
            low, high = draw.choice(ranges)
            text += "".join(chr(draw.randrange(low, high)) for _ in range(draw.randint(1, 4)))
        text = "".join(char for char in text if unicodedata.category(char) not in ("Cn", "Cs"))
        texts.append(text)
    return texts


@pytest.fixture(scope="module")
def compare_tokens(run_node, tmp_path_factory):
    """Asserts that JavaScript encodes, decodes and shows texts as the tokenizers library does."""

    def compare(pairs: list) -> None:
        cases = []
        for tokenizer, texts in pairs:
            path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
            tokenizer.save(str(path))
            cases.append({"kind": "encode", "file": str(path), "texts": texts})
        for (tokenizer, texts), results in zip(pairs, run_node(*cases), strict=True):
            for text, result in zip(texts, results, strict=True):
                ids = tokenizer.encode(text).ids
                assert result["ids"] == ids, repr(text)
                assert result["text"] == tokenizer.decode(ids), repr(text)
                assert result["shown"] == [show_token(read_one(tokenizer, i)) for i in ids], repr(text)

    return compare


def read_one(tokenizer, i: int) -> str:
    once, twice = (tokenizer.decode([i] * times, skip_special_tokens=False) for times in (1, 2))
    return twice[len(once) :]


def load_backend(folder):
    return AutoTokenizer.from_pretrained(folder).backend_tokenizer


def test_published_tokenizers_agree_on_real_texts(compare_tokens, multi30k, tinystories):
    def read(path: str, field: str, count: int) -> list[str]:
        with open(path, encoding="utf-8") as lines:
            return [json.loads(line)[field] for line, _ in zip(lines, range(count), strict=False)]

    pairs = [(TRANSLATOR, read(f"{multi30k}/test.jsonl", "en", 1000)), (PUBLISHED[1], read(f"{multi30k}/test.jsonl", "de", 1000)),
             (GPT, read(f"{tinystories}/validation.jsonl", "text", 300))]  # fmt: skip
    compare_tokens([(load_backend(folder), texts) for folder, texts in pairs])


def test_every_kind_of_tokenizer_agrees_on_strange_texts(compare_tokens, bert_tokenizer):
    texts = [*SENTENCES, *make_strange_texts(500)]
    pairs = [(load_backend(folder), texts) for folder in (TRANSLATOR, GPT)]
    for kind in ("char", "bpe", "joint", "separate", "word"):
        # a target makes a second vocabulary
        targets = {"target_texts": texts[::-1]} if kind in ("separate", "word") else {}
        tokenizer = train_tokenizer(texts[:200], kind, 700, 64, show_progress=False, **targets)
        pairs.append((tokenizer.backend_tokenizer, texts))
        if targets:
            pairs.append((tokenizer.target_tokenizer, texts))
    pairs.append((bert_tokenizer.backend_tokenizer, texts))
    compare_tokens(pairs)


def test_added_tokens_are_found_before_the_rest_is_normalized(compare_tokens):
    tokenizer = train_tokenizer(SENTENCES, "joint", 300, 64, show_progress=False)
    tokenizer.add_tokens(["<new>", "<newer>", " spaced"])
    texts = ["a <new> b", "<new><newer>x", "a spaced b", "</s> <newer", "<new>"]
    compare_tokens([(tokenizer.backend_tokenizer, texts)])
