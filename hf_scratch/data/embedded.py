# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Embedded data sets, made without a network: number words, short stories, their summaries, and products."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import chain

from datasets import Dataset, DatasetDict

from ..errors import extra


def make_numbers(highest: int = 9999, held_out: int = 500, seed: int = 0) -> DatasetDict:
    """Make number words in English and German: `{"en": "forty-two", "de": "zweiundvierzig"}`.

    Args:
        highest: the numbers are 0 to this one; each is in one split only.
        held_out: rows of "validation" and of "test".
        seed: decides which numbers are held out.

    Raises:
        ImportError: num2words is not installed.
    """
    with extra("demo"):
        from num2words import num2words
    numbers = list(range(highest + 1))
    random.Random(seed).shuffle(numbers)
    pairs = [{"en": num2words(n, lang="en"), "de": num2words(n, lang="de")} for n in numbers]
    return _split(pairs, held_out)


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


def make_stories(stories: int = 3000, held_out: int = 150, seed: int = 0) -> DatasetDict:
    """Make short stories from a small grammar: `{"text": ...}`.

    Args:
        stories: how many are drawn; stories drawn twice are kept once.
        held_out: rows of "validation" and of "test".
        seed: decides what is drawn.
    """
    return _split([{"text": text} for text in _draw_stories(stories, seed)], held_out)


def make_summaries(stories: int = 3000, held_out: int = 150, seed: int = 0) -> DatasetDict:
    """Make the stories of `make_stories`, each with a sentence that says who met whom, where, and what they found.

    Rows are `{"document": ..., "summary": ...}`; the arguments are as for `make_stories`.
    """
    drawn = _draw_stories(stories, seed)
    return _split([{"document": text, "summary": summary} for text, summary in drawn.items()], held_out)


def _draw_stories(stories: int, seed: int) -> dict[str, str]:
    """Draw stories; each comes with its summary."""
    rng = random.Random(seed)

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

    return dict(story() for _ in range(stories))


def make_multiplication(
    digits: int = 2, held_out: int = 1000, seed: int = 0, both_orders: bool = False
) -> DatasetDict:
    """Make all products of two numbers, the task of gpt-playground: `{"prompt": "0712", "answer": "4800"}` is 7 * 12.

    The digits of the product stand in reverse order, so that each depends only on the factors and on the digits before
    it.

    Args:
        digits: digits of each factor.
        held_out: about how many products are in "validation", and in "test".
        seed: decides which products are held out.
        both_orders: hold a * b out together with b * a, so that training has seen neither. Default: held out at random
            one by one, as in the article.
    """
    factors = range(10**digits)
    groups = [[(a, b)] for a in factors for b in factors]
    if both_orders:
        groups = [list(dict.fromkeys(((a, b), (b, a)))) for a in factors for b in range(a + 1)]
        held_out //= 2
    random.Random(seed).shuffle(groups)

    def make_rows(groups: list[list[tuple[int, int]]]) -> Dataset:
        products = chain.from_iterable(groups)
        rows = [(f"{a:0{digits}}{b:0{digits}}", f"{a * b:0{2 * digits}}"[::-1]) for a, b in products]
        return Dataset.from_list([{"prompt": prompt, "answer": answer} for prompt, answer in rows])

    return _split(groups, held_out, make_rows)


def _split(rows: list, held_out: int, make: Callable[[list], Dataset] = Dataset.from_list) -> DatasetDict:
    parts = {"train": rows[2 * held_out :], "validation": rows[:held_out], "test": rows[held_out : 2 * held_out]}
    return DatasetDict({name: make(part) for name, part in parts.items()})


@dataclass(frozen=True)
class EmbeddedSet:
    """A data set that is made on the spot.

    Args:
        columns: the columns of its rows, all text.
        make: makes its splits "train", "validation" and "test".
        description: what a row is, in a few words.
        configs: other ways to make it, by the `dataset_config_name` that selects them.
    """

    columns: tuple[str, ...]
    make: Callable[[], DatasetDict]
    description: str
    configs: dict[str, Callable[[], DatasetDict]] = field(default_factory=dict)


# by the `dataset_name` that selects it
EMBEDDED = {
    "embedded:numbers": EmbeddedSet(("en", "de"), make_numbers, "the number words of 0 to 9,999"),
    "embedded:stories": EmbeddedSet(("text",), make_stories, "short stories from a small grammar"),
    "embedded:summaries": EmbeddedSet(
        ("document", "summary"), make_summaries, "the same stories, and a sentence each"
    ),
    "embedded:multiplication": EmbeddedSet(
        ("prompt", "answer"),
        make_multiplication,
        "products of two two-digit numbers",
        {"both_orders": partial(make_multiplication, both_orders=True)},
    ),
}


def describe_embedded() -> str:
    """List the embedded sets with their columns: "embedded:numbers (en, de: the number words of ...), ..."."""
    return ", ".join(f"{name} ({', '.join(one.columns)}: {one.description})" for name, one in EMBEDDED.items())


def make_embedded(name: str, config_name: str | None = None) -> DatasetDict:
    """Make the set of a key of `EMBEDDED`, or one of its `configs`; ValueError if there is none."""
    one = EMBEDDED.get(name)
    makers = {} if one is None else {None: one.make, **one.configs}
    if config_name not in makers:
        raise ValueError(
            f"There is no `dataset_name` {name!r} with `dataset_config_name` {config_name!r}; there are: "
            f"{describe_embedded()}."
        )
    return makers[config_name]()
