# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""One optimiser step of a stock trainer on 32 rows of unequal lengths, on one process or several.

python run_one_step.py BATCH_SIZE OUT LABEL_SMOOTHING ...

Each family takes a step with each smoothing, and its weights go into OUT/FAMILY-SMOOTHING.safetensors.
"""

import os
import sys
import tempfile

import torch
from conftest import FAMILIES
from safetensors.torch import save_file
from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments, Trainer, TrainingArguments


def make_rows(family: str) -> list[dict]:
    """32 rows, padded with -100 in the labels to very unequal lengths."""
    generator = torch.Generator().manual_seed(0)
    rows = []
    for i in range(32):
        length = 2 + (7 * i) % 11 if i < 16 else 12  # the second half has more to predict than the first
        target = torch.randint(3, 60, (12,), generator=generator)
        row = {"input_ids": target.clone(), "labels": target.clone()}
        row["labels"][length:] = -100
        row["attention_mask"] = (torch.arange(12) < length).long()
        if family == "transformer":
            row["input_ids"] = torch.randint(3, 60, (12,), generator=generator)
            # what DataCollatorForSeq2Seq(model=model) adds; label smoothing takes the labels away from the model
            row["decoder_input_ids"] = torch.cat([torch.ones(1, dtype=torch.long), target[:-1]])
        rows.append(row)
    return rows


class InOrder:
    """The rows as they stand, so that every split of the batch holds the same rows."""

    def _get_train_sampler(self, train_dataset=None):
        return torch.utils.data.SequentialSampler(self.train_dataset)


class OrderedTrainer(InOrder, Trainer):
    pass


class OrderedSeq2SeqTrainer(InOrder, Seq2SeqTrainer):
    pass


def one_step(family: str, batch_size: int, accumulation: int, label_smoothing: float) -> dict[str, torch.Tensor]:
    """The weights after one step of plain gradient descent at rate 1: the start minus the gradient."""
    arguments = Seq2SeqTrainingArguments if family == "transformer" else TrainingArguments
    trainer_class = OrderedSeq2SeqTrainer if family == "transformer" else OrderedTrainer
    with tempfile.TemporaryDirectory() as folder:
        trainer = trainer_class(
            model=FAMILIES[family](),
            args=arguments(
                output_dir=folder,
                per_device_train_batch_size=batch_size,
                gradient_accumulation_steps=accumulation,
                label_smoothing_factor=label_smoothing,
                max_steps=1,
                optim="sgd",
                learning_rate=1.0,
                lr_scheduler_type="constant",
                weight_decay=0.0,
                max_grad_norm=0.0,
                save_strategy="no",
                use_cpu=True,
                disable_tqdm=True,
                dataloader_pin_memory=False,
                ddp_find_unused_parameters=False,
            ),
            train_dataset=make_rows(family),
        )
        trainer.train()
    return {name: p.detach().clone() for name, p in trainer.accelerator.unwrap_model(trainer.model).named_parameters()}


if __name__ == "__main__":
    batch_size, out, *smoothings = sys.argv[1:]
    for family in FAMILIES:
        for smoothing in smoothings:
            weights = one_step(family, int(batch_size), 1, float(smoothing))
            if int(os.environ.get("RANK", 0)) == 0:
                save_file(weights, f"{out}/{family}-{smoothing}.safetensors")
