#!/usr/bin/env python
# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Train the translator with one thing changed at a time, with several seeds: the articles' choices, and levers.

python scripts/benchmark/choices.py --data folder/of/multi30k [--only base,post_norm] [--seeds 1,2] [--write true]

Each run is `train_translation.py multi30k_choices` with the flags of its choice. A run that was interrupted goes on
where it stopped, and runs that are kept already are left out. `--write true` keeps the records of the runs, draws the
picture and writes the table. Two commands with different choices or seeds may share an `output_dir`.
"""

import math
import shlex
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from choice_tables import LEVERS, METRICS, RUNS, TEACHER, format_choices, metric_values
from plots import plot_choices
from tables import CHOICE_RESULTS, ROOT, update_readmes

from hf_scratch.errors import UserError, command, describe, preparation
from hf_scratch.reporting.records import Record, hide_folders, read_record, write_record
from hf_scratch.training.parsing import parse_arguments


@dataclass
class ChoiceArguments:
    """The options of choices.py."""

    data: str = field(metadata={"help": "Multi30k: a Hub id or a folder."})
    output_dir: str = field(default="runs/choices", metadata={"help": "Folder of the runs."})
    only: str | None = field(default=None, metadata={"help": f"Some of {', '.join(RUNS)}."})
    seeds: str = field(default="1,2", metadata={"help": "Seeds of each choice."})
    flags: str = field(default="", metadata={"help": "Flags for all runs: '--bf16 true --use_cpu true'."})
    write: bool = field(default=False, metadata={"help": "Keep the records in results/choices; picture and table."})


def train(name: str, seed: str, args: ChoiceArguments) -> None:
    """Run the training of a choice with a seed, unless its record is there."""
    folder = Path(args.output_dir) / f"{name}_seed{seed}"
    flags = [*shlex.split(RUNS[name][1].replace(TEACHER, str(ROOT / TEACHER))), *shlex.split(args.flags)]
    for path in (folder / "run.json", CHOICE_RESULTS / f"{folder.name}.json"):
        if path.exists():
            trained = shlex.split(read_run(path)["command"])
            if missing := [flag for flag in flags if hide_folders(flag) not in trained]:
                raise UserError(
                    f"{path} is of a run without {' '.join(missing)}, so it cannot be compared. Choose another "
                    "`output_dir`, or remove the run."
                )
            return
    print(f"{folder}", file=sys.stderr)
    script = [sys.executable, str(ROOT / "scripts" / "train_translation.py")]
    script += [str(ROOT / "scripts" / "recipes" / "multi30k_choices.yaml")]
    script += ["--dataset_name", args.data, "--output_dir", str(folder), "--seed", seed]
    script += ["--resume_from_checkpoint", "auto", *flags]
    if subprocess.run(script).returncode:
        raise UserError(f"The training of {folder} has failed: see its messages above.")


def read_run(path: Path) -> Record:
    """A run's record.

    Raises:
        UserError: it is damaged, or lacks what the table needs.
    """
    try:
        record = read_record(path)
        if not isinstance(record["command"], str):  # shlex would read standard input for None
            raise TypeError(f"its command is {record['command']!r}")
        shlex.split(record["command"])
        numbers = [record[name] for name in ("updates", "epochs", "parameters")]
        numbers += [metric_values([record], metric)[0] for metric in METRICS]
        if not all(math.isfinite(number) for number in numbers):
            raise ValueError(f"not all numbers are finite: {numbers}")
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise UserError(f"{path} is no record of a finished run ({describe(error)}). Remove it.") from error
    return record


def read_runs(output_dir: str) -> tuple[dict[str, Record], dict[str, Record]]:
    """The records in `output_dir`, and those with the kept ones, by name.

    Raises:
        UserError: see `read_run`; or some runs are longer than others.
    """
    runs = {path.parent.name: read_run(path) for path in sorted(Path(output_dir).glob("*_seed*/run.json"))}
    records = {path.stem: read_run(path) for path in sorted(CHOICE_RESULTS.glob("*.json"))} | runs
    if len({record["updates"] for record in records.values()}) > 1:
        counts = ", ".join(f"{name} {record['updates']:,}" for name, record in records.items())
        raise UserError(f"Runs of unequal length cannot be compared; their updates are: {counts}.")
    return runs, records


@command
def main() -> None:
    with preparation():
        (args,), _ = parse_arguments(ChoiceArguments)
        names = args.only.replace(" ", "").split(",") if args.only else list(RUNS)
        if unknown := [name for name in names if name not in RUNS]:
            raise UserError(f"`only` is {args.only!r}, but {unknown[0]!r} is none of {', '.join(RUNS)}.")
        seeds = args.seeds.replace(" ", "").split(",")
        if not all(seed.isascii() and seed.isdecimal() for seed in seeds):
            raise UserError(f"`seeds` is {args.seeds!r}: give numbers and commas, e.g. 1,2.")
        try:
            shlex.split(args.flags)
        except ValueError as error:
            raise UserError(f"`flags` is {args.flags!r}: {error}.") from error
        Path(args.output_dir).mkdir(parents=True, exist_ok=True)
    runs, records = read_runs(args.output_dir)
    for seed in seeds:
        for name in names:
            train(name, seed, args)
            runs, records = read_runs(args.output_dir)
    if args.write:
        CHOICE_RESULTS.mkdir(exist_ok=True)
        for name, record in runs.items():
            write_record(record, CHOICE_RESULTS / f"{name}.json")
        plot_choices(records, CHOICE_RESULTS / "choices.png")
        update_readmes(write=True)
    plot_choices(records, Path(args.output_dir) / "choices.png")
    print(f"{format_choices(records)}\n\n{format_choices(records, LEVERS)}")


if __name__ == "__main__":
    main()
