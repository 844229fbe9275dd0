# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Embedded data sets, made without a network: number words, short stories, their summaries, and products."""

import random
from collections.abc import Callable
from functools import partial
from itertools import chain

from datasets import Dataset, DatasetDict

from ..errors import extra


def make_numbers() -> DatasetDict:
    """Make the number words of 0 to 9,999 in English and German: `{"en": "forty-two", "de": "zweiundvierzig"}`.

    Raises:
        ImportError: num2words is not installed.
    """
    with extra("demo"):
        from num2words import num2words
    numbers = list(range(10_000))
    random.Random(0).shuffle(numbers)
    return _split([{"en": num2words(n, lang="en"), "de": num2words(n, lang="de")} for n in numbers], 500)


_NAMES = ("Anna", "Ben", "Clara", "David", "Emma", "Finn", "Greta", "Hugo", "Ida", "Jonas", "Lena", "Max")
_ANIMALS = ("cat", "dog", "duck", "fox", "frog", "hen", "mouse", "owl", "rabbit", "squirrel")
_ADJECTIVES = ("brave", "clever", "funny", "gentle", "hungry", "little", "shy", "sleepy")
_PLACES = ("in the garden", "by the river", "at the market", "on the hill", "near the old mill", "in the forest")
_THINGS = ("a red ball", "a shiny key", "a warm hat", "a sweet apple", "a small boat", "a blue kite", "a paper star")
_WEATHER = ("The sun was warm.", "It began to rain.", "The wind was strong.", "Snow lay on the ground.")
_WISHES = ("wanted to play", "was looking for a friend", "could not find the way home", "wanted to help")
_ENDINGS = (
    "From that day on they were friends.",
    "They shared it and went home happy.",
    "In the evening they told everyone about it.",
    "They laughed and danced until it was dark.",
)


def make_stories() -> DatasetDict:
    """Make short stories from a small grammar: `{"text": ...}`."""
    return _split([{"text": text} for text in _draw_stories()], 150)


def make_summaries() -> DatasetDict:
    """Make the stories of `make_stories`, each with a sentence that says who met whom, where, and what they found.

    Rows are `{"document": ..., "summary": ...}`.
    """
    return _split([{"document": text, "summary": summary} for text, summary in _draw_stories().items()], 150)


def _draw_stories() -> dict[str, str]:
    """Draw 3,000 stories; each comes with its summary. Those drawn twice are kept once."""
    rng = random.Random(0)

    def story() -> tuple[str, str]:
        name, animal, adjective = rng.choice(_NAMES), rng.choice(_ANIMALS), rng.choice(_ADJECTIVES)
        place, thing = rng.choice(_PLACES), rng.choice(_THINGS)
        opening = rng.choice((f"Once upon a time, {name} was {place}.", f"One day, {name} went for a walk {place}."))
        article = "an" if adjective[0] in "aeiou" else "a"
        meeting = f"{name} met {article} {adjective} {animal}. The {animal} {rng.choice(_WISHES)}."
        middle = rng.choice((f"Together they found {thing}.", f"{name} gave the {animal} {thing}."))
        speech = rng.choice((f'"Thank you," said the {animal}.', f'"Come with me," said {name}.'))
        parts = [opening, rng.choice(_WEATHER), meeting, middle, speech, rng.choice(_ENDINGS)]
        end = f"they found {thing}" if middle.startswith("Together") else f"gave it {thing}"
        return " ".join(parts), f"{name} met {article} {adjective} {animal} {place}, and {end}."

    return dict(story() for _ in range(3000))


def make_multiplication(both_orders: bool = False) -> DatasetDict:
    """Make all products of two numbers below 100, the task of gpt-playground.

    `{"prompt": "0712", "answer": "4800"}` is 7 * 12. The digits of the product stand in reverse order, so that each
    depends only on the factors and on the digits before it.

    Args:
        both_orders: hold a * b out together with b * a, so that training has seen neither. Default: held out at random
            one by one, as in the article.
    """
    factors, held_out = range(100), 1000
    groups = [[(a, b)] for a in factors for b in factors]
    if both_orders:
        groups = [list(dict.fromkeys(((a, b), (b, a)))) for a in factors for b in range(a + 1)]
        held_out //= 2
    random.Random(0).shuffle(groups)

    def make_rows(groups: list[list[tuple[int, int]]]) -> Dataset:
        products = chain.from_iterable(groups)
        rows = [(f"{a:02}{b:02}", f"{a * b:04}"[::-1]) for a, b in products]
        return Dataset.from_list([{"prompt": prompt, "answer": answer} for prompt, answer in rows])

    return _split(groups, held_out, make_rows)


def _split(rows: list, held_out: int, make: Callable[[list], Dataset] = Dataset.from_list) -> DatasetDict:
    parts = {"train": rows[2 * held_out :], "validation": rows[:held_out], "test": rows[held_out : 2 * held_out]}
    return DatasetDict({name: make(part) for name, part in parts.items()})


# by the `dataset_name` that selects it: what its rows are, and by the `dataset_config_name` what makes it
EMBEDDED: dict[str, tuple[str, dict[str | None, Callable[[], DatasetDict]]]] = {
    "embedded:numbers": ("en, de: the number words of 0 to 9,999", {None: make_numbers}),
    "embedded:stories": ("text: short stories from a small grammar", {None: make_stories}),
    "embedded:summaries": ("document, summary: the same stories, and a sentence each", {None: make_summaries}),
    "embedded:multiplication": (
        "prompt, answer: products of two two-digit numbers",
        {None: make_multiplication, "both_orders": partial(make_multiplication, both_orders=True)},
    ),
}


def describe_embedded() -> str:
    """List the embedded sets with their columns: "embedded:numbers (en, de: the number words of ...), ..."."""
    return ", ".join(f"{name} ({rows})" for name, (rows, _) in EMBEDDED.items())


def make_embedded(name: str, config_name: str | None = None) -> DatasetDict:
    """Make a set of `EMBEDDED`; ValueError if there is none."""
    _, makers = EMBEDDED.get(name, ("", {}))
    if config_name not in makers:
        raise ValueError(
            f"There is no `dataset_name` {name!r} with `dataset_config_name` {config_name!r}; there are: "
            f"{describe_embedded()}."
        )
    return makers[config_name]()
