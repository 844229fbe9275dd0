#!/usr/bin/env python
# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Measure training, loss and generation on one GPU against GPT-2 and Marian: a Markdown table and gpu.json.

python scripts/benchmark/gpu.py --output_dir runs/gpu                # on a GPU: a 124 M GPT, a base encoder-decoder
python scripts/benchmark/gpu.py --output_dir runs/gpu --size tiny    # anywhere, to try the command

It and what it imports need torch, transformers and accelerate only, and no network. Both models of a row have the same
dimensions, batches, dtype (bfloat16 by autocast over float32 weights, as `--bf16 true` trains), attention ("sdpa") and
optimiser, and take turns in one process. A ratio is the median of the rounds' ratios, the peer's time over ours, with
the lowest and the highest. Memory is a step's peak: weights, moments, gradients and activations of that model
alone.

MFU is the model's FLOPs per second over the peak of the GPU's tensor cores: hf_scratch/flops.py has both. Of causal
attention, the hidden half is counted as well, as is usual.
"""

import gc
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from accelerate.utils import compile_regions
from transformers import HfArgumentParser, PreTrainedModel

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # on a bare machine the package is not installed

from measuring import compare, take_turns
from peers import OURS, Size, list_builders, make_step

from hf_scratch.flops import count_flops, find_peak
from hf_scratch.models.scratch_loss import linear_cross_entropy
from hf_scratch.reporting.tables import format_table

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@dataclass
class GpuArguments:
    """What to measure."""

    output_dir: str = field(default="runs/gpu", metadata={"help": "Holds gpu.json."})
    size: str = field(
        default="full" if DEVICE == "cuda" else "tiny",
        metadata={"help": '"full", or "tiny" to try the command.', "choices": ["full", "tiny"]},
    )
    rounds: int = field(default=5, metadata={"help": "Measurements per row."})
    max_minutes: float = field(default=8.0, metadata={"help": "No row is begun later than this."})


@dataclass
class Setting:
    """The dimensions of one benchmark: for each family the model, and a batch's rows and tokens per row."""

    models: dict[str, Size]
    batches: dict[str, tuple[int, int]]
    prompt: int  # tokens
    new: int  # tokens that are generated
    steps: int  # of training, per measurement


GPT2_SMALL = Size(50_257, width=768, layers=12, heads=12, inner=3072, positions=1024)
PAPERS_BASE = Size(32_000, width=512, layers=6, heads=8, inner=2048, positions=256)
TINY = Size(512, width=64, layers=2, heads=2, inner=128, positions=64)
SETTINGS = {
    "full": Setting(
        {"gpt": GPT2_SMALL, "transformer": PAPERS_BASE}, {"gpt": (16, 1024), "transformer": (128, 64)}, 32, 64, 10
    ),
    "tiny": Setting({"gpt": TINY, "transformer": TINY}, {"gpt": (2, 64), "transformer": (4, 16)}, 8, 8, 1),
}
NAMES = {"gpt": "GPT", "transformer": "encoder-decoder"}
BACKEND = "inductor" if DEVICE == "cuda" else "aot_eager"  # which takes no minutes
# "layer by layer" is what `--torch_compile true` does
COMPILERS = {
    "layer by layer": partial(compile_regions, backend=BACKEND),
    "compiled": partial(torch.compile, backend=BACKEND),
    "eager": None,
}
MASKED = f"{OURS}, sdpa"


# training


def make_batch(family: str, setting: Setting) -> dict[str, torch.Tensor]:
    """Random tokens without padding."""
    shape = (2, *setting.batches[family])
    ids, labels = torch.randint(3, setting.models[family].vocabulary, shape, device=DEVICE)
    return {"input_ids": ids, "labels": ids if family == "gpt" else labels}


# measuring


def measure(functions: dict[str, Callable[[], Any]], rounds: int) -> dict[str, Any]:
    """Call functions in turns, ours first. The first call of each, which compiles, and the second are not counted.

    Returns:
        "first": seconds of each first call; "seconds": the medians; "ratio": what `compare` returns, of the others.
    """

    def run(function: Callable[[], Any]) -> None:
        function()
        synchronize()

    synchronize()
    seconds, _ = take_turns({name: partial(run, function) for name, function in functions.items()}, 2 + rounds)
    counted = {name: values[2:] for name, values in seconds.items()}
    return {
        "first": {name: values[0] for name, values in seconds.items()},
        "seconds": {name: statistics.median(values) for name, values in counted.items()},
        "ratio": {name: compare(values, counted[OURS]) for name, values in counted.items() if name != OURS},
    }


def synchronize() -> None:
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def measure_peak(work: Callable[[], Any]) -> int:
    """The bytes of the GPU that `work` needs at most, beyond those in use before; 0 without a GPU."""
    if DEVICE == "cpu":
        return 0
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    work()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


