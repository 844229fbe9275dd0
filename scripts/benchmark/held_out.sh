#!/usr/bin/env bash
# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
# A tenth of the training data is held out; the stages of multi30k.sh are trained on the rest, and each option of
# `distilled_again` alone, for fewer updates. After an interruption, the same command goes on.
# PYTHON=python scripts/benchmark/held_out.sh DATA RUNS [an option of all trainings ...]

source "$(dirname "$0")/../recipes/stages.sh"
[ -d "$runs/held_out" ] || "$python" "$scripts/hold_out.py" --dataset_name "$data" --column en --output_dir "$runs/held_out"
echo "8 trainings of 600 updates follow those of multi30k.sh."
# in a folder of their own: stages of the same names have seen all of the data
source "$scripts/recipes/multi30k.sh" "$runs/held_out" "$runs/nine_tenths" "${options[@]}"

again() {
	for seed in 1 2; do
		learn "$1_seed$seed" distilled diversified_again --teacher_models "${three[@]}" \
			--seed $seed --max_steps 600 --save_steps 20 "${@:2}"
	done
}
again as_before
again share --distillation_alpha 0.9
again dropout --config_overrides dropout=0.05
again no_smoothing --label_smoothing_factor 0
