# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""The loss that never holds all logits is the cross-entropy of those logits, and so are its gradients."""

from unittest.mock import patch

import pytest
import torch
from accelerate import cpu_offload
from conftest import (
    FAMILIES,
    assert_same_step,
    each_variant,
    loss_and_gradients,
    make_gpt,
    make_inputs_for,
    make_variant,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hf_scratch.models import scratch_loss
from hf_scratch.models.scratch_loss import Teacher, linear_cross_entropy


def make_problem(tokens: int, width: int, vocab_size: int, bias: bool = True, seed: int = 0):
    """Hidden states (2, tokens / 2, width), a head, and labels of which every third is ignored."""
    torch.manual_seed(seed)
    hidden_states = torch.randn(2, tokens // 2, width, requires_grad=True)
    labels = torch.randint(0, vocab_size, (2, tokens // 2))
    labels.flatten()[1::3] = -100
    return hidden_states, nn.Linear(width, vocab_size, bias=bias), labels


def with_all_logits(hidden_states, head, labels, smoothing=0.0, num_items=None) -> torch.Tensor:
    logits = head(hidden_states).float().flatten(0, -2)
    reduction = "mean" if num_items is None else "sum"
    loss = nn.functional.cross_entropy(logits, labels.flatten(), reduction=reduction, label_smoothing=smoothing)
    return loss if num_items is None else loss / num_items


def assert_same_gradients(loss, expected, leaves, atol, rtol):
    torch.testing.assert_close(*(torch.autograd.grad(each, leaves) for each in (loss, expected)), atol=atol, rtol=rtol)


def assert_same(hidden_states, head, labels, smoothing=0.0, num_items=None, atol=1e-6, rtol=1e-5):
    expected = with_all_logits(hidden_states, head, labels, smoothing, num_items)
    loss = linear_cross_entropy(hidden_states, head, labels, smoothing, num_items)
    torch.testing.assert_close(loss, expected, atol=atol, rtol=rtol)
    assert_same_gradients(loss, expected, [hidden_states, *head.parameters()], atol, rtol)


@pytest.mark.parametrize("drops_ignored_rows", [True, False])  # as on a CPU, or as elsewhere and in torch.compile
@settings(max_examples=80)
@given(
    shape=st.tuples(st.integers(1, 3), st.integers(1, 6)),
    width=st.integers(1, 8),
    vocab_size=st.integers(1, 12),
    bias=st.booleans(),
    smoothing=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    num_items=st.sampled_from([None, 7, torch.tensor(7)]),
    rows=st.sampled_from([1, 4, 99]),
    seed=st.integers(0, 99),
)
def test_it_is_the_cross_entropy_of_all_logits(
    drops_ignored_rows, shape, width, vocab_size, bias, smoothing, num_items, rows, seed
):
    torch.manual_seed(seed)
    hidden_states = torch.randn(*shape, width, requires_grad=True)
    labels = torch.randint(0, vocab_size, shape).masked_fill(torch.rand(shape) < 0.3, -100)
    labels[0, 0] = vocab_size - 1
    with (
        patch.object(scratch_loss, "is_tracing", return_value=not drops_ignored_rows),
        patch.object(scratch_loss, "rows_of_a_block", return_value=rows),
    ):
        assert_same(hidden_states, nn.Linear(width, vocab_size, bias=bias), labels, smoothing, num_items)


@pytest.mark.parametrize("plain_head", [True, False])
@settings(max_examples=100)
@given(
    shape=st.tuples(st.integers(1, 3), st.integers(1, 6)),
    vocab_size=st.sampled_from([1, 2, 12]),
    teacher_count=st.integers(0, 3),
    distillation_alpha=st.sampled_from([0.3, 1.0]),
    r_drop_alpha=st.sampled_from([0.0, 0.5, 5.0]),
    smoothing=st.sampled_from([0.0, 0.1]),
    num_items=st.sampled_from([None, 7]),
    rows=st.sampled_from([1, 4, 99]),
    seed=st.integers(0, 99),
)
def test_r_drop_adds_the_divergence_of_both_halves_and_distillation_the_teachers_mean(
    plain_head, shape, vocab_size, teacher_count, distillation_alpha, r_drop_alpha, smoothing, num_items, rows, seed
):
    torch.manual_seed(seed)
    hidden_states = torch.randn(2 * shape[0], shape[1], 3, requires_grad=True)
    head = nn.Linear(3, vocab_size) if plain_head else nn.Sequential(nn.Linear(3, 3), nn.Linear(3, vocab_size))
    labels = torch.randint(0, vocab_size, shape).masked_fill(torch.rand(shape) < 0.3, -100)
    labels[0, 0] = vocab_size - 1
    labels = torch.cat([labels, labels])
    count = (labels != -100).sum() if num_items is None else num_items
    log_probabilities = head(hidden_states).log_softmax(-1)
    expected, teachers = with_all_logits(hidden_states, head, labels, smoothing, num_items), []
    if teacher_count:
        widths = range(2, 2 + teacher_count)
        teachers = [(torch.randn(*labels.shape, width), nn.Linear(width, vocab_size)) for width in widths]
        predicted = torch.stack([teacher(states).softmax(-1) for states, teacher in teachers]).mean(0).detach()
        taught = -(predicted * log_probabilities).sum(-1)[labels != -100].sum() / count
        expected = (1 - distillation_alpha) * expected + distillation_alpha * taught
    for a, b in (log_probabilities.chunk(2), log_probabilities.chunk(2)[::-1]):
        divergence = nn.functional.kl_div(a, b, reduction="none", log_target=True).sum(-1)
        expected = expected + r_drop_alpha * divergence[labels.chunk(2)[0] != -100].sum() / 2 / count
    with patch.object(scratch_loss, "rows_of_a_block", return_value=rows):
        loss = linear_cross_entropy(
            hidden_states, head, labels, smoothing, num_items, r_drop_alpha, teachers, distillation_alpha
        )
    torch.testing.assert_close(loss, expected)
    assert_same_gradients(loss, expected, [hidden_states, *head.parameters()], atol=1e-5, rtol=1e-4)


def test_distillation_by_hand():
    """Student (1/2, 1/2), teacher (1/4, 3/4), label 0: half of each target is (5/8, 3/8)."""
    head, teacher = nn.Linear(1, 2), nn.Linear(1, 2)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    teacher.weight.data, teacher.bias.data = torch.zeros(2, 1), torch.tensor([0.25, 0.75]).log()
    states, labels = torch.ones(1, 1, 1), torch.tensor([[0]])
    loss = linear_cross_entropy(states, head, labels, teachers=[(states, teacher)], distillation_alpha=0.5)
    loss.backward()
    torch.testing.assert_close(loss, torch.tensor(2.0).log())
    torch.testing.assert_close(head.bias.grad, torch.tensor([1 / 2 - 5 / 8, 1 / 2 - 3 / 8]))
    assert teacher.bias.grad is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"label_smoothing": -1.0}, "label_smoothing"),
        ({"label_smoothing": float("nan")}, "label_smoothing"),
        ({"distillation_alpha": 1.5}, "distillation_alpha"),
        ({"teachers": [(torch.randn(2, 3, 4), nn.Linear(4, 1))], "distillation_alpha": 0.5}, "vocabulary has 1 "),
        ({"teachers": [(torch.randn(2, 2, 4), nn.Linear(4, 7))], "distillation_alpha": 0.5}, "shape"),
    ],
)
def test_what_does_not_fit_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        linear_cross_entropy(torch.randn(2, 3, 4), nn.Linear(4, 7), torch.ones(2, 3, dtype=torch.long), **options)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("where", ["autocast", "weights"])
def test_bfloat16_is_float32_to_its_precision(where, smoothing):
    hidden_states, head, labels = make_problem(900, 16, 5000)
    leaves = [hidden_states, *head.parameters()]
    expected = with_all_logits(hidden_states, head, labels, smoothing)
    gradients = torch.autograd.grad(expected, leaves)
    if where == "weights":
        hidden_states, head = hidden_states.detach().bfloat16().requires_grad_(), head.bfloat16()
        leaves = [hidden_states, *head.parameters()]
    with torch.autocast("cpu", torch.bfloat16, enabled=where == "autocast"):
        loss = linear_cross_entropy(hidden_states, head, labels, smoothing)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, expected, atol=0.0, rtol=1e-3)
    for leaf, gradient, wanted in zip(leaves, torch.autograd.grad(loss, leaves), gradients, strict=True):
        assert gradient.dtype == leaf.dtype
        assert (gradient.float() - wanted).norm() < 0.01 * wanted.norm()