# rows


def compare_training(family: str, how: str, setting: Setting, rounds: int, peak: float | None) -> dict[str, Any]:
    models = {name: build() for name, build in list_builders(family, setting.models[family]).items()}
    return compare_steps(models, make_batch(family, setting), how, setting.steps, rounds, peak)


def compare_packed(parts: int, setting: Setting, rounds: int, peak: float | None) -> dict[str, Any]:
    """A GPT's rows of four texts that do not see each other: ours by flex attention, against ours by a mask.

    `parts`: how many rows each row of the setting is cut into.
    """
    size = replace(setting.models["gpt"], dropout=0.0)
    batch = {name: ids.unflatten(1, (parts, -1)).flatten(0, 1) for name, ids in make_batch("gpt", setting).items()}
    rows, length = batch["input_ids"].shape
    batch["position_ids"] = torch.arange(length, device=DEVICE).remainder(length // 4).repeat(rows, 1)
    build = list_builders("gpt", size)[OURS]
    models = {OURS: build(), MASKED: build()}
    if DEVICE == "cuda":  # elsewhere it has no backward pass
        models[OURS].set_attn_implementation("flex_attention")
    return compare_steps(models, batch, "layer by layer", setting.steps, rounds, peak)


def compare_steps(
    models: dict[str, PreTrainedModel], batch: dict[str, torch.Tensor], how: str, count: int, rounds: int, peak: float
) -> dict[str, Any]:
    models = {name: model.to(DEVICE) for name, model in models.items()}
    flops = count_flops(models[OURS], batch) * count
    batch = {**batch, "use_cache": False}
    options = {"device": DEVICE, "bf16": True, "compile_by": COMPILERS[how]}
    steps = {name: make_step(model, batch, **options) for name, model in models.items()}

    def run(step: Callable[[], torch.Tensor]) -> None:
        for _ in range(count):
            step()

    result = measure({name: partial(run, step) for name, step in steps.items()}, rounds)
    tokens = batch["labels"].numel() * count
    result["tokens_per_second"] = {name: tokens / s for name, s in result["seconds"].items()}
    result["mfu"] = {name: flops / s / peak for name, s in result["seconds"].items()} if peak else {}
    # 12 bytes per parameter: its value and AdamW's two moments in float32
    peaks = {name: measure_peak(step) for name, step in steps.items()}
    result["memory"] = {name: peak and peak + 12 * models[name].num_parameters() for name, peak in peaks.items()}
    return result


def compare_losses(setting: Setting, rounds: int) -> dict[str, Any]:
    """The head's loss and gradients alone: ours, all logits, torch's function and Liger's, where there are any."""
    (rows, length), size = setting.batches["gpt"], setting.models["gpt"]
    hidden = torch.randn(rows * length, size.width, device=DEVICE, requires_grad=True)
    head = torch.nn.Linear(size.width, size.vocabulary, bias=False, device=DEVICE)
    labels = torch.randint(0, size.vocabulary, (rows * length,), device=DEVICE)
    losses = {
        OURS: lambda: linear_cross_entropy(hidden[None], head, labels[None]),
        "all logits": lambda: torch.nn.functional.cross_entropy(head(hidden).float(), labels),
    }
    if hasattr(torch.nn.functional, "linear_cross_entropy"):
        # in blocks, which autocast does not reach
        function, options = torch.nn.functional.linear_cross_entropy, torch.nn.LinearCrossEntropyOptions()
        losses["torch's linear_cross_entropy"] = lambda: function(
            hidden.bfloat16(), head.weight.bfloat16(), labels, options=options
        )
    try:
        from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

        liger = LigerFusedLinearCrossEntropyLoss()
        losses["Liger"] = lambda: liger(head.weight, hidden, labels)
    except ImportError:
        pass

    def run(name: str) -> None:
        hidden.grad = head.weight.grad = None
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = losses[name]()
        loss.backward()

    functions = {name: partial(run, name) for name in losses}
    result = measure(functions, rounds)
    result["tokens_per_second"] = {name: len(labels) / s for name, s in result["seconds"].items()}
    memory = {}
    for name, function in functions.items():
        hidden.grad = head.weight.grad = None
        memory[name] = measure_peak(function)
    return {**result, "memory": memory}


def compare_generation(family: str, rows: int, mode: str, setting: Setting, rounds: int) -> dict[str, Any]:
    """Greedy generation by transformers' loop: our CPU decoder has a benchmark of its own."""
    ids = torch.randint(3, setting.models[family].vocabulary, (rows, setting.prompt), device=DEVICE)
    options = {"max_new_tokens": setting.new, "min_new_tokens": setting.new, "do_sample": False}
    if mode != "eager":
        options["cache_implementation"] = "static"  # with it, `generate()` compiles
    dtype = torch.bfloat16 if DEVICE == "cuda" else torch.float32
    builders = list_builders(family, setting.models[family])
    models = {name: build().to(DEVICE, dtype).eval() for name, build in builders.items()}
    functions = {name: partial(model.generate, ids, **options) for name, model in models.items()}
    result = measure(functions, min(rounds, 3))
    result["tokens_per_second"] = {name: rows * setting.new / s for name, s in result["seconds"].items()}
    return result


def list_rows(setting: Setting, rounds: int, peak: float | None) -> dict[str, Callable[[], dict[str, Any]]]:
    """What is measured, the most important first."""
    rows: dict[str, Callable[[], dict[str, Any]]] = {}

    def add_training(family: str, how: str) -> None:
        rows[f"training, {NAMES[family]}, {how}"] = partial(compare_training, family, how, setting, rounds, peak)

    add_training("gpt", "layer by layer")
    for parts, what in ((1, "packed"), (4, "packed in short rows")):
        rows[f"training, GPT, {what}, layer by layer"] = partial(compare_packed, parts, setting, rounds, peak)
    add_training("transformer", "layer by layer")
    rows["loss and its gradients"] = partial(compare_losses, setting, rounds)
    add_training("gpt", "eager")
    add_training("transformer", "eager")
    for family, batch in (("gpt", 1), ("transformer", 1), ("gpt", 64)):
        for mode in ("eager", "CUDA graphs"):
            name = f"greedy, {NAMES[family]}, {mode}, batch {batch}"
            rows[name] = partial(compare_generation, family, batch, mode, setting, rounds)
    add_training("gpt", "compiled")  # which takes longest to compile
    return rows


def format_rows(rows: dict[str, dict[str, Any]]) -> str:
    """A Markdown table with a line per competitor."""
    lines = []
    for name, row in rows.items():
        if reason := row.get("error", row.get("skipped")):
            lines.append([name, f"not measured: {reason}", *[""] * 7])
            continue
        for who, seconds in row["seconds"].items():
            ratio, memory, mfu = (row.get(kind, {}).get(who) for kind in ("ratio", "memory", "mfu"))
            cells = [name, who, f"{row['tokens_per_second'][who]:,.0f}", f"{seconds:.4f} s"]
            cells += (
                [f"{ratio['ratio']:.2f}", f"{ratio['lowest']:.2f} to {ratio['highest']:.2f}"] if ratio else ["", ""]
            )
            cells += [f"{mfu:.1%}" if mfu else "", f"{memory / 2**20:,.0f} MiB" if memory else ""]
            lines.append([*cells, f"{row['first'][who]:.1f} s"])
    header = ["work", "model", "tokens/s", "median", "ratio", "range over rounds", "MFU", "peak memory", "first call"]
    return format_table(header, lines)


def main():
    (args,) = HfArgumentParser(GpuArguments).parse_args_into_dataclasses()
    output_dir, start = Path(args.output_dir), time.monotonic()
    output_dir.mkdir(parents=True, exist_ok=True)
    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    setting, peak = SETTINGS[args.size], find_peak(torch.device(DEVICE))
    source = f"{peak / 1e12:,.0f} TFLOP/s, the data sheet's" if peak else "unknown"
    device = torch.cuda.get_device_name() if DEVICE == "cuda" else "CPU"
    versions = {"torch": torch.__version__, "transformers": transformers.__version__, "cuda": torch.version.cuda}
    report = {"device": device, "peak": source, **versions, "size": asdict(setting), "rows": {}}
    for name, compare_models in list_rows(setting, args.rounds, peak).items():
        minutes = (time.monotonic() - start) / 60
        if minutes > args.max_minutes:
            report["rows"][name] = {"skipped": f"no time was left after {minutes:.1f} minutes"}
            continue
        torch.compiler.reset()
        try:
            report["rows"][name] = compare_models()
        except Exception as error:  # the other rows still count
            report["rows"][name] = {"error": f"{type(error).__name__}: {error}".splitlines()[0][:200]}
        gc.collect()
        if DEVICE == "cuda":
            torch.cuda.empty_cache()
        print(format_rows({name: report["rows"][name]}), file=sys.stderr, flush=True)
        report["minutes"] = round((time.monotonic() - start) / 60, 1)
        # after each row, so that a failure of a later one loses nothing
        (output_dir / "gpu.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    print(f"{device}; peak: {source}; torch {versions['torch']}, transformers {versions['transformers']}\n")
    print(format_rows(report["rows"]))
    if errors := [name for name, row in report["rows"].items() if "error" in row]:
        sys.exit(f"These rows failed: {', '.join(errors)}.")


if __name__ == "__main__":
    main()
