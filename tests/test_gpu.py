# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""What only an accelerator shows: its attention kernels, half precision, offloading, compiled decoding, NCCL.

`make gpu` runs these tests on a bare machine: they need torch, transformers, accelerate and pytest. Elsewhere they run
on the CPU, so that they are known to work before they meet a GPU; what a CPU cannot show is skipped with its reason.
"""

import copy
import json
import subprocess
import sys
from contextlib import nullcontext

import pytest
import torch
import torch.distributed as dist
from accelerate import cpu_offload, disk_offload
from conftest import DROPOUT, FAMILIES, ROOT, make_gpt
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.parallel import DistributedDataParallel

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

HAS_GPU = torch.cuda.is_available()
DEVICE = "cuda" if HAS_GPU else "cpu"
needs_gpu = pytest.mark.skipif(not HAS_GPU, reason="needs a GPU")
SIZES = {
    "gpt": {"vocab_size": 512, "hidden_size": 128, "num_attention_heads": 4, "max_position_embeddings": 128},
    "transformer": {"vocab_size": 512, "d_model": 128, "max_position_embeddings": 128, "decoder_attention_heads": 4},
}


def make(family: str, **overrides):
    std = {"initializer_range": 0.05} if family == "gpt" else {}
    return FAMILIES[family](**SIZES[family], **std, **overrides).to(DEVICE)


def make_batch(rows: int = 4, length: int = 48) -> dict[str, torch.Tensor]:
    ids = torch.randint(3, 512, (rows, length), generator=torch.Generator().manual_seed(1))
    return {"input_ids": ids.to(DEVICE), "labels": ids.to(DEVICE)}


def with_padding(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    mask = torch.ones_like(batch["input_ids"])
    mask[1, 30:] = 0
    return {**batch, "attention_mask": mask, "labels": batch["labels"].masked_fill(mask == 0, -100)}


def step(model, batch: dict, **kwargs) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The loss and all gradients."""
    model.zero_grad()
    loss = model(**batch, use_cache=False, **kwargs).loss
    loss.backward()
    return loss.detach(), {name: weight.grad.clone() for name, weight in model.named_parameters()}


def assert_same_step(actual, expected, rtol: float = 2e-3) -> None:
    """Each gradient is within `rtol` of the expected one, as vectors: GPUs add in other orders."""
    torch.testing.assert_close(actual[0].float(), expected[0].float(), atol=1e-5, rtol=rtol)
    largest = max(gradient.norm() for gradient in expected[1].values())
    for name, gradient in expected[1].items():
        error = (actual[1][name].float() - gradient.float()).norm()
        # a key's bias has no effect: its gradient is rounding, 1e-5 of the largest in float32
        assert error <= rtol * (gradient.float().norm() + 5e-3 * largest), f"{name}: {error / gradient.norm():.2e}"


# attention

BACKENDS = {
    "math": SDPBackend.MATH,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
def test_each_kernel_of_sdpa_gives_eagers_gradients(family, backend, padded):
    if not HAS_GPU and backend in ("efficient", "cudnn"):
        pytest.skip("this kernel needs a GPU")
    if HAS_GPU and backend == "flash" and padded:
        pytest.skip("this kernel takes no mask on a GPU")
    half = HAS_GPU and backend in ("flash", "cudnn")  # they have no float32
    model, batch = make(family, attn_implementation="eager").train(), make_batch()
    batch = with_padding(batch) if padded else batch
    expected = step(model, batch)
    model.set_attn_implementation("sdpa")
    autocast = torch.autocast(DEVICE, torch.bfloat16) if half else nullcontext()
    with autocast, sdpa_kernel(BACKENDS[backend]):
        actual = step(model, batch)
    assert_same_step(actual, expected, rtol=0.1 if half else 2e-3)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_a_seed_repeats_the_dropout(family, attention):
    model, batch = make(family, **DROPOUT[family], attn_implementation=attention).train(), make_batch()
    losses = {step(model, batch)[0].item() for _ in range(2)}
    torch.manual_seed(5)
    first = step(model, batch)
    torch.manual_seed(5)
    assert_same_step(step(model, batch), first)
    assert len(losses) == 2


# precision


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16", "bfloat16 weights"])
def test_a_batch_is_learnt_in_each_precision(family, precision):
    model, batch = make(family, attn_implementation="sdpa").train(), with_padding(make_batch())
    if precision.endswith("weights"):
        model = model.bfloat16()
    dtype = {"bfloat16": torch.bfloat16, "float16": torch.float16}.get(precision)
    scaler = torch.amp.GradScaler(DEVICE, enabled=dtype == torch.float16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, fused=True)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        with torch.autocast(DEVICE, dtype) if dtype else nullcontext():
            loss = model(**batch, use_cache=False, skip_logits=True).loss
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    assert norm.isfinite()
    assert losses[-1] < 0.7 * losses[0]


@pytest.mark.parametrize("loss_kwargs", [{}, {"label_smoothing": 0.1}], ids=str)
def test_the_loss_without_logits_is_the_loss_with_them(family, loss_kwargs):
    model, batch = make(family, attn_implementation="sdpa").train(), with_padding(make_batch())
    logits = model(**batch, use_cache=False).logits
    labels = batch["labels"]
    if family == "gpt":
        logits, labels = logits[:, :-1], labels[:, 1:]
    smoothing = loss_kwargs.get("label_smoothing", 0.0)
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing=smoothing)
    model.zero_grad()
    loss.backward()
    expected = loss.detach(), {name: weight.grad.clone() for name, weight in model.named_parameters()}
    assert_same_step(step(model, batch, skip_logits=True, **loss_kwargs), expected)


