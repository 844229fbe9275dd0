import copy
import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from hf_scratch import ScratchGPTConfig, ScratchTransformerConfig, SourceTargetTokenizer
from hf_scratch.errors import UserError
from hf_scratch.loading import check_fits, check_same_vocabulary, load_tokenizer
from hf_scratch.tokenization import count_unknown, describe_unknown, target_size, train_tokenizer

TEXTS = ["Once upon a time, a cat sat.", "Eine Katze saß.\nDann lief sie weg.", "1 + 2 = 3"] * 4
BYTE_LEVEL = {kind: train_tokenizer(TEXTS, kind, 320, 64, show_progress=False) for kind in ("bpe", "joint")}
# the special tokens' own names are special wherever they stand, as in every Hugging Face tokenizer
ANY_TEXT = st.text(max_size=40).filter(lambda text: not any(name in text for name in ("<pad>", "<s>", "</s>")))


SOURCE = ['A man, aged "42", sleeps.', "Two dogs-run; it's  fun!"]
TARGET = ["Ein Mann schläft.", 'Zwei Hunde "laufen", oft.']


def make_words(kind: str = "word", **options) -> SourceTargetTokenizer:
    size = 30 if kind == "word" else 280
    return train_tokenizer(SOURCE, kind, size, 40, target_texts=TARGET, show_progress=False, **options)


@settings(max_examples=200)
@given(text=ANY_TEXT)
def test_byte_level_round_trips_any_text(text):
    for tokenizer in BYTE_LEVEL.values():
        assert tokenizer.decode(tokenizer(text)["input_ids"], skip_special_tokens=True) == text


@pytest.mark.parametrize("kind", ["char", "bpe", "joint"])
def test_auto_tokenizer_loads_it_whole(kind, tmp_path):
    tokenizer = train_tokenizer(TEXTS, kind, 320, 64, show_progress=False)
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    text = "Once upon\na time"
    assert loaded(text)["input_ids"] == tokenizer(text)["input_ids"]
    assert loaded.decode(loaded(text)["input_ids"], skip_special_tokens=True) == text
    assert (loaded.pad_token_id, loaded.bos_token_id, loaded.eos_token_id) == (0, 1, 2)
    assert loaded.model_max_length == 64
    assert loaded.padding_side == ("right" if kind == "joint" else "left")
    assert set(loaded(text)) == {"input_ids", "attention_mask"}


def test_special_tokens_stand_where_each_model_wants_them():
    joint, bpe = BYTE_LEVEL["joint"], BYTE_LEVEL["bpe"]
    assert joint("Eine Katze")["input_ids"][-1] == joint.eos_token_id
    assert joint("Eine Katze")["input_ids"][0] != joint.bos_token_id
    assert bpe("a cat")["input_ids"][0] == bpe.bos_token_id
    assert bpe("a cat")["input_ids"][-1] != bpe.eos_token_id


def test_a_word_is_the_same_token_anywhere_in_a_joint_vocabulary():
    tokenizer = train_tokenizer(["Katze und Katze"] * 9, "joint", 300, show_progress=False)
    first, *_, last = tokenizer.tokenize("Katze und Katze")
    assert first == last


def test_char_keeps_the_most_frequent_and_reports_the_rest():
    tokenizer = train_tokenizer(["aaabbc"], "char", vocab_size=6)  # four special tokens, a and b
    assert len(tokenizer) == 6
    assert tokenizer.decode(tokenizer("ab\nc")["input_ids"][1:]) == "ab<unk><unk>"
    assert count_unknown(tokenizer, ["abc", "cc\n"]) == {"c": 3, "\n": 1}
    assert describe_unknown(tokenizer, ["abc"], "validation")[0].startswith("validation: 1 characters are unknown")


