# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
# What multi30k.sh and tinystories.sh share: SCRIPT DATA RUNS [an option of all trainings ...]
# DATA is a folder or a Hub id; RUNS is a folder for the runs. A stage that ended has the mark RUNS/NAME.done; one that
# was cut is resumed. $PYTHON runs all of them.
set -euo pipefail
scripts=$(cd "$(dirname "$0")/.." && pwd)
data=$1 runs=$2
options=("${@:3}")
python=${PYTHON:-python}
mkdir -p "$runs"

stage() {  # a training script, the stage's name, and its options
	[ -e "$runs/$2.done" ] && return
	"$python" "$scripts/$1.py" "${@:3}" "${options[@]}" --output_dir "$runs/$2" --resume_from_checkpoint auto
	touch "$runs/$2.done"
}
