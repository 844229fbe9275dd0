#!/usr/bin/env python
# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Run the published models in other engines: equal tokens, speed and size, against our own float32.

python scripts/benchmark/engines.py --data folder/of/multi30k [--only ctranslate2,gguf] [--write true]

Each engine runs what a command of ours converted, in the same batches. The engines of a work take turns; texts become
tokens before the clock starts. Translations are of the first sentences of Multi30k's test set, texts continue the
prompts of the published GPT's stories.json.
"""

import importlib
import importlib.util
import itertools
import json
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch
from measuring import (
    ROOT,
    STORYTELLER,
    TRANSLATOR,
    Figures,
    ReportArguments,
    describe_conditions,
    keep_rows,
    save_rows,
    take_turns,
    write_tables,
)
from tables import format_engines
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer, HfArgumentParser

import hf_scratch  # noqa: F401  registers the models
from hf_scratch.data.splits import load_splits
from hf_scratch.errors import command

BATCH, BEAMS = 20, 5
Tokens = list[list[int]]
Generate = Callable[[], Tokens]


@dataclass(kw_only=True)
class EngineArguments(ReportArguments):
    """The options of engines.py."""

    data: str = field(metadata={"help": "Multi30k: a folder with test.jsonl."})
    output_dir: str = field(default="runs/engines", metadata={"help": "Folder for engines.json."})
    sentences: int = field(default=200, metadata={"help": "Test sentences to translate."})
    prompts: int = field(default=20, metadata={"help": "Prompts to continue, 20 at most."})
    new_tokens: int = field(default=100, metadata={"help": "Tokens per prompt at most."})
    rounds: int = field(default=3, metadata={"help": "Rounds, of which the median time counts."})
    threads: int = field(default=1, metadata={"help": "Threads of each engine."})


class Task:
    """A published model, its inputs, and the tokens that ours generates from them in float32.

    Args:
        folder: the model's.
        texts: the inputs.
        new_tokens: tokens per text at most.
        num_beams: 1 is greedy.
        batch: texts at a time.
    """

    def __init__(self, folder: Path, texts: list[str], new_tokens: int, num_beams: int, batch: int):
        auto_class = AutoModelForSeq2SeqLM if folder == TRANSLATOR else AutoModelForCausalLM
        self.model = auto_class.from_pretrained(folder, dtype="float32")
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.folder, self.texts, self.new_tokens = folder, texts, new_tokens
        self.num_beams, self.batch = num_beams, batch
        self.batches = [
            self.tokenizer(texts[begin : begin + batch], padding=True, return_tensors="pt")
            for begin in range(0, len(texts), batch)
        ]
        self.ids = [self.tokenizer(text).input_ids for text in texts]
        self.is_translation = folder == TRANSLATOR
        self.what = f"{'translation' if self.is_translation else 'text'}, "
        self.what += f"{num_beams} beams, batches of {batch}" if num_beams > 1 else "greedy, one by one"
        self.expected = self.generate_with(self.model)()

    def generate_with(self, model) -> Generate:
        """`generate()` of a model of transformers, ours or another."""

        def generate() -> Tokens:
            rows = []
            for inputs in self.batches:
                first = 1 if self.is_translation else inputs["input_ids"].shape[1]
                output = model.generate(
                    **inputs, num_beams=self.num_beams, do_sample=False, max_new_tokens=self.new_tokens
                )
                rows += output[:, first:].tolist()
            special = {self.tokenizer.eos_token_id, self.tokenizer.pad_token_id}
            return [[token for token in row if token not in special] for row in rows]

        return generate


def run_command(*words: str) -> str:
    """Run a command of ours, and return its file and the options that matter."""
    subprocess.run([sys.executable, *words], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    pairs = [pair for pair in itertools.pairwise(words) if pair[0] in ("--target", "--quantization")]
    return " ".join([words[0], *itertools.chain(*pairs)])


def convert(task: Task, target: str, quantization: str, folder: Path) -> str:
    """Convert the task's model by convert_checkpoint.py, and return the command's name and options."""
    words = ["scripts/convert_checkpoint.py", "--target", target, "--input", str(task.folder), "--output_dir"]
    options = [] if target in ("gpt2", "pegasus") else ["--quantization", quantization]
    return run_command(*words, str(folder), *options)


def in_hf_scratch(task: Task, quantization: str, folder: Path, threads: int) -> tuple[str, Generate]:
    """Our own model."""
    task.model.save_pretrained(folder)
    return "", task.generate_with(task.model)


def in_transformers(task: Task, quantization: str, folder: Path, threads: int) -> tuple[str, Generate]:
    """transformers' own GPT-2 or Pegasus."""
    made = convert(task, "pegasus" if task.is_translation else "gpt2", quantization, folder)
    auto_class = AutoModelForSeq2SeqLM if task.is_translation else AutoModelForCausalLM
    return made, task.generate_with(auto_class.from_pretrained(folder, dtype=quantization))