@needs_gpu
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("skip_logits", [False, True])
def test_a_training_step_never_waits_for_the_gpu(family, skip_logits, padded):
    model, batch = make(family, **DROPOUT[family], attn_implementation="sdpa").train(), make_batch()
    batch = with_padding(batch) if padded else batch
    step(model, batch, skip_logits=skip_logits)  # the first call chooses kernels
    torch.cuda.set_sync_debug_mode("error")
    try:
        step(model, batch, skip_logits=skip_logits)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@needs_gpu
def test_the_loss_without_logits_holds_no_logits(family):
    model, batch = make(family, attn_implementation="sdpa").train(), make_batch(rows=64, length=128)
    model.resize_token_embeddings(50_000)
    step(model, {name: ids[:2] for name, ids in batch.items()}, skip_logits=True)
    peaks = {}
    for skip_logits in (True, False):
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step(model, batch, skip_logits=skip_logits)
        peaks[skip_logits] = torch.cuda.max_memory_allocated() - before
    assert peaks[True] < peaks[False] - batch["labels"].numel() * 50_000 * 4


# compiling


@pytest.mark.parametrize("skip_logits", [False, True])
def test_a_compiled_step_is_the_eager_one(family, skip_logits):
    torch._dynamo.reset()
    model, batch = make(family, attn_implementation="sdpa").train(), make_batch()
    expected = step(model, batch, skip_logits=skip_logits)
    compiled = torch.compile(copy.deepcopy(model), fullgraph=True)
    model.zero_grad()
    loss = compiled(**batch, use_cache=False, skip_logits=skip_logits).loss
    loss.backward()
    gradients = {name: weight.grad for name, weight in compiled._orig_mod.named_parameters()}
    assert_same_step((loss.detach(), gradients), expected)


def test_attention_compiles_for_any_length(family):
    torch._dynamo.reset()
    model = make(family, attn_implementation="sdpa").eval()
    compiled = torch.compile(model, fullgraph=True, dynamic=True)
    for length in (16, 33, 48):
        ids = make_batch(2, length)["input_ids"]
        inputs = {"input_ids": ids} if family == "gpt" else {"input_ids": ids, "decoder_input_ids": ids}
        with torch.no_grad():
            expected, actual = model(**inputs).logits, compiled(**inputs).logits
        torch.testing.assert_close(actual, expected, atol=2e-3, rtol=2e-3)


@needs_gpu
@pytest.mark.parametrize("head_dim", [48, 64])
def test_flex_attention_takes_the_step_of_a_packed_mask(head_dim):
    """In rows that are long enough for the kernel that trains: for fewer than 128 queries, torch has another one."""
    torch._dynamo.reset()
    batch, results = make_batch(4, 256), []
    batch["position_ids"] = torch.arange(256, device=DEVICE).remainder(100).repeat(4, 1)
    for attention in ("flex_attention", "sdpa"):
        model = make_gpt(vocab_size=512, head_dim=head_dim, max_position_embeddings=256).to(DEVICE)
        model.set_attn_implementation(attention)
        with torch.autocast(DEVICE, torch.bfloat16):
            loss, gradients = step(model, batch, skip_logits=True)
        results.append((loss, torch.cat([gradient.flatten() for gradient in gradients.values()])))
    (loss, gradients), (expected_loss, expected) = results
    torch.testing.assert_close(loss, expected_loss, atol=0, rtol=1e-3)
    assert (gradients - expected).norm() < 0.06 * expected.norm()


@pytest.mark.parametrize("num_rows", [1, 4])
def test_a_static_cache_decodes_compiled_as_the_dynamic_one_does(family, num_rows):
    torch._dynamo.reset()
    model, ids = make(family, attn_implementation="sdpa").eval(), make_batch(num_rows, 12)["input_ids"]
    options = {"max_new_tokens": 24, "do_sample": False, "eos_token_id": None}
    expected = model.generate(ids, **options)
    # on an accelerator, `generate()` compiles the forward pass for a static cache
    assert model.generate(ids, **options, cache_implementation="static").tolist() == expected.tolist()


