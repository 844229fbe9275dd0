# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""The figures of a published translator's card, from its folder and the test set."""

import json
import shlex
from pathlib import Path
from statistics import mean

from huggingface_hub import EvalResult, ModelCardData
from sacrebleu.metrics import BLEU
from sacrebleu.significance import PairedTest
from transformers import AutoModelForSeq2SeqLM, pipeline

import hf_scratch  # noqa: F401  registers the models
from hf_scratch.data.loading import load_splits
from hf_scratch.data.pairs import take_pairs
from hf_scratch.evaluation.translation import evaluate_translation, score_translations
from hf_scratch.loading import load_tokenizer
from hf_scratch.recipes import read_recipe

ROOT = Path(__file__).parents[2]
SENTENCES = (
    "A little girl in a red dress throws a ball to her dog in the park.",
    "Two men in orange vests are repairing the roof of a house.",
    "An old woman is selling vegetables at a market.",
    "The boy on the bicycle is jumping over a wall.",
    "My computer crashed while I was writing a letter to the bank.",
)
LENGTH_PENALTIES = (0.0, 0.5, 1.0, 1.5, 2.0)


def table(header: list[str], rows: list[list]) -> str:
    """A Markdown table; floats with two decimals."""
    lines = [header, ["---"] * len(header), *rows]
    cells = [[f"{cell:.2f}" if isinstance(cell, float) else str(cell) for cell in line] for line in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def load_runs(folder: Path) -> dict[str, dict]:
    """The runs that a card tells of, by name: `run.json` of each."""
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))}


def changes(command: str) -> str:
    """What a command changes of its recipe, without data, folders and how often it saved and evaluated; of several
    commands the last.
    """
    recipe, *words = shlex.split(command.splitlines()[-1])[2:]
    flags = dict(zip(words[::2], words[1::2], strict=True))
    for name in ("dataset_name", "output_dir", "use_cpu", "bf16", "eval_steps", "save_steps", "save_total_limit"):
        flags.pop(f"--{name}", None)
    for name, value in read_recipe(ROOT / recipe).items():
        if flags.get(f"--{name}") == str(value):
            del flags[f"--{name}"]
    return " ".join(f"`{name} {value}`" for name, value in flags.items())


def training_table(run: dict) -> str:
    """How a run was trained."""
    names = ("parameters", "updates", "input tokens", "time", "weights", "seed", "hardware", "software")
    return table(["", ""], [[name, run[name]] for name in names])


def validation(run: dict) -> list[float]:
    """Loss and greedy BLEU of the weights that a run kept, or of its last evaluation."""
    bleu = run["validation bleu (BLEU, greedy)"]
    return [next(entry["eval_loss"] for entry in reversed(run["log"]) if entry.get("eval_bleu") == bleu), bleu]


def run_row(run: dict, translations: list[str] | None, references: list[str]) -> list:
    """A line of the table of runs; one that was stopped has no translations."""
    scores = {"bleu": "", "bleu_moses": ""}
    if translations is not None:
        scores = score_translations(translations, references, "de")
    tokens = f"{int(run['input tokens'].replace(',', '')) / 1e6:.1f}"
    loss, bleu = validation(run)
    return [run["updates"], tokens, run["time"], f"{loss:.3f}", bleu, scores["bleu"], scores["bleu_moses"]]


