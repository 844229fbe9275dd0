# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""The benchmarks' tables, from the JSON that commands keep in `results/`: a folder per command, a file per machine.

A file holds `machine` (what was measured on), `rows` and, of benchmark.py, `growth`: one entry per size of a model.
"""

import difflib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from choice_tables import LEVERS, format_choices, format_held_out
from report import Report

from hf_scratch.reporting.records import read_records
from hf_scratch.reporting.tables import format_table

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
RESULTS = FOLDER / "results"
CHOICE_RESULTS = RESULTS / "choices"  # of choices.py
HELD_OUT_RESULTS = RESULTS / "held_out" / "records"  # of trainings on nine tenths of the data
FORMATS = {
    "s": "{:.3f} s".format,
    "MiB": "{:,.0f} MiB".format,
    "s per token": lambda seconds: f"{1 / seconds:,.0f} tokens/s",
}
HIGHLIGHTS = ["train_end_to_end", "generate_gpt", "translate_marian"]  # the rows of /README.md
Figures = dict[str, Any]


def finish(report: Report, args: Any, name: str, format_figures: Callable[[Figures], str]) -> None:
    """Write a command's figures and print its table; with `--write true`, keep the figures and write the READMEs.

    `name` is that of the command and of its folder in `results/`.
    """
    report.save(Path(args.output_dir, f"{name}.json"))
    if args.write:
        report.save(RESULTS / name / file_name(report.figures["machine"]))
        write_readmes()
    print(f"{format_figures(report.figures)}\n\n{describe_machine(report.figures['machine'])}")


def read_reports(name: str) -> list[Figures]:
    """A command's figures of all machines, in the alphabetical order of their files."""
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted((RESULTS / name).glob("*.json"))]


def measured_blocks() -> dict[str, dict[str, str]]:
    """For each README that shows measurements its marked blocks."""
    reports, choices = read_reports("benchmark"), read_records(CHOICE_RESULTS)
    return {
        "README.md": {"speed": format_ratios(reports, HIGHLIGHTS)},
        "hf_scratch/convert/README.md": {
            "engines": format_each("engines", format_engines),
            "choices": format_choices(choices),
        },
        "scripts/benchmark/README.md": {
            "benchmark": format_benchmark(reports),
            "growth": under_machines(reports, lambda each: format_growth(each["growth"])),
            "scale": format_each("scale", format_scale),
            "levers": format_choices(choices, LEVERS),
            "held_out": format_held_out(read_records(HELD_OUT_RESULTS)),
            "options": format_each("options", format_options),
        },
    }


def write_readmes() -> None:
    """Write the tables of `results/` into the READMEs."""
    for readme, blocks in measured_blocks().items():
        update_file(ROOT / readme, replace_blocks(ROOT / readme, blocks), write=True)


def replace_blocks(path: Path, blocks: dict[str, str]) -> str:
    """A README's text, with each of `blocks` between its two lines, `<!-- name -->` and `<!-- /name -->`."""
    text = path.read_text(encoding="utf-8")
    for name, content in blocks.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
        before, rest = text.split(begin)
        _, after = rest.split(end)
        text = f"{before}{begin}{content}\n{end}{after}"
    return text


def update_file(path: Path, text: str, write: bool) -> bool:
    """Compare a file with what its figures say, or write it, and print what was found or done.

    Returns:
        Whether the file now holds `text`.
    """
    if write:
        path.write_text(text, encoding="utf-8")
        print(f"wrote {path}")
        return True
    lines = difflib.unified_diff(path.read_text(encoding="utf-8").splitlines(), text.splitlines(), lineterm="", n=0)
    differences = list(lines)[2:]  # after the names of the two
    print("\n".join([*differences, f"{path} is {'NOT ' if differences else ''}what its figures say"]))
    return not differences


def file_name(machine: Figures) -> str:
    """The name of a machine's file in `results/`, for example "intel-xeon-avx-512-amx.json"."""
    return re.sub(r"[^a-z0-9.]+", "-", name_machine(machine).lower()).strip("-") + ".json"


def name_machine(machine: Figures) -> str:
    """The machine's short name, for example "Intel Xeon (AVX-512, AMX)"."""
    features = f" ({', '.join(machine['features'])})" if machine["features"] else ""
    return machine["cpu"] + features


def describe_machine(machine: Figures) -> str:
    """What was measured on, in one line."""
    date = f"; {machine['date']}" if machine.get("date") else ""
    loads = [f"{machine[f'load_{when}']} {when}" for when in ("before", "after") if f"load_{when}" in machine]
    return (
        f"{name_machine(machine)}, {machine['cores']} cores, CPU only; threads: {machine['threads']}; torch "
        f"{machine['torch']}, transformers {machine['transformers']}; data: {machine['data']}; "
        f"{machine['minutes']} minutes{date}." + (f" Load average: {', '.join(loads)}." if loads else "")
    )


def format_each(name: str, format_figures: Callable[[Figures], str]) -> str:
    """A command's table for each machine."""
    parts = [f"{format_figures(report)}\n\n{describe_machine(report['machine'])}" for report in read_reports(name)]
    return "\n\n".join(parts)


