# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Dropout and attention in training on a CPU: the right distribution, and the gradient of what was drawn."""

import math
from types import SimpleNamespace

import pytest
import torch
from conftest import DROPOUT, FAMILIES, assert_same_step, loss_and_gradients, make_gpt
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_scratch.cpu.training_kernels import sdpa_training_forward
from hf_scratch.models.scratch_layers import apply_dropout

# dropout


@pytest.mark.parametrize("p", [1e-3, 0.1, 0.37, 0.9])
def test_dropout_keeps_its_share_and_the_mean(p):
    torch.manual_seed(0)
    size = 4 * 100_000
    values = torch.rand(size) + 0.5
    dropped = apply_dropout(values, p, training=True)
    kept = (dropped != 0).double()
    deviation = math.sqrt(p * (1 - p) / size)
    assert abs(kept.mean() - (1 - p)) < 4 * deviation + 2**-17
    # each draw decides four neighbours: as often kept, and independent of each other
    for lane in kept.view(-1, 4).unbind(1):
        assert abs(lane.mean() - (1 - p)) < 4 * 2 * deviation + 2**-17
    for distance in (1, 2, 3, 4):
        both = (kept[:-distance] * kept[distance:]).mean() - kept.mean() ** 2
        assert abs(both) < 4 * p * (1 - p) / math.sqrt(size)
    spread = math.sqrt(p / (1 - p) * values.square().mean() / size)
    assert abs((dropped - values).mean()) < 4 * spread


@settings(max_examples=60)
@given(
    shape=st.lists(st.integers(0, 7), max_size=3),
    p=st.floats(1e-9, 0.99),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    seed=st.integers(0, 2**62),
)
def test_what_dropout_keeps_is_scaled_and_so_is_its_gradient(shape, p, dtype, seed):
    torch.manual_seed(seed)
    values = (torch.rand(shape) + 0.5).to(dtype).requires_grad_()
    upstream = (torch.rand(shape) + 0.5).to(dtype)
    torch.manual_seed(seed)
    dropped = apply_dropout(values, p, training=True)
    torch.manual_seed(seed)
    assert torch.equal(dropped, apply_dropout(values, p, training=True))
    dropped.backward(upstream)
    assert dropped.dtype == values.grad.dtype == dtype
    kept = dropped != 0
    scale = 1 / (1 - round(p * 65536) / 65536)
    assert scale == pytest.approx(1 / (1 - p), rel=1e-3)
    assert torch.equal(dropped, torch.where(kept, values * scale, 0))
    assert torch.equal(values.grad, torch.where(kept, upstream * scale, 0))


@pytest.mark.parametrize(("p", "training"), [(0.0, True), (0, True), (0.5, False), (1.0, False)])
def test_no_dropout_is_no_operation(p, training):
    values = torch.randn(5)
    state = torch.get_rng_state()
    assert apply_dropout(values, p, training) is values
    assert torch.equal(torch.get_rng_state(), state)


# attention

P = 0.25
KINDS = ["causal", "boolean", "additive", "one_mask", "mask_by_head", "cross"]
# batch, heads, queries: one piece, several of queries, several of rows
SHAPES = {"small": (2, 2, 5), "long": (2, 4, 600), "many_rows": (700, 2, 16)}


