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
from conftest import FAMILIES, ROOT, VARIANTS, make_inputs_for, make_variant, shake
from explained import compute_attention, cut, load_model, predict_tokens, search_beams, show_token
from transformers import (
    AutoTokenizer,
    LogitsProcessorList,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)
from transformers.activations import ACT2FN

from hf_scratch.tokenization import train_tokenizer

NODE = shutil.which("node")
pytestmark = pytest.mark.skipif(NODE is None, reason="the explorer's model is JavaScript: install Node 20 or newer")

CARDS = ROOT / "model_cards"
TRANSLATOR, GPT = CARDS / "scratch-transformer-multi30k-en-de", CARDS / "scratch-gpt-tinystories"
WAY_BACK = CARDS / "scratch-transformer-multi30k-de-en"
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
        return json.loads(done.stdout)

    return run


def read_texts(path: str, field: str, count: int) -> list[str]:
    with open(path, encoding="utf-8") as lines:
        return [json.loads(line)[field] for line, _ in zip(lines, range(count), strict=False)]


def read_floats(text: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), np.float32)


def read_rows(rows: list[str]) -> np.ndarray:
    return np.stack([read_floats(row) for row in rows])


# logits


@torch.no_grad()
def test_logits_of_every_variant_are_pythons_with_and_without_a_cache(run_node, tmp_path):
    cases, expected = [], []
    for family in FAMILIES:
        for variant in VARIANTS[family].keys() - {"bidirectional"}:  # an encoder does not open
            dtype = torch.float16 if (family, variant) == ("gpt", "defaults") else torch.float32
            model = shake(make_variant(family, variant)).to(dtype)
            folder = str(tmp_path / family / variant)
            model.save_pretrained(folder)
            inputs, source = make_inputs_for(model), None
            if family == "transformer":  # Node reads one source
                source = inputs["input_ids"][0].tolist()
                inputs["input_ids"] = inputs["input_ids"][:1].expand(3, -1)
            expected.append(model.float()(**inputs).logits)
            rows = inputs.get("decoder_input_ids", inputs["input_ids"]).tolist()
            cases.append({"kind": "logits", "folder": folder, "rows": rows, "source": source, "steps": True})
    for case, logits, result in zip(cases, expected, run_node(*cases), strict=True):
        rows, steps, _ = logits.shape
        whole = read_rows(result["whole"]).reshape(logits.shape)
        stepwise = read_rows(result["stepwise"]).reshape(steps, rows, -1).transpose(1, 0, 2)
        for found in (whole, stepwise):
            np.testing.assert_allclose(found, logits, rtol=0, atol=1e-4, err_msg=case["folder"])


def test_activations_are_transformers(run_node):
    numbers = torch.linspace(-8, 8, 321)
    (result,) = run_node({"kind": "activations", "numbers": numbers.tolist()})
    for name, values in result.items():
        np.testing.assert_allclose(values, ACT2FN[name](numbers).numpy(), rtol=0, atol=1e-6, err_msg=name)


# tokens


def make_strange_texts(count: int) -> list[str]:
    """Emoji, marks that combine, text from right to left, controls, spaces of all kinds."""
    draw = random.Random(0)
    ranges = [
        (0x00, 0x20), (0x20, 0x7F), (0x7F, 0x100), (0x300, 0x370), (0x370, 0x400), (0x590, 0x61C),
        (0x61E, 0x700), (0x900, 0x970),
        (0xE00, 0xE80), (0x1E00, 0x1F00), (0x2000, 0x2070), (0x20D0, 0x2100), (0x3000, 0x3100), (0x4E00, 0x4F00),
        (0xAC00, 0xAD00), (0xFE00, 0xFF00), (0xFF00, 0xFFF0), (0x10400, 0x10450), (0x1D400, 0x1D800),
        (0x1F300, 0x1F700), (0x1F900, 0x1FA00), (0x20000, 0x20100), (0xE0020, 0xE0080),
    ]  # fmt: skip
    pieces = [
        "\r\n", "👩‍👩‍👧", "🇩🇪", "👍🏽", "e\u0301", "\ufeff", "\x85", "\u2028", " ", "  ", "don't", "İ", "ΣΑΣ", "</s>",
        "<s>a", "ﬁ", "½", "②", "\u200f", "x" * 30, "__proto__", "�",
    ]  # fmt: skip
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
            shown = {i: show_token(read_one(tokenizer, i)) for i in range(max(tokenizer.get_vocab().values()) + 1)}
            for text, result in zip(texts, results, strict=True):
                ids = tokenizer.encode(text).ids
                assert result["ids"] == ids, repr(text)
                assert result["text"] == tokenizer.decode(ids), repr(text)
                assert result["shown"] == [shown[i] for i in ids], repr(text)

    return compare


