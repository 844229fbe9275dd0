# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""The cross-entropy of a linear head without all of its logits, which are a training step's largest tensor."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers.utils import TransformersKwargs
from transformers.utils.import_utils import is_tracing

from .scratch_layers import is_2d


class ScratchKwargs(TransformersKwargs, total=False):
    """Keyword arguments of the language models' `forward` for the loss, besides what every transformers model takes.

    Not named parameters: Trainer treats any parameter containing "label" as a label column. `r_drop_alpha` is here
    because it belongs to the same function.

    Attributes:
        shift_labels: (batch, length), the token that each position of a GPT predicts. Default: made of `labels`.
        label_smoothing: share of each label's probability that is spread over the whole vocabulary (section 5.4).
            Default: 0.
        r_drop_alpha: weight of R-Drop's divergence, see `linear_cross_entropy`. Default: 0.
        teachers: what teachers predict, see `linear_cross_entropy`. Default: none.
        distillation_alpha: the teachers' weight in the loss, 0 to 1. Default: 0.
    """

    shift_labels: torch.Tensor
    label_smoothing: float
    r_drop_alpha: float
    teachers: "Sequence[Teacher]"
    distillation_alpha: float


LOSS_KWARGS = ("label_smoothing", "r_drop_alpha", "teachers", "distillation_alpha")


class Teacher(NamedTuple):
    """What a teacher predicts: the hidden states (batch, length, width) that enter its head, and the head.

    Logits (batch, length, vocabulary) do as well, with `nn.Identity()` as the head.
    """

    hidden_states: torch.Tensor
    lm_head: nn.Module


def linear_cross_entropy(
    hidden_states: torch.Tensor,
    lm_head: nn.Module,
    labels: torch.Tensor,
    label_smoothing: float = 0.0,
    num_items_in_batch: int | torch.Tensor | None = None,
    r_drop_alpha: float = 0.0,
    teachers: Sequence[Teacher] = (),
    distillation_alpha: float = 0.0,
) -> torch.Tensor:
    """Cross-entropy of `lm_head(hidden_states)` against `labels`, in nats per token, exact to rounding.

    Args:
        hidden_states: (batch, length, width).
        lm_head: width to vocabulary. Unless it is an `nn.Linear` with a dense weight and without hooks, its logits are
            computed after all (a quantised or sharded head, for example, or one with an adapter).
        labels: (batch, length), int64; -100 is ignored. They are not shifted here.
        label_smoothing: share of each label's probability that is spread over the whole vocabulary (section 5.4).
        num_items_in_batch: the loss is the sum over tokens divided by this. Default: the number of labels.
        r_drop_alpha: above 0, the second half of the batch must repeat the first under another dropout mask. The loss
            then includes `r_drop_alpha` times the mean of the two Kullback-Leibler divergences between the two
            predictions of each token (R-Drop, Liang et al. 2021). The two predictions count as two items.
        teachers: what models of the same vocabulary predict for the same rows, without gradients. With R-Drop, they
            too have each row twice.
        distillation_alpha: the loss is this share of the cross-entropy against the mean of the teachers' predictions,
            and the rest of that against the labels (Hinton et al. 2015, at temperature 1).

    Returns:
        A scalar in float32.

    Raises:
        ValueError: `label_smoothing` or `distillation_alpha` below 0 or above 1; or a teacher of another shape.
    """
    for name, share in (("label_smoothing", label_smoothing), ("distillation_alpha", distillation_alpha)):
        if not 0 <= share <= 1:
            raise ValueError(f"`{name}` must be from 0 to 1, got {share}.")
    teachers = teachers if distillation_alpha else ()
    if shapes := [tuple(each.shape[:-1]) for each, _ in teachers if each.shape[:-1] != labels.shape]:
        raise ValueError(f"A teacher predicts tokens of shape {shapes[0]}, but the labels are {tuple(labels.shape)}.")
    labels, states = labels.to(hidden_states.device).long(), [hidden_states, *(each for each, _ in teachers)]
    if r_drop_alpha:  # place a token's two predictions side by side
        labels, *states = (tensor.unflatten(0, (2, -1)).movedim(0, 2) for tensor in (labels, *states))
    labels, states = labels.flatten(), [tensor.flatten(0, -2) for tensor in states]
    kept = labels != -100
    num_items = kept.sum() if num_items_in_batch is None else num_items_in_batch
    if labels.device.type == "cpu" and not is_tracing(labels):  # an accelerator would have to synchronise
        labels, *states = (tensor[kept] for tensor in (labels, *states))
    hidden_states, *taught = states
    heads = [head for _, head in teachers]
    teach = functools.partial(_mean_prediction, taught, heads) if teachers else None
    options = (labels, label_smoothing, num_items, r_drop_alpha, teach, distillation_alpha)
    pointwise: Callable = _losses_and_gradient
    head: Any = lm_head
    if type(head).__name__ == "OptimizedModule":  # accelerate compiles each module: the head's work is done here
        pointwise = head.dynamo_ctx(pointwise)
        (head,) = head.children()
    if hasattr(head, "unshard"):  # FSDP2: gathers the weight; backward's end shards its gradient
        head.unshard()
    if is_dense_linear(head):
        with_gradient = torch.is_grad_enabled()
        return _LinearCrossEntropy.apply(hidden_states, head.weight, head.bias, with_gradient, *options, pointwise)
    return _cross_entropy(head(hidden_states).float(), *options)


