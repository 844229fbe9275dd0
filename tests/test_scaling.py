# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""scripts/benchmark/scaling.py: its formulas by hand, and what a model really computes, keeps and communicates."""

import json
import subprocess
import sys

import pytest
import torch
from conftest import ROOT
from torch.utils.flop_counter import FlopCounterMode

from hf_scratch import ScratchGPTConfig, ScratchGPTForCausalLM
from hf_scratch.errors import UserError

sys.path.insert(0, str(ROOT / "scripts" / "benchmark"))
import scaling

TINY = {"vocab_size": 10, "hidden_size": 4, "num_hidden_layers": 1, "num_attention_heads": 2}
TINY |= {"max_position_embeddings": 8}


@pytest.fixture
def tiny() -> scaling.Model:
    """A layer has 4 (4 x 4 + 4) + 4 x 16 + 16 + 16 x 4 + 4 + 2 x 8 = 244 parameters; 40 + 32 + 8 are outside."""
    return scaling.Model("tiny", 64, **TINY)


def counted(model, method, n, batches=1):
    return scaling.count_bytes(model, method, n, batches)


def test_sizes_are_the_models(tiny):
    assert (tiny.parameters, tiny.layer, tiny.outside, tiny.embeddings) == (324, 244, 80, 72)
    assert tiny.flops == 6 * (324 - 32) + 12 * 1 * 2 * 2 * 8
    untied = scaling.Model("untied", 64, **TINY, tie_word_embeddings=False)
    assert (untied.parameters, untied.outside, untied.embeddings, untied.flops) == (364, 120, 72, tiny.flops)
    for model in scaling.make_models():
        assert model.parameters == model.config.count_weights()
    full, gpt2, _ = scaling.make_models()
    assert gpt2.parameters == 124_439_808  # GPT-2 small's
    recipe = (ROOT / "scripts" / "recipes" / "tinystories_full.yaml").read_text(encoding="utf-8")
    assert f"{full.rows * full.length:,} tokens" in recipe


def test_bytes_of_a_tiny_model_by_hand(tiny):
    """Each of 4 GPUs sends 3 quarters of a tensor to reduce it, and as many to gather it."""
    assert scaling.ring(1000, 4) == 750
    ddp = 2 * 3 / 4 * 4 * 324
    assert counted(tiny, "DDP", 4) == {"update": ddp, "forward": 0, "backward": ddp, "exposed": 2 * 3 / 4 * 4 * 72}
    assert counted(tiny, "DDP", 4, batches=3) == counted(tiny, "DDP", 4)
    gathered, again, reduced = 3 / 4 * 2 * 324, 3 / 4 * 2 * 244, 3 / 4 * 4 * 324
    fsdp = counted(tiny, "FSDP2", 4)
    assert fsdp["update"] == gathered + again + reduced
    assert (fsdp["forward"], fsdp["backward"]) == (gathered, again + reduced)
    assert counted(tiny, "FSDP2", 4, batches=3)["update"] == 3 * (gathered + again) + reduced


def test_memory_of_a_tiny_model_by_hand(tiny):
    layer = 4 * (2 * 4 + 4 + 2) + 2 * (8 * 4 + 2 * 16)  # bytes per token
    activations = 16 * (layer + 4 * 4 + 8) + 4 * 4 * (16 + 10) + 6 * 16 * 10
    expected = {"activations": activations, "weights": 4 * 324 + 2 * (4 * 16 + 2 * 64), "gradients": 8 * 324}
    assert scaling.count_memory(tiny, "DDP", 4, 1, 16) == expected | {"AdamW": 8 * 324}
    expected = {"activations": activations, "weights": 324 + 2 * (80 + 2 * 244), "gradients": 324 + 6 * 244}
    assert scaling.count_memory(tiny, "FSDP2", 4, 1, 16) == expected | {"AdamW": 2 * 324}
    assert scaling.count_memory(tiny, "FSDP2", 4, 2, 16)["gradients"] == 324 + 6 * 244 + 4 * 324


