# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""The figures of the explorer and of explain.py are those of `generate()` and `forward`."""

import ast
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from conftest import FAMILIES, ROOT, each_variant, make_gpt, make_variant, shake
from transformers import GenerationConfig

from hf_scratch.explaining import (
    LoadedModel,
    compute_attention,
    follow_token,
    load_model,
    predict_tokens,
    search_beams,
    shape_probabilities,
    show_token,
    write_tokens,
)

TRANSLATOR = ROOT / "model_cards" / "scratch-transformer-multi30k-en-de"
STORYTELLER = ROOT / "model_cards" / "scratch-gpt-tinystories"
SENTENCE = "Two women are talking on a bench in the park."
MODELS = ROOT / "hf_scratch" / "models"


class Letters:
    """A tokenizer whose token i reads " ti", for models with random weights."""

    def batch_decode(self, rows, **kwargs):
        return ["".join(f" t{i}" for i in row) for row in rows]

    def decode(self, ids, **kwargs):
        return self.batch_decode([[int(i) for i in ids]])[0]


def make_loaded(family: str, **overrides) -> LoadedModel:
    model = shake(FAMILIES[family](**overrides))
    model.generation_config.max_length = 20
    return LoadedModel("tiny", model, Letters())


def make_ids(loaded: LoadedModel, length: int = 6) -> dict[str, torch.Tensor]:
    ids = torch.randint(3, 60, (1, length), generator=torch.Generator().manual_seed(2))
    if not loaded.is_translator:
        return {"input_ids": ids}
    return {"input_ids": ids, "decoder_input_ids": torch.tensor([[1, 7, 30, 9, 12]])}


@pytest.fixture(scope="module")
def translator():
    return load_model(TRANSLATOR)


@pytest.fixture(scope="module")
def storyteller():
    return load_model(STORYTELLER)


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


def test_the_published_translators_beams(translator):
    ids = translator.encode(SENTENCE)
    tree = search_beams(translator, ids)
    expected = translator.model.generate(ids)[0]
    assert tree.num_beams == 5
    assert tree.sequences[0].tolist() == expected.tolist()
    assert tree.texts[0] == "Zwei Frauen unterhalten sich auf einer Bank im Park."
    assert tree.scores == sorted(tree.scores, reverse=True)
    assert {candidate.outcome for step in tree.steps for candidate in step} == {"kept", "dropped", "ended"}


@pytest.mark.parametrize("family", FAMILIES)
def test_attention_is_forwards(family):
    loaded = make_loaded(family)
    inputs = make_ids(loaded)
    found = compute_attention(loaded, **inputs)
    loaded.model.set_attn_implementation("eager")
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


def test_a_copy_to_observe_shares_the_weights_and_leaves_the_model_alone():
    loaded = make_loaded("transformer")
    before = {name: parameter.data_ptr() for name, parameter in loaded.model.named_parameters()}
    inputs = make_ids(loaded)
    expected = loaded.model(**inputs).logits
    follow_token(loaded, 2, **inputs)
    compute_attention(loaded, **inputs)
    assert {name: parameter.data_ptr() for name, parameter in loaded.model.named_parameters()} == before
    assert loaded.model.config._attn_implementation == "sdpa"
    assert not any("residual" in vars(module) for module in loaded.model.modules())
    assert torch.equal(loaded.model(**inputs).logits, expected)


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
        assert [other.shaped for other in each.alternatives] == pytest.approx(row.topk(10).values.tolist(), abs=1e-6)
        assert each.rank == int((row > row[ids[i + 1]]).sum())


@pytest.mark.parametrize("shape", [{}, {"temperature": 0.6}, {"top_p": 0.7}, {"temperature": 1.7, "top_k": 5}])
def test_written_tokens_are_those_that_generate_draws(shape):
    loaded = make_loaded("gpt")
    ids = make_ids(loaded)["input_ids"]
    written = [each.token for each in write_tokens(loaded, ids, 12, seed=3, **shape)]
    torch.manual_seed(3)
    expected = loaded.model.generate(ids, do_sample=True, max_new_tokens=12, **{"top_k": 0, **shape})
    assert ids[0].tolist() + written == expected[0].tolist()


def test_temperature_zero_writes_what_greedy_search_does(storyteller):
    ids = storyteller.encode("Once upon a time")
    written = [each.token for each in write_tokens(storyteller, ids, 20, temperature=0)]
    expected = storyteller.model.generate(ids, do_sample=False, max_new_tokens=20)
    assert ids[0].tolist() + written == expected[0].tolist()


def test_shaped_probabilities_are_the_scores_of_generate():
    loaded = make_loaded("gpt")
    shape = {"temperature": 0.7, "top_k": 20, "top_p": 0.8}
    outputs = loaded.model.generate(
        make_ids(loaded)["input_ids"],
        generation_config=GenerationConfig(
            do_sample=True, max_new_tokens=5, pad_token_id=0, return_dict_in_generate=True, output_scores=True,
            output_logits=True, **shape,
        ),
    )  # fmt: skip
    for logits, scores in zip(outputs.logits, outputs.scores, strict=True):
        torch.testing.assert_close(shape_probabilities(logits, **shape), scores.softmax(-1))