def in_ctranslate2(task: Task, quantization: str, folder: Path, threads: int) -> tuple[str, Generate]:
    """CTranslate2, from CPU kernels of the same quantization."""
    import ctranslate2

    made = convert(task, "ctranslate2", quantization, folder)
    engine = ctranslate2.Translator if task.is_translation else ctranslate2.Generator
    model = engine(str(folder), intra_threads=threads, compute_type=quantization)
    rows = [task.tokenizer.convert_ids_to_tokens(ids) for ids in task.ids]
    batches = [rows[begin : begin + task.batch] for begin in range(0, len(rows), task.batch)]  # it would sort all rows
    if task.is_translation:
        options = {"beam_size": task.num_beams, "length_penalty": 1, "max_decoding_length": task.new_tokens}
        run = model.translate_batch
    else:
        options = {"max_length": task.new_tokens, "sampling_topk": 1, "include_prompt_in_result": False}
        options["end_token"] = task.tokenizer.eos_token
        run = model.generate_batch

    def generate() -> Tokens:
        results = [result for batch in batches for result in run(batch, **options)]
        if task.is_translation:
            return [task.tokenizer.convert_tokens_to_ids(result.hypotheses[0]) for result in results]
        return [result.sequences_ids[0] for result in results]

    return made, generate


def in_llama_cpp(task: Task, quantization: str, folder: Path, threads: int) -> tuple[str, Generate]:
    """llama.cpp, with a cache in float32."""
    import llama_cpp

    made = convert(task, "gguf", quantization, folder)
    model = llama_cpp.Llama(
        str(folder / "model.gguf"), n_ctx=task.model.config.max_position_embeddings, n_threads=threads,
        n_threads_batch=threads, type_k=llama_cpp.GGML_TYPE_F32, type_v=llama_cpp.GGML_TYPE_F32, verbose=False,
    )  # fmt: skip

    prompts = [model.tokenize(text.encode()) for text in task.texts]

    def generate() -> Tokens:
        rows = []
        for prompt in prompts:
            tokens = model.generate(prompt, temp=0.0, top_k=1, repeat_penalty=1.0)
            row = itertools.takewhile(lambda token: token != model.token_eos(), tokens)
            rows.append([*itertools.islice(row, task.new_tokens)])
        return rows

    return made, generate


def in_onnxruntime(task: Task, quantization: str, folder: Path, threads: int) -> tuple[str, Generate]:
    """onnxruntime, by the functions of run_onnx.py, a file to be copied."""
    words = ["scripts/export_onnx.py", "--model", str(task.folder), "--output_dir", str(folder)]
    made = run_command(*words, "--quantization", quantization)
    functions = runpy.run_path(str(ROOT / "scripts" / "run_onnx.py"))
    graphs = functions["load"](folder, threads)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return made, lambda: [functions["generate"](graphs, config, ids, task.new_tokens) for ids in task.ids]


