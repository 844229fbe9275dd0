# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""FSDP2 on one process: losses, shared weights, and checkpoints of shards. tests/test_scale.py has two processes."""

import copy
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch
from accelerate.utils import compile_regions_fsdp2
from conftest import FAMILIES, make_gpt, make_transformer
from torch import nn
from torch.distributed.checkpoint import save
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.fsdp import OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor

from hf_scratch.errors import UserError
from hf_scratch.loading import SHARDS, find_model
from hf_scratch.models import scratch_loss as loss
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
        compile_regions_fsdp2(model, backend="aot_eager")
    for module in list(model.modules()):
        if type(module).__name__ in model._no_split_modules:
            fully_shard(module)
    if not type(model.lm_head).__name__.startswith("FSDP"):
        fully_shard(model.lm_head)
    return fully_shard(model)


def save_shards(model: nn.Module, folder) -> None:
    model.save_pretrained(folder, state_dict={})
    save({"model": get_model_state_dict(model)}, checkpoint_id=folder / SHARDS)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("options", [{}, {"label_smoothing": 0.1, "r_drop_alpha": 1.0}])
def test_the_loss_without_logits_is_the_same_sharded(name, options, one_process_group):
    model = MODELS[name]().train()
    sharded = shard(copy.deepcopy(model))
    ids = torch.randint(3, 60, (2, 9), generator=torch.Generator().manual_seed(1))
    for _ in range(2):  # the second pass finds what the first one left
        with patch.object(loss.nn.functional, "cross_entropy", side_effect=AssertionError("all logits")):
            losses = [m(input_ids=ids, labels=ids, skip_logits=True, **options).loss for m in (model, sharded)]
        torch.testing.assert_close(losses[0], losses[1])
        for each in losses:
            each.backward()
    for parameter, whole in zip(sharded.parameters(), model.parameters(), strict=True):
        assert isinstance(parameter, DTensor)
        torch.testing.assert_close(parameter.grad.full_tensor(), whole.grad)


@pytest.mark.parametrize("name", ["gpt, tied", "transformer, untied"])
def test_a_sharded_model_is_compiled_layer_by_layer(name, one_process_group):
    model = MODELS[name]().train()
    sharded = shard(copy.deepcopy(model), compiled=True)
    ids = torch.randint(3, 60, (2, 9), generator=torch.Generator().manual_seed(1))
    for _ in range(2):
        losses = [m(input_ids=ids, labels=ids, skip_logits=True).loss for m in (model, sharded)]
        torch.testing.assert_close(losses[0], losses[1])
        for each in losses:
            each.backward()
    for parameter, whole in zip(sharded.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad.full_tensor(), whole.grad)


def test_a_sharded_head_with_a_hook_of_the_users_is_called(one_process_group):
    model = shard(make_gpt()).train()
    seen = []
    model.lm_head.register_forward_hook(lambda module, inputs, logits: seen.append(logits.shape))
    ids = torch.randint(3, 60, (2, 9))
    model(input_ids=ids, labels=ids, skip_logits=True)
    assert seen == [(16, 60)]


@pytest.mark.parametrize("family", FAMILIES)
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
    load_weights(model, average)
    for key, parameter in model.named_parameters():
        assert parameter.full_tensor().equal(average[key])


@pytest.mark.parametrize("family", FAMILIES)
def test_shards_are_read_whole(family, one_process_group, tmp_path):
    model = FAMILIES[family]()
    save_shards(shard(copy.deepcopy(model)), tmp_path)
    assert read_shards(tmp_path)["lm_head.weight"].equal(model.lm_head.weight)
    with pytest.raises(UserError, match=r"holds its weights in shards. Join them first:\naccelerate merge-weights"):
        find_model(tmp_path)
