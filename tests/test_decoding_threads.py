# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""The number of threads that generate() finds by timing its steps, and that nobody else notices."""

import threading
import time
from itertools import count

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hf_scratch import ScratchGPTConfig, ScratchGPTForCausalLM
from hf_scratch.models import threads
from hf_scratch.models.threads import DecodingThreads, Search


@pytest.fixture
def many_threads(monkeypatch):
    """Four threads, which `OMP_NUM_THREADS` does not fix, and no earlier finding."""
    before = torch.get_num_threads()
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr(threads, "_FOUND", threads._Found())
    torch.set_num_threads(4)
    yield 4
    torch.set_num_threads(before)


def run(search, seconds, most, steps):
    """The numbers of threads of so many steps, each of which takes `seconds[number]`."""
    numbers = []
    for _ in range(steps):
        numbers.append(search.trial or search.number)
        search.record(seconds(numbers[-1]), most)
    return numbers


@given(best=st.sampled_from([1, 2, 4, 8, 64]), most=st.integers(1, 96))
def test_a_search_finds_the_fastest_number(best, most):
    def seconds(number):
        return max(number / best, best / number)

    search = Search()
    assert max(run(search, seconds, most, 400)) <= most
    assert seconds(search.number) == pytest.approx(seconds(min(best, most)), rel=0.1)
    assert run(search, seconds, most, 256).count(search.number) > 230


def test_a_search_leaves_a_slow_number_after_one_step():
    search = Search()
    used = run(search, lambda number: 30.0 if number > 1 else 1.0, 2, 1000)
    assert search.number == 1
    assert used.count(2) < 12  # after 4, 8, 16, ... steps, then after 256


def test_a_search_follows_the_machine():
    search = Search()
    run(search, lambda number: 1 / number, 2, 100)
    assert search.number == 2
    run(search, lambda number: 10 if number == 2 else 1, 2, 300)  # now another process uses the cores
    assert search.number == 1
    run(search, lambda number: 1 / number, 2, 300)
    assert search.number == 2


def test_the_callers_number_returns(many_threads, monkeypatch):
    monkeypatch.setattr(threads.time, "perf_counter", count().__next__)  # each step takes a second
    numbers = []

    def fail():
        with DecodingThreads(weights=1000, rows=1) as chosen:
            for _ in range(6):
                chosen.tick(1)
                numbers.append(torch.get_num_threads())
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert numbers == [1, 1, 1, 1, 2, 2]  # the last is a trial
    assert torch.get_num_threads() == many_threads


@pytest.mark.parametrize("fixed", ["OMP_NUM_THREADS", "deterministic", "one"])
def test_a_fixed_number_stays(many_threads, monkeypatch, fixed):
    if fixed == "OMP_NUM_THREADS":
        monkeypatch.setenv(fixed, "4")
    torch.use_deterministic_algorithms(fixed == "deterministic")
    torch.set_num_threads(number := 1 if fixed == "one" else 4)
    try:
        with DecodingThreads(weights=1000, rows=1) as chosen:
            for _ in range(20):
                chosen.tick(1)
                assert torch.get_num_threads() == number
    finally:
        torch.use_deterministic_algorithms(False)


def test_other_threads_have_the_callers_number(many_threads):
    seen, decoding, ended = [], threading.Event(), threading.Event()

    def work():
        decoding.wait()
        torch.ones(300, 300) @ torch.ones(300, 300)  # this thread's first work
        seen.append(torch.get_num_threads())
        ended.wait()
        with DecodingThreads(weights=1000, rows=1) as chosen:
            seen.append((chosen.most, torch.get_num_threads()))
        seen.append(torch.get_num_threads())

    other = threading.Thread(target=work)
    other.start()
    with DecodingThreads(weights=1000, rows=1):
        assert torch.get_num_threads() == 1
        decoding.set()
        while not seen:
            time.sleep(0.001)
    ended.set()
    other.join()
    assert seen == [many_threads, (many_threads, 1), many_threads]
    assert torch.get_num_threads() == many_threads


def test_a_number_that_is_set_in_between_stays(many_threads):
    with DecodingThreads(weights=1000, rows=1) as chosen:
        chosen.tick(1)
        torch.set_num_threads(3)
        for _ in range(20):
            chosen.tick(1)
            assert torch.get_num_threads() == 3
    assert torch.get_num_threads() == 3


@pytest.mark.parametrize("num_beams", [1, 3])
def test_generate_chooses_threads_and_gives_the_same_tokens(many_threads, num_beams):
    torch.manual_seed(0)
    model = ScratchGPTForCausalLM(
        ScratchGPTConfig(vocab_size=50, d_model=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64)
    ).eval()
    options = {"max_new_tokens": 60, "num_beams": num_beams, "eos_token_id": None, "pad_token_id": 0}
    tokens = model.generate(torch.tensor([[3, 4, 5]]), **options)
    assert torch.get_num_threads() == many_threads
    assert threads._FOUND.searches
    torch.set_num_threads(1)
    assert torch.equal(model.generate(torch.tensor([[3, 4, 5]]), **options), tokens)
