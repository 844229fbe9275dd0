#!/usr/bin/env python
# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Train the translator with one thing changed at a time, with several seeds: the articles' choices, and levers.

python scripts/benchmark/choices.py --data folder/of/multi30k [--only base,post_norm] [--seeds 1,2] [--write true]

Each run is `train_translation.py multi30k_choices` with the flags of its choice. A run that was interrupted is
resumed, and a run whose record is kept is left out. `--write true` keeps the records of the runs and writes the table.
"""

import itertools
import shlex
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, variance

from measuring import RESULTS, ROOT, ReportArguments, write_tables
from transformers import HfArgumentParser

from hf_scratch.errors import UserError, command
from hf_scratch.manifest import write_json
from hf_scratch.reporting.records import Record, read_record, read_records
from hf_scratch.reporting.tables import format_table

CHOICE_RESULTS = RESULTS / "choices"
BASE = "base"
Choices = dict[str, tuple[str, str]]
# for each name: what differs from the base, and the flags that say so
CHOICES: Choices = {
    BASE: ("the recipe: norm before, label smoothing 0.1, warm-up, sinusoids, tied, dropout 0.3", ""),
    "post_norm": ("norm after the sub-layers, as in the paper", "--config_overrides norm_first=false"),
    "no_label_smoothing": ("no label smoothing", "--label_smoothing_factor 0"),
    "no_warmup": ("no warm-up", "--warmup_steps 0"),
    "learned_positions": ("learned positions", "--config_overrides position_embedding_type=learned"),
    "unscaled_embeddings": ("embeddings not scaled by sqrt(d_model)", "--config_overrides scale_embedding=false"),
    "untied_head": ("a head of its own, not the embeddings", "--config_overrides tie_word_embeddings=false"),
    "normal_init": ("all weights drawn from N(0, 0.02)", "--config_overrides initializer=normal"),
    "xavier_all": ("Xavier for embeddings too", "--config_overrides initializer=xavier_uniform_all"),
    "torch_init": ("torch's own initial weights", "--config_overrides initializer=torch"),
    "gelu": ("GELU for ReLU", "--config_overrides activation_function=gelu"),
    "dropout_01": ("dropout 0.1, as in the paper", "--config_overrides dropout=0.1"),
    "separate_vocabularies": ("a vocabulary for each language", "--tokenizer_kind separate"),
}
TEACHER = "model_cards/scratch-transformer-multi30k-en-de"
# what may make the translator better, in the same form
LEVERS: Choices = {
    "teacher": (
        "distilled from the translator that was published then, the run `r_drop_seed1`",
        f"--teacher_models {TEACHER} --tokenizer_name {TEACHER}",
    ),
    "r_drop": ("R-Drop from the start", "--r_drop_alpha 5"),
    "weight_decay": ("weight decay", "--weight_decay 0.1"),
    "vocab_4000": ("4,000 tokens", "--vocab_size 4000"),
    "vocab_2000": ("2,000 tokens", "--vocab_size 2000"),
    "deeper": (
        "6 + 6 layers, 112 wide",
        "--config_overrides encoder_layers=6,decoder_layers=6,d_model=112,encoder_ffn_dim=224,decoder_ffn_dim=224",
    ),
}
RUNS = CHOICES | LEVERS
# trainings on nine tenths of the training data, by the names of their records
HELD_OUT = {
    "alone": "trained alone",
    "r_drop": "the same, then with R-Drop for as long as the next row",
    "distilled": "trained alone, then on diversified data, with itself as the teacher",
}
# for each metric of the validation set (nothing is chosen by the test set): its title and digits
METRICS = {"loss": ("validation loss", 3), "bleu": ("validation BLEU", 1)}


@dataclass(kw_only=True)
class ChoiceArguments(ReportArguments):
    """The options of choices.py."""

    data: str = field(metadata={"help": "Multi30k: a Hub id or a folder."})
    output_dir: str = field(default="runs/choices", metadata={"help": "Folder of the runs."})
    seeds: str = field(default="1,2", metadata={"help": "Seeds of each choice."})
    flags: str = field(default="", metadata={"help": "Flags for all runs: '--bf16 true --use_cpu true'."})


def train(name: str, seed: str, args: ChoiceArguments) -> None:
    """Run the training of a choice with a seed, unless its record is there. UserError: the training has failed."""
    folder = Path(args.output_dir) / f"{name}_seed{seed}"
    if (folder / "run.json").exists() or (CHOICE_RESULTS / f"{folder.name}.json").exists():
        return
    print(f"{folder}", file=sys.stderr)
    script = [sys.executable, ROOT / "scripts" / "train_translation.py", "multi30k_choices"]
    script += ["--dataset_name", args.data, "--output_dir", folder, "--seed", seed]
    flags = [*shlex.split(RUNS[name][1].replace(TEACHER, str(ROOT / TEACHER))), *shlex.split(args.flags)]
    if subprocess.run([*script, "--resume_from_checkpoint", "auto", *flags]).returncode:
        raise UserError(f"The training of {folder} has failed: see its messages above.")


def format_choices(records: dict[str, Record], choices: Choices = CHOICES) -> str:
    """The table of the choices that have runs, by `name_seed1`, and a paragraph that says what its numbers are.

    The base has a run, and some choice has two: from these, the spread between seeds is known.
    """
    runs, measured = group_by_choice(records, choices), group_by_choice(records, RUNS)
    spreads = {metric: _spread(measured, metric) for metric in METRICS}
    rows = []
    for name, seeds in runs.items():
        what, flags = RUNS[name]
        cells = []
        for metric, (_, digits) in METRICS.items():
            values, base = metric_values(seeds, metric), metric_values(runs[BASE], metric)
            difference = mean(values) - mean(base)
            error = spreads[metric] * (1 / len(values) + 1 / len(base)) ** 0.5
            verdict = ", within the spread" if abs(difference) <= 2 * error else ""
            has_other_tokens = metric == "loss" and any(flag in flags for flag in ("--vocab_size", "--tokenizer_kind"))
            is_compared = name != BASE and not has_other_tokens
            compared = f" ({difference:+.{digits}f}{verdict})" if is_compared else ""
            cells.append(f"{mean(values):.{digits}f}{compared}")
        size, epochs = f"{seeds[0]['parameters'] / 1e6:.2f} M", f"{seeds[0]['epochs']:.1f}"
        rows.append([what, f"`{flags}`" if flags else "", *cells, size, epochs, len(seeds)])
    titles = [title for title, _ in METRICS.values()]
    table = format_table(["choice", "flag", *titles, "parameters", "epochs", "seeds"], rows)
    deviations = " and ".join(
        f"{spreads[metric]:.{digits + 1}f} for {title}" for metric, (title, digits) in METRICS.items()
    )
    repeated = sum(len(seeds) > 1 for seeds in measured.values())
    return (
        f"{table}\n\nMeans over the seeds, {runs[BASE][0]['updates']:,} steps of equally many tokens; longer tokens "
        "make more epochs of them. In brackets: the difference from the first row. Seeds of one choice differ by a "
        f"standard deviation of {deviations}, as {repeated} choices with two seeds show. A difference of less than "
        "two standard errors is within the spread. Losses are in nats per token, without label smoothing; with "
        "another vocabulary the tokens differ, so no difference is given. BLEU is cased (13a), of greedy "
        "translations. Both are of the validation set."
    )


def format_held_out(records: dict[str, Record]) -> str:
    """The table of the trainings on nine tenths of the training data, scored on the tenth that was held out."""
    rows = []
    for name, what in HELD_OUT.items():
        run = records[name]
        validation, test = run["metrics"]["validation"], run["metrics"]["test"]
        loss, minutes = f"{validation['loss']:.3f}", f"{run['minutes']:.0f}"
        rows.append([what, f"{run['updates']:,}", minutes, loss, test["bleu"], test["bleu_moses"], test["chrf"]])
    scores = [f"held-out {score}" for score in ("BLEU", "Moses", "chrF")]
    head = ["training", "steps", "minutes", "validation loss", *scores]
    return format_table(head, rows)


def group_by_choice(records: dict[str, Record], choices: Choices) -> dict[str, list[Record]]:
    """The runs of the base and of each choice that has some."""
    names = dict.fromkeys([BASE, *choices])
    runs = {name: [record for key, record in records.items() if key.rpartition("_seed")[0] == name] for name in names}
    return {name: seeds for name, seeds in runs.items() if seeds}


def metric_values(runs: list[Record], metric: str) -> list[float]:
    """Each run's value of a metric of the validation set."""
    return [run["metrics"]["validation"][metric] for run in runs]


def _spread(runs: dict[str, list[Record]], metric: str) -> float:
    """The standard deviation between seeds of the same choice, over all choices."""
    return mean([variance(metric_values(seeds, metric)) for seeds in runs.values() if len(seeds) > 1]) ** 0.5


@command
def main() -> None:
    (args,) = HfArgumentParser(ChoiceArguments).parse_args_into_dataclasses()
    for seed, name in itertools.product(args.seeds.split(","), args.choose(RUNS)):
        train(name, seed, args)
    runs = {path.parent.name: read_record(path) for path in sorted(Path(args.output_dir).glob("*_seed*/run.json"))}
    if args.write:
        for name, record in runs.items():
            write_json(record, CHOICE_RESULTS / f"{name}.json")
        write_tables()
    records = read_records(CHOICE_RESULTS) | runs
    print(f"{format_choices(records)}\n\n{format_choices(records, LEVERS)}")


if __name__ == "__main__":
    main()
