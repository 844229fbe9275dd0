# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""A class for each task of a GPT: masked tokens and classification, by Auto classes, pipelines and the equations."""

import json

import pytest
import torch
from conftest import make_gpt
from torch import nn
from transformers import (
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    pipeline,
)

import hf_scratch
from hf_scratch import ScratchGPTConfig, ScratchGPTForCausalLM, ScratchGPTForMaskedLM

CLASSIFIERS = [AutoModelForSequenceClassification, AutoModelForTokenClassification]


def head_of(auto) -> type:
    return getattr(hf_scratch, auto.__name__.replace("AutoModel", "ScratchGPT"))


@pytest.mark.parametrize("head", [ScratchGPTForCausalLM, ScratchGPTForMaskedLM])
def test_a_head_refuses_the_attention_of_the_other(head):
    with pytest.raises(ValueError, match="is_causal"):
        head(ScratchGPTConfig(is_causal=head is ScratchGPTForMaskedLM))


def test_an_encoder_saved_by_the_class_of_before_loads_and_is_saved_as_a_masked_model(tmp_path):
    """Until `ScratchGPTForMaskedLM`, a `ScratchGPTForCausalLM` with `is_causal=False` was the encoder."""
    model = make_gpt(is_causal=False)
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["architectures"] = ["ScratchGPTForCausalLM"]
    config["auto_map"] = {"AutoModelForCausalLM": "modeling_scratch_gpt.ScratchGPTForCausalLM"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    loaded, info = AutoModelForMaskedLM.from_pretrained(tmp_path, output_loading_info=True)
    assert type(loaded) is ScratchGPTForMaskedLM
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    ids = torch.randint(3, 60, (2, 6))
    assert loaded(ids).logits.equal(model(ids).logits)
    loaded.save_pretrained(tmp_path / "again")
    again = json.loads((tmp_path / "again" / "config.json").read_text())
    assert again["architectures"] == ["ScratchGPTForMaskedLM"]
    assert "AutoModelForCausalLM" not in again["auto_map"]


def test_fill_mask_names_the_likeliest_tokens(bert_tokenizer, tmp_path):
    model = make_gpt(is_causal=False, vocab_size=len(bert_tokenizer), pad_token_id=0)
    model.save_pretrained(tmp_path)
    bert_tokenizer.save_pretrained(tmp_path)
    found = pipeline("fill-mask", model=str(tmp_path))("once [MASK] a time", top_k=3)
    ids = bert_tokenizer("once [MASK] a time", return_tensors="pt")
    place = (ids["input_ids"][0] == bert_tokenizer.mask_token_id).nonzero().item()
    best = model(**{name: ids[name] for name in ("input_ids", "attention_mask")}).logits[0, place].softmax(-1).topk(3)
    assert [row["token"] for row in found] == best.indices.tolist()
    assert [row["score"] for row in found] == pytest.approx(best.values.tolist(), abs=1e-5)


@pytest.mark.parametrize("auto", CLASSIFIERS)
@pytest.mark.parametrize("is_causal", [True, False])
def test_a_classifier_starts_from_a_language_model(auto, is_causal, tmp_path):
    """As GPT-2's: the base's weights, and a new `score`; a row is the same alone and padded on either side."""
    language_model = make_gpt(is_causal=is_causal)
    language_model.save_pretrained(tmp_path)
    model, info = auto.from_pretrained(tmp_path, num_labels=5, output_loading_info=True)
    assert type(model) is head_of(auto)
    assert {name.split(".")[0] for name in info["missing_keys"]} == {"score"}
    ids, other = torch.randint(3, 60, (1, 6)), torch.randint(3, 60, (1, 9))
    states = language_model.eval().model(ids).last_hidden_state
    expected = nn.functional.linear(states, model.score.weight, model.score.bias)
    for left, right in ((0, 3), (3, 0)):
        mask = torch.cat((nn.functional.pad(torch.ones_like(ids), (left, right)), torch.ones_like(other)))
        batch = torch.cat((nn.functional.pad(ids, (left, right)), other))
        logits = model.eval()(batch, attention_mask=mask).logits[0]
        found, wanted = (logits, expected[0, -1]) if logits.ndim == 1 else (logits[left : left + 6], expected[0])
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)
    model.save_pretrained(tmp_path / "classifier")
    again = auto.from_pretrained(tmp_path / "classifier")
    assert again.config.num_labels == 5
    assert again(ids).logits.equal(model(ids).logits)