def test_communication_hides_from_the_smallest_batch_on(tiny):
    """On one machine, NVLink carries the ring; on several, all network cards of a machine together, or NVLink."""
    args = scaling.ScalingArguments(peak=1000, share_of_peak=0.5, nvlink=100, network=10, gpus_per_machine=4)
    row = scaling.calculate(tiny, "DDP", 4, args)
    assert (row["batches"], row["tokens"]) == (1, 16 * 8)
    assert row["compute"] == pytest.approx(16 * 8 * tiny.flops / 500)
    assert row["communication"] == pytest.approx(1944 / 80)
    assert 2 / 3 * row["smallest"] * tiny.flops / 500 == pytest.approx(row["communication"])
    row = scaling.calculate(tiny, "FSDP2", 8, args)
    assert row["communication"] == pytest.approx(row["update"] / (0.8 * 40))
    assert scaling.calculate(tiny, "DDP", 4, scaling.ScalingArguments(tokens_per_batch=50))["batches"] == 4
    assert scaling.calculate(tiny, "DDP", 4, scaling.ScalingArguments(tokens_per_batch=1))["tokens"] == 8
    for n in (1, 3, 12):
        with pytest.raises(UserError, match=f"`gpus` has {n}: it must be 2 or more, divide 64 rows"):
            scaling.calculate(tiny, "DDP", n, scaling.ScalingArguments())


def test_wrong_arguments_are_refused():
    for name in ("peak", "share_of_peak", "nvlink", "tokens_per_batch"):
        with pytest.raises(ValueError, match=f"`{name}` must be"):
            scaling.ScalingArguments(**{name: 0})


def test_flops_are_those_that_torch_counts():
    """Eager attention, because torch does not count the other on a CPU. Nor does it count biases and LayerNorms."""
    full, ids = scaling.make_models()[0], torch.arange(256)[None]
    full.config._attn_implementation = "eager"
    model = ScratchGPTForCausalLM(full.config)
    with FlopCounterMode(display=False) as counter:
        model(input_ids=ids, labels=ids, skip_logits=True, use_cache=False).loss.backward()
    assert counter.get_total_flops() == pytest.approx(full.flops * full.length, rel=0.005)


@pytest.mark.parametrize("is_tied", [True, False])
def test_activations_and_copies_are_those_that_a_layer_keeps(is_tied):
    """In evaluation mode, a CPU computes attention as a GPU does in training: without keeping its weights."""
    fields = TINY | {"vocab_size": 100, "hidden_size": 32, "num_attention_heads": 4, "max_position_embeddings": 16}
    fields["tie_word_embeddings"] = is_tied
    kept, formula = [], []
    for layers in (1, 3):
        sizes = scaling.Model("tiny", 64, **fields | {"num_hidden_layers": layers})
        model = ScratchGPTForCausalLM(ScratchGPTConfig(**fields | {"num_hidden_layers": layers})).eval()
        weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
        storages = {}

        def keep(tensor, storages=storages):
            storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
            return tensor

        ids = torch.arange(16).expand(3, 16)
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x), torch.autocast("cpu", torch.bfloat16):
            model(input_ids=ids, labels=ids, skip_logits=True, use_cache=False)
        kept.append(sum(storage.nbytes() for pointer, storage in storages.items() if pointer not in weights))
        memory = scaling.count_memory(sizes, "DDP", 2, 1, 3 * 16)
        formula.append(memory["activations"] + memory["weights"] - 4 * sizes.parameters)
    assert kept[1] - kept[0] == formula[1] - formula[0]
    # outside the layers: ids, positions and labels more; one of 16 labels less, and no block of logits any more
    assert kept[0] == pytest.approx(formula[0] - 6 * 48 * 100, rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize(("method", "head"), [("DDP", "tied"), ("FSDP2", "tied"), ("FSDP2", "untied")])
def test_bytes_and_dtypes_are_those_of_two_processes(method, head, tmp_path):
    """Two processes send half of a tensor each to gather or reduce-scatter it. Updates have two batches."""
    path = tmp_path / "counts.json"
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [sys.executable, *launcher, str(ROOT / "tests" / "count_communication.py"), method, head, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(path.read_text(encoding="utf-8"))
    fields = {"vocab_size": 60, "hidden_size": 32, "num_attention_heads": 4, "max_position_embeddings": 16}
    model = scaling.Model("tiny", 64, **fields, num_hidden_layers=2, tie_word_embeddings=head == "tied")
    sent = counted(model, method, 2, batches=2)["update"]
    if method == "FSDP2":
        assert (found["gathered"] + found["reduced"]) / 2 == sent
        assert found["reduced"] == 4 * model.parameters
        return
    assert found["bytes"] == sent == 4 * model.parameters
    assert found["buckets are copies"]
    assert sorted(found["dtypes"]) == ["buckets", "gradients", "moments", "weights"]
    assert all(kinds == ["torch.float32"] for kinds in found["dtypes"].values())
