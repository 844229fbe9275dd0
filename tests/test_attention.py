# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Each attention function of transformers gives the same outputs and gradients, and no needless mask is built."""

from functools import partial

import pytest
import torch
from conftest import FAMILIES, make_gpt, make_transformer
from transformers import modeling_flash_attention_utils as flash_attention
from transformers.utils import is_flash_attn_2_available

from hf_scratch.models import scratch_layers as layers

pytestmark = pytest.mark.gpu  # `make gpu` runs them there too
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BACKENDS = ["sdpa", "flex_attention"]
# (source mask, target mask) of two rows: padding on the right, on the left, on both sides; one query. A GPT reads the
# target alone
PADDING = {
    "none": (None, None),
    "right": ([[1, 1, 1, 1, 1, 1, 1, 0], [1, 1, 1, 0, 0, 0, 0, 0]], [[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]]),
    "left": ([[1, 1, 1, 1, 1, 1, 1, 1], [0, 0, 0, 0, 1, 1, 1, 1]], [[1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1]]),
    "mixed": ([[0, 1, 1, 1, 1, 1, 1, 1], [1, 1, 0, 0, 0, 0, 0, 0]], [[0, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0]]),
    "source": ([[1, 1, 1, 1, 1, 0, 0, 0], [1, 1, 0, 0, 0, 0, 0, 0]], None),
    "one query": ([[1, 1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0, 0, 0]], [[1], [1]]),
}


@pytest.fixture(autouse=True)
def room_for_each_kernel():
    """Beyond eight compiled forms of a function, flex attention would fall back to products of whole matrices."""
    with torch._dynamo.config.patch(recompile_limit=64):
        yield


# two rows of texts; the last one begins in the middle of a text, and ends with padding
PACKED = [[0, 1, 2, 0, 1, 2], [3, 4, 0, 1, 0, 0]]


def make_inputs(family: str, padding: str) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    source, target = (None if mask is None else torch.tensor(mask) for mask in PADDING[padding])
    ids = torch.randint(3, 60, (2, 6) if target is None else target.shape, generator=generator)
    if family == "gpt":
        return {"input_ids": ids, "attention_mask": target}
    source_ids = torch.randint(3, 60, (2, 8), generator=generator)
    return {
        "input_ids": source_ids, "attention_mask": source, "decoder_input_ids": ids, "decoder_attention_mask": target,
    }  # fmt: skip


