# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Model cards, filled from a finished run: what was trained, how, on what, and what it reached."""

import json
import logging
import os
import platform
import shlex
import sys
from importlib.metadata import version
from pathlib import Path

import torch
from huggingface_hub import EvalResult, ModelCard, ModelCardData
from transformers import Trainer

logger = logging.getLogger(__name__)

_TEMPLATE = """---
{front_matter}
---

# {name}

{what} {origin} with hf_scratch, recipe `{recipe}`.

```python
import hf_scratch
from transformers import pipeline

{usage}
```

## Results

{results}

![Learning curve](learning_curve.png)

## Training

| | |
|---|---|
{training}

```
{command}
```
"""


def _without_folders(word: str) -> str:
    """A word of a command; of a path out of the working folder the last name: the rest is nobody's business."""
    flag, sign, path = word.rpartition("=")
    if os.path.isabs(path) or path.startswith(os.pardir):
        path = os.path.basename(os.path.normpath(path))
    return flag + sign + path


def _stopped_early(trainer: Trainer, data_args) -> str:
    """ "" unless the time limit ended the training inside the warm-up, before the learning rate was at its height."""
    args, state = trainer.args, trainer.state
    warmup = args.get_warmup_steps(state.max_steps)
    if getattr(data_args, "max_minutes", None) is None or state.global_step >= min(warmup, state.max_steps):
        return ""
    return f"stopped by the time limit inside the warm-up, at update {state.global_step:,} of {warmup:,}"


def _write(
    trainer: Trainer,
    data_args,
    recipe: str,
    values: dict,
    task: tuple[str, str],
    results: list,
    notes: str,
    cut: dict[str, str] | None,
):
    args, state = trainer.args, trainer.state
    model = trainer.accelerator.unwrap_model(trainer.model)
    name = os.path.basename(os.path.normpath(args.output_dir))
    base = model.name_or_path  # what it was loaded from; "" for a new model
    base = os.path.basename(os.path.normpath(base)) if os.path.isdir(base) else base
    dataset = data_args.dataset_name or data_args.train_file
    public = dataset if not os.path.exists(dataset) else os.path.basename(os.path.normpath(dataset))
    data = ModelCardData(
        library_name="transformers",
        pipeline_tag=task[0],
        tags=["hf_scratch", model.config.model_type],
        model_name=name,
        eval_results=[
            EvalResult(task[0], public, public, kind, value, metric_name=label, dataset_split=split)
            for label, kind, value, split in results
        ],
        **({"base_model": base} if base else {}),
        **values.pop("data"),
    )
    # the end of training; evaluations come after it
    minutes = next((entry["minutes"] for entry in reversed(state.log_history) if "train_runtime" in entry), None)
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor() or platform.machine()
    training = {
        "parameters": f"{model.num_parameters():,}",
        "data": f"`{public}`",
        "updates": f"{state.global_step:,} ({state.epoch:.1f} epochs)",
        "input tokens": f"{state.num_input_tokens_seen:,}",
        "time": f"{minutes:.0f} minutes" if minutes is not None else "",
        "seed": args.seed,
        "hardware": f"{args.world_size} x {device}, {os.cpu_count()} CPU cores",
        "software": ", ".join(f"{package} {version(package)}" for package in ("torch", "transformers", "hf-scratch")),
        **values.pop("training", {}),
    }
    cut = {split: text for split, text in (cut or {}).items() if text}
    if cut:
        training["cut to their limit"] = "; ".join(f"{split}: {text}" for split, text in cut.items())
    if stopped := _stopped_early(trainer, data_args):
        logger.warning(f"The training was {stopped}. Give it more minutes, or fewer `warmup_steps`.")
        training["end"] = stopped
    words = [_without_folders(word) for word in sys.argv[1:]]
    command = shlex.join(["python", os.path.join("scripts", os.path.basename(sys.argv[0])), *words])
    lines = [f"| {label} | {value:.2f} | {split} |" for label, _, value, split in results]
    table = "\n".join(["| metric | value | on |", "|---|---|---|", *lines, "", notes])
    if not results:
        table = "There were no validation or test data."
    card = _TEMPLATE.format(
        front_matter=data.to_yaml().strip(),
        name=name,
        recipe=recipe or "none",
        origin=f"Trained on from `{base}`" if base else "Trained from scratch",
        results=table,
        training="\n".join(f"| {key} | {value} |" for key, value in training.items()),
        command=command,
        **values,
    )
    ModelCard(card).save(os.path.join(args.output_dir, "README.md"))
    figures = {f"{split} {kind} ({label})": value for label, kind, value, split in results}
    run = {"command": command, "recipe": recipe, **training, **figures, "log": state.log_history}
    Path(args.output_dir, "run.json").write_text(json.dumps(run, indent=1) + "\n", encoding="utf-8")


