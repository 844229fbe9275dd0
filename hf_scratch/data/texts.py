# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Texts for language modelling: take their column, and pack them into rows of one length."""

from collections.abc import Sequence
from itertools import chain

import numpy as np
import pyarrow as pa
import torch
from datasets import Dataset, Features, List, Value

from .columns import Encoder, check_columns, check_texts, encode_rows, id_type


def take_texts(
    rows: Dataset, text_column: str = "text", name: str = "the data", prompt_column: str | None = None
) -> Dataset:
    """Take the column of texts out of `rows`, and with `prompt_column` the prompts that the texts answer.

    Args:
        rows: the rows.
        text_column: the column's name.
        name: what errors call the rows.
        prompt_column: the name of the column with the prompts.

    Returns:
        Rows with the column "text". With prompts, "text" is the prompt followed by its answer, and there are two more
        columns, "prompt" and "answer".

    Raises:
        ValueError: there is no such column, or a row has no text or something else in it.
    """
    wanted = {"text_column": text_column} | ({} if prompt_column is None else {"prompt_column": prompt_column})
    check_columns(rows.column_names, name, **wanted)
    for column in wanted.values():
        check_texts(rows, column, name)
    if prompt_column is not None:
        prompts, answers = list(rows[prompt_column]), list(rows[text_column])
        texts = [prompt + answer for prompt, answer in zip(prompts, answers, strict=True)]
        return Dataset.from_dict({"text": texts, "prompt": prompts, "answer": answers})
    texts = rows.select_columns([text_column])
    return texts if text_column == "text" else texts.rename_column(text_column, "text")


def end_id(tokenizer) -> int:
    """The id that ends a text: the tokenizer's end token, or BERT's separator in a tokenizer without one.

    Raises:
        ValueError: the tokenizer has neither.
    """
    for token_id in (tokenizer.eos_token_id, tokenizer.sep_token_id):
        if token_id is not None:
            return token_id
    raise ValueError("The tokenizer has no token that ends a text. Set its `eos_token`.")


def encode_texts(tokenizer, texts: Sequence[str]) -> list[list[int]]:
    """Encode each text as `<s> text`, without an end token: the caller decides where texts end.

    BERT's tokenizers append their separator; it is removed.
    """
    encoded = tokenizer(list(texts), verbose=False, return_attention_mask=False)["input_ids"]
    if tokenizer.eos_token_id is None and tokenizer.sep_token_id is not None:
        return [ids[:-1] if ids[-1:] == [tokenizer.sep_token_id] else ids for ids in encoded]
    return encoded


def padding_id(tokenizer) -> int:
    """The id that fills rows up, where nothing is predicted: the padding token, or else the one that ends a text."""
    return end_id(tokenizer) if tokenizer.pad_token_id is None else tokenizer.pad_token_id


class TextPacker(Encoder):
    """Packs a batch of texts into rows: see `pack_texts`. Rows of one text overlap by a token, or by none.

    No row has the end token alone.
    """

    def __init__(self, tokenizer, block_size: int, has_prompts: bool = False, packing: bool = True, overlap: int = 1):
        self.tokenizer, self.block_size, self.end_id = tokenizer, block_size, end_id(tokenizer)
        self.packing, self.overlap = packing, overlap
        self.features = Features({"input_ids": List(id_type(tokenizer))})
        if has_prompts:
            self.features["is_predicted"] = List(Value("bool"))

    def __call__(self, batch: dict) -> pa.Table:
        """Return the rows of a batch of texts. The last row of the batch, or else of each text, is shorter."""
        # texts may be longer than a row: no warning
        prompts = encode_texts(self.tokenizer, batch.get("prompt", batch["text"]))
        answers = [[]] * len(prompts)
        if "prompt" in batch:
            answers = self.tokenizer(batch["answer"], add_special_tokens=False, verbose=False)["input_ids"]
        ids = [[*row, *answer, self.end_id] for row, answer in zip(prompts, answers, strict=True)]
        columns = {"input_ids": ids}
        if "prompt" in batch:
            lengths = zip(map(len, prompts), map(len, ids), strict=True)
            columns["is_predicted"] = [[i >= prompt for i in range(length)] for prompt, length in lengths]
        if self.packing:
            columns = {column: [list(chain.from_iterable(parts))] for column, parts in columns.items()}
        size, overlap = self.block_size, self.overlap
        rows = {
            column: [part[i : i + size] for part in parts for i in range(0, max(len(part) - 1, 1), size - overlap)]
            for column, parts in columns.items()
        }
        return pa.table(rows, schema=self.features.arrow_schema)


