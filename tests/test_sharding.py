# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""FSDP2 on one process: losses, shared weights, and checkpoints of shards. Steps and tensor parallelism on two.

Whole runs on several processes are in test_scale.py.
"""

import copy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from accelerate.utils import compile_regions_fsdp2
from conftest import FAMILIES, make_gpt, make_transformer
from torch import nn
from torch.distributed.checkpoint import save
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.fsdp import OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor
from two_processes import SMOOTHINGS, make_inputs, one_step_by_hand

from hf_scratch.errors import UserError
from hf_scratch.loading import SHARDS, find_model
from hf_scratch.training.averaging import average_checkpoints, load_weights
from hf_scratch.training.fsdp import read_shards, shard_shared_weights

ACCELERATOR = SimpleNamespace(
    state=SimpleNamespace(fsdp_plugin=SimpleNamespace(mixed_precision_policy=None, cpu_offload=OffloadPolicy())),
    torch_device_mesh=None,
    parallelism_config=None,
)
MODELS = {
    "gpt, tied": lambda: make_gpt(tie_word_embeddings=True),
    "gpt, untied": lambda: make_gpt(tie_word_embeddings=False),
    "transformer, tied": make_transformer,
    "transformer, untied": lambda: make_transformer(tie_word_embeddings=False),
    "transformer, two vocabularies": lambda: make_transformer(
        share_encoder_decoder_embeddings=False, decoder_vocab_size=60
    ),
}


def shard(model: nn.Module, compiled: bool = False) -> nn.Module:
    """As accelerate does: layers, the head, the rest."""
    shard_shared_weights(model, ACCELERATOR)
    if compiled:
        compile_regions_fsdp2(model, backend="eager")
    for module in list(model.modules()):
        if type(module).__name__ in model._no_split_modules:
            fully_shard(module)
    if not type(model.lm_head).__name__.startswith("FSDP"):
        fully_shard(model.lm_head)
    return fully_shard(model)


def save_shards(model: nn.Module, folder) -> None:
    model.save_pretrained(folder, state_dict={})
    save({"model": get_model_state_dict(model)}, checkpoint_id=folder / SHARDS)


@pytest.mark.parametrize("options", [{}, {"label_smoothing": 0.1, "r_drop_alpha": 1.0}])
@pytest.mark.parametrize(
    ("name", "compiled"), [*((name, False) for name in MODELS), ("gpt, tied", True), ("transformer, untied", True)]
)
def test_the_loss_without_logits_is_the_same_sharded_and_compiled_layer_by_layer(
    name, compiled, options, one_process_group, monkeypatch
):
    def refuse(*args, **kwargs):
        raise AssertionError("all logits")

    monkeypatch.setattr(nn.functional, "cross_entropy", refuse)
    model = MODELS[name]().train()
    sharded = shard(copy.deepcopy(model), compiled)
    ids = torch.randint(3, 60, (2, 9), generator=torch.Generator().manual_seed(1))
    for _ in range(2):  # the second pass finds what the first one left
        losses = [m(input_ids=ids, labels=ids, skip_logits=True, **options).loss for m in (model, sharded)]
        torch.testing.assert_close(losses[0], losses[1])
        for each in losses:
            each.backward()
    for parameter, whole in zip(sharded.parameters(), model.parameters(), strict=True):
        assert isinstance(parameter, DTensor)
        torch.testing.assert_close(parameter.grad.full_tensor(), whole.grad)


def test_a_sharded_head_with_a_hook_of_the_users_is_called(one_process_group):
    model = shard(make_gpt()).train()
    seen = []
    model.lm_head.register_forward_hook(lambda module, inputs, logits: seen.append(logits.shape))
    ids = torch.randint(3, 60, (2, 9))
    model(input_ids=ids, labels=ids, skip_logits=True)
    assert seen == [(16, 60)]


def test_shards_are_averaged(family, one_process_group, tmp_path):
    wholes = []
    for name, step in (("a", 0.0), ("b", 1.0), ("c", 0.5)):
        model = FAMILIES[family]()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(step)
        wholes.append({key: weight.clone() for key, weight in model.state_dict().items()})
        save_shards(shard(model), tmp_path / name)
    folders = [tmp_path / name for name in "abc"]
    average = average_checkpoints(folders)
    for key, weight in average.items():
        torch.testing.assert_close(weight, sum(whole[key].double() for whole in wholes).float() / 3)
    ids = torch.randint(3, 60, (2, 5))
    model(input_ids=ids, labels=ids, skip_logits=True)  # which leaves the root's weights whole
    load_weights(model, average)
    for key, parameter in model.named_parameters():
        assert parameter.full_tensor().equal(average[key])


def test_shards_are_read_whole(family, one_process_group, tmp_path):
    model = FAMILIES[family]()
    save_shards(shard(copy.deepcopy(model)), tmp_path)
    assert read_shards(tmp_path)["lm_head.weight"].equal(model.lm_head.weight)
    with pytest.raises(UserError, match=r"holds its weights in shards. Join them first:\naccelerate merge-weights"):
        find_model(tmp_path)


def test_two_processes_compute_what_one_does(tmp_path):
    """Logits and tokens by tensor parallelism, a step of FSDP2, and the steps of a stock trainer with DDP."""
    for family, make in FAMILIES.items():
        make().save_pretrained(tmp_path / family)
    command = [sys.executable, Path(__file__).with_name("two_processes.py"), tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    for family, result in torch.load(tmp_path / "results.pt").items():
        model, inputs = FAMILIES[family](), make_inputs(family)
        ids = inputs["input_ids"]
        assert result["rows"] == 16  # half of the 32 rows of the query projection
        torch.testing.assert_close(result["logits"], model(**inputs).logits.detach(), atol=1e-4, rtol=1e-4)
        assert result["tokens"].equal(model.generate(ids, max_new_tokens=6, do_sample=False))

        assert result["sharded"] == 30  # half of the 60 rows of the head
        model(input_ids=ids, labels=inputs.get("decoder_input_ids", ids)).loss.backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()
        assert not model.lm_head.weight.equal(FAMILIES[family]().lm_head.weight)
        weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
        torch.testing.assert_close(result["weights"], weights, atol=1e-5, rtol=1e-4)
        for smoothing in SMOOTHINGS:
            expected = one_step_by_hand(family, smoothing)
            torch.testing.assert_close(result[smoothing], expected, atol=2e-6, rtol=1e-4)
