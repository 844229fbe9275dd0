# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""The training that benchmark.py measures: ours and the peers', with the same weights and data."""

import copy
import ctypes
import gc
import itertools
import multiprocessing
import random
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
import transformers
from datasets import Dataset, DatasetDict
from transformers import (
    DataCollatorForSeq2Seq,
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
)
from hf_scratch.convert import to_gpt2, to_marian
from hf_scratch.convert.gpt2 import CONFIG as GPT2_FIELDS
from hf_scratch.convert.marian import CONFIG as MARIAN_FIELDS
from hf_scratch.data.loading import load_splits
from hf_scratch.data.pairs import take_pairs, tokenize_pairs
from hf_scratch.tokenization import train_tokenizer
from hf_scratch.training.arguments import TranslationArguments
from hf_scratch.training.parsing import start_training_command
from hf_scratch.training.starting_point import make_model
from hf_scratch.training.trainers import TranslationTrainer

ROOT = Path(__file__).resolve().parents[2]
RECIPE = ROOT / "scripts" / "recipes" / "multi30k_tiny.yaml"
OURS, OURS_BF16, PRODUCTS = "hf_scratch", "hf_scratch bf16", "matrix products"
OURS_STOCK = "hf_scratch, stock call"
MARIAN, GPT2, ARTICLE, CTRANSLATE2 = "MarianMTModel", "GPT2LMHeadModel", "gpt-playground", "CTranslate2"
VOCABULARY = 8000
ROWS, LONGEST = 200, 20  # the encoder-decoder's batch
TEXTS, LENGTH = 16, 256  # the GPT's
QUIET = {"save_strategy": "no", "report_to": "none", "disable_tqdm": True}  # of a trainer


@dataclass
class BenchmarkArguments:
    """What to measure, and on what."""

    output_dir: str = field(default="runs/benchmark", metadata={"help": "Holds the figures and pictures."})
    only: str | None = field(default=None, metadata={"help": "Rows to measure: name,name. Default: all, and growth."})
    rounds: int = field(default=5, metadata={"help": "Measurements per row; slow rows take at most 3."})
    data: str | None = field(default=None, metadata={"help": "Multi30k: a folder or a Hub id. Default: synthetic."})
    model: str | None = field(default=None, metadata={"help": "A trained post-norm translator. Default: train one."})
    articles: str = field(
        default=str(ROOT.parent / "shared" / "seeds"), metadata={"help": "The folder with the articles' texts."}
    )
    threads: int = field(default=2, metadata={"help": "CPU threads of every model."})
    write: bool = field(
        default=False, metadata={"help": "Keep the figures in scripts/benchmark/results and write the README tables."}
    )


@dataclass
class Case:
    """Functions that are measured in turns.

    Args:
        functions: for each competitor's name what one measurement calls.
        warmups: calls of each function before the first measurement.
        rounds: at most this many measurements.
        timed: the measure is the seconds of a call; otherwise it is what the call returns.
        unit: of the measure, a key of `tables.FORMATS`.
        missing: why this case cannot be measured here, "" if it can.
    """

    functions: dict[str, Callable[[], Any]]
    warmups: int = 2
    rounds: int = 1000
    timed: bool = True
    unit: str = "s"
    missing: str = ""


# models and batches


def build(name: str, width: int | None = None, dropout: float | None = None, layers: int = 6, positions: int = LENGTH):
    """Make a model with random weights.

    Args:
        name: "transformer" or its peer "marian"; "gpt" or its peer "gpt2".
        width: d_model or hidden_size. Default: 128 for the encoder-decoders, 256 for the GPTs.
        dropout: Default: 0.3 for the encoder-decoders, 0.1 for the GPTs.
        layers: of the GPTs; the encoder-decoders have 4 and 4.
        positions: the longest input, in tokens.
    """
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
    """A batch of random tokens, (rows, length).

    The encoder-decoders get padded pairs; at length 20 they have 12 to 20 tokens.
    """
    ids = torch.randint(3, VOCABULARY, (rows, length))
    if name in ("gpt", "gpt2"):
        return {"input_ids": ids, "labels": ids}
    is_real = torch.arange(length) < length - torch.arange(rows)[:, None] % (length * 9 // 20)
    labels = torch.randint(3, VOCABULARY, (rows, length)).masked_fill(~is_real, -100)
    return {"input_ids": ids.masked_fill(~is_real, 0), "attention_mask": is_real.long(), "labels": labels}


def make_step(
    model: PreTrainedModel,
    batches: Iterable[dict],
    bf16: bool = False,
    learning_rate: float = 1e-4,
    is_stock: bool = False,
):
    """Make a training step: forward, backward and AdamW on the next batch. It returns the loss.

    With `is_stock`, the model is called as stock Trainer calls it, and its configuration asks to skip the logits.
    """
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), learning_rate, fused=True)
    batches = itertools.cycle(batches)
    options = {"skip_logits": True} if type(model).__name__.startswith("Scratch") and not is_stock else {}
    if is_stock:
        model.config.skip_logits = True

    def step() -> float:
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            loss = model(**next(batches), **options).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    return step


