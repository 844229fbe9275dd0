# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Scores as metrics of Hugging Face's evaluate. `evaluate.load` downloads its metrics; these need no network.

The metrics over texts have distinct keys, so that `evaluate.combine([Bleu(), ChrF(), MosesBleu("de")])` keeps all.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import version
from itertools import zip_longest
from operator import contains
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

import evaluate
from datasets import Features, List, Value

from ..errors import extra


class TextMetric(evaluate.Metric):
    """Base of the metrics over texts. `compute` and `add_batch` take a reference, or a list of them, per prediction.

    Raises:
        ImportError: by the constructor, where the package that computes the score is not installed.
    """

    def _info(self) -> evaluate.MetricInfo:
        features = Features({"predictions": Value("string"), "references": List(Value("string"))})
        return evaluate.MetricInfo(description=self.__doc__ or "", citation="", features=features)

    def add_batch(self, *, predictions: Any = None, references: Any = None, **kwargs) -> None:
        """Add predictions, and for each of them a reference or a list of references."""
        # evaluate looks at the first row alone: in the others it would treat a text as a list of characters
        listed = [[each] if isinstance(each, str) else each for each in references]
        super().add_batch(predictions=predictions, references=listed, **kwargs)


class ExactMatch(TextMetric):
    """The share of texts that are one of their references, 0 to 1: "exact_match"."""

    def _compute(self, predictions, references) -> dict:
        return {"exact_match": fmean(map(contains, references, predictions))}


class Bleu(TextMetric):
    """Corpus BLEU (Post 2018) of cased texts in 13a tokens, 0 to 100, by sacrebleu: "bleu", "bleu_signature"."""

    key, scorer_name, options = "bleu", "BLEU", {}

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        with extra("train"):
            import sacrebleu
        self.scorer = getattr(sacrebleu, self.scorer_name)(**self.options)

    def _compute(self, predictions, references) -> dict:
        # sacrebleu takes the first references of all texts, then the second ones, ...
        result = self.scorer.corpus_score(predictions, list(zip_longest(*references)))
        return {self.key: result.score, f"{self.key}_signature": str(self.scorer.get_signature())}


class LowercaseBleu(Bleu):
    """As `Bleu`, of lower-cased texts: "bleu_lc", "bleu_lc_signature"."""

    key, options = "bleu_lc", {"lowercase": True}


class MosesBleu(Bleu):
    """As `Bleu`, of lower-cased texts in Moses' tokens, as in papers on Multi30k.

    "bleu_moses", "bleu_moses_signature". sacrebleu gets the texts as sacremoses has tokenised them ("tok:none").

    Args:
        language: the texts' language, e.g. "de".
    """

    key = "bleu_moses"
    options = {"lowercase": True, "tokenize": "none", "force": True}  # no warning that the texts are tokenised

    def __init__(self, language: str, *args, **kwargs):
        super().__init__(*args, **kwargs)
        with extra("train"):
            from sacremoses import MosesTokenizer  # takes a second and more
        self.language, self.tokenizer = language, MosesTokenizer(lang=language)

    def tokenize(self, text: str) -> str:
        """Lower-case a text, and put a space between its tokens."""
        return self.tokenizer.tokenize(text.lower(), return_str=True)

    def _compute(self, predictions, references) -> dict:
        references = [list(map(self.tokenize, each)) for each in references]
        scores = super()._compute(list(map(self.tokenize, predictions)), references)
        signature = f"moses-{self.language}|sacremoses:{version('sacremoses')}|{scores['bleu_moses_signature']}"
        return {**scores, "bleu_moses_signature": signature}


class ChrF(Bleu):
    """Corpus chrF (Popovic 2015), of character n-grams, 0 to 100, by sacrebleu: "chrf", "chrf_signature"."""

    key, scorer_name = "chrf", "CHRF"


class Rouge(TextMetric):
    """ROUGE's F-measures (Lin 2004) without a stemmer, 0 to 100: the means over all summaries.

    "rouge1" (words), "rouge2" (pairs of words), "rougeL" (the longest common subsequence) and "rouge_signature", by
    the package that `evaluate.load("rouge")` uses. The best of a summary's references counts.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        with extra("demo"):
            from rouge_score.rouge_scorer import RougeScorer
        self.scorer = RougeScorer(("rouge1", "rouge2", "rougeL"))

    def _compute(self, predictions, references) -> dict:
        scores = [self.scorer.score_multi(*row) for row in zip(references, predictions, strict=True)]
        means = {name: 100 * math.fsum(each[name].fmeasure for each in scores) / len(scores) for name in scores[0]}
        return {**means, "rouge_signature": f"f-measure|stemmer:no|rouge_score:{version('rouge_score')}"}


class BitsPerByte(evaluate.Metric):
    """A language model's "bits_per_byte". Predictions are nats, references the bytes of the texts that they encode."""

    def _info(self) -> evaluate.MetricInfo:
        features = Features({"predictions": Value("float64"), "references": Value("int64")})
        return evaluate.MetricInfo(description=self.__doc__ or "", citation="", features=features)

    def _compute(self, predictions, references) -> dict:
        return {"bits_per_byte": math.fsum(predictions) / math.log(2) / sum(references)}


def combine_in_memory(*metrics: Callable[..., evaluate.Metric]) -> evaluate.CombinedEvaluations:
    """Make and combine metrics of some classes that keep all in memory, without files or other processes' locks."""
    with TemporaryDirectory() as folder:  # evaluate makes an empty one in any case, and its cache may be read-only
        return evaluate.combine([metric(keep_in_memory=True, cache_dir=folder) for metric in metrics])


def combine_for_task(task: str, language: str | None = None) -> evaluate.CombinedEvaluations:
    """Combine, in memory, the metrics of "translation" (see `score_translations`) or of "summarization"."""
    if task == "summarization":
        return combine_in_memory(Rouge)
    moses = [] if language is None else [partial(MosesBleu, language)]
    return combine_in_memory(ExactMatch, Bleu, LowercaseBleu, ChrF, *moses)


def score_translations(hypotheses: Sequence[str], references: Sequence, language: str | None = None) -> dict:
    """Compute the scores of translations.

    Args:
        hypotheses: the translations to score.
        references: one reference, or a list of them, per translation.
        language: the texts' language, e.g. "de", for Moses' tokenizer. Default: no "bleu_moses".

    Returns:
        What `ExactMatch`, `Bleu`, `LowercaseBleu`, `ChrF` and, with a `language`, `MosesBleu` return.
    """
    return combine_for_task("translation", language).compute(predictions=hypotheses, references=references)


def score_summaries(hypotheses: Sequence[str], references: Sequence) -> dict:
    """Compute what `Rouge` returns of summaries, with one reference, or a list of them, per summary."""
    return combine_for_task("summarization").compute(predictions=hypotheses, references=references)
