# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""BLEU and chrF by sacrebleu, ROUGE by rouge_score: of texts with one reference each, 0 to 100, with signatures."""

import math
from collections.abc import Sequence
from importlib.metadata import version
from operator import eq
from statistics import fmean
from typing import Any

from ..extras import extra

with extra("train"):
    from sacrebleu.metrics import BLEU, CHRF
    from sacrebleu.metrics.bleu import BLEUScore


def score_translations(hypotheses: Sequence[str], references: Sequence[str], language: str | None = None) -> dict:
    """Compute BLEU and chrF, 0 to 100, each with sacrebleu's signature.

    Args:
        hypotheses: the translations to score.
        references: one reference per translation.
        language: the texts' language, e.g. "de", for Moses' tokenizer. Default: no "bleu_moses".

    Returns:
        "bleu" (cased, 13a tokens), "bleu_lc" (the same, lower-cased), "chrf" (Popovic 2015) and, with a `language`,
        "bleu_moses" (lower-cased, Moses' tokens, as in papers on Multi30k). Each has its "..._signature".
        "exact_match" is the share of translations that are their references, 0 to 1.
    """
    chrf = CHRF()
    scores = {
        "bleu": compute_bleu(hypotheses, references),
        "bleu_lc": compute_bleu(hypotheses, references, lowercase=True),
        "chrf": (chrf.corpus_score(hypotheses, [references]), str(chrf.get_signature())),
    }
    if language is not None:
        scores["bleu_moses"] = compute_bleu(hypotheses, references, lowercase=True, moses_lang=language)
    figures: dict[str, Any] = {"exact_match": share_of_matches(hypotheses, references)}
    for name, (result, signature) in scores.items():
        figures |= {name: result.score, f"{name}_signature": signature}
    return figures


def share_of_matches(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """The share of hypotheses that are their references, 0 to 1."""
    return fmean(map(eq, hypotheses, references))


def has_short_texts(texts: Sequence[str]) -> bool:
    """Whether the texts have two words on average, or fewer: too few for BLEU, which counts four words in a row."""
    return fmean(len(text.split()) for text in texts) <= 2


def compute_bleu(
    hypotheses: Sequence[str], references: Sequence[str], lowercase: bool = False, moses_lang: str | None = None
) -> tuple[BLEUScore, str]:
    """Compute the corpus BLEU of Post 2018.

    Args:
        hypotheses: the translations.
        references: one reference per translation.
        lowercase: whether to lower-case the texts first.
        moses_lang: the texts' language. sacremoses then tokenises them before sacrebleu sees them ("tok:none" in the
            signature). Default: sacrebleu's 13a.

    Returns:
        sacrebleu's result and signature.
    """
    bleu, prefix = BLEU(lowercase=lowercase), ""
    if moses_lang is not None:
        from sacremoses import MosesTokenizer  # takes a second and more

        tokenize = MosesTokenizer(lang=moses_lang).tokenize
        hypotheses, references = (
            [tokenize(text.lower() if lowercase else text, return_str=True) for text in texts]
            for texts in (hypotheses, references)
        )
        bleu = BLEU(lowercase=lowercase, tokenize="none", force=True)  # no warning that the texts are tokenised
        prefix = f"moses-{moses_lang}|sacremoses:{version('sacremoses')}|"
    result = bleu.corpus_score(hypotheses, [references])
    return result, prefix + str(bleu.get_signature())


def load_rouge_scorer():
    """Load Google's ROUGE (Lin 2004) without a stemmer, from the package that `evaluate.load("rouge")` uses.

    Raises:
        ImportError: rouge_score is not installed.
    """
    with extra("demo"):
        from rouge_score.rouge_scorer import RougeScorer
    return RougeScorer(("rouge1", "rouge2", "rougeL"))


def score_summaries(hypotheses: Sequence[str], references: Sequence[str]) -> dict:
    """Compute ROUGE's F-measures, 0 to 100: the mean over all summaries.

    Args:
        hypotheses: the summaries to score.
        references: one reference per summary.

    Returns:
        "rouge1" (words), "rouge2" (pairs of words), "rougeL" (the longest common subsequence), and "rouge_signature".

    Raises:
        ImportError: rouge_score is not installed.
    """
    scorer = load_rouge_scorer()
    scores = [scorer.score(*pair) for pair in zip(references, hypotheses, strict=True)]
    means = {name: 100 * math.fsum(each[name].fmeasure for each in scores) / len(scores) for name in scores[0]}
    return {**means, "rouge_signature": f"f-measure|stemmer:no|rouge_score:{version('rouge_score')}"}
