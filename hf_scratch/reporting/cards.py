# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Model cards of finished runs: what was trained, how, on what, and what it reached.

The values come from the run's record (records.py); this module formats them.
"""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData
from transformers import PreTrainedConfig, Trainer

from ..loading import hide_folders, public_name, require_output_dir
from .plots import plot_learning_curve
from .records import INTERRUPTED, Record, build_record, write_record
from .tables import format_table

_TEMPLATE = """---
{front_matter}
---

# {name}

{what} {origin} with hf_scratch, recipe `{recipe}`, data `{data}`.{teachers}

```python
{usage}
```

`{repository}` stands for the model's repository on the Hub, or for its folder. With hf_scratch installed,
`import hf_scratch` takes the place of `trust_remote_code=True`.

## Results

{results}

![Learning curve](learning_curve.png)
{examples}
## Training

{training}

```
{command}
```

The code in this folder is under Apache 2.0. {licence} The data have their own licence.
"""
NUM_EXAMPLES, LONGEST_EXAMPLE = 5, 400  # texts, characters
Result = tuple[str, str, float, str]  # a score's label, the Hub's name of its metric, its value, and the split

# (split, key of the record's metrics, the Hub's name of the metric, label in the card, factor)
_TRANSLATION_METRICS = (
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
_LANGUAGE_MODEL_METRICS = tuple(
    (split, key, key, label, 1)
    for split in ("validation", "test")
    for key, label in (
        ("bits_per_byte", "bits per byte"),
        ("loss", "loss [nats per token]"),
        ("perplexity", "perplexity"),
        ("accuracy", "accuracy of {answers} answers"),
        ("masked_accuracy", "accuracy on {tokens:,} masked tokens"),
    )
)


def format_updates(record: Record) -> str:
    """For example "10,000 (84.0 epochs)", or "4,320 (stopped)" for a run that was interrupted."""
    if record.get("stopped") == INTERRUPTED:
        return f"{record['updates']:,} (stopped)"
    if record["epochs"] is None:
        return f"{record['updates']:,}"
    return f"{record['updates']:,} ({record['epochs']:.1f} epochs)"


def format_time(record: Record) -> str:
    """For example "111 minutes"; "" if unknown."""
    if record["minutes"] is None:
        return ""
    minutes = f"{record['minutes']:.0f}"
    return f"{minutes} minute" if minutes == "1" else f"{minutes} minutes"


def format_training(record: Record, config: PreTrainedConfig) -> str:
    """The card's table of the model that a run has trained, of its config, and of how it was trained."""
    hardware = record["hardware"]
    device = f"{hardware['processes']} x {hardware['device']}, {hardware['cpu_cores']} CPU cores"
    rows = {
        "parameters": f"{record['parameters']:,}",
        **_describe_model(config),
        "training rows": f"{record['train_rows']:,}" if "train_rows" in record else "",
        "updates": format_updates(record),
        "input tokens": f"{record['input_tokens']:,}",
        "time": format_time(record),
        "weights": record.get("weights", ""),
        "seed": record["seed"],
        "hardware": device,
        "threads": hardware.get("threads", ""),
        "software": ", ".join(f"{package} {number}" for package, number in record.get("software", {}).items()),
    }
    if cut := record.get("cut"):
        rows["cut rows"] = "; ".join(f"{split}: {text}" for split, text in cut.items())
    return format_table(["", ""], [(name, value) for name, value in rows.items() if value != ""])


def _describe_model(config: PreTrainedConfig) -> dict[str, str]:
    """Rows of the card's table. Those of another model's config that it does not tell are ""."""
    layers = str(getattr(config, "num_hidden_layers", ""))
    if config.is_encoder_decoder and hasattr(config, "encoder_layers"):
        layers = f"{config.encoder_layers} in the encoder, {config.decoder_layers} in the decoder"
    norms = {True: "before each sublayer (pre-norm)", False: "after each sublayer (post-norm)", None: ""}
    positions = getattr(config, "position_embedding_type", "")
    if positions and (longest := getattr(config, "max_position_embeddings", None)):
        positions += f", at most {longest}"
    return {
        "layers": layers,
        "width": str(getattr(config, "hidden_size", "")),
        "norm": norms[getattr(config, "norm_first", None)],
        "positions": positions,
    }


