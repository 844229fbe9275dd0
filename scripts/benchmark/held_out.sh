#!/usr/bin/env bash
# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
# A tenth of the training data is held out; the stages of multi30k.sh are trained on the rest, and the levers of the
# last stage one by one. After an interruption, the same command goes on.
# PYTHON=python scripts/benchmark/held_out.sh DATA RUNS [an option of all trainings ...]

source "$(dirname "$0")/../recipes/stages.sh"
[ -d "$runs/held_out" ] || "$python" "$scripts/hold_out.py" --dataset_name "$data" --column en --output_dir "$runs/held_out"
PYTHON=$python bash "$scripts/recipes/multi30k.sh" "$runs/held_out" "$runs" "${options[@]}"

again() {  # the last stage, for less long
	for seed in 1 2; do
		stage train_translation "$1_seed$seed" multi30k_tiny_distilled --dataset_name "$runs/diversified_again" \
			--model_name_or_path "$runs/distilled" --seed $seed --max_steps 600 --save_steps 20 \
			--teacher_models "$runs/multi30k_tiny_rdrop" "$runs/diversified_seed2" "$runs/diversified_seed3" "${@:2}"
	done
}
again as_before
again share --distillation_alpha 0.9
again dropout --config_overrides dropout=0.05
again no_smoothing --label_smoothing_factor 0
again all_three --distillation_alpha 0.9 --config_overrides dropout=0.05 --label_smoothing_factor 0
