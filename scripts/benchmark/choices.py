#!/usr/bin/env python
# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Train the translator with one thing changed at a time, with several seeds: the articles' choices, and levers.

python scripts/benchmark/choices.py --data folder/of/multi30k [--only base,post_norm] [--seeds 1,2] [--write true]

Each run is `train_translation.py multi30k_choices` with the flags of its choice. A run that was interrupted goes on
where it stopped, and runs that are kept already are left out. `--write true` keeps the records of the runs and
writes the table. Two commands with different choices or seeds may share an `output_dir`.
"""

import itertools
import shlex
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from benchmark_tables import CHOICE_RESULTS, ROOT, write_readmes
from choice_tables import LEVERS, RUNS, TEACHER, format_choices

from hf_scratch.errors import UserError, command, preparation
from hf_scratch.loading import hide_folders
from hf_scratch.reporting.records import read_record, read_records, write_record
from hf_scratch.training.arguments import parse_arguments


@dataclass
class ChoiceArguments:
    """The options of choices.py."""

    data: str = field(metadata={"help": "Multi30k: a Hub id or a folder."})
    output_dir: str = field(default="runs/choices", metadata={"help": "Folder of the runs."})
    only: str | None = field(default=None, metadata={"help": f"Some of {', '.join(RUNS)}."})
    seeds: str = field(default="1,2", metadata={"help": "Seeds of each choice."})
    flags: str = field(default="", metadata={"help": "Flags for all runs: '--bf16 true --use_cpu true'."})
    write: bool = field(default=False, metadata={"help": "Keep the records in results/choices; write the tables."})


def train(name: str, seed: str, args: ChoiceArguments) -> None:
    """Run the training of a choice with a seed, unless its record is there.

    Raises:
        UserError: the record is of a run with other flags, or the training has failed.
    """
    folder = Path(args.output_dir) / f"{name}_seed{seed}"
    flags = [*shlex.split(RUNS[name][1].replace(TEACHER, str(ROOT / TEACHER))), *shlex.split(args.flags)]
    for path in (folder / "run.json", CHOICE_RESULTS / f"{folder.name}.json"):
        if path.exists():
            trained = shlex.split(read_record(path)["command"])
            if missing := [flag for flag in flags if hide_folders(flag) not in trained]:
                raise UserError(
                    f"{path} is of a run without {' '.join(missing)}, so it cannot be compared. Choose another "
                    "`output_dir`, or remove the run."
                )
            return
    print(f"{folder}", file=sys.stderr)
    script = [sys.executable, ROOT / "scripts" / "train_translation.py", "multi30k_choices"]
    script += ["--dataset_name", args.data, "--output_dir", folder, "--seed", seed]
    if subprocess.run([*script, "--resume_from_checkpoint", "auto", *flags]).returncode:
        raise UserError(f"The training of {folder} has failed: see its messages above.")


@command
def main() -> None:
    with preparation():
        (args,), _ = parse_arguments(ChoiceArguments)
        names = args.only.replace(" ", "").split(",") if args.only else list(RUNS)
        if unknown := [name for name in names if name not in RUNS]:
            raise UserError(f"`only` is {args.only!r}, but {unknown[0]!r} is none of {', '.join(RUNS)}.")
        Path(args.output_dir).mkdir(parents=True, exist_ok=True)
    for seed, name in itertools.product(args.seeds.split(","), names):
        train(name, seed, args)
    runs = {path.parent.name: read_record(path) for path in sorted(Path(args.output_dir).glob("*_seed*/run.json"))}
    records = read_records(CHOICE_RESULTS) | runs
    if args.write:
        for name, record in runs.items():
            write_record(record, CHOICE_RESULTS / f"{name}.json")
        write_readmes()
    print(f"{format_choices(records)}\n\n{format_choices(records, LEVERS)}")


if __name__ == "__main__":
    main()