def read_one(tokenizer, i: int) -> str:
    once, twice = (tokenizer.decode([i] * times, skip_special_tokens=False) for times in (1, 2))
    return twice[len(once) :]


def load_backend(folder):
    return AutoTokenizer.from_pretrained(folder).backend_tokenizer


def test_published_tokenizers_agree_on_real_texts(compare_tokens, multi30k, tinystories):
    pairs = [
        (TRANSLATOR, f"{multi30k}/test.jsonl", "en", 1000),
        (WAY_BACK, f"{multi30k}/test.jsonl", "de", 1000),
        (GPT, f"{tinystories}/validation.jsonl", "text", 300),
    ]
    compare_tokens([(load_backend(folder), read_texts(*texts)) for folder, *texts in pairs])


def test_every_kind_of_tokenizer_agrees_on_strange_texts(compare_tokens):
    texts = [*SENTENCES, *make_strange_texts(500)]
    pairs = [(load_backend(folder), texts) for folder in (TRANSLATOR, GPT)]
    for kind in ("char", "bpe", "joint", "separate", "word"):
        # a target makes a second vocabulary
        targets = {"target_texts": texts[::-1]} if kind in ("separate", "word") else {}
        tokenizer = train_tokenizer(texts[:200], kind, 700, 64, show_progress=False, **targets)
        pairs.append((tokenizer.backend_tokenizer, texts))
        if targets:
            pairs.append((tokenizer.target_tokenizer, texts))
    compare_tokens(pairs)


def test_added_tokens_are_found_before_the_rest_is_normalized(compare_tokens):
    tokenizer = train_tokenizer(SENTENCES, "joint", 300, 64, show_progress=False)
    tokenizer.add_tokens(["<new>", "<newer>", " spaced"])
    texts = ["a <new> b", "<new><newer>x", "a spaced b", "</s> <newer", "<new>"]
    compare_tokens([(tokenizer.backend_tokenizer, texts)])


# searches


def check_sequences(result: dict, outputs: dict, prompt_length: int, ends: set[int], text: str) -> None:
    """Assert that the best sequence is `generate()`'s, or tied with it within 1e-5."""
    expected = [cut(row, prompt_length, ends).tolist() for row in outputs["sequences"]]
    found = result["sequences"]
    if "sequences_scores" in outputs:
        scores = outputs["sequences_scores"].tolist()
        np.testing.assert_allclose([each["score"] for each in found], scores, rtol=0, atol=1e-4, err_msg=text)
        place = expected.index(found[0]["ids"])
        assert scores[0] - scores[place] < 1e-5, text
    else:
        assert found[0]["ids"] == expected[0], text


def generate(model, input_ids, num_beams: int, **options) -> dict:
    options |= {"do_sample": False, "num_beams": num_beams, "num_return_sequences": num_beams}
    return model.generate(input_ids=input_ids, output_scores=True, return_dict_in_generate=True, **options)


@pytest.mark.parametrize("num_beams", [1, 5])
@pytest.mark.parametrize("count", [10, pytest.param(200, marks=pytest.mark.slow)])
def test_translations_are_those_of_generate(run_node, num_beams, count, request):
    sentences = SENTENCES
    if count > len(SENTENCES):
        sentences = read_texts(f"{request.getfixturevalue('multi30k')}/test.jsonl", "en", count)
    loaded = load_model(TRANSLATOR)
    case = {"kind": "generate", "folder": str(TRANSLATOR), "sources": sentences, "prefix": []}
    (results,) = run_node({**case, "options": {"num_beams": num_beams}})
    inputs = loaded.tokenizer(sentences, return_tensors="pt", padding=True)
    outputs = generate(loaded.model, **inputs, num_beams=num_beams)
    for i, (sentence, result) in enumerate(zip(sentences, results, strict=True)):
        rows = slice(i * num_beams, (i + 1) * num_beams)
        one = {name: outputs[name][rows] for name in ("sequences", "sequences_scores") if name in outputs}
        check_sequences(result, one, 1, loaded.end_tokens, sentence)