def describe_for_hub(
    name: str,
    task: str,
    model_type: str,
    data: tuple[str, str],
    results: Sequence[Result],
    languages: Sequence[str] = (),
    base: str = "",
    metrics: Sequence[str] = (),
    license: str | None = None,
    files: Mapping[str, str] | None = None,
) -> str:
    """A card's front matter.

    Args:
        name: the model's name.
        task: the Hub's id of the task.
        model_type: the configuration's.
        data: the data's Hub id, or else a name, and what to call it.
        results: the scores.
        languages: their codes; none if unknown. The Hub refuses a card with any other name, so that is left out.
        base: the model that the training started from; "" for none.
        metrics: the Hub's names of the scores that matter most.
        license: the Hub's name of the weights' licence. Default: none is claimed.
        files: for a split that is a file of its own, its name, which is then that of the scores' data.
    """
    scores = []
    for label, kind, value, split in results:
        names = (files[split], files[split]) if files and split in files else data
        scores.append(EvalResult(task, *names, kind, round(value, 4), metric_name=label, dataset_split=split))
    card = ModelCardData(
        base_model=base or None,
        datasets=[data[0]] if data[0].count("/") == 1 else None,  # a Hub id
        eval_results=scores,
        language=[name for name in languages if re.fullmatch("[a-z]{2,3}", name)] or None,
        library_name="transformers",
        license=license,
        metrics=list(metrics) or None,
        model_name=name,
        pipeline_tag=task,
        tags=["hf_scratch", model_type],
    )
    return card.to_yaml().strip()


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
        test = _without_bleu(test)
    notes = ""
    if test:
        signatures = ", ".join(f"`{value}`" for key, value in test.items() if key.endswith("_signature"))
        search = f"beam search with {data_args.num_beams} beams and length penalty {data_args.length_penalty}"
        search = "greedy search" if data_args.num_beams == 1 else search
        notes = f"The test set's {test['sentences']} texts by {search}. Signatures of the scores:\n{signatures}."
    is_summary = data_args.task == "summarization"
    languages = [] if is_summary else [data_args.source_lang, data_args.target_lang]
    does = "summarises texts" if is_summary else "translates from `{}` to `{}`".format(*languages)
    name = "summarizer" if is_summary else "translator"
    texts = {
        "what": f"A Transformer (Vaswani et al. 2017) that {does}.",
        "usage": "from transformers import pipeline\n\n"
        f'{name} = pipeline("{data_args.task}", model="{{repository}}", trust_remote_code=True)\n{name}("...")',
        "notes": notes,
        "examples": _format_examples(("source", "output", "reference"), examples, "The first texts of the test set."),
    }
    _write(trainer, data_args, record, _TRANSLATION_METRICS, data_args.task, languages, texts)


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
        task = "fill-mask"
        texts = {
            "what": "An encoder (Devlin et al. 2019) that fills in masked tokens.",
            "usage": "from transformers import pipeline\n\n"
            'unmasker = pipeline("fill-mask", model="{repository}", trust_remote_code=True)\n'
            'unmasker(f"Once upon a {unmasker.tokenizer.mask_token}")',
            "notes": f"Of the tokens, {data_args.mlm_probability:.0%} are masked; the loss is per masked token.",
            "examples": "",
        }
    else:
        task = "text-generation"
        split = "the test set" if test else "the validation set"
        intro = f"Different beginnings of {split}, drawn with seed 0."
        texts = {
            "what": "A GPT (Radford et al. 2018).",
            "usage": "from transformers import pipeline\n\n"
            'writer = pipeline("text-generation", model="{repository}", trust_remote_code=True)\n'
            f'writer("Once upon a time", max_new_tokens={min(100, data_args.block_size // 2)})',
            "notes": "Each text is scored by itself, with its end token; bytes are UTF-8. Texts longer than the "
            "model's input are scored in windows that advance by half their length.",
            "examples": _format_examples(("beginning", "continued"), examples, intro),
        }
    _write(trainer, data_args, record, _LANGUAGE_MODEL_METRICS, task, [], texts)


