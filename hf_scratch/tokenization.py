# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Train tokenizers with the tokenizers library. `AutoTokenizer` loads them without any code of ours.

There are three kinds: "char" (one token per character), "bpe" (byte-level BPE, lossless on any text) and "joint"
(byte-level BPE for source and target together, for translation). All have the special tokens `<pad>`, `<s>` and
`</s>`. "char" also has `<unk>`, since only a byte-level vocabulary covers every text.

"joint" puts a space before a text, and removes it when it decodes, so that a word is the same token at the start of a
text as inside it. transformers' streamers decode each line by itself, so a streamed line loses its leading space;
`decode` of the whole output keeps it.
"""

import logging
from collections import Counter
from collections.abc import Iterable

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

logger = logging.getLogger(__name__)

PAD, BOS, EOS, UNK = "<pad>", "<s>", "</s>", "<unk>"
KINDS = ("char", "bpe", "joint")


def train_tokenizer(
    texts: Iterable[str],
    kind: str,
    vocab_size: int = 8000,
    model_max_length: int = 512,
    add_eos: bool | None = None,
    padding_side: str | None = None,
    show_progress: bool = True,
) -> PreTrainedTokenizerFast:
    """Train a tokenizer on `texts`.

    Args:
        texts: strings; for "joint", those of both languages.
        kind: "char", "bpe" or "joint".
        vocab_size: tokens at most, special tokens included; "char" keeps the most frequent characters.
        model_max_length: the model's longest input in tokens, saved with the tokenizer.
        add_eos: whether a text is encoded as `text </s>`, for an encoder-decoder, or as `<s> text`, the prompt of a
            language model. Default: True for "joint".
        padding_side: "right" or "left". Default: "right" with `add_eos`, else "left", which generation needs.
        show_progress: whether to show the library's progress bars.

    Raises:
        ValueError: the kind is unknown, there is no text, or `vocab_size` is too small for the alphabet.
    """
    if kind not in KINDS:
        raise ValueError(f"`kind` must be one of {', '.join(KINDS)}; got {kind!r}.")
    if add_eos is None:
        add_eos = kind == "joint"
    texts = list(texts)
    if not any(texts):
        raise ValueError("There is no text to train a tokenizer on: `texts` is empty.")
    specials = [PAD, BOS, EOS] + ([UNK] if kind == "char" else [])
    # byte-level BPE needs a token for each of the 256 bytes
    smallest = len(specials) + (1 if kind == "char" else 256)
    if vocab_size < smallest:
        raise ValueError(f"`vocab_size` is {vocab_size}; a {kind!r} tokenizer needs at least {smallest}.")

    if kind == "char":
        tokenizer = _char_tokenizer(texts, vocab_size, specials)
    else:
        tokenizer = _byte_level_bpe(texts, vocab_size, specials, kind == "joint", show_progress)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {EOS}" if add_eos else f"{BOS} $A",
        pair=f"$A {EOS} $B {EOS}" if add_eos else f"{BOS} $A $B",
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in (BOS, EOS)],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        bos_token=BOS,
        eos_token=EOS,
        unk_token=UNK if kind == "char" else None,
        model_max_length=model_max_length,
        padding_side=padding_side or ("right" if add_eos else "left"),
        clean_up_tokenization_spaces=False,
    )


def _char_tokenizer(texts: list[str], vocab_size: int, specials: list[str]) -> Tokenizer:
    counts = Counter()
    for text in texts:
        counts.update(text)
    kept = [char for char, _ in counts.most_common(vocab_size - len(specials))]
    tokenizer = Tokenizer(models.WordLevel({t: i for i, t in enumerate(specials + sorted(kept))}, unk_token=UNK))
    tokenizer.add_special_tokens(specials)
    # "." would not match line breaks
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return tokenizer


def _byte_level_bpe(
    texts: list[str], vocab_size: int, specials: list[str], prefix_space: bool, show_progress: bool
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
    tokenizer.train_from_iterator(texts, trainer, length=len(texts))
    return tokenizer


def count_unknown(tokenizer: PreTrainedTokenizerFast, texts: Iterable[str]) -> Counter:
    """Count the characters of `texts` that the tokenizer does not know.

    Args:
        tokenizer: a fast tokenizer.
        texts: the texts.

    Returns:
        How often each such character occurs; empty for a byte-level tokenizer.
    """
    unknown = Counter()
    if tokenizer.unk_token_id is None:
        return unknown
    texts = list(texts)
    encodings = tokenizer.backend_tokenizer.encode_batch(texts, add_special_tokens=False)
    for text, encoding in zip(texts, encodings, strict=True):
        for token_id, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
            if token_id == tokenizer.unk_token_id:
                unknown.update(text[start:end])
    return unknown


def report_unknown(tokenizer: PreTrainedTokenizerFast, texts: Iterable[str], name: str) -> int:
    """Log a warning if the tokenizer does not know all characters of `texts`.

    Args:
        tokenizer: a fast tokenizer.
        texts: the texts.
        name: what the warning calls the texts.

    Returns:
        How many characters are unknown.
    """
    unknown = count_unknown(tokenizer, texts)
    if unknown:
        examples = ", ".join(repr(char) for char, _ in unknown.most_common(5))
        logger.warning(f"{name}: {unknown.total()} characters are unknown to the tokenizer, e.g. {examples}.")
    return unknown.total()