OPTIONS = [
    {"num_beams": 1, "no_repeat_ngram_size": 2, "repetition_penalty": 1.3},
    {"num_beams": 3, "early_stopping": False},
    {"num_beams": 3, "early_stopping": "never", "length_penalty": 0.5},
    {"num_beams": 4, "early_stopping": True, "length_penalty": 2.0, "eos_token_id": [2, 9, 11]},
    {"num_beams": 4, "no_repeat_ngram_size": 2, "repetition_penalty": 1.2, "length_penalty": -0.5},
    {"num_beams": 2, "max_new_tokens": 3, "early_stopping": False},
]


@pytest.mark.parametrize("family", FAMILIES)
def test_every_option_is_generates(run_node, family, tmp_path):
    model = make_variant(family, "defaults")
    model.save_pretrained(tmp_path)
    rows = make_inputs_for(model, rows=6)["input_ids"]
    prefix = [5, 6] if family == "transformer" else []
    cases = [{"max_new_tokens": 12, **options} for options in OPTIONS]
    case = {"kind": "generate", "folder": str(tmp_path), "sources": rows.tolist(), "prefix": prefix}
    for options, results in zip(cases, run_node(*({**case, "options": options} for options in cases)), strict=True):
        given = {"decoder_input_ids": torch.tensor([[1, *prefix]])} if prefix else {}
        ends = options.get("eos_token_id", [2])
        for row, result in zip(rows, results, strict=True):
            outputs = generate(model, row[None], **options, **given)
            start = 1 + len(prefix) if prefix else len(row)
            check_sequences(result, outputs, start, set(ends), str(options))
            assert result["sequences"][0]["ids"] == cut(outputs["sequences"][0], start, set(ends)).tolist()


@pytest.mark.parametrize(("folder", "num_beams"), [(TRANSLATOR, 1), (TRANSLATOR, 5), (GPT, 3)])
def test_steps_are_those_of_the_tree_of_beams(run_node, folder, num_beams):
    loaded = load_model(folder)
    tree = search_beams(loaded, loaded.encode(SENTENCES[1]), num_beams, max_new_tokens=10)
    options = {"num_beams": num_beams, "max_new_tokens": 10}
    ((result,),) = run_node(
        {"kind": "generate", "folder": str(folder), "sources": [SENTENCES[1]], "prefix": [], "options": options}
    )
    assert len(result["steps"]) == len(tree.steps)
    for step, expected in zip(result["steps"], tree.steps, strict=True):
        for candidate, known in zip(step["candidates"], expected, strict=True):
            numbers = {name: candidate.pop(name) for name in ("log_probability", "score", "final_score")}
            assert candidate == {"token": known.token, "parent": known.parent, "outcome": known.outcome}
            assert numbers == {name: pytest.approx(getattr(known, name), abs=1e-4) for name in numbers}
        kept = [i for i, candidate in enumerate(step["candidates"]) if candidate["outcome"] == "kept"]
        assert step["running"] == kept
    for place, sequence in enumerate(result["sequences"]):
        assert tree.steps[sequence["step"]][sequence["candidate"]].place == place


