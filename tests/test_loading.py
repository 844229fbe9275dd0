# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""`from_pretrained` beyond one file on one device: shards, offload; and our commands' checks of what is loaded."""

import logging
from pathlib import Path

import pytest
import torch
from conftest import AUTO, FAMILIES
from safetensors.torch import load_file, save_file
from test_training import make_trainer  # noqa: F401  a fixture

from hf_scratch.errors import UserError
from hf_scratch.loading import load_checkpoint


@pytest.fixture
def folder(model, tmp_path) -> Path:
    model.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_a_sharded_checkpoint_loads_whole(family, model, inputs, tmp_path):
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    loaded = AUTO[family].from_pretrained(tmp_path)
    assert loaded(**inputs).logits.equal(model(**inputs).logits)


def test_a_tied_head_loads_from_a_base(family, model, inputs, tmp_path):
    model.model.save_pretrained(tmp_path)
    assert AUTO[family].from_pretrained(tmp_path)(**inputs).logits.equal(model(**inputs).logits)


def test_a_model_larger_than_its_device_is_offloaded(family, model, inputs, folder, tmp_path):
    """`device_map="auto"` under a memory limit: part on the device, here the CPU, and the rest on the disk."""
    memory = {"cpu": int(0.6 * sum(p.numel() * p.element_size() for p in model.parameters()))}
    options = {"device_map": "auto", "max_memory": memory, "offload_folder": tmp_path / "offload"}
    loaded = AUTO[family].from_pretrained(folder, **options)
    assert {str(place) for place in loaded.hf_device_map.values()} == {"cpu", "disk"}
    torch.testing.assert_close(loaded(**inputs).logits, model(**inputs).logits)
    expected = model.generate(inputs["input_ids"], max_new_tokens=6, do_sample=False)
    assert loaded.generate(inputs["input_ids"], max_new_tokens=6, do_sample=False).equal(expected)


def drop_weights(folder: Path, part: str) -> None:
    state = load_file(folder / "model.safetensors")
    kept = {name: value for name, value in state.items() if part not in name}
    assert len(kept) < len(state)
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})


def test_tied_weights_are_no_missing_keys_of_a_checkpoint(make_trainer):  # noqa: F811
    messages, handler = [], logging.Handler()  # the loggers of transformers hand nothing on to pytest's
    handler.emit = lambda record: messages.append(record.getMessage())
    logging.getLogger("transformers").addHandler(handler)
    for steps in (1, 2):
        trainer = make_trainer(max_steps=steps, save_strategy="steps", save_steps=1)
        trainer.train(resume_from_checkpoint=steps == 2)
    logging.getLogger("transformers").removeHandler(handler)
    assert trainer.state.global_step == 2
    weights = trainer.model.get_output_embeddings().weight
    assert weights is trainer.model.get_input_embeddings().weight
    assert not [message for message in messages if "keys" in message]


@pytest.mark.parametrize("part", ["layers.1.", "embed_tokens", "self_attn_norm.bias"])
def test_missing_weights_are_refused(family, folder, part):
    drop_weights(folder, part)
    with pytest.raises(UserError, match=part.rstrip(".").replace(".", r"\.")):
        load_checkpoint(AUTO[family], folder)


def test_a_head_may_be_missing_over_a_saved_base_only(family, inputs, tmp_path):
    model = FAMILIES[family](tie_word_embeddings=False, lm_head_bias=True)
    model.model.save_pretrained(tmp_path / "base")
    model.save_pretrained(tmp_path / "head")
    loaded = load_checkpoint(AUTO[family], tmp_path / "base")
    assert loaded.model(**inputs).last_hidden_state.equal(model.model(**inputs).last_hidden_state)
    drop_weights(tmp_path / "head", "lm_head.bias")
    with pytest.raises(UserError, match=r"lm_head\.bias"):
        load_checkpoint(AUTO[family], tmp_path / "head")


def test_weights_that_are_cut_short_or_of_another_shape_are_refused(family, folder):
    weights, config = folder / "model.safetensors", folder / "config.json"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-100])
    with pytest.raises(UserError, match="cannot be loaded"):
        load_checkpoint(AUTO[family], folder)
    weights.write_bytes(whole)
    config.write_text(config.read_text().replace('vocab_size": 60', 'vocab_size": 61'))
    with pytest.raises(UserError, match="cannot be loaded"):
        load_checkpoint(AUTO[family], folder)
