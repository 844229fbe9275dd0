#!/usr/bin/env python
# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Measure training, loss and generation on one GPU against GPT-2 and Marian: a Markdown table and gpu.json.

python scripts/benchmark/gpu.py --output_dir runs/gpu                # on a GPU: a 124 M GPT, a base encoder-decoder
python scripts/benchmark/gpu.py --output_dir runs/gpu --size tiny    # anywhere, to try the command

It needs torch and transformers only, and no network. Both models of a row have the same dimensions, batches, dtype
(bfloat16 by autocast over float32 weights, as `--bf16 true` trains), attention ("sdpa") and optimiser, and take turns
in one process. A ratio is the peer's median time over ours. `spread` is the range of the rounds' ratios over their
median. Memory is a step's peak: weights, moments, gradients and activations of that model alone.

MFU is the model's FLOPs per second over the peak of the GPU's tensor cores. FLOPs are those that torch counts in one
step of our model with eager attention: of causal attention, the hidden half is counted as well, as is usual.
"""

import gc
import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from torch.utils.flop_counter import FlopCounterMode
from transformers import (
    CompileConfig,
    GPT2Config,
    GPT2LMHeadModel,
    HfArgumentParser,
    MarianConfig,
    MarianMTModel,
    PreTrainedModel,
)

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # on a bare machine the package is not installed

from hf_scratch import (
    ScratchGPTConfig,
    ScratchGPTForCausalLM,
    ScratchTransformerConfig,
    ScratchTransformerForConditionalGeneration,
)
from hf_scratch.models.loss import linear_cross_entropy

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
OURS = "hf_scratch"
# bfloat16 with float32 sums, without sparsity, in FLOP/s: the vendors' data sheets. The first name that fits counts.
PEAKS = {"H100 PCIe": 756e12, "H100": 989e12, "H200": 989e12, "B200": 2250e12, "A100": 312e12, "L40S": 362e12}


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
class Sizes:
    """The dimensions of one benchmark."""

    gpt: dict[str, int]
    transformer: dict[str, int]
    gpt_batch: tuple[int, int]  # rows, tokens per row
    transformer_batch: tuple[int, int]
    generation: tuple[int, int]  # tokens of the prompt, and new ones
    steps: int  # per measurement


SIZES = {
    "full": Sizes(
        gpt={"vocab_size": 50_257, "width": 768, "layers": 12, "heads": 12, "inner": 3072},
        transformer={"vocab_size": 32_000, "width": 512, "layers": 6, "heads": 8, "inner": 2048},
        gpt_batch=(16, 1024),
        transformer_batch=(128, 64),
        generation=(32, 128),
        steps=10,
    ),
    "tiny": Sizes(
        gpt={"vocab_size": 512, "width": 64, "layers": 2, "heads": 2, "inner": 128},
        transformer={"vocab_size": 512, "width": 64, "layers": 2, "heads": 2, "inner": 128},
        gpt_batch=(2, 64),
        transformer_batch=(4, 16),
        generation=(8, 8),
        steps=1,
    ),
}


# models


def build(family: str, sizes: Sizes, dropout: float = 0.1) -> dict[str, Callable[[], PreTrainedModel]]:
    """Functions that build our model and its peer with the same dimensions, on the current device."""
    size, positions = getattr(sizes, family), max(getattr(sizes, f"{family}_batch")[1], sum(sizes.generation))
    common = {"vocab_size": size["vocab_size"], "attn_implementation": "sdpa", "bos_token_id": 1, "eos_token_id": 2}
    if family == "gpt":
        ours = ScratchGPTConfig(
            hidden_size=size["width"],
            num_hidden_layers=size["layers"],
            num_attention_heads=size["heads"],
            intermediate_size=size["inner"],
            max_position_embeddings=positions,
            hidden_act="gelu_new",
            pad_token_id=0,
            **dict.fromkeys(("embedding_dropout", "hidden_dropout", "attention_dropout"), dropout),
            **common,
        )
        peer = GPT2Config(
            n_embd=size["width"],
            n_layer=size["layers"],
            n_head=size["heads"],
            n_inner=size["inner"],
            n_positions=positions,
            pad_token_id=0,
            **dict.fromkeys(("embd_pdrop", "resid_pdrop", "attn_pdrop"), dropout),
            **common,
        )
        return {OURS: partial(ScratchGPTForCausalLM, ours), "GPT2LMHeadModel": partial(GPT2LMHeadModel, peer)}
    sides = {"layers": size["layers"], "attention_heads": size["heads"], "ffn_dim": size["inner"]}
    fields = {f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in sides.items()}
    fields |= {"d_model": size["width"], "max_position_embeddings": positions, "dropout": dropout, "pad_token_id": 0}
    fields |= {"decoder_start_token_id": 1, "activation_function": "relu", "scale_embedding": True, **common}
    return {
        OURS: partial(ScratchTransformerForConditionalGeneration, ScratchTransformerConfig(**fields)),
        "MarianMTModel": partial(MarianMTModel, MarianConfig(**fields, forced_eos_token_id=None)),
    }


def make_batch(family: str, sizes: Sizes) -> dict[str, torch.Tensor]:
    """Random tokens without padding."""
    rows, length = getattr(sizes, f"{family}_batch")
    ids, labels = torch.randint(3, getattr(sizes, family)["vocab_size"], (2, rows, length), device=DEVICE)
    return {"input_ids": ids, "labels": ids if family == "gpt" else labels}


def count_flops(build_model: Callable[[], PreTrainedModel], batch: dict[str, torch.Tensor]) -> int:
    """The FLOPs of a training step with all logits, counted on the meta device."""
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        model = build_model()
        model.set_attn_implementation("eager")
        model(**{name: torch.empty_like(ids, device="meta") for name, ids in batch.items()}).loss.backward()
    return counter.get_total_flops()


class Training:
    """Training steps of one model on one batch."""

    def __init__(self, model: PreTrainedModel, batch: dict[str, torch.Tensor], compiled: bool, steps: int):
        self.model, self.batch, self.steps = model.to(DEVICE).train(), batch, steps
        self.options = {"skip_logits": True} if type(model).__name__.startswith("Scratch") else {}
        self.optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)
        self.run_model = torch.compile(model) if compiled else model

    def __call__(self) -> None:
        for _ in range(self.steps):
            with torch.autocast(DEVICE, torch.bfloat16):
                loss = self.run_model(**self.batch, use_cache=False, **self.options).loss
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()

    def peak_memory(self) -> int | None:
        """Bytes, with the weights and moments; None without a GPU."""
        if DEVICE == "cpu":
            return None
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        self()
        torch.cuda.synchronize()
        tensors = [*self.model.parameters(), *self.model.buffers()]
        tensors += [value for state in self.optimizer.state.values() for value in state.values()]
        own = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        return torch.cuda.max_memory_allocated() - before + own


# measuring


def take_turns(functions: dict[str, Callable[[], Any]], rounds: int) -> dict[str, Any]:
    """Call functions in turns, ours first. The first call of each, which compiles, and the second are not counted.

    Returns:
        "first": seconds of each first call; "seconds": the medians; "ratio": the median over rounds of each other's
        time over ours; "spread": the range of those ratios over their median.
    """
    first, seconds = {}, {name: [] for name in functions}
    for turn, name in itertools.product(range(rounds + 2), functions):
        synchronize()
        start = time.perf_counter()
        functions[name]()
        synchronize()
        taken = time.perf_counter() - start
        if turn == 0:
            first[name] = taken
        elif turn > 1:
            seconds[name].append(taken)
    result = {"first": first, "seconds": {name: statistics.median(values) for name, values in seconds.items()}}
    others = {name: values for name, values in seconds.items() if name != OURS}
    ratios = {
        name: [peer / ours for peer, ours in zip(values, seconds[OURS], strict=True)]
        for name, values in others.items()
    }
    result["ratio"] = {name: statistics.median(values) for name, values in ratios.items()}
    result["spread"] = {
        name: (max(values) - min(values)) / statistics.median(values) for name, values in ratios.items()
    }
    return result


def synchronize() -> None:
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def find_peak() -> tuple[float, str]:
    """The GPU's peak in bfloat16, in FLOP/s, and where the number is from."""
    name = torch.cuda.get_device_name() if DEVICE == "cuda" else "CPU"
    known = next((peak for part, peak in PEAKS.items() if part in name), None)
    if known:
        return known, f"{known / 1e12:,.0f} TFLOP/s, the data sheet's"
    size = 8192 if DEVICE == "cuda" else 512
    a, b = torch.randn(2, size, size, device=DEVICE, dtype=torch.bfloat16)
    seconds = take_turns({OURS: lambda: a @ b}, 5)["seconds"][OURS]
    measured = 2 * size**3 / seconds
    return measured, f"{measured / 1e12:,.3f} TFLOP/s, measured: products of {size} x {size}"


