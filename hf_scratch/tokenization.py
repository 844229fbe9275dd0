# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Train tokenizers with the tokenizers library. `AutoTokenizer` loads them without any code of ours.

The kinds are

- "char": one token per character;
- "bpe": byte-level BPE, lossless on any text;
- "joint": byte-level BPE for source and target together, for translation;
- "separate": byte-level BPE for source and for target, a vocabulary each, for translation;
- "word": one token per word or punctuation mark; for translation, a vocabulary each for source and target.

All have the special tokens `<pad>`, `<s>` and `</s>`. "char" and "word" also have `<unk>`, since only a byte-level
vocabulary covers every text.

"joint", "separate" and "word" put a space before a text, and remove it when they decode, so that a word is the same
token at the start of a text as inside it. transformers' streamers decode each line by itself. In a stream, therefore,
a space at the start of a later line is lost; `decode` of the whole output keeps it.
"""

from collections import Counter
from collections.abc import Iterable
from itertools import islice
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast
from transformers.utils.logging import tqdm

from .models.tokenization_source_target import SourceTargetTokenizer

PAD, BOS, EOS, UNK, MASK = "<pad>", "<s>", "</s>", "<unk>", "<mask>"
KINDS = ("char", "bpe", "joint", "separate", "word")
WITH_UNKNOWN = ("char", "word")  # these do not cover every text
TEXTS_AT_ONCE = 10_000  # that are encoded to count unknown pieces


def train_tokenizer(
    texts: Iterable[str],
    kind: str,
    vocab_size: int = 8000,
    model_max_length: int = 512,
    add_eos: bool | None = None,
    padding_side: str | None = None,
    show_progress: bool = True,
    target_texts: Iterable[str] | None = None,
    min_frequency: int = 1,
) -> PreTrainedTokenizerFast:
    """Train a tokenizer on `texts`.

    Args:
        texts: strings; for "joint", of both languages.
        kind: "char", "bpe", "joint", "separate" or "word".
        vocab_size: tokens at most in each vocabulary, special tokens included; "char" and "word" keep the most
            frequent, and byte-level BPE has at least 259.
        model_max_length: the model's longest input in tokens, saved with the tokenizer.
        add_eos: whether a text is encoded as `text </s>`, for an encoder-decoder, or as `<s> text`, the prompt of a
            language model. Default: True for "joint" and with `target_texts`.
        padding_side: "right" or "left". Default: "right" with `add_eos`, else "left", which generation needs.
        show_progress: whether to show the library's progress bars.
        target_texts: strings of the target language. "separate" needs them; with "word" they make a second vocabulary.
        min_frequency: "word" knows only words that occur at least this often; the other kinds do not read it.

    Returns:
        The tokenizer; a `SourceTargetTokenizer` with `target_texts`.

    Raises:
        ValueError: the kind is unknown, or needs `target_texts` or does not take them.
    """
    if kind not in KINDS:
        raise ValueError(f"`kind` must be one of {', '.join(KINDS)}; got {kind!r}.")
    takes_targets = kind == "separate" or (kind == "word" and target_texts is not None)
    if takes_targets != (target_texts is not None):
        raise ValueError(f"`target_texts` are for 'separate', which needs them, and 'word'; this is {kind!r}.")
    if add_eos is None:
        add_eos = kind == "joint" or target_texts is not None
    specials = [PAD, BOS, EOS] + ([UNK] if kind in WITH_UNKNOWN else [])

    def train(texts: Iterable[str]) -> Tokenizer:
        if kind == "char":
            tokenizer = _char_tokenizer(texts, vocab_size, specials)
        elif kind == "word":
            tokenizer = _word_tokenizer(texts, vocab_size, specials, min_frequency, show_progress)
        else:
            tokenizer = _byte_level_bpe(texts, vocab_size, specials, kind != "bpe", show_progress)
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"$A {EOS}" if add_eos else f"{BOS} $A",
            pair=f"$A {EOS} $B {EOS}" if add_eos else f"{BOS} $A $B",
            special_tokens=[(token, tokenizer.token_to_id(token)) for token in (BOS, EOS)],
        )
        return tokenizer

    options: dict[str, Any] = {
        "tokenizer_object": train(texts),
        "pad_token": PAD,
        "bos_token": BOS,
        "eos_token": EOS,
        "unk_token": UNK if kind in WITH_UNKNOWN else None,
        "model_max_length": model_max_length,
        "padding_side": padding_side or ("right" if add_eos else "left"),
        "clean_up_tokenization_spaces": False,
    }
    if target_texts is None:
        return PreTrainedTokenizerFast(**options)
    return SourceTargetTokenizer(target_tokenizer_object=train(target_texts), **options)


def target_size(tokenizer: PreTrainedTokenizerBase) -> int:
    """The number of tokens in the target's vocabulary, which is the source's unless there are two."""
    target = getattr(tokenizer, "target_tokenizer", None)
    return len(tokenizer) if target is None else target.get_vocab_size()


def _char_tokenizer(texts: Iterable[str], vocab_size: int, specials: list[str]) -> Tokenizer:
    counts = Counter()
    for text in texts:
        counts.update(text)
    kept = [char for char, _ in counts.most_common(vocab_size - len(specials))]
    tokenizer = split_characters({token: i for i, token in enumerate(specials + sorted(kept))})
    tokenizer.add_special_tokens(specials)
    return tokenizer


def split_characters(vocabulary: dict[str, int]) -> Tokenizer:
    """Make a tokenizer with one token per character of a vocabulary. Others are `<unk>`, or without one an error."""
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNK))
    # "." would not match line breaks
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return tokenizer


def _word_tokenizer(
    texts: Iterable[str], vocab_size: int, specials: list[str], min_frequency: int, show_progress: bool
) -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel(unk_token=UNK))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Metaspace(prepend_scheme="always", split=False),
            # A word or a mark, each with the space before it, which decoding puts back.
            pre_tokenizers.Split(Regex(r"▁?\w+|▁?[^\w▁]|▁"), "isolated"),
        ]
    )
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    trainer = trainers.WordLevelTrainer(
        vocab_size=vocab_size, min_frequency=min_frequency, special_tokens=specials, show_progress=show_progress
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def _byte_level_bpe(
    texts: Iterable[str], vocab_size: int, specials: list[str], prefix_space: bool, show_progress: bool
) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    if prefix_space:
        tokenizer.normalizer = normalizers.Prepend(" ")
        tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=specials,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=show_progress,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def count_unknown(tokenizer: PreTrainedTokenizerBase, texts: Iterable[str], is_target: bool = False) -> Counter:
    """Count each piece of `texts`, a character or word, that a fast tokenizer does not know.

    A byte-level tokenizer knows all. Target texts are read by the second vocabulary, if there is one.
    """
    unknown = Counter()
    if tokenizer.unk_token_id is None:
        return unknown
    backend = (is_target and getattr(tokenizer, "target_tokenizer", None)) or tokenizer.backend_tokenizer
    texts = iter(texts)
    while batch := list(islice(texts, TEXTS_AT_ONCE)):
        encodings = backend.encode_batch(batch, add_special_tokens=False)
        for text, encoding in zip(batch, encodings, strict=True):
            for token_id, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
                if token_id == tokenizer.unk_token_id:
                    unknown[text[start:end].strip() or text[start:end]] += 1
    return unknown


def describe_unknown(
    tokenizer: PreTrainedTokenizerBase, texts: Iterable[str], name: str, is_target: bool = False
) -> list[str]:
    """Say in one sentence what the tokenizer does not know of `texts`, which it calls `name`; none if all is known."""
    texts = tqdm(texts, desc=f"{name}: looking for unknown tokens", delay=1, disable=None)
    unknown = count_unknown(tokenizer, texts, is_target)
    if not unknown:
        return []
    examples = ", ".join(repr(piece) for piece, _ in unknown.most_common(5))
    pieces = "characters" if all(len(piece) == 1 for piece in unknown) else "words"
    return [f"{name}: {unknown.total()} {pieces} are unknown to the tokenizer, e.g. {examples}."]