def test_byte_level_knows_everything():
    assert count_unknown(BYTE_LEVEL["bpe"], ["\u4e16 \U0001f600"]) == {}


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"kind": "unigram"}, "'unigram'"),
        ({"kind": "separate"}, "`target_texts`"),
        ({"kind": "joint", "target_texts": TEXTS}, "`target_texts`"),
    ],
)
def test_bad_input_is_named(kwargs, message):
    with pytest.raises(ValueError, match=message):
        train_tokenizer(**{"texts": TEXTS, **kwargs})


def test_a_tokenizer_that_does_not_fit_the_model_is_refused():
    def separate(vocab_size: int, decoder_vocab_size: int) -> ScratchTransformerConfig:
        return ScratchTransformerConfig(
            vocab_size=vocab_size, decoder_vocab_size=decoder_vocab_size, share_encoder_decoder_embeddings=False
        )

    for tokenizer, config, message in (
        (BYTE_LEVEL["bpe"], ScratchGPTConfig(vocab_size=100), "`vocab_size` is 100"),
        (BYTE_LEVEL["bpe"], separate(400, 100), "`decoder_vocab_size` is 100"),
        (make_words(), separate(24, 14), "15 tokens, but the model's `decoder_vocab_size` is 14"),
    ):
        with pytest.raises(ValueError, match=message):
            check_fits(tokenizer, config)


def test_a_tokenizer_of_another_model_is_refused(tmp_path):
    own = BYTE_LEVEL["bpe"]
    own.save_pretrained(tmp_path)
    other = train_tokenizer(["quick brown jumps over the lazy"] * 9, "bpe", len(own), 64, show_progress=False)
    with pytest.raises(ValueError, match=r"`tokenizer_name` \(other\) has another vocabulary .* ids stand for other"):
        check_same_vocabulary(other, str(tmp_path), "other")
    extended = load_tokenizer(tmp_path)
    extended.add_tokens(["<de>", "<fr>"])
    check_same_vocabulary(extended, str(tmp_path), "extended")
    check_same_vocabulary(other, str(tmp_path / "nothing"), "other")  # a model without a tokenizer of its own


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
@pytest.mark.parametrize("content", ["", "{"])
def test_a_damaged_file_is_named(name, content, tmp_path):
    BYTE_LEVEL["bpe"].save_pretrained(tmp_path)
    (tmp_path / name).write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=str(tmp_path)):
        load_tokenizer(tmp_path)


def test_a_folder_without_a_tokenizer_is_named(tmp_path):
    with pytest.raises(UserError, match="holds no tokenizer"):
        load_tokenizer(tmp_path)
    with pytest.raises(UserError, match="is not a folder"):
        load_tokenizer("./nothing")


@pytest.mark.parametrize("kind", ["word", "separate"])
def test_two_vocabularies_encode_and_decode_each_its_language(kind, tmp_path):
    tokenizer = make_words(kind)
    tokenizer.save_pretrained(tmp_path)
    copies = [
        copy.deepcopy(tokenizer),
        pickle.loads(pickle.dumps(tokenizer)),
        AutoTokenizer.from_pretrained(tmp_path),
        AutoTokenizer.from_pretrained(tmp_path, trust_remote_code=True),
    ]
    assert type(copies[2]) is SourceTargetTokenizer
    for loaded in copies:
        for source, target in zip(SOURCE, TARGET, strict=True):
            encoded = loaded(source, text_target=target)
            assert encoded["input_ids"] == tokenizer(source)["input_ids"]
            assert loaded(text_target=target)["input_ids"] == encoded["labels"]
            assert encoded["input_ids"][-1] == encoded["labels"][-1] == loaded.eos_token_id == 2
            assert loaded.decode(encoded["labels"], skip_special_tokens=True) == target
            read = loaded.decode(encoded["input_ids"], skip_special_tokens=True, use_source_tokenizer=True)
            assert read == source
            assert loaded.batch_decode([encoded["labels"]] * 2, skip_special_tokens=True) == [target] * 2
        assert (len(loaded), target_size(loaded)) == (len(tokenizer), target_size(tokenizer))
        assert (loaded.model_max_length, loaded.padding_side) == (40, "right")
        assert len(loaded(text_target=TARGET, max_length=3, truncation=True)["input_ids"][0]) == 3
    assert len(tokenizer) != target_size(tokenizer) or kind == "separate"


