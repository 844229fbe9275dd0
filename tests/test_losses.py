import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import FAMILIES, make_gpt, make_transformer
from run_one_step import make_rows, one_step
from safetensors.torch import load_file


def hand_computed(logits, targets, smoothing=0.0, count=None):
    """Token by token: (1 - e) * -log p(target) + e * mean over the vocabulary of -log p, over the number of tokens."""
    total, tokens = 0.0, 0
    for row, row_targets in zip(logits.double(), targets, strict=True):
        for scores, target in zip(row, row_targets.tolist(), strict=True):
            if target == -100:
                continue
            normaliser = scores.exp().sum().log()
            total = total + (1 - smoothing) * (normaliser - scores[target])
            total = total + smoothing * sum(normaliser - score for score in scores) / len(scores)
            tokens += 1
    return total / (count or tokens)


def test_the_gpts_loss_is_the_mean_over_next_tokens():
    model = make_gpt()
    ids = torch.randint(3, 60, (2, 6))
    labels = ids.clone()
    labels[0, 4:] = -100
    output = model(ids, labels=labels)
    expected = hand_computed(output.logits[:, :-1], labels[:, 1:])
    assert output.loss.item() == pytest.approx(expected.item(), rel=1e-5)
    scaled = model(ids, labels=labels, num_items_in_batch=20).loss
    assert scaled.item() == pytest.approx(
        hand_computed(output.logits[:, :-1], labels[:, 1:], count=20).item(), rel=1e-5
    )


def test_the_transformers_loss_is_not_shifted_twice():
    model = make_transformer()
    source, labels = torch.randint(3, 60, (2, 6)), torch.randint(3, 60, (2, 5))
    labels[1, 3:] = -100
    output = model(source, labels=labels)
    shifted = torch.tensor([[1, *row[:-1]] for row in labels.masked_fill(labels == -100, 0).tolist()])
    assert torch.equal(output.logits, model(source, decoder_input_ids=shifted).logits)
    assert output.loss.item() == pytest.approx(hand_computed(output.logits, labels).item(), rel=1e-5)
    scaled = model(source, labels=labels, num_items_in_batch=torch.tensor(20)).loss
    assert scaled.item() == pytest.approx(hand_computed(output.logits, labels, count=20).item(), rel=1e-5)


def test_a_uniform_model_pays_the_logarithm_of_its_vocabulary():
    for model in (make_gpt(initializer_range=1e-9), make_transformer(initializer="normal", init_std=1e-9)):
        ids = torch.randint(3, 60, (2, 6))
        assert model(input_ids=ids, labels=ids).loss.item() == pytest.approx(math.log(60), rel=1e-4)


def expected_step(family, smoothing):
    """The weights after one step, the gradient taken by hand from the whole batch at once."""
    model = FAMILIES[family]().train()
    batch = {name: torch.stack([row[name] for row in make_rows(family)]) for name in make_rows(family)[0]}
    labels = batch.pop("labels")
    logits = model(**batch).logits
    if family == "gpt":
        logits, labels = logits[:, :-1], labels[:, 1:]
    log_p = logits.log_softmax(-1)
    kept = labels != -100
    nll = -log_p.gather(-1, labels.clamp(min=0)[..., None])[..., 0]
    loss = ((1 - smoothing) * nll - smoothing * log_p.mean(-1))[kept].sum() / kept.sum()
    loss.backward()
    return {name: p.detach() - p.grad for name, p in model.named_parameters()}


def assert_same(weights, expected):
    assert weights.keys() == expected.keys()
    for name, weight in weights.items():
        torch.testing.assert_close(weight, expected[name], atol=2e-6, rtol=1e-4, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize(("batch_size", "accumulation"), [(32, 1), (8, 4)])
def test_a_step_under_trainer_is_the_hand_computed_one(family, batch_size, accumulation, smoothing):
    assert_same(one_step(family, batch_size, accumulation, smoothing), expected_step(family, smoothing))


@pytest.fixture(scope="module")
def steps_of_two_processes(tmp_path_factory):
    """A folder with the weights after a step on two processes."""
    script, out = Path(__file__).with_name("run_one_step.py"), tmp_path_factory.mktemp("steps")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--standalone", str(script)]
    run = subprocess.run([*command, "16", str(out), "0.0", "0.1"], capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr[-3000:]
    return out


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_a_step_on_two_processes_is_the_hand_computed_one(family, smoothing, steps_of_two_processes):
    weights = load_file(steps_of_two_processes / f"{family}-{smoothing}.safetensors")
    assert_same(weights, expected_step(family, smoothing))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_subclass_with_a_loss_of_its_own_is_obeyed(family):
    class Mine(type(FAMILIES[family]())):
        def loss_function(self, logits, labels, **kwargs):
            return torch.tensor(42.0)

    ids = torch.tensor([[5, 6, 7, 8]])
    assert Mine(FAMILIES[family]().config)(ids, labels=ids, skip_logits=True).loss == 42.0


def test_a_loss_function_of_the_users_own_is_called_when_logits_are_skipped(family):
    model, ids = FAMILIES[family](), torch.tensor([[5, 6, 7, 8]])
    expected = model(ids, labels=ids, ignore_index=7).loss
    assert model(ids, labels=ids, ignore_index=7, skip_logits=True).loss == expected
    model.loss_function = lambda *args, **kwargs: torch.tensor(42.0)
    assert model(ids, labels=ids, skip_logits=True).loss == 42.0
    with pytest.raises(ValueError, match="`label_smoothing` cannot be combined with a loss function"):
        model(ids, labels=ids, label_smoothing=0.1)
