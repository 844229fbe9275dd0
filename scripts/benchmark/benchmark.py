#!/usr/bin/env python
# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Measure the speed and memory of hf_scratch against its peers: Markdown tables and benchmark.json.

python scripts/benchmark/benchmark.py [--data DIR] [--only train_gpt,translate] [--output_dir runs/benchmark]
python scripts/benchmark/benchmark.py --data DIR --write true

A ratio is the peer's measure over ours: 1.4 means that the peer takes 1.4 times as long for the same work, or 1.4
times as much memory. It is the median of the rounds' ratios.

Peers have the same dimensions, weights, data, dtype and threads. They take turns with ours in one process, so other
load on the machine affects both. Memory, and work beside busy processes, are measured in processes of their own.
"""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

import torch
import transformers
from cases import (
    BF16,
    STOCK_CALL,
    BenchmarkArguments,
    Case,
    beside_busy_processes,
    compare_batching,
    compare_generation,
    compare_loop,
    compare_memory,
    compare_trainers,
    compare_training,
    compare_translation,
)
from datasets import disable_progress_bars
from measuring import Figures, describe_conditions, keep_rows, save_rows, take_turns, write_tables
from peers import OURS, PEGASUS
from tables import format_benchmark
from transformers import HfArgumentParser

from hf_scratch.errors import command

SAMPLED, BEAMS = {"do_sample": True, "top_p": 0.9}, {"num_beams": 5}
# for each topic its rows: what is measured, and what makes its case
TOPICS: dict[str, dict[str, tuple[str, Callable[[BenchmarkArguments], Case]]]] = {
    "Training": {
        "train_transformer": ("step, encoder-decoder, fp32", partial(compare_training, "transformer", OURS)),
        "train_gpt": ("step, GPT, fp32", partial(compare_training, "gpt", OURS)),
        "train_gpt_long": ("step, GPT of 2 layers, one row of 4,096 tokens", partial(compare_training, "long", OURS)),
        "train_gpt_narrow": ("step, GPT 64 wide, 4 rows of 256 tokens", partial(compare_training, "narrow", OURS)),
        "train_transformer_bf16": ("step, encoder-decoder, bf16", partial(compare_training, "transformer", BF16)),
        "train_gpt_bf16": ("step, GPT, bf16", partial(compare_training, "gpt", BF16)),
        "train_transformer_stock": (
            "step, encoder-decoder, with logits, as under stock Trainer",
            partial(compare_training, "transformer", STOCK_CALL),
        ),
        "train_gpt_stock": (
            "step, GPT, with logits, as under stock Trainer",
            partial(compare_training, "gpt", STOCK_CALL),
        ),
        "train_end_to_end": ("Trainer, multi30k_tiny, target tokens; both group by length", compare_trainers),
        "train_batching": ("the same, ours by tokens against ours grouped by length", compare_batching),
        "memory_transformer": (
            "memory that 3 steps add, encoder-decoder, fp32",
            partial(compare_memory, "transformer"),
        ),
        "memory_gpt": ("memory that 3 steps add, GPT, fp32", partial(compare_memory, "gpt")),
    },
    "Generation on a CPU": {
        "generate_gpt": ("200 tokens, greedy, batch 1", compare_generation),
        "loop_greedy": ("100 tokens of the published GPT, greedy", partial(compare_loop, {})),
        "loop_sampling": ("the same, sampled with top_p", partial(compare_loop, SAMPLED)),
        "loop_beams": ("the same, 5 beams", partial(compare_loop, BEAMS)),
        "translate": (
            "1,000 test sentences, 5 beams, batches of 64, sorted by length",
            partial(compare_translation, (OURS, True), (PEGASUS, True)),
        ),
        "translate_file_order": (
            "the same, both in file order",
            partial(compare_translation, (OURS, False), (PEGASUS, False)),
        ),
        "translate_sorting": (
            "the same, ours sorted by length against ours in file order",
            partial(compare_translation, (OURS, True), (OURS, False)),
        ),
    },
    "A busy machine": {
        "busy_train": (
            "step, encoder-decoder, beside two busy processes",
            partial(beside_busy_processes, "transformer"),
        ),
        "busy_generate": ("200 tokens, greedy, beside two busy processes", partial(beside_busy_processes, "gpt")),
    },
}
NAMES = [name for rows in TOPICS.values() for name in rows]


def measure_row(topic: str, name: str, args: BenchmarkArguments) -> Figures:
    """The row of the report: for each competitor what was measured in each round."""
    torch.manual_seed(0)
    what, make_case = TOPICS[topic][name]
    conditions, case = describe_conditions(args.threads), make_case(args)
    take_turns(case.functions, case.warmups)
    seconds, outputs = take_turns(case.functions, min(args.rounds, case.rounds))
    measures = seconds if case.timed else outputs
    note = case.note(*(values[-1] for values in outputs.values()))
    print(name, {who: median(values) for who, values in measures.items()}, file=sys.stderr, flush=True)
    row = {"name": name, "topic": topic, "what": what, "unit": case.unit, "measures": measures, "note": note}
    return row | conditions | {"data": case.data}


@command
def main():
    (args,) = HfArgumentParser(BenchmarkArguments).parse_args_into_dataclasses()
    only = args.choose(NAMES)
    torch.set_num_threads(args.threads)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    disable_progress_bars()
    rows: list[Figures] = []
    for topic, names in TOPICS.items():
        for name in names:
            if name in only:
                rows.append(measure_row(topic, name, args))
                # after each row, so that a failure of a later one loses nothing
                save_rows(Path(args.output_dir, "benchmark.json"), rows)
    if args.write:
        keep_rows("benchmark", rows, NAMES)
        write_tables()
    print(format_benchmark(rows))


if __name__ == "__main__":
    main()
