# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Translate or summarise a test set, and score the outputs: translations with BLEU and chrF, summaries with ROUGE."""

import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from accelerate import PartialState
from transformers import PreTrainedModel
from transformers.utils import logging

from ..models.translation_pipeline import TranslationPipeline
from ..training.main_process import on_main_process
from .processes import gather_results, own_batches


def evaluate_translation(
    model: PreTrainedModel,
    tokenizer,
    sources: Sequence[str],
    references: Sequence[str],
    batch_size: int = 64,
    target_lang: str | None = None,
    task: str = "translation",
    **generate_kwargs,
) -> tuple[dict, list[str]]:
    """Translate or summarise `sources`, and score the outputs.

    Several processes share the batches. All of them must call this, and all get the result of one process.

    Args:
        model: an encoder-decoder.
        tokenizer: its tokenizer.
        sources: the texts to translate or summarise.
        references: their translations or summaries.
        batch_size: sentences per batch.
        target_lang: the references' language, for Moses' rules. Default: the config's `target_lang`;
            otherwise "bleu_moses" is omitted.
        task: "translation" or "summarization".
        generate_kwargs: passed to `generate()`, e.g. `num_beams` and `length_penalty`.

    Returns:
        The scores of `score_translations` or `score_summaries` with "sentences" (the number of texts) and "seconds",
        and the outputs.
    """
    from .metrics import combine_for_task  # imports evaluate

    target_lang = target_lang or getattr(model.config, "target_lang", None)
    metrics = combine_for_task(task, target_lang)  # before the work: a package may be missing
    start = time.perf_counter()
    hypotheses = translate(model, tokenizer, sources, batch_size, **generate_kwargs)
    seconds = time.perf_counter() - start
    scores = on_main_process(lambda: metrics.compute(predictions=hypotheses, references=references))
    return {**scores, "sentences": len(hypotheses), "seconds": seconds}, hypotheses


def translate(
    model: PreTrainedModel, tokenizer, sources: Sequence[str], batch_size: int = 64, **generate_kwargs
) -> list[str]:
    """Translate texts with a progress bar. Several processes share the batches, as in `evaluate_translation`.

    Args:
        model: an encoder-decoder.
        tokenizer: its tokenizer.
        sources: the texts.
        batch_size: sentences per batch.
        generate_kwargs: passed to `generate()`.

    Raises:
        ValueError: a text is longer than the model's input.
    """
    translator = TranslationPipeline(model=model, tokenizer=tokenizer, device=model.device)
    own = own_batches()
    count = sum(len(sources[begin : begin + batch_size]) for begin in range(0, len(sources), batch_size)[own])
    options = {"total": count, "desc": "translating", "unit": " sentences"}
    translated = translator.translate_by_length(sources, own, batch_size=batch_size, **generate_kwargs)
    bar = logging.tqdm(translated, disable=not PartialState().is_main_process, **options)
    return gather_results((i, record["translation_text"]) for i, record in bar)


def has_short_texts(texts: Sequence[str]) -> bool:
    """Whether the texts have two words on average, or fewer: too few for BLEU, which counts four words in a row."""
    return fmean(len(text.split()) for text in texts) <= 2


def write_lines(path: Path, texts: Sequence[str]) -> None:
    """Write one text per line. Line breaks in a text become spaces, so that line n translates line n of the source."""
    path.write_text("".join(" ".join(text.splitlines()) + "\n" for text in texts), encoding="utf-8")
