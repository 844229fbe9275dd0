# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Invented sentences: words of a fixed vocabulary, as often as Zipf's law says, and about as many as in Multi30k."""

import itertools
import random
from collections.abc import Iterator


def draw_pairs(num_words: int = 30_000) -> Iterator[dict[str, str]]:
    """Draw sentences of 4 to 20 words of two vocabularies with a translation word for word, without end."""
    rng = random.Random(0)
    syllables = ["".join(pair) for pair in itertools.product("bdfgklmnprstvw", "aeiou")]
    words = [["".join(rng.choices(syllables, k=rng.randint(1, 4))) for _ in range(2)] for _ in range(num_words)]
    weights = list(itertools.accumulate(1 / rank for rank in range(1, num_words + 1)))
    while True:
        sides = zip(*rng.choices(words, cum_weights=weights, k=rng.randint(4, 20)), strict=True)
        yield {language: " ".join(side) + "." for language, side in zip(("en", "de"), sides, strict=True)}