def translation_figures(folder: Path, dataset: str) -> dict[str, str]:
    """What `scripts/publish/cards/scratch-transformer-multi30k-en-de.md` leaves open."""
    splits = load_splits(dataset)
    test, held_out = (take_pairs(splits[name], "en", "de", name) for name in ("test", "validation"))
    references = list(test["target"])
    model = AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    tokenizer = load_tokenizer(folder)
    own_penalty = model.generation_config.length_penalty
    evaluated = {
        penalty: [
            evaluate_translation(model, tokenizer, side["source"], side["target"], length_penalty=penalty)
            for side in (held_out, test)
        ]
        for penalty in sorted({*LENGTH_PENALTIES, own_penalty})
    }
    penalties = [[str(penalty), *(side["bleu"] for side, _ in sides)] for penalty, sides in evaluated.items()]
    scores, _ = evaluated[own_penalty][1]

    runs = load_runs(folder / "records")
    texts = {path.stem: path.read_text(encoding="utf-8").splitlines() for path in (folder / "records").glob("*.txt")}
    seeds = [name for name in runs if name.startswith("seed")]
    results = {name: score_translations(texts[name], references, "de") for name in seeds}
    measured = [
        [*validation(runs[name]), *(results[name][key] for key in ("bleu", "bleu_moses", "chrf"))] for name in seeds
    ]
    labels = [[runs[name]["seed"], runs[name]["time"]] for name in seeds]
    if len(seeds) > 1:
        columns = list(zip(*measured, strict=True))
        for word, function in (("mean", mean), ("lowest", min), ("highest", max)):
            labels.append([f"**{word}**", ""])
            measured.append([function(column) for column in columns])
    seed_rows = [[*label, f"{loss:.3f}", *rest] for label, (loss, *rest) in zip(labels, measured, strict=True)]

    # sacrebleu's own test: the first system is what the others are compared with
    systems = [(name, texts[name]) for name in ("article", "cosine")]
    _, tested = PairedTest(systems, {"BLEU": BLEU(references=[references])}, None, "bs", n_samples=1000)()
    article, ours = tested["BLEU"]
    ablations = [
        [name, changes(run["command"]), *run_row(run, texts.get(name), references)]
        for name, run in runs.items()
        if name not in seeds
    ]
    shipped = runs["seed1"]
    data = ModelCardData(
        language=["en", "de"],
        license="apache-2.0",
        library_name="transformers",
        pipeline_tag="translation",
        tags=["hf_scratch", "scratch_transformer"],
        datasets=["bentrevett/multi30k"],
        metrics=["sacrebleu", "chrf"],
        model_name=folder.name,
        eval_results=[
            EvalResult(
                "translation",
                "bentrevett/multi30k",
                "Multi30k",
                kind,
                round(scores[key], 2),
                metric_name=label,
                dataset_split="test",
            )
            for key, kind, label in (
                ("bleu", "sacrebleu", f"BLEU, cased ({scores['bleu_signature']})"),
                ("bleu_moses", "sacrebleu", f"BLEU ({scores['bleu_moses_signature']})"),
                ("chrf", "chrf", f"chrF ({scores['chrf_signature']})"),
            )
        ],
    )
    translator = pipeline("translation", model=model, tokenizer=tokenizer)
    examples = [[sentence, translator(sentence)[0]["translation_text"]] for sentence in SENTENCES]
    return {
        "front_matter": data.to_yaml().strip(),
        "parameters": f"{model.num_parameters():,}",
        "results": table(
            ["metric", "value", "signature"],
            [
                ["BLEU, cased", f"**{scores['bleu']:.2f}**", _code(scores["bleu_signature"])],
                ["BLEU, lower-cased", scores["bleu_lc"], _code(scores["bleu_lc_signature"])],
                ["BLEU, lower-cased, Moses tokens", scores["bleu_moses"], _code(scores["bleu_moses_signature"])],
                ["chrF", scores["chrf"], _code(scores["chrf_signature"])],
            ],
        ),
        "beams": str(model.generation_config.num_beams),
        "length_penalty": str(model.generation_config.length_penalty),
        "seeds": table(
            [
                "seed",
                "time",
                "validation loss",
                "validation, greedy",
                "test, cased",
                "test, Moses",
                "test, chrF",
            ],
            seed_rows,
        ),
        "article": f"{article.mean:.2f} ± {article.ci:.2f}",
        "article_parameters": runs["article"]["parameters"],
        "article_time": runs["article"]["time"],
        "cosine": f"{ours.mean:.2f} ± {ours.ci:.2f}",
        "cosine_time": runs["cosine"]["time"],
        "p_value": f"{ours.p_value:.3f}",
        "penalties": table(["length penalty", "validation BLEU, cased", "test BLEU, cased"], penalties),
        "ablations": table(
            [
                "run",
                "changes",
                "updates",
                "M source tokens",
                "time",
                "validation loss",
                "validation, greedy",
                "test, cased",
                "test, Moses",
            ],
            ablations,
        ),
        "training": training_table(shipped),
        # a folder laid out as on the Hub has the Hub's name in public
        "command": shipped["command"].replace("--dataset_name multi30k ", "--dataset_name bentrevett/multi30k "),
        "examples": table(["English", "this model"], examples),
    }


def _code(signature: str) -> str:
    return "`" + signature.replace("|", "\\|") + "`"
