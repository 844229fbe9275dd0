import json
import math
import pickle
from functools import partial
from pathlib import Path

import evaluate
import pytest
import torch

from hf_scratch import ScratchGPTConfig
from hf_scratch.evaluation import (
    BitsPerByte,
    Bleu,
    ChrF,
    ExactMatch,
    LowercaseBleu,
    MosesBleu,
    Rouge,
    score_summaries,
    score_translations,
)
from hf_scratch.evaluation.language_modeling import evaluate_answers
from hf_scratch.evaluation.translation import has_short_texts
from hf_scratch.tokenization import train_tokenizer

METRICS = (ExactMatch, Bleu, LowercaseBleu, ChrF, partial(MosesBleu, "de"), Rouge)  # over texts
PREDICTIONS = ["Der Hund läuft durch den Schnee", "zwei Katzen", "Eine Frau liest ein Buch im Park ."]
REFERENCES = [
    ["Ein Hund rennt durch den Schnee", "Der Hund läuft durch den Schnee"],
    ["Zwei Katzen"],
    ["Eine Frau liest im Park ein Buch.", "Im Park liest eine Frau ein Buch.", "Eine Frau liest."],
]


@pytest.mark.parametrize("make", [*METRICS, BitsPerByte])
def test_a_metric_gets_all_at_once_or_in_batches_and_is_pickled(make, tmp_path):
    metric = make(cache_dir=tmp_path)
    copy = pickle.loads(pickle.dumps(metric))
    inputs = (PREDICTIONS, REFERENCES) if make is not BitsPerByte else ([1.5, 2.5, 3.25], [3, 4, 5])
    expected = metric.compute(predictions=inputs[0], references=inputs[1])
    for begin in (0, 1):
        rows = slice(begin, 3 * begin or 1)
        copy.add_batch(predictions=inputs[0][rows], references=inputs[1][rows])
    assert copy.compute() == expected
    assert not list(tmp_path.rglob("*.arrow"))


def test_the_best_of_several_references_counts():
    scores = score_translations(PREDICTIONS, REFERENCES)
    assert scores["exact_match"] == 1 / 3
    assert scores["bleu_signature"].startswith("nrefs:var|")
    for first, others in (("a b c d", ["x y z w", "e"]), ("e", ["a b c d"])):
        references = [[*others, first]]
        assert score_translations([first], references)["chrf"] == pytest.approx(100)
        assert score_summaries([first], references)["rouge1"] == 100
    assert score_translations(["a b c d"], [["x y z w", "a b c d"]])["bleu"] == pytest.approx(100)
    a, b, c = PREDICTIONS
    alone = score_translations([b, a, c], [a, b, c], "de")
    for listed in ([[a], [b], [c]], [a, [b], c], [[a], b, c]):
        assert score_translations([b, a, c], listed, "de") == alone


