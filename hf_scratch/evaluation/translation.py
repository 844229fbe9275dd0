# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Translate a test set and score it: BLEU and chrF, each with its signature."""

import time
from collections.abc import Sequence
from pathlib import Path

from tqdm.auto import tqdm
from transformers import PreTrainedModel

from ..pipelines import TranslationPipeline
from .metrics import ChrF, SacreBleu


def evaluate_translation(
    model: PreTrainedModel,
    tokenizer,
    sources: Sequence[str],
    references: Sequence[str],
    batch_size: int = 64,
    target_lang: str | None = None,
    **generate_kwargs,
) -> tuple[dict, list[str]]:
    """Translate `sources` and compare with `references`.

    Args:
        target_lang: the references' language, for Moses' rules. Default: the config's `target_lang`; where it has
            none, there is no "bleu_moses".
        generate_kwargs: `num_beams`, `length_penalty` and whatever else `generate()` takes.

    Returns:
        What `score_translations` returns with "sentences" and "seconds", and the translations.
    """
    translator = TranslationPipeline(model=model, tokenizer=tokenizer, device=model.device)
    start = time.perf_counter()
    # batches of similar lengths waste less on padding
    order = sorted(range(len(sources)), key=lambda i: len(sources[i]))
    hypotheses = [""] * len(sources)
    with tqdm(total=len(sources), desc="translating", unit=" sentences") as progress:
        for begin in range(0, len(order), batch_size):
            rows = order[begin : begin + batch_size]
            records = translator([sources[i] for i in rows], batch_size=batch_size, **generate_kwargs)
            for i, record in zip(rows, records, strict=True):
                hypotheses[i] = record["translation_text"]
            progress.update(len(rows))
    seconds = time.perf_counter() - start
    target_lang = target_lang or getattr(model.config, "target_lang", None)
    scores = score_translations(hypotheses, references, target_lang)
    return {**scores, "sentences": len(hypotheses), "seconds": seconds}, hypotheses


def write_lines(path: Path, texts: Sequence[str]) -> None:
    """One text a line, so that line n answers line n of the source."""
    path.write_text("".join(" ".join(text.splitlines()) + "\n" for text in texts), encoding="utf-8")


def score_translations(hypotheses: Sequence[str], references: Sequence[str], language: str | None = None) -> dict:
    """BLEU and chrF, each with its signature.

    Returns:
        `{"bleu", "bleu_signature", "bleu_lc", "bleu_lc_signature", "chrf", "chrf_signature"}`: BLEU on plain text,
        cased and 13a; `_lc` lower-cased. With a `language` also "bleu_moses" and "bleu_moses_signature", lower-cased
        and cut by Moses' rules, as papers on Multi30k count.
    """
    wrapped = [[reference] for reference in references]
    bleu = SacreBleu().compute(predictions=hypotheses, references=wrapped)
    bleu_lc = SacreBleu().compute(predictions=hypotheses, references=wrapped, lowercase=True)
    chrf = ChrF().compute(predictions=hypotheses, references=wrapped)
    moses = {}
    if language is not None:
        options = {"tokenize": "moses", "lowercase": True, "language": language}
        result = SacreBleu().compute(predictions=hypotheses, references=wrapped, **options)
        moses = {"bleu_moses": result["score"], "bleu_moses_signature": result["signature"]}
    return {
        "bleu": bleu["score"],
        "bleu_signature": bleu["signature"],
        "bleu_lc": bleu_lc["score"],
        "bleu_lc_signature": bleu_lc["signature"],
        "chrf": chrf["score"],
        "chrf_signature": chrf["signature"],
        **moses,
    }
