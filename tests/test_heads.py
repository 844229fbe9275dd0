# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""A class for each task of a GPT: masked tokens and classification, by Auto classes, pipelines and the equations."""

import json

import pytest
import torch
from conftest import make_gpt
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    pipeline,
)

from hf_scratch import (
    ScratchGPTConfig,
    ScratchGPTForCausalLM,
    ScratchGPTForMaskedLM,
    ScratchGPTForSequenceClassification,
    ScratchGPTForTokenClassification,
)

CLOSE = {"atol": 1e-5, "rtol": 1e-5}
CLASSIFIERS = {
    "text-classification": (AutoModelForSequenceClassification, ScratchGPTForSequenceClassification),
    "token-classification": (AutoModelForTokenClassification, ScratchGPTForTokenClassification),
}


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


@pytest.mark.parametrize("task", CLASSIFIERS)
@pytest.mark.parametrize("is_causal", [True, False])
def test_a_classifier_starts_from_a_language_model(task, is_causal, tmp_path):
    """As GPT-2's: the base's weights, and a new `score`; a row is the same alone and padded on either side."""
    auto, head = CLASSIFIERS[task]
    language_model = make_gpt(is_causal=is_causal)
    language_model.save_pretrained(tmp_path)
    model, info = auto.from_pretrained(tmp_path, num_labels=5, output_loading_info=True)
    assert type(model) is head
    assert {name.split(".")[0] for name in info["missing_keys"]} == {"score"}
    ids, other = torch.randint(3, 60, (1, 6)), torch.randint(3, 60, (1, 9))
    states = language_model.eval().model(ids).last_hidden_state
    expected = nn.functional.linear(states, model.score.weight, model.score.bias)
    for left, right in ((0, 3), (3, 0)):
        mask = torch.cat((nn.functional.pad(torch.ones_like(ids), (left, right)), torch.ones_like(other)))
        batch = torch.cat((nn.functional.pad(ids, (left, right)), other))
        logits = model.eval()(batch, attention_mask=mask).logits[:1]
        wanted = expected[:, -1] if task == "text-classification" else expected
        torch.testing.assert_close(logits if logits.ndim == 2 else logits[:, left : left + 6], wanted, **CLOSE)
    model.save_pretrained(tmp_path / "classifier")
    again = auto.from_pretrained(tmp_path / "classifier")
    assert again.config.num_labels == 5
    assert again(ids).logits.equal(model(ids).logits)


@pytest.mark.parametrize("task", CLASSIFIERS)
def test_a_classifiers_loss_is_the_cross_entropy_of_its_labels(task):
    torch.manual_seed(0)
    _, head = CLASSIFIERS[task]
    model = head(ScratchGPTConfig(**make_gpt().config.to_diff_dict() | {"num_labels": 4})).eval()
    ids = torch.randint(3, 60, (3, 6))
    labels = torch.randint(0, 4, (3,) if task == "text-classification" else (3, 6))
    outputs = model(ids, labels=labels)
    expected = nn.functional.cross_entropy(outputs.logits.flatten(0, -2), labels.flatten())
    torch.testing.assert_close(outputs.loss, expected)


def test_a_subclass_with_a_type_of_its_own_loads_as_itself(tmp_path, monkeypatch):
    """Where the package is imported, too: the Auto classes prefer a registered `model_type` to a folder's code."""
    (tmp_path / "my_gpt.py").write_text(
        "from hf_scratch import ScratchGPTConfig, ScratchGPTForCausalLM\n\n\n"
        'class MyConfig(ScratchGPTConfig):\n    model_type = "my_gpt"\n\n\n'
        "class MyGPT(ScratchGPTForCausalLM):\n    config_class = MyConfig\n\n"
        "    def forward(self, *args, **kwargs):\n        outputs = super().forward(*args, **kwargs)\n"
        '        outputs["logits"] = -outputs.logits\n        return outputs\n\n\n'
        'MyConfig.register_for_auto_class()\nMyGPT.register_for_auto_class("AutoModelForCausalLM")\n'
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    import my_gpt

    fields = {name: value for name, value in make_gpt().config.to_diff_dict().items() if name != "model_type"}
    model = my_gpt.MyGPT(my_gpt.MyConfig(**fields)).eval()
    model.save_pretrained(tmp_path / "saved")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "saved", trust_remote_code=True)
    ids = torch.randint(3, 60, (2, 6))
    assert type(loaded).__name__ == "MyGPT"
    assert loaded(ids).logits.equal(model(ids).logits)
