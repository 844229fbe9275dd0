#!/usr/bin/env python
# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Calculate an update of GPTs on many GPUs: compute, communication and memory under DDP and FSDP2. Nothing is trained.

python scripts/benchmark/scaling.py [--gpus 8 64] [--share_of_peak 0.45]
python scripts/benchmark/scaling.py --write true

Training is with `--bf16 true`, as Trainer and accelerate do it. Weights, gradients and AdamW's moments are float32.
Matrix products and gathered weights are bfloat16. N is the number of parameters, n the number of GPUs.

- FLOPs per token: 6 N + 12 L H Q T, for L layers, H heads of Q, and T tokens per row (Chowdhery et al. 2022, PaLM,
  appendix B; nanoGPT's `estimate_mfu`). N leaves out embeddings that are only looked up. The causal mask saves nothing
  here. The backward pass is two thirds of it.
- Bytes that a GPU sends: 2 (n - 1) / n times the tensor for a ring's all-reduce, (n - 1) / n for an all-gather or a
  reduce-scatter (https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md).
- Bandwidth: a ring is as fast as its slowest link. Assumed: each network card has a ring, so that all cards of
  a machine together carry the traffic between machines (see also https://jax-ml.github.io/scaling-book/gpus).
"""

import itertools
from dataclasses import dataclass, field

import torch
from tables import ROOT
from torch import nn

from hf_scratch import ScratchGPTConfig, ScratchGPTForCausalLM
from hf_scratch.errors import UserError, command, preparation
from hf_scratch.recipes import read_recipe
from hf_scratch.reporting.tables import format_table, update_blocks
from hf_scratch.training.arguments import check_at_least
from hf_scratch.training.parsing import parse_arguments

BF16, FP32 = 2, 4  # bytes
GPT2 = {"vocab_size": 50257, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12}
# the sizes of Pythia-1B (Biderman et al. 2023), whose head is not tied, and its 2 million tokens per update
PYTHIA = {"vocab_size": 50304, "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 8}
PYTHIA |= {"max_position_embeddings": 2048, "tie_word_embeddings": False}
PARTS = ("weights", "gradients", "AdamW", "activations")
# the tables' columns
SIZES = ["model", "layers x width", "heads", "vocabulary", "parameters", "tokens per update", "TFLOPs per update"]
ROW = ["model", "GPUs", "method"]
WORK = ["batches x tokens per GPU", "compute [ms]", "sent per GPU [GB]", "communication [ms]", "ratio"]
TIMES = [*ROW, *WORK, "never hidden [ms]", "smallest batch [tokens]"]
MEMORY = [*ROW, *(f"{part} [GB]" for part in (*PARTS, "all"))]


@dataclass
class ScalingArguments:
    """The hardware, and how it is used. The defaults are a DGX H100's."""

    gpus: list[int] = field(default_factory=lambda: [8, 64], metadata={"help": "Numbers of GPUs."})
    tokens_per_batch: int = field(default=32768, metadata={"help": "A batch on one GPU: at most this, or a row."})
    peak: float = field(default=989e12, metadata={"help": "FLOPs per second: H100 SXM, bf16 dense (its data sheet)."})
    share_of_peak: float = field(default=0.45, metadata={"help": "Assumed share of the peak that training reaches."})
    nvlink: float = field(default=450e9, metadata={"help": "Bytes per second and direction: H100 (its data sheet)."})
    network: float = field(default=50e9, metadata={"help": "Bytes per second and GPU: 400 Gb/s (DGX H100's guide)."})
    share_of_bandwidth: float = field(default=0.8, metadata={"help": "Assumed share that collectives reach."})
    gpus_per_machine: int = field(default=8, metadata={"help": "GPUs that NVLink connects."})
    write: bool = field(default=False, metadata={"help": "Write the tables into scripts/README.md."})

    def __post_init__(self):
        check_at_least(self, 1, "tokens_per_batch", "peak", "nvlink", "network", "gpus_per_machine")
        check_at_least(self, 0.01, "share_of_peak", "share_of_bandwidth")


class Model:
    """The sizes of a model, which is built on the meta device, and the rows of its updates, on all GPUs together."""

    def __init__(self, name: str, rows: int, **fields):
        self.name, self.rows, self.config = name, rows, ScratchGPTConfig(**fields)
        with torch.device("meta"):
            model = ScratchGPTForCausalLM(self.config)
        tokens, layer = model.model.embed_tokens.weight.numel(), model.model.layers[0]
        self.layers, self.length = self.config.num_hidden_layers, self.config.max_position_embeddings
        self.parameters = model.num_parameters()
        self.layer = sum(parameter.numel() for parameter in layer.parameters())
        self.matrices = sum(module.weight.numel() for module in layer.modules() if isinstance(module, nn.Linear))
        self.outside = self.parameters - self.layers * self.layer
        self.embeddings = tokens + sum(parameter.numel() for parameter in model.model.embed_positions.parameters())
        self.untied = 0 if self.config.tie_word_embeddings else tokens
        looked_up = self.embeddings if self.untied else self.embeddings - tokens
        attention = 12 * self.layers * self.config.num_attention_heads * self.config.head_dim * self.length
        self.flops = 6 * (self.parameters - looked_up) + attention  # per token


def make_models() -> list[Model]:
    """The three models of the tables. The first is the recipe's."""
    recipe = read_recipe(ROOT / "scripts" / "recipes" / "tinystories_full.yaml")
    sizes = {"vocab_size": recipe["vocab_size"], "max_position_embeddings": recipe["block_size"]}
    full = Model("tinystories_full", 512, **sizes, **recipe["config_overrides"])
    return [full, Model("GPT-2 small", 512, **GPT2), Model("GPT of 1 B", 1024, **PYTHIA)]


def ring(size: float, n: int) -> float:
    """The bytes that each of `n` GPUs sends to gather or to reduce-scatter `size` bytes. An all-reduce does both."""
    return (n - 1) / n * size


def count_bytes(model: Model, method: str, n: int, batches: int) -> dict[str, float]:
    """The bytes that each GPU sends per update of this many batches. Gradients are sent after the last of them.

    Returns:
        "update"; of these "forward", in one forward pass, "backward", in the last backward pass, and "exposed", those
        of the embeddings: they are needed first and their gradients are ready last, so nothing hides them.
    """
    reduced = ring(FP32 * model.parameters, n)
    if method == "DDP":
        exposed = 2 * ring(FP32 * model.embeddings, n)
        return {"update": 2 * reduced, "forward": 0.0, "backward": 2 * reduced, "exposed": exposed}
    forward = ring(BF16 * model.parameters, n)
    again = ring(BF16 * (model.layers * model.layer + model.untied), n)  # the others stay for the backward pass
    exposed = ring((batches * BF16 + FP32) * model.embeddings, n)
    update = batches * (forward + again) + reduced
    return {"update": update, "forward": forward, "backward": again + reduced, "exposed": exposed}


def count_memory(model: Model, method: str, n: int, batches: int, tokens: int) -> dict[str, float]:
    """The bytes that each GPU holds, with this many tokens in a batch. The parts do not all peak at the same time."""
    fields = model.config
    width, vocabulary = fields.hidden_size, fields.vocab_size
    # float32: two norms' inputs, their statistics, and the attention's log-sum-exps; bfloat16: the inputs of five
    # projections, queries, keys and values, and the inner layer before and after its activation
    layer = FP32 * (2 * width + 4 + fields.num_attention_heads) + BF16 * (8 * width + 2 * fields.intermediate_size)
    # the loss keeps the gradients of its input and of the head's weight, and has 2**26 logits at a time
    loss = FP32 * width * (tokens + vocabulary) + (FP32 + BF16) * min(2**26, tokens * vocabulary)
    memory = {"activations": tokens * (model.layers * layer + FP32 * (width + 2)) + loss}
    whole, shard = FP32 * model.parameters, FP32 * model.parameters / n
    if method == "DDP":  # with autocast's copies of the weights, and the buckets of the all-reduce
        memory |= {"weights": whole + BF16 * model.layers * model.matrices, "gradients": 2 * whole, "AdamW": 2 * whole}
    else:  # with the gathered weights of two layers, the gradients of one group, and those summed over batches
        memory["weights"] = shard + BF16 * (model.outside + 2 * model.layer)
        memory["gradients"] = shard + (BF16 + FP32) * max(model.layer, model.outside) + whole * (batches > 1)
        memory["AdamW"] = 2 * shard
    return memory


def calculate(model: Model, method: str, n: int, args: ScalingArguments) -> dict[str, float]:
    """One row of the tables: bytes, seconds per update, and tokens.

    Returns:
        What `count_bytes` and `count_memory` return, "batches", "tokens", "compute", "communication", "never hidden",
        and "smallest": the tokens of a batch from which communication takes no longer than the pass that hides it.
    """
    if n < 2 or model.rows % n or (n > args.gpus_per_machine and n % args.gpus_per_machine):
        machines = f"fill machines of {args.gpus_per_machine}"
        raise UserError(f"`gpus` has {n}: it must be 2 or more, divide {model.rows} rows per update, and {machines}.")
    rows = model.rows // n
    rows_per_batch = max(args.tokens_per_batch // model.length, 1)
    batches = next(b for b in range(1, rows + 1) if rows % b == 0 and rows // b <= rows_per_batch)
    tokens = rows // batches * model.length
    link = args.nvlink if n <= args.gpus_per_machine else min(args.nvlink, args.network * args.gpus_per_machine)
    bandwidth, speed = args.share_of_bandwidth * link, args.share_of_peak * args.peak
    sent = count_bytes(model, method, n, batches)
    hiding = max(3 * sent["forward"], 3 / 2 * sent["backward"])  # a forward pass is a third of the compute
    row = {**sent, **count_memory(model, method, n, batches, tokens), "batches": batches, "tokens": tokens}
    row |= {"compute": batches * tokens * model.flops / speed, "communication": sent["update"] / bandwidth}
    return row | {"never hidden": sent["exposed"] / bandwidth, "smallest": hiding / bandwidth * speed / model.flops}


def format_tables(args: ScalingArguments) -> str:
    """The models, the time of an update, and the memory of a GPU."""
    models, times, memory = [], [], []
    for model in make_models():
        tokens, fields = model.rows * model.length, model.config
        sizes = [f"{model.layers} x {fields.hidden_size}", fields.num_attention_heads, f"{fields.vocab_size:,}"]
        sizes += [f"{model.parameters:,}", f"{tokens:,} in rows of {model.length:,}"]
        models.append([model.name, *sizes, f"{tokens * model.flops / 1e12:,.0f}"])
        for n, method in itertools.product(args.gpus, ("DDP", "FSDP2")):
            row = calculate(model, method, n, args)
            ms = {key: f"{1e3 * row[key]:,.1f}" for key in ("compute", "communication", "never hidden")}
            work = [f"{row['batches']} x {row['tokens']:,}", ms["compute"], row["update"] / 1e9, ms["communication"]]
            work += [row["communication"] / row["compute"], ms["never hidden"], f"{row['smallest']:,.0f}"]
            parts = [row[part] / 1e9 for part in PARTS]
            times.append([model.name, n, method, *work])
            memory.append([model.name, n, method, *parts, sum(parts)])
    return "\n\n".join([format_table(SIZES, models), format_table(TIMES, times), format_table(MEMORY, memory)])


@command
def main():
    with preparation():
        (args,), _ = parse_arguments(ScalingArguments)
        if args.write and args != ScalingArguments(write=True):
            raise UserError("`write` keeps the tables of the defaults: leave out the other arguments.")
        tables = format_tables(args)
    print(tables)
    if args.write:
        update_blocks(ROOT / "scripts" / "README.md", {"scaling": tables}, write=True)


if __name__ == "__main__":
    main()
