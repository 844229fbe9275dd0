# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""What an accelerator would wait for, and what is compiled for it, seen on a CPU.

On torch's meta device, to read a value is an error: what would wait for an accelerator shows.
"""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from accelerate.utils import compile_regions
from conftest import DROPOUT, FAMILIES, loss_and_gradients, make_gpt, make_variant
from torch import nn
from torch.nn.attention.flex_attention import create_block_mask as make_mask
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode
from transformers import GPT2Config, masking_utils

from hf_scratch.flops import count_flops, find_peak
from hf_scratch.models.scratch_loss import Teacher
from hf_scratch.training.model_loading import choose_packed_attention

LOSSES = ["logits", "no logits", "smoothing", "R-Drop", "teachers", "all"]


def make_loss_kwargs(loss: str, device: str = "cpu") -> dict:
    torch.manual_seed(2)
    teacher = Teacher(torch.randn(4, 8, 16, device=device), nn.Linear(16, 60, device=device))
    kwargs = {
        "logits": {},
        "no logits": {"skip_logits": True, "num_items_in_batch": torch.tensor(20, device=device)},
        "smoothing": {"label_smoothing": 0.1},
        "R-Drop": {"r_drop_alpha": 1.0},
        "teachers": {"teachers": [teacher], "distillation_alpha": 0.5},
    }
    return kwargs[loss] if loss != "all" else {name: value for each in kwargs.values() for name, value in each.items()}


def make_batch(family: str, rows: str = "whole", device: str = "cpu") -> dict[str, torch.Tensor]:
    """Two rows, each twice, as R-Drop needs them."""
    generator, length = torch.Generator().manual_seed(1), 8 if family == "gpt" else 9
    batch = {
        "input_ids": torch.randint(3, 60, (2, length), generator=generator),
        "labels": torch.randint(3, 60, (2, 8), generator=generator),
    }
    if rows == "padded":
        batch["attention_mask"] = torch.ones(2, length, dtype=torch.long)
        batch["attention_mask"][1, 5:] = 0
    if rows == "packed":
        batch["position_ids"] = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3], [2, 3, 0, 1, 2, 0, 0, 0]])
    return {name: value.repeat(2, 1).to(device) for name, value in batch.items()}


class StaysOnTheDevice(TorchDispatchMode):
    """Refuses tensors elsewhere: to copy one to an accelerator waits for it."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        output = func(*args, **(kwargs or {}))
        devices = {leaf.device.type for leaf in tree_leaves(output) if isinstance(leaf, torch.Tensor)}
        assert devices <= {"meta"}, f"{func} made a tensor on {devices}"
        return output


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize(
    ("family", "rows"),
    [("gpt", "whole"), ("gpt", "padded"), ("gpt", "packed"), ("transformer", "whole"), ("transformer", "padded")],
)
def test_a_training_step_reads_no_value_and_makes_no_needless_mask(family, rows, loss, monkeypatch):
    # torch has no autocast for this device
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda device: False)
    monkeypatch.setattr(torch, "autocast", lambda *args, **kwargs: nullcontext())
    sdpa, masks = nn.functional.scaled_dot_product_attention, []

    def spy(*args, attn_mask, **kwargs):
        masks.append(attn_mask)
        return sdpa(*args, attn_mask=attn_mask, **kwargs)

    monkeypatch.setattr(nn.functional, "scaled_dot_product_attention", spy)
    model = FAMILIES[family](**DROPOUT[family]).to("meta").train()
    optimizer = torch.optim.AdamW(model.parameters())
    batch, kwargs = make_batch(family, rows, "meta"), make_loss_kwargs(loss, "meta")
    with StaysOnTheDevice():
        model(**batch, **kwargs).loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    assert masks
    assert all(mask is None for mask in masks) == (rows == "whole")


class Recorder:
    """A backend of torch.compile that keeps the graphs, and runs them as they are."""

    def __init__(self):
        torch._dynamo.reset()
        self.graphs = []

    def __call__(self, graph: torch.fx.GraphModule, inputs: list):
        self.graphs.append(graph)
        return graph.forward

    def attentions(self) -> list[dict]:
        """The keyword arguments of each attention in the graphs."""
        nodes = [node for graph in self.graphs for node in graph.graph.nodes]
        return [node.kwargs for node in nodes if node.target is nn.functional.scaled_dot_product_attention]


