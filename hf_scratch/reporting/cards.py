# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Model cards: what was trained, how, on what, and what it reached.

The figures come from a run's record (records.py). A training writes its own card; the published folders' cards are
written by the same `render_card`, with a hand-written introduction.
"""

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData
from transformers import PreTrainedConfig, Trainer

from ..loading import hide_folders, public_name, require_output_dir
from ..manifest import write_json
from .plots import plot_learning_curve
from .records import INTERRUPTED, Record, build_record
from .tables import format_table

_TEMPLATE = """---
{front_matter}
---

# {name}

{opening}

```python
{usage}
```
{output}
Replace `{repository}` by the model's repository on the Hub, or by its folder. `trust_remote_code=True` runs the
Python files of that repository, which are the model's code: read them first. If hf_scratch is installed,
`import hf_scratch` and leave `trust_remote_code` out.

{sections}

## Results

{results}

![Learning curve](learning_curve.png)
{examples}
## Training

{training}

```
{command}
```

The code in this folder is under Apache 2.0. {licence}
"""
_OPENING = "{what} {origin} with hf_scratch, recipe `{recipe}`, data `{data}`.{teachers}"
_SECTIONS = """## Intended use

The model is for texts like its training data. It was trained and measured on nothing else. It is
not meant for other texts, for facts, or for decisions about people. The data have their own licence."""
NUM_EXAMPLES, LONGEST_EXAMPLE = 5, 400  # texts, characters

# for each task the key of what its pipeline returns
_OUTPUTS = {"translation": "translation_text", "summarization": "summary_text", "text-generation": "generated_text"}
_OUTPUTS |= {"fill-mask": "sequence"}
_CONFIG_FIELDS = ("encoder_layers", "decoder_layers", "num_hidden_layers", "hidden_size", "norm_first")
_CONFIG_FIELDS += ("position_embedding_type", "max_position_embeddings")  # where a model has them

# (split, key of the record's metrics, the Hub's name of the metric, label in the card, factor)
METRICS = (
    *(
        (split, key, key, label, 1)
        for split in ("validation", "test")
        for key, label in (
            ("bits_per_byte", "bits per byte"),
            ("loss", "loss [nats per token]"),
            ("perplexity", "perplexity"),
            ("accuracy", "accuracy of {answers} answers"),
            ("masked_accuracy", "accuracy on {tokens:,} masked tokens"),
        )
    ),
    ("validation", "bleu", "bleu", "BLEU, greedy", 1),
    ("validation", "exact_match", "exact_match", "exact matches [%], greedy", 100),
    ("validation", "rougeL", "rouge", "ROUGE-L, greedy", 1),
    ("test", "bleu", "bleu", "BLEU, cased", 1),
    ("test", "bleu_lc", "bleu", "BLEU, lower-cased", 1),
    ("test", "bleu_moses", "bleu", "BLEU, lower-cased, Moses tokens", 1),
    ("test", "exact_match", "exact_match", "exact matches [%]", 100),
    ("test", "chrf", "chrf", "chrF", 1),
    ("test", "rouge1", "rouge", "ROUGE-1", 1),
    ("test", "rouge2", "rouge", "ROUGE-2", 1),
    ("test", "rougeL", "rouge", "ROUGE-L", 1),
)
Result = tuple[str, str, float, str]  # a score's label, the Hub's name of its metric, its value, and the split


@dataclass(kw_only=True)
class Card:
    """What a card says beside its run's record and the model's configuration.

    Args:
        name: the model's name.
        task: the Hub's id of its task, which is also the pipeline's.
        opening: Markdown below the title.
        sections: Markdown between the example and the results.
        repository: a Hub id for the example. Default: "USER/" and the name.
        call: the arguments of the example's pipeline, as Python; the pipeline is `model`.
        output: what the example prints, or may print; "" if that is unknown.
        notes: Markdown below the table of results.
        examples: a Markdown table of inputs and outputs; "" for none.
        data: the data's Hub id, or else a name, and what to call it. Default: the record's.
        files: for a split that is a file of its own, its name.
        limits: for a split of which only some rows were used, how many at most.
        languages: their codes; none if unknown.
        base: the model that the training started from; "" for none.
        license: the Hub's name of the weights' licence. Default: none is claimed.
    """

    name: str
    task: str
    opening: str
    sections: str
    repository: str = ""
    call: str = '"..."'
    output: str = ""
    notes: str = ""
    examples: str = ""
    data: tuple[str, str] | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    limits: Mapping[str, int] = field(default_factory=dict)
    languages: Sequence[str] = ()
    base: str = ""
    license: str | None = None


def render_card(card: Card, record: Record, config: PreTrainedConfig) -> str:
    """A card's text."""
    results: list[Result] = []
    for split, key, kind, label, factor in METRICS:
        values = record["metrics"].get(split, {})
        if values.get(key) is not None:
            results.append((label.format_map(values), kind, float(factor * values[key]), split))
    sets = {split: f"{split} set" for split in record["metrics"]}
    sets |= {split: f"{split} set, `{name}`" for split, name in card.files.items() if split in sets}
    rows = [
        [label, f"{value:.4f}" if kind == "bits_per_byte" else value, sets[split] + _limit(card.limits.get(split))]
        for label, kind, value, split in results
    ]
    table = format_table(["metric", "value", "on"], rows) if rows else "There were no validation or test data."
    licence = "No licence is given for the weights."
    if card.license is not None:
        licence = f"The weights' licence is `{card.license}`."
    repository = card.repository or f"USER/{card.name}"
    pipeline = f'name = "{repository}"\nmodel = pipeline("{card.task}", name, dtype="float32", trust_remote_code=True)'
    example = f'{pipeline}\nprint(model({card.call})[0]["{_OUTPUTS[card.task]}"])'
    return _TEMPLATE.format(
        front_matter=describe_for_hub(card, config.model_type, card.data or (record["data"], record["data"]), results),
        name=card.name,
        opening=card.opening,
        usage=f"from transformers import pipeline\n\n{example}",
        output=f"\n```\n{card.output}\n```\n" if card.output else "",
        repository=repository,
        sections=card.sections,
        results=f"{table}\n\n{card.notes}".strip(),
        examples=f"\n## Examples\n\n{card.examples}\n" if card.examples else "",
        training=format_training(record, config),
        command=record["command"],
        licence=licence,
    )