def format_rows(rows: list[Figures]) -> str:
    """The table of one machine: ratio, medians and notes of each row."""
    lines = []
    for row in rows:
        medians = {who: f"{who} {FORMATS[row['unit']](value)}" for who, value in row["medians"].items()}
        # the spread of the rounds' ratios, which older reports do not hold
        rounds = f"{row['rounds']}, spread {100 * row['spread']:.0f} %" if row.get("spread") else row["rounds"]
        cells = [medians[row["ours"]], medians.get(row["peer"], ""), rounds, row["note"]]
        lines.append([f"`{row['name']}`: {row['what']}", f"**{format_ratio(row)}**", *cells])
    return format_table(["work", "ratio", "ours", "peer", "rounds", ""], lines)


def format_ratio(row: Figures) -> str:
    """A row's ratio, or the measure itself of a row without a peer."""
    return FORMATS[row["unit"]](row["medians"][row["ours"]]) if row["ratio"] is None else f"{row['ratio']:.2f}"


def format_ratios(reports: list[Figures], names: list[str]) -> str:
    """The ratios of all machines side by side: the rows `names`."""
    lines = []
    for name in names:
        found = [next((row for row in report["rows"] if row["name"] == name), None) for report in reports]
        row = next(row for row in found if row is not None)
        ratios = ["" if row is None else format_ratio(row) for row in found]
        lines.append([f"`{name}`: {row['what']}", row["peer"] or "", *ratios])
    return format_table(["work", "peer", *(name_machine(report["machine"]) for report in reports)], lines)


def format_benchmark(reports: list[Figures]) -> str:
    """With several machines their ratios side by side, then the full table of each machine."""
    names = list(dict.fromkeys(row["name"] for report in reports for row in report["rows"]))
    tables = under_machines(
        reports, lambda each: f"{describe_machine(each['machine'])}\n\n{format_rows(each['rows'])}"
    )
    return f"{format_ratios(reports, names)}\n\n{tables}" if len(reports) > 1 else tables


def under_machines(reports: list[Figures], format_figures: Callable[[Figures], str]) -> str:
    """A table for each machine, below its name."""
    return "\n\n".join(f"### {name_machine(each['machine'])}\n\n{format_figures(each)}" for each in reports)


def format_growth(points: list[Figures]) -> str:
    """The table of one machine: seconds and memory of each model over length, width and batch size."""
    columns = [(mode, key) for mode in ("training", "inference") for key in ("seconds", "MiB")]
    models = list(points[0]["training"])
    lines = []
    for point in points:
        cells = [f"{point['axis']} {point['value']:,}", f"{point['rows']} x {point['length']}, {point['width']}"]
        for mode, key in columns:
            values = [point[mode][model][key] for model in models]
            cells.append(" / ".join(f"{value:.3f}" if key == "seconds" else f"{value:,.0f}" for value in values))
        lines.append(cells)
    heads = [f"{mode}: {key}, {' / '.join(models)}" for mode, key in columns]
    return format_table(["", "rows x length, width", *heads], lines)


def format_measured(figures: Figures) -> str:
    """What benchmark.py prints: the tables of what it has measured."""
    parts = [format_rows(figures["rows"])] if figures["rows"] else []
    return "\n\n".join([*parts, format_growth(figures["growth"])] if figures["growth"] else parts)


def format_scale(figures: Figures) -> str:
    """The table of scale.py."""
    lines = []
    for row in figures["rows"]:
        digits = 0 if row["figure"] >= 100 else 1 if row["figure"] >= 10 else 2
        figure = f"**{row['figure']:,.{digits}f}** {row['unit']}".strip()
        lines.append([f"`{row['name']}`: {row['what']}", figure])
    return format_table(["work", "measured"], lines)


def format_engines(figures: Figures) -> str:
    """The table of engines.py."""
    lines = []
    for row in figures["rows"]:
        name = f"{row['engine']}, {row['quantization']}"
        made = f"`{row['command']}`" if row["command"] else ""
        if row["missing"]:
            lines.append([name, row["what"], made, f"not run: {row['missing']}", "", "", ""])
            continue
        speed = f"{row['per_second']:,.0f} {row['unit']}"
        equal = f"{row['equal']} of {row['of']}"
        share = f"{100 * row['equal_tokens'] / row['tokens']:.1f} %"
        lines.append([name, row["what"], made, equal, share, speed, f"{row['megabytes']:.1f}"])
    header = ["engine", "work", "command", "equal to the last token", "tokens before a difference", "per second", "MB"]
    return format_table(header, lines)


def format_options(figures: Figures) -> str:
    """The table of options.py."""
    lines = []
    for row in figures["rows"]:
        cells = [row["model"], row["what"]]
        for who in ("loop", "peer"):
            ratio, spread = row[who]["ratio"], row[who]["spread"]
            cells += [f"**{ratio:.2f}** ± {50 * spread:.0f} %", f"{row[who]['equal']} of {row['texts']}"]
        lines.append(cells)
    header = ["model", "options", "transformers' loop", "equal texts", "transformers' model", "equal texts"]
    return format_table(header, lines)