def is_dense_linear(module: nn.Module) -> bool:
    """Whether the module is an `nn.Linear` whose call multiplies by a dense weight, and does nothing else."""
    is_linear = type(module) is nn.Linear or [base.__name__ for base in type(module).__bases__] == [
        "FSDPModule",
        "Linear",
    ]
    return (
        is_linear
        and type(module.weight) is nn.Parameter
        and module.weight.layout == torch.strided
        and module.weight.is_floating_point()
        and not has_hooks(module)
        and "forward" not in vars(module)
        and len(module.weight) == module.out_features  # ZeRO-3 leaves an empty weight between uses
    )


def has_hooks(module: nn.Module) -> bool:
    """Whether the module has hooks. Those of FSDP2 do not count, nor those that transformers leaves behind after
    recording outputs or checkpointing gradients.
    """
    hooks = (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
    others = [hook for hook in hooks if not (getattr(hook, "__module__", None) or "").startswith(IDLE_HOOKS)]
    return bool(others or module._backward_hooks or module._backward_pre_hooks)


IDLE_HOOKS = ("transformers.utils.output_capturing", "transformers.modeling_utils", "torch.distributed.fsdp")


def _cross_entropy(
    logits: torch.Tensor,
    labels: torch.Tensor,
    label_smoothing: float,
    num_items: int | torch.Tensor,
    r_drop_alpha: float,
    teach: Callable | None,
    distillation_alpha: float,
) -> torch.Tensor:
    """The loss from all logits (tokens, vocabulary)."""
    loss = nn.functional.cross_entropy(logits, labels, reduction="sum", label_smoothing=label_smoothing)
    if teach is not None:
        taught = nn.functional.cross_entropy(logits, teach(slice(None), logits.shape[-1]), reduction="none")
        taught = taught.masked_fill(labels == -100, 0.0).sum()
        loss = (1.0 - distillation_alpha) * loss + distillation_alpha * taught
    if r_drop_alpha:
        log_p, log_q = logits.log_softmax(-1).unflatten(0, (-1, 2)).unbind(1)
        divergence = ((log_p.exp() - log_q.exp()) * (log_p - log_q)).sum(-1)
        loss = loss + r_drop_alpha / 2 * divergence.masked_fill(labels[::2] == -100, 0.0).sum()
    return loss / (num_items.to(loss.device) if torch.is_tensor(num_items) else num_items)


@torch.no_grad()
def _mean_prediction(states: list[torch.Tensor], heads: list[nn.Module], rows: slice, vocab_size: int) -> torch.Tensor:
    """The mean of the teachers' probabilities, (rows, vocabulary), float32."""
    total = torch.zeros((), device=states[0].device)
    for each, head in zip(states, heads, strict=True):
        total = head(each[rows].to(getattr(head, "weight", each).dtype)).float().softmax(-1) + total
    if total.shape[-1] != vocab_size:
        raise ValueError(f"A teacher's vocabulary has {total.shape[-1]} tokens, and the model's {vocab_size}.")
    return total / len(states)


def shift_left(labels: torch.Tensor, attention_mask: Any, ignore_index: int = -100) -> torch.Tensor:
    """The label (batch, length) that each position predicts: the next one.

    What would be predicted from padding is ignored: the first token of a row that is padded on the left.
    """
    shifted = nn.functional.pad(labels[:, 1:], (0, 1), value=ignore_index)
    if is_2d(attention_mask):
        shifted = shifted.masked_fill(attention_mask[:, -labels.shape[1] :].to(labels.device) == 0, ignore_index)
    return shifted


def shift_right(labels: torch.Tensor, start: int | None, pad: int | None) -> torch.Tensor:
    """The decoder's input (batch, length): `start` and all labels but the last, with `pad` in place of -100."""
    if start is None or pad is None:
        raise ValueError("Set `decoder_start_token_id` and `pad_token_id` in the model's config.")
    shifted = torch.cat([labels.new_full((len(labels), 1), start), labels[:, :-1]], dim=1)
    return shifted.masked_fill(shifted == -100, pad)


def rows_of_a_block(device: str, vocab_size: int) -> int:
    """How many tokens' logits are computed at a time, by the device's type.

    2**18 logits and their softmax fit in a CPU's cache; fewer rows than 128 would read the head's weight too often. An
    accelerator wants large products, and few sums into the weight's gradient: there, 2**27 logits in float32 take half
    a GiB, and a step about one more than that. With more rows than 2**14, their sum might be too large for float16.
    """
    return max(2**18 // vocab_size, 128) if device == "cpu" else min(2**27 // vocab_size, 2**14)


def _losses_and_gradient(
    logits: torch.Tensor,
    target: torch.Tensor,
    label_weight: float,
    label_smoothing: float,
    r_drop_alpha: float,
    taught: torch.Tensor | None,
    with_gradient: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The losses of a block's tokens, (rows, 1) in float32, and their gradient in the logits' shape and dtype.

    Compiled, it reads the logits twice and writes the gradient once; operation by operation, three to five times as
    many bytes are moved.
    """
    log_p = logits.log_softmax(-1, dtype=torch.float32)
    losses = label_weight * (label_smoothing - 1.0) * log_p.gather(1, target)
    if label_smoothing:
        losses -= label_weight * label_smoothing * log_p.mean(-1, keepdim=True)
    if taught is not None:
        losses -= (taught * log_p).sum(-1, keepdim=True)
    if r_drop_alpha:
        pairs = log_p.unflatten(0, (-1, 2))
        log_ratio = (pairs - pairs.flip(1)).flatten(0, 1)
    # the gradient is the softmax minus the target's distribution
    gradient = log_p.exp_()
    if r_drop_alpha:
        divergence = (gradient * log_ratio).sum(-1, keepdim=True)
        losses += r_drop_alpha / 2 * divergence
        others = gradient.unflatten(0, (-1, 2)).flip(1).flatten(0, 1)
        pull = log_ratio.sub_(divergence).add_(1.0).mul_(gradient).sub_(others)
        gradient = gradient.add_(pull, alpha=r_drop_alpha / 2)
    if not with_gradient:
        return losses, None
    if label_smoothing:
        gradient -= label_weight * label_smoothing / logits.shape[-1]
    if taught is not None:
        gradient -= taught
    at_target = gradient.gather(1, target) + label_weight * (label_smoothing - 1.0)
    return losses, gradient.to(logits.dtype).scatter_(1, target, at_target.to(logits.dtype))


class _LinearCrossEntropy(torch.autograd.Function):
    """Computes a block of logits at a time, and its gradient right away, so that no more than a block is kept.

    It has no second derivative: `create_graph=True` is an error. torch 2.13 has a function of this name, which avoids
    the logits only without label smoothing, and rounds the loss to the inputs' dtype.
    """

    @staticmethod
    def forward(
        ctx,
        hidden_states: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        with_gradient: bool,
        labels: torch.Tensor,
        label_smoothing: float,
        num_items: int | torch.Tensor,
        r_drop_alpha: float,
        teach: Callable | None,
        distillation_alpha: float,
        pointwise: Callable,
    ) -> torch.Tensor:
        device, vocab_size = hidden_states.device.type, weight.shape[0]
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden_states.dtype
        kept = (labels != -100)[:, None]
        inputs, matrix = hidden_states.masked_fill(~kept, 0.0).to(dtype), weight.to(dtype)
        offset = None if bias is None else bias.to(dtype)
        needed = [with_gradient and need for need in ctx.needs_input_grad[:3]]
        input_gradient = torch.empty_like(inputs) if needed[0] else None
        weight_gradient = torch.zeros_like(weight, dtype=torch.float32) if needed[1] else None
        bias_gradient = None if bias is None or not needed[2] else torch.zeros_like(bias, dtype=torch.float32)
        loss = torch.zeros((), dtype=torch.float32, device=hidden_states.device)
        label_weight = 1.0 - distillation_alpha if teach else 1.0

        rows = 2 * max(rows_of_a_block(device, vocab_size) // 2, 1)  # R-Drop's pairs stay together
        with torch.autocast(device, enabled=False):
            for begin in range(0, len(labels), rows):
                part = slice(begin, begin + rows)
                taught = teach(part, vocab_size).mul_(distillation_alpha) if teach else None
                losses, gradient = pointwise(
                    nn.functional.linear(inputs[part], matrix, offset),
                    labels[part, None].masked_fill(~kept[part], 0),
                    label_weight,
                    label_smoothing,
                    r_drop_alpha,
                    taught,
                    any(needed),
                )
                loss += (losses * kept[part]).sum()
                if bias_gradient is not None:
                    bias_gradient += (gradient * kept[part]).sum(0, dtype=torch.float32)
                if input_gradient is not None:
                    torch.mm(gradient, matrix, out=input_gradient[part])
                if weight_gradient is not None and dtype == torch.float32:
                    weight_gradient.addmm_(gradient.t(), inputs[part])
                elif weight_gradient is not None:
                    weight_gradient += gradient.t() @ inputs[part]

        scale = 1.0 / torch.as_tensor(num_items, dtype=torch.float32, device=loss.device)
        if input_gradient is not None:
            input_gradient = input_gradient.masked_fill_(~kept, 0.0).to(hidden_states.dtype)
        # without any label the loss is nan, as torch's, and the gradient is 0
        ctx.save_for_backward(scale.nan_to_num(posinf=0.0), input_gradient, weight_gradient, bias_gradient)
        ctx.dtypes = [None if tensor is None else tensor.dtype for tensor in (hidden_states, weight, bias)]
        return loss * scale

    @staticmethod
    def backward(ctx, gradient: torch.Tensor):  # ty: ignore[incompatible-method-override]  # torch annotates `*grad_outputs`
        if torch.is_grad_enabled():
            raise RuntimeError("The loss without logits cannot be differentiated twice (`create_graph=True`).")
        scale, *saved = ctx.saved_tensors
        factor = gradient * scale
        gradients = [None if tensor is None else tensor * factor for tensor in saved]
        return (
            *(g if g is None else g.to(dtype) for g, dtype in zip(gradients, ctx.dtypes, strict=True)),
            *[None] * 8,
        )