def write_translation_card(
    trainer: Trainer, data_args, recipe: str, validation: dict, test: dict, cut: dict[str, str] | None = None
) -> None:
    """Write `README.md` into the run's folder, and `run.json` with the same and the log.

    Args:
        validation: what `evaluate_and_select_weights` returned, or {}.
        test: what `evaluate_translation` returned, or {}.
        cut: what `count_cut` returned for each split.
    """
    results, notes = [], ""
    if "eval_bleu" in validation:
        results.append(("BLEU, greedy", "bleu", validation["eval_bleu"], "validation"))
    if "eval_exact_match" in validation:
        results.append(
            ("exact matches [%], greedy", "exact_match", 100 * validation["eval_exact_match"], "validation")
        )
    if test:
        results += [
            ("BLEU, cased", "bleu", test["bleu"], "test"),
            ("BLEU, lower-cased", "bleu", test["bleu_lc"], "test"),
            ("BLEU, lower-cased, Moses tokens", "bleu", test.get("bleu_moses"), "test"),
            ("chrF", "chrf", test["chrf"], "test"),
        ]
        results = [result for result in results if result[2] is not None]
        names = ("bleu", "bleu_lc", "bleu_moses", "chrf")
        signatures = ", ".join(f"`{test[f'{name}_signature']}`" for name in names if name in test)
        notes = (
            f"Test translations by beam search with {data_args.num_beams} beams and length penalty "
            f"{data_args.length_penalty}, on {test['sentences']} sentences. sacrebleu's signatures:\n"
            f"{signatures}."
        )
    source, target = data_args.source_lang, data_args.target_lang
    values = {
        "what": f"A Transformer (Vaswani et al. 2017) that translates from `{source}` to `{target}`.",
        "usage": f'translator = pipeline("translation", model="{os.path.basename(trainer.args.output_dir)}")\n'
        'translator("...")',
        "data": {"language": [source, target]},
        "training": {"weights": validation.get("weights", "trained")},
    }
    _write(trainer, data_args, recipe, values, ("translation", "Translation"), results, notes, cut)


def write_language_model_card(trainer: Trainer, data_args, recipe: str, validation: dict, test: dict) -> None:
    """Write `README.md` into the run's folder, and `run.json` with the same and the log.

    Args:
        validation, test: what `evaluate_language_model` returned for these splits, or {}; validation may have
            "weights" too.
    """
    results = []
    for split, values in (("validation", validation), ("test", test)):
        if "bits_per_byte" in values:
            results += [
                ("bits per byte", "bits_per_byte", values["bits_per_byte"], split),
                ("loss [nats a token]", "loss", values["loss"], split),
                ("perplexity", "perplexity", values["perplexity"], split),
            ]
        if "accuracy" in values:
            results.append((f"accuracy of {values['answers']} answers", "accuracy", values["accuracy"], split))
    values = {
        "what": "A GPT (Radford et al. 2018).",
        "usage": f'writer = pipeline("text-generation", model="{os.path.basename(trainer.args.output_dir)}")\n'
        'writer("Once upon a time", max_new_tokens=100)',
        "data": {"language": ["en"]},
        "training": {"weights": validation.get("weights", "trained")},
    }
    notes = "Each text by itself, end token included, bytes in UTF-8; windows move on by half a block."
    _write(trainer, data_args, recipe, values, ("text-generation", "Text generation"), results, notes, None)
