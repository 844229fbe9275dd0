#!/usr/bin/env python
# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Measure hf_scratch's speed and memory against its peers: a Markdown table, benchmark.json and pictures.

python scripts/benchmark.py [--data ../shared/data/multi30k] [--only train_gpt,growth] [--output_dir runs/benchmark]

How to read a ratio: the peer's median over ours, so that 1.4 is "the peer takes 1.4 times as long on the same work".
Against the matrix products alone it is the share of our step that they would take, each at its full size. Where the
target says "<", less is better: memory is ours over the peer's, and the start-up rows are plain seconds.

Peers have the same dimensions, weights, data, dtype and threads, and take turns with ours in one process, so that what
else the machine does meets both. Memory is measured in a process for each: the peak of three steps, with gradients and
the optimiser's moments, above what was there before the first.
"""

import copy
import ctypes
import gc
import itertools
import json
import multiprocessing
import os
import platform
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import torch
import transformers
from datasets import Dataset, DatasetDict, disable_progress_bars
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    DataCollatorForSeq2Seq,
    GenerationConfig,
    GPT2Config,
    GPT2LMHeadModel,
    MarianConfig,
    MarianMTModel,
    PreTrainedModel,
    PrinterCallback,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
)

from hf_scratch import (
    ScratchGPTConfig,
    ScratchGPTForCausalLM,
    ScratchTransformerConfig,
    ScratchTransformerForConditionalGeneration,
    TranslationPipeline,
)
from hf_scratch.arguments import ModelArguments, TranslationArguments, parse_arguments, parse_overrides
from hf_scratch.convert import from_article, to_gpt2, to_marian
from hf_scratch.convert.gpt2 import CONFIG as GPT2_FIELDS
from hf_scratch.convert.marian import CONFIG as MARIAN_FIELDS
from hf_scratch.data import load_splits, take_pairs, tokenize_pairs
from hf_scratch.tokenization import train_tokenizer
from hf_scratch.training import TranslationTrainer, prepare_arguments

ROOT = Path(__file__).resolve().parents[1]
RECIPE = ROOT / "scripts" / "recipes" / "multi30k_tiny.yaml"
OURS, OURS_BF16, PRODUCTS = "hf_scratch", "hf_scratch bf16", "matrix products"
MARIAN, GPT2, ARTICLE, CTRANSLATE2 = "MarianMTModel", "GPT2LMHeadModel", "gpt-playground", "CTranslate2"
VOCABULARY = 8000
ROWS, LONGEST = 200, 20  # the encoder-decoder's batch
TEXTS, LENGTH = 16, 256  # the GPT's
QUIET = {"save_strategy": "no", "report_to": "none", "disable_tqdm": True}  # of a trainer
SHOW = {"s": "{:.3f} s".format, "MiB": "{:,.0f} MiB".format, "s a token": lambda s: f"{1 / s:,.0f} tokens/s"}


@dataclass
class BenchmarkArguments:
    """What to measure, and on what."""

    output_dir: str = field(default="runs/benchmark", metadata={"help": "Holds the figures and pictures."})
    only: str | None = field(default=None, metadata={"help": "Rows to measure: name,name. Default: all, and growth."})
    rounds: int = field(default=5, metadata={"help": "Measurements of each; at most 3 of what takes long."})
    data: str | None = field(default=None, metadata={"help": "Multi30k: a folder or a Hub id. Default: synthetic."})
    model: str | None = field(default=None, metadata={"help": "A trained post-norm translator. Default: train one."})
    articles: str = field(default=str(ROOT.parent / "shared" / "seeds"), metadata={"help": "The articles' folder."})
    threads: int = field(default=2, metadata={"help": "CPU threads, for all."})


@dataclass
class Case:
    """What is measured in turns.

    Args:
        functions: who: what one measurement calls; its seconds are the measure, or if not `timed` what it returns.
        rounds: at most so many.
        missing: why nothing of it can be measured here.
    """

    functions: dict[str, Callable[[], Any]]
    warmups: int = 2
    rounds: int = 1000
    timed: bool = True
    unit: str = "s"
    missing: str = ""


@dataclass
class Row:
    """A line of the table: `ours` against `peer`, two functions of a case.

    Args:
        peer: None leaves ours as it is.
        at_most: the target is a limit from above, and the ratio is ours over the peer's.
        note: of what the two functions returned last.
    """

    name: str
    what: str
    case: Callable[[BenchmarkArguments], Case]
    peer: str | None
    target: float
    ours: str = OURS
    at_most: bool = False
    note: Callable[[Any, Any], str] = lambda *_: ""


# models and batches


def build(name: str, width: int | None = None, dropout: float | None = None, layers: int = 6, positions: int = LENGTH):
    """A model with random weights: "transformer" or its peer "marian", "gpt" or "gpt2"; `layers` are the GPT's."""
    common = {"vocab_size": VOCABULARY, "max_position_embeddings": positions, "pad_token_id": 0, "bos_token_id": 1}
    if name in ("transformer", "marian"):
        sizes = {"layers": 4, "attention_heads": 4, "ffn_dim": 256}
        sizes = {f"{side}_{key}": size for side in ("encoder", "decoder") for key, size in sizes.items()}
        rate = 0.3 if dropout is None else dropout
        config = ScratchTransformerConfig(d_model=width or 128, dropout=rate, **sizes, **common)
        return ScratchTransformerForConditionalGeneration(config) if name == "transformer" else build_marian(config)
    width, rate = width or 256, 0.1 if dropout is None else dropout
    config = ScratchGPTConfig(
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=max(width // 64, 1),
        hidden_act="gelu_new",
        **dict.fromkeys(("embedding_dropout", "hidden_dropout", "attention_dropout"), rate),
        **common,
    )
    if name == "gpt":
        return ScratchGPTForCausalLM(config)
    return GPT2LMHeadModel(GPT2Config(**{theirs: getattr(config, ours) for ours, theirs in GPT2_FIELDS.items()}))


def build_marian(config: ScratchTransformerConfig) -> MarianMTModel:
    return MarianMTModel(MarianConfig(**{name: getattr(config, name) for name in MARIAN_FIELDS}))


def make_batch(name: str, rows: int, length: int) -> dict[str, torch.Tensor]:
    """Random tokens; for the encoder-decoders, pairs of 12 to 20 tokens (for a length of 20), padded."""
    ids = torch.randint(3, VOCABULARY, (rows, length))
    if name in ("gpt", "gpt2"):
        return {"input_ids": ids, "labels": ids}
    is_real = torch.arange(length) < length - torch.arange(rows)[:, None] % (length * 9 // 20)
    labels = torch.randint(3, VOCABULARY, (rows, length)).masked_fill(~is_real, -100)
    return {"input_ids": ids.masked_fill(~is_real, 0), "attention_mask": is_real.long(), "labels": labels}


def make_step(model: PreTrainedModel, batches: Iterable[dict], bf16: bool = False, learning_rate: float = 1e-4):
    """A training step on the next batch: forward, backward, AdamW. It returns the loss."""
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), learning_rate, fused=True)
    batches = itertools.cycle(batches)
    options = {"skip_logits": True} if type(model).__name__.startswith("Scratch") else {}

    def step() -> float:
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            loss = model(**next(batches), **options).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    return step


