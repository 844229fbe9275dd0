# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Each attention function of transformers gives the same outputs and gradients, and no needless mask is built."""

import pytest
import torch
from conftest import FAMILIES, make_gpt
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from hf_scratch.models import layers

pytestmark = pytest.mark.gpu  # `make gpu` runs them there too
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BACKENDS = ["sdpa", "flex_attention"]
# (source mask, target mask) of two rows: padding on the right, on the left, on both sides
PADDING = {
    "none": None,
    "right": [[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]],
    "left": [[1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1]],
    "mixed": [[0, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0]],
}


def make_inputs(family: str, padding: str) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(3, 60, (2, 6), generator=generator)
    mask = torch.tensor(PADDING[padding]) if PADDING[padding] else None
    if family == "gpt":
        return {"input_ids": ids, "attention_mask": mask}
    decoder_ids = torch.randint(3, 60, (2, 6), generator=generator)
    return {
        "input_ids": ids, "attention_mask": mask, "decoder_input_ids": decoder_ids, "decoder_attention_mask": mask,
    }  # fmt: skip


def run(model, attention: str, inputs: dict, dtype=torch.float32) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Logits at the positions that are not padding, and the gradients of their mean square in one vector.

    torch's flex attention has no backward pass on the CPU: the gradients are None there.
    """
    model = model.to(DEVICE, dtype)
    inputs = {name: value if value is None else value.to(DEVICE) for name, value in inputs.items()}
    model.set_attn_implementation(attention)
    forward_only = attention == "flex_attention" and DEVICE == "cpu"
    with torch.set_grad_enabled(not forward_only):
        logits = model(**inputs, use_cache=False).logits.float()
    mask = inputs.get("decoder_attention_mask", inputs["attention_mask"])
    logits = logits if mask is None else logits * mask[..., None]
    if forward_only:
        return logits, None
    (logits**2).mean().backward()
    return logits.detach(), torch.cat([p.grad.float().flatten() for p in model.parameters()])


@pytest.mark.parametrize("attention", BACKENDS)
@pytest.mark.parametrize("padding", PADDING)
def test_each_backend_gives_eagers_outputs_and_gradients(family, attention, padding):
    inputs = make_inputs(family, padding)
    # the encoder-decoder's logits depend on its encoder, causal and cross attention alike
    logits, gradients = run(FAMILIES[family](), "eager", inputs)
    other_logits, other_gradients = run(FAMILIES[family](), attention, inputs)
    torch.testing.assert_close(other_logits, logits, atol=1e-4, rtol=1e-4)
    if other_gradients is not None:
        torch.testing.assert_close(other_gradients, gradients, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("attention", ["eager", *BACKENDS])
def test_bfloat16_is_float32_to_its_precision(family, attention):
    inputs = make_inputs(family, "mixed")
    small = {"initializer_range": 0.05} if family == "gpt" else {}
    logits, _ = run(FAMILIES[family](**small), "eager", inputs)
    rounded, gradients = run(FAMILIES[family](**small), attention, inputs, torch.bfloat16)
    assert (rounded - logits).norm() < 0.03 * logits.norm()  # bfloat16 keeps 8 bits: up to 0.4 % per rounding
    assert gradients is None or gradients.isfinite().all()


@pytest.mark.parametrize(("attention", "is_boolean"), [("eager", True), ("eager", False), ("sdpa", True)])
def test_a_4d_mask_is_used_as_it_is(attention, is_boolean):
    """With a mask that hides the second token, the logits after it do not depend on it."""

    def run_with(ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        additive = torch.zeros(mask.shape).masked_fill(~mask, -1e9)
        return model(ids, attention_mask=mask if is_boolean else additive).logits

    model = make_gpt(attn_implementation=attention)
    ids = make_inputs("gpt", "none")["input_ids"]
    mask = torch.ones(6, 6, dtype=torch.bool).tril().repeat(2, 1, 1, 1)
    causal = model(ids).logits
    torch.testing.assert_close(run_with(ids, mask), causal)
    mask[..., 2:, 1] = False
    changed = ids.clone()
    changed[:, 1] = 59 - changed[:, 1] + 3
    hidden = [run_with(each, mask) for each in (ids, changed)]
    torch.testing.assert_close(hidden[0][:, 2:], hidden[1][:, 2:])
    assert not torch.allclose(hidden[0][:, 2:], causal[:, 2:], atol=1e-3)


def test_no_mask_is_built_when_none_is_needed(family, monkeypatch):
    """Without padding, sdpa gets no mask: `is_causal` replaces a (length, length) tensor."""
    seen, sdpa = [], ALL_ATTENTION_FUNCTIONS["sdpa"]

    def spy(module, query, key, value, attention_mask, **kwargs):
        seen.append((module.is_causal, attention_mask))
        return sdpa(module, query, key, value, attention_mask, **kwargs)

    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._global_mapping, "sdpa", spy)
    model = FAMILIES[family]()
    inputs = make_inputs(family, "none")
    for mask in (None, torch.ones_like(inputs["input_ids"])):
        inputs["attention_mask"] = mask
        model(**inputs, use_cache=False)
    assert len(seen) == 2 * (2 if family == "gpt" else 2 + 3 + 3)  # each attention, for both masks
    assert all(mask is None for _, mask in seen)
    assert {causal for causal, _ in seen} == ({True} if family == "gpt" else {True, False})


def test_a_row_of_scores_in_bfloat16_is_summed_in_float32():
    module = torch.nn.Identity()
    length = 4096
    query = torch.zeros(1, 1, 1, 8, dtype=torch.bfloat16)
    value = torch.ones(1, 1, length, 8, dtype=torch.bfloat16)
    key = torch.zeros(1, 1, length, 8, dtype=torch.bfloat16)
    context, weights = layers.eager_attention_forward(module, query, key, value, None, 1.0)
    torch.testing.assert_close(weights.float().sum(), torch.tensor(1.0))
    assert context.dtype == torch.bfloat16


@pytest.mark.skipif(not torch.cuda.is_available(), reason="flash attention needs a GPU")
def test_flash_attention_gives_sdpas_outputs(family):
    pytest.importorskip("flash_attn")
    inputs = make_inputs(family, "right")
    logits, _ = run(FAMILIES[family](), "sdpa", inputs, torch.bfloat16)
    other, _ = run(FAMILIES[family](), "flash_attention_2", inputs, torch.bfloat16)
    assert (other - logits).norm() < 0.03 * logits.norm()
