# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""The results tables of /README.md and model_cards/README.md, from the records of the published folders."""

from pathlib import Path
from statistics import mean

from article_tables import RECORDS

from hf_scratch.reporting.records import Record, read_record, read_records
from hf_scratch.reporting.tables import format_table

TRANSLATOR, WRITER = "scratch-transformer-multi30k-en-de", "scratch-gpt-tinystories"
WAY_BACK = "scratch-transformer-multi30k-de-en"

# what others report
ARTICLE_BLEU = 25.7  # annotated-seq2seq, without a signature
TRANSFORMER_TINY_BLEU = 41.02  # Wu et al. 2021, text only, lower-cased with Moses tokens


def readme_blocks(cards: Path) -> dict[str, str]:
    """The marked blocks of /README.md.

    Args:
        cards: the folder `model_cards`.
    """
    seeds, stories = read_seeds(cards / TRANSLATOR), read_records(cards / WRITER / "records")
    bleu, moses = (mean_score(seeds, name) for name in ("bleu", "bleu_moses"))
    notes = read_record(RECORDS / "tinystories_article.json")
    best, article, stock = (validation_bits(record) for record in (stories["best"], notes, stories["stock_gpt2"]))
    minutes = [record["minutes"] for record in seeds]
    rows = [
        [
            f"[Transformer](model_cards/{TRANSLATOR}), {format_millions(seeds[0])} parameters",
            f"Multi30k en-de ([and back](model_cards/{WAY_BACK})), 1,000 test sentences",
            f"**{bleu:.2f} BLEU** (cased, 13a); {moses:.2f} lower-cased with Moses tokens",
            f"annotated-seq2seq: {ARTICLE_BLEU}; Wu et al. 2021: {TRANSFORMER_TINY_BLEU} (Moses)",
            f"mean of {len(seeds)} models; {min(minutes):.0f} to {max(minutes):.0f} minutes each without their "
            "teachers, one CPU core",
        ],
        [
            f"[GPT](model_cards/{WRITER}), {format_millions(stories['best'])} parameters",
            "2.35 MB of TinyStories, 160 validation stories",
            f"**{best:.3f} bits per byte**",
            f"the model of tinystories-notes, trained here: {article:.3f}; GPT-2 of the same size: {stock:.3f}",
            f"one seed; {stories['best']['minutes']:.0f} minutes, one CPU core",
        ],
    ]
    return {"results": format_table(["trained here", "data", "result", "for comparison", "training"], rows)}


def index_blocks(cards: Path) -> dict[str, str]:
    """The marked blocks of model_cards/README.md.

    Args:
        cards: the folder `model_cards`.
    """
    seeds, stories = read_seeds(cards / TRANSLATOR), read_records(cards / WRITER / "records")
    published = published_seed(seeds)
    scores = [("BLEU, cased (13a)", "bleu"), ("BLEU, lower-cased, Moses tokens", "bleu_moses"), ("chrF", "chrf")]
    header = ["metric", f"mean of {len(seeds)} models", "lowest", "highest", f"seed {published['seed']}, published"]
    translation = [
        [label, mean_score(seeds, name), min(values), max(values), published["metrics"]["test"][name]]
        for label, name in scores
        for values in [[record["metrics"]["test"][name] for record in seeds]]
    ]
    (way_back,) = read_seeds(cards / WAY_BACK)
    stories_rows = [
        [f"`{name}`", f"{record['parameters']:,}", f"{validation_bits(record):.3f}", f"{record['minutes']:.0f}"]
        for name, record in sorted(stories.items(), key=lambda item: validation_bits(item[1]))
    ]
    return {
        "translator": format_table(header, translation),
        "way_back": format_table(
            ["metric", "seed 1, published"], [[label, way_back["metrics"]["test"][name]] for label, name in scores]
        ),
        "writer": format_table(["run", "parameters", "bits per byte", "minutes"], stories_rows),
    }


def read_seeds(folder: Path) -> list[Record]:
    """The records of the published training with each of its seeds."""
    return [record for name, record in read_records(folder / "records").items() if name.startswith("seed")]


def published_seed(seeds: list[Record]) -> Record:
    """The one of them that is published: it has the lowest validation loss."""
    return min(seeds, key=lambda record: record["metrics"]["validation"]["loss"])


def mean_score(records: list[Record], name: str) -> float:
    """The mean of a test metric."""
    return mean(record["metrics"]["test"][name] for record in records)


def validation_bits(record: Record) -> float:
    """A language model's validation bits per byte."""
    return record["metrics"]["validation"]["bits_per_byte"]


def format_millions(record: Record) -> str:
    """A record's number of parameters, for example "2.3 M"."""
    return f"{record['parameters'] / 1e6:.1f} M"
