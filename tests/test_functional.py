# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""torch's transforms (`torch.func`), fake tensors and second derivatives: the usual result, or a clear refusal."""

import pytest
import torch
from conftest import DROPOUT, FAMILIES
from torch._subclasses import FakeTensorMode
from torch.func import functional_call, grad, jvp, vmap


@pytest.fixture(params=["eager", "sdpa"])
def attention(request) -> str:
    return request.param


def make_loss(model, **loss_kwargs):
    """A function of weights and ids (rows, length), which are their own labels."""

    def loss(weights, ids):
        inputs = {"input_ids": ids, "labels": ids, "use_cache": False, **loss_kwargs}
        return functional_call(model, weights, (), inputs).loss

    return loss


def test_gradients_by_torch_func_are_those_of_backward(family, attention):
    model = FAMILIES[family](attn_implementation=attention).train()
    weights, ids = dict(model.named_parameters()), torch.randint(3, 60, (3, 6))
    loss = make_loss(model)
    at_once = grad(loss)(weights, ids)
    per_row = vmap(lambda row: grad(loss)(weights, row[None]))(ids)
    for i, row in enumerate(ids):
        gradients = torch.autograd.grad(loss(weights, row[None]), weights.values())
        torch.testing.assert_close([each[i] for each in per_row.values()], list(gradients), atol=1e-5, rtol=1e-4)
    means = {name: each.mean(0) for name, each in per_row.items()}  # each row has as many labels
    torch.testing.assert_close(means, at_once, atol=1e-5, rtol=1e-4)


def test_r_drop_is_the_same_in_a_transform(family):
    model = FAMILIES[family](attn_implementation="sdpa").train()
    weights, ids = dict(model.named_parameters()), torch.randint(3, 60, (2, 6))
    loss = make_loss(model, r_drop_alpha=2.0)
    expected = torch.autograd.grad(loss(weights, ids), list(weights.values()))
    actual = tuple(grad(loss)(weights, ids).values())
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-4)


def test_a_directional_derivative_is_the_gradients_product(family):
    model = FAMILIES[family](attn_implementation="eager").train()
    weights, ids = dict(model.named_parameters()), torch.randint(3, 60, (2, 6))
    direction = {name: torch.randn_like(weight) for name, weight in weights.items()}
    loss = make_loss(model, skip_logits=True)
    _, actual = jvp(lambda weights: loss(weights, ids), (weights,), (direction,))
    expected = sum((gradient * direction[name]).sum() for name, gradient in grad(loss)(weights, ids).items())
    torch.testing.assert_close(actual, expected, atol=1e-4, rtol=1e-4)


def test_shapes_can_be_traced_with_fake_tensors(family, attention):
    with FakeTensorMode():
        model = FAMILIES[family](**DROPOUT[family], attn_implementation=attention).train()
        ids = torch.zeros(2, 6, dtype=torch.int64)
        assert model(input_ids=ids, labels=ids, use_cache=False).logits.shape == (2, 6, 60)
        assert model(input_ids=ids, labels=ids, use_cache=False, skip_logits=True).loss.shape == ()


def test_a_second_derivative_is_right_or_refused(family):
    smooth = {"activation_function": "gelu"} if family == "transformer" else {}
    model = FAMILIES[family](attn_implementation="eager", **smooth)
    weights, ids = list(model.parameters()), torch.randint(3, 60, (2, 6))

    def squared_norm(**loss_kwargs) -> torch.Tensor:
        loss = model(input_ids=ids, labels=ids, use_cache=False, **loss_kwargs).loss
        gradients = torch.autograd.grad(loss, weights, create_graph=True)
        return sum((gradient**2).sum() for gradient in gradients)

    (slope,) = torch.autograd.grad(squared_norm(), weights[:1])
    direction, norms = slope.detach() / slope.norm(), []
    for step in (1e-3, -2e-3):
        with torch.no_grad():
            weights[0] += step * direction
        norms.append(squared_norm().detach())
    torch.testing.assert_close((norms[0] - norms[1]) / 2e-3, slope.norm(), rtol=0.01, atol=0)
    for loss_kwargs in ({"skip_logits": True}, {"label_smoothing": 0.1}, {"r_drop_alpha": 1.0}):
        with pytest.raises(RuntimeError, match="twice"):
            squared_norm(**loss_kwargs)


def test_attention_with_dropout_refuses_a_second_derivative(family):
    model = FAMILIES[family](**DROPOUT[family], attn_implementation="sdpa").train()
    ids = torch.randint(3, 60, (2, 6))
    loss = model(input_ids=ids, labels=ids, use_cache=False).loss
    with pytest.raises(RuntimeError, match="twice"):
        torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
