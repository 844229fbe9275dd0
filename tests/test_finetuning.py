# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""What people do to a trained model: adapt, resize, freeze, pack, compile, load in half precision."""

import copy

import pytest
import torch
from conftest import FAMILIES, make_gpt, make_transformer
from transformers import Trainer, TrainingArguments

from hf_scratch.training import LanguageModelTrainer

# LoRA

LORA_TARGETS = {"gpt": ["q_proj", "v_proj"], "transformer": ["q_proj", "v_proj", "fc1", "fc2"]}


def test_lora_trains_its_adapters_alone_and_merges_into_the_same_function(family, model, labelled, tmp_path):
    peft = pytest.importorskip("peft")
    task = peft.TaskType.CAUSAL_LM if family == "gpt" else peft.TaskType.SEQ_2_SEQ_LM
    before = copy.deepcopy(model.state_dict())
    original = model(**labelled).logits
    adapted = peft.get_peft_model(
        model, peft.LoraConfig(task_type=task, target_modules=LORA_TARGETS[family], r=4, lora_alpha=8)
    )
    torch.testing.assert_close(adapted(**labelled).logits, original)  # B starts at zero
    trained = {name for name, p in adapted.named_parameters() if p.requires_grad}
    assert trained
    assert all("lora_" in name for name in trained)

    optimizer = torch.optim.SGD([p for p in adapted.parameters() if p.requires_grad], lr=1.0)
    first = adapted(**labelled).loss
    for _ in range(5):
        optimizer.zero_grad()
        loss = adapted(**labelled).loss
        loss.backward()
        optimizer.step()
    assert loss < first
    adapted.eval()
    expected = adapted(**labelled).logits
    adapted.save_pretrained(tmp_path)
    merged = adapted.merge_and_unload()
    assert type(merged) is type(model)
    torch.testing.assert_close(merged(**labelled).logits, expected, atol=1e-4, rtol=1e-4)

    fresh = FAMILIES[family]()
    fresh.load_state_dict(before)
    loaded = peft.PeftModel.from_pretrained(fresh, tmp_path).eval()
    torch.testing.assert_close(loaded(**labelled).logits, expected, atol=1e-5, rtol=1e-5)


# embeddings


@pytest.mark.parametrize("tie", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("size", [70, 50])
def test_the_vocabulary_is_resized_and_old_tokens_stay(family, inputs, tie, bias, size, tmp_path):
    model = FAMILIES[family](tie_word_embeddings=tie, lm_head_bias=bias)
    inputs = {name: value.clamp(max=49) for name, value in inputs.items()}
    before = model(**inputs).logits
    model.resize_token_embeddings(size)
    after = model(**inputs).logits
    assert after.shape[-1] == size == model.config.vocab_size == model.lm_head.out_features
    kept = min(size, 60)
    torch.testing.assert_close(after[..., :kept], before[..., :kept])
    assert getattr(model.config, "decoder_vocab_size", size) == size
    assert (model.lm_head.weight is model.get_input_embeddings().weight) == tie
    model.save_pretrained(tmp_path)
    for ids in inputs.values():
        ids[0, 0] = size - 1  # the last token
    torch.testing.assert_close(type(model).from_pretrained(tmp_path)(**inputs).logits, model(**inputs).logits)


@pytest.mark.parametrize("tie", [True, False])
def test_two_vocabularies_are_resized_apart(tie, tmp_path):
    model = make_transformer(
        decoder_vocab_size=40, share_encoder_decoder_embeddings=False, tie_word_embeddings=tie, lm_head_bias=True
    )
    inputs = {"input_ids": torch.arange(3, 9)[None], "decoder_input_ids": torch.arange(1, 7)[None]}
    before = model(**inputs).logits
    model.resize_token_embeddings(80)
    assert (model.config.vocab_size, model.config.decoder_vocab_size) == (80, 40)
    torch.testing.assert_close(model(**inputs).logits, before)
    model.resize_decoder_token_embeddings(45)
    assert (model.config.vocab_size, model.config.decoder_vocab_size) == (80, 45)
    torch.testing.assert_close(model(**inputs).logits[..., :40], before)
    assert (model.lm_head.weight is model.model.decoder.embed_tokens.weight) == tie
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path)
    torch.testing.assert_close(loaded(**inputs).logits, model(**inputs).logits)


def test_a_merged_model_whose_head_is_the_decoders_embedding_loads_again(tmp_path):
    peft = pytest.importorskip("peft")
    model = make_transformer(decoder_vocab_size=40, share_encoder_decoder_embeddings=False, tie_word_embeddings=True)
    adapted = peft.get_peft_model(model, peft.LoraConfig(task_type="SEQ_2_SEQ_LM", target_modules=["q_proj"]))
    merged = adapted.merge_and_unload().eval()
    merged.save_pretrained(tmp_path)
    inputs = {"input_ids": torch.arange(3, 9)[None], "decoder_input_ids": torch.arange(1, 7)[None]}
    loaded = type(merged).from_pretrained(tmp_path)
    torch.testing.assert_close(loaded(**inputs).logits, merged(**inputs).logits)
    assert loaded.lm_head.weight is loaded.model.decoder.embed_tokens.weight


# freezing


def test_frozen_weights_stay_and_the_others_learn(family, model, labelled, tmp_path):
    base = model.model.encoder if family == "transformer" else model.model.layers[0]
    base.requires_grad_(False)
    before = {name: p.clone() for name, p in model.named_parameters()}
    rows = [{name: value[i] for name, value in labelled.items()} for i in range(3)]
    args = TrainingArguments(
        tmp_path, max_steps=2, learning_rate=0.1, report_to="none", save_strategy="no", disable_tqdm=True
    )
    Trainer(model=model, args=args, train_dataset=rows).train()
    frozen = {id(p) for p in base.parameters()}
    for name, parameter in model.named_parameters():
        changed = not torch.equal(parameter, before[name])
        # no input reaches the last positions of the table, and a key's bias does not change a softmax
        if not ("embed_positions" in name or name.endswith("k_proj.bias")):
            assert changed == (id(parameter) not in frozen), name


# weight decay


def test_embeddings_decay_unless_they_are_left_out(tmp_path):
    model, args = make_gpt(tie_word_embeddings=False), TrainingArguments(tmp_path, report_to="none", use_cpu=True)
    with_embeddings, without = (
        set(LanguageModelTrainer(model=model, args=args, decay_embeddings=each).get_decay_parameter_names(model))
        for each in (True, False)
    )
    assert with_embeddings - without == {"model.embed_tokens.weight", "model.embed_positions.weight"}
    assert not without - with_embeddings
    assert "lm_head.weight" in without
