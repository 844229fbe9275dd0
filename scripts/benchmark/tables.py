# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""The benchmark's tables, from the JSON that benchmark.py writes: one file per machine in `results/`.

A file holds `machine` (what was measured on), `rows` (one per comparison), `growth` (one per model size) and, where
there is something to say about the figures, `remarks`. All times are seconds, all memory MiB.
"""

import json
import re
from pathlib import Path
from typing import Any

from choice_tables import LEVERS, format_choices, format_held_out

from hf_scratch.reporting.records import read_records
from hf_scratch.reporting.tables import format_table, update_blocks

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
RESULTS = FOLDER / "results"
SCALE_RESULTS = RESULTS / "scale"  # of scale.py
ENGINE_RESULTS = RESULTS / "engines"  # of engines.py
OPTION_RESULTS = RESULTS / "options"  # of options.py
CHOICE_RESULTS = RESULTS / "choices"  # of choices.py
HELD_OUT_RESULTS = RESULTS / "held_out" / "records"  # of trainings on nine tenths of the data
FORMATS = {
    "s": "{:.3f} s".format,
    "MiB": "{:,.0f} MiB".format,
    "s per token": lambda seconds: f"{1 / seconds:,.0f} tokens/s",
}
HIGHLIGHTS = ("train_end_to_end", "generate_gpt", "translate_marian")  # the rows of /README.md


def read_reports(folder: Path = RESULTS) -> list[dict[str, Any]]:
    """The reports of all machines, in the alphabetical order of their files."""
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]


def update_readmes(write: bool) -> list[bool | None]:
    """Compare the tables of scripts/benchmark, hf_scratch/convert and /README.md with `results/`, or write them.

    Returns:
        For each README what `update_blocks` returns.
    """
    reports = read_reports()
    blocks = {"benchmark": format_benchmark(reports), "growth": format_all_growth(reports)}
    blocks["scale"] = format_all_scale(read_reports(SCALE_RESULTS))
    blocks["levers"] = format_choices(read_records(CHOICE_RESULTS), LEVERS)
    blocks["held_out"] = format_held_out(read_records(HELD_OUT_RESULTS))
    blocks["options"] = format_all_options(read_reports(OPTION_RESULTS))
    return [
        update_blocks(FOLDER / "README.md", blocks, write),
        update_blocks(ROOT / "README.md", {"speed": format_speed(reports)}, write),
        update_blocks(
            ROOT / "hf_scratch" / "convert" / "README.md",
            {
                "engines": format_all_engines(read_reports(ENGINE_RESULTS)),
                "choices": format_choices(read_records(CHOICE_RESULTS)),
            },
            write,
        ),
    ]


def file_name(machine: dict[str, Any]) -> str:
    """The name of a machine's file in `results/`, for example "intel-xeon-avx-512-amx.json"."""
    return re.sub(r"[^a-z0-9.]+", "-", name_machine(machine).lower()).strip("-") + ".json"


def name_machine(machine: dict[str, Any]) -> str:
    """The machine's short name, for example "Intel Xeon (AVX-512, AMX)"."""
    features = f" ({', '.join(machine['features'])})" if machine["features"] else ""
    return machine["cpu"] + features


def describe_machine(machine: dict[str, Any]) -> str:
    """What was measured on, in one line."""
    date = f"; {machine['date']}" if machine.get("date") else ""
    return (
        f"{name_machine(machine)}, {machine['cores']} cores, CPU only; threads: {machine['threads']}; torch "
        f"{machine['torch']}, transformers {machine['transformers']}; data: {machine['data']}; "
        f"{machine['minutes']} minutes{date}."
    )


def share_of_target(row: dict[str, Any]) -> float:
    """How much of its target a row reaches: 1 or more if the target is reached."""
    share = row["ratio"] / row["target"]
    return 1 / share if row["at_most"] else share


def format_rows(rows: list[dict[str, Any]]) -> str:
    """The table of one machine: ratio, target, medians and notes of each row."""
    lines = []
    for row in rows:
        target = f"{'< ' if row['at_most'] else ''}{row['target']:.1f}"
        work = f"`{row['name']}`: {row['what']}"
        if row["missing"]:
            lines.append(["", target, "", work, "", row["peer"] or "", "", f"not measured: {row['missing']}"])
            continue
        show = FORMATS[row["unit"]]
        ours, peer = (f"{who} {show(row['medians'][who])}" if who else "" for who in (row["ours"], row["peer"]))
        reached = "yes" if share_of_target(row) >= 1 else "no"
        lines.append([f"**{row['ratio']:.2f}**", target, reached, work, ours, peer, format_rounds(row), row["note"]])
    return format_table(["ratio", "target", "reached", "work", "ours", "peer", "rounds", ""], lines)