def make_products(*shapes: tuple[int, ...]) -> Callable[[], None]:
    """For each (count, ..., m, k, n), `count` products (..., m, k) by (..., k, n) and their two gradients."""
    products = []
    for count, *batch, m, k, n in shapes:
        a, b, c = torch.randn(*batch, m, k), torch.randn(*batch, n, k).mT, torch.randn(*batch, m, n)
        products.append((count, a, b, c, torch.empty_like(a), torch.empty(*batch, k, n), torch.empty_like(c)))

    def run():
        for count, a, b, c, a_gradient, b_gradient, output in products:
            for _ in range(count):
                torch.matmul(a, b, out=output)
                torch.matmul(c, b.mT, out=a_gradient)
                torch.matmul(a.mT, c, out=b_gradient)

    return run


# training


def compare_training(name: str, convert: Callable, peer: str, batch: dict, *shapes: tuple[int, ...]) -> Case:
    """Our step in fp32 and bf16, the peer's, and the step's products, once it is seen that the losses agree."""
    model = build(name).eval()
    other = convert(model).eval()
    with torch.no_grad():
        torch.testing.assert_close(model(**batch).loss, other(**batch).loss, rtol=1e-5, atol=1e-5)
    steps = {OURS: make_step(model, [batch]), peer: make_step(other, [batch])}
    steps[OURS_BF16] = make_step(copy.deepcopy(model), [batch], bf16=True)
    return Case({**steps, PRODUCTS: make_products(*shapes)})


