#!/usr/bin/env python
# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Tokenise the data of a training ahead of time, so that no GPU waits for it.

python scripts/prepare_data.py scripts/recipes/tinystories_full.yaml \\
    --dataset_name roneneldan/TinyStories --output_dir PREPARED
accelerate launch --num_processes 8 scripts/train_language_model.py scripts/recipes/tinystories_full.yaml \\
    --dataset_name PREPARED --output_dir OUT

The arguments are those of the training script: train_translation.py's if the recipe or the flags have one that
train_language_model.py does not have. What does not concern the data is ignored.
"""

import os
from dataclasses import fields

import hf_scratch_launcher  # noqa: F401  before torch, whose OpenMP it sets
from transformers import Seq2SeqTrainingArguments, TrainingArguments

from hf_scratch.data.columns import count_ids
from hf_scratch.errors import command, preparation
from hf_scratch.loading import require_output_dir
from hf_scratch.training.checkpoints import check_output_dir
from hf_scratch.training.parsing import given_arguments, parse_arguments
from hf_scratch.training.preparation import PairPreparation, TextPreparation
from hf_scratch.training.script_arguments import LanguageModelArguments, ModelArguments, TranslationArguments
from hf_scratch.training.training_arguments import check_validation_data, prepare_arguments


@command
@preparation()
def main():
    of_texts = {field.name for cls in (LanguageModelArguments, TrainingArguments) for field in fields(cls)}
    of_pairs = {field.name for cls in (TranslationArguments, Seq2SeqTrainingArguments) for field in fields(cls)}
    is_translation = bool(given_arguments() & (of_pairs - of_texts))
    data_class = TranslationArguments if is_translation else LanguageModelArguments
    training_class = Seq2SeqTrainingArguments if is_translation else TrainingArguments
    (model_args, data_args, args), _ = parse_arguments(ModelArguments, data_class, training_class)
    if data_args.streaming:
        raise ValueError("`streaming` reads the data without preparing them. Leave it out to prepare them.")
    prepare_arguments(args)
    output_dir = require_output_dir(args)
    check_output_dir(output_dir)
    if os.path.isdir(output_dir):
        os.rmdir(output_dir)  # empty: a complete folder takes its place
    data = (PairPreparation if is_translation else TextPreparation)(model_args, data_args)
    data.run(lambda splits: check_validation_data(args, splits), output_dir)
    for name, rows in data.rows.items():
        print(f"{name}: {len(rows):,} rows, {count_ids(rows):,} tokens")
    print(f"The data are in {output_dir}. Train with `--dataset_name {output_dir}` and the same recipe and options.")


if __name__ == "__main__":
    main()
