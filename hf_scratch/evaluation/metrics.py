# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""evaluate's metrics over sacrebleu and over token losses, which need no download.

`evaluate.load("sacrebleu")` fetches a script from the Hub at run time; these classes are that API without the fetch.
"""

import math
from importlib.metadata import version

import datasets
import evaluate
from sacrebleu.metrics import BLEU, CHRF
from sacremoses import MosesTokenizer

_SENTENCES = datasets.Features(
    {"predictions": datasets.Value("string"), "references": datasets.Sequence(datasets.Value("string"))}
)
_LOSSES = datasets.Features({"predictions": datasets.Value("float64"), "references": datasets.Value("string")})


class SacreBleu(evaluate.Metric):
    """Corpus BLEU of sacrebleu (Post 2018), 0 to 100, with its signature."""

    def _info(self):
        return evaluate.MetricInfo(
            description="Corpus BLEU, sacrebleu's, with its signature.",
            citation="Post, 2018. A Call for Clarity in Reporting BLEU Scores.",
            inputs_description="predictions: strings; references: a list of strings for each prediction.",
            features=_SENTENCES,
        )

    def _compute(
        self, predictions, references, tokenize: str = "13a", lowercase: bool = False, language: str | None = None
    ) -> dict:
        """Returns `score`, `signature`, the brevity penalty `bp`, and the tokens of the references, `ref_len`.

        Args:
            tokenize: sacrebleu's tokenizers, or "moses": lower-cased and cut by sacremoses before sacrebleu sees the
                text (tok:none), which is how papers on Multi30k count.
            language: of the text, for "moses".
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


class ChrF(evaluate.Metric):
    """Corpus chrF of sacrebleu (Popovic 2015), 0 to 100, with its signature."""

    def _info(self):
        return evaluate.MetricInfo(
            description="Corpus chrF, sacrebleu's, with its signature.",
            citation="Popovic, 2015. chrF: character n-gram F-score for automatic MT evaluation.",
            inputs_description="predictions: strings; references: a list of strings for each prediction.",
            features=_SENTENCES,
        )

    def _compute(self, predictions, references) -> dict:
        """Returns `score` and `signature`."""
        chrf = CHRF()
        result = chrf.corpus_score(predictions, _transpose(references))
        return {"score": result.score, "signature": str(chrf.get_signature())}


class BitsPerByte(evaluate.Metric):
    """What a language model pays for each byte of text, which no choice of tokenizer changes."""

    def _info(self):
        return evaluate.MetricInfo(
            description="Bits a UTF-8 byte and perplexity a token.",
            citation="",
            inputs_description="predictions: the summed loss of a text in nats; references: the text.",
            features=_LOSSES,
        )

    def _compute(self, predictions, references, tokens: int) -> dict:
        """Returns `bits_per_byte`, `loss` (nats a token) and `perplexity`, over `tokens` predicted tokens."""
        nats = math.fsum(predictions)
        size = sum(len(text.encode()) for text in references)
        loss = nats / tokens
        return {"bits_per_byte": nats / math.log(2) / size, "loss": loss, "perplexity": math.exp(loss)}


def _transpose(references: list[list[str]]) -> list[list[str]]:
    # evaluate groups references by prediction, sacrebleu by their place in the group
    return [list(column) for column in zip(*references, strict=True)]
