# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Masked language modelling: the rows, and the collator that masks some tokens (BERT, Devlin et al. 2019)."""

import zlib
from typing import Any

import pyarrow as pa
import torch
from datasets import Dataset, Features, List
from torch.nn.utils.rnn import pad_sequence
from transformers import DataCollatorForLanguageModeling

from .columns import Encoder, encode_rows, id_type
from .texts import encode_texts, end_id


class TextSplitter(Encoder):
    """Tokenises a batch of texts into rows: see `split_texts`."""

    def __init__(self, tokenizer, block_size: int):
        self.tokenizer, self.block_size, self.end_id = tokenizer, block_size, end_id(tokenizer)
        self.features = Features({"input_ids": List(id_type(tokenizer))})

    def __call__(self, batch: dict) -> pa.Table:
        """Return the rows of a batch of texts."""
        rows, size = [], self.block_size
        for ids in encode_texts(self.tokenizer, batch["text"]):
            ids = [*ids, self.end_id]
            rows += [ids[begin : begin + size] for begin in range(0, len(ids), size)]
        return pa.table({"input_ids": rows}, schema=self.features.arrow_schema)


def split_texts(
    texts: Dataset,
    tokenizer,
    block_size: int,
    name: str = "the data",
    num_proc: int | None = None,
    cache_file_name: str | None = None,
) -> Dataset:
    """Tokenise texts, each as `<s> text </s>`. A text longer than `block_size` becomes several rows.

    A row never holds two texts: an encoder sees all of its row.

    Args:
        texts: rows with the column "text".
        tokenizer: encodes a text as `<s> text`.
        block_size: tokens per row at most.
        name: what the progress bar calls the texts.
        num_proc: processes; the result does not depend on them. Default: all cores.
        cache_file_name: the file for the rows. Default: one in the cache of datasets.

    Returns:
        Rows of `input_ids`, a list of 1 to `block_size` ints, of two bytes each where the vocabulary allows.

    Raises:
        ValueError: the tokenizer has no token that ends a text.
    """
    return encode_rows(texts, TextSplitter(tokenizer, block_size), name, num_proc, cache_file_name)


class MaskingCollator(DataCollatorForLanguageModeling):
    """Pads rows to a batch and masks some tokens, as transformers' collator does, for a model that shifts no labels.

    A masked token is `<mask>` in 8 of 10 cases, a random token in 1, and unchanged in 1. Only masked tokens have
    labels. At least one token of a row is masked, unless all are special tokens.

    A row's masks follow from its tokens and the epoch: they are the same in each evaluation, at any batch size, after
    resuming, and on any number of processes. Our trainers set the epoch. Under another trainer, call `set_epoch`, or
    each epoch masks the same tokens.

    Args:
        tokenizer: has a mask token and a padding token.
        mlm_probability: share of the tokens that is masked; special tokens never are.
    """

    epoch = 0

    def torch_call(self, examples: list[Any]) -> dict[str, torch.Tensor]:
        """Make a batch of `input_ids`, `attention_mask` and `labels`, each (rows, longest row)."""
        rows = [self._mask_row(torch.tensor(row["input_ids"])) for row in examples]
        inputs, targets = map(list, zip(*rows, strict=True))
        input_ids = pad_sequence(inputs, batch_first=True, padding_value=self.tokenizer.pad_token_id)
        labels = pad_sequence(targets, batch_first=True, padding_value=-100)
        mask = pad_sequence([torch.ones_like(ids) for ids in inputs], batch_first=True)
        return {"input_ids": input_ids, "attention_mask": mask, "labels": labels}

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch, each of which masks other tokens."""
        self.epoch = epoch

    def _mask_row(self, input_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Mask a row. Where chance masks none, mask one token: a batch without labels has no loss."""
        seed = zlib.crc32(input_ids.numpy().tobytes(), self.epoch % 2**32)
        self.generator = torch.Generator().manual_seed(seed)
        masked, labels = (row[0] for row in self.torch_mask_tokens(input_ids.clone()[None]))
        if (labels == -100).all():
            special = self.tokenizer.get_special_tokens_mask(input_ids.tolist(), None, True)
            places = (torch.tensor(special) == 0).nonzero()
            if len(places):
                place = places[torch.randint(len(places), (), generator=self.generator)]
                labels[place] = input_ids[place]
                masked[place] = self.tokenizer.mask_token_id
        return masked, labels
