import json

import pytest
import torch
from conftest import TRANSFORMER, make_gpt, make_transformer
from datasets import Dataset
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    DataCollatorForSeq2Seq,
    M2M100Config,
    M2M100ForConditionalGeneration,
    MBartTokenizer,
    NllbTokenizer,
    pipeline,
)
from transformers.pipelines.pt_utils import KeyDataset

from hf_scratch import ScratchTransformerForConditionalGeneration, SummarizationPipeline, TranslationPipeline
from hf_scratch.evaluation.translation import evaluate_translation
from hf_scratch.loading import load_tokenizer
from hf_scratch.tokenization import target_size, train_tokenizer
from hf_scratch.training.arguments import ModelArguments
from hf_scratch.training.model_loading import choose_model


@pytest.fixture(scope="module")
def translation_folder(tmp_path_factory, joint_tokenizer):
    folder = tmp_path_factory.mktemp("translation")
    model = make_transformer(vocab_size=len(joint_tokenizer), initializer="normal", init_std=0.3)
    model.generation_config.update(max_length=20)
    model.save_pretrained(folder)
    joint_tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture
def translator(translation_folder) -> TranslationPipeline:
    return pipeline("translation", model=translation_folder)


def test_translation_is_what_generate_says_of_strings_and_lists_alike(translator, translation_folder):
    assert isinstance(translator, TranslationPipeline)
    tokenizer, sentences = AutoTokenizer.from_pretrained(translation_folder), ["A man sleeps.", "two dogs run", "A"]
    for options in ({}, {"num_beams": 1}, {"num_beams": 4, "max_new_tokens": 9}):
        outputs = [translator.model.generate(**tokenizer(x, return_tensors="pt"), **options)[0] for x in sentences]
        records = [{"translation_text": tokenizer.decode(ids, skip_special_tokens=True)} for ids in outputs]
        assert [translator(sentence, **options) for sentence in sentences] == [[record] for record in records]
        for batch_size in (1, 2, 3):
            assert translator(sentences, batch_size=batch_size, **options) == records