def train_transformer(args: BenchmarkArguments) -> Case:
    batch, tokens = make_batch("transformer", ROWS, LONGEST), ROWS * LONGEST
    shapes = [(48, tokens, 128, 128), (8, tokens, 128, 256), (8, tokens, 256, 128)]
    shapes += [(12, 4 * ROWS, LONGEST, 32, LONGEST), (12, 4 * ROWS, LONGEST, LONGEST, 32)]
    shapes.append((1, int((batch["labels"] != -100).sum()), 128, VOCABULARY))
    return compare_training("transformer", to_marian, MARIAN, batch, *shapes)


def train_gpt(args: BenchmarkArguments) -> Case:
    tokens = TEXTS * LENGTH
    shapes = [(24, tokens, 256, 256), (6, tokens, 256, 1024), (6, tokens, 1024, 256)]
    shapes += [(6, 4 * TEXTS, LENGTH, 64, LENGTH), (6, 4 * TEXTS, LENGTH, LENGTH, 64)]
    shapes.append((1, tokens - TEXTS, 256, VOCABULARY))
    return compare_training("gpt", to_gpt2, GPT2, make_batch("gpt", TEXTS, LENGTH), *shapes)


def compare_loss_curves(name: str, rows: int, length: int, *_, steps: int = 30) -> str:
    """Train from the same weights on the same batches in fp32 and in bf16."""
    torch.manual_seed(0)
    model, batches = build(name, dropout=0.0), [make_batch(name, rows, length) for _ in range(5)]
    curves = []
    for bf16 in (False, True):
        step = make_step(copy.deepcopy(model), batches, bf16, learning_rate=1e-3)
        curves.append([step() for _ in range(steps)])
    difference = max(abs(b / a - 1) for a, b in zip(*curves, strict=True))
    return f"{steps} losses, {curves[0][0]:.2f} to {curves[0][-1]:.2f}, within {difference:.2%} of fp32's"


def read_status(name: str) -> float:
    return int(re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) / 1024


def run_steps(name: str, rows: int, length: int, training: bool, steps: int, threads: int, **fields):
    """The median seconds of a step but the first, and the peak memory of `steps` steps in MiB; in a new process."""
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(threads)
    torch.manual_seed(0)

    def prepare(rows: int, length: int, **fields) -> Callable[[], Any]:
        model, batch = build(name, **fields), make_batch(name, rows, length)
        if training:
            return make_step(model, [batch])
        return partial(torch.inference_mode()(model.eval()), batch["input_ids"])

    prepare(1, 8, **{**fields, "width": 32})()  # the libraries' own pages are no part of the peak
    step = prepare(rows, length, **fields)
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    before, times = read_status("VmRSS"), []
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts again from here
    for _ in range(steps):
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:]), read_status("VmHWM") - before


def run_alone(*arguments, **fields) -> tuple[float, float]:
    """`run_steps` in a new process, forked from one that has imported all of this and computed nothing."""
    context = multiprocessing.get_context("forkserver")
    ours = ("datasets", "hf_scratch", "matplotlib", "transformers")
    context.set_forkserver_preload([name for name in sys.modules if name.startswith(ours)])
    with context.Pool(1) as pool:
        return pool.apply(run_steps, arguments, fields)


def compare_memory(name: str, peer_name: str, peer: str, rows: int, length: int, args: BenchmarkArguments) -> Case:
    def measure_peak(name: str) -> float:
        return run_alone(name, rows, length, True, 3, args.threads)[1]

    functions = {OURS: partial(measure_peak, name), peer: partial(measure_peak, peer_name)}
    return Case(functions, warmups=0, rounds=3, timed=False, unit="MiB")


# training end to end


@cache
def load_pairs(data: str | None):
    """The tokenizer, the training set as tokens, and the test pairs."""
    splits = make_sentences() if data is None else load_splits(data)
    train, test = (take_pairs(splits[name], "en", "de", name) for name in ("train", "test"))
    tokenizer = train_tokenizer([*train["source"], *train["target"]], "joint", VOCABULARY, 128, show_progress=False)
    return tokenizer, tokenize_pairs(train, tokenizer, 128, 128, "train"), test


