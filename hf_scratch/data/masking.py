# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Masked language modelling: the collator that masks some tokens (BERT, Devlin et al. 2019)."""

import zlib
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import DataCollatorForLanguageModeling


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
