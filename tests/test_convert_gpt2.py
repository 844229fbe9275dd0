# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""GPT-2 to ScratchGPT and back: equal logits, caches, beams and weights, and refusals of what cannot be converted."""

import json
import os
import subprocess
import sys

import pytest
import torch
from conftest import VARIANTS, each_variant, make_gpt, make_transformer, make_variant, shake
from safetensors.torch import load_file, save_file
from transformers import GPT2Config, GPT2LMHeadModel

from hf_scratch.convert import from_gpt2, from_marian, to_gpt2, to_marian

SIZES = {
    "tiny": {"n_embd": 16, "n_layer": 1, "n_head": 2},
    "inner": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_inner": 40, "activation_function": "relu"},
    "wide": {"n_embd": 96, "n_layer": 4, "n_head": 6, "vocab_size": 300},
    "untied": {"n_embd": 32, "n_layer": 2, "n_head": 4, "tie_word_embeddings": False},
}
# variant of a ScratchGPT: the field that GPT-2 cannot express
REFUSED = {
    "post-norm": "norm_first",
    "embedding norm": "embedding_layernorm",
    "untied with a bias": "lm_head_bias",
    "head width": "head_dim",
    "bidirectional": "is_causal",
}
IDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
BIASES = {"attention_bias": ["q_proj.bias", "k_proj.bias", "v_proj.bias"], "attention_output_bias": ["o_proj.bias"]}
CLOSE = {"atol": 1e-5, "rtol": 1e-5}


def make_gpt2(**overrides) -> GPT2LMHeadModel:
    torch.manual_seed(0)
    return shake(GPT2LMHeadModel(GPT2Config(**{"vocab_size": 60, "n_positions": 40, **IDS, **overrides}))).eval()


