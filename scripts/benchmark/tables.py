# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""The tables of benchmark.py and engines.py, from the JSON in `results/`: a folder per command, a file per machine."""

import json
from collections.abc import Callable
from statistics import median

from measuring import RESULTS, Figures, compare

from hf_scratch.reporting.tables import format_table

UNITS = {
    "s": "{:.3f} s".format,
    "MiB": "{:,.0f} MiB".format,
    "s per token": lambda seconds: f"{1 / seconds:,.0f} tokens/s",
}
ENGINES = {"ctranslate2": "CTranslate2", "gguf": "llama.cpp", "onnx": "onnxruntime"}
TRAINING = (  # the rows of /README.md
    "train_transformer", "train_gpt", "train_gpt_long", "train_gpt_narrow", "train_transformer_stock",
    "train_gpt_stock", "train_end_to_end", "memory_transformer", "memory_gpt",
)  # fmt: skip


def read_machines(command: str) -> list[Figures]:
    """A command's figures of all machines, in the alphabetical order of their files."""
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted((RESULTS / command).glob("*.json"))]


def under_machines(command: str, format_rows: Callable[[list[Figures]], str]) -> str:
    """A command's tables for each machine, below its name."""
    return "\n\n".join(f"{each['machine']}\n\n{format_rows(each['rows'])}" for each in read_machines(command))


def describe_conditions(rows: list[Figures]) -> str:
    """With what, and when, rows were measured: one sentence for those with the same conditions."""
    groups: dict[str, list[Figures]] = {}
    for row in rows:
        versions = f"torch {row['torch']}, transformers {row['transformers']}"
        data = f", data: {row['data']}" if row["data"] else ""
        groups.setdefault(f"{row['date']}, {versions}, threads: {row['threads']}{data}", []).append(row)
    sentences = []
    for text, group in groups.items():
        names = ", ".join(f"`{row['name']}`" for row in group)
        sentences.append(f"{text}{f' ({names})' if len(groups) > 1 else ''}.")
    return " ".join(sentences)


def format_benchmark(rows: list[Figures]) -> str:
    """A table for each topic: each row's measures (medians of its rounds) and ratio, with the rounds' range."""
    parts = []
    for topic in dict.fromkeys(row["topic"] for row in rows):
        lines, chosen = [], [row for row in rows if row["topic"] == topic]
        for row in chosen:
            ours, peer = row["measures"].values()
            figures = [f"{who} {UNITS[row['unit']](median(values))}" for who, values in row["measures"].items()]
            ratio, *spread = format_ratio(peer, ours)
            cells = [ratio, " to ".join(spread), len(ours), *figures, row["note"]]
            lines.append([f"`{row['name']}`: {row['what']}", *cells])
        header = ["work", "ratio", "range over rounds", "rounds", "ours", "peer", ""]
        parts.append(f"**{topic}**\n\n{format_table(header, lines)}\n\n{describe_conditions(chosen)}")
    return "\n\n".join(parts)


def format_ratio(peer: list[float], ours: list[float]) -> list[str]:
    """The ratio, and its lowest and highest over the rounds. It is bold if all rounds are on the same side of 1."""
    ratio, lowest, highest = (f"{value:.2f}" for value in compare(peer, ours).values())
    return [f"**{ratio}**" if (float(lowest) > 1) == (float(highest) > 1) else ratio, lowest, highest]


def format_engines(rows: list[Figures]) -> str:
    """The table of engines.py."""
    lines = []
    for row in rows:
        name = f"{ENGINES.get(row['engine'], row['engine'])} {row['version']}, {row['quantization']}"
        made = f"`{row['command']}`" if row["command"] else ""
        equal, share = f"{row['equal']} of {row['of']}", f"{100 * row['equal_tokens'] / row['tokens']:.1f} %"
        speed = f"{row['per_second']:,.0f} {row['unit']}"
        spread = f"{row['slowest']:,.0f} to {row['fastest']:,.0f}"
        lines.append([name, row["what"], made, equal, share, speed, spread, f"{row['megabytes']:.1f}"])
    header = ["engine", "work", "command", "equal to the last token", "tokens before a difference", "per second"]
    table = format_table([*header, "range over rounds", "MB on disk"], lines)
    return f"{table}\n\n{describe_conditions(rows)}"


def format_speed(engines: list[Figures], machines: list[Figures]) -> str:
    """The tables of /README.md: the same work in each engine per second, and `TRAINING` against transformers."""
    parts = []
    for machine in engines:
        rows = [row for row in machine["rows"] if row["quantization"] == "float32"]
        works = dict.fromkeys((row["what"], row["unit"]) for row in rows)
        lines = []
        for engine, version in dict.fromkeys((row["engine"], row["version"]) for row in rows):
            speeds = {row["what"]: f"{row['per_second']:,.0f}" for row in rows if row["engine"] == engine}
            lines.append([f"{ENGINES.get(engine, engine)} {version}", *(speeds.get(what, "") for what, _ in works)])
        table = format_table(["float32", *(f"{what}: {unit} a second" for what, unit in works)], lines)
        parts.append(f"{table}\n\n{machine['machine']}; {describe_conditions(rows)}")
    for machine in machines:
        rows = [row for row in machine["rows"] if row["name"] in TRAINING]
        lines = []
        for row in rows:
            ours, peer = row["measures"]
            ratio, *spread = format_ratio(row["measures"][peer], row["measures"][ours])
            lines.append([f"`{row['name']}`: {row['what']}", peer, ratio, " to ".join(spread)])
        table = format_table(["work", "peer", "ratio", "range over rounds"], lines)
        parts.append(f"{table}\n\n{machine['machine']}; {describe_conditions(rows)}")
    return "\n\n".join(parts)