def test_a_translator_with_two_vocabularies_reads_one_and_writes_the_other(tmp_path):
    sources, targets = ["A man sleeps.", "two dogs run"], ["Ein Mann schläft.", "zwei Hunde laufen dort"]
    tokenizer = train_tokenizer(sources, "word", 40, 40, target_texts=targets, show_progress=False)
    args = ModelArguments(config_overrides="{}")
    fields = {**TRANSFORMER, "decoder_start_token_id": tokenizer.bos_token_id}
    del fields["vocab_size"]
    torch.manual_seed(0)
    model = choose_model(ScratchTransformerForConditionalGeneration, None, args, fields, tokenizer)
    sizes = (model.config.vocab_size, model.config.decoder_vocab_size)
    assert sizes == (len(tokenizer), target_size(tokenizer)) == (11, 12)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    batch = DataCollatorForSeq2Seq(tokenizer, model=model)(
        [dict(tokenizer(source, text_target=target)) for source, target in zip(sources, targets, strict=True)]
    )
    for _ in range(60):
        model(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    translator = pipeline("translation", model=str(tmp_path))
    assert [record["translation_text"] for record in translator(sources)] == targets
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    scores, _ = evaluate_translation(loaded, load_tokenizer(tmp_path), sources, targets)
    assert scores["chrf"] == pytest.approx(100)


def test_the_languages_may_be_named_if_they_are_the_models_own(translator):
    with pytest.raises(ValueError, match="one pair of languages"):
        translator("A man", src_lang="en")
    translator.model.config.update({"source_lang": "en", "target_lang": "de"})
    named = pipeline("translation", translator.model, tokenizer=translator.tokenizer, src_lang="en", tgt_lang="de")
    assert named("A man") == translator("A man", src_lang="en") == translator("A man")
    with pytest.raises(ValueError, match="one pair of languages, en to de"):
        translator("A man", src_lang="de", tgt_lang="en")


LETTERS = ["<s>", "<pad>", "</s>", "<unk>", "▁", *"Aaeilmnps."]


@pytest.mark.parametrize(
    ("tokenizer", "languages"),
    [
        (NllbTokenizer({letter: i for i, letter in enumerate(LETTERS)}), ("eng_Latn", "deu_Latn")),
        (MBartTokenizer([(letter, -1.0) for letter in LETTERS]), ("en_XX", "de_DE")),
    ],
    ids=["nllb", "mbart"],
)
def test_a_multilingual_model_translates_between_the_languages_that_are_named(tokenizer, languages):
    sizes = {"d_model": 16, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "init_std": 1.0}
    layers = {"encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
    torch.manual_seed(0)
    model = M2M100ForConditionalGeneration(M2M100Config(vocab_size=len(tokenizer), **sizes, **layers)).eval()
    model.generation_config.update(max_length=12)
    translator, translations = TranslationPipeline(model, tokenizer), []
    sentences = ["A man sleeps.", "A lamp.", "mail"]
    for source, target in (languages, languages[::-1]):
        tokenizer.src_lang, forced = source, tokenizer.convert_tokens_to_ids(target)
        outputs = [model.generate(**tokenizer(x, return_tensors="pt"), forced_bos_token_id=forced) for x in sentences]
        tokenizer.src_lang = "the last call's"
        expected = [{"translation_text": tokenizer.decode(ids[0], skip_special_tokens=True)} for ids in outputs]
        for batch_size in (1, 2):
            options = {"src_lang": source, "tgt_lang": target, "batch_size": batch_size}
            assert translator(sentences, **options) == expected
        assert translator(sentences[0], src_lang=source, tgt_lang=target) == expected[:1]
        translations.append(expected)
    assert translations[0] != translations[1]
    with pytest.raises(ValueError, match="requires a `src_lang` and a `tgt_lang`"):
        translator(sentences)


def test_a_summary_is_what_generate_says(translator, translation_folder, tmp_path):
    summarizer = pipeline("summarization", model=translation_folder)
    assert isinstance(summarizer, SummarizationPipeline)
    for inputs in ("A man sleeps.", ["A man sleeps.", "two dogs run"]):
        texts = [record["translation_text"] for record in translator(inputs)]
        assert summarizer(inputs) == [{"summary_text": text} for text in texts]
    for task in ("translation", "summarization"):
        summarizer.model.config.task = task
        summarizer.model.save_pretrained(tmp_path)
        config = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
        assert list(config["custom_pipelines"]) == [task]
        assert AutoModelForSeq2SeqLM.from_pretrained(tmp_path).config.task == task


def test_n_best_translations(translator):
    records = translator(["A man", "two dogs"], batch_size=2, num_beams=3, num_return_sequences=2)
    assert [len(best) for best in records] == [2, 2]
    assert len({record["translation_text"] for record in records[0]}) == 2


def make_dataset(rows: list) -> torch.utils.data.Dataset:
    return torch.utils.data.Subset(rows, range(len(rows)))


class Stream(torch.utils.data.IterableDataset):
    def __init__(self, rows):
        self.rows = rows

    def __iter__(self):
        return iter(self.rows)


def make_sources(rows):
    """The same texts in every form that is translated as it comes."""
    dataset = Dataset.from_dict({"en": rows})
    return [(x for x in rows), iter(rows), map(str, rows), make_dataset(rows), Stream(rows), KeyDataset(dataset, "en")]


@pytest.mark.parametrize("batch_size", [1, 2, 7])
def test_streams_and_datasets_are_translated_as_they_come(translator, batch_size):
    sentences = ["A man sleeps.", "two dogs run", "A"]
    expected = translator(sentences)
    for source in make_sources(sentences):
        outputs = translator(source, batch_size=batch_size)
        assert not isinstance(outputs, list)
        assert list(outputs) == expected, source
    assert translator(tuple(sentences), batch_size=batch_size) == expected
    assert translator(Dataset.from_dict({"en": sentences})["en"], batch_size=batch_size) == expected


def test_no_input_has_no_translation(translator):
    assert translator([]) == []
    assert list(translator(iter([]))) == []


@pytest.mark.parametrize("bad", [None, 3, b"a", ["A", "man"], {"text": "a"}, "a \ud800", float("nan")])
def test_what_is_no_text_is_refused(translator, bad):
    for source in (["A man", bad], (text for text in ["A man", bad]), make_dataset(["A man", bad])):
        with pytest.raises((TypeError, ValueError)):
            list(translator(source))
    if not isinstance(bad, list):
        with pytest.raises((TypeError, ValueError)):
            translator(bad)


def test_a_sentence_that_is_too_long_is_named_or_cut(translator):
    with pytest.raises(ValueError, match=r"Input 1 has \d+ tokens"):
        translator(["A man", "dogs " * 50])
    for source in (iter(["A man", "dogs " * 50]), make_dataset(["A man", "dogs " * 50]), iter(["dogs " * 50])):
        with pytest.raises((ValueError, IndexError)):  # from the model
            list(translator(source))
    assert translator("dogs " * 50, truncation=True)[0].keys() == {"translation_text"}
    translator.tokenizer.model_max_length = 10**30  # as of a tokenizer that names no limit
    assert translator("dogs " * 50, truncation=True)[0].keys() == {"translation_text"}


def test_text_generation_goes_on_from_a_prompt(tmp_path, caplog):
    tokenizer = train_tokenizer(["once upon a time"], "char", 30, 40)
    model = make_gpt(vocab_size=len(tokenizer))
    model.generation_config.update(max_length=40)
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    writer = pipeline("text-generation", model=str(tmp_path))
    torch.manual_seed(0)
    (record,) = writer("once", max_new_tokens=5)
    assert record["generated_text"].startswith("once")
    batch = writer(["once", "a time upon"], batch_size=2, do_sample=False, max_new_tokens=8)
    alone = [writer(text, do_sample=False, max_new_tokens=8) for text in ("once", "a time upon")]
    assert batch == alone
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