def test_the_text_ends_at_the_last_position():
    loaded = make_loaded("gpt", eos_token_id=None)
    ids = torch.full((1, 38), 5)
    assert len(list(write_tokens(loaded, ids, 50))) == 3  # positions 38 and 39, and one token that is not read


@each_variant()
def test_the_stages_lead_to_the_models_own_hidden_states_and_logits(family, variant):
    model = shake(make_variant(family, variant))
    if not getattr(model.config, "is_causal", True):
        pytest.skip("it does not predict the next token")
    loaded = LoadedModel("tiny", model, Letters())
    inputs = make_ids(loaded)
    with torch.no_grad():
        outputs = model(**inputs, output_hidden_states=True)
    stages = follow_token(loaded, 3, **inputs)
    last = [stage for stage in stages if stage.kind == "feed-forward"]
    states = outputs.get("decoder_hidden_states", outputs.get("hidden_states"))
    inner = [state[0, 3] for state in states[1:-1]]  # transformers' last state is behind the last LayerNorm
    for stage, expected in zip(last[:-1], inner, strict=True):
        torch.testing.assert_close(stage.vector, expected)
    torch.testing.assert_close(stages[-1].vector, states[-1][0, 3])
    torch.testing.assert_close(next(stage for stage in stages if stage.kind == "sum").vector, states[0][0, 3])
    best = outputs.logits[0, 3].softmax(-1).topk(3)
    assert [text for text, _ in stages[-1].predictions] == [f"·t{i}" for i in best.indices.tolist()]
    assert [share for _, share in stages[-1].predictions] == pytest.approx(best.values.tolist(), abs=1e-6)
    for stage in stages:
        assert stage.norm == pytest.approx(float(stage.vector.norm()))
        assert stage.shape[1:] == (inputs.get("decoder_input_ids", inputs["input_ids"]).shape[1], states[0].shape[-1])


def test_pre_norm_updates_add_up():
    loaded = make_loaded("transformer", norm_first=True)
    stages = follow_token(loaded, 3, **make_ids(loaded))
    vectors = [stage.vector for stage in stages if stage.kind not in ("embedding", "position", "norm")]
    updates = [stage.update_norm for stage in stages if stage.update_norm is not None]
    assert len(updates) == 9
    assert updates == pytest.approx([float((b - a).norm()) for a, b in zip(vectors, vectors[1:])], rel=1e-4)  # noqa: B905, RUF007


@pytest.mark.parametrize("stack", ["encoder", "decoder"])
def test_each_stage_names_the_line_of_code_that_ran(stack):
    loaded = make_loaded("transformer")
    for stage in follow_token(loaded, 1, **make_ids(loaded), stack=stack):
        file, line = stage.place.split(":")
        tree = ast.parse((MODELS / file).read_text(encoding="utf-8"))
        lines = {ast.unparse(n): n for n in ast.walk(tree) if isinstance(n, ast.stmt)}
        assert stage.code in lines
        assert any(
            n.lineno <= int(line) <= n.end_lineno for n in ast.walk(tree) if isinstance(n, ast.stmt)
            and ast.unparse(n) == stage.code
        )  # fmt: skip
        if stage.layer is not None:
            assert f"self.{stage.kind.replace('-', '_').replace('attention', 'attn')}_norm" in stage.code


def test_eight_users_at_once_get_their_own_answers(translator, storyteller):
    sentences = [f"A {animal} runs through the {place}." for animal in ("dog", "man") for place in
                 ("snow", "park", "city", "water")]  # fmt: skip

    def ask(i):
        ids = translator.encode(sentences[i])
        tree = search_beams(translator, ids, 3)
        stages = follow_token(translator, 1, ids, tree.sequences[0][None])
        prompt = storyteller.encode("Once upon a time")
        story = [each.token for each in write_tokens(storyteller, prompt, 15, seed=i)]
        return tree.texts, tree.scores, [stage.norm for stage in stages], story

    alone = [ask(i) for i in range(8)]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(ask, range(8)))
    for one, other in zip(alone, together, strict=True):
        assert one[0] == other[0]
        assert one[1] == pytest.approx(other[1], abs=1e-5)
        assert one[2] == pytest.approx(other[2], rel=1e-5)
        assert one[3] == other[3]
    assert len({tuple(story) for *_, story in alone}) == 8


def test_tokens_are_shown_with_their_spaces(translator, storyteller):
    assert storyteller.read(storyteller.encode("A dog runs\n")[0]) == ["<s>", "A", "·dog", "·runs", "↵"]
    assert translator.read(translator.encode("A dogs")[0], from_source=True)[-1] == "</s>"
    assert translator.read(translator.encode("A dog")[0])[:2] == ["·A", "·dog"]
    assert show_token("") == "·"
    assert show_token("7\xa0km\u200b") == "7U+00A0kmU+200B"


def test_what_cannot_be_shown_is_named(tmp_path, translator):
    for text in (" \n", "dog " * 70):
        with pytest.raises(ValueError, match="but must be some words of at most 64 tokens"):
            translator.encode(text, longest=64)
    make_gpt(is_causal=False).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="fills in masked tokens"):
        load_model(tmp_path)
