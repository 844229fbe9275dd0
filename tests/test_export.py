# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Export by torch.export and to ONNX, with the exporters of torch and transformers and no code of ours."""

import functools
import math

import pytest
import torch
from conftest import FAMILIES, each_variant, make_inputs_for, make_variant
from torch.export import Dim

# torch.onnx copies a class that torch has deprecated
pytestmark = pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.`:FutureWarning")

LONGEST = 40  # `max_position_embeddings` of the tiny models
TOLERANCE = {"atol": 1e-4, "rtol": 0}
SHALLOW = {"gpt": {}, "transformer": {"encoder_layers": 1, "decoder_layers": 2}}  # each layer costs seconds in ONNX


def make_inputs(family: str, batch: int, source: int, target: int, mask: str) -> dict[str, torch.Tensor]:
    """Random ids: (batch, target) for the GPT, both sides for the encoder-decoder.

    Args:
        mask: "none", "full", or "padded": all rows but the first lose part of their tokens, on the side that
            `generate()` wants the padding on (left for the GPT, any for a source).
    """
    generator = torch.Generator().manual_seed(batch + source + target)
    ids = torch.randint(3, 60, (batch, target), generator=generator)
    inputs = {"input_ids": ids}
    if family == "transformer":
        inputs = {"input_ids": torch.randint(3, 60, (batch, source), generator=generator), "decoder_input_ids": ids}
    if mask != "none":
        inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    if mask == "padded":
        length = inputs["input_ids"].shape[1]
        for row in range(1, batch):
            padding = slice(0, length // 3) if family == "gpt" else slice(length - length // 3, length)
            inputs["attention_mask"][row, padding] = 0
    return inputs


def make_shallow(family: str):
    return FAMILIES[family](**SHALLOW[family])


def positions(mask: torch.Tensor) -> torch.Tensor:
    """Positions that start at each row's first token, as `generate()` counts them."""
    return (mask.cumsum(-1) - 1).clamp(min=0)


@functools.cache
def export_with_torch(family: str, mask: str, attention: str = "sdpa"):
    """A model and its exported program, traced with 3 rows of 9 source and 7 target tokens."""
    model = FAMILIES[family](use_cache=False)  # a program returns tensors, and a cache is none
    model.set_attn_implementation(attention)
    batch, source, target = Dim("batch"), Dim("source", max=LONGEST), Dim("target", max=LONGEST)
    read = target if family == "gpt" else source
    shapes = {"input_ids": {0: batch, 1: read}}
    if family == "transformer":
        shapes["decoder_input_ids"] = {0: batch, 1: target}
    if mask != "none":
        shapes["attention_mask"] = {0: batch, 1: read}
    return model, torch.export.export(model, (), make_inputs(family, 3, 9, 7, mask), dynamic_shapes=shapes)


OTHER_SIZES = [(1, 1, 1), (5, 11, 4), (2, 3, LONGEST), (4, LONGEST, 13)]  # batch, source length, target length


@pytest.mark.parametrize(("mask", "attention"), [("none", "sdpa"), ("full", "sdpa"), ("padded", "eager")])
def test_a_program_of_torch_export_computes_the_same_at_other_sizes(family, mask, attention):
    model, program = export_with_torch(family, mask, attention)
    for size in OTHER_SIZES:
        # the mask given at run time counts, not the one that the program was traced with
        for given in ["none"] if mask == "none" else ["full", "padded"]:
            inputs = make_inputs(family, *size, given)
            torch.testing.assert_close(program.module()(**inputs).logits, model(**inputs).logits, atol=1e-5, rtol=1e-5)


@each_variant()
def test_each_variant_is_exported_by_torch(family, variant):
    layers = {"num_hidden_layers": 1} if family == "gpt" else {"encoder_layers": 1, "decoder_layers": 1}
    model = make_variant(family, variant, **layers, use_cache=False)  # each layer costs half a second
    sizes = {"batch": Dim("batch"), "source": Dim("source", max=LONGEST), "target": Dim("target", max=LONGEST)}
    read = sizes["target" if family == "gpt" else "source"]
    shapes = {"input_ids": {0: sizes["batch"], 1: read}}
    if family == "transformer":
        shapes["decoder_input_ids"] = {0: sizes["batch"], 1: sizes["target"]}
    program = torch.export.export(model, (), make_inputs_for(model), dynamic_shapes=shapes).module()
    inputs = make_inputs_for(model, source=5, target=11, rows=2)
    torch.testing.assert_close(program(**inputs).logits, model(**inputs).logits, atol=1e-5, rtol=1e-5)


@pytest.fixture(scope="module")
def exporters():
    """The module `transformers.exporters`; skips the test where it cannot write ONNX and run it."""
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package)
    module = pytest.importorskip("transformers.exporters")
    if not hasattr(module, "ExportedModel"):
        pytest.skip("transformers' exporters return other objects before there was ExportedModel")
    return module


@pytest.fixture(scope="module")
def in_onnx(exporters, tmp_path_factory):
    """A function from a family to its graphs "prefill", "decode" and "encoder", after a round trip through files."""

    def through_files(exported):
        folder = tmp_path_factory.mktemp("onnx")
        exported.save_pretrained(folder)
        return exporters.ExportedModel.from_pretrained(folder)

    @functools.cache
    def export(family: str) -> dict:
        model, inputs = make_shallow(family), make_inputs(family, 3, 9, 7, "padded")
        exporter, config = exporters.OnnxExporter(), exporters.OnnxConfig(dynamic=True)
        # torch.export treats a size of 1 as a constant. With several `decoder_input_ids`, "decode" can continue after
        # any number of tokens. It reads one token at a time; `multi_token_decode` lifts that, but transformers 5.23
        # offers it for `input_ids` only.
        several = family == "gpt"
        exported = exporter.export_for_generation(model, inputs, config, multi_token_decode=several)
        graphs = through_files(exported).runners
        if family == "gpt":
            return graphs
        del inputs["decoder_input_ids"]
        return graphs | {"encoder": through_files(exporter.export(model.get_encoder(), inputs, config))}

    return export


def assert_same_cache(one, other):
    for layer, other_layer in zip(one.layers, other.layers, strict=True):
        torch.testing.assert_close(layer.keys, other_layer.keys, **TOLERANCE)
        torch.testing.assert_close(layer.values, other_layer.values, **TOLERANCE)


@pytest.mark.parametrize("steps", [(6, 1, 1, 1), (1, 1, 5), (3, 4, 2)], ids=str)
@torch.no_grad()
def test_the_gpt_in_onnx_goes_on_from_its_cache(in_onnx, steps):
    model, graphs = make_shallow("gpt"), in_onnx("gpt")
    inputs = make_inputs("gpt", 4, 0, sum(steps), "padded")
    inputs["position_ids"] = positions(inputs["attention_mask"])
    expected, logits, cache, end = model(**inputs), [], {}, 0
    for step in steps:
        begin, end = end, end + step
        outputs = graphs["decode" if cache else "prefill"](
            input_ids=inputs["input_ids"][:, begin:end],
            attention_mask=inputs["attention_mask"][:, :end],
            position_ids=inputs["position_ids"][:, begin:end],
            **cache,
        )
        cache = {"cache": outputs.cache}
        logits.append(outputs.logits)
    torch.testing.assert_close(torch.cat(logits, 1), expected.logits, **TOLERANCE)
    assert_same_cache(cache["cache"], expected.cache)


@pytest.mark.parametrize("size", OTHER_SIZES[1:], ids=str)
@pytest.mark.parametrize("given", [1, 3])
@torch.no_grad()
def test_the_decoder_in_onnx_goes_on_from_both_its_caches(in_onnx, size, given):
    model, graphs = make_shallow("transformer"), in_onnx("transformer")
    inputs = make_inputs("transformer", *size, "padded")
    ids, mask = inputs["decoder_input_ids"], inputs["attention_mask"]
    expected = model(**inputs)
    encoded = {"attention_mask": mask, "encoder_outputs": model.get_encoder()(inputs["input_ids"], mask)}
    outputs = graphs["prefill"](decoder_input_ids=ids[:, :given], **encoded)
    logits = [outputs.logits]
    # the cross-attention now reads its cache, so the encoder's output no longer matters
    encoded["encoder_outputs"].last_hidden_state = torch.zeros_like(encoded["encoder_outputs"].last_hidden_state)
    for step in range(given, ids.shape[1]):
        outputs = graphs["decode"](decoder_input_ids=ids[:, step : step + 1], cache=outputs.cache, **encoded)
        logits.append(outputs.logits)
    torch.testing.assert_close(torch.cat(logits, 1), expected.logits, **TOLERANCE)
    for cache in ("self_attention_cache", "cross_attention_cache"):
        assert_same_cache(getattr(outputs.cache, cache), getattr(expected.cache, cache))


def generate_in_onnx(graphs: dict, family: str, inputs: dict[str, torch.Tensor], start: int, steps: int):
    """Greedy decoding in onnxruntime alone: each step takes the most likely token that the text does not hold yet."""
    mask = inputs["attention_mask"]
    if family == "gpt":
        ids = inputs["input_ids"]
        outputs = graphs["prefill"](**inputs, position_ids=positions(mask))
    else:
        ids = torch.full((len(mask), 1), start)
        encoded = {"encoder_outputs": graphs["encoder"](**inputs), "attention_mask": mask}
        outputs = graphs["prefill"](decoder_input_ids=ids, **encoded)
    for step in range(steps):
        token = outputs.logits[:, -1].scatter(1, ids, -math.inf).argmax(-1, keepdim=True)
        ids = torch.cat([ids, token], 1)
        if step == steps - 1:
            return ids
        cache = outputs.cache
        if family == "gpt":
            mask = torch.cat([mask, torch.ones_like(token)], 1)
            outputs = graphs["decode"](
                input_ids=token, attention_mask=mask, position_ids=positions(mask)[:, -1:], cache=cache
            )
        else:
            outputs = graphs["decode"](decoder_input_ids=token, cache=cache, **encoded)


@pytest.mark.parametrize("mask", ["full", "padded"])
def test_greedy_decoding_in_onnx_gives_the_tokens_of_generate(in_onnx, family, mask):
    model = make_shallow(family)
    inputs = make_inputs(family, 4, 10, 10, mask)
    inputs.pop("decoder_input_ids", None)
    # A random model repeats one token for ever, even with a wrong cache. So no token may come twice.
    expected = model.generate(**inputs, max_new_tokens=12, do_sample=False, eos_token_id=None, no_repeat_ngram_size=1)
    start = getattr(model.config, "decoder_start_token_id", None)
    assert torch.equal(generate_in_onnx(in_onnx(family), family, inputs, start, 12), expected)