def make_case(kind: str, batch: int, heads: int, queries: int, dtype=torch.float32) -> dict:
    """The arguments of `attend`; in "cross", keys are more than queries and values wider than keys."""
    torch.manual_seed(2)
    keys, v_head_dim = (queries + queries // 3, 7) if kind == "cross" else (queries, 4)
    query, key = (torch.randn(batch, heads, length, 4, dtype=dtype) for length in (queries, keys))
    tensors = [query, key, torch.randn(batch, heads, keys, v_head_dim, dtype=dtype)]
    mask = None
    if kind in ("boolean", "one_mask", "mask_by_head"):
        shape = (1 if kind == "one_mask" else batch, heads if kind == "mask_by_head" else 1, queries, keys)
        mask = torch.rand(shape) < 0.7
        mask[..., 0] = True
    elif kind == "additive":
        mask = torch.randn(batch, 1, queries, keys, dtype=dtype)
        mask[..., 1:].masked_fill_(torch.rand(batch, 1, queries, keys - 1) < 0.3, torch.finfo(dtype).min)
    return {"tensors": [x.requires_grad_() for x in tensors], "mask": mask, "is_causal": kind == "causal"}


def attend(tensors, mask, is_causal, dropout=P, seed=0, **kwargs) -> torch.Tensor:
    torch.manual_seed(seed)
    module = SimpleNamespace(is_causal=is_causal, training=True)
    context, weights = sdpa_training_forward(module, *tensors, mask, scaling=0.6, dropout=dropout, **kwargs)
    assert weights is None
    return context


def dropped_weights(tensors, mask, is_causal, dropout=P, seed=0) -> torch.Tensor:
    """The weights after dropout (batch, heads, queries, keys), read off as the context of one-hot values."""
    query, key, _ = (x.detach() for x in tensors)
    one_hot = torch.eye(key.shape[2], dtype=key.dtype).expand(*key.shape[:3], -1)
    return attend([query, key, one_hot], mask, is_causal, dropout, seed).transpose(1, 2)


def by_hand(tensors, mask, is_causal, kept: torch.Tensor | float = 1.0) -> torch.Tensor:
    query, key, value = tensors
    scores = 0.6 * query @ key.transpose(2, 3)
    if is_causal:
        scores = scores.masked_fill(torch.ones(scores.shape[2:], dtype=torch.bool).triu(1), -torch.inf)
    elif mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
    return (scores.softmax(-1) * kept @ value).transpose(1, 2)


def assert_same(context, expected, tensors, atol=2e-5, rtol=1e-4):
    torch.testing.assert_close(context, expected, atol=atol, rtol=rtol)
    upstream = torch.randn(expected.shape, generator=torch.Generator().manual_seed(3))
    gradients = (torch.autograd.grad(each, tensors, upstream) for each in (context, expected))
    torch.testing.assert_close(*gradients, atol=atol, rtol=rtol)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_attention_and_its_gradient_are_those_of_the_weights_that_were_drawn(kind, shape):
    case = make_case(kind, *SHAPES[shape])
    weights = dropped_weights(**case)
    kept = (weights != 0) / (1 - P)
    drawn = by_hand([*case["tensors"][:2], torch.eye(weights.shape[3])], case["mask"], case["is_causal"]).transpose(
        1, 2
    )
    torch.testing.assert_close(weights, (drawn * kept).detach(), atol=1e-6, rtol=1e-5)
    possible = drawn > 0
    count = int(possible.sum())
    assert abs((weights[possible] == 0).double().mean() - P) < 4 * math.sqrt(P * (1 - P) / count)
    assert_same(attend(**case), by_hand(**case, kept=kept), case["tensors"])
    for none in (0.0, 1e-9):
        assert_same(attend(**case, dropout=none), by_hand(**case), case["tensors"])


@pytest.mark.parametrize("shape", SHAPES)
def test_rows_and_queries_and_heads_are_dropped_apart(shape):
    kept = dropped_weights(**make_case("cross", *SHAPES[shape])) != 0
    for dim in (0, 1, 2):
        same = kept.narrow(dim, 1, kept.shape[dim] - 1) == kept.narrow(dim, 0, kept.shape[dim] - 1)
        expected = P**2 + (1 - P) ** 2
        assert abs(same.double().mean() - expected) < 6 * math.sqrt(expected * (1 - expected) / same.numel())


@pytest.mark.parametrize("dropout", [0.0, P])
@pytest.mark.parametrize(("kind", "queries"), [("causal", 20), ("additive", 20), ("cross", 90), ("causal", 300)])
def test_in_bfloat16_gradients_are_float32s_to_its_precision(kind, queries, dropout):
    case = make_case(kind, 2, 4, queries)
    rounded = [x.detach().bfloat16().requires_grad_() for x in case["tensors"]]
    case["tensors"] = [x.detach().float().requires_grad_() for x in rounded]
    expected = attend(**case, dropout=dropout)
    context = attend(**{**case, "tensors": rounded}, dropout=dropout)
    upstream = torch.randn(expected.shape).bfloat16()
    gradients = torch.autograd.grad(context, rounded, upstream)
    wanted = torch.autograd.grad(expected, case["tensors"], upstream.float())
    for actual, precise in zip([context, *gradients], [expected, *wanted], strict=True):
        assert actual.dtype == torch.bfloat16
        assert (actual.float() - precise).norm() < 0.01 * precise.norm()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("boolean", [True, False])
def test_a_query_that_may_see_no_key_has_no_context_and_no_nan(boolean, dtype):
    case = make_case("boolean", *SHAPES["small"], dtype)
    case["mask"][:, :, 2] = False
    if not boolean:
        case["mask"] = torch.zeros(case["mask"].shape, dtype=dtype).masked_fill(~case["mask"], -torch.inf)
    for dropout in (0.0, P):
        context = attend(**case, dropout=dropout)
        assert not context[:, 2].any()
        for gradient in torch.autograd.grad(context.float().square().sum(), case["tensors"]):
            assert gradient.isfinite().all()


def test_float64_stays_float64():
    case = make_case("causal", *SHAPES["small"], torch.float64)
    torch.testing.assert_close(attend(**case, dropout=0.0), by_hand(**case), atol=1e-12, rtol=1e-12)


# both models


def pad(batch: dict) -> dict[str, torch.Tensor]:
    mask = torch.ones_like(batch["input_ids"])
    mask[1, 5:] = 0
    return {**batch, "attention_mask": mask}


@pytest.mark.parametrize("is_padded", [False, True])
def test_gradient_checkpointing_draws_the_same_dropout_again(family, labelled, is_padded):
    model = FAMILIES[family](**DROPOUT[family], attn_implementation="sdpa").train()
    batch = pad(labelled) if is_padded else labelled
    expected = loss_and_gradients(model, batch)
    assert loss_and_gradients(model, batch, seed=1)[0] != expected[0]
    getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)()
    assert_same_step(loss_and_gradients(model, batch), expected)


@pytest.mark.parametrize("is_padded", [False, True])
def test_training_under_sdpa_is_training_under_eager(model, labelled, is_padded):
    steps = []
    for attention in ("eager", "sdpa"):
        model.train().set_attn_implementation(attention)
        steps.append(loss_and_gradients(model, pad(labelled) if is_padded else labelled))
    assert_same_step(*steps)


def test_training_with_dropout_compiles_into_one_graph(family, labelled):
    torch._dynamo.reset()
    layers = {"num_hidden_layers": 1} if family == "gpt" else {"encoder_layers": 1, "decoder_layers": 1}
    model = FAMILIES[family](**DROPOUT[family], **layers, attn_implementation="sdpa").train()
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    _, gradients = loss_and_gradients(model, pad(labelled), compiled)
    assert gradients.keys() == dict(model.named_parameters()).keys()
    assert all(gradient.isfinite().all() for gradient in gradients.values())


def test_a_call_that_is_not_causal_stays_so_with_dropout():
    model = make_gpt(attention_dropout=1e-9, attn_implementation="sdpa")
    ids = torch.randint(3, 60, (2, 7))
    expected = model(ids, is_causal=False).logits
    assert not torch.allclose(expected, model(ids).logits)
    torch.testing.assert_close(model.train()(ids, is_causal=False).logits, expected)