def test_sampling_has_generates_probabilities(run_node):
    torch.manual_seed(0)
    logits = 3 * torch.randn(1, 200)
    ids = torch.randint(200, (1, 60))
    options = [
        {},
        {"temperature": 0.6},
        {"top_k": 7},
        {"top_p": 0.8},
        {"temperature": 1.5, "top_k": 50, "top_p": 0.95},
        {"repetition_penalty": 1.3},
        {"repetition_penalty": 0.8, "temperature": 0.7, "top_k": 40, "top_p": 0.9},
        {"no_repeat_ngram_size": 1, "repetition_penalty": 1.1},
    ]
    cases = [{"kind": "shape", "logits": logits[0].tolist(), "ids": ids[0].tolist(), "options": o} for o in options]
    processors = {
        "repetition_penalty": RepetitionPenaltyLogitsProcessor,
        "no_repeat_ngram_size": NoRepeatNGramLogitsProcessor,
        "temperature": TemperatureLogitsWarper,
        "top_k": TopKLogitsWarper,
        "top_p": TopPLogitsWarper,
    }
    for each, shaped in zip(options, run_node(*cases), strict=True):
        used = LogitsProcessorList([make(each[name]) for name, make in processors.items() if name in each])
        np.testing.assert_allclose(shaped, used(ids, logits).softmax(-1)[0], rtol=1e-4, atol=1e-7)
    case = {"kind": "shape", "logits": [1, 3, 2], "ids": [], "options": {"temperature": 0, "top_p": 0.9}}
    assert run_node(case) == [[0, 1, 0]]


# what a page shows


@pytest.mark.parametrize("folder", [TRANSLATOR, GPT])
def test_intermediates_are_pythons(run_node, folder):
    loaded = load_model(folder)
    source = loaded.encode(SENTENCES[1])
    target = torch.tensor([[1, 50, 60, 70]]) if loaded.is_translator else None
    stacks = ["encoder", "decoder"] if loaded.is_translator else ["decoder"]
    lens = [[stack, layer, "feed_forward", "hidden_states"] for stack in stacks for layer in (0, 2)]
    given = {"inputIds": source[0].tolist(), "decoderInputIds": None if target is None else target[0].tolist()}
    ((result),) = run_node({"kind": "inspect", "folder": str(folder), **given, "lens": lens})
    trace = unpack(result["trace"])
    for (stack, part), weights in compute_attention(loaded, source, target).items():
        found = np.stack([layer[part]["weights"] for layer in trace[stack]["layers"]])
        np.testing.assert_allclose(found, weights, rtol=0, atol=1e-5)
    inputs = {"input_ids": source} if target is None else {"input_ids": source, "decoder_input_ids": target}
    for stack in stacks:
        module = loaded.model.get_encoder() if stack == "encoder" else loaded.model.get_decoder()
        records = trace[stack]
        np.testing.assert_allclose(
            records["embed_tokens"] + records["embed_positions"], records["embed_sum"], rtol=0, atol=1e-5
        )
        found = [records["embed_sum"]]
        for layer in records["layers"]:
            for part in ("self_attn", "cross_attn", "feed_forward"):
                if part in layer:
                    check_sublayer(layer[part])
                    found.append(layer[part]["hidden_states"])
        for ours, theirs in zip([*found, records["norm"]], record_states(loaded.model, module, inputs), strict=True):
            np.testing.assert_allclose(ours, theirs[0], rtol=0, atol=1e-4)
        for (of, layer, part, name), rows in zip(lens, result["logits"], strict=True):
            if of != stack:
                continue
            states = torch.tensor(records["layers"][layer][part][name])
            with torch.no_grad():
                expected = loaded.model.lm_head(module.norm(states))
            np.testing.assert_allclose(read_rows(rows), expected, rtol=0, atol=1e-3)


def record_states(model, stack, inputs) -> list[torch.Tensor]:
    """What each LayerNorm of a stack reads while the model runs, and what the last one returns."""
    states = []
    norms = [module for module in stack.modules() if isinstance(module, torch.nn.LayerNorm)]
    hooks = [norm.register_forward_pre_hook(lambda module, args: states.append(args[0])) for norm in norms]
    hooks.append(stack.norm.register_forward_hook(lambda module, args, output: states.append(output)))
    with torch.no_grad():
        model(**inputs)
    for hook in hooks:
        hook.remove()
    return states


