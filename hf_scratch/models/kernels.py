# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Which of torch's kernels multiplies few rows by a model's weights fastest on this machine, found by timing.

torch multiplies float32 by MKL, which reaches half of the speed of some CPUs. The same torch carries oneDNN, and MKL
itself may read a transposed weight faster. No kernel wins for all shapes on all machines, so each shape is timed once
per process and number of threads.
"""

import math
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from statistics import mean
from typing import NamedTuple

import torch
from torch import nn

Product = Callable[[torch.Tensor], torch.Tensor]
Kernel = Callable[["Linear", int], Product]

MOST_ROWS = 256  # more rows take long to time, and the order of the kernels stays as it is
SAMPLE = 4 << 20  # weights that are timed, in elements: as many as a CPU's caches do not hold, as while a model runs
CACHED_ROWS = 16  # with more rows than that, arithmetic takes longer than reading: fewer weights will do
PASSES = 2
PAYS_OFF = 16  # steps within which a copy of a weight has to pay off


class Linear(NamedTuple):
    """A weight (out_features, in_features) and a bias (out_features,) or None."""

    weight: torch.Tensor
    bias: torch.Tensor | None


def fastest_products(linears: Sequence[Linear], rows: int) -> list[Product]:
    """For each weight, `nn.functional.linear` with it by the kernel that is the fastest here for so many rows.

    The results differ from those of `nn.functional.linear` by rounding alone. What is timed first decides for the rest
    of the process, so another process may round otherwise. Under `torch.use_deterministic_algorithms(True)` nothing is
    timed, and all is left to `nn.functional.linear`, as it is for any other dtype than float32.

    Args:
        linears: the products of one step of a decoder, in the order in which they run, on a CPU.
        rows: the number of rows that each product will multiply, or the largest one.
    """
    if torch.are_deterministic_algorithms_enabled() or linears[0].weight.dtype != torch.float32:
        return [_linear(linear, rows) for linear in linears]
    rows = min(1 << max(rows - 1, 0).bit_length(), MOST_ROWS)  # a power of two, so that few are timed
    timed = [(_describe(linear, rows), linear) for linear in linears]
    if not _FASTEST.keys() >= {shape for shape, _ in timed}:
        _FASTEST.update(_time(timed, rows))
    return [KERNELS[_FASTEST[shape]](linear, rows) for shape, linear in timed]


def describe_kernels() -> dict[str, str]:
    """The kernel that this process has chosen for each shape: {"1 row(s), 1024 x 256, 2 thread(s)": "onednn"}."""
    return {
        f"{shape.rows} row(s), {shape.outputs} x {shape.inputs}, {shape.threads} thread(s)": kernel
        for shape, kernel in _FASTEST.items()
    }


def _linear(linear: Linear, rows: int) -> Product:
    return partial(nn.functional.linear, weight=linear.weight, bias=linear.bias)


def _transposed(linear: Linear, rows: int) -> Product:
    bias, transposed = linear.bias, linear.weight.t().contiguous()
    return (lambda x: torch.mm(x, transposed)) if bias is None else (lambda x: torch.addmm(bias, x, transposed))


def _onednn(linear: Linear, rows: int) -> Product:
    multiply, weight, bias = torch.ops.mkldnn._linear_pointwise.default, *linear
    return lambda x: multiply(x, weight, bias, "none", [], "")


def _packed(linear: Linear, rows: int) -> Product:
    return _onednn(Linear(torch.ops.mkldnn._reorder_linear_weight(linear.weight, rows), linear.bias), rows)


KERNELS: dict[str, Kernel] = {"linear": _linear, "transposed": _transposed, "onednn": _onednn, "packed": _packed}


class _Shape(NamedTuple):
    """What decides which kernel is the fastest."""

    rows: int
    outputs: int
    inputs: int
    has_bias: bool
    threads: int
    has_onednn: bool


_FASTEST: dict[_Shape, str] = {}


def _describe(linear: Linear, rows: int) -> _Shape:
    return _Shape(rows, *linear.weight.shape, linear.bias is not None, torch.get_num_threads(), _has_onednn())


def _has_onednn() -> bool:
    return bool(torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled)


def _names(rows: int) -> list[str]:
    names = ["linear"]
    if rows == 1:
        names.append("transposed")
    if _has_onednn():
        names.append("onednn")
        if rows > 1:
            names.append("packed")
    return names


def _time(linears: list[tuple[_Shape, Linear]], rows: int) -> dict[_Shape, str]:
    """The kernel of each shape with the least time per step, the copy of its weight included."""
    sample, size, enough = [], 0, SAMPLE * min(1, CACHED_ROWS / rows)
    for shape, linear in linears:
        if size < enough or all(shape != other for other, _ in sample):
            sample.append((shape, linear))
            size += linear.weight.numel()
    fastest, least = {}, {}
    for name in _names(rows):
        prepared, times = defaultdict(list), [defaultdict(list) for _ in range(PASSES)]
        products = []
        for shape, linear in sample:
            start = time.perf_counter()
            products.append((shape, KERNELS[name](linear, rows), linear.weight.new_ones(rows, shape.inputs)))
            prepared[shape].append(time.perf_counter() - start)
        for seconds in times:
            for shape, product, x in products:
                start = time.perf_counter()
                product(x)
                seconds[shape].append(time.perf_counter() - start)
        for shape, copying in prepared.items():
            step = min(mean(seconds[shape]) for seconds in times) + min(copying) / PAYS_OFF
            if step < least.get(shape, math.inf):
                fastest[shape], least[shape] = name, step
    return fastest