def left_padded(vocab_size: int = 60) -> dict[str, torch.Tensor]:
    """Three rows of 9, of which 0, 4 and 2 are padding."""
    ids = torch.randint(3, vocab_size, (3, 9), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[1, :4] = mask[2, :2] = 0
    return {"input_ids": ids * mask, "attention_mask": mask}


def assert_same_function(a, b):
    inputs = left_padded(a.config.vocab_size)
    real, positions = inputs["attention_mask"].bool(), (inputs["attention_mask"].cumsum(-1) - 1).clamp(min=0)
    expected = a(**inputs, position_ids=positions).logits
    torch.testing.assert_close(b(**inputs, position_ids=positions).logits[real], expected[real], **CLOSE)

    whole, cache, steps = a(inputs["input_ids"]).logits, None, []
    for step in range(9):
        outputs = b(inputs["input_ids"][:, step : step + 1], cache=cache, use_cache=True)
        cache = outputs.cache
        steps.append(outputs.logits)
    torch.testing.assert_close(torch.cat(steps, 1), whole, **CLOSE)

    kwargs = {"num_beams": 4, "num_return_sequences": 2, "max_new_tokens": 10, "length_penalty": 0.5}
    kwargs |= {"return_dict_in_generate": True, "output_scores": True}
    beams = [model.generate(**inputs, **kwargs) for model in (a, b)]
    assert torch.equal(beams[0].sequences, beams[1].sequences)
    torch.testing.assert_close(beams[0].sequences_scores, beams[1].sequences_scores, **CLOSE)


def assert_same_weights(a, b, missing: tuple[str, ...] = ()):
    """Weights are equal to the bit. Names that end in one of `missing` are in `b` alone, and are zero biases."""
    a, b = a.state_dict(), b.state_dict()
    added = {name for name in b if name.endswith(missing)}
    assert a.keys() == b.keys() - added
    assert all(torch.equal(a[name], b[name]) and a[name].dtype == b[name].dtype for name in a)
    assert not any(b[name].any() for name in added)
    assert all(tensor.is_contiguous() for tensor in b.values())


@pytest.mark.parametrize("size", SIZES)
def test_gpt2_as_a_scratch_gpt_and_back(size):
    gpt2 = make_gpt2(**SIZES[size])
    ours = from_gpt2(gpt2)
    assert_same_function(gpt2, ours)
    assert_same_weights(gpt2, to_gpt2(ours))
    assert (ours.lm_head.weight is ours.model.embed_tokens.weight) == (size != "untied")


@each_variant("gpt")
def test_a_scratch_gpt_as_gpt2_and_back(family, variant):
    ours, overrides = shake(make_variant(family, variant)), VARIANTS[family][variant]
    if variant in REFUSED:
        with pytest.raises(ValueError, match=f"^`{REFUSED[variant]}` is "):
            to_gpt2(ours)
        return
    gpt2 = to_gpt2(ours)
    assert_same_function(ours, gpt2)
    again = from_gpt2(gpt2)
    if variant == "sinusoidal positions":  # not in our state dict, but learned in a GPT-2
        assert torch.equal(again.model.embed_positions.weight, ours.model.embed_positions.weight)
        del again.model.embed_positions
    missing = [name for field, names in BIASES.items() if field in overrides for name in names]
    assert_same_weights(ours, again, tuple(missing))


def test_unusual_scales_of_attention_are_folded():
    for overrides in ({"scale_attn_weights": False}, {"scale_attn_by_inverse_layer_idx": True}):
        gpt2 = make_gpt2(n_embd=32, n_layer=3, n_head=4, **overrides)
        with torch.no_grad():
            for block in gpt2.transformer.h:
                block.attn.c_attn.weight.mul_(0.5)  # else the unscaled softmax is so steep that rounding shows
        assert_same_function(gpt2, from_gpt2(gpt2))


def test_what_the_other_model_cannot_express_is_named():
    for overrides, message in (
        ({"final_layernorm": False}, "`final_layernorm` is False.*True"),
        ({"hidden_act": "prelu"}, r"no place.*layers\.0\.feed_forward\.activation\.weight"),
    ):
        with pytest.raises(ValueError, match=message):
            to_gpt2(make_gpt(**overrides))
    with pytest.raises(ValueError, match=r"`add_cross_attention` is True.*no cross-attention"):
        from_gpt2(make_gpt2(**SIZES["tiny"], add_cross_attention=True))
    gpt2 = make_gpt2(**SIZES["tiny"])
    gpt2.transformer.h[0].mlp.c_fc = torch.nn.Sequential(gpt2.transformer.h[0].mlp.c_fc)  # as an adapter wraps it
    with pytest.raises(KeyError, match=r"transformer\.h\.0\.mlp\.c_fc\.weight"):
        from_gpt2(gpt2)


def test_every_field_travels():
    fields = {"n_inner": 40, "activation_function": "gelu", "layer_norm_epsilon": 1e-3, "initializer_range": 0.1}
    fields |= {"resid_pdrop": 0.2, "embd_pdrop": 0.3, "attn_pdrop": 0.4, "use_cache": False, "eos_token_id": [2, 5]}
    gpt2 = make_gpt2(**SIZES["tiny"], **fields)
    ours = from_gpt2(gpt2)
    config = ours.config
    assert (config.hidden_dropout, config.embedding_dropout, config.attention_dropout) == (0.2, 0.3, 0.4)
    assert (config.layer_norm_eps, config.initializer_range) == (1e-3, 0.1)
    again = to_gpt2(ours).config
    for name in (*fields, *IDS, "vocab_size", "n_positions", "n_embd", "n_layer", "n_head"):
        assert getattr(again, name) == getattr(gpt2.config, name), name


def test_blocks_that_the_config_counts_and_the_model_lacks_are_not_made_up():
    model = make_gpt2(**SIZES["untied"])
    model.transformer.h = model.transformer.h[:1]
    with pytest.raises(IndexError):
        from_gpt2(model)


def test_special_tokens_outside_the_vocabulary_are_left_out():
    assert GPT2Config().eos_token_id > 60
    gpt2 = make_gpt2(**SIZES["tiny"], bos_token_id=GPT2Config().bos_token_id, eos_token_id=[2, 60], pad_token_id=None)
    config = from_gpt2(gpt2).config
    assert (config.bos_token_id, config.eos_token_id, config.pad_token_id) == (None, [2], None)


def test_the_dtype_stays():
    gpt2 = make_gpt2(**SIZES["tiny"]).to(torch.bfloat16)
    ours = from_gpt2(gpt2)
    assert ours.dtype == ours.config.dtype == torch.bfloat16
    assert_same_weights(gpt2, to_gpt2(ours))
    assert (
        to_gpt2(make_gpt(position_embedding_type="sinusoidal").bfloat16()).transformer.wpe.weight.dtype == ours.dtype
    )


@pytest.mark.parametrize("tie", [True, False])
def test_the_input_is_not_changed_and_shares_nothing(tie):
    for model, convert in ((make_gpt2(**SIZES["tiny"], tie_word_embeddings=tie), from_gpt2), (make_gpt(), to_gpt2)):
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        converted = convert(model)
        with torch.no_grad():
            for parameter in converted.parameters():
                parameter.add_(1)
        converted.generation_config.num_beams = 7
        assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
        assert model.generation_config.num_beams != 7


def test_a_head_is_tied_if_it_was_and_is_equal():
    untied = make_gpt2(**SIZES["untied"])
    untied.lm_head.load_state_dict(untied.transformer.wte.state_dict())
    assert not from_gpt2(untied).config.tie_word_embeddings
    gpt2 = make_gpt2(**SIZES["tiny"])
    gpt2.lm_head.weight = torch.nn.Parameter(gpt2.lm_head.weight + 1)
    ours = from_gpt2(gpt2)
    assert not ours.config.tie_word_embeddings
    assert_same_function(gpt2, ours)


WITHOUT_THE_PACKAGE = """
import json, sys
sys.modules["hf_scratch"] = None  # importing it is an ImportError
import torch
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained(sys.argv[1])
tokens = model.generate(torch.tensor([[5, 6, 7]]), max_new_tokens=12, do_sample=False).tolist()
print(json.dumps([type(model).__module__, tokens]))
"""


def test_folders_load_by_path_and_in_stock_transformers(tmp_path):
    ours = shake(make_gpt())
    to_gpt2(ours).save_pretrained(tmp_path)
    assert_same_weights(ours, from_gpt2(tmp_path))
    assert_same_weights(ours, from_gpt2(str(tmp_path)))

    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_THE_PACKAGE, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=200,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    module, tokens = json.loads(done.stdout.splitlines()[-1])
    assert module == "transformers.models.gpt2.modeling_gpt2"
    assert tokens == ours.generate(torch.tensor([[5, 6, 7]]), max_new_tokens=12, do_sample=False).tolist()


@pytest.mark.parametrize(
    ("convert", "make"),
    [
        (from_gpt2, make_gpt),
        (from_gpt2, lambda: make_gpt2(n_embd=16, n_layer=1, n_head=2).transformer),
        (to_gpt2, lambda: make_gpt().model),
        (to_gpt2, make_transformer),
        (from_marian, make_transformer),
        (to_marian, make_gpt),
        (to_gpt2, lambda: pytest.importorskip("peft").get_peft_model(make_gpt(), peft_config())),
    ],
)
def test_another_model_is_refused_by_its_class(convert, make):
    model = make()
    with pytest.raises(ValueError, match=f"without adapters can be converted, but this is a {type(model).__name__}"):
        convert(model)


def test_the_right_function_is_named():
    with pytest.raises(ValueError, match="Take `from_gpt2`"):
        from_marian(make_gpt2(n_embd=16, n_layer=1, n_head=2))


def peft_config():
    return pytest.importorskip("peft").LoraConfig(target_modules=["q_proj"])


def test_a_folder_without_a_whole_gpt2_is_refused(tmp_path):
    """transformers would give a GPT-2 with random weights."""
    make_gpt().save_pretrained(tmp_path / "ours")
    with pytest.raises(ValueError, match="but this is a ScratchGPTForCausalLM"):
        from_gpt2(tmp_path / "ours")
    make_gpt2(**SIZES["tiny"]).save_pretrained(tmp_path / "theirs")
    weights = tmp_path / "theirs" / "model.safetensors"
    state = {name.replace("c_fc", "c_first"): value for name, value in load_file(weights).items()}
    save_file(state, weights, metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"transformer\.h\.0\.mlp\.c_fc"):
        from_gpt2(tmp_path / "theirs")