def check_sublayer(record: dict) -> None:
    """The parts of a sub-layer fit together, with the LayerNorm first: both published models have it so."""
    np.testing.assert_allclose(record["x"] + record["output"], record["sum"], rtol=0, atol=1e-6)
    np.testing.assert_array_equal(record["sum"], record["hidden_states"])
    if "scores" in record:
        weights = torch.tensor(record["scores"]).softmax(-1)
        np.testing.assert_allclose(record["weights"], weights, rtol=0, atol=1e-6)
        scores = np.einsum("qhd,khd->hqk", record["query"], record["key"]) / np.sqrt(record["query"].shape[-1])
        seen = np.isfinite(record["scores"])
        np.testing.assert_allclose(record["scores"][seen], scores[seen], rtol=0, atol=1e-4)
        context = np.einsum("hqk,khd->qhd", record["weights"], record["value"])
        np.testing.assert_allclose(record["context"], context, rtol=0, atol=1e-5)


def unpack(value):
    """Tensors of a trace as arrays."""
    if isinstance(value, dict) and set(value) == {"shape", "data"}:
        return read_floats(value["data"]).reshape(value["shape"])
    if isinstance(value, dict):
        return {name: unpack(each) for name, each in value.items()}
    return [unpack(each) for each in value] if isinstance(value, list) else value


# folders


@pytest.fixture(scope="module")
def own_folder(tmp_path_factory):
    """A model of one's own: two vocabularies, bfloat16."""
    folder = tmp_path_factory.mktemp("own")
    tokenizer = train_tokenizer(SENTENCES, "word", 60, 40, target_texts=SENTENCES[:5], show_progress=False)
    tokenizer.save_pretrained(folder)
    model = shake(make_variant("transformer", "two vocabularies")).to(torch.bfloat16)
    model.save_pretrained(folder)
    return folder


def test_a_folder_of_ones_own_loads(run_node, own_folder):
    loaded = load_model(own_folder)
    options = {"num_beams": 3, "max_new_tokens": 8}
    case = {"kind": "generate", "folder": str(own_folder), "sources": SENTENCES, "prefix": [], "options": options}
    for sentence, result in zip(SENTENCES, *run_node(case), strict=True):
        outputs = generate(loaded.model, loaded.encode(sentence), **options)
        check_sequences(result, outputs, 1, loaded.end_tokens, sentence)


def test_a_wrong_folder_gets_one_sentence(run_node, own_folder):
    config = json.loads((own_folder / "config.json").read_text())
    tokenizer = json.loads((own_folder / "tokenizer.json").read_text())
    weights = "model.safetensors"
    special = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "x"}}], "special_tokens": {}}
    infinite = '{"x": {"dtype": "F16", "shape": [1], "data_offsets": [0, 2]}}'
    changes = [
        ("config.json", None, "no config.json"),
        ("config.json", "{", "config.json is damaged"),
        ("config.json", "[]", "config.json names"),
        ("config.json", json.dumps(config | {"model_type": "gpt2"}), "config.json names gpt2"),
        ("config.json", json.dumps(config | {"max_position_embeddings": 10**9}), "max_position_embeddings"),
        ("config.json", json.dumps(config | {"d_model": 40}), "do not fit config.json"),
        ("config.json", json.dumps(config | {"activation_function": "prelu"}), "prelu"),
        ("config.json", json.dumps(config | {"vocab_size": 20}), "config.json"),
        ("tokenizer.json", None, "no tokenizer"),
        ("tokenizer.json", "{}", "tokenizer.json"),
        ("tokenizer.json", json.dumps(tokenizer | {"normalizer": {"type": "Precompiled"}}), "Precompiled"),
        ("tokenizer.json", json.dumps(tokenizer | {"post_processor": special}), "tokenizer.json"),
        ("generation_config.json", '{"repetition_penalty": 0}', "repetition_penalty"),
        ("generation_config.json", '{"length_penalty": "x"}', "length_penalty"),
        ("generation_config.json", '{"num_beams": -1}', "num_beams"),
        ("target_tokenizer.json", None, "no tokenizer"),
        (weights, None, "no weights"),
        (weights, "cut", "cut short"),
        (weights, "x" * 200, "cut short"),
        (weights, "\x04" + "\0" * 7 + "null", "damaged"),
        (weights, "\x02" + "\0" * 7 + "{}", "missing"),  # without tensors
        (weights, chr(len(infinite)) + "\0" * 7 + infinite + "\0|", "not finite"),
    ]
    cases = [{"kind": "load", "folder": str(own_folder), "changes": {name: text}} for name, text, _ in changes]
    *results, good = run_node(*cases, {"kind": "load", "folder": str(own_folder), "changes": {}})
    assert good["num_parameters"] == sum(p.numel() for p in load_model(own_folder).model.parameters())
    assert (good["dtype"], good["warnings"]) == ("BF16", [])
    for change, result in zip(changes, results, strict=True):
        assert result.get("error", "").endswith("."), change
        assert change[2] in result["error"]
        assert "undefined" not in result["error"]