def make_sentences() -> DatasetDict:
    """As many sentences as Multi30k's and about as long, of made-up words, translated word for word."""
    rng = random.Random(0)
    syllables = ["".join(pair) for pair in itertools.product("bdfgklmnprstvw", "aeiou")]
    words = [["".join(rng.choices(syllables, k=rng.randint(1, 4))) for _ in range(2)] for _ in range(8000)]
    weights = list(itertools.accumulate(1 / rank for rank in range(1, len(words) + 1)))  # Zipf's law

    def make_pair() -> dict[str, str]:
        pairs = rng.choices(words, cum_weights=weights, k=max(4, round(rng.gauss(12, 4))))
        return {lang: " ".join(side) + "." for lang, side in zip(("en", "de"), zip(*pairs, strict=True), strict=True)}

    sizes = {"train": 29000, "test": 1000}
    return DatasetDict({name: Dataset.from_list([make_pair() for _ in range(size)]) for name, size in sizes.items()})


def make_trainer(tokenizer, train: Dataset, output_dir: str, config: dict | None = None, **options):
    """The trainer of scripts/train_translation.py with the recipe; `options` are training arguments."""
    options = {**options, "output_dir": output_dir, "eval_strategy": "no", **QUIET}
    types = (ModelArguments, TranslationArguments, Seq2SeqTrainingArguments)
    flags = [f"--{name}={value}" for name, value in options.items()]
    (model_args, data_args, training_args), _ = parse_arguments(*types, args=[str(RECIPE), *flags])
    prepare_arguments(training_args)
    fields = parse_overrides(model_args.config_overrides, ScratchTransformerConfig) | (config or {})
    fields |= {name: getattr(tokenizer, name) for name in ("pad_token_id", "bos_token_id", "eos_token_id")}
    fields |= {"vocab_size": len(tokenizer), "decoder_start_token_id": tokenizer.bos_token_id}
    model = ScratchTransformerForConditionalGeneration(ScratchTransformerConfig(**fields))
    trainer = TranslationTrainer(
        model=model,
        args=training_args,
        train_dataset=train,
        data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
        max_tokens_per_batch=data_args.max_tokens_per_batch,
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def seconds_per_token(trainer: Seq2SeqTrainer, warmups: int = 3) -> float:
    """Train for `max_steps`; all that happens between the steps counts, and tokens of targets that are no padding."""
    steps, take_step = [], type(trainer).training_step

    def training_step(model, inputs, *args, **kwargs):
        steps.append((time.perf_counter(), int((inputs["labels"] != -100).sum())))
        return take_step(trainer, model, inputs, *args, **kwargs)

    trainer.training_step = training_step
    trainer.train()
    return (steps[-1][0] - steps[warmups][0]) / sum(tokens for _, tokens in steps[warmups:-1])


def train_end_to_end(args: BenchmarkArguments) -> Case:
    tokenizer, train, _ = load_pairs(args.data)
    ours = make_trainer(tokenizer, train, args.output_dir, max_steps=24)
    model = build_marian(ours.model.config)
    options = {"per_device_train_batch_size": 200, "label_smoothing_factor": 0.1, "max_steps": 12, **QUIET}
    stock = Seq2SeqTrainer(
        model=model,
        args=Seq2SeqTrainingArguments(args.output_dir, **options, dataloader_pin_memory=torch.cuda.is_available()),
        train_dataset=train,
        data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
    )
    stock.remove_callback(PrinterCallback)
    functions = {OURS: partial(seconds_per_token, ours), MARIAN: partial(seconds_per_token, stock)}
    return Case(functions, warmups=0, rounds=3, timed=False, unit="s a token")


# generation


def compare_generation(model: ScratchGPTForCausalLM, peer: str, generate: Callable) -> Case:
    prompt = torch.randint(3, VOCABULARY, (1, 8))
    ours = partial(model.eval().generate, prompt, max_new_tokens=200, do_sample=False)
    return Case({OURS: ours, peer: partial(generate, prompt)})


def generate_gpt(args: BenchmarkArguments) -> Case:
    model = build("gpt")
    return compare_generation(model, GPT2, partial(to_gpt2(model).generate, max_new_tokens=200, do_sample=False))


def generate_gpt_article(args: BenchmarkArguments) -> Case:
    """gpt-playground's own code, out of the article's text; its model has an untied head and the exact GELU."""
    paths = list(Path(args.articles).glob("000_*.txt"))
    if not paths:
        return Case({}, missing=f"there is no article 000 in {args.articles}")
    code, space = "\n".join(re.findall(r"```python\n(.*?)```", paths[0].read_text(), flags=re.DOTALL)), {}
    exec(code, space)
    sizes = {"n_layer": 6, "n_head": 4, "embedding_dim": 256, "vocab_size": VOCABULARY, "block_size": LENGTH}
    theirs = space["GPT"](**sizes).eval()
    model = from_article("gpt-playground", theirs.state_dict(), **sizes)
    return compare_generation(model, ARTICLE, partial(theirs.generate, required_chars=200))


def check_tokens(ours: torch.Tensor, theirs: torch.Tensor) -> str:
    assert ours.shape[1] == 208
    assert torch.equal(ours, theirs)
    return "equal tokens"


# translation


def load_translator(args: BenchmarkArguments):
    """A trained model and its tokenizer. Marian is post-norm, and so is the model, unlike the recipe's."""
    folder = Path(args.model or Path(args.output_dir, "translator" if args.data else "translator_synthetic"))
    if args.model is None and not (folder / "config.json").is_file():
        tokenizer, train, _ = load_pairs(args.data)
        options = {"max_steps": 500, "warmup_steps": 200, "learning_rate": 2.5e-3, "bf16": True, "use_cpu": True}
        trainer = make_trainer(tokenizer, train, str(folder), {"norm_first": False, "dropout": 0.1}, **options)
        trainer.train()
        trainer.save_model()
        tokenizer.save_pretrained(folder)
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    ids = {name: getattr(model.config, name) for name in ("pad_token_id", "eos_token_id", "decoder_start_token_id")}
    model.generation_config = GenerationConfig(**ids, max_length=64, num_beams=5, early_stopping=True)
    return model.eval(), tokenizer


def translate(model: PreTrainedModel, tokenizer, sources: list[str]) -> list[str]:
    records = TranslationPipeline(model=model, tokenizer=tokenizer)(list(sources), batch_size=64)
    return [record["translation_text"] for record in records]


def translate_as_stock(model: PreTrainedModel, tokenizer, sources: list[str]) -> list[str]:
    translations = []
    for begin in range(0, len(sources), 64):
        output = model.generate(**tokenizer(sources[begin : begin + 64], padding=True, return_tensors="pt"))
        translations += tokenizer.batch_decode(output, skip_special_tokens=True)
    return translations


def make_ctranslate2(marian: MarianMTModel, tokenizer, threads: int) -> Callable[[list[str]], list[str]]:
    import ctranslate2
    from ctranslate2.converters import transformers as loaders

    class Loader(loaders.BartLoader):
        """CTranslate2's own for Marian takes the padding token for the last and starts from it; ours is `<s>`."""

        architecture_name = "MarianMTModel"

        def get_model_spec(self, model):
            model.config.normalize_before = model.config.normalize_embedding = False
            return super().get_model_spec(model)

        def set_config(self, config, model, tokenizer):
            super().set_config(config, model, tokenizer)
            config.unk_token = tokenizer.pad_token  # a byte-level vocabulary has none

    loaders._MODEL_LOADERS["MarianConfig"] = Loader()
    with tempfile.TemporaryDirectory() as folder:
        marian.save_pretrained(f"{folder}/marian")
        tokenizer.save_pretrained(f"{folder}/marian")
        loaders.TransformersConverter(f"{folder}/marian").convert(f"{folder}/ctranslate2")
        translator = ctranslate2.Translator(
            f"{folder}/ctranslate2", inter_threads=1, intra_threads=threads, compute_type="float32"
        )
    options = {"beam_size": 5, "length_penalty": 1, "max_decoding_length": 63, "min_decoding_length": 0}

    def run(sources: list[str]) -> list[str]:
        tokens = [tokenizer.convert_ids_to_tokens(ids) for ids in tokenizer(sources)["input_ids"]]
        results = translator.translate_batch(tokens, max_batch_size=64, **options)  # sorts them by length
        ids = [tokenizer.convert_tokens_to_ids(result.hypotheses[0]) for result in results]
        return tokenizer.batch_decode(ids, skip_special_tokens=True)

    return run


def compare_translation(args: BenchmarkArguments) -> Case:
    sources = list(load_pairs(args.data)[2]["source"])
    model, tokenizer = load_translator(args)
    marian = to_marian(model)
    functions = {OURS: partial(translate, model, tokenizer), MARIAN: partial(translate_as_stock, marian, tokenizer)}
    functions[CTRANSLATE2] = make_ctranslate2(marian, tokenizer, args.threads)
    for function in functions.values():
        function(sources[:64])
    return Case({name: partial(function, sources) for name, function in functions.items()}, warmups=0, rounds=3)


def count_equal(ours: list[str], theirs: list[str]) -> str:
    equal = sum(a == b for a, b in zip(ours, theirs, strict=True))
    return f"{equal:,} of {len(ours):,} translations equal"


# start-up


def run_python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout


def import_seconds(modules: Iterable[str] = ()) -> float:
    """Of `import hf_scratch`, after `import transformers` and these modules."""
    imports = "\n".join(f"import {name}" for name in ("time", "transformers", *modules))
    code = "start = time.perf_counter()\nimport hf_scratch\nprint(time.perf_counter() - start)"
    return float(run_python(f"{imports}\n{code}"))


def import_time(args: BenchmarkArguments) -> Case:
    code = "import sys, hf_scratch\nprint(*[name for name in sys.modules if name.startswith('transformers.')])"
    return Case({OURS: partial(import_seconds, run_python(code).split())}, warmups=1, timed=False)


def load_time(args: BenchmarkArguments) -> Case:
    folder = str(Path(args.output_dir, "gpt_of_10_mb"))
    build("gpt", width=192, layers=2).save_pretrained(folder)
    return Case({OURS: partial(AutoModelForCausalLM.from_pretrained, folder)})


# the table

MEMORY_TRANSFORMER = partial(compare_memory, "transformer", "marian", MARIAN, ROWS, LONGEST)
MEMORY_GPT = partial(compare_memory, "gpt", "gpt2", GPT2, TEXTS, LENGTH)
# fmt: off
TABLE = [
    Row("train_transformer", "training step, encoder-decoder, fp32", train_transformer, MARIAN, 1.4),
    Row("train_gpt", "training step, GPT, fp32", train_gpt, GPT2, 1.3),
    Row("train_transformer_bf16", "training step, encoder-decoder, bf16", train_transformer, OURS, 1.5, OURS_BF16,
        note=partial(compare_loss_curves, "transformer", ROWS // 4, LONGEST)),
    Row("train_gpt_bf16", "training step, GPT, bf16", train_gpt, OURS, 1.5, OURS_BF16,
        note=partial(compare_loss_curves, "gpt", TEXTS // 4, LENGTH)),
    Row("memory_transformer", "peak memory, encoder-decoder, fp32", MEMORY_TRANSFORMER, MARIAN, 0.5, at_most=True),
    Row("memory_gpt", "peak memory, GPT, fp32", MEMORY_GPT, GPT2, 0.5, at_most=True),
    Row("train_end_to_end", "Trainer, recipe multi30k_tiny, target tokens", train_end_to_end, MARIAN, 2.0),
    Row("generate_gpt", "200 tokens, greedy, batch 1", generate_gpt, GPT2, 2.5, note=check_tokens),
    Row("generate_gpt_article", "the same", generate_gpt_article, ARTICLE, 6.0, note=check_tokens),
    Row("translate_marian", "1,000 test sentences, 5 beams", compare_translation, MARIAN, 2.0, note=count_equal),
    Row("translate_ctranslate2", "the same", compare_translation, CTRANSLATE2, 0.5, note=count_equal),
    Row("matmul_transformer", "encoder-decoder's step, fp32, its limit", train_transformer, PRODUCTS, 0.7),
    Row("matmul_gpt", "GPT's step, fp32, its limit", train_gpt, PRODUCTS, 0.7),
    Row("import_time", "`import hf_scratch` itself, seconds", import_time, None, 0.3, at_most=True,
        note=lambda *_: f"{import_seconds():.1f} s with the modules of transformers that it imports"),
    Row("load_time", "`from_pretrained` of 10 MB, seconds", load_time, None, 0.2, at_most=True),
]
# fmt: on


def measure(case: Case, names: list[str], rounds: int) -> tuple[dict[str, list[float]], dict[str, Any]]:
    """The measures and the last output of each function of `names`, called in turns."""
    for name in names * case.warmups:
        case.functions[name]()
    measures, outputs = {name: [] for name in names}, {}
    for _, name in itertools.product(range(min(rounds, case.rounds)), names):
        start = time.perf_counter()
        outputs[name] = case.functions[name]()
        seconds = time.perf_counter() - start
        measures[name].append(seconds if case.timed else outputs[name])
    return measures, outputs


def fill_rows(rows: list[Row], args: BenchmarkArguments) -> list[dict]:
    """What is printed and saved of the rows of one case."""
    torch.manual_seed(0)
    case = rows[0].case(args)
    wanted = {name for row in rows for name in (row.ours, row.peer)}
    measures, outputs = measure(case, [name for name in case.functions if name in wanted], args.rounds)
    results = []
    for row in rows:
        result = {name: getattr(row, name) for name in ("name", "what", "ours", "peer", "target", "at_most")}
        result |= {"unit": case.unit, "missing": case.missing}
        if not case.missing:
            ours, peer = (statistics.median(measures[name]) if name else 1.0 for name in (row.ours, row.peer))
            result["ratio"] = ours / peer if row.at_most else peer / ours
            result["measures"] = {name: measures[name] for name in (row.ours, row.peer) if name}
            result["note"] = row.note(outputs[row.ours], outputs.get(row.peer))
            print(f"{row.name}: {result['ratio']:.2f}", file=sys.stderr, flush=True)
        results.append(result)
    return results


def score(result: dict) -> float:
    """How much of its target a row reaches; above 1, it is reached."""
    share = result["ratio"] / result["target"]
    return 1 / share if result["at_most"] else share


def format_table(results: list[dict]) -> str:
    lines = ["| ratio | target | reached | work | ours | peer | rounds | |", "|---" * 8 + "|"]
    for result in results:
        target = f"{'< ' if result['at_most'] else ''}{result['target']:.1f}"
        work = f"`{result['name']}`: {result['what']}"
        if result["missing"]:
            lines.append(f"| | {target} | | {work} | | {result['peer']} | | not measured: {result['missing']} |")
            continue
        rounds, show = len(result["measures"][result["ours"]]), SHOW[result["unit"]]
        ours, peer = [*(f"{who} {show(statistics.median(m))}" for who, m in result["measures"].items()), ""][:2]
        reached = "yes" if score(result) >= 1 else "no"
        ratio = f"**{result['ratio']:.2f}**"
        lines.append(f"| {ratio} | {target} | {reached} | {work} | {ours} | {peer} | {rounds} | {result['note']} |")
    return "\n".join(lines)


def plot_ratios(results: list[dict], path: Path, longest: float = 2.5) -> None:
    """A bar a row, as long as its ratio is against its target."""
    results = [result for result in results if not result["missing"]][::-1]
    figure, axis = plt.subplots(figsize=(8, 1 + 0.34 * len(results)), layout="constrained")
    for i, result in enumerate(results):
        length = min(score(result), longest)
        axis.barh(i, length, color="tab:green" if length >= 1 else "tab:orange", height=0.7)
        text = f"{result['ratio']:.2f} ({'<' if result['at_most'] else '≥'} {result['target']:g})"
        text += f" against {result['peer']}" if result["peer"] else " seconds"
        axis.text(max(length, 1) + 0.03, i, text, va="center", fontsize=8)
    axis.axvline(1, color="black", linewidth=1)
    axis.set_yticks(range(len(results)), [result["name"] for result in results])
    axis.set_xticks([0, 0.5, 1, 1.5, 2, longest], ["0", "0.5", "target", "1.5", "2", f"≥ {longest}"])
    axis.set_xlim(0, longest + 1.5)
    axis.set_xlabel("share of the target that is reached")
    axis.set_axisbelow(True)
    axis.grid(axis="x", alpha=0.3)
    figure.savefig(path, dpi=120)


# growth


def measure_growth(args: BenchmarkArguments) -> list[dict]:
    """Seconds and peak memory of a GPT of two layers and of GPT-2, without dropout, each in a process of its own."""
    points = [("length", length, 4096 // length, length, 256) for length in (128, 256, 512, 1024, 2048, 4096)]
    points += [("width", width, 4, LENGTH, width) for width in (64, 128, 256, 512, 1024)]
    points += [("batch", rows, rows, LENGTH, 256) for rows in (1, 2, 4, 8, 16, 32)]
    results = []
    for axis, value, rows, length, width in points:
        results.append({"axis": axis, "value": value, "rows": rows, "length": length, "width": width})
        fields = {"width": width, "layers": 2, "dropout": 0.0, "positions": length}
        for mode, (who, name) in itertools.product(("training", "inference"), ((OURS, "gpt"), (GPT2, "gpt2"))):
            seconds, mib = run_alone(name, rows, length, mode == "training", 4, args.threads, **fields)
            results[-1][f"{who}, {mode}"] = {"seconds": seconds, "MiB": mib}
        print(f"growth: {axis} {value}", file=sys.stderr, flush=True)
    return results


def format_growth(results: list[dict]) -> str:
    columns = [(mode, key) for mode in ("training", "inference") for key in ("seconds", "MiB")]
    heads = [f"{mode}: {key}, {OURS} / {GPT2}" for mode, key in columns]
    lines = [f"| | rows x length, width | {' | '.join(heads)} |", "|---" * 6 + "|"]
    for result in results:
        cells = [f"{result['axis']} {result['value']:,}", f"{result['rows']} x {result['length']}, {result['width']}"]
        for mode, key in columns:
            values = [result[f"{who}, {mode}"][key] for who in (OURS, GPT2)]
            cells.append(" / ".join(f"{value:.3f}" if key == "seconds" else f"{value:,.0f}" for value in values))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def plot_growth(results: list[dict], path: Path) -> None:
    titles = {
        "length": "4,096 tokens, 256 wide",
        "width": "4 rows of 256 tokens",
        "batch": "rows of 256 tokens, 256 wide",
    }
    figure, axes = plt.subplots(2, 3, figsize=(11, 6), sharex="col", sharey="row", layout="constrained")
    for (row, key), (column, name) in itertools.product(enumerate(("seconds", "MiB")), enumerate(titles)):
        axis, points = axes[row, column], [result for result in results if result["axis"] == name]
        for who, mode in itertools.product((OURS, GPT2), ("training", "inference")):
            style = {"color": "tab:blue" if who == OURS else "tab:orange", "marker": "o", "markersize": 4}
            style |= {"linestyle": "-" if mode == "training" else "--", "label": f"{who}, {mode}"}
            axis.plot([point["value"] for point in points], [p[f"{who}, {mode}"][key] for p in points], **style)
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.set_xticks([point["value"] for point in points], [f"{point['value']:,}" for point in points])
        axis.grid(alpha=0.3)
        if row == 0:
            axis.set_title(titles[name])
        else:
            axis.set_xlabel(name)
    axes[0, 0].set_ylabel("seconds a step")
    axes[1, 0].set_ylabel("peak memory [MiB]")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    figure.savefig(path, dpi=120)


def describe_machine(args: BenchmarkArguments) -> dict[str, Any]:
    cpu = re.search(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text())
    return {
        "cpu": cpu[1] if cpu else platform.machine(),
        "cores": os.cpu_count(),
        "threads": args.threads,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "date": time.strftime("%Y-%m-%d"),
        "data": args.data or "synthetic sentences about as long as Multi30k's",
    }


def main():
    (args,), _ = parse_arguments(BenchmarkArguments)
    names = [*(row.name for row in TABLE), "growth"]
    only = args.only.split(",") if args.only else names
    if unknown := [name for name in only if name not in names]:
        raise SystemExit(f"--only has {', '.join(unknown)}; the rows are {', '.join(names)}.")
    output_dir = Path(args.output_dir)
    output_dir.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(args.threads)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    disable_progress_bars()

    start, rows = time.perf_counter(), [row for row in TABLE if row.name in only]
    report = {"machine": describe_machine(args), "rows": [], "growth": []}

    def save():  # after each case: what is measured is kept if a later one fails
        report["machine"]["minutes"] = round((time.perf_counter() - start) / 60, 1)
        (output_dir / "benchmark.json").write_text(json.dumps(report, indent=2) + "\n")

    for case in dict.fromkeys(row.case for row in rows):
        report["rows"] += fill_rows([row for row in rows if row.case is case], args)
        save()
    if "growth" in only:
        report["growth"] = measure_growth(args)
        save()
    results, growth = sorted(report["rows"], key=lambda result: names.index(result["name"])), report["growth"]
    if results:
        plot_ratios(results, output_dir / "benchmark.png")
        print(f"\n{format_table(results)}")
    if growth:
        plot_growth(growth, output_dir / "growth.png")
        print(f"\n{format_growth(growth)}")
    print("\n" + ", ".join(f"{name} {value}" for name, value in report["machine"].items()))


if __name__ == "__main__":
    main()
