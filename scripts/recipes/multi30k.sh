#!/usr/bin/env bash
# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
# The stages that make a translator like the published one. After an interruption, the same command goes on.
# PYTHON=python scripts/recipes/multi30k.sh DATA RUNS [an option of all trainings ...]

source "$(dirname "${BASH_SOURCE[0]}")/stages.sh"
train() { stage train_translation "$@"; }
diversify() {
	[ -d "$runs/$1" ] && return  # it appears when it is complete
	"$python" "$scripts/diversify.py" --dataset_name "$data" --output_dir "$runs/$1" --models "${@:2}"
}

echo "7 trainings and 2 translations of the training data: about 8 hours on one thread of a CPU."
train multi30k_tiny multi30k_tiny --dataset_name "$data"
train multi30k_tiny_rdrop multi30k_tiny_rdrop --dataset_name "$data" --model_name_or_path "$runs/multi30k_tiny"
# the way back, from the weights of the first translator
train way_back multi30k_tiny_back --dataset_name "$data" --model_name_or_path "$runs/multi30k_tiny_rdrop"
# translations in both directions, added to the data
diversify diversified "$runs/multi30k_tiny_rdrop" "$runs/way_back"
# two new translators, from scratch
for seed in 2 3; do
	train diversified_seed$seed multi30k_tiny_diversified --dataset_name "$runs/diversified" --seed $seed \
		--tokenizer_name "$runs/multi30k_tiny" --config_overrides dropout=0.$((seed - 1))
done
# their translations, added to the data
diversify diversified_again "$runs/way_back" "$runs/diversified_seed2" "$runs/diversified_seed3"
# the first goes on, and learns from all three
learn() {
	train "$1" multi30k_tiny_distilled --dataset_name "$runs/diversified_again" --model_name_or_path "$runs/$2" \
		--teacher_models "$runs/multi30k_tiny_rdrop" "$runs/diversified_seed2" "$runs/diversified_seed3" "${@:3}"
}
learn distilled multi30k_tiny_rdrop
# and again, for longer and with less dropout
learn distilled_again distilled --max_steps 2000 --distillation_alpha 0.9 --label_smoothing_factor 0 \
	--config_overrides dropout=0.05