# rows


def compare_training(family: str, compiled: bool, sizes: Sizes, rounds: int, peak: float) -> dict[str, Any]:
    batch, makers = make_batch(family, sizes), build(family, sizes)
    flops = count_flops(makers[OURS], batch)
    trainings = {name: Training(make(), batch, compiled, sizes.steps) for name, make in makers.items()}
    result = take_turns(trainings, rounds)
    tokens = batch["labels"].numel()
    result["tokens_per_second"] = {name: tokens * sizes.steps / s for name, s in result["seconds"].items()}
    result["mfu"] = {name: flops * sizes.steps / s / peak for name, s in result["seconds"].items()}
    result["memory"] = {name: training.peak_memory() for name, training in trainings.items()}
    return result


def compare_losses(sizes: Sizes, rounds: int) -> dict[str, Any]:
    """The head's loss and gradients alone: ours, all logits, torch's function and Liger's, where there are any."""
    (rows, length), size = sizes.gpt_batch, sizes.gpt
    hidden = torch.randn(rows * length, size["width"], device=DEVICE, requires_grad=True)
    head = torch.nn.Linear(size["width"], size["vocab_size"], bias=False, device=DEVICE)
    labels = torch.randint(0, size["vocab_size"], (rows * length,), device=DEVICE)
    losses = {
        OURS: lambda: linear_cross_entropy(hidden[None], head, labels[None]),
        "all logits": lambda: torch.nn.functional.cross_entropy(head(hidden).float(), labels),
    }
    if hasattr(torch.nn.functional, "linear_cross_entropy"):
        function = torch.nn.functional.linear_cross_entropy
        losses["torch's linear_cross_entropy"] = lambda: function(hidden, head.weight, labels)
    try:
        from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

        liger = LigerFusedLinearCrossEntropyLoss()
        losses["Liger"] = lambda: liger(head.weight, hidden, labels)
    except ImportError:
        pass
    memory = {}

    def run(name: str) -> None:
        hidden.grad = head.weight.grad = None
        if DEVICE == "cuda":
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = losses[name]()
        loss.backward()
        memory[name] = torch.cuda.max_memory_allocated() - before if DEVICE == "cuda" else None

    result = take_turns({name: partial(run, name) for name in losses}, rounds)
    result["tokens_per_second"] = {name: len(labels) / s for name, s in result["seconds"].items()}
    return {**result, "memory": memory}


