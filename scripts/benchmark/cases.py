# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""The work that benchmark.py measures in turns: ours and the peers', with the same weights and data."""

import copy
import itertools
import multiprocessing
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
import transformers
from datasets import Dataset, DatasetDict
from measuring import STORYTELLER, TRANSLATOR, ReportArguments, measure_peak, take_turns
from peers import GPT2, MARIAN, OURS, PEGASUS, Size, list_builders, make_marian_config, make_step
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    DataCollatorForSeq2Seq,
    MarianMTModel,
    PreTrainedModel,
    PrinterCallback,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
)

from hf_scratch import ScratchTransformerConfig, ScratchTransformerForConditionalGeneration
from hf_scratch.convert import to_gpt2, to_marian, to_pegasus
from hf_scratch.data.pairs import take_pairs, tokenize_pairs
from hf_scratch.data.splits import load_splits
from hf_scratch.recipes import read_recipe
from hf_scratch.tokenization import train_tokenizer
from hf_scratch.training.trainers import TranslationTrainer

RECIPE = read_recipe(Path(__file__).parents[1] / "recipes" / "multi30k_tiny.yaml")
BF16, STOCK_CALL, LOOP = "hf_scratch bf16", "hf_scratch, with logits", "transformers' loop"
BY_TOKENS, BY_LENGTH, FILE_ORDER = "hf_scratch, by tokens", "hf_scratch, by length", "in file order"
ASLEEP, SPINNING = "hf_scratch, threads sleep", "torch's default"
VOCABULARY, NEW_TOKENS = 8000, 200
GPT = Size(VOCABULARY, width=256, layers=6, heads=4, inner=1024, positions=256)
SIZES = {
    "gpt": GPT,
    "transformer": Size(VOCABULARY, width=128, layers=4, heads=4, inner=256, positions=256, dropout=0.3),
    "long": replace(GPT, layers=2, dropout=0.0, positions=4096),
    "narrow": replace(GPT, layers=2, dropout=0.0, width=64, heads=1, inner=256),
}
BATCHES = {"gpt": (16, 256), "transformer": (200, 20), "long": (1, 4096), "narrow": (4, 256)}  # rows, tokens per row
CONVERTERS = {GPT2: to_gpt2, MARIAN: to_marian}


@dataclass(kw_only=True)
class BenchmarkArguments(ReportArguments):
    """What to measure, and on what."""

    output_dir: str = field(default="runs/benchmark", metadata={"help": "Holds the figures."})
    rounds: int = field(default=9, metadata={"help": "Measurements per row; slow rows take at most 5."})
    data: str | None = field(default=None, metadata={"help": "Multi30k: a folder or a Hub id. Default: synthetic."})
    threads: int = field(default=2, metadata={"help": "CPU threads of every model."})


@dataclass
class Case:
    """Functions that are measured in turns.

    Args:
        functions: ours and the peer's, by name, each of which is one measurement.
        warmups: calls of each function before the first measurement.
        rounds: at most this many measurements.
        timed: the measure is the seconds of a call; otherwise it is what the call returns.
        unit: of the measure, a key of `tables.UNITS`.
        data: the data's name; "" for random tokens.
        note: makes a remark from what each function returned last.
    """

    functions: dict[str, Callable[[], Any]]
    warmups: int = 2
    rounds: int = 1000
    timed: bool = True
    unit: str = "s"
    data: str = ""
    note: Callable[..., str] = lambda *_: ""


# training


