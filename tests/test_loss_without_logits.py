# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""The loss that never holds all logits is the cross-entropy of those logits, and so are its gradients."""

from unittest.mock import patch

import pytest
import torch
from accelerate import cpu_offload
from conftest import FAMILIES, each_variant, make_gpt, make_inputs_for, make_variant
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

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


def with_r_drop(hidden_states, head, labels, alpha, smoothing=0.0, num_items=None) -> torch.Tensor:
    """Both halves' cross-entropies, and the mean of the two divergences by torch's own function."""
    log_p, log_q = head(hidden_states).float().log_softmax(-1).chunk(2)
    divergences = [
        nn.functional.kl_div(a, b, reduction="none", log_target=True).sum(-1)
        for a, b in ((log_p, log_q), (log_q, log_p))
    ]
    kept = labels.chunk(2)[0] != -100
    num_items = (labels != -100).sum() if num_items is None else num_items
    loss = with_all_logits(hidden_states, head, labels, smoothing, num_items)
    return loss + alpha * sum(divergence[kept].sum() / 2 for divergence in divergences) / num_items


def assert_same_gradients(loss, expected, leaves, atol, rtol):
    gradients = (torch.autograd.grad(each, leaves) for each in (loss, expected))
    for gradient, wanted in zip(*gradients, strict=True):
        assert gradient.dtype == wanted.dtype
        torch.testing.assert_close(gradient, wanted, atol=atol, rtol=rtol)


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
    seed=st.integers(0, 99),
)
def test_it_is_the_cross_entropy_of_all_logits(
    drops_ignored_rows, shape, width, vocab_size, bias, smoothing, num_items, seed
):
    torch.manual_seed(seed)
    hidden_states = torch.randn(*shape, width, requires_grad=True)
    labels = torch.randint(0, vocab_size, shape).masked_fill(torch.rand(shape) < 0.3, -100)
    labels[0, 0] = vocab_size - 1
    with patch("hf_scratch.models.scratch_loss.is_tracing", return_value=not drops_ignored_rows):
        assert_same(hidden_states, nn.Linear(width, vocab_size, bias=bias), labels, smoothing, num_items)


def make_repeated_problem(plain_head, shape, vocab_size, seed):
    """Hidden states, a head and labels, whose second half repeats the first, as R-Drop needs it."""
    torch.manual_seed(seed)
    hidden_states = torch.randn(2 * shape[0], shape[1], 3, requires_grad=True)
    head = nn.Linear(3, vocab_size) if plain_head else nn.Sequential(nn.Linear(3, 3), nn.Linear(3, vocab_size))
    labels = torch.randint(0, vocab_size, shape).masked_fill(torch.rand(shape) < 0.3, -100)
    labels[0, 0] = vocab_size - 1
    return hidden_states, head, torch.cat([labels, labels])


