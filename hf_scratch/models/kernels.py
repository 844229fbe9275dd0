# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Which of torch's kernels multiplies few rows by a model's weights fastest on this machine, found by timing.

torch multiplies float32 by MKL, which reaches half of the speed of some CPUs. The same torch carries oneDNN, and MKL
itself may read a transposed weight faster. No kernel wins for all shapes on all machines, so each shape is timed once
per process.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import nn

Product = Callable[[torch.Tensor], torch.Tensor]

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
    keys = [
        (*linear.weight.shape, linear.weight.dtype, linear.bias is None, rows, torch.get_num_threads(), _has_onednn())
        for linear in linears
    ]
    if not _FASTEST.keys() >= set(keys):
        _FASTEST.update(_time(dict(zip(keys, linears, strict=True)), [*zip(keys, linears, strict=True)], rows))
    return [_FASTEST[key](linear, rows) for key, linear in zip(keys, linears, strict=True)]


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


_FASTEST: dict[tuple, Callable[[Linear, int], Product]] = {}


def _has_onednn() -> bool:
    return bool(torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled)


def _kernels(rows: int) -> list[Callable[[Linear, int], Product]]:
    kernels = [_linear]
    if rows == 1:
        kernels.append(_transposed)
    if _has_onednn():
        kernels.append(_onednn)
        if rows > 1:
            kernels.append(_packed)
    return kernels


def _time(linears: dict[tuple, Linear], steps, rows: int) -> dict[tuple, Callable[[Linear, int], Product]]:
    """The kernel of each shape with the least time per step, the copy of its weight included."""
    sample, size, enough = [], 0, SAMPLE * min(1, CACHED_ROWS / rows)
    for key, linear in steps:
        if size < enough or all(key != other for other, _ in sample):
            sample.append((key, linear))
            size += linear.weight.numel()
    fastest, least = {}, {}
    for kernel in _kernels(rows):
        times = {key: [[] for _ in range(PASSES)] for key in linears}
        prepared = {key: [] for key in linears}
        products = []
        for key, linear in sample:
            start = time.perf_counter()
            products.append((key, kernel(linear, rows), linear.weight.new_ones(rows, linear.weight.shape[1])))
            prepared[key].append(time.perf_counter() - start)
        for number in range(PASSES):
            for key, product, x in products:
                start = time.perf_counter()
                product(x)
                times[key][number].append(time.perf_counter() - start)
        for key in linears:
            seconds = min(sum(each) / len(each) for each in times[key]) + min(prepared[key]) / PAYS_OFF
            if seconds < least.get(key, float("inf")):
                fastest[key], least[key] = kernel, seconds
    return fastest
