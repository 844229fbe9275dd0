# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Metrics with evaluate's interface: sacrebleu's BLEU and chrF, and ROUGE.

`evaluate.load("sacrebleu")` downloads a script from the Hub at run time. These classes need no download.
"""

import math
from collections.abc import Sequence
from importlib.metadata import version

import datasets
import evaluate

from ..extras import extra

with extra("train"):
    from sacrebleu.metrics import BLEU, CHRF
    from sacremoses import MosesTokenizer

_SENTENCES = datasets.Features(
    {"predictions": datasets.Value("string"), "references": datasets.Sequence(datasets.Value("string"))}
)


class _SentenceMetric(evaluate.Metric):
    """A metric of translations with one or more references each."""

    citation_text = ""

    def _info(self):
        return evaluate.MetricInfo(
            description=self.__doc__ or "",
            citation=self.citation_text,
            inputs_description="predictions: strings; references: a list of strings per prediction.",
            features=_SENTENCES,
        )


class SacreBleu(_SentenceMetric):
    """sacrebleu's corpus BLEU (Post 2018), 0 to 100, with its signature."""

    citation_text = "Post, 2018. A Call for Clarity in Reporting BLEU Scores."

    def _compute(
        self, predictions, references, tokenize: str = "13a", lowercase: bool = False, language: str | None = None
    ) -> dict:
        """Compute BLEU.

        Args:
            predictions: the translations.
            references: a list of references per translation.
            tokenize: a tokenizer of sacrebleu; or "moses", which tokenises with sacremoses before sacrebleu sees the
                text (tok:none in the signature), as papers on Multi30k do.
            lowercase: whether to lower-case the texts first.
            language: the texts' language, for "moses".

        Returns:
            "score", "signature", "bp" (the brevity penalty) and "ref_len" (tokens of the references).
        """
        prefix, references = "", _transpose(references)
        if tokenize == "moses":
            cut = MosesTokenizer(lang=language).tokenize
            predictions = [cut(text.lower() if lowercase else text, return_str=True) for text in predictions]
            references = [[cut(t.lower() if lowercase else t, return_str=True) for t in texts] for texts in references]
            tokenize, prefix = "none", f"moses-{language}|sacremoses:{version('sacremoses')}|"
        bleu = BLEU(tokenize=tokenize, lowercase=lowercase, force=bool(prefix))  # no warning that text is tokenised
        result = bleu.corpus_score(predictions, references)
        signature = prefix + str(bleu.get_signature())
        return {"score": result.score, "signature": signature, "bp": result.bp, "ref_len": result.ref_len}


class ChrF(_SentenceMetric):
    """sacrebleu's corpus chrF (Popovic 2015), 0 to 100, with its signature."""

    citation_text = "Popovic, 2015. chrF: character n-gram F-score for automatic MT evaluation."

    def _compute(self, predictions, references) -> dict:
        """Compute chrF.

        Args:
            predictions: the translations.
            references: a list of references per translation.

        Returns:
            "score" and "signature".
        """
        chrf = CHRF()
        result = chrf.corpus_score(predictions, _transpose(references))
        return {"score": result.score, "signature": str(chrf.get_signature())}


class Rouge(_SentenceMetric):
    """Google's ROUGE for summaries (Lin 2004), the package that `evaluate.load("rouge")` uses, 0 to 100.

    Raises:
        ImportError: rouge_score is not installed.
    """

    citation_text = "Lin, 2004. ROUGE: A Package for Automatic Evaluation of Summaries."
    names = ("rouge1", "rouge2", "rougeL")

    def __init__(self, *args, **kwargs):
        with extra("demo"):  # now, not after the work
            from rouge_score.rouge_scorer import RougeScorer
        self.scorer = RougeScorer(self.names)
        super().__init__(*args, **kwargs)

    def _compute(self, predictions, references) -> dict:
        """Compute ROUGE's F-measures, without a stemmer: the mean over all summaries.

        Args:
            predictions: the summaries.
            references: a list of references per summary; the best one counts.

        Returns:
            "rouge1" (words), "rouge2" (pairs of words), "rougeL" (the longest common subsequence) and "signature".
        """
        scores = [self.scorer.score_multi(*row) for row in zip(references, predictions, strict=True)]
        means = {name: 100 * math.fsum(score[name].fmeasure for score in scores) / len(scores) for name in self.names}
        return {**means, "signature": f"f-measure|stemmer:no|rouge_score:{version('rouge_score')}"}


def compute_metric(metric: evaluate.Metric, predictions: Sequence, references: Sequence, **options) -> dict:
    """The result of a metric; `options` are those of its `_compute`."""
    result = metric.compute(predictions=predictions, references=references, **options)
    assert result is not None  # it is None only where several processes share one metric
    return result


def _transpose(references: list[list[str]]) -> list[list[str]]:
    # evaluate wants a list of references per prediction; sacrebleu wants the first references of all, the second, ...
    return [list(column) for column in zip(*references, strict=True)]
