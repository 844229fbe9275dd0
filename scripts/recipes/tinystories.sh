#!/usr/bin/env bash
# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
# The stages that make a GPT like the published one. After an interruption, the same command goes on.
# PYTHON=python scripts/recipes/tinystories.sh DATA RUNS [an option of all trainings ...]

source "$(dirname "$0")/stages.sh"
train() { stage train_language_model "$@" --dataset_name "$data"; }

echo "8 trainings: about 10 hours on one thread of a CPU with 2.35 MB of stories."
train tinystories_small tinystories_small
train tinystories_small_rdrop tinystories_small_rdrop --model_name_or_path "$runs/tinystories_small"
# each story in a row of its own, from here on
train stories_3 tinystories_small_unpacked --model_name_or_path "$runs/tinystories_small_rdrop"
train stories_4 tinystories_small_unpacked --model_name_or_path "$runs/stories_3" --num_train_epochs 4
train stories_5 tinystories_small_unpacked --model_name_or_path "$runs/stories_4" --num_train_epochs 8
train stories_6 tinystories_small_unpacked --model_name_or_path "$runs/stories_5" --num_train_epochs 10
train stories_7 tinystories_small_unpacked --model_name_or_path "$runs/stories_6" --num_train_epochs 12
# with more dropout, and twice R-Drop's share
train stories_8 tinystories_small_unpacked --model_name_or_path "$runs/stories_7" --num_train_epochs 12 --r_drop_alpha 2 \
	--config_overrides embedding_dropout=0.3,hidden_dropout=0.3,attention_dropout=0.3