def _limit(rows: int | None) -> str:
    return "" if rows is None else f", its first {rows:,} rows at most"


def describe_for_hub(card: Card, model_type: str, data: tuple[str, str], results: Sequence[Result]) -> str:
    """A card's front matter. The Hub refuses a card with a language that is no code, so such a name is left out."""
    scores = []
    for label, kind, value, split in results:
        kept, shown = (card.files[split], card.files[split]) if split in card.files else data
        scores.append(
            EvalResult(card.task, kept, shown, kind, round(value, 4), metric_name=label, dataset_split=split)
        )
    front = ModelCardData(
        base_model=card.base or None,
        datasets=[data[0]] if data[0].count("/") == 1 else None,  # a Hub id
        eval_results=scores,
        language=[name for name in card.languages if re.fullmatch("[a-z]{2,3}", name)] or None,
        library_name="transformers",
        license=card.license,
        model_name=card.name,
        pipeline_tag=card.task,
        tags=["hf_scratch", model_type],
    )
    return front.to_yaml().strip()


def format_updates(record: Record) -> str:
    """For example "10,000 (84.0 epochs)", or "4,320 (stopped)" for a run that was interrupted."""
    if record.get("stopped") == INTERRUPTED:
        return f"{record['updates']:,} (stopped)"
    if record["epochs"] is None:
        return f"{record['updates']:,}"
    return f"{record['updates']:,} ({record['epochs']:.1f} epochs)"


def format_time(record: Record) -> str:
    """For example "111 minutes"; "" if unknown."""
    return "" if record["minutes"] is None else f"{record['minutes']:.0f} minutes"