def test_another_thread_encodes_sources_while_targets_are_encoded(monkeypatch):
    tokenizer, switch, seen = make_words(), SourceTargetTokenizer._switch_to_target_mode, []
    sources, targets = tokenizer(SOURCE)["input_ids"], tokenizer(text_target=TARGET)["input_ids"]

    def switch_and_encode(self):
        switch(self)
        with ThreadPoolExecutor(1) as pool:
            seen.append(pool.submit(tokenizer, SOURCE).result()["input_ids"])

    monkeypatch.setattr(SourceTargetTokenizer, "_switch_to_target_mode", switch_and_encode)
    assert tokenizer(text_target=TARGET)["input_ids"] == targets
    assert seen == [sources]


def test_a_word_vocabulary_has_the_words_of_a_minimum_frequency():
    texts = ["a cat, a dog", "a cat!"]
    tokenizer = train_tokenizer(texts, "word", 50, min_frequency=2, add_eos=True, show_progress=False)
    assert set(tokenizer.get_vocab()) == {"<pad>", "<s>", "</s>", "<unk>", "▁a", "▁cat"}
    assert tokenizer.decode(tokenizer("a cat, a cow")["input_ids"]) == "a cat<unk> a<unk></s>"
    assert count_unknown(tokenizer, ["a cat, a cow"]) == {",": 1, "cow": 1}
    assert len(train_tokenizer(texts, "word", 5, show_progress=False)) == 5  # the most frequent word
    words = make_words()
    assert count_unknown(words, ["Mann"]) == {"Mann": 1}
    assert not count_unknown(words, ["Mann"], is_target=True)


def test_a_target_tokenizer_that_is_missing_or_another_is_refused(tmp_path):
    make_words().save_pretrained(tmp_path)
    (tmp_path / "target_tokenizer.json").unlink()
    with pytest.raises(ValueError, match="no target_tokenizer"):
        load_tokenizer(tmp_path)
    with pytest.raises(ValueError, match="'<unk>' is 3 in the source"):
        SourceTargetTokenizer(
            tokenizer_object=make_words().backend_tokenizer,
            target_tokenizer_object=BYTE_LEVEL["bpe"].backend_tokenizer,
            unk_token="<unk>",
        )


def test_special_tokens_must_be_in_both_vocabularies(tmp_path):
    tokenizer = make_words(add_eos=True)
    with pytest.raises(ValueError, match="'<x>' must have the same id in both vocabularies"):
        tokenizer.add_special_tokens({"additional_special_tokens": ["<x>"]})
    tokenizer.add_special_tokens({"cls_token": "<s>"})
    tokenizer.add_tokens(["<de>"], special_tokens=True)
    tokenizer.save_pretrained(tmp_path)
    loaded = load_tokenizer(tmp_path)
    assert loaded.cls_token == "<s>"
    assert loaded("<de> A man")["input_ids"] == tokenizer("<de> A man")["input_ids"]


def test_a_call_that_failed_changes_nothing(tmp_path):
    tokenizer = make_words(add_eos=True)
    expected = tokenizer(SOURCE[0])["input_ids"]
    with pytest.raises((TypeError, ValueError)):
        tokenizer(text_target=[TARGET[0], 5])
    assert tokenizer.encode(SOURCE[0]) == expected
    assert tokenizer.decode(expected, skip_special_tokens=True, use_source_tokenizer=True) == SOURCE[0]
    tokenizer.save_pretrained(tmp_path)
    assert load_tokenizer(tmp_path)(SOURCE[0])["input_ids"] == expected
