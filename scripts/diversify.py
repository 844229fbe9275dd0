#!/usr/bin/env python
# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Add translations by trained models to the training data (data diversification, Nguyen et al. 2020).

python scripts/diversify.py --dataset_name bentrevett/multi30k --models FORWARD1 FORWARD2 BACKWARD1 --output_dir MORE
python scripts/train_translation.py multi30k_tiny --dataset_name MORE --output_dir OUT

Each model translates the column of its own source language. A forward model thus gives the training data's sources
new targets, and a backward model gives its targets new sources. The new folder has the old pairs first, then the new
ones, each once; validation and test data stay as they are. `accelerate launch` shares the work among processes.
"""

from dataclasses import dataclass, field

import hf_scratch_launcher  # noqa: F401  before torch, whose OpenMP it sets
import torch
from accelerate import PartialState
from datasets import Dataset
from transformers import AutoModelForSeq2SeqLM

import hf_scratch  # noqa: F401  registers the models
from hf_scratch.data.pairs import check_lengths, count_tokens, take_pairs
from hf_scratch.data.splits import check_new_folder, load_splits, save_splits
from hf_scratch.errors import UserError, command, preparation
from hf_scratch.evaluation.translation import translate
from hf_scratch.loading import check_fits, load_checkpoint, load_tokenizer
from hf_scratch.training.arguments import DTYPES, option
from hf_scratch.training.command_line import parse_arguments


@dataclass
class DiversificationArguments:
    """The options of diversify.py."""

    dataset_name: str = field(metadata={"help": "A Hub id, or a folder with the layout of one."})
    models: list[str] = field(metadata={"help": "Translators between the two languages, in either direction."})
    output_dir: str = field(metadata={"help": "A new folder for train.jsonl and the other splits."})
    num_beams: int = option(5, "Beams; 1 is greedy.")
    batch_size: int = option(64, "Sentences per batch.")
    dtype: str = option("float32", "Dtype of the weights.", choices=list(DTYPES))
    disable_tqdm: bool = option(False, "Show no progress bars.")
    cache_dir: str | None = option(None, "Folder for downloads.")


def load_translators(args: DiversificationArguments) -> list[tuple]:
    """Load each model with its tokenizer and its two languages.

    Raises:
        UserError: a model does not say its languages, or they are other ones than the first model's.
    """
    state, translators = PartialState(cpu=not torch.accelerator.is_available()), []
    for path in args.models:
        model = load_checkpoint(AutoModelForSeq2SeqLM, path, dtype=args.dtype, cache_dir=args.cache_dir)
        tokenizer = load_tokenizer(path, cache_dir=args.cache_dir)
        check_fits(tokenizer, model.config)
        languages = [getattr(model.config, name, None) for name in ("source_lang", "target_lang")]
        first = translators[0][2] if translators else languages
        if None in languages or {*languages} != {*first}:
            raise UserError(
                f"`models`: {path} has the `source_lang` and `target_lang` {languages}, and {args.models[0]} {first}. "
                "All must translate between the same two languages."
            )
        translators.append((model.to(state.device).eval(), tokenizer, languages))
    return translators


def select_sources(pairs: Dataset, is_forward: bool, path: str, model, tokenizer) -> list[str]:
    """The texts that a model will translate, each once: the pairs' sources, or their targets.

    Raises:
        ValueError: a text is longer than the model's input.
    """
    texts = pairs["source" if is_forward else "target"]
    longest = getattr(model.config, "max_position_embeddings", None)
    what = f"training sources ({model.config.source_lang!r}) of {path}"
    check_lengths(count_tokens(texts, tokenizer), longest, what, "Shorten or remove them.")
    return list(dict.fromkeys(texts))


@command
def main() -> None:
    with preparation():
        (args,), _ = parse_arguments(DiversificationArguments)
        output_dir = check_new_folder(args.output_dir, args.dataset_name)
        splits = load_splits(args.dataset_name, cache_dir=args.cache_dir)
        translators = load_translators(args)
        columns = translators[0][2]
        parts = {name: take_pairs(part, *columns, name=f"{name} data") for name, part in splits.items()}
        sources = [
            select_sources(parts["train"], languages == columns, path, model, tokenizer)
            for path, (model, tokenizer, languages) in zip(args.models, translators, strict=True)
        ]
    old = parts["train"]
    pairs = dict.fromkeys(zip(old["source"], old["target"], strict=True))
    counts = [f"{args.dataset_name}: {len(pairs):,} different pairs of {len(old):,}"]
    for path, (model, tokenizer, languages), texts in zip(args.models, translators, sources, strict=True):
        with torch.inference_mode():
            translations = translate(model, tokenizer, texts, args.batch_size, num_beams=args.num_beams)
        is_forward, before = languages == columns, len(pairs)
        new = zip(texts, translations, strict=True) if is_forward else zip(translations, texts, strict=True)
        pairs.update(dict.fromkeys(pair for pair in new if all(text.strip() for text in pair)))
        counts.append(f"{path} ({'-'.join(languages)}): {len(pairs) - before:,} new pairs")
    if PartialState().is_main_process:
        parts["train"] = Dataset.from_dict({"source": [s for s, _ in pairs], "target": [t for _, t in pairs]})
        names = dict(zip(("source", "target"), columns, strict=True))
        save_splits({name: part.rename_columns(names) for name, part in parts.items()}, output_dir)
        print("\n".join([*counts, ", ".join(f"{name}: {len(part):,} pairs" for name, part in parts.items())]))


if __name__ == "__main__":
    main()
