#!/usr/bin/env python
# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Recompute the figures of the published weights, of their cards and of every table, and fail if one of them differs.

python scripts/publish/results.py --multi30k bentrevett/multi30k --tinystories folder/of/tinystories
python scripts/publish/results.py --only tables --write
"""

import argparse
import difflib
import sys
from pathlib import Path
from string import Template

from evaluation import evaluate_folder
from result_tables import (
    LARGER,
    MODEL_CARDS,
    TRANSLATOR,
    WAY_BACK,
    WRITER,
    format_articles,
    format_models,
    format_results,
    format_rounds,
    format_runs,
    format_sampling,
    format_stories_budgets,
    published_record,
    read_evaluation,
    read_stories,
)
from transformers import AutoConfig, GenerationConfig

import hf_scratch  # noqa: F401  registers the models
from hf_scratch.errors import command, preparation
from hf_scratch.reporting.cards import NOTES_ON_SCORES, Card, describe_search, format_examples, quote, render_card
from hf_scratch.reporting.records import read_records

sys.path.append(str(Path(__file__).parents[1] / "benchmark"))
from choices import CHOICE_RESULTS, LEVERS, format_choices, format_held_out
from measuring import RESULTS, ROOT
from tables import format_benchmark, format_engines, format_speed, read_machines, under_machines

DATA = {TRANSLATOR: "multi30k", LARGER: "multi30k", WAY_BACK: "multi30k", WRITER: "tinystories"}
HUB_IDS = {"multi30k": ("bentrevett/multi30k", "Multi30k"), "tinystories": ("roneneldan/TinyStories", "TinyStories")}
LANGUAGES = {"en": "English", "de": "German"}
# what some folders in commands held then, by the names of the runs: they hold other models by now
HELD_THEN = {
    f"_models model_cards/{TRANSLATOR} ": "_models runs/distilled_again_seed1 ",
    f"model_cards/{TRANSLATOR}/seed": "runs/distilled_again_seed",
}
BASES = {WAY_BACK: f"USER/{TRANSLATOR}"}


def list_tables() -> dict[Path, dict[str, str]]:
    """For each document its marked blocks."""
    choices, speed = read_records(CHOICE_RESULTS), format_speed(read_machines("engines"), read_machines("benchmark"))
    tables = {
        ROOT / "README.md": {"results": format_results(), "speed": speed},
        ROOT / "hf_scratch" / "convert" / "README.md": {
            "articles": format_articles(),
            "choices": format_choices(choices),
            "engines": under_machines("engines", format_engines),
        },
        ROOT / "scripts" / "benchmark" / "README.md": {
            "benchmark": under_machines("benchmark", format_benchmark),
            "levers": format_choices(choices, LEVERS),
            "held_out": format_held_out(read_records(RESULTS / "held_out" / "records")),
        },
        MODEL_CARDS / "README.md": {"models": format_models()},
    }
    tables |= {MODEL_CARDS / name / "RUNS.md": {"runs": format_runs(name)} for name in DATA}
    tables[MODEL_CARDS / WRITER / "RUNS.md"]["sampling"] = format_sampling()
    return tables


def make_card(name: str) -> str:
    """A published model's card: that of its run, with the figures of the stored weights and a written introduction."""
    figures, record, folder = read_evaluation(name), published_record(name), MODEL_CARDS / name
    config, generation = AutoConfig.from_pretrained(folder), GenerationConfig.from_pretrained(folder)
    values = {"parameters": f"{record['parameters']:,}"}
    for split, sizes in figures.get("data", {}).items():
        values |= {f"{split}_{what}": f"{count:,}" for what, count in sizes.items()}
    introduction = Template((Path(__file__).parent / "cards" / f"{name}.md").read_text(encoding="utf-8"))
    opening, sections = introduction.substitute(values).strip().split("\n\n## ", 1)
    if name == WRITER:
        samples, task, languages = read_stories(), "text-generation", ["en"]
        call, output = '"Once upon a time", do_sample=False, max_new_tokens=40', figures["greedy"]
        notes = f"{NOTES_ON_SCORES}\n\n{format_stories_budgets()}"
        pairs = list(zip(samples["prompts"], samples["stories"][0], strict=True))
        intro = "By the stored sampling settings. [stories.json](stories.json) has more."
        header = ["beginning", "continued"]
    else:
        task, languages, pairs = "translation", [config.source_lang, config.target_lang], figures["examples"]
        call, output = quote(pairs[0][0]), pairs[0][1]
        notes = describe_search(figures["metrics"]["test"], generation.num_beams, generation.length_penalty)
        notes += "\n\nEach row is the mean of its models, in float32. Minutes count earlier stages, but no teachers:"
        notes += f"\n\n{format_rounds(name)}"
        intro = "The last sentence is about nothing that is in Multi30k."
        header = [LANGUAGES[code] for code in languages]
    card = Card(
        name=name,
        task=task,
        opening=opening,
        sections=f"## {sections}",
        call=call,
        output=output,
        notes=f"{notes}\n\n[RUNS.md](RUNS.md) has all runs. The commands below name folders as they were then.",
        examples=format_examples(header, pairs, intro),
        data=HUB_IDS[DATA[name]],
        languages=languages,
        base=BASES.get(name, ""),
        license="apache-2.0",
    )
    command = record["command"]
    for folder_then, run in HELD_THEN.items():
        command = command.replace(folder_then, run)
    return render_card(card, record | {"metrics": figures["metrics"], "command": command}, config)


def replace_blocks(path: Path, blocks: dict[str, str]) -> str:
    """A document's text, with each of `blocks` between its two lines, `<!-- name -->` and `<!-- /name -->`."""
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


@command
@preparation()
def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--multi30k", default="bentrevett/multi30k", help="a Hub id or a folder")
    parser.add_argument("--tinystories", default="roneneldan/TinyStories", help="a Hub id or a folder")
    parser.add_argument("--only", choices=[*DATA, "tables"], help="one folder's weights, or cards, code and tables")
    parser.add_argument("--write", action="store_true", help="write figures, cards and tables instead of comparing")
    args = parser.parse_args()
    results = [
        update_file(
            MODEL_CARDS / name / "evaluation.json",
            evaluate_folder(MODEL_CARDS / name, getattr(args, data)),
            args.write,
        )
        for name, data in DATA.items()
        if args.only in (None, name)
    ]
    results += [
        update_file(MODEL_CARDS / name / "README.md", make_card(name), args.write)
        for name in DATA
        if args.only in (None, "tables", name)
    ]
    if args.only in (None, "tables"):
        results += [
            update_file(path, (ROOT / "hf_scratch" / "models" / path.name).read_text(encoding="utf-8"), args.write)
            for path in sorted(MODEL_CARDS.glob("*/*.py"))
        ]
        results += [
            update_file(path, replace_blocks(path, blocks), args.write) for path, blocks in list_tables().items()
        ]
    return int(False in results)


if __name__ == "__main__":
    sys.exit(main())
