# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""`from_pretrained` beyond one file on one device: shards, offload, wrong keys, pickles, tensor parallelism."""

import copy
import json
import logging
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import FAMILIES, ROOT
from safetensors.torch import load_file, save_file
from test_training import make_trainer  # noqa: F401  a fixture
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
)

from hf_scratch.errors import UserError
from hf_scratch.loading import load_checkpoint

AUTO = {"gpt": AutoModelForCausalLM, "transformer": AutoModelForSeq2SeqLM}


@pytest.fixture
def folder(model, tmp_path) -> Path:
    model.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_a_sharded_checkpoint_loads_whole(family, model, inputs, tmp_path):
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    loaded = AUTO[family].from_pretrained(tmp_path)
    assert loaded(**inputs).logits.equal(model(**inputs).logits)


def test_the_base_model_loads_from_a_head_and_the_head_from_a_base(family, model, inputs, folder, tmp_path):
    base = AutoModel.from_pretrained(folder)
    hidden = model.model(**inputs).last_hidden_state
    assert base(**inputs).last_hidden_state.equal(hidden)
    base.save_pretrained(tmp_path / "base")
    # the head is tied: nothing is missing
    assert AUTO[family].from_pretrained(tmp_path / "base")(**inputs).logits.equal(model(**inputs).logits)


@pytest.mark.parametrize("where", ["cpu", "disk"])
def test_a_model_larger_than_its_device_is_offloaded(family, model, inputs, folder, where, tmp_path):
    """`device_map="auto"` under a memory limit: part on the device (here the CPU too), the rest on `where`."""
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    device = 0 if torch.cuda.is_available() else "cpu"
    if where == "cpu" and device == "cpu":
        pytest.skip("offloading to the CPU needs another device to run on")
    loaded = AUTO[family].from_pretrained(
        folder,
        device_map="auto",
        max_memory={device: int(size * 0.6), **({"cpu": "1GB"} if where == "cpu" else {})},
        offload_folder=tmp_path / "offload",
    )
    assert where in {str(place) for place in loaded.hf_device_map.values()}
    assert len(set(loaded.hf_device_map.values())) == 2
    torch.testing.assert_close(loaded(**inputs).logits.cpu(), model(**inputs).logits)
    expected = model.generate(inputs["input_ids"], max_new_tokens=6, do_sample=False)
    assert loaded.generate(inputs["input_ids"], max_new_tokens=6, do_sample=False).equal(expected)


def test_a_model_on_the_meta_device_takes_its_weights(family, model, inputs, folder):
    with torch.device("meta"):
        empty = type(model)(model.config)
    assert {p.device.type for p in empty.parameters()} == {"meta"}
    loaded = type(model).from_pretrained(folder, low_cpu_mem_usage=True)
    assert loaded(**inputs).logits.equal(model(**inputs).logits)


def rename_weights(folder: Path, old: str, new: str) -> int:
    """Write the weights of `folder` under other names; how many names had `old` in them."""
    state = load_file(folder / "model.safetensors")
    renamed = {name.replace(old, new): value for name, value in state.items()}
    save_file(renamed, folder / "model.safetensors", metadata={"format": "pt"})
    return sum(old in name for name in state)


def drop_weights(folder: Path, part: str) -> None:
    state = load_file(folder / "model.safetensors")
    kept = {name: value for name, value in state.items() if part not in name}
    assert len(kept) < len(state)
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.fixture
def warnings_of_transformers():
    """What transformers logs: its loggers hand nothing on to pytest's."""
    messages, handler = [], logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())
    source = logging.getLogger("transformers")
    source.addHandler(handler)
    yield messages
    source.removeHandler(handler)


def test_tied_weights_are_no_missing_keys_of_a_checkpoint(make_trainer, warnings_of_transformers):  # noqa: F811
    for steps in (1, 2):
        trainer = make_trainer(max_steps=steps, save_strategy="steps", save_steps=1)
        trainer.train(resume_from_checkpoint=steps == 2)
    assert trainer.state.global_step == 2
    weights = trainer.model.get_output_embeddings().weight
    assert weights is trainer.model.get_input_embeddings().weight
    assert not [message for message in warnings_of_transformers if "keys" in message]


def test_weights_with_other_names_are_refused(family, model, folder):
    """By our commands: transformers reports them, and leaves random weights in their place."""
    assert rename_weights(folder, "fc1", "linear1") > 0
    with pytest.raises(UserError, match="fc1"):
        load_checkpoint(AUTO[family], folder)


def test_keys_that_do_not_fit_are_listed(model, folder, warnings_of_transformers):
    """Who asks for the loading info, or for mismatched sizes to be ignored, gets what transformers gives."""
    count = rename_weights(folder, "fc1", "linear1")
    loaded, report = type(model).from_pretrained(folder, output_loading_info=True)
    assert sum("fc1" in name for name in report["missing_keys"]) == count
    assert sum("linear1" in name for name in report["unexpected_keys"]) == count
    assert all(p.isfinite().all() for p in loaded.parameters())
    assert type(type(model).from_pretrained(folder, ignore_mismatched_sizes=True)) is type(model)
    assert len([message for message in warnings_of_transformers if "LOAD REPORT" in message]) == 2


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
    base = AutoModel.from_pretrained(tmp_path / "head")  # whose head is left over
    assert base(**inputs).last_hidden_state.equal(model.model(**inputs).last_hidden_state)
    drop_weights(tmp_path / "head", "lm_head.bias")
    with pytest.raises(UserError, match=r"lm_head\.bias"):
        load_checkpoint(AUTO[family], tmp_path / "head")