def test_scores_need_no_cache_and_no_network(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setattr(evaluate.config, "HF_METRICS_CACHE", tmp_path / "file" / "metrics")
    with pytest.raises(OSError, match="file"):
        Bleu()
    assert score_translations(["ein Hund"], ["ein Hund"])["exact_match"] == 1


def test_bleu_by_hand():
    # 4 of 5 words, 3 of 4 pairs, 2 of 3 triples, 1 of 2 quadruples; same lengths, so no brevity penalty
    scores = Bleu().compute(predictions=["the cat sat down here"], references=["the cat sat down there"])
    assert scores["bleu"] == pytest.approx(100 * (4 / 5 * 3 / 4 * 2 / 3 * 1 / 2) ** 0.25)
    assert scores["bleu_signature"].startswith("nrefs:1|case:mixed|eff:no|tok:13a|")


def test_case_counts_unless_lower_cased():
    scores = score_translations(["The Cat Sat Down"], ["the cat sat down"])
    assert scores["bleu"] < scores["bleu_lc"] == pytest.approx(100)
    assert "case:lc" in scores["bleu_lc_signature"]
    assert "case:mixed" in scores["bleu_signature"]


def test_one_or_two_words_are_too_short_for_bleu():
    assert has_short_texts(["neunzig", "ein Hund", "ein roter Hund"])
    assert not has_short_texts(["ein Hund", "ein roter Hund"])
    assert score_translations(["neun", "zehn", "elf", "drei"], ["neun", "zehn", "zwei", "Drei"])["exact_match"] == 0.5


def test_papers_lower_case_and_cut_by_moses_rules():
    # "z.B." stays whole, and the comma is a token: 13a would cut the one and leave "Hunde,Katzen" alike
    assert MosesBleu("de").tokenize("HUNDE, z.B. Dackel") == "hunde , z.b. dackel"
    scores = score_translations(["HUNDE, z.B. Dackel"], ["Hunde, z.B. dackel"], "de")
    assert scores["bleu_moses"] == pytest.approx(100)
    assert "moses-de|sacremoses" in scores["bleu_moses_signature"]
    assert "case:lc|eff:no|tok:none" in scores["bleu_moses_signature"]
    scores = score_translations(["ein Hund, der läuft"], ["Ein Hund, der läuft."], "de")
    assert scores["bleu_moses"] == pytest.approx(100 * math.exp(1 - 6 / 5))
    assert "bleu_moses" not in score_translations(["a b"], ["a b"])


def test_multi30ks_references_have_the_tokens_that_papers_count(multi30k):
    lines = Path(multi30k, "test.jsonl").read_text(encoding="utf-8").splitlines()
    tokenize = MosesBleu("de").tokenize
    assert sum(len(tokenize(json.loads(line)["de"]).split()) for line in lines) == 12_103


def test_rouge_by_hand():
    # of 4 and 5 words, 3 are shared: precision 3/4, recall 3/5; of 3 and 4 pairs, 1 is; 2 words are in the same order
    result = score_summaries(["the dog a ran"], ["a big dog The dog"])
    assert result["rouge1"] == pytest.approx(100 * 2 * 3 / (4 + 5))
    assert result["rouge2"] == pytest.approx(100 * 2 * 1 / (3 + 4))
    assert result["rougeL"] == pytest.approx(100 * 2 * 2 / (4 + 5))
    assert result["rouge_signature"].startswith("f-measure|stemmer:no|rouge_score:")
    assert score_summaries(["a b", "a b"], ["a b", "b c"])["rouge1"] == pytest.approx((100 + 50) / 2)


class Oracle:
    """Answers "a+b=" by the sum, but for 7+7."""

    device = torch.device("cpu")
    config = ScratchGPTConfig(max_position_embeddings=9)

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer

    def eval(self):
        pass

    def generate(self, input_ids, attention_mask, **kwargs):
        rows = []
        for ids in input_ids:
            question = self.tokenizer.decode(ids, skip_special_tokens=True)
            a, b = question.rstrip("=").split("+")
            answer = str(int(a) + int(b) + (question == "7+7="))
            ids = self.tokenizer(answer.ljust(3, "x"), add_special_tokens=False)["input_ids"][: len(answer)]
            rows.append([*ids, *[self.tokenizer.eos_token_id] * (3 - len(ids))])
        return torch.cat([input_ids, torch.tensor(rows)], dim=1)


def test_answers_are_right_to_the_last_character():
    tokenizer = train_tokenizer(["0123456789+=x"], "char", 30, 40, show_progress=False)
    texts = ["1+2=3", "12+5=17", "7+7=14", "9+9=18"]
    questions = ["1+2=", "12+5=", "7+7=", "9+9="]
    result = evaluate_answers(Oracle(tokenizer), tokenizer, texts, questions, batch_size=3)
    assert result == {"accuracy": 0.75, "answers": 4}
    with pytest.raises(ValueError, match="has 7 tokens and the longest answer 3, but the model has 9 positions"):
        evaluate_answers(Oracle(tokenizer), tokenizer, ["10+10=20"], ["10+10="])
