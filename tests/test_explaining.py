# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""The numbers of explained.py, which the explorer is compared with, are those of `generate()` and `forward`."""

import pytest
import torch
from conftest import FAMILIES, ROOT, make_gpt, shake
from explained import LoadedModel, compute_attention, load_model, predict_tokens, search_beams, show_token

TRANSLATOR = ROOT / "model_cards" / "scratch-transformer-multi30k-en-de"
STORYTELLER = ROOT / "model_cards" / "scratch-gpt-tinystories"


class Letters:
    """A tokenizer whose token i reads " ti", for models with random weights."""

    def batch_decode(self, rows, **kwargs):
        return ["".join(f" t{i}" for i in row) for row in rows]

    def decode(self, ids, **kwargs):
        return self.batch_decode([[int(i) for i in ids]])[0]


def make_loaded(family: str, **overrides) -> LoadedModel:
    model = shake(FAMILIES[family](**overrides))
    model.generation_config.max_length = 20
    model.set_attn_implementation("eager")
    return LoadedModel(model, Letters())


def make_ids(loaded: LoadedModel, length: int = 6) -> dict[str, torch.Tensor]:
    ids = torch.randint(3, 60, (1, length), generator=torch.Generator().manual_seed(2))
    if not loaded.is_translator:
        return {"input_ids": ids}
    return {"input_ids": ids, "decoder_input_ids": torch.tensor([[1, 7, 30, 9, 12]])}


@pytest.mark.parametrize("num_beams", [2, 5])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("length_penalty", [1.0, 0.3])
def test_the_tree_ends_in_generates_sequences_and_scores(family, num_beams, length_penalty):
    loaded = make_loaded(family)
    loaded.model.generation_config.length_penalty = length_penalty
    ids = make_ids(loaded)["input_ids"]
    tree = search_beams(loaded, ids, num_beams)
    options = {"num_beams": num_beams, "num_return_sequences": num_beams, "do_sample": False, "output_scores": True}
    expected = loaded.model.generate(ids, return_dict_in_generate=True, **options)
    fast = loaded.model.generate(ids, num_beams=num_beams, do_sample=False)  # our own decoder
    assert tree.sequences[0].tolist() == fast[0].tolist()
    assert tree.scores == pytest.approx(expected.sequences_scores.tolist(), abs=1e-6)
    for row, sequence in zip(expected.sequences.tolist(), tree.sequences, strict=True):
        assert row[: len(sequence)] == sequence.tolist()
    ended = {each.place: each for step in tree.steps for each in step if each.place is not None}
    assert sorted(ended) == list(range(num_beams))
    for place, score in enumerate(tree.scores):
        assert ended[place].final_score == pytest.approx(score, abs=1e-6)


@pytest.mark.parametrize("family", FAMILIES)
def test_each_candidates_score_is_the_sum_of_its_log_probabilities_in_forward(family):
    loaded = make_loaded(family)
    ids = make_ids(loaded)["input_ids"]
    tree = search_beams(loaded, ids, 3, max_new_tokens=6)
    start = [loaded.model.generation_config.bos_token_id] if loaded.is_translator else ids[0].tolist()
    start = [loaded.model.config.decoder_start_token_id] if loaded.is_translator else start
    paths = [start]
    for number, step in enumerate(tree.steps):
        new_paths = []
        for candidate in step:
            parent = tree.steps[number - 1][candidate.parent] if number else None
            assert parent is None or parent.outcome == "kept"
            path = [*(start if parent is None else paths[candidate.parent]), candidate.token]
            inputs = {"decoder_input_ids" if loaded.is_translator else "input_ids": torch.tensor([path[:-1]])}
            if loaded.is_translator:
                inputs["input_ids"] = ids
            with torch.no_grad():
                expected = loaded.model(**inputs).logits[0, -1].log_softmax(-1)[candidate.token]
            assert candidate.log_probability == pytest.approx(float(expected), abs=1e-4)
            before = 0.0 if parent is None else parent.score
            assert candidate.score == pytest.approx(before + candidate.log_probability, abs=1e-5)
            new_paths.append(path)
        scores = [candidate.score for candidate in step]
        assert scores == sorted(scores, reverse=True)
        if number < len(tree.steps) - 1:
            assert sum(candidate.outcome == "kept" for candidate in step) == 3
        paths = new_paths


def test_greedy_search_is_a_tree_with_one_branch():
    loaded = make_loaded("gpt")
    ids = make_ids(loaded)["input_ids"]
    tree = search_beams(loaded, ids, 1, max_new_tokens=8)
    expected = loaded.model.generate(ids, do_sample=False, num_beams=1, max_new_tokens=8)[0]
    assert tree.sequences[0].tolist() == expected.tolist()
    assert [[candidate.outcome for candidate in step] for step in tree.steps] == [["kept"]] * (len(tree.steps) - 1) + [
        ["cut"]  # by `max_new_tokens`
    ]
    with torch.no_grad():
        logits = loaded.model(expected[None]).logits[0].log_softmax(-1)
    new = range(ids.shape[1], len(expected))
    mean = sum(float(logits[i - 1, expected[i]]) for i in new) / len(new)
    assert tree.scores == [pytest.approx(mean, abs=1e-4)]


@pytest.mark.parametrize("family", FAMILIES)
def test_attention_is_forwards(family):
    loaded = make_loaded(family)
    inputs = make_ids(loaded)
    found = compute_attention(loaded, **inputs)
    outputs = loaded.model(**inputs, output_attentions=True)
    names = {
        "self-attention": "attentions",
        "cross-attention": "cross_attentions",
        "decoder self-attention": "decoder_attentions",
        "encoder self-attention": "encoder_attentions",
    }
    assert len(found) == (3 if loaded.is_translator else 1)
    for name, weights in found.items():
        assert torch.equal(weights, torch.cat(outputs[names[name]]).detach()), name
        torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))


@pytest.mark.parametrize("family", FAMILIES)
def test_each_tokens_probability_is_forwards(family):
    loaded = make_loaded(family)
    inputs = make_ids(loaded)
    predictions = predict_tokens(loaded, **inputs)
    ids = inputs.get("decoder_input_ids", inputs["input_ids"])[0]
    with torch.no_grad():
        expected = loaded.model(**inputs).logits[0].softmax(-1)
    assert [each.token for each in predictions] == ids[1:].tolist()
    for i, each in enumerate(predictions):
        row = expected[i]
        assert each.probability == pytest.approx(float(row[ids[i + 1]]), abs=1e-6)
        assert [other.token for other in each.alternatives] == row.topk(10).indices.tolist()
        assert [other.probability for other in each.alternatives] == pytest.approx(row.topk(10).values.tolist())
        assert each.rank == int((row > row[ids[i + 1]]).sum())


def test_tokens_are_shown_with_their_spaces():
    translator, storyteller = load_model(TRANSLATOR), load_model(STORYTELLER)
    assert storyteller.read(storyteller.encode("A dog runs\n")[0]) == ["<s>", "A", "·dog", "·runs", "↵"]
    assert translator.read(translator.encode("A dogs")[0], from_source=True)[-1] == "</s>"
    assert translator.read(translator.encode("A dog")[0])[:2] == ["·A", "·dog"]
    assert show_token("") == "·"
    assert show_token("7\xa0km\u200b") == "7U+00A0kmU+200B"


def test_an_encoder_is_refused(tmp_path):
    make_gpt(is_causal=False).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="fills in masked tokens"):
        load_model(tmp_path)
