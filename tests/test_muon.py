# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Muon beside AdamW: torch's own, a model's matrices, and sharded weights."""

import copy

import pytest
import torch
from test_sharding import MODELS, shard
from test_training import make_trainer  # noqa: F401  a fixture
from torch import nn
from transformers import BertConfig, EncoderDecoderConfig, EncoderDecoderModel

from hf_scratch.training.muon import MuonAdamW, group_parameters, orthogonalize

SHAPES = [(8, 8), (8, 8), (32, 8), (8, 32)]
OPTIONS = {"lr": 0.01, "betas": (0.9, 0.98)}


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="torch has it since 2.9")
def test_it_is_torchs_muon_and_torchs_adamw():
    weights = [nn.Parameter(torch.randn(*shape)) for shape in [*SHAPES, (11, 8)]]
    expected = copy.deepcopy(weights)
    groups = [{"params": weights[:-1], "muon": True, "weight_decay": 0.1}, {"params": weights[-1:], "muon": False}]
    ours = MuonAdamW(groups, dtype=torch.bfloat16, **OPTIONS)
    muon = torch.optim.Muon(expected[:-1], lr=0.01, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    adamw = torch.optim.AdamW(expected[-1:], **OPTIONS)
    for step in range(4):
        if step == 2:  # go on from a saved state
            state, ours = ours.state_dict(), MuonAdamW(groups, dtype=torch.bfloat16, **OPTIONS)
            ours.load_state_dict(state)
        for one, other in zip(weights, expected, strict=True):
            one.grad = torch.randn_like(one)
            other.grad = one.grad.clone()
        for optimizer in (ours, muon, adamw):
            optimizer.step()
    for one, other in zip(weights, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=0)


@pytest.mark.parametrize("shape", [(2, 8, 8), (1, 8, 40), (3, 40, 8)])
def test_singular_values_become_one(shape):
    values = torch.linalg.svdvals(orthogonalize(torch.randn(shape)))
    assert values.min() > 0.2
    assert values.max() < 1.3


@pytest.mark.parametrize("name", MODELS)
def test_a_models_matrices_are_those_of_its_layers(name):
    model = MODELS[name]()
    model.get_input_embeddings().weight.requires_grad = False
    decayed = {name for name, _ in model.named_parameters() if "bias" not in name}
    groups = group_parameters(model, decayed, 0.1)
    assert len(groups) == len(group_parameters(model, decayed, 0.0))  # a run may be resumed with it
    names = {parameter: name for name, parameter in model.named_parameters()}
    found = [names[parameter] for group in groups for parameter in group["params"]]
    assert sorted(found) == sorted(name for name, parameter in model.named_parameters() if parameter.requires_grad)
    for group in groups:
        for parameter in group["params"]:
            assert group["muon"] == (parameter.dim() == 2 and "layers." in names[parameter])
            assert group["weight_decay"] == (0.0 if "bias" in names[parameter] else 0.1)


def test_a_head_inside_the_base_model_is_no_matrix_of_a_layer():
    size = {"vocab_size": 11, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    decoder = BertConfig(**size, is_decoder=True, add_cross_attention=True, tie_word_embeddings=False)
    config = EncoderDecoderConfig.from_encoder_decoder_configs(BertConfig(**size), decoder)
    model = EncoderDecoderModel(config)
    head = model.get_output_embeddings().weight
    assert any(head is weight for weight in model.base_model.parameters())
    muon = {weight for group in group_parameters(model, (), 0.1) if group["muon"] for weight in group["params"]}
    assert muon
    assert head not in muon


def test_a_sharded_models_step_is_the_same(one_process_group):
    model = MODELS["gpt, tied"]().train()
    models = [model, shard(copy.deepcopy(model))]
    ids = torch.randint(3, 60, (2, 9))
    for each in models:
        optimizer = MuonAdamW(group_parameters(each, (), 0.1), dtype=torch.float32, **OPTIONS)
        for _ in range(2):
            each(input_ids=ids, labels=ids).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    for one, other in zip(*(each.parameters() for each in models), strict=True):
        torch.testing.assert_close(other.full_tensor(), one, atol=1e-5, rtol=1e-4)


def test_another_optimizer_than_adamw_is_refused(make_trainer):  # noqa: F811
    with pytest.raises(ValueError, match="`optim`"):
        make_trainer(muon=True, optim="sgd", max_steps=1).train()