def make_batch(family: str) -> dict[str, torch.Tensor]:
    """A batch of random tokens, (rows, length). The encoder-decoder's pairs have 12 to 20 tokens."""
    rows, length = BATCHES[family]
    ids = torch.randint(3, VOCABULARY, (rows, length))
    if family != "transformer":
        return {"input_ids": ids, "labels": ids}
    is_real = torch.arange(length) < length - torch.arange(rows)[:, None] % (length * 9 // 20)
    labels = torch.randint(3, VOCABULARY, (rows, length)).masked_fill(~is_real, -100)
    return {"input_ids": ids.masked_fill(~is_real, 0), "attention_mask": is_real.long(), "labels": labels}


def compare_training(family: str, kind: str, args: BenchmarkArguments) -> Case:
    """Check that the losses agree, then compare training steps.

    Args:
        family: a key of `SIZES`.
        kind: OURS, the step in fp32 against the peer's; STOCK_CALL, the same with logits, as stock Trainer calls it;
            or BF16 against our own in fp32.
        args: the command's.
    """
    batch, builders = make_batch(family), list_builders(family, SIZES[family])
    model, peer = builders[OURS]().eval(), [*builders][1]
    if kind == BF16:
        return Case({BF16: make_step(copy.deepcopy(model), batch, bf16=True), OURS: make_step(model, batch)})
    other = CONVERTERS[peer](model).eval()
    with torch.no_grad():
        torch.testing.assert_close(model(**batch).loss, other(**batch).loss, rtol=1e-5, atol=1e-5)
    return Case({kind: make_step(model, batch, is_stock=kind == STOCK_CALL), peer: make_step(other, batch)})


def measure_steps(family: str, who: str, threads: int) -> float:
    """The peak memory of three training steps in MiB; must run in a new process."""
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    batch = make_batch(family)
    small = list_builders(family, replace(SIZES[family], width=32, heads=1))[who]()
    # loads the libraries' own pages, which are not part of the peak
    make_step(small, {name: values[:1, :8] for name, values in batch.items()})()
    step = make_step(list_builders(family, SIZES[family])[who](), batch)

    def work() -> None:
        for _ in range(3):
            step()

    return measure_peak(work)


def compare_memory(family: str, args: BenchmarkArguments) -> Case:
    """Gradients, the optimiser's moments and activations: the peak above what was in use before the first step."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([name for name in sys.modules if name.startswith(("hf_scratch", "transformers"))])

    def measure(who: str) -> float:
        with context.Pool(1) as pool:
            return pool.apply(measure_steps, (family, who, args.threads))

    functions = {who: partial(measure, who) for who in list_builders(family, SIZES[family])}
    return Case(functions, warmups=0, rounds=3, timed=False, unit="MiB")


# training end to end


def draw_pairs(num_words: int = 30_000) -> Iterator[dict[str, str]]:
    """Draw sentences of 4 to 20 invented words, as often as Zipf's law says, with a translation word for word."""
    rng = random.Random(0)
    syllables = ["".join(pair) for pair in itertools.product("bdfgklmnprstvw", "aeiou")]
    words = [["".join(rng.choices(syllables, k=rng.randint(1, 4))) for _ in range(2)] for _ in range(num_words)]
    weights = list(itertools.accumulate(1 / rank for rank in range(1, num_words + 1)))
    while True:
        sides = zip(*rng.choices(words, cum_weights=weights, k=rng.randint(4, 20)), strict=True)
        yield {language: " ".join(side) + "." for language, side in zip(("en", "de"), sides, strict=True)}


@cache
def load_pairs(data: str | None):
    """The tokenizer, the training set as tokens, and the test pairs."""
    if data is None:  # as many as Multi30k has
        pairs = draw_pairs(VOCABULARY)
        sizes = {"train": 29_000, "test": 1000}
        splits = DatasetDict({name: Dataset.from_list([next(pairs) for _ in range(n)]) for name, n in sizes.items()})
    else:
        splits = load_splits(data)
    train, test = (take_pairs(splits[name], "en", "de", name) for name in ("train", "test"))
    tokenizer = train_tokenizer([*train["source"], *train["target"]], "joint", VOCABULARY, 128, show_progress=False)
    return tokenizer, tokenize_pairs(train, tokenizer, 128, 128, "train"), test


def name_data(args: BenchmarkArguments) -> str:
    """What a row's record says of the data."""
    return "Multi30k" if args.data else "synthetic sentences about as long as Multi30k's"


def make_trainer(args: BenchmarkArguments, who: str) -> Seq2SeqTrainer:
    """A trainer of the recipe `multi30k_tiny`: ours by tokens or by length, or stock Trainer with Marian by length.

    By length, a step has as many rows as by tokens on average, and so about as many tokens.
    """
    tokenizer, train, _ = load_pairs(args.data)
    ids = {name: getattr(tokenizer, name) for name in ("pad_token_id", "bos_token_id", "eos_token_id")}
    config = ScratchTransformerConfig(
        vocab_size=len(tokenizer), decoder_start_token_id=tokenizer.bos_token_id, **ids, **RECIPE["config_overrides"]
    )
    names = ("learning_rate", "lr_scheduler_type", "warmup_steps", "optim", "adam_beta2", "label_smoothing_factor")
    options = {name: RECIPE[name] for name in names} | {"max_steps": 24, "save_strategy": "no", "report_to": "none"}
    budget = {"max_tokens_per_update": RECIPE["max_tokens_per_update"]} if who == BY_TOKENS else {}
    if who != BY_TOKENS:
        rows = round(len(train) / len(make_trainer(args, BY_TOKENS).batch_sampler))
        options |= {"per_device_train_batch_size": rows, "train_sampling_strategy": "group_by_length"}
    trainer_class, model = TranslationTrainer, ScratchTransformerForConditionalGeneration(config)
    if who == MARIAN:
        trainer_class, model = Seq2SeqTrainer, MarianMTModel(make_marian_config(config))
    trainer = trainer_class(
        model=model,
        args=Seq2SeqTrainingArguments(args.output_dir, disable_tqdm=True, dataloader_pin_memory=False, **options),
        train_dataset=train,
        data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
        **budget,
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


def compare_trainers(args: BenchmarkArguments, ours: str = BY_LENGTH, peer: str = MARIAN) -> Case:
    """The same rows, grouped by length into the same batches."""
    functions = {who: partial(seconds_per_token, make_trainer(args, who)) for who in (ours, peer)}
    return Case(functions, warmups=0, rounds=5, timed=False, unit="s per token", data=name_data(args))


compare_batching = partial(compare_trainers, ours=BY_TOKENS, peer=BY_LENGTH)


# generation and translation


def compare_generation(args: BenchmarkArguments) -> Case:
    """Random weights, a prompt of 8 tokens, and no token that ends a text."""
    model = list_builders("gpt", SIZES["gpt"])[OURS]().eval()
    prompt = torch.randint(3, VOCABULARY, (1, 8))
    options = {"max_new_tokens": NEW_TOKENS, "min_new_tokens": NEW_TOKENS, "do_sample": False}
    models = {OURS: model, GPT2: to_gpt2(model).eval()}
    return Case({who: partial(each.generate, prompt, **options) for who, each in models.items()}, note=check_tokens)


def compare_loop(options: dict[str, Any], args: BenchmarkArguments) -> Case:
    """The published GPT by our decoder, and by transformers' own loop, which a cache's name chooses."""
    model = AutoModelForCausalLM.from_pretrained(STORYTELLER, dtype="float32").eval()
    model.generation_config.max_length = None
    prompt = AutoTokenizer.from_pretrained(STORYTELLER)("Once upon a time", return_tensors="pt")

    def generate(**more) -> torch.Tensor:
        torch.manual_seed(0)
        return model.generate(**prompt, **{"do_sample": False, "max_new_tokens": 100} | options, **more)

    return Case({OURS: generate, LOOP: partial(generate, cache_implementation="dynamic")}, note=check_tokens)


def check_tokens(ours: torch.Tensor, theirs: torch.Tensor) -> str:
    assert torch.equal(ours, theirs)
    return "equal tokens"


def translate(model: PreTrainedModel, tokenizer, sources: list[str], is_sorted: bool) -> list[str]:
    """Translate by `generate()` in batches of 64, sorted by length or in their order."""
    order = list(range(len(sources)))
    if is_sorted:
        order.sort(key=lambda i: len(sources[i]))
    translations = [""] * len(sources)
    for begin in range(0, len(order), 64):
        rows = order[begin : begin + 64]
        batch = tokenizer([sources[i] for i in rows], padding=True, return_tensors="pt")
        for i, text in zip(
            rows, tokenizer.batch_decode(model.generate(**batch, num_beams=5), skip_special_tokens=True), strict=True
        ):
            translations[i] = text
    return translations


def compare_translation(ours: tuple[str, bool], peer: tuple[str, bool], args: BenchmarkArguments) -> Case:
    """Two ways to translate the test set, each a model's name and whether its batches are sorted by length.

    The model is the published translator. A Pegasus can have its weights, since it is pre-norm, too.
    """
    sources, tokenizer = list(load_pairs(args.data)[2]["source"]), AutoTokenizer.from_pretrained(TRANSLATOR)
    model = AutoModelForSeq2SeqLM.from_pretrained(TRANSLATOR, dtype="float32").eval()
    models = {OURS: model, PEGASUS: to_pegasus(model).eval()}
    functions = {}
    for who, is_sorted in (ours, peer):
        name = who if is_sorted else f"{who}, {FILE_ORDER}"
        functions[name] = partial(translate, models[who], tokenizer, sources, is_sorted)
        translate(models[who], tokenizer, sources[:64], is_sorted)
    return Case(functions, warmups=0, rounds=5, data=name_data(args), note=count_equal)


def count_equal(ours: list[str], theirs: list[str]) -> str:
    equal = sum(a == b for a, b in zip(ours, theirs, strict=True))
    return f"{equal:,} of {len(ours):,} translations equal"


def time_work(family: str, threads: int) -> float:
    """The median seconds of a training step, or of 200 tokens of a GPT, in this process."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    model = list_builders(family, SIZES[family])[OURS]()
    if family == "transformer":
        work = make_step(model, make_batch(family))
    else:
        prompt = torch.randint(3, VOCABULARY, (1, 8))
        work = partial(model.eval().generate, prompt, max_new_tokens=NEW_TOKENS, do_sample=False)
    seconds, _ = take_turns({"": work}, 4)
    return median(seconds[""][1:])


def beside_busy_processes(family: str, args: BenchmarkArguments) -> Case:
    """OpenMP's threads that sleep while they wait, as our commands choose on a busy machine, against its default."""
    code = f"from cases import time_work; print(time_work({family!r}, {args.threads}))"
    plain = {name: value for name, value in os.environ.items() if name not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")}

    def measure(settings: dict[str, str], busy: int = 2) -> float:
        others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(busy)]
        try:
            command, folder = [sys.executable, "-c", code], Path(__file__).parent
            options = {"capture_output": True, "text": True, "cwd": folder, "env": plain | settings}
            return float(subprocess.run(command, check=True, **options).stdout)
        finally:
            for other in others:
                other.kill()
                other.wait()

    functions = {ASLEEP: partial(measure, {"OMP_WAIT_POLICY": "PASSIVE"}), SPINNING: partial(measure, {})}
    alone = partial(measure, {}, busy=0)
    return Case(functions, warmups=0, rounds=3, timed=False, note=lambda *_: f"{alone():.3f} s alone, by default")
