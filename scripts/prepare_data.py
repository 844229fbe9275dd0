#!/usr/bin/env python
# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Tokenise the data of a training ahead of time, so that no GPU waits for it.

python scripts/prepare_data.py scripts/recipes/tinystories_full.yaml \\
    --dataset_name roneneldan/TinyStories --output_dir PREPARED
accelerate launch --num_processes 8 scripts/train_language_model.py scripts/recipes/tinystories_full.yaml \\
    --dataset_name PREPARED --output_dir OUT

It takes the arguments of the training script: train_translation.py's if the recipe or the flags have `source_lang` or
`max_source_length`, else train_language_model.py's. What does not concern the data is ignored.
"""

import os

import hf_scratch_launcher  # noqa: F401  before torch, whose OpenMP it sets
from transformers import Seq2SeqTrainingArguments, TrainingArguments

from hf_scratch.data.columns import count_ids
from hf_scratch.errors import command, preparation
from hf_scratch.training.arguments import (
    LanguageModelArguments,
    ModelArguments,
    TranslationArguments,
    check_validation_data,
)
from hf_scratch.training.checkpoints import check_output_dir
from hf_scratch.training.command_line import CommandLine, prepare_logging
from hf_scratch.training.preparation import PairPreparation, TextPreparation


@command
@preparation()
def main():
    line = CommandLine()
    if {"source_lang", "max_source_length"} & line.given:
        preparation_class, data_class, training_class = PairPreparation, TranslationArguments, Seq2SeqTrainingArguments
    else:
        preparation_class, data_class, training_class = TextPreparation, LanguageModelArguments, TrainingArguments
    model_args, data_args, args = line.parse(ModelArguments, data_class, training_class)
    if data_args.streaming:
        raise ValueError("`streaming` reads the data without preparing them. Leave it out to prepare them.")
    prepare_logging(args)
    line.choose_size(model_args, data_args)
    model_args, data_args, args = line.fill()
    check_output_dir(args.output_dir)
    if os.path.isdir(args.output_dir):
        os.rmdir(args.output_dir)  # empty: a complete folder takes its place
    data = preparation_class(model_args, data_args)
    data.run(lambda splits: check_validation_data(args, splits), args.output_dir)
    for name, rows in data.rows.items():
        print(f"{name}: {len(rows):,} rows, {count_ids(rows):,} tokens")
    output_dir = args.output_dir
    print(f"The data are in {output_dir}. Train with `--dataset_name {output_dir}` and the same recipe and options.")


if __name__ == "__main__":
    main()