# the worker


def test_the_worker_answers(run_node):
    loaded = load_model(GPT)
    ids = loaded.encode("Once upon a time")[0].tolist()
    search = {"type": "search", "text": "Once upon a time", "options": {"max_new_tokens": 6}}
    requests = [
        {"id": 1, **search},
        {"id": 2, "type": "predict", "text": "Once upon a time"},
        {"id": 3, "type": "predict", "input_ids": ids[:3], "from": 2},  # a step back
        {"id": 4, **search, "prefix": [100]},
        {"id": 5, "type": "inspect", "input_ids": ids},
        {"id": 6, "type": "predict", "text": "x" * 5000},
        {"id": 7, "type": "free"},
        {"id": 8, "type": "predict", "text": "Once"},
    ]
    (replies,) = run_node({"kind": "worker", "folder": str(GPT), "requests": requests})
    last = {reply["id"]: reply for reply in replies}
    assert [last[i]["type"] for i in range(9)] == [*["result"] * 6, "error", "result", "error"]
    assert "no longer loaded" in last[8]["message"]
    progress = [reply["progress"] for reply in replies if reply["id"] == 0 and reply["type"] == "step"]
    assert progress == sorted(progress)
    assert progress[-1] == 1
    assert last[0]["vocabulary"][:4] == loaded.read([0, 1, 2, 3])
    generated = loaded.model.generate(torch.tensor([ids]), do_sample=False, max_new_tokens=6)[0, len(ids) :].tolist()
    steps = [reply["candidates"] for reply in replies if reply["id"] == 1 and reply["type"] == "step"]
    assert last[1]["sequences"][0]["ids"] == generated == [candidate["token"] for (candidate,) in steps]
    assert last[4]["sequences"][0]["ids"][0] == 100
    expected = predict_tokens(loaded, torch.tensor([ids]))
    for found, known in zip(last[2]["predictions"], expected, strict=True):
        assert (found["token"], found["rank"]) == (known.token, known.rank)
        assert found["probability"] == pytest.approx(known.probability, abs=1e-5)
        assert [each["token"] for each in found["alternatives"]] == [each.token for each in known.alternatives]
    assert last[3]["predictions"] == last[2]["predictions"][1:2]
    with torch.no_grad():
        logits = loaded.model(torch.tensor([ids[:3]])).logits[0, -1]
    np.testing.assert_allclose(last[3]["logits"], logits, rtol=0, atol=1e-4)


def test_a_newer_request_cancels_an_older_one_of_its_channel(run_node):
    search = {"type": "search", "channel": "translate", "options": {}}
    requests = [{"id": i, **search, "text": SENTENCES[i]} for i in range(1, 4)]
    requests.append({"id": 4, "type": "predict", "text": SENTENCES[0], "decoder_input_ids": [1]})
    (replies,) = run_node({"kind": "worker", "folder": str(TRANSLATOR), "requests": requests, "atOnce": True})
    ends = {reply["id"]: reply["type"] for reply in replies if reply["type"] != "step"}
    assert ends == {0: "result", 1: "cancelled", 2: "cancelled", 3: "result", 4: "result"}
    (result,) = [reply for reply in replies if reply["id"] == 3 and reply["type"] == "result"]
    loaded = load_model(TRANSLATOR)
    outputs = generate(loaded.model, loaded.encode(SENTENCES[3]), num_beams=5)
    assert [each["text"] for each in result["sequences"]] == [loaded.decode(row) for row in outputs.sequences]