def pack_texts(
    texts: Dataset, tokenizer, block_size: int, num_proc: int | None = None, packing: bool = True
) -> Dataset:
    """Pack texts, each as `<s> text </s>`, end to end into rows of `block_size` tokens. Nothing is dropped.

    A row begins with the last token of the row before, so that every token is predicted exactly once. The last row of
    each 1,000 texts is shorter, so that a large set streams through memory. `PackedTextsCollator` makes batches.

    Packing cuts most texts, and what follows a cut is learnt without what came before it. Without packing, only texts
    longer than a row are cut.

    Args:
        texts: rows as `take_texts` returns them. Prompts are not predicted.
        tokenizer: encodes a text as `<s> text`. A prompt and its answer are encoded apart. `</s>` is the tokenizer's
            end token, or BERT's `[SEP]` in a tokenizer without one.
        block_size: tokens per row.
        num_proc: processes; the result does not depend on them. Default: all cores.
        packing: whether rows hold several texts. If not, each text begins a row of its own.

    Returns:
        Rows of `input_ids`, a list of at most `block_size` ints, of two bytes each where the vocabulary allows; of
        texts with prompts also `is_predicted`, a list of bools.

    Raises:
        ValueError: the tokenizer has no token that ends a text.
    """
    pack = TextPacker(tokenizer, block_size, "prompt" in texts.column_names, packing)
    return encode_rows(texts, pack, "texts", num_proc)


class PackedTextsCollator:
    """Makes batches of the rows of `pack_texts`.

    Args:
        tokenizer: the one that the texts were packed with.
        block_size: tokens per row. Shorter rows are padded, so that all batches have one length. None: rows are
            padded to the longest of the batch.
        attend_across_texts: whether the texts in a row see each other. If not, `position_ids` start again at 0 with
            each text, and a text's first token is not predicted. transformers makes a mask of these positions that
            keeps texts apart, but only without a cache: our trainers set `use_cache` to False. Every end token ends a
            text, even one inside a document.
    """

    def __init__(self, tokenizer, block_size: int | None, attend_across_texts: bool = False):
        self.pad_id, self.end_id = padding_id(tokenizer), end_id(tokenizer)
        self.block_size, self.attend_across_texts = block_size, attend_across_texts

    def __call__(self, rows: Sequence[dict]) -> dict[str, torch.Tensor]:
        """Make a batch of `input_ids`, `labels` and, unless `attend_across_texts`, `position_ids`.

        Each is (rows, tokens per row). `labels` are -100 where nothing is predicted, as in the padding.
        """
        lengths = np.array([len(row["input_ids"]) for row in rows])
        size = self.block_size or lengths.max()
        input_ids = np.full((len(rows), size), self.pad_id)
        is_predicted = np.zeros(input_ids.shape, dtype=bool)
        for row, length, ids, targets in zip(rows, lengths, input_ids, is_predicted, strict=True):
            ids[:length], targets[:length] = row["input_ids"], row.get("is_predicted", True)
        is_predicted[:, 0] = False  # no token of the row comes before it
        batch = {"input_ids": input_ids}
        if not self.attend_across_texts:
            positions = np.arange(size)
            is_first = np.zeros_like(is_predicted)
            is_first[:, 1:] = input_ids[:, :-1] == self.end_id
            is_predicted &= ~is_first
            starts = np.maximum.accumulate(np.where(is_first, positions, 0), axis=1)
            batch["position_ids"] = np.where(positions < lengths[:, None], positions - starts, 0)
        batch["labels"] = np.where(is_predicted, input_ids, -100)
        return {name: torch.from_numpy(numbers) for name, numbers in batch.items()}