def compare_generation(family: str, rows: int, mode: str, sizes: Sizes, rounds: int) -> dict[str, Any]:
    prompt, new = sizes.generation
    ids = torch.randint(3, getattr(sizes, family)["vocab_size"], (rows, prompt), device=DEVICE)
    options = {"max_new_tokens": new, "min_new_tokens": new, "do_sample": False}
    if mode != "eager":
        options["cache_implementation"] = "static"
        options["compile_config"] = CompileConfig(mode="reduce-overhead" if mode == "CUDA graphs" else "default")
    dtype = torch.bfloat16 if DEVICE == "cuda" else torch.float32
    models = {name: make().to(DEVICE, dtype).eval() for name, make in build(family, sizes).items()}
    # our CPU decoder has a benchmark of its own; here both run transformers' loop
    functions = {name: partial(model.generate, ids, **options) for name, model in models.items()}
    result = take_turns(functions, min(rounds, 3))
    result["tokens_per_second"] = {name: rows * new / s for name, s in result["seconds"].items()}
    return result


def list_rows(sizes: Sizes, rounds: int, peak: float) -> dict[str, Callable[[], dict[str, Any]]]:
    """What is measured, the most important first."""
    names = {"gpt": "GPT", "transformer": "encoder-decoder"}
    rows: dict[str, Callable[[], dict[str, Any]]] = {}
    for compiled, family in itertools.product((True, False), names):
        how = "compiled" if compiled else "eager"
        rows[f"training, {names[family]}, {how}"] = partial(compare_training, family, compiled, sizes, rounds, peak)
    rows["loss and its gradients"] = partial(compare_losses, sizes, rounds)
    for family, mode, batch in itertools.product(names, ("eager", "static cache, compiled", "CUDA graphs"), (1, 64)):
        name = f"greedy, {names[family]}, {mode}, batch {batch}"
        rows[name] = partial(compare_generation, family, batch, mode, sizes, rounds)
    return rows