@pytest.mark.parametrize("frozen", ["head", "hidden states"])
def test_where_one_is_frozen_the_other_gets_its_gradient(frozen):
    hidden_states, head, labels = make_problem(10, 4, 7)
    (head if frozen == "head" else hidden_states).requires_grad_(False)
    leaves = [each for each in (hidden_states, *head.parameters()) if each.requires_grad]
    losses = [f(hidden_states, head, labels) for f in (linear_cross_entropy, with_all_logits)]
    assert_same_gradients(*losses, leaves, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients_the_loss_is_the_same(mode):
    hidden_states, head, labels = make_problem(10, 4, 7)
    with mode():
        loss = linear_cross_entropy(hidden_states, head, labels, 0.1)
    assert not loss.requires_grad
    torch.testing.assert_close(loss, with_all_logits(hidden_states, head, labels, 0.1).detach())


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_where_all_labels_are_ignored_the_mean_is_nan_and_gradients_are_zero(smoothing):
    hidden_states, head, labels = make_problem(10, 4, 7)
    labels = torch.full_like(labels, -100)
    assert_same(hidden_states, head, labels, smoothing, num_items=5)
    assert linear_cross_entropy(hidden_states, head, labels, smoothing, num_items_in_batch=5) == 0.0
    loss = linear_cross_entropy(hidden_states, head, labels, smoothing)
    assert loss.isnan()
    for gradient in torch.autograd.grad(loss, [hidden_states, *head.parameters()]):
        assert torch.equal(gradient, torch.zeros_like(gradient))


@pytest.mark.parametrize("label", [7, -1])
def test_a_label_outside_the_vocabulary_is_refused(label):
    hidden_states, head, labels = make_problem(10, 4, 7)
    labels[0, 0] = label
    with pytest.raises((IndexError, RuntimeError), match="out of bounds"):
        linear_cross_entropy(hidden_states, head, labels)


# heads that are more than a matrix and a bias


class Capped(nn.Linear):
    def forward(self, hidden_states):
        return 3 * super().forward(hidden_states).tanh()


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("num_items", [None, 5])
def test_a_head_that_computes_something_else_is_asked_for_its_logits(num_items, smoothing):
    hidden_states, hooked, labels = make_problem(10, 4, 7)
    hooked.register_forward_hook(lambda module, args, logits: 3 * logits)
    for head in (Capped(4, 7), hooked):
        assert_same(hidden_states, head, labels, smoothing, num_items)


def test_a_head_that_is_offloaded_has_its_loss(family, labelled):
    model = FAMILIES[family](tie_word_embeddings=False)
    expected = model(**labelled).loss
    cpu_offload(model, execution_device=torch.device("cpu"))
    torch.testing.assert_close(model(**labelled).loss, expected)
    torch.testing.assert_close(model(**labelled, skip_logits=True).loss, expected)


def test_a_head_with_an_adapter_keeps_it(family, labelled):
    peft = pytest.importorskip("peft")
    model = FAMILIES[family](tie_word_embeddings=False)
    adapted = peft.get_peft_model(model, peft.LoraConfig(target_modules=["lm_head"], r=4, init_lora_weights=False))
    plain = loss_and_gradients(adapted, labelled)
    assert plain[1]
    assert all("lora_" in name for name in plain[1])
    assert_same_step(loss_and_gradients(adapted, {**labelled, "skip_logits": True}), plain)


# both models


@each_variant()
def test_each_variant_takes_the_step_without_logits_that_it_takes_with_them(family, variant):
    model = make_variant(family, variant)
    inputs = make_inputs_for(model)
    inputs["labels"] = inputs.pop("decoder_input_ids", inputs["input_ids"]).clone()
    inputs["labels"][1, 4:] = -100
    output = model(**inputs, skip_logits=True)
    assert output.logits is None
    assert torch.equal(output.loss, model(**inputs, skip_logits=True, return_dict=False)[0])
    for num_items in (None, 20, torch.tensor(20)):
        steps = [loss_and_gradients(model, {**inputs, "num_items_in_batch": num_items, "skip_logits": skip})
                 for skip in (True, False)]  # fmt: skip
        assert_same_step(*steps)


def test_without_labels_the_logits_are_not_skipped(model, inputs):
    assert torch.equal(model(**inputs, skip_logits=True).logits, model(**inputs).logits)


def test_labels_are_smoothed_with_or_without_logits(family, model, labelled):
    output = model(**labelled, label_smoothing=0.1)
    assert torch.equal(output.logits, model(**labelled).logits)
    logits, labels = output.logits, labelled["labels"]
    if family == "gpt":
        logits, labels = logits[:, :-1], labels[:, 1:]
    torch.testing.assert_close(output.loss, with_all_logits(logits, nn.Identity(), labels, 0.1))
    smoothed = {**labelled, "label_smoothing": 0.1}
    assert_same_step(loss_and_gradients(model, {**smoothed, "skip_logits": True}), loss_and_gradients(model, smoothed))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_labels_that_are_shifted_already_are_not_shifted_again(smoothing):
    model = make_gpt()
    ids, next_tokens = torch.randint(3, 60, (2, 3, 7)).unbind()
    next_tokens[1, 3:] = -100
    inputs = {"input_ids": ids, "labels": ids, "shift_labels": next_tokens}
    expected = with_all_logits(model(ids).logits, nn.Identity(), next_tokens, smoothing)
    for skip_logits in (True, False):
        loss = model(**inputs, skip_logits=skip_logits, label_smoothing=smoothing).loss
        torch.testing.assert_close(loss, expected)


def test_several_pieces_compile_into_one_graph():
    torch._dynamo.reset()
    hidden_states, head, labels = make_problem(1000, 16, 5000)
    compiled = torch.compile(linear_cross_entropy, fullgraph=True, backend="eager")
    loss, expected = (f(hidden_states, head, labels, 0.1) for f in (compiled, linear_cross_entropy))
    torch.testing.assert_close(loss, expected)
    assert_same_gradients(loss, expected, [hidden_states, *head.parameters()], atol=1e-7, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("alpha", [0.0, 0.5])
def test_a_compiled_head_gives_the_same_loss(dtype, alpha):
    torch._dynamo.reset()
    hidden_states, head, labels = make_problem(600, 16, 5000)
    labels = labels[:1].repeat(2, 1)
    teachers = [Teacher(torch.randn(2, 300, 8), nn.Linear(8, 5000))]
    compiled = torch.compile(head, backend="eager")
    results = []
    for each in (head, compiled):
        with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
            loss = linear_cross_entropy(hidden_states, each, labels, 0.1, 7, alpha, teachers, alpha)
        results.append((loss, *torch.autograd.grad(loss, [hidden_states, *each.parameters()])))
    torch.testing.assert_close(*results)


class LargestTensor(TorchDispatchMode):
    """The bytes of the largest tensor that any operation returns."""

    nbytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        output = func(*args, **(kwargs or {}))
        tensors = [leaf for leaf in tree_leaves(output) if isinstance(leaf, torch.Tensor)]
        self.nbytes = max([self.nbytes, *(tensor.untyped_storage().nbytes() for tensor in tensors)])
        return output


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_no_tensor_is_as_large_as_the_logits(family, smoothing):
    model = FAMILIES[family](vocab_size=2000, hidden_size=16) if family == "gpt" else FAMILIES[family](vocab_size=2000)
    ids = torch.randint(3, 2000, (100, 40))
    logits_bytes = 4 * 100 * 40 * 2000
    largest = {}
    for skip_logits in (True, False):
        with LargestTensor() as mode:
            model(input_ids=ids, labels=ids, skip_logits=skip_logits, label_smoothing=smoothing).loss.backward()
        largest[skip_logits] = mode.nbytes
    assert largest[True] <= 4 * 2**21 < logits_bytes / 3
    assert largest[False] >= logits_bytes