def format_training(record: Record, config: PreTrainedConfig) -> str:
    """The card's table of the model that a run has trained, of its config, and of how it was trained."""
    hardware = record["hardware"]
    rows = {
        "parameters": f"{record['parameters']:,}",
        "config": ", ".join(f"{name} {getattr(config, name)}" for name in _CONFIG_FIELDS if hasattr(config, name)),
        "training rows": f"{record['train_rows']:,}" if "train_rows" in record else "",
        "steps": format_updates(record),
        "input tokens": f"{record['input_tokens']:,}",
        "time": format_time(record),
        "date": record.get("date", ""),
        "weights": record.get("weights", ""),
        "seed": record["seed"],
        "hardware": f"{hardware['processes']} x {hardware['device']}, {hardware['cpu_cores']} CPU cores",
        "threads": hardware.get("threads", ""),
        "software": ", ".join(f"{package} {number}" for package, number in record.get("software", {}).items()),
        "cut rows": "; ".join(f"{split}: {text}" for split, text in record.get("cut", {}).items()),
    }
    return format_table(["", ""], [(name, value) for name, value in rows.items() if value != ""])


def write_translation_card(
    trainer: Trainer,
    data_args,
    recipe: str,
    validation: dict[str, Any],
    test: dict[str, Any],
    cut: dict[str, str] | None = None,
    examples: Sequence[tuple[str, str, str]] = (),
    has_short_answers: bool = False,
) -> None:
    """Write `README.md`, `learning_curve.png` and the record `run.json` into the run's folder.

    Args:
        trainer: after `train()`.
        data_args: the script's `TranslationArguments`.
        recipe: the recipe's name, "" without one.
        validation: what `evaluate_and_select_weights` returned, or {}.
        test: what `evaluate_translation` returned, or {}.
        cut: what `count_cut` returned for each split.
        examples: of the test set, each a source, the model's output and the reference.
        has_short_answers: whether the references have one or two words (see `has_short_texts`). BLEU counts four words
            in a row, so it is left out; exact matches count.
    """
    names = {f"eval_{name}": name for name in ("loss", "bleu", "rougeL", "exact_match")}
    metrics = {"validation": {name: validation[key] for key, name in names.items() if key in validation}, "test": test}
    record = build_record(trainer, data_args, recipe, metrics, validation.get("weights", "trained"), cut)
    if has_short_answers:
        record["log"] = [_without_bleu(entry) for entry in record["log"]]
        record["metrics"] = {split: _without_bleu(values) for split, values in record["metrics"].items()}
    is_summary = data_args.task == "summarization"
    languages = [] if is_summary else [data_args.source_lang, data_args.target_lang]
    does = "summarises texts" if is_summary else "translates from `{}` to `{}`".format(*languages)
    texts = {
        "what": f"A Transformer (Vaswani et al. 2017) that {does}.",
        "notes": describe_search(record["metrics"].get("test", {}), data_args.num_beams, data_args.length_penalty),
    }
    shown = {
        "examples": format_examples(("source", "output", "reference"), examples, "The first texts of the test set.")
    }
    if examples:
        source, output, _ = examples[0]
        shown |= {"call": quote(source), "output": _shorten(output)}
    _write(trainer, data_args, record, data_args.task, texts, languages=languages, **shown)


def describe_search(test: Mapping[str, Any], num_beams: int, length_penalty: float) -> str:
    """How a test set was translated, with the signatures of its scores; "" without scores."""
    if not test:
        return ""
    search = f"beam search with {num_beams} beams and length penalty {length_penalty}"
    search = "greedy search" if num_beams == 1 else search
    signatures = ", ".join(f"`{value}`" for key, value in test.items() if key.endswith("_signature"))
    return f"The test set's {test['sentences']:,} texts by {search}. Signatures of the scores:\n{signatures}."


