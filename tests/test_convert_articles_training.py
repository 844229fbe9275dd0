# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""A converted article under Trainer learns as under the article's own loop."""

import article_reference as reference
import pytest
import torch
from conftest import ROOT
from test_convert_articles import ARTICLES, MEDIUM, draw, make_article, randomise
from torch import nn
from transformers import TrainingArguments

from hf_scratch.convert import from_article
from hf_scratch.recipes import read_recipe
from hf_scratch.training.trainers import LanguageModelTrainer

RECIPES = ROOT / "scripts" / "recipes"
STEPS = 20


class KeptLosses(LanguageModelTrainer):
    """Keeps each step's loss, unrounded."""

    losses: list[float]

    def compute_loss(self, *args, **kwargs):
        loss = super().compute_loss(*args, **kwargs)
        self.losses.append(loss.item())
        return loss


def train_by_recipe(model, recipe: str, rows: list[dict], folder) -> list[float]:
    """The losses of twenty steps of four rows under Trainer with the optimiser of a recipe."""
    recipe = read_recipe(RECIPES / recipe)
    optimiser = {
        name: recipe[name] for name in recipe if name.startswith(("adam", "optim", "weight_decay", "max_grad"))
    }
    args = TrainingArguments(
        folder, learning_rate=recipe["learning_rate"], lr_scheduler_type="constant", per_device_train_batch_size=4,
        num_train_epochs=1, report_to="none", save_strategy="no", disable_tqdm=True, use_cpu=True,
        dataloader_pin_memory=False, train_sampling_strategy="sequential", **optimiser,
    )  # fmt: skip
    decay_all = recipe.get("decay_all_parameters", False)
    trainer = KeptLosses(model=model, args=args, train_dataset=rows, decay_all_parameters=decay_all)
    trainer.losses = []
    trainer.train()
    return trainer.losses


def train_as_the_article(model, optimizer, step) -> list[float]:
    model.train()
    losses = []
    for index in range(STEPS):
        loss = step(slice(4 * index, 4 * index + 4))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_trainer_gives_the_losses_of_annotated_seq2seqs_own_loop(tmp_path):
    hyperparameters = {**ARTICLES["annotated-seq2seq"][2], "eps": 1e-6}
    theirs = randomise(make_article("annotated-seq2seq", hyperparameters))
    model = from_article("annotated-seq2seq", theirs.state_dict(), **hyperparameters, dropout=0.0)
    pad_id = hyperparameters["pad_id"]
    src = draw(70, (4 * STEPS, 9), seed=1)
    labels = draw(80, (4 * STEPS, 7), seed=2)
    src[1::2, 6:], labels[::3, 5:] = pad_id, pad_id
    trg, out = labels[:, :-1], labels[:, 1:]

    def step(rows):
        masks = (src[rows] != pad_id)[:, None], (trg[rows] != pad_id)[:, None] & reference.causal(6)
        logits = theirs(src[rows], trg[rows], *masks)
        return nn.functional.cross_entropy(logits.flatten(0, 1), out[rows].flatten(), ignore_index=pad_id)

    batch = {
        "input_ids": src, "attention_mask": (src != pad_id).long(), "decoder_input_ids": trg,
        "labels": out.masked_fill(out == pad_id, -100),
    }  # fmt: skip
    rows = [{name: tensor[i] for name, tensor in batch.items()} for i in range(len(src))]
    losses = train_by_recipe(model, "multi30k_article.yaml", rows, tmp_path)
    adam = torch.optim.Adam(theirs.parameters(), lr=1e-5, betas=(0.9, 0.98))
    expected = train_as_the_article(theirs, adam, step)
    assert losses == pytest.approx(expected, abs=1e-4)
    assert len({round(loss, 3) for loss in losses}) > 10


def test_trainer_gives_the_losses_of_tinystories_notes_own_loop(tmp_path):
    theirs = randomise(make_article("tinystories-notes", MEDIUM["tinystories-notes"]))
    model = from_article("tinystories-notes", theirs.state_dict(), **MEDIUM["tinystories-notes"])
    ids = draw(40, (4 * STEPS, 16), seed=1)

    def step(rows):
        logits = theirs(ids[rows, :-1])
        return nn.functional.cross_entropy(logits.flatten(0, 1), ids[rows, 1:].flatten())

    rows = [{"input_ids": row, "labels": row} for row in ids]
    losses = train_by_recipe(model, "tinystories_article.yaml", rows, tmp_path)
    expected = train_as_the_article(theirs, torch.optim.AdamW(theirs.parameters(), lr=1e-3), step)
    assert losses == pytest.approx(expected, abs=1e-4)
    assert losses[-1] < 0.9 * losses[0]