def assert_same(actual, expected) -> None:
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("family", "rows", "loss"),
    [
        ("gpt", "whole", "logits"),
        ("gpt", "padded", "all"),
        ("gpt", "packed", "no logits"),
        ("transformer", "whole", "logits"),
        ("transformer", "padded", "all"),
    ],
)
def test_a_compiled_step_is_one_graph_and_the_eager_step(family, rows, loss):
    one_layer = {"num_hidden_layers": 1} if family == "gpt" else {"encoder_layers": 1, "decoder_layers": 1}
    bias = {"tie_word_embeddings": False, "lm_head_bias": True} if loss == "all" else {}
    model, batch = FAMILIES[family](**one_layer, **bias).train(), make_batch(family, rows) | make_loss_kwargs(loss)
    expected, recorder = loss_and_gradients(model, batch), Recorder()
    # `fullgraph` makes a graph break an error
    assert_same(loss_and_gradients(model, batch, torch.compile(model, backend=recorder, fullgraph=True)), expected)
    assert len(recorder.graphs) == 1
    # the encoder's, the decoder's own, and its attention to the encoder
    attentions = [(each["attn_mask"] is None, each["is_causal"]) for each in recorder.attentions()]
    if rows == "whole":
        kinds = [True] if family == "gpt" else [False, True, False]
        assert attentions == [(True, is_causal) for is_causal in kinds]


def test_each_kind_of_layer_compiles_once_and_again_for_all_other_lengths(family):
    """accelerate's regional compilation. The head has no graph: the loss computes its logits by blocks.

    The second length makes the layers general. A model that is compiled as a whole is compiled for each length.
    """
    three_layers = {"num_hidden_layers": 3} if family == "gpt" else {"encoder_layers": 3, "decoder_layers": 3}
    model = FAMILIES[family](**three_layers).train()
    batches = [{name: ids[:, :length] for name, ids in make_batch(family).items()} for length in (8, 7, 6, 5)]
    expected = [loss_and_gradients(model, {**batch, "skip_logits": True}) for batch in batches]
    recorder, kinds, numbers = Recorder(), 1 if family == "gpt" else 3, []
    compiled = compile_regions(model, backend=recorder, fullgraph=True)
    for batch, step in zip(batches, expected, strict=True):
        assert_same(loss_and_gradients(model, {**batch, "skip_logits": True}, compiled), step)
        numbers.append(len(recorder.attentions()))
    assert numbers == [kinds] + [2 * kinds] * 3
    operations = [[node.target for node in each.graph.nodes if node.op == "call_function"] for each in recorder.graphs]
    assert [nn.functional.linear] not in operations


@pytest.mark.parametrize("variant", ["defaults", "untied", "head width"])
def test_the_operations_of_a_step_are_those_that_torch_counts(family, variant):
    model, batch = make_variant(family, variant, attn_implementation="eager").to("meta"), make_batch(family)
    with FlopCounterMode(display=False) as counter:
        model(**{name: ids.to("meta") for name, ids in batch.items()}).loss.backward()
    assert count_flops(model, batch) == counter.get_total_flops()


@pytest.mark.parametrize(
    ("name", "teraflops"),
    [("NVIDIA H100 80GB HBM3", 989), ("NVIDIA A100-SXM4-40GB", 312), ("NVIDIA L40", 181), ("Tesla T4", None)],
)
def test_the_peak_of_a_gpu_is_that_of_its_name(name, teraflops, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    assert find_peak(torch.device("cuda")) == (teraflops and teraflops * 1e12)
    assert find_peak(torch.device("cpu")) is None


def test_packed_texts_get_flex_attention_on_a_gpu_in_half_precision():
    def choose(config, device="cuda", bf16=True):
        return choose_packed_attention(config, SimpleNamespace(device=torch.device(device), bf16=bf16, fp16=False))

    able = make_gpt(head_dim=16).config
    assert choose(able) == "flex_attention"
    assert choose(able, device="cpu") is None
    assert choose(able, bf16=False) is None
    for other in (make_gpt(head_dim=8).config, make_gpt(head_dim=16, attention_dropout=0.1).config, GPT2Config()):
        assert choose(other) is None


@torch.no_grad()  # it has no backward pass on a CPU
def test_flex_attention_compiles_once_however_texts_are_packed(monkeypatch):
    # transformers compiles this function by inductor
    monkeypatch.setattr(
        masking_utils, "create_block_mask", lambda *args, _compile, **kwargs: make_mask(*args, **kwargs)
    )
    model, generator = make_gpt(head_dim=16).train(), torch.Generator().manual_seed(4)
    flex, recorder = make_gpt(head_dim=16).train(), Recorder()
    flex.set_attn_implementation("flex_attention")
    flex = compile_regions(flex, backend=recorder, fullgraph=True)
    batch, numbers, positions = make_batch("gpt"), [], torch.arange(8)
    for _ in range(3):
        starts = torch.where(torch.rand(4, 8, generator=generator) < 0.3, positions, 0).cummax(1).values
        losses = [m(**batch, position_ids=positions - starts, use_cache=False).loss for m in (model, flex)]
        torch.testing.assert_close(losses[1], losses[0])
        numbers.append(len(recorder.graphs))
    assert numbers[0] == numbers[2]