# for each engine: its package, what loads and runs it, and the quantizations
ENGINES = {
    "hf_scratch": ("hf_scratch", in_hf_scratch, ("float32",)),
    "transformers": ("transformers", in_transformers, ("float32",)),
    "ctranslate2": ("ctranslate2", in_ctranslate2, ("float32", "int8")),
    "gguf": ("llama_cpp", in_llama_cpp, ("float32", "float16", "int8")),
    "onnx": ("onnxruntime", in_onnxruntime, ("float32", "int8")),
}


def count_equal(row: list[int], wanted: list[int]) -> int:
    """How many tokens of `wanted` come before the first difference."""
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(row, wanted, strict=False)))


def count(task: Task, seconds: list[float], found: Tokens) -> dict[str, Any]:
    """A row's figures: the speed over the rounds, and how many tokens are ours."""
    pairs = list(zip(found, task.expected, strict=True))
    done = len(found) if task.is_translation else sum(len(row) for row in found)
    speeds = {"per_second": median(seconds), "slowest": max(seconds), "fastest": min(seconds)}
    return {
        "equal_tokens": sum(count_equal(*pair) for pair in pairs),
        "tokens": sum(len(row) for row in task.expected),
        "equal": sum(row == wanted for row, wanted in pairs),
        "of": len(task.expected),
        "unit": "sentences" if task.is_translation else "tokens",
        **{name: round(done / each, 1) for name, each in speeds.items()},
    }


def weigh(folder: Path) -> float:
    """The megabytes of the files that hold a model."""
    kinds = (".safetensors", ".bin", ".gguf", ".onnx", ".data")
    return round(sum(path.stat().st_size for path in folder.rglob("*") if path.suffix in kinds) / 1e6, 1)


def measure(task: Task, engines: list[str], args: EngineArguments, data: str) -> list[Figures]:
    """The rows of a work: one per engine and quantization, which take turns after a first call."""
    rows, runs = [], {}
    with tempfile.TemporaryDirectory() as parent:
        for engine in engines:
            package, load, quantizations = ENGINES[engine]
            if importlib.util.find_spec(package) is None:
                print(f"{engine}: {package} is not installed", file=sys.stderr)
                continue
            version = importlib.import_module(package).__version__
            for quantization in quantizations:
                name, folder = f"{engine}, {quantization}: {task.what}", Path(parent, f"{engine}-{quantization}")
                command, runs[name] = load(task, quantization, folder, args.threads)
                rows.append({"name": name, "engine": engine, "what": task.what, "quantization": quantization,
                             "command": command, "version": version, "megabytes": weigh(folder),
                             **describe_conditions(args.threads, data)})  # fmt: skip
        seconds, outputs = take_turns(runs, 1 + args.rounds)
    for row in rows:
        row |= count(task, seconds[row["name"]][1:], outputs[row["name"]][0])
        print(json.dumps(row), file=sys.stderr)
    return rows


@command
def main():
    (args,) = HfArgumentParser(EngineArguments).parse_args_into_dataclasses()
    chosen = {"hf_scratch", *args.choose(ENGINES)}
    sentences = list(load_splits(args.data)["test"]["en"][: args.sentences])
    prompts = json.loads((STORYTELLER / "stories.json").read_text(encoding="utf-8"))["prompts"][: args.prompts]
    torch.set_num_threads(args.threads)
    data, rows = f"{len(sentences)} test sentences of Multi30k, {len(prompts)} prompts", []
    # ONNX graphs have no beam search, and llama.cpp's GPT-2 is no translator
    tasks = [
        (Task(TRANSLATOR, sentences, 128, BEAMS, BATCH), ("hf_scratch", "transformers", "ctranslate2")),
        (Task(TRANSLATOR, sentences, 128, 1, 1), ("hf_scratch", "transformers", "ctranslate2", "onnx")),
        (Task(STORYTELLER, prompts, args.new_tokens, 1, 1), tuple(ENGINES)),
    ]
    for task, engines in tasks:
        rows += measure(task, [engine for engine in engines if engine in chosen], args, data)
    save_rows(Path(args.output_dir, "engines.json"), rows)
    if args.write:
        keep_rows("engines", rows)
        write_tables()
    print(format_engines(rows))


if __name__ == "__main__":
    main()
