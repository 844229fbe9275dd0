import pytest
import torch
from two_processes import SMOOTHINGS, one_step, one_step_by_hand


def hand_computed(logits, targets, count=None):
    """Token by token, -log p(target), over the number of tokens."""
    losses = [
        scores.exp().sum().log() - scores[target]
        for row, row_targets in zip(logits.double(), targets.tolist(), strict=True)
        for scores, target in zip(row, row_targets, strict=True)
        if target != -100
    ]
    return sum(losses) / (count or len(losses))


def test_the_loss_is_the_mean_over_the_predicted_tokens(family, model):
    """A GPT predicts the next token; the encoder-decoder's labels are not shifted twice."""
    ids = torch.randint(3, 60, (2, 6))
    labels = ids.clone()
    labels[1, 3:] = -100
    logits, targets = model(ids, labels=labels).logits, labels
    if family == "gpt":
        logits, targets = logits[:, :-1], labels[:, 1:]
    else:
        shifted = torch.tensor([[1, *row[:-1]] for row in labels.masked_fill(labels == -100, 0).tolist()])
        assert torch.equal(logits, model(ids, decoder_input_ids=shifted).logits)
    for count in (None, 20, torch.tensor(20)):
        loss = model(ids, labels=labels, num_items_in_batch=count).loss
        assert loss.item() == pytest.approx(hand_computed(logits, targets, count).item(), rel=1e-5)


@pytest.mark.parametrize("smoothing", SMOOTHINGS)
@pytest.mark.parametrize(("batch_size", "accumulation"), [(32, 1), (8, 4)])
def test_a_step_under_trainer_is_the_hand_computed_one(family, batch_size, accumulation, smoothing):
    weights = one_step(family, batch_size, accumulation, smoothing)
    torch.testing.assert_close(weights, one_step_by_hand(family, smoothing), atol=2e-6, rtol=1e-4)


def test_a_subclass_with_a_loss_of_its_own_is_obeyed(model):
    class Mine(type(model)):
        def loss_function(self, logits, labels, **kwargs):
            return torch.tensor(42.0)

    ids = torch.tensor([[5, 6, 7, 8]])
    assert Mine(model.config)(ids, labels=ids, skip_logits=True).loss == 42.0


def test_a_loss_function_of_the_users_own_is_called_when_logits_are_skipped(model):
    ids = torch.tensor([[5, 6, 7, 8]])
    expected = model(ids, labels=ids, ignore_index=7).loss
    assert model(ids, labels=ids, ignore_index=7, skip_logits=True).loss == expected
    model.loss_function = lambda *args, **kwargs: torch.tensor(42.0)
    assert model(ids, labels=ids, skip_logits=True).loss == 42.0
    with pytest.raises(ValueError, match="label_smoothing"):
        model(ids, labels=ids, label_smoothing=0.1)