@pytest.mark.parametrize("plain_head", [True, False])
@settings(max_examples=60)
@given(
    shape=st.tuples(st.integers(1, 3), st.integers(1, 6)),
    vocab_size=st.sampled_from([1, 2, 12, 2**18]),  # of the largest, four rows of logits are taken at a time
    alpha=st.sampled_from([0.5, 5.0]),
    smoothing=st.sampled_from([0.0, 0.1]),
    num_items=st.sampled_from([None, 7]),
    seed=st.integers(0, 99),
)
def test_r_drop_adds_the_divergence_of_both_halves(plain_head, shape, vocab_size, alpha, smoothing, num_items, seed):
    hidden_states, head, labels = make_repeated_problem(plain_head, shape, vocab_size, seed)
    expected = with_r_drop(hidden_states, head, labels, alpha, smoothing, num_items)
    loss = linear_cross_entropy(hidden_states, head, labels, smoothing, num_items, r_drop_alpha=alpha)
    torch.testing.assert_close(loss, expected)
    assert_same_gradients(loss, expected, [hidden_states, *head.parameters()], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("plain_head", [True, False])
@settings(max_examples=60)
@given(
    shape=st.tuples(st.integers(1, 3), st.integers(1, 6)),
    vocab_size=st.sampled_from([1, 2, 12, 2**18]),
    count=st.integers(1, 3),
    alpha=st.sampled_from([0.3, 1.0]),
    smoothing=st.sampled_from([0.0, 0.1]),
    r_drop_alpha=st.sampled_from([0.0, 2.0]),
    seed=st.integers(0, 99),
)
def test_distillation_is_the_cross_entropy_against_the_teachers_mean(
    plain_head, shape, vocab_size, count, alpha, smoothing, r_drop_alpha, seed
):
    hidden_states, head, labels = make_repeated_problem(plain_head, shape, vocab_size, seed)
    teachers = [(torch.randn(*labels.shape, width), nn.Linear(width, vocab_size)) for width in range(2, 2 + count)]
    predicted = torch.stack([teacher(states).softmax(-1) for states, teacher in teachers]).mean(0).detach()
    taught = -(predicted * head(hidden_states).log_softmax(-1)).sum(-1)[labels != -100].mean()
    plain = with_all_logits(hidden_states, head, labels, smoothing)
    divergence = with_r_drop(hidden_states, head, labels, r_drop_alpha) - with_all_logits(hidden_states, head, labels)
    expected = (1 - alpha) * plain + alpha * taught + divergence
    options = {"r_drop_alpha": r_drop_alpha, "teachers": teachers, "distillation_alpha": alpha}
    loss = linear_cross_entropy(hidden_states, head, labels, smoothing, **options)
    torch.testing.assert_close(loss, expected, atol=1e-5, rtol=1e-5)
    assert_same_gradients(loss, expected, [hidden_states, *head.parameters()], atol=3e-5, rtol=1e-4)


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


def test_rows_and_teachers_that_do_not_fit_are_refused():
    states, labels, head = torch.randn(2, 3, 4), torch.ones(2, 3, dtype=torch.long), nn.Linear(4, 7)
    for teacher, message in (
        ((states, nn.Linear(4, 1)), "A teacher's vocabulary has 1 tokens, and the model's 7"),
        ((states[:, 1:], nn.Linear(4, 7)), r"of shape \(2, 2\), but the labels are \(2, 3\)"),
    ):
        with pytest.raises(ValueError, match=message):
            linear_cross_entropy(states, head, labels, teachers=[teacher], distillation_alpha=0.5)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("tokens", [1500, 1886])  # 419 labels are taken at a time: 1000 are kept, or 3 * 419
def test_so_is_the_sum_over_several_pieces(tokens, bias, smoothing):
    assert_same(*make_problem(tokens, 16, 5000, bias), smoothing, atol=1e-7, rtol=1e-4)


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


def test_in_bfloat16_a_uniform_prediction_costs_the_logarithm_of_the_vocabulary():
    hidden_states, head, labels = make_problem(10, 4, 5000)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    loss = linear_cross_entropy(hidden_states.bfloat16(), head.bfloat16(), labels)
    torch.testing.assert_close(loss, torch.tensor(5000.0).log())


@pytest.mark.parametrize("frozen", ["head", "hidden states"])
def test_what_is_frozen_gets_no_gradient(frozen):
    hidden_states, head, labels = make_problem(10, 4, 7)
    with_all_logits(hidden_states, head, labels).backward()
    expected, head_gradients = hidden_states.grad, [p.grad for p in head.parameters()]
    hidden_states.grad = None
    head.zero_grad()
    (head if frozen == "head" else hidden_states).requires_grad_(False)
    linear_cross_entropy(hidden_states, head, labels).backward()
    if frozen == "head":
        assert all(p.grad is None for p in head.parameters())
        torch.testing.assert_close(hidden_states.grad, expected)
    else:
        assert hidden_states.grad is None
        for parameter, gradient in zip(head.parameters(), head_gradients, strict=True):
            torch.testing.assert_close(parameter.grad, gradient)


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
@pytest.mark.parametrize("make", [Capped, lambda *sizes: nn.Sequential(nn.Linear(4, 4), nn.Linear(*sizes))])
def test_a_head_that_computes_something_else_is_asked_for_its_logits(make, smoothing):
    hidden_states, _, labels = make_problem(10, 4, 7)
    for num_items in (None, 5):
        assert_same(hidden_states, make(4, 7), labels, smoothing, num_items)


def test_a_hook_on_the_head_is_run():
    hidden_states, head, labels = make_problem(10, 4, 7)
    head.register_forward_hook(lambda module, args, logits: 3 * logits)
    assert_same(hidden_states, head, labels)


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


@pytest.fixture
def labelled(family, inputs) -> dict[str, torch.Tensor]:
    labels = inputs["input_ids" if family == "gpt" else "decoder_input_ids"].clone()
    labels[1, 4:] = -100
    return {"input_ids": inputs["input_ids"], "labels": labels}


def loss_and_gradients(model, inputs: dict) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    model.zero_grad()
    loss = model(**inputs).loss
    loss.backward()
    return loss.detach(), {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def assert_same_step(actual, expected):
    torch.testing.assert_close(actual[0], expected[0])
    assert actual[1].keys() == expected[1].keys()
    for name, gradient in actual[1].items():
        wanted = expected[1][name]
        torch.testing.assert_close(gradient, wanted, atol=1e-5, rtol=1e-4, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("num_items", [None, 20, torch.tensor(20)], ids=str)
def test_a_step_without_logits_is_the_step_with_them(family, model, labelled, num_items):
    labelled["num_items_in_batch"] = num_items
    output = model(**labelled, skip_logits=True)
    assert output.logits is None
    assert torch.equal(output.loss, model(**labelled, skip_logits=True, return_dict=False)[0])
    assert_same_step(loss_and_gradients(model, {**labelled, "skip_logits": True}), loss_and_gradients(model, labelled))


@each_variant()
def test_each_variant_takes_the_step_that_it_takes_with_logits(family, variant):
    model = make_variant(family, variant)
    inputs = make_inputs_for(model)
    inputs["labels"] = inputs.pop("decoder_input_ids", inputs["input_ids"]).clone()
    inputs["labels"][1, 4:] = -100
    assert_same_step(loss_and_gradients(model, {**inputs, "skip_logits": True}), loss_and_gradients(model, inputs))


def test_without_labels_the_logits_are_not_skipped(model, inputs):
    assert torch.equal(model(**inputs, skip_logits=True).logits, model(**inputs).logits)


def test_labels_are_smoothed_with_or_without_logits(family, model, labelled):
    output = model(**labelled, label_smoothing=0.1)
    assert torch.equal(output.logits, model(**labelled).logits)
    logits, labels = output.logits, labelled["labels"]
    if family == "gpt":
        logits, labels = logits[:, :-1], labels[:, 1:]
    expected = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing=0.1)
    torch.testing.assert_close(output.loss, expected)
    smoothed = {**labelled, "label_smoothing": 0.1}
    assert_same_step(loss_and_gradients(model, {**smoothed, "skip_logits": True}), loss_and_gradients(model, smoothed))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_labels_that_are_shifted_already_are_not_shifted_again(smoothing):
    model = make_gpt()
    ids, next_tokens = torch.randint(3, 60, (2, 3, 7)).unbind()
    next_tokens[1, 3:] = -100
    inputs = {"input_ids": ids, "labels": ids, "shift_labels": next_tokens}
    expected = nn.functional.cross_entropy(
        model(ids).logits.flatten(0, 1), next_tokens.flatten(), label_smoothing=smoothing
    )
    torch.testing.assert_close(model(**inputs, skip_logits=True, label_smoothing=smoothing).loss, expected)
    torch.testing.assert_close(model(**inputs, label_smoothing=smoothing).loss, expected)


def test_several_pieces_compile_into_one_graph():
    torch._dynamo.reset()
    hidden_states, head, labels = make_problem(1000, 16, 5000)
    compiled = torch.compile(linear_cross_entropy, fullgraph=True, backend="aot_eager")
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
    compiled = torch.compile(head, backend="aot_eager")
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