@pytest.mark.parametrize("options", [{}, {"num_beams": 4}, {"num_beams": 4, "num_return_sequences": 4}], ids=str)
def test_the_device_generates_what_the_cpu_does(family, options):
    model, ids = make(family, attn_implementation="sdpa").eval().double(), make_batch(3, 12)["input_ids"]
    actual = model.generate(ids, max_new_tokens=20, do_sample=False, **options)
    expected = model.cpu().generate(ids.cpu(), max_new_tokens=20, do_sample=False, **options)
    assert actual.tolist() == expected.tolist()


# offloading


@pytest.mark.parametrize("offload", ["cpu", "disk"])
def test_an_offloaded_model_computes_the_same(family, offload, tmp_path):
    model, batch = make(family, attn_implementation="sdpa").eval(), make_batch()
    with torch.no_grad():
        expected = model(**batch, use_cache=False)
        if offload == "cpu":
            cpu_offload(model, execution_device=torch.device(DEVICE))
        else:
            disk_offload(model, tmp_path, execution_device=torch.device(DEVICE))
        actual = model(**batch, use_cache=False)
    torch.testing.assert_close(actual.logits, expected.logits, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(actual.loss, expected.loss, atol=1e-5, rtol=1e-5)


@needs_gpu
@pytest.mark.parametrize("rest", ["cpu", "disk"])
def test_a_device_map_divides_the_model(family, rest, tmp_path):
    model, batch = make(family, attn_implementation="sdpa").eval(), make_batch()
    with torch.no_grad():
        expected = model(**batch, use_cache=False).logits
    model.save_pretrained(tmp_path / "model")
    size = sum(weight.numel() * 4 for weight in model.parameters())
    memory = {0: int(size * 0.7), "cpu": size * 2 if rest == "cpu" else 0}
    divided = type(model).from_pretrained(
        tmp_path / "model", device_map="auto", max_memory=memory, offload_folder=tmp_path / "offload"
    )
    assert {str(place) for place in divided.hf_device_map.values()} == {"0", rest}
    with torch.no_grad():
        actual = divided.eval()(**batch, use_cache=False).logits
    torch.testing.assert_close(actual.to(DEVICE), expected, atol=1e-3, rtol=1e-3)


# several processes


@pytest.fixture
def process_group():
    store = dist.HashStore()
    dist.init_process_group("nccl" if HAS_GPU else "gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("skip_logits", [False, True])
def test_ddp_on_one_process_takes_the_plain_step(family, skip_logits, process_group):
    model, batch = make(family, attn_implementation="sdpa").train(), make_batch()
    expected = step(model, batch, skip_logits=skip_logits)
    parallel = DistributedDataParallel(model, device_ids=[0] if HAS_GPU else None)
    loss, gradients = step(parallel, batch, skip_logits=skip_logits)
    assert_same_step((loss, {name.removeprefix("module."): g for name, g in gradients.items()}), expected)


@pytest.mark.parametrize("skip_logits", [False, True])
def test_fsdp2_on_one_process_takes_the_plain_step(family, skip_logits, process_group):
    apart = {"tie_word_embeddings": False}  # FSDP2 shards a shared weight as one: tests/test_sharding.py
    if family == "transformer":
        apart |= {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 512}
    model, batch = make(family, attn_implementation="sdpa", **apart).train(), make_batch()
    expected = step(model, batch, skip_logits=skip_logits)
    policy = MixedPrecisionPolicy(param_dtype=torch.float32)
    for module in list(model.modules()):
        if type(module).__name__ in model._no_split_modules:
            fully_shard(module, mp_policy=policy)
    fully_shard(model.lm_head, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    loss, gradients = step(model, batch, skip_logits=skip_logits)
    assert_same_step((loss, {name: gradient.full_tensor() for name, gradient in gradients.items()}), expected)


# the benchmark


@pytest.mark.skipif(HAS_GPU, reason="`make gpu` has run it")
def test_the_benchmark_measures_each_row(tmp_path):
    command = [sys.executable, ROOT / "scripts" / "benchmark" / "gpu.py", "--output_dir", tmp_path]
    subprocess.run([*command, "--size", "tiny", "--rounds", "1"], check=True, cwd=tmp_path, capture_output=True)
    rows = json.loads((tmp_path / "gpu.json").read_text(encoding="utf-8"))["rows"]
    assert len(rows) == 14
    assert all(len(row["tokens_per_second"]) >= 2 for row in rows.values())