def format_rounds(row: dict[str, Any]) -> str:
    """How many rounds, and the spread of their ratios, which older reports do not hold."""
    return f"{row['rounds']}, spread {100 * row['spread']:.0f} %" if row.get("spread") else str(row["rounds"])


def format_ratios(reports: list[dict[str, Any]], names: list[str]) -> str:
    """The ratios of all machines side by side.

    Args:
        reports: one per machine.
        names: the rows to show.
    """
    lines = []
    for name in names:
        found = [next((row for row in report["rows"] if row["name"] == name), None) for report in reports]
        row = next(row for row in found if row is not None)
        ratios = [f"{row['ratio']:.2f}" if row is not None and not row["missing"] else "" for row in found]
        lines.append([f"`{name}`: {row['what']}", row["peer"] or "", *ratios])
    return format_table(["work", "peer", *(name_machine(report["machine"]) for report in reports)], lines)


def format_speed(reports: list[dict[str, Any]]) -> str:
    """The short table of /README.md."""
    return format_ratios(reports, list(HIGHLIGHTS))


def format_benchmark(reports: list[dict[str, Any]]) -> str:
    """With several machines their ratios side by side, then the full table of each machine."""
    names = list(dict.fromkeys(row["name"] for report in reports for row in report["rows"]))
    parts = [format_ratios(reports, names)] if len(reports) > 1 else []
    for report in reports:
        machine = report["machine"]
        parts += [f"### {name_machine(machine)}", describe_machine(machine), format_rows(report["rows"])]
        parts += report.get("remarks", {}).get("rows", [])
    return "\n\n".join(parts)


def format_scale(report: dict[str, Any]) -> str:
    """The table of scale.py."""
    lines = []
    for row in report["rows"]:
        target = "" if row["target"] is None else f"{row['target']:,} {row['unit']}".strip()
        digits = 0 if row["figure"] >= 100 else 1 if row["figure"] >= 10 else 2
        figure = f"**{row['figure']:,.{digits}f}** {row['unit']}".strip()
        lines.append([f"`{row['name']}`: {row['what']}", figure, target])
    return format_table(["work", "measured", "to reach"], lines)


def format_all_scale(reports: list[dict[str, Any]]) -> str:
    """The table of scale.py for each machine."""
    parts = [f"{format_scale(report)}\n\n{describe_machine(report['machine'])}" for report in reports]
    return "\n\n".join(parts)


def format_engines(report: dict[str, Any]) -> str:
    """The table of engines.py."""
    lines = []
    for row in report["rows"]:
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


def format_all_engines(reports: list[dict[str, Any]]) -> str:
    """The table of engines.py for each machine."""
    parts = []
    for report in reports:
        load = f" Load average before: {report['machine']['load_before']}."
        parts.append(f"{format_engines(report)}\n\n{describe_machine(report['machine'])}{load}")
    return "\n\n".join(parts)


def format_options(report: dict[str, Any]) -> str:
    """The table of options.py."""
    lines = []
    for row in report["rows"]:
        cells = [row["model"], row["what"]]
        for who in ("loop", "peer"):
            cells += [
                f"**{row[who]['ratio']:.2f}** ± {50 * row[who]['spread']:.0f} %",
                f"{row[who]['equal']} of {row['texts']}",
            ]
        lines.append(cells)
    return format_table(
        ["model", "options", "transformers' loop", "equal texts", "transformers' model", "equal texts"], lines
    )


def format_all_options(reports: list[dict[str, Any]]) -> str:
    """The table of options.py for each machine."""
    parts = []
    for report in reports:
        load = f" Load average: {report['machine']['load_before']} before, {report['machine']['load_after']} after."
        parts.append(f"{format_options(report)}\n\n{describe_machine(report['machine'])}{load}")
    return "\n\n".join(parts)


def format_growth(points: list[dict[str, Any]]) -> str:
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


def format_all_growth(reports: list[dict[str, Any]]) -> str:
    """The growth table of each machine."""
    parts = []
    for report in reports:
        if report["growth"]:
            parts += [f"### {name_machine(report['machine'])}", format_growth(report["growth"])]
            parts += report.get("remarks", {}).get("growth", [])
    return "\n\n".join(parts)