def _without_bleu(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if "bleu" not in name}


def _format_examples(header: tuple[str, ...], examples: Sequence[tuple], intro: str) -> str:
    """A section of the card; "" without examples."""
    if not examples:
        return ""
    rows = [[_show_text(text) for text in example] for example in examples[:NUM_EXAMPLES]]
    return f"\n## Examples\n\n{intro}\n\n{format_table(header, rows)}\n"


def _show_text(text: str) -> str:
    """A text for a cell of a table, at most `LONGEST_EXAMPLE` characters of it."""
    text = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    text = text if len(text) <= LONGEST_EXAMPLE else text[: LONGEST_EXAMPLE - 4] + " ..."
    return text.replace("|", r"\|")


def describe_objective(trainer: Trainer) -> str:
    """What the training loss is, for a learning curve: what is in it besides the cross-entropy with the labels."""
    terms = {
        "label smoothing": trainer.args.label_smoothing_factor,
        "R-Drop": getattr(trainer, "r_drop_alpha", 0.0),
        "teachers": getattr(trainer, "distillation_alpha", 0.0),
    }
    names = [name for name, weight in terms.items() if weight]
    return f"training objective, with {', '.join(names)}" if names else "training loss"


def _write(
    trainer: Trainer, data_args, record: Record, metrics: tuple, task: str, languages: list[str], texts: dict[str, str]
) -> None:
    """Write card, curve and record. `texts` are the template's, and `notes`, a paragraph below the results."""
    output_dir = require_output_dir(trainer.args)
    model = trainer.accelerator.unwrap_model(trainer.model)
    name = os.path.basename(os.path.normpath(output_dir))
    base = model.name_or_path  # the folder or Hub id it was loaded from; "" for a new model
    base = public_name(base) if base else ""
    results: list[Result] = []
    for split, key, kind, label, factor in metrics:
        values = record["metrics"].get(split, {})
        if values.get(key) is not None:
            results.append((label.format(**values), kind, float(factor * values[key]), split))
    given = {split: getattr(data_args, f"{split}_file") for split in record["metrics"]}
    files = {split: public_name(file) for split, file in given.items() if file}
    sets = {split: f"{split} set" + (f", `{files[split]}`" if split in files else "") for split in given}
    for split, limit in (("validation", data_args.max_eval_samples), ("test", data_args.max_predict_samples)):
        if limit is not None and split in sets:
            sets[split] += f", its first {limit:,} rows at most"
    rows = [[label, value, sets[split]] for label, _, value, split in results]
    data = (record["data"], record["data"])
    options: dict[str, Any] = {"license": data_args.license, "files": files}
    table = format_table(["metric", "value", "on"], rows)
    licence = f"The weights are under `{data_args.license}`."
    if data_args.license is None:
        licence = "No licence is given for the weights."
    repository = trainer.args.hub_model_id or f"USER/{name}"
    teachers = getattr(trainer, "teacher_models", []) if getattr(trainer, "distillation_alpha", 0.0) else []
    names = [f"`{hide_folders(teacher.name_or_path)}`" for teacher in teachers]
    card = _TEMPLATE.format(
        front_matter=describe_for_hub(name, task, model.config.model_type, data, results, languages, base, **options),
        name=name,
        recipe=record["recipe"] or "none",
        data=record["data"],
        what=texts["what"],
        origin=f"Trained further from `{base}`" if base else "Trained from scratch",
        teachers=f"\nIt has learnt from {', '.join(names)} as well." if names else "",
        usage=texts["usage"].replace("{repository}", repository),
        repository=repository,
        licence=licence,
        results=f"{table}\n\n{texts['notes']}" if results else "There were no validation or test data.",
        examples=texts["examples"],
        training=format_training(record, model.config),
        command=record["command"],
    )
    ModelCard(card).save(os.path.join(output_dir, "README.md"))
    plot_learning_curve(record["log"], output_dir, describe_objective(trainer))
    write_record(record, Path(output_dir, "run.json"))
