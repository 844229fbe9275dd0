# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""The cross-entropy of a linear head without all of its logits, which are a training step's largest tensor."""

import torch
from torch import nn
from transformers.utils.import_utils import is_torchdynamo_compiling


def linear_cross_entropy(
    hidden_states: torch.Tensor,
    lm_head: nn.Module,
    labels: torch.LongTensor,
    label_smoothing: float = 0.0,
    num_items_in_batch: int | torch.Tensor | None = None,
) -> torch.Tensor:
    """Cross-entropy of `lm_head(hidden_states)` and `labels` in nats a token, exact to rounding.

    Args:
        hidden_states: (batch, length, width).
        lm_head: width to vocabulary. If it is no plain `nn.Linear` with all its weights at hand (sharded, quantised,
            with an adapter), its logits are computed after all.
        labels: (batch, length), -100 is ignored; not shifted here.
        label_smoothing: so much of the target is spread over the whole vocabulary (section 5.4).
        num_items_in_batch: the loss is the sum over tokens divided by this; without it, the mean.
    """
    hidden_states, labels = hidden_states.flatten(0, -2), labels.flatten().to(hidden_states.device)
    kept = labels != -100
    num_items = kept.sum() if num_items_in_batch is None else num_items_in_batch
    if labels.device.type == "cpu" and not is_torchdynamo_compiling():  # an accelerator would have to be waited for
        hidden_states, labels = hidden_states[kept], labels[kept]
    weight = getattr(lm_head, "weight", None)
    if type(lm_head) is nn.Linear and type(weight) is nn.Parameter and len(weight) == lm_head.out_features:
        bias = lm_head.bias
        needs_gradient = torch.is_grad_enabled() and (hidden_states.requires_grad or weight.requires_grad)
        loss = _LinearCrossEntropy.apply(hidden_states, weight, bias, labels, label_smoothing, needs_gradient)
    else:
        logits = lm_head(hidden_states).float()
        loss = nn.functional.cross_entropy(logits, labels, reduction="sum", label_smoothing=label_smoothing)
    return loss / (num_items.to(loss.device) if torch.is_tensor(num_items) else num_items)


class _LinearCrossEntropy(torch.autograd.Function):
    """The sum over tokens, some rows of logits at a time. Their gradient is taken on the way, while they are at hand.

    torch.nn.functional has a function of this name from 2.13 on, which does without the logits only if no labels are
    smoothed.
    """

    @staticmethod
    def forward(
        ctx,
        hidden_states: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        labels: torch.LongTensor,
        label_smoothing: float,
        needs_gradient: bool,
    ) -> torch.Tensor:
        device, vocab_size = hidden_states.device.type, weight.shape[0]
        autocast = torch.is_autocast_enabled(device)
        dtype = torch.get_autocast_dtype(device) if autocast else hidden_states.dtype
        kept = (labels != -100)[:, None]
        inputs, matrix = (hidden_states * kept).to(dtype), weight.to(dtype)
        offset = None if bias is None else bias.to(dtype)
        loss = torch.zeros((), dtype=torch.float32, device=hidden_states.device)
        if needs_gradient:
            input_gradient = torch.empty_like(inputs)
            weight_gradient = torch.zeros_like(weight, dtype=torch.float32)
            bias_gradient = None if bias is None else torch.zeros_like(bias, dtype=torch.float32)

        # a CPU's cache holds 2**21 logits and their softmax; an accelerator wants more work at a time
        rows = max((2**21 if device == "cpu" else 2**26) // vocab_size, 1)
        with torch.autocast(device, enabled=False):
            for begin in range(0, len(labels), rows):
                part = slice(begin, begin + rows)
                target = labels[part, None].clamp(min=0)
                log_p = nn.functional.linear(inputs[part], matrix, offset).log_softmax(-1, dtype=torch.float32)
                losses = (label_smoothing - 1.0) * log_p.gather(1, target)
                if label_smoothing:
                    losses -= label_smoothing * log_p.mean(-1, keepdim=True)
                loss += (losses * kept[part]).sum()
                if not needs_gradient:
                    continue
                # softmax minus the target's distribution
                gradient = log_p.exp_()
                gradient.scatter_add_(1, target, gradient.new_full(target.shape, label_smoothing - 1.0))
                if label_smoothing:
                    gradient -= label_smoothing / vocab_size
                if bias is not None:
                    bias_gradient += (gradient * kept[part]).sum(0)
                gradient = gradient.to(dtype)
                torch.mm(gradient, matrix, out=input_gradient[part])
                weight_gradient += gradient.t() @ inputs[part]
        if needs_gradient:
            ctx.has_bias = bias is not None
            gradients = [(input_gradient * kept).to(hidden_states.dtype), weight_gradient.to(weight.dtype)]
            ctx.save_for_backward(*gradients, *([bias_gradient.to(bias.dtype)] if ctx.has_bias else []))
        return loss

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient: torch.Tensor):
        gradients = [gradient * saved for saved in ctx.saved_tensors]
        return *gradients, *(() if ctx.has_bias else (None,)), None, None, None
