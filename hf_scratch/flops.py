# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""The floating-point operations of a training step, and a GPU's peak: for the MFU (Chowdhery et al. 2022)."""

from collections.abc import Mapping

import torch
from torch import nn

from .models.scratch_layers import MultiHeadAttention

# dense products in bfloat16 with float32 sums, in FLOP/s, by the data sheets; the first name in a GPU's own counts
PEAKS = {
    "H100 PCIe": 756e12, "H100 NVL": 835e12, "H100": 989e12, "H200 NVL": 835e12, "H200": 989e12,
    "NVIDIA B200": 2250e12, "A100": 312e12,
    "L40S": 362e12, "L40": 181e12, "L4": 121e12, "RTX 4090": 165e12,
}  # fmt: skip


def find_peak(device: torch.device) -> float | None:
    """Return a GPU's peak in bfloat16, in FLOP/s; None for a device that is not in `PEAKS`."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    if any(word in name for word in ("MIG", "Laptop", "4090 D")):  # other chips under these names
        return None
    return next((peak for part, peak in PEAKS.items() if part in name), None)


def count_flops(model: nn.Module, inputs: Mapping[str, torch.Tensor]) -> int:
    """Count the operations of a forward and a backward pass of one of our models with its head.

    6 for each token and weight of a linear layer, and 6 for each query, key and element of both products of an
    attention. Padding and what a causal mask hides are counted, as is usual; recomputing activations is not.

    Args:
        model: a model that trains all of its weights.
        inputs: `input_ids` (rows, source length) and `labels` (rows, target length).
    """
    rows, source = inputs["input_ids"].shape
    target, flops = inputs["labels"].shape[1], 0
    for name, module in model.named_modules():
        queries = source if ".encoder." in name else target
        keys = source if "cross_attn" in name else queries
        if isinstance(module, MultiHeadAttention):
            flops += queries * keys * (module.q_proj.out_features + module.v_proj.out_features)
        elif isinstance(module, nn.Linear):
            flops += (keys if name.endswith(("k_proj", "v_proj")) else queries) * module.weight.numel()
    return 6 * rows * flops
