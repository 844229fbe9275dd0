# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Muon (Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks") for the layers' matrices."""

import math
from collections.abc import Collection
from typing import Any

import torch
from torch import nn

MOMENTUM = 0.95
COEFFICIENTS = 3.4445, -4.775, 2.0315  # of Jordan et al.


class MuonAdamW(torch.optim.AdamW):
    """Muon for the groups of `group_parameters` that have matrices, AdamW for the others.

    The update of a matrix is Nesterov's momentum with all singular values near 1. It is as large as an update of AdamW
    (Liu et al. 2025, "Muon is Scalable for LLM Training"), so that both share learning rate and weight decay. torch's
    Muon is the same in bfloat16, which takes many times as long on a CPU without instructions for it.

    Args:
        params: groups of parameters.
        dtype: of the products: bfloat16 or float32.
        kwargs: AdamW's.
    """

    def __init__(self, params: list[dict[str, Any]], dtype: torch.dtype, **kwargs: Any):
        kwargs["fused"] = False  # a fused one would be stepped in spite of a gradient scaler's overflow
        super().__init__(params, **kwargs)
        self.dtype = dtype

    @torch.no_grad()
    def step(self, closure=None):
        groups = self.param_groups
        for group in groups:
            if group["muon"]:
                self._update_matrices(group)
        self.param_groups = [group for group in groups if not group["muon"]]
        loss = super().step(closure)
        self.param_groups = groups
        return loss

    def _update_matrices(self, group: dict[str, Any]) -> None:
        updates: dict[torch.Size, list[tuple[torch.Tensor, torch.Tensor]]] = {}
        for weight in group["params"]:
            if (gradient := weight.grad) is None:
                continue
            if weight not in self.state:  # AdamW reads all steps when it loads a state
                self.state[weight] = {"step": torch.tensor(0.0), "momentum": torch.zeros_like(weight)}
            momentum = self.state[weight]["momentum"].lerp_(gradient, 1 - MOMENTUM)
            updates.setdefault(weight.shape, []).append((weight, gradient.lerp(momentum, MOMENTUM)))
        for shape, pairs in updates.items():
            matrices = orthogonalize(torch.stack([update for _, update in pairs]).to(self.dtype))
            size = 0.2 * math.sqrt(max(shape))
            for (weight, _), matrix in zip(pairs, matrices, strict=True):
                weight.mul_(1 - group["lr"] * group["weight_decay"]).add_(matrix, alpha=-group["lr"] * size)


def orthogonalize(matrices: torch.Tensor) -> torch.Tensor:
    """Bring all singular values of (count, rows, columns) near 1, by five steps of a Newton-Schulz iteration."""
    a, b, c = COEFFICIENTS
    is_tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if is_tall else matrices
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for _ in range(5):
        square = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return x.mT if is_tall else x


def group_parameters(model: Any, decayed: Collection[str], weight_decay: float) -> list[dict[str, Any]]:
    """Group the trainable parameters for `MuonAdamW`. Its matrices are the base model's, without embeddings and head.

    Args:
        model: with its base model, e.g. a language model with a head.
        decayed: names of the parameters with weight decay.
        weight_decay: theirs.
    """
    head = model.get_output_embeddings()  # a base model that is the whole model contains it
    others = [module for module in model.modules() if isinstance(module, nn.Embedding) or module is head]
    matrices = {weight for weight in model.base_model.parameters() if weight.dim() == 2}
    matrices -= {weight for module in others for weight in module.parameters()}
    groups: dict[tuple[bool, bool], list[nn.Parameter]] = {}  # the same without weight decay: runs resume with another
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            groups.setdefault((parameter in matrices, name in decayed), []).append(parameter)
    return [
        {"params": parameters, "muon": is_matrix, "weight_decay": weight_decay * is_decayed}
        for (is_matrix, is_decayed), parameters in groups.items()
    ]
