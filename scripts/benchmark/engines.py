#!/usr/bin/env python
# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Run the published models in other engines: equal tokens, speed and size, against our own float32.

python scripts/benchmark/engines.py --data folder/of/multi30k [--only ctranslate2,gguf] [--write true]

Each engine runs what a command of ours converted. Translations are of the first sentences of Multi30k's test set,
texts continue the prompts of the storyteller's stories.json.
"""

import importlib.util
import itertools
import json
import os
import runpy
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch
from machine import read_machine
from tables import ENGINE_RESULTS, ROOT, describe_machine, file_name, format_engines, update_readmes
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer
from transformers.utils import logging

from hf_scratch.errors import UserError, command, preparation
from hf_scratch.training.parsing import parse_arguments

TRANSLATOR = ROOT / "model_cards" / "scratch-transformer-multi30k-en-de"
STORYTELLER = ROOT / "model_cards" / "scratch-gpt-tinystories"
PACKAGES = {"ctranslate2": "ctranslate2", "onnx": "onnxruntime", "gguf": "llama_cpp"}
BATCH, BEAMS = 20, 5
Tokens = list[list[int]]
Generate = Callable[[], Tokens]


@dataclass
class EngineArguments:
    """The options of engines.py."""

    data: str = field(metadata={"help": "Multi30k: a folder with test.jsonl."})
    output_dir: str = field(default="runs/engines", metadata={"help": "Folder for engines.json."})
    only: str | None = field(default=None, metadata={"help": "Some engines: transformers, ctranslate2, gguf, onnx."})
    sentences: int = field(default=200, metadata={"help": "Test sentences to translate."})
    prompts: int = field(default=20, metadata={"help": "Prompts to continue, 20 at most."})
    new_tokens: int = field(default=100, metadata={"help": "Tokens per prompt at most."})
    rounds: int = field(default=3, metadata={"help": "Rounds, of which the median time counts."})
    threads: int = field(default=1, metadata={"help": "Threads of each engine."})
    write: bool = field(default=False, metadata={"help": "Keep the figures in results/engines, and write the table."})


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
        self.ids = [self.tokenizer(text).input_ids for text in texts]
        self.is_translation = folder == TRANSLATOR
        self.what = f"{'translation' if self.is_translation else 'text'}, "
        self.what += f"{num_beams} beams, batches of {batch}" if num_beams > 1 else "greedy, one by one"
        self.expected = self.generate_with(self.model)()

    def generate_with(self, model) -> Generate:
        """`generate()` of a model of transformers, ours or another."""

        def generate() -> Tokens:
            rows = []
            for begin in range(0, len(self.texts), self.batch):
                inputs = self.tokenizer(self.texts[begin : begin + self.batch], padding=True, return_tensors="pt")
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
    done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise UserError(f"{' '.join(words)} failed: {done.stderr.strip().splitlines()[-1]}")
    pairs = [pair for pair in itertools.pairwise(words) if pair[0] in ("--target", "--quantization")]
    return " ".join([words[0], *itertools.chain(*pairs)])


def convert(task: Task, target: str, quantization: str, folder: Path) -> str:
    """Convert the task's model by convert_checkpoint.py, and return the command's name and options."""
    words = ["scripts/convert_checkpoint.py", "--target", target, "--input", str(task.folder), "--output_dir"]
    options = [] if target in ("gpt2", "pegasus") else ["--quantization", quantization]
    return run_command(*words, str(folder), *options)


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

    def generate() -> Tokens:
        if task.is_translation:
            results = model.translate_batch(
                rows, beam_size=task.num_beams, length_penalty=1, max_decoding_length=task.new_tokens,
                max_batch_size=task.batch,
            )  # fmt: skip
            return [task.tokenizer.convert_tokens_to_ids(result.hypotheses[0]) for result in results]
        results = model.generate_batch(
            rows, max_length=task.new_tokens, sampling_topk=1, include_prompt_in_result=False,
            end_token=task.tokenizer.eos_token, max_batch_size=task.batch,
        )  # fmt: skip
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

    def generate() -> Tokens:
        rows = []
        for text in task.texts:
            row = []
            for token in model.generate(model.tokenize(text.encode()), temp=0.0, top_k=1, repeat_penalty=1.0):
                if token == model.token_eos():
                    break
                row.append(token)
                if len(row) == task.new_tokens:
                    break
            rows.append(row)
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


ENGINES = {
    "transformers": (in_transformers, ("float32",)),
    "ctranslate2": (in_ctranslate2, ("float32", "int8")),
    "gguf": (in_llama_cpp, ("float32", "float16", "int8")),
    "onnx": (in_onnxruntime, ("float32", "int8")),
}


def count_equal(row: list[int], wanted: list[int]) -> int:
    """How many tokens of `wanted` come before the first difference."""
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(row, wanted, strict=False)))


def measure(task: Task, generate: Generate, rounds: int) -> dict[str, Any]:
    """Generate `rounds` times after a first, and compare the tokens with ours."""
    found, seconds = generate(), []
    for _ in range(rounds):
        start = time.perf_counter()
        generate()
        seconds.append(time.perf_counter() - start)
    tokens, pairs = sum(len(row) for row in found), list(zip(found, task.expected, strict=True))
    return {
        "equal_tokens": sum(count_equal(*pair) for pair in pairs),
        "tokens": sum(len(row) for row in task.expected),
        "equal": sum(row == wanted for row, wanted in pairs),
        "of": len(task.expected),
        "per_second": round((len(found) if task.is_translation else tokens) / median(seconds), 1),
        "unit": "sentences" if task.is_translation else "tokens",
    }


def weigh(folder: Path) -> float:
    """The megabytes of the files that hold a model."""
    kinds = (".safetensors", ".bin", ".gguf", ".onnx", ".data")
    return round(sum(path.stat().st_size for path in folder.rglob("*") if path.suffix in kinds) / 1e6, 1)


@command
def main():
    with preparation():
        (args,), _ = parse_arguments(EngineArguments)
        chosen = args.only.split(",") if args.only else list(ENGINES)
        if unknown := [name for name in chosen if name not in ENGINES]:
            raise UserError(f"`only` is {args.only!r}, but {unknown[0]} is none of {', '.join(ENGINES)}.")
        if args.write and args.only:
            raise UserError("`write` keeps the figures of one whole run: leave out `only`.")
        lines = (Path(args.data) / "test.jsonl").read_text(encoding="utf-8").splitlines()[: args.sentences]
        sentences = [json.loads(line)["en"] for line in lines]
        prompts = json.loads((STORYTELLER / "stories.json").read_text(encoding="utf-8"))["prompts"][: args.prompts]
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.set_num_threads(args.threads)
    start, rows = time.perf_counter(), []
    machine = read_machine(args.threads, f"{len(sentences)} test sentences of Multi30k, {len(prompts)} prompts")
    machine["load_before"] = round(os.getloadavg()[0], 1)
    tasks = {
        "beams": Task(TRANSLATOR, sentences, 128, BEAMS, BATCH),
        "greedy": Task(TRANSLATOR, sentences, 128, 1, 1),
        "texts": Task(STORYTELLER, prompts, args.new_tokens, 1, 1),
    }
    for name, task in tasks.items():
        figures = measure(task, task.generate_with(task.model), args.rounds)
        size = round(sum(p.numel() * 4 for p in task.model.parameters()) / 1e6, 1)
        row = {"engine": "hf_scratch", "what": task.what, "command": "", "quantization": "float32"}
        rows.append({**row, "megabytes": size, "missing": None, **figures})
        for engine in chosen:
            # ONNX graphs have no beam search, and llama.cpp's GPT-2 is no translator
            if (engine, name) in {("onnx", "beams"), ("gguf", "beams"), ("gguf", "greedy")}:
                continue
            if name == "greedy" and engine != "onnx":
                continue
            load, quantizations = ENGINES[engine]
            package = PACKAGES.get(engine, engine)
            for quantization in quantizations:
                row = {"engine": engine, "what": task.what, "command": "", "quantization": quantization}
                if importlib.util.find_spec(package) is None:
                    rows.append({**row, "missing": f"{package} is not installed"})
                    continue
                with tempfile.TemporaryDirectory() as parent:
                    folder = Path(parent) / "model"
                    row["command"], generate = load(task, quantization, folder, args.threads)
                    rows.append({**row, "megabytes": weigh(folder), "missing": None})
                    rows[-1] |= measure(task, generate, args.rounds)
                    print(json.dumps(rows[-1]), file=sys.stderr)
                    del generate
    machine["minutes"] = round((time.perf_counter() - start) / 60, 1)
    report = {"machine": machine, "rows": rows}
    text = json.dumps(report, indent=2) + "\n"
    output_dir = Path(args.output_dir)
    output_dir.mkdir(parents=True, exist_ok=True)
    (output_dir / "engines.json").write_text(text, encoding="utf-8")
    if args.write:
        ENGINE_RESULTS.mkdir(exist_ok=True)
        (ENGINE_RESULTS / file_name(machine)).write_text(text, encoding="utf-8")
        update_readmes(write=True)
    print(f"{format_engines(report)}\n\n{describe_machine(machine)}")


if __name__ == "__main__":
    main()