def make_products(*shapes: tuple[int, ...]) -> Callable[[], None]:
    """Make a function that computes the matrix products of a training step and nothing else.

    Args:
        shapes: each (count, ..., m, k, n) stands for `count` products of (..., m, k) and (..., k, n), and their two
            gradients.
    """
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
    """Check that the losses agree, then compare our step in fp32 and bf16, the peer's step and the matrix products."""
    model = build(name).eval()
    other = convert(model).eval()
    with torch.no_grad():
        torch.testing.assert_close(model(**batch).loss, other(**batch).loss, rtol=1e-5, atol=1e-5)
    steps = {OURS: make_step(model, [batch]), peer: make_step(other, [batch])}
    steps[OURS_BF16] = make_step(copy.deepcopy(model), [batch], bf16=True)
    steps[OURS_STOCK] = make_step(copy.deepcopy(model), [batch], is_stock=True)
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
    """Train from the same weights on the same batches in fp32 and in bf16, and describe the difference."""
    torch.manual_seed(0)
    model, batches = build(name, dropout=0.0), [make_batch(name, rows, length) for _ in range(5)]
    curves = []
    for bf16 in (False, True):
        step = make_step(copy.deepcopy(model), batches, bf16, learning_rate=1e-3)
        curves.append([step() for _ in range(steps)])
    difference = max(abs(b / a - 1) for a, b in zip(*curves, strict=True))
    return f"{steps} losses, {curves[0][0]:.2f} to {curves[0][-1]:.2f}, within {difference:.2%} of fp32's"


def read_status(name: str) -> float:
    return int(re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="utf-8"))[1]) / 1024


def run_steps(name: str, rows: int, length: int, training: bool, steps: int, threads: int, **fields):
    """Measure a model alone; must run in a new process.

    Returns:
        The median seconds of all steps after the first, and the peak memory of `steps` steps in MiB.
    """
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(threads)
    torch.manual_seed(0)

    def prepare(rows: int, length: int, **fields) -> Callable[[], Any]:
        model, batch = build(name, **fields), make_batch(name, rows, length)
        if training:
            return make_step(model, [batch])
        return partial(torch.inference_mode()(model.eval()), batch["input_ids"])

    prepare(1, 8, **{**fields, "width": 32})()  # loads the libraries' own pages, which are not part of the peak
    step = prepare(rows, length, **fields)
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    before, times = read_status("VmRSS"), []
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # resets VmHWM, the peak
    for _ in range(steps):
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:]), read_status("VmHWM") - before


def run_alone(*arguments, **fields) -> tuple[float, float]:
    """Call `run_steps` in a new process, forked from one that has imported everything and computed nothing."""
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
    """As many sentences as Multi30k and about as long: invented words, translated word for word."""
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
    """The trainer of scripts/train_translation.py with the recipe `multi30k_tiny`.

    Args:
        tokenizer: of the data.
        train: what `tokenize_pairs` returned.
        output_dir: the trainer's folder.
        config: fields of the model's config that differ from the recipe's.
        options: training arguments that differ from the recipe's.
    """
    options = {**options, "output_dir": output_dir, "eval_strategy": "no", **QUIET}
    words = [str(RECIPE), *(f"--{name}={value}" for name, value in options.items())]
    model_args, data_args, training_args, config_overrides, _ = start_training_command(
        TranslationArguments, Seq2SeqTrainingArguments, ScratchTransformerConfig, words
    )
    fields = {"decoder_start_token_id": tokenizer.bos_token_id, **config_overrides, **(config or {})}
    model = make_model(ScratchTransformerForConditionalGeneration, model_args, fields, tokenizer)
    trainer = TranslationTrainer(
        model=model,
        args=training_args,
        train_dataset=train,
        data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
        max_tokens_per_update=data_args.max_tokens_per_update,
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def seconds_per_token(trainer: Seq2SeqTrainer, warmups: int = 3) -> float:
    """Train for `max_steps` and measure seconds per target token, without padding.

    Everything between the steps counts. The first `warmups` steps do not.
    """
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
    return Case(functions, warmups=0, rounds=3, timed=False, unit="s per token")
