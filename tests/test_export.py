# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Export by torch.export and to ONNX, with the exporters of torch and transformers and no code of ours."""

import itertools
import math

import pytest
import torch
from conftest import FAMILIES, VARIANTS, make_inputs_for, make_variant
from torch.export import Dim

# torch.onnx copies a class that torch has deprecated
pytestmark = pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.`:FutureWarning")

LONGEST = 40  # `max_position_embeddings` of the tiny models
TOLERANCE = {"atol": 1e-4, "rtol": 0}
ONE_LAYER = {"gpt": {"num_hidden_layers": 1}, "transformer": {"encoder_layers": 1, "decoder_layers": 1}}  # for speed
OTHER_SIZES = [(1, 1, 1), (5, 11, 4), (2, 3, LONGEST), (4, LONGEST, 13)]  # batch, source length, target length


def make_inputs(model, batch: int, source: int, target: int, mask: str) -> dict[str, torch.Tensor]:
    """Random ids.

    Args:
        mask: "none", "full", or "padded": all rows but the first lose part of their tokens, on the side that
            `generate()` wants the padding on (left for the GPT, any for a source).
    """
    inputs = make_inputs_for(model, source, target, batch)
    ids = inputs["input_ids"]
    if mask != "none":
        inputs["attention_mask"] = torch.ones_like(ids)
    if mask == "padded":
        third = ids.shape[1] // 3
        padding = slice(ids.shape[1] - third, None) if model.config.is_encoder_decoder else slice(0, third)
        inputs["attention_mask"][1:, padding] = 0
    return inputs


def positions(mask: torch.Tensor) -> torch.Tensor:
    """Positions that start at each row's first token, as `generate()` counts them."""
    return (mask.cumsum(-1) - 1).clamp(min=0)


def check_program(model, mask: str) -> None:
    """Export a model, traced with 3 rows of 9 source and 7 target tokens, and run the program on other sizes."""
    batch, source, target = Dim("batch"), Dim("source", max=LONGEST), Dim("target", max=LONGEST)
    lengths = {"decoder_input_ids": target} if model.config.is_encoder_decoder else {"input_ids": target}
    inputs = make_inputs(model, 3, 9, 7, mask)
    read = lengths.get("input_ids", source)
    shapes = {name: {0: batch, 1: lengths.get(name, read)} for name in inputs}
    program = torch.export.export(model, (), inputs, dynamic_shapes=shapes).module()
    for size in OTHER_SIZES:
        # the mask given at run time counts, not the one that the program was traced with
        for given in ["none"] if mask == "none" else ["full", "padded"]:
            inputs = make_inputs(model, *size, given)
            torch.testing.assert_close(program(**inputs).logits, model(**inputs).logits, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("mask", "attention"), [("full", "sdpa"), pytest.param("padded", "eager", marks=pytest.mark.slow)]
)
def test_a_program_of_torch_export_reads_the_mask_it_is_given(family, mask, attention):
    model = FAMILIES[family](**ONE_LAYER[family], use_cache=False)  # a program returns tensors, and a cache is none
    model.set_attn_implementation(attention)
    check_program(model, mask)


# what a trace may see; the other variants differ in weights and modules alone
TRACED = {"defaults", "sinusoidal positions", "learned positions", "value width", "bidirectional"}


@pytest.mark.parametrize(
    ("family", "variant"),
    [
        pytest.param(family, variant, marks=() if variant in TRACED else pytest.mark.slow)
        for family in VARIANTS
        for variant in VARIANTS[family]
    ],
)
def test_each_variant_is_exported_by_torch_and_computes_the_same_at_other_sizes(family, variant):
    check_program(make_variant(family, variant, **ONE_LAYER[family], use_cache=False), "none")


@pytest.fixture
def in_onnx(tmp_path):
    """A function from a family to a model and its graphs "prefill", "decode" and "encoder", read from files."""
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package)
    exporters = pytest.importorskip("transformers.exporters")
    if not hasattr(exporters, "ExportedModel"):
        pytest.skip("transformers' exporters return other objects before there was ExportedModel")
    exporter, config = exporters.OnnxExporter(), exporters.OnnxConfig(dynamic=True)

    def through_files(exported, name: str):
        exported.save_pretrained(tmp_path / name)
        return exporters.ExportedModel.from_pretrained(tmp_path / name)

    def export(family: str, **overrides) -> tuple:
        model = FAMILIES[family](**{**ONE_LAYER[family], **overrides})
        inputs = make_inputs(model, 3, 9, 7, "padded")
        # torch.export treats a size of 1 as a constant. With several `decoder_input_ids`, "decode" can continue after
        # any number of tokens. It reads one token at a time; `multi_token_decode` lifts that, but transformers 5.23
        # offers it for `input_ids` only.
        several = family == "gpt"
        exported = exporter.export_for_generation(model, inputs, config, multi_token_decode=several)
        graphs = through_files(exported, "model").runners
        if family == "gpt":
            return model, graphs
        del inputs["decoder_input_ids"]
        return model, graphs | {
            "encoder": through_files(exporter.export(model.get_encoder(), inputs, config), "encoder")
        }

    return export


def assert_same_cache(one, other):
    for layer, other_layer in zip(one.layers, other.layers, strict=True):
        torch.testing.assert_close(layer.keys, other_layer.keys, **TOLERANCE)
        torch.testing.assert_close(layer.values, other_layer.values, **TOLERANCE)


def check_greedy_decoding(model, generate_in_onnx) -> None:
    for mask in ("full", "padded"):
        inputs = make_inputs(model, 4, 10, 10, mask)
        inputs.pop("decoder_input_ids", None)
        # A random model repeats one token for ever, even with a wrong cache. So no token may come twice.
        options = {"do_sample": False, "eos_token_id": None, "no_repeat_ngram_size": 1}
        assert torch.equal(generate_in_onnx(inputs), model.generate(**inputs, max_new_tokens=12, **options))


def append_likeliest(ids: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    """Each row with the likeliest token that it does not hold yet."""
    token = logits[:, -1].scatter(1, ids, -math.inf).argmax(-1, keepdim=True)
    return torch.cat([ids, token], 1)


@torch.no_grad()
def test_the_gpt_in_onnx_goes_on_from_its_cache_and_decodes_greedily(in_onnx):
    model, graphs = in_onnx("gpt")
    for steps in ((6, 1, 1, 1), (1, 1, 5), (3, 4, 2)):
        inputs = make_inputs(model, 4, 0, sum(steps), "padded")
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

    def generate_in_onnx(inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        ids, mask = inputs["input_ids"], inputs["attention_mask"]
        outputs = graphs["prefill"](**inputs, position_ids=positions(mask))
        for _ in range(11):
            ids, mask = append_likeliest(ids, outputs.logits), torch.cat([mask, mask[:, -1:]], 1)
            given = {"input_ids": ids[:, -1:], "position_ids": positions(mask)[:, -1:]}
            outputs = graphs["decode"](**given, attention_mask=mask, cache=outputs.cache)
        return append_likeliest(ids, outputs.logits)

    check_greedy_decoding(model, generate_in_onnx)


@pytest.mark.slow
@torch.no_grad()
def test_the_decoder_in_onnx_goes_on_from_both_its_caches_and_decodes_greedily(in_onnx):
    model, graphs = in_onnx("transformer", decoder_layers=2)
    for size, given in itertools.product(OTHER_SIZES[1:], (1, 3)):
        inputs = make_inputs(model, *size, "padded")
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

    def generate_in_onnx(inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        ids = torch.full((len(inputs["input_ids"]), 1), model.config.decoder_start_token_id)
        encoded = {"encoder_outputs": graphs["encoder"](**inputs), "attention_mask": inputs["attention_mask"]}
        outputs = graphs["prefill"](decoder_input_ids=ids, **encoded)
        for _ in range(11):
            ids = append_likeliest(ids, outputs.logits)
            outputs = graphs["decode"](decoder_input_ids=ids[:, -1:], cache=outputs.cache, **encoded)
        return append_likeliest(ids, outputs.logits)

    check_greedy_decoding(model, generate_in_onnx)