def run(model, attention: str, inputs: dict, dtype=torch.float32) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Logits at the positions that are not padding, and the gradients of their mean square in one vector.

    torch's flex attention has no backward pass on the CPU: the gradients are None there. It is not compiled there, as
    our code is the same for each kernel.
    """
    model = model.to(DEVICE, dtype)
    inputs = {name: value if value is None else value.to(DEVICE) for name, value in inputs.items()}
    model.config._attn_implementation = attention
    forward_only = attention == "flex_attention" and DEVICE == "cpu"
    stance = "force_eager" if forward_only else "default"
    with torch.set_grad_enabled(not forward_only), torch.compiler.set_stance(stance):
        logits = model(**inputs, use_cache=False).logits.float()
    mask = inputs.get("decoder_attention_mask", inputs["attention_mask"])
    logits = logits if mask is None else logits * mask[..., None]
    if forward_only:
        return logits, None
    (logits**2).mean().backward()
    return logits.detach(), torch.cat([p.grad.float().flatten() for p in model.parameters()])


def assert_equals_eager(make, attention: str, inputs: dict) -> None:
    # on a GPU, flex attention needs heads of this width
    logits, gradients = run(make(head_dim=16), "eager", inputs)
    other_logits, other_gradients = run(make(head_dim=16), attention, inputs)
    torch.testing.assert_close(other_logits, logits, atol=1e-4, rtol=1e-4)
    if other_gradients is not None:
        torch.testing.assert_close(other_gradients, gradients, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("attention", BACKENDS)
@pytest.mark.parametrize("padding", PADDING)
def test_each_backend_gives_eagers_outputs_and_gradients(family, attention, padding):
    # the encoder-decoder's logits depend on its encoder, causal and cross attention alike
    assert_equals_eager(FAMILIES[family], attention, make_inputs(family, padding))


@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize(
    ("attention", "rows"), [("sdpa", 2), ("flex_attention", 2), ("flash_attention_2", 2), ("flash_attention_2", 1)]
)
def test_each_backend_keeps_packed_texts_apart(attention, rows, is_causal, request):
    if attention == "flash_attention_2":
        request.getfixturevalue("flash_stub")
    inputs = {"input_ids": make_inputs("gpt", "none")["input_ids"][:rows], "attention_mask": None}
    inputs["position_ids"] = torch.tensor(PACKED)[:rows]
    assert_equals_eager(partial(make_gpt, is_causal=is_causal), attention, inputs)


# of an encoder-decoder and a static cache, transformers 5.24 makes another block mask than it means, BART's too
@pytest.mark.parametrize(("family", "cache"), [("gpt", "dynamic"), ("gpt", "static"), ("transformer", "dynamic")])
def test_flex_attention_generates_the_tokens_of_sdpa(family, cache):
    """Also with a static cache, for which `generate()` hands the model a block mask."""
    model, prompt = FAMILIES[family](head_dim=16), torch.randint(3, 60, (2, 6)).to(DEVICE)
    options = {"max_new_tokens": 3, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    mask = torch.tensor([[1] * 6, [0] * 2 + [1] * 4] if family == "gpt" else [[1] * 6, [1] * 4 + [0] * 2])
    options |= {"attention_mask": mask.to(DEVICE), "disable_compile": True}
    expected = model.to(DEVICE).generate(prompt, **options)
    model.set_attn_implementation("flex_attention")
    with torch.compiler.set_stance("force_eager"):
        assert model.generate(prompt, **options, cache_implementation=cache).equal(expected)


def attend(query, key, value, scale: float, causal: bool) -> torch.Tensor:
    """Attention of one text, (length, heads, head_dim). As in flash attention, the last query sees the last key."""
    scores = torch.einsum("qhd,khd->hqk", query, key) * scale
    if causal:
        hidden = torch.ones_like(scores, dtype=torch.bool).triu(1 + len(key) - len(query))
        scores = scores.masked_fill(hidden, -torch.inf)
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), value)


def flash(query, key, value, dropout_p=0.0, softmax_scale=None, causal=False):
    return torch.stack([attend(*row, softmax_scale, causal) for row in zip(query, key, value, strict=True)])


def flash_varlen(
    query, key, value, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0, softmax_scale=None,
    causal=False,
):  # fmt: skip
    queries = cu_seqlens_q.diff().tolist()
    keys, values = (x.split(cu_seqlens_k.diff().tolist()) for x in (key, value))
    assert max(queries) <= max_seqlen_q
    assert max(map(len, keys)) <= max_seqlen_k
    rows = zip(query.split(queries), keys, values, strict=True)
    return torch.cat([attend(*row, softmax_scale, causal) for row in rows])


@pytest.fixture
def flash_stub(monkeypatch):
    """transformers' code around flash attention, on a CPU: these functions in place of the package's kernels."""
    functions = (flash, flash_varlen, None, flash_attention._pad_input, flash_attention._unpad_input)
    options = flash_attention._lazy_define_process_function(flash_varlen)
    monkeypatch.setattr(flash_attention, "lazy_import_flash_attention", lambda *args: (functions, (options, None)))


@pytest.mark.parametrize("padding", PADDING)
def test_flash_attention_reads_a_gpts_padding_as_eager_does(padding, flash_stub):
    assert_equals_eager(make_gpt, "flash_attention_2", make_inputs("gpt", padding))


def test_flash_attention_decodes_with_a_static_cache(flash_stub):
    model, inputs = make_gpt(), make_inputs("gpt", "left")
    options = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None}
    expected = model.generate(**inputs, **options)
    model.config._attn_implementation = "flash_attention_2"
    for cache in ("dynamic", "static"):
        assert model.generate(**inputs, **options, cache_implementation=cache).equal(expected)


def test_the_encoder_decoder_refuses_flash_attention():
    """transformers cuts the padding of a cross-attention's queries by the source's mask: another result, silently."""
    with pytest.raises(ValueError, match="does not support Flash Attention"):
        make_transformer().set_attn_implementation("flash_attention_2")


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 0.03), (torch.float16, 0.004)], ids=str)
@pytest.mark.parametrize("attention", ["eager", *BACKENDS])
def test_half_precision_is_float32_to_its_precision(family, attention, dtype, tolerance):
    inputs = make_inputs(family, "mixed")
    small = {"head_dim": 16} | ({"initializer_range": 0.05} if family == "gpt" else {})
    logits, _ = run(FAMILIES[family](**small), "eager", inputs)
    rounded, gradients = run(FAMILIES[family](**small), attention, inputs, dtype)
    assert (rounded - logits).norm() < tolerance * logits.norm()  # bfloat16 keeps 8 bits: up to 0.4 % per rounding
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


def test_a_row_of_scores_in_bfloat16_is_summed_in_float32():
    module = torch.nn.Identity()
    length = 4096
    query = torch.zeros(1, 1, 1, 8, dtype=torch.bfloat16)
    value = torch.ones(1, 1, length, 8, dtype=torch.bfloat16)
    key = torch.zeros(1, 1, length, 8, dtype=torch.bfloat16)
    context, weights = layers.eager_attention_forward(module, query, key, value, None, 1.0)
    torch.testing.assert_close(weights.float().sum(), torch.tensor(1.0))
    assert context.dtype == torch.bfloat16


@pytest.mark.skipif(not is_flash_attn_2_available(), reason="flash attention needs a GPU and its package")
def test_flash_attention_gives_sdpas_outputs():
    padded, packed = make_inputs("gpt", "right"), {**make_inputs("gpt", "none"), "position_ids": torch.tensor(PACKED)}
    for inputs in (padded, packed):
        logits, _ = run(make_gpt(), "sdpa", inputs, torch.bfloat16)
        other, _ = run(make_gpt(), "flash_attention_2", inputs, torch.bfloat16)
        assert (other - logits).norm() < 0.03 * logits.norm()
