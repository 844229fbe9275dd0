#!/usr/bin/env bash
# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
# transformers' GPT-2 under the stock Trainer, through the stages of ../recipes/tinystories.sh with their dropout, decay,
# rates and rows. There is no R-Drop, which shows each batch twice: the stages that have it there have twice the epochs.
# After an interruption, the same command goes on.
# PYTHON=python scripts/benchmark/stock_gpt2.sh DATA RUNS [an option of all trainings ...]

source "$(dirname "$0")/../recipes/stages.sh"
train() {
	stage train_stock_gpt2 "$1" stock_gpt2 --dataset_name "$data" --optim adamw_torch_fused --adam_beta2 0.98 \
		--tokenizer_name "$scripts/../model_cards/scratch-gpt-tinystories" \
		--config_overrides resid_pdrop=0.2,embd_pdrop=0.2,attn_pdrop=0.2 "${@:2}"
}
again() {  # a name, the stage before, epochs, weight decay
	train "$1" --model_name_or_path "$runs/$2" --num_train_epochs "$3" --weight_decay "$4" --learning_rate 5e-4 \
		--warmup_steps 50 "${@:5}"
}
unpacked() { again "${@:1:3}" 1.0 --packing false --train_sampling_strategy group_by_length "${@:4}"; }

echo "8 trainings, 120 epochs of about 6 minutes on one thread of a CPU with 2.35 MB of stories."
train stock_1 --num_train_epochs 14 --weight_decay 0.1
again stock_2 stock_1 8 0.3
unpacked stock_3 stock_2 6
unpacked stock_4 stock_3 8
unpacked stock_5 stock_4 16
unpacked stock_6 stock_5 20
unpacked stock_7 stock_6 24
unpacked stock_8 stock_7 24 --config_overrides resid_pdrop=0.3,embd_pdrop=0.3,attn_pdrop=0.3
