#!/usr/bin/env python
# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Measure `generate()` with each kind of option on a CPU: our decoder against transformers' own loop and its models.

python scripts/benchmark/options.py --data folder/of/multi30k [--only greedy,beams] [--write true]

Both published models run: the storyteller continues one prompt by 100 tokens, the translator translates test sentences
of Multi30k in batches of 20. Transformers' loop runs on the same model. The peer has the same weights, as
GPT2LMHeadModel or PegasusForConditionalGeneration.
"""

import itertools
import json
import sys
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from benchmark_tables import finish, format_options
from report import STORYTELLER, TRANSLATOR, Report, ReportArguments, read_sentences
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer, PreTrainedModel
from transformers.generation import BaseStreamer
from turns import compare, take_turns

from hf_scratch.convert import to_gpt2, to_pegasus
from hf_scratch.errors import command, preparation
from hf_scratch.training.arguments import parse_arguments

BATCH, NEW_TOKENS = 20, 100
PROCESSED = {"min_new_tokens": 10, "repetition_penalty": 1.2, "no_repeat_ngram_size": 3}
SCORES = {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}
BEAMS = {"num_beams": 5}
SAMPLED = {"do_sample": True, "top_p": 0.9}


class Discard(BaseStreamer):
    """A streamer that drops what it gets."""

    def put(self, value: torch.Tensor) -> None:
        pass

    def end(self) -> None:
        pass


# for each name: what is measured, the options of `generate()`, and how the models differ from float32 and "sdpa"
# fmt: off
OPTIONS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "greedy": ("greedy", {}, {}),
    "processed": ("greedy, min_new_tokens, repetition_penalty, no_repeat_ngram_size", PROCESSED, {}),
    "scores": ("greedy, scores and logits returned", SCORES, {}),
    "processed_scores": ("greedy, the same processors, scores and logits returned", PROCESSED | SCORES, {}),
    "sampling": ("sampling, top_p", SAMPLED, {}),
    "streaming": ("greedy, streamed", {"streamer": Discard()}, {}),
    "eager": ("greedy, eager attention", {}, {"attn_implementation": "eager"}),
    "bfloat16": ("greedy, bfloat16", {}, {"dtype": torch.bfloat16}),
    "float16": ("greedy, float16", {}, {"dtype": torch.float16}),
    "prompt_lookup": ("greedy, prompt_lookup_num_tokens", {"prompt_lookup_num_tokens": 4}, {}),
    "beams": ("5 beams", BEAMS, {}),
    "beams_n_best": ("5 beams, num_return_sequences", BEAMS | {"num_return_sequences": 5}, {}),
    "beams_processed": ("5 beams, min_new_tokens, no_repeat_ngram_size",
                        BEAMS | {"min_new_tokens": 5, "no_repeat_ngram_size": 3}, {}),
    "beams_scores": ("5 beams, scores and logits returned", BEAMS | SCORES, {}),
    "beams_sampling": ("5 beams, sampled", BEAMS | SAMPLED, {}),
    "beams_eager": ("5 beams, eager attention", BEAMS, {"attn_implementation": "eager"}),
    "beams_bfloat16": ("5 beams, bfloat16", BEAMS, {"dtype": torch.bfloat16}),
}
# fmt: on
OF_ONE_TEXT = {"streaming", "prompt_lookup"}  # transformers has these for a batch of one alone


@dataclass(kw_only=True)
class OptionArguments(ReportArguments):
    """The options of options.py."""

    data: str = field(metadata={"help": "Multi30k: a folder with test.jsonl."})
    output_dir: str = field(default="runs/options", metadata={"help": "Folder for options.json."})
    sentences: int = field(default=100, metadata={"help": "Test sentences to translate."})
    rounds: int = field(default=5, metadata={"help": "Rounds, in which the three take turns."})
    threads: int = field(default=2, metadata={"help": "CPU threads of every model."})


def load(folder: Path, changes: dict[str, Any]) -> tuple[PreTrainedModel, PreTrainedModel]:
    """A published model and its peer in transformers, which generate until the length is reached."""
    cls, convert = (AutoModelForCausalLM, to_gpt2) if folder == STORYTELLER else (AutoModelForSeq2SeqLM, to_pegasus)
    changes = {"dtype": torch.float32} | changes
    model = cls.from_pretrained(folder, **changes).eval()
    peer = convert(cls.from_pretrained(folder, dtype=torch.float32)).to(changes["dtype"]).eval()
    peer.set_attn_implementation(changes.get("attn_implementation", "sdpa"))
    for each in (model, peer):
        each.generation_config.max_length = None
        each.generation_config.num_beams = 1
    return model, peer


def measure(name: str, folder: Path, batches: list, rounds: int) -> dict[str, Any]:
    """Seconds of ours, of transformers' loop and of the peer in turns, and whether their tokens are equal."""
    what, options, changes = OPTIONS[name]
    model, peer = load(folder, changes)
    options = {"do_sample": False, "max_new_tokens": NEW_TOKENS if folder == STORYTELLER else 60} | options
    runs = {"ours": (model, {}), "loop": (model, {"cache_implementation": "dynamic"}), "peer": (peer, {})}

    def generate(run: PreTrainedModel, more: dict[str, Any]) -> list[list[int]]:
        torch.manual_seed(0)
        outputs = [run.generate(**batch, **options, **more) for batch in batches]
        outputs = [output if isinstance(output, torch.Tensor) else output.sequences for output in outputs]
        return [remove_padding(row.tolist()) for output in outputs for row in output]

    seconds, outputs = take_turns({who: partial(generate, *run) for who, run in runs.items()}, 1 + rounds)
    seconds = {who: values[1:] for who, values in seconds.items()}  # the first is a warm-up
    ours = outputs["ours"][-1]
    row = {"name": name, "what": what, "model": "storyteller" if folder == STORYTELLER else "translator"}
    row |= {"texts": len(ours), "seconds": seconds}
    for who in ("loop", "peer"):
        equal = sum(a == b for a, b in zip(outputs[who][-1], ours, strict=True))
        row[who] = {**compare(seconds[who], seconds["ours"]), "equal": equal}
    return row


def remove_padding(ids: list[int]) -> list[int]:
    while ids and ids[-1] == ids[-2:-1]:
        ids = ids[:-1]
    return ids


@command
def main():
    with preparation():
        (args,), _ = parse_arguments(OptionArguments)
        chosen = args.choose(OPTIONS)
        sentences = read_sentences(args.data, args.sentences)
    report = Report(args.threads, f"{len(sentences)} test sentences of Multi30k, one prompt")
    prompt = AutoTokenizer.from_pretrained(STORYTELLER)("Once upon a time", return_tensors="pt")
    tokenizer = AutoTokenizer.from_pretrained(TRANSLATOR)
    parts = [sentences[begin : begin + BATCH] for begin in range(0, len(sentences), BATCH)]
    batches = [tokenizer(part, padding=True, return_tensors="pt") for part in parts]
    for folder, name in itertools.product((STORYTELLER, TRANSLATOR), chosen):
        if folder == TRANSLATOR and name in OF_ONE_TEXT:
            continue
        inputs = [prompt] if folder == STORYTELLER else batches
        report.figures["rows"].append(measure(name, folder, inputs, args.rounds))
        print(json.dumps(report.figures["rows"][-1]), file=sys.stderr)
    finish(report, args, "options", format_options)


if __name__ == "__main__":
    main()
