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

echo "9 trainings and 3 translations of the training data: about 14 hours on one thread of a CPU."
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
three=("$runs/multi30k_tiny_rdrop" "$runs/diversified_seed2" "$runs/diversified_seed3")
learn() {  # a name, the stage before, the data
	train "$1" multi30k_tiny_distilled --model_name_or_path "$runs/$2" --dataset_name "$runs/$3" "${@:4}"
}
from_teachers=(--distillation_alpha 0.9 --label_smoothing_factor 0)
learn distilled multi30k_tiny_rdrop diversified_again --teacher_models "${three[@]}"
# and again, for longer and with less dropout
learn distilled_again distilled diversified_again --teacher_models "${three[@]}" \
	--max_steps 2000 "${from_teachers[@]}" --config_overrides dropout=0.05
# a model of twice the width, from scratch, learns from it and from the two
train wider multi30k_tiny_diversified --dataset_name "$runs/diversified_again" --tokenizer_name "$runs/multi30k_tiny" \
	--teacher_models "$runs/distilled_again" "$runs/diversified_seed2" "$runs/diversified_seed3" "${from_teachers[@]}" \
	--config_overrides d_model=256,encoder_ffn_dim=512,decoder_ffn_dim=512 \
	--learning_rate 2.5e-3 --warmup_steps 400 --max_steps 6000 --save_steps 100
# and the first from that one alone, for longer still
diversify diversified_wider "$runs/distilled_again" "$runs/wider" "$runs/way_back"
learn distilled_wider distilled_again diversified_wider --teacher_models "$runs/wider" \
	--max_steps 4000 "${from_teachers[@]}" --config_overrides dropout=0.05
