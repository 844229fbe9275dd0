# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""The work that benchmark.py measures: ours and the peers', with the same weights and data."""

import copy
import multiprocessing
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
import transformers
from datasets import Dataset, DatasetDict
from invented import draw_pairs
from peers import GPT2, MARIAN, OURS, Size, list_builders, make_marian_config, make_step
from report import ReportArguments, measure_peak
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    DataCollatorForSeq2Seq,
    GenerationConfig,
    MarianMTModel,
    PreTrainedModel,
    PrinterCallback,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
)

from hf_scratch import (
    ScratchGPTForCausalLM,
    ScratchTransformerConfig,
    ScratchTransformerForConditionalGeneration,
    TranslationPipeline,
)
from hf_scratch.convert import from_article, to_gpt2, to_marian
from hf_scratch.data.pairs import take_pairs, tokenize_pairs
from hf_scratch.data.splits import load_splits
from hf_scratch.loading import load_tokenizer
from hf_scratch.tokenization import train_tokenizer
from hf_scratch.training.arguments import TrainingCommand, TranslationArguments
from hf_scratch.training.model_loading import make_model
from hf_scratch.training.trainers import TranslationTrainer

ROOT = Path(__file__).resolve().parents[2]
RECIPE = ROOT / "scripts" / "recipes" / "multi30k_tiny.yaml"
BF16, STOCK_CALL, ARTICLE = "hf_scratch bf16", "hf_scratch, stock call", "gpt-playground"
VOCABULARY, NEW_TOKENS = 8000, 200
SIZES = {
    "gpt": Size(VOCABULARY, width=256, layers=6, heads=4, inner=1024, positions=256),
    "transformer": Size(VOCABULARY, width=128, layers=4, heads=4, inner=256, positions=256, dropout=0.3),
}
BATCHES = {"gpt": (16, 256), "transformer": (200, 20)}  # rows, tokens per row
PEERS = {"gpt": GPT2, "transformer": MARIAN}
CONVERTERS = {"gpt": to_gpt2, "transformer": to_marian}
QUIET = {"save_strategy": "no", "report_to": "none", "disable_tqdm": True}  # of a trainer


@dataclass(kw_only=True)
class BenchmarkArguments(ReportArguments):
    """What to measure, and on what."""

    output_dir: str = field(default="runs/benchmark", metadata={"help": "Holds the figures."})
    rounds: int = field(default=9, metadata={"help": "Measurements per row; slow rows take at most 5."})
    data: str | None = field(default=None, metadata={"help": "Multi30k: a folder or a Hub id. Default: synthetic."})
    model: str | None = field(default=None, metadata={"help": "A trained post-norm translator. Default: train one."})
    articles: str = field(
        default=str(ROOT.parent / "shared" / "seeds"), metadata={"help": "The folder with the articles' texts."}
    )
    threads: int = field(default=2, metadata={"help": "CPU threads of every model."})


@dataclass
class Case:
    """Functions that are measured in turns.

    Args:
        functions: ours and the peer's, by name, each of which is one measurement; or ours alone, if its measure is the
            figure.
        warmups: calls of each function before the first measurement.
        rounds: at most this many measurements.
        timed: the measure is the seconds of a call; otherwise it is what the call returns.
        unit: of the measure, a key of `benchmark_tables.FORMATS`.
        note: makes a remark from what each function returned last.
    """

    functions: dict[str, Callable[[], Any]]
    warmups: int = 2
    rounds: int = 1000
    timed: bool = True
    unit: str = "s"
    note: Callable[..., str] = lambda *_: ""


# training


