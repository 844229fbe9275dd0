# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""`generate()` in all its modes, generation past the last position, and bad options."""

import warnings
from threading import Thread

import numpy as np
import pytest
import torch
from conftest import FAMILIES, make_gpt, make_transformer
from transformers import (
    ContinuousBatchingConfig,
    DynamicCache,
    GenerationConfig,
    StaticCache,
    TextIteratorStreamer,
)

from hf_scratch.tokenization import train_tokenizer


@pytest.fixture
def prompt() -> torch.Tensor:
    return torch.randint(3, 60, (2, 6), generator=torch.Generator().manual_seed(2))


@pytest.fixture
def endless(family):
    """A model without an end token, so that texts have the length that is asked for."""
    return FAMILIES[family](eos_token_id=None)


def next_logits(model, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Logits (batch, vocabulary) of the token after `target`, from one forward pass with no cache."""
    with torch.no_grad():
        if model.config.is_encoder_decoder:
            return model(input_ids=source, decoder_input_ids=target, use_cache=False).logits[:, -1]
        return model(input_ids=target, use_cache=False).logits[:, -1]


def greedy(model, source: torch.Tensor, num_tokens: int, window: int | None = None) -> torch.Tensor:
    """Greedy decoding by hand: each token from a whole forward pass over the last `window` tokens."""
    target = source
    if model.config.is_encoder_decoder:
        target = source.new_full((len(source), 1), model.config.decoder_start_token_id)
    for _ in range(num_tokens):
        token = next_logits(model, source, target[:, -(window or 0) :]).argmax(-1, keepdim=True)
        target = torch.cat([target, token], dim=1)
    return target


def test_greedy_search_takes_the_likeliest_token_each_time(endless, prompt):
    assert endless.generate(prompt, do_sample=False, max_new_tokens=12).equal(greedy(endless, prompt, 12))


def test_sampled_tokens_follow_the_models_distribution(endless, prompt):
    torch.manual_seed(0)
    count = 4000
    sampled = endless.generate(prompt[:1], do_sample=True, top_k=0, max_new_tokens=1, num_return_sequences=count)
    observed = torch.bincount(sampled[:, -1], minlength=60) / count
    expected = next_logits(endless, prompt[:1], sampled[:1, :-1])[0].softmax(-1)
    # the standard deviation of a frequency is at most 0.5 / sqrt(count)
    assert (observed - expected).abs().max() < 5 * 0.5 / count**0.5


def test_beam_search_finds_the_likeliest_of_all_continuations(endless, prompt):
    """With as many beams as tokens, two steps of beam search are exhaustive."""
    output = endless.generate(
        prompt[:1], num_beams=60, num_return_sequences=5, max_new_tokens=2, do_sample=False, length_penalty=1.0,
        output_scores=True, return_dict_in_generate=True,
    )  # fmt: skip
    target = output.sequences[:1, :-2]
    first = next_logits(endless, prompt[:1], target)[0].log_softmax(-1)
    pairs = torch.stack([torch.cat([target[0], torch.tensor([token])]) for token in range(60)])
    second = next_logits(endless, prompt[:1].expand(60, -1), pairs).log_softmax(-1)
    joint = (first[:, None] + second).flatten()
    best = joint.topk(5)
    assert output.sequences[:, -2:].tolist() == [[int(i) // 60, int(i) % 60] for i in best.indices]
    length = output.sequences.shape[1] - (0 if endless.config.is_encoder_decoder else prompt.shape[1])
    divisor = 2 if not endless.config.is_encoder_decoder else length - 1
    torch.testing.assert_close(output.sequences_scores, best.values / divisor, atol=1e-4, rtol=1e-4)


def test_prompt_lookup_is_greedy_search(endless):
    prompt = torch.tensor([[5, 6, 7, 8, 5, 6, 7, 8, 5, 6]])
    found = endless.generate(prompt, prompt_lookup_num_tokens=3, do_sample=False, max_new_tokens=15)
    assert found.equal(greedy(endless, prompt, 15))


def test_text_is_streamed_as_it_is_generated(family):
    tokenizer = train_tokenizer(["a b\n"], "char", 10, 40)  # a streamer emits whole words and lines
    model = FAMILIES[family](vocab_size=len(tokenizer))
    encoded = tokenizer("a", return_tensors="pt")
    streamer = TextIteratorStreamer(tokenizer, skip_prompt=family == "gpt", timeout=60)
    options = {"max_new_tokens": 30, "do_sample": True, "eos_token_id": None}

    def generate(streamer=None):
        torch.manual_seed(0)
        return model.generate(**encoded, **options, streamer=streamer)

    thread = Thread(target=generate, args=[streamer])
    thread.start()
    pieces = [piece for piece in streamer if piece]
    thread.join()
    start = encoded["input_ids"].shape[1] if family == "gpt" else 0
    assert "".join(pieces) == tokenizer.decode(generate()[0, start:])
    assert len(pieces) > 1  # as they are generated, not all at the end


@pytest.mark.parametrize("num_beams", [1, 3])
@pytest.mark.parametrize("way", [{"cache_implementation": "static"}, {"prefill_chunk_size": 2}], ids=str)
def test_a_static_cache_and_chunks_of_the_prompt_change_no_token(endless, prompt, way, num_beams):
    """Also of padded inputs, of which fewer lengths are compiled: sources on the right, prompts on the left."""
    options, padding = {"max_new_tokens": 10, "do_sample": False, "num_beams": num_beams}, (4, 0)
    if endless.config.is_encoder_decoder:
        padding = (0, 32 - prompt.shape[1])
        options["decoder_input_ids"] = torch.randint(3, 60, (len(prompt), 5))
    expected = endless.generate(prompt, **options)
    assert endless.generate(prompt, **options, **way).equal(expected)
    if "prefill_chunk_size" in way and endless.config.is_encoder_decoder:
        return  # transformers 5.24 would cut the source's mask by the target's chunks
    padded, mask = (torch.nn.functional.pad(each, padding) for each in (prompt, torch.ones_like(prompt)))
    found = endless.generate(padded, attention_mask=mask, **options, **way)
    assert found[:, -10:].equal(expected[:, -10:])


def test_a_compiled_decode_step_has_one_graph_and_is_compiled_once(prompt):
    torch._dynamo.reset()
    model = make_gpt(eos_token_id=None)
    cache = StaticCache(config=model.config, max_cache_len=20)
    with torch.no_grad():
        token = model(prompt, cache=cache).logits[:, -1:].argmax(-1)
        # `fullgraph` makes a graph break an error, and `error_on_recompile` a second compilation
        step = torch.compile(model, fullgraph=True, backend="eager")
        produced = [token]
        for index in range(6):
            with torch._dynamo.config.patch(error_on_recompile=index > 0):
                token = step(token, cache=cache).logits[:, -1:].argmax(-1)
            produced.append(token)
    assert torch.cat([prompt, *produced], dim=1).equal(greedy(model, prompt, 7))


def test_the_cache_of_a_first_call_carries_into_a_second(prompt):
    model = make_gpt(eos_token_id=None)
    cache = DynamicCache(config=model.config)
    first = model.generate(prompt, cache=cache, max_new_tokens=5, do_sample=False)
    second = model.generate(first, cache=cache, max_new_tokens=5, do_sample=False)
    assert second.equal(greedy(model, prompt, 10))


def test_attentions_and_states_of_each_step_are_returned(endless, prompt):
    endless.set_attn_implementation("eager")
    outputs = endless.generate(
        prompt, max_new_tokens=4, return_dict_in_generate=True, output_attentions=True, output_hidden_states=True
    )
    assert outputs.sequences.equal(endless.generate(prompt, max_new_tokens=4))
    prefix = "decoder_" if endless.config.is_encoder_decoder else ""
    assert len(outputs[f"{prefix}attentions"]) == len(outputs[f"{prefix}hidden_states"]) == 4


def test_continuous_batching_generates_what_each_prompt_alone_does():
    model, prompts = make_gpt(eos_token_id=None), [[5, 6, 7], [8, 9, 10, 11, 12], [13]]
    config = GenerationConfig(max_new_tokens=8, do_sample=False, pad_token_id=0, eos_token_id=-1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        outputs = model.generate_batch(
            prompts, generation_config=config, progress_bar=False,
            continuous_batching_config=ContinuousBatchingConfig(num_blocks=16, max_batch_tokens=64, block_size=8),
        )  # fmt: skip
    produced = sorted((list(output.prompt_ids), list(output.generated_tokens)) for output in outputs.values())
    expected = sorted((row, greedy(model, torch.tensor([row]), 8)[0, len(row) :].tolist()) for row in prompts)
    assert produced == expected


# past the window


@pytest.mark.parametrize(("family", "length"), [("gpt", 6), ("gpt", 20), ("transformer", 6)])
def test_the_window_slides_past_the_last_position(family, length, tmp_path):
    """As in article gpt-playground, each token follows from the last `max_position_embeddings` tokens alone."""
    model, prompt = FAMILIES[family](max_position_embeddings=8, eos_token_id=None), torch.randint(3, 60, (2, length))
    expected = greedy(model, prompt, 20, window=8)
    options = {"max_new_tokens": 20, "do_sample": False, "slide_window": True}
    assert model.generate(prompt, **options).equal(expected)
    config = GenerationConfig(**options, pad_token_id=0, decoder_start_token_id=1)
    assert model.generate(prompt, generation_config=config).equal(expected)
    model.generation_config = config
    model.save_pretrained(tmp_path)
    assert type(model).from_pretrained(tmp_path).generate(prompt).equal(expected)


@pytest.mark.parametrize("options", [{"num_beams": 1}, {"num_beams": 3}, {"use_cache": False}])
def test_padded_rows_slide_as_each_alone(options):
    model = make_gpt(max_position_embeddings=8, eos_token_id=None)
    rows = [torch.arange(5, 11), torch.arange(20, 23)]
    padded = torch.stack([rows[0], torch.cat([torch.zeros(3, dtype=torch.long), rows[1]])])
    options = {**options, "max_new_tokens": 15, "do_sample": False, "slide_window": True}
    together = model.generate(padded, attention_mask=(padded != 0).long(), **options)
    for row, output in zip(rows, together, strict=True):
        assert output[-15:].equal(model.generate(row[None], **options)[0, -15:])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"slide_window": True, "prompt_lookup_num_tokens": 2},
        {"slide_window": True, "inputs_embeds": torch.zeros(1, 4, 32)},
        {"inputs_embeds": torch.zeros(1, 4, 32)},
        {"inputs_embeds": torch.zeros(1, 4, 32), "max_new_tokens": None},
        # the last of eight tokens, and a cache with the others
        {"inputs": torch.tensor([[3]]), "attention_mask": torch.ones(1, 8), "max_new_tokens": 2},
        {"max_new_tokens": None, "max_length": 12},
    ],
)
def test_what_cannot_slide_is_refused_before_the_first_token(options, monkeypatch):
    model = make_gpt(max_position_embeddings=8)
    monkeypatch.setattr(type(model), "forward", lambda *args, **kwargs: pytest.fail("generation began"))
    if "inputs_embeds" not in options:
        options = {"inputs": torch.tensor([[3, 4, 5]]), **options}
    with pytest.raises(ValueError, match="slide_window"):
        model.generate(**{"max_new_tokens": 20, **options})


def test_a_start_token_that_is_prepended_counts(monkeypatch):
    model, source = make_transformer(max_position_embeddings=8), torch.randint(3, 60, (2, 6))
    given = torch.full((2, 5), 7)
    assert model.generate(source, decoder_input_ids=given, max_new_tokens=3, eos_token_id=None).shape == (2, 9)
    monkeypatch.setattr(type(model), "forward", lambda *args, **kwargs: pytest.fail("generation began"))
    with pytest.raises(ValueError, match="slide_window"):
        model.generate(source, decoder_input_ids=given, max_new_tokens=4)


ACCEPTED = [
    {"num_beams": np.int64(2)},
    {"num_beams": 2, "length_penalty": torch.tensor(0.6)},
    {"eos_token_id": torch.tensor([2, 3])},
    {"eos_token_id": -1},
    {"forced_eos_token_id": [2, 3]},
    {"generation_config": GenerationConfig(num_beams=None, num_return_sequences=None, max_new_tokens=4)},
]


@pytest.mark.parametrize("options", ACCEPTED, ids=str)
def test_odd_options_that_transformers_accepts_are_accepted(model, options, prompt):
    if "generation_config" not in options:
        options = {"max_new_tokens": 4, "pad_token_id": 0, **options}
    expected = model.generate(prompt, cache_implementation="dynamic", **options)
    assert model.generate(prompt, **options).equal(expected)