def write_language_model_card(
    trainer: Trainer,
    data_args,
    recipe: str,
    validation: dict[str, Any],
    test: dict[str, Any],
    examples: Sequence[tuple[str, str]] = (),
) -> None:
    """Write `README.md`, `learning_curve.png` and the record `run.json` into the run's folder.

    Args:
        trainer: after `train()`.
        data_args: the script's `LanguageModelArguments`.
        recipe: the recipe's name, "" without one.
        validation: what `evaluate_language_model` returned for the validation split, or {}; may also hold "weights".
        test: the same for the test split.
        examples: each the beginning of a text of the test set, or else of the validation set, and a continuation.
    """
    validation = dict(validation)
    weights = validation.pop("weights", "trained")
    record = build_record(trainer, data_args, recipe, {"validation": validation, "test": test}, weights)
    if data_args.mlm_probability is not None:
        texts = {
            "what": "An encoder (Devlin et al. 2019) that fills in masked tokens.",
            "notes": f"Of the tokens, {data_args.mlm_probability:.0%} are masked; the loss is per masked token.",
        }
        call = 'f"Once upon a {model.tokenizer.mask_token}"'
        _write(trainer, data_args, record, "fill-mask", texts, call=call)
        return
    texts = {
        "what": "A GPT (Radford et al. 2018).",
        "notes": NOTES_ON_SCORES,
    }
    beginning, output = examples[0] if examples else ("Once upon a time", "")
    intro = f"Different beginnings of {'the test set' if test else 'the validation set'}, drawn with seed 0."
    shown = {
        "call": f"{quote(beginning)}, max_new_tokens={min(100, data_args.block_size // 2)}",
        "output": _shorten(output),
        "examples": format_examples(("beginning", "continued"), examples, intro),
    }
    _write(trainer, data_args, record, "text-generation", texts, **shown)


NOTES_ON_SCORES = (
    "Each text is scored by itself, with its end token; bytes are UTF-8. Texts longer than the model's input are "
    "scored in windows that advance by half their length."
)


def _without_bleu(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if "bleu" not in name}


def format_examples(header: Sequence[str], examples: Sequence[Sequence[str]], intro: str) -> str:
    """A table of the first examples below its introduction; "" without examples."""
    rows = [[_shorten(text).replace("|", r"\|") for text in example] for example in examples[:NUM_EXAMPLES]]
    return f"{intro}\n\n{format_table(header, rows)}" if rows else ""


def _shorten(text: str) -> str:
    """A text on one line, at most `LONGEST_EXAMPLE` characters of it."""
    text = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    return text if len(text) <= LONGEST_EXAMPLE else text[: LONGEST_EXAMPLE - 4] + " ..."


def quote(text: str) -> str:
    """A text as a Python string in double quotes."""
    return json.dumps(_shorten(text), ensure_ascii=False)


def describe_objective(trainer: Trainer) -> str:
    """What the training loss is, for a learning curve: what is in it besides the cross-entropy with the labels."""
    terms = {
        "label smoothing": trainer.args.label_smoothing_factor,
        "R-Drop": getattr(trainer, "r_drop_alpha", 0.0),
        "teachers": getattr(trainer, "distillation_alpha", 0.0),
    }
    names = [name for name, weight in terms.items() if weight]
    return f"training objective, with {', '.join(names)}" if names else "training loss"


def _write(trainer: Trainer, data_args, record: Record, task: str, texts: dict[str, str], **options) -> None:
    """Write a run's card, curve and record. `options` are arguments of `Card`."""
    output_dir = require_output_dir(trainer.args)
    model = trainer.accelerator.unwrap_model(trainer.model)
    # the folder or Hub id it was loaded from; "" for a new model
    base = public_name(model.name_or_path) if model.name_or_path else ""
    teachers = getattr(trainer, "teacher_models", []) if getattr(trainer, "distillation_alpha", 0.0) else []
    names = [f"`{hide_folders(teacher.name_or_path)}`" for teacher in teachers]
    files = {split: getattr(data_args, f"{split}_file") for split in record["metrics"]}
    limits = {"validation": data_args.max_eval_samples, "test": data_args.max_predict_samples}
    card = Card(
        name=os.path.basename(os.path.normpath(output_dir)),
        task=task,
        opening=_OPENING.format(
            what=texts["what"],
            origin=f"Trained further from `{base}`" if base else "Trained from scratch",
            recipe=record["recipe"] or "none",
            data=record["data"],
            teachers=f"\nIt has learnt from {', '.join(names)} as well." if names else "",
        ),
        sections=_SECTIONS,
        repository=trainer.args.hub_model_id or "",
        notes=texts["notes"] if record["metrics"] else "",
        files={split: public_name(file) for split, file in files.items() if file},
        limits={split: rows for split, rows in limits.items() if rows is not None},
        base=base,
        license=data_args.license,
        **options,
    )
    ModelCard(render_card(card, record, model.config)).save(os.path.join(output_dir, "README.md"))
    plot_learning_curve(record["log"], output_dir, describe_objective(trainer))
    write_json(record, Path(output_dir, "run.json"))