def format_row(name: str, row: dict[str, Any]) -> list[str]:
    """Lines of the Markdown table, one per competitor."""
    if reason := row.get("error", row.get("skipped")):
        return [f"| {name} | not measured: {reason} | | | | | | | |"]
    lines = []
    for who, seconds in row["seconds"].items():
        ratio = f"{row['ratio'][who]:.2f}" if who in row["ratio"] else ""
        spread = f"{row['spread'][who]:.0%}" if who in row["spread"] else ""
        memory, mfu = row.get("memory", {}).get(who), row.get("mfu", {}).get(who)
        cells = [name, who, f"{row['tokens_per_second'][who]:,.0f}", f"{seconds:.4f} s", ratio, spread]
        cells += [f"{mfu:.1%}" if mfu else "", f"{memory / 2**20:,.0f} MiB" if memory else ""]
        cells.append(f"{row['first'][who]:.1f} s")
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def main():
    (args,) = HfArgumentParser(GpuArguments).parse_args_into_dataclasses()
    output_dir, start = Path(args.output_dir), time.monotonic()
    output_dir.mkdir(parents=True, exist_ok=True)
    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    sizes, (peak, source) = SIZES[args.size], find_peak()
    device = torch.cuda.get_device_name() if DEVICE == "cuda" else "CPU"
    versions = {"torch": torch.__version__, "transformers": transformers.__version__, "cuda": torch.version.cuda}
    report = {"device": device, "peak": source, **versions, "size": asdict(sizes), "rows": {}}
    for name, measure in list_rows(sizes, args.rounds, peak).items():
        minutes = (time.monotonic() - start) / 60
        if minutes > args.max_minutes:
            report["rows"][name] = {"skipped": f"no time was left after {minutes:.1f} minutes"}
            continue
        torch.compiler.reset()
        try:
            report["rows"][name] = measure()
        except (RuntimeError, torch.OutOfMemoryError) as error:  # the other rows still count
            report["rows"][name] = {"error": f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"}
        gc.collect()
        if DEVICE == "cuda":
            torch.cuda.empty_cache()
        print(*format_row(name, report["rows"][name]), sep="\n", file=sys.stderr, flush=True)
        report["minutes"] = round((time.monotonic() - start) / 60, 1)
        # after each row, so that a failure of a later one loses nothing
        (output_dir / "gpu.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    print(f"{device}; peak: {source}; torch {versions['torch']}, transformers {versions['transformers']}\n")
    print("| work | model | tokens/s | median | ratio | spread | MFU | peak memory | first call |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for name, row in report["rows"].items():
        print(*format_row(name, row), sep="\n")
    if errors := [name for name, row in report["rows"].items() if "error" in row]:
        sys.exit(f"These rows failed: {', '.join(errors)}.")


if __name__ == "__main__":
    main()