def make_batch(family: str, rows: int, length: int) -> dict[str, torch.Tensor]:
    """A batch of random tokens, (rows, length). The encoder-decoder's pairs of length 20 have 12 to 20 tokens."""
    ids = torch.randint(3, VOCABULARY, (rows, length))
    if family == "gpt":
        return {"input_ids": ids, "labels": ids}
    is_real = torch.arange(length) < length - torch.arange(rows)[:, None] % (length * 9 // 20)
    labels = torch.randint(3, VOCABULARY, (rows, length)).masked_fill(~is_real, -100)
    return {"input_ids": ids.masked_fill(~is_real, 0), "attention_mask": is_real.long(), "labels": labels}


def compare_training(family: str, kind: str, args: BenchmarkArguments) -> Case:
    """Check that the losses agree, then compare training steps.

    Args:
        family: "gpt" or "transformer".
        kind: OURS, the step in fp32 against the peer's; STOCK_CALL, the same, called as stock Trainer does; or BF16
            against our own in fp32.
        args: the command's.
    """
    batch, peer = make_batch(family, *BATCHES[family]), PEERS[family]
    model = list_builders(family, SIZES[family])[OURS]().eval()
    if kind == BF16:
        steps = {BF16: make_step(copy.deepcopy(model), [batch], bf16=True), OURS: make_step(model, [batch])}
        return Case(steps, note=partial(compare_loss_curves, family))
    other = CONVERTERS[family](model).eval()
    with torch.no_grad():
        torch.testing.assert_close(model(**batch).loss, other(**batch).loss, rtol=1e-5, atol=1e-5)
    return Case({kind: make_step(model, [batch], is_stock=kind == STOCK_CALL), peer: make_step(other, [batch])})


def compare_loss_curves(family: str, *_, steps: int = 30) -> str:
    """Train from the same weights on the same batches in fp32 and in bf16, and describe the difference."""
    torch.manual_seed(0)
    rows, length = BATCHES[family]
    model = list_builders(family, replace(SIZES[family], dropout=0.0))[OURS]()
    batches = [make_batch(family, rows // 4, length) for _ in range(5)]
    curves = []
    for bf16 in (False, True):
        step = make_step(copy.deepcopy(model), batches, bf16=bf16, learning_rate=1e-3)
        curves.append([step().item() for _ in range(steps)])
    difference = max(abs(b / a - 1) for a, b in zip(*curves, strict=True))
    return f"{steps} losses, {curves[0][0]:.2f} to {curves[0][-1]:.2f}, within {difference:.2%} of fp32's"


def run_steps(family: str, who: str, size: Size, rows: int, length: int, training: bool, steps: int, threads: int):
    """Measure a model alone; must run in a new process.

    Returns:
        The median seconds of all steps after the first, and the peak memory of `steps` steps in MiB.
    """
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(threads)
    torch.manual_seed(0)

    def prepare(size: Size, rows: int, length: int) -> Callable[[], Any]:
        model, batch = list_builders(family, size)[who](), make_batch(family, rows, length)
        if training:
            return make_step(model, [batch])
        return partial(torch.inference_mode()(model.eval()), batch["input_ids"])

    prepare(replace(size, width=32, heads=1), 1, 8)()  # loads the libraries' own pages, which are not part of the peak
    step, times = prepare(size, rows, length), []

    def work() -> None:
        for _ in range(steps):
            start = time.perf_counter()
            step()
            times.append(time.perf_counter() - start)

    peak = measure_peak(work)
    return statistics.median(times[1:]), peak


def run_alone(*arguments) -> tuple[float, float]:
    """Call `run_steps` in a new process, forked from one that has imported everything and computed nothing."""
    context = multiprocessing.get_context("forkserver")
    ours = ("datasets", "hf_scratch", "transformers")
    context.set_forkserver_preload([name for name in sys.modules if name.startswith(ours)])
    with context.Pool(1) as pool:
        return pool.apply(run_steps, arguments)


def compare_memory(family: str, args: BenchmarkArguments) -> Case:
    def find_peak(who: str) -> float:
        return run_alone(family, who, SIZES[family], *BATCHES[family], True, 3, args.threads)[1]

    functions = {who: partial(find_peak, who) for who in (OURS, PEERS[family])}
    return Case(functions, warmups=0, rounds=3, timed=False, unit="MiB")


# training end to end


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


def make_trainer(tokenizer, train: Dataset, output_dir: str, config: dict | None = None, **options):
    """The trainer of scripts/train_translation.py with the recipe `multi30k_tiny`.

    `config` and `options` are fields of the model and training arguments that differ from the recipe's.
    """
    options = {**options, "output_dir": output_dir, "eval_strategy": "no", **QUIET}
    words = [str(RECIPE), *(f"--{name}={value}" for name, value in options.items())]
    arguments = TrainingCommand(TranslationArguments, Seq2SeqTrainingArguments, ScratchTransformerConfig, words)
    model_args, data_args, training_args = arguments.model_args, arguments.data_args, arguments.args
    fields = {"decoder_start_token_id": tokenizer.bos_token_id, **arguments.model_fields, **(config or {})}
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
    model = MarianMTModel(make_marian_config(ours.model.config))
    options = {"per_device_train_batch_size": 200, "label_smoothing_factor": 0.1, "max_steps": 12, **QUIET}
    stock = Seq2SeqTrainer(
        model=model,
        args=Seq2SeqTrainingArguments(args.output_dir, **options, dataloader_pin_memory=torch.cuda.is_available()),
        train_dataset=train,
        data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
    )
    stock.remove_callback(PrinterCallback)
    functions = {OURS: partial(seconds_per_token, ours), MARIAN: partial(seconds_per_token, stock)}
    return Case(functions, warmups=0, rounds=5, timed=False, unit="s per token")


# generation and translation


def compare_generation(model: ScratchGPTForCausalLM, peer: str, generate: Callable) -> Case:
    prompt = torch.randint(3, VOCABULARY, (1, 8))
    ours = partial(model.eval().generate, prompt, max_new_tokens=NEW_TOKENS, do_sample=False)
    return Case({OURS: ours, peer: partial(generate, prompt)}, note=check_tokens)


def generate_gpt(args: BenchmarkArguments) -> Case:
    model = list_builders("gpt", SIZES["gpt"])[OURS]()
    generate = partial(to_gpt2(model).eval().generate, max_new_tokens=NEW_TOKENS, do_sample=False)
    return compare_generation(model, GPT2, generate)


def generate_gpt_article(args: BenchmarkArguments) -> Case | None:
    """Compare with gpt-playground's own code, taken from the article's text: an untied head and the exact GELU."""
    paths = list(Path(args.articles).glob("000_*.txt"))
    if not paths:
        print(f"There is no article 000 in {args.articles}: `generate_gpt_article` is left out.", file=sys.stderr)
        return None
    text, space = paths[0].read_text(encoding="utf-8"), {}
    exec("\n".join(re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)), space)
    sizes = {"n_layer": 6, "n_head": 4, "embedding_dim": 256, "vocab_size": VOCABULARY, "block_size": 256}
    theirs = space["GPT"](**sizes).eval()
    model = from_article("gpt-playground", theirs.state_dict(), **sizes)
    return compare_generation(model, ARTICLE, partial(theirs.generate, required_chars=NEW_TOKENS))


def check_tokens(ours: torch.Tensor, theirs: torch.Tensor) -> str:
    assert ours.shape[1] == 8 + NEW_TOKENS
    assert torch.equal(ours, theirs)
    return "equal tokens"


def load_translator(args: BenchmarkArguments):
    """Load a trained model and its tokenizer, or train one. It is post-norm like Marian, unlike the recipe's."""
    folder = Path(args.model or Path(args.output_dir, "translator" if args.data else "translator_synthetic"))
    if args.model is None and not (folder / "config.json").is_file():
        tokenizer, train, _ = load_pairs(args.data)
        options = {"max_steps": 500, "warmup_steps": 200, "learning_rate": 2.5e-3, "bf16": True, "use_cpu": True}
        trainer = make_trainer(tokenizer, train, str(folder), {"norm_first": False, "dropout": 0.1}, **options)
        trainer.train()
        trainer.save_model()
        tokenizer.save_pretrained(folder)
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(folder), load_tokenizer(folder)
    ids = {name: getattr(model.config, name) for name in ("pad_token_id", "eos_token_id", "decoder_start_token_id")}
    model.generation_config = GenerationConfig(**ids, max_length=64, num_beams=5, early_stopping=True)
    return model.eval(), tokenizer


def translate(model: PreTrainedModel, tokenizer, sources: list[str]) -> list[str]:
    records = TranslationPipeline(model=model, tokenizer=tokenizer)(sources, batch_size=64)
    return [record["translation_text"] for record in records]


def translate_as_stock(model: PreTrainedModel, tokenizer, sources: list[str]) -> list[str]:
    translations = []
    for begin in range(0, len(sources), 64):
        batch = tokenizer(sources[begin : begin + 64], padding=True, return_tensors="pt")
        translations += tokenizer.batch_decode(model.generate(**batch), skip_special_tokens=True)
    return translations


def compare_translation(args: BenchmarkArguments) -> Case:
    sources = list(load_pairs(args.data)[2]["source"])
    model, tokenizer = load_translator(args)
    functions = {
        OURS: partial(translate, model, tokenizer),
        MARIAN: partial(translate_as_stock, to_marian(model), tokenizer),
    }
    for function in functions.values():
        function(sources[:64])
    functions = {name: partial(function, sources) for name, function in functions.items()}
    return Case(functions, warmups=0, rounds=5, note=count_equal)


def count_equal(ours: list[str], theirs: list[str]) -> str:
    equal = sum(a == b for a, b in zip(ours, theirs, strict=True))
    return f"{equal:,} of {len(ours):,} translations equal"


# start-up


def run_python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout


def import_time(args: BenchmarkArguments) -> Case:
    """Seconds of `import hf_scratch` in a new process, after the modules of transformers that it imports."""
    code = "import sys, hf_scratch\nprint(*[name for name in sys.modules if name.startswith('transformers.')])"
    modules = run_python(code).split()
    imports = "\n".join(f"import {name}" for name in ("time", "transformers", *modules))
    code = f"{imports}\nstart = time.perf_counter()\nimport hf_scratch\nprint(time.perf_counter() - start)"
    return Case({OURS: lambda: float(run_python(code))}, warmups=1, timed=False)


def load_time(args: BenchmarkArguments) -> Case:
    folder = str(Path(args.output_dir, "gpt_of_10_mb"))
    list_builders("gpt", replace(SIZES["gpt"], width=192, layers=2, heads=3, inner=768))[OURS]().save_pretrained(
        folder
    )
    return Case({OURS: partial(AutoModelForCausalLM.from_pretrained, folder)})