def test_weights_cut_short_name_their_folder(family, folder):
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(UserError, match=folder.name):
        load_checkpoint(AUTO[family], folder)


def test_a_weight_of_another_shape_is_named(model, folder):
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["vocab_size"] = config["decoder_vocab_size"] = 61
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(RuntimeError, match="ignore_mismatched_sizes"):
        type(model).from_pretrained(folder)


@pytest.mark.parametrize("choice", [{}, {"use_safetensors": False}, {"weights_only": False}], ids=str)
def test_weights_are_safetensors_and_pickles_are_refused(family, folder, choice):
    """Pickles with code in them, that is: no choice of the caller's runs it."""

    class Trap:
        def __reduce__(self):
            return os.mkdir, (str(folder / "sprung"),)

    assert [path.suffix for path in folder.iterdir() if path.stem.startswith(("model.", "pytorch"))] == []
    (folder / "model.safetensors").unlink()
    torch.save({"model.norm.weight": Trap()}, folder / "pytorch_model.bin")
    with pytest.raises(pickle.UnpicklingError):
        AUTO[family].from_pretrained(folder, **choice)
    assert not (folder / "sprung").exists()


def test_a_pickle_of_tensors_loads_where_there_are_no_safetensors(family, model, folder):
    """As for any model of transformers, and as there without running anything."""
    state = model.state_dict()
    torch.save({name: torch.zeros_like(value) for name, value in state.items()}, folder / "pytorch_model.bin")
    assert AUTO[family].from_pretrained(folder).lm_head.weight.equal(model.lm_head.weight)  # from the safetensors
    torch.save(state, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    for choice in ({}, {"use_safetensors": False}):
        assert AUTO[family].from_pretrained(folder, **choice).lm_head.weight.equal(model.lm_head.weight)
    with pytest.raises(OSError, match=r"model\.safetensors"):
        AUTO[family].from_pretrained(folder, use_safetensors=True)


# on each of two processes: tensor parallel inference, then one optimiser step of FSDP2 on half of the batch
TWO_PROCESSES = """
import sys
import torch
import torch.distributed as dist
import hf_scratch
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM
from transformers.distributed import DistributedConfig

for family, auto in (("gpt", AutoModelForCausalLM), ("transformer", AutoModelForSeq2SeqLM)):
    folder = f"{sys.argv[1]}/{family}"
    inputs = torch.load(f"{folder}/inputs.pt")
    model = auto.from_pretrained(folder, distributed_config=DistributedConfig(tp_size=2)).eval()
    stack = model.model if family == "gpt" else model.model.encoder
    outputs = {"rows": len(stack.layers[0].self_attn.q_proj.weight.to_local())}
    with torch.no_grad():
        outputs["logits"] = model(**inputs).logits
    outputs["tokens"] = model.generate(inputs["input_ids"], max_new_tokens=6, do_sample=False)

    model = auto.from_pretrained(folder, distributed_config=DistributedConfig(fsdp_size=2)).train()
    outputs["sharded"] = len(model.lm_head.weight.to_local())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    own = slice(dist.get_rank(), dist.get_rank() + 1)
    labels = inputs.get("decoder_input_ids", inputs["input_ids"])
    model(input_ids=inputs["input_ids"][own], labels=labels[own]).loss.backward()
    optimizer.step()
    outputs["weights"] = {name: p.full_tensor() for name, p in model.named_parameters()}
    if dist.get_rank() == 0:
        torch.save(outputs, f"{folder}/outputs.pt")
dist.barrier()
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory) -> dict[str, dict]:
    """For each family: its model, its inputs, and what the two processes made of them."""
    folder = tmp_path_factory.mktemp("two_processes")
    (folder / "run.py").write_text(TWO_PROCESSES, encoding="utf-8")
    results = {}
    for family, make in FAMILIES.items():
        model = make()
        model.save_pretrained(folder / family)
        ids = torch.randint(3, 60, (2, 7), generator=torch.Generator().manual_seed(1))
        inputs = {"input_ids": ids} if family == "gpt" else {"input_ids": ids, "decoder_input_ids": ids[:, :5]}
        torch.save(inputs, folder / family / "inputs.pt")
        results[family] = {"model": model, "inputs": inputs}
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    done = subprocess.run(
        [*launch, str(folder / "run.py"), str(folder)], cwd=ROOT, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for family in FAMILIES:
        results[family].update(torch.load(folder / family / "outputs.pt"))
    return results


def test_two_tensor_parallel_processes_compute_what_one_does(family, two_processes):
    result = two_processes[family]
    assert result["rows"] == 16  # half of the 32 rows of the query projection
    with torch.no_grad():
        expected = result["model"](**result["inputs"]).logits
    torch.testing.assert_close(result["logits"], expected, atol=1e-4, rtol=1e-4)
    generated = result["model"].generate(result["inputs"]["input_ids"], max_new_tokens=6, do_sample=False)
    assert result["tokens"].equal(generated)


def test_a_step_of_two_fsdp_processes_is_that_of_one(family, two_processes):
    result = two_processes[family]
    assert result["sharded"] == 30  # half of the 60 rows of the head
    model, ids = copy.deepcopy(result["model"]), result["inputs"]["input_ids"]
    labels = result["inputs"].get("decoder_input_ids", ids)
    model(input_ids=ids, labels=labels).loss.backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert not model.lm_head.weight.equal(result["model"].lm_head.weight)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(result["weights"][name], parameter.detach(), atol=1e-5, rtol=1e-4)
