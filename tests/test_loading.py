# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""`from_pretrained` beyond one file on one device: shards, offload, wrong keys, pickles, tensor parallelism."""

import copy
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import FAMILIES, ROOT
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForSeq2SeqLM

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


def test_a_device_map_splits_between_whole_layers(family, model):
    """No layer is torn: its residual connection would join two devices."""
    accelerate = pytest.importorskip("accelerate")
    sizes = accelerate.utils.compute_module_sizes(model)
    limit = int(sizes[""] * 0.4)
    device_map = accelerate.infer_auto_device_map(
        model, max_memory={0: limit, 1: limit, "cpu": "1GB"}, no_split_module_classes=model._no_split_modules
    )
    assert len(set(device_map.values())) > 1
    assert not any(".self_attn" in name or ".feed_forward" in name for name in device_map)


def test_a_model_on_the_meta_device_takes_its_weights(family, model, inputs, folder):
    with torch.device("meta"):
        empty = type(model)(model.config)
    assert {p.device.type for p in empty.parameters()} == {"meta"}
    loaded = type(model).from_pretrained(folder, low_cpu_mem_usage=True)
    assert loaded(**inputs).logits.equal(model(**inputs).logits)


def test_keys_that_do_not_fit_are_listed(family, model, folder):
    """A checkpoint with names of another version: what is missing and what is left over are both named."""
    state = load_file(folder / "model.safetensors")
    renamed = {name.replace("fc1", "linear1"): value for name, value in state.items()}
    save_file(renamed, folder / "model.safetensors", metadata={"format": "pt"})
    loaded, report = type(model).from_pretrained(folder, output_loading_info=True)
    count = sum("fc1" in name for name in state)
    assert count > 0
    assert sum("fc1" in name for name in report["missing_keys"]) == count
    assert sum("linear1" in name for name in report["unexpected_keys"]) == count
    assert all(p.isfinite().all() for p in loaded.parameters())


def test_a_weight_of_another_shape_is_named(model, folder):
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["vocab_size"] = config["decoder_vocab_size"] = 61
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(RuntimeError, match="ignore_mismatched_sizes"):
        type(model).from_pretrained(folder)


def test_weights_are_safetensors_and_pickles_are_refused(family, model, folder):
    assert [path.suffix for path in folder.iterdir() if path.stem.startswith(("model.", "pytorch"))] == []
    assert (folder / "model.safetensors").is_file()

    torch.save(model.state_dict(), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(OSError, match=r"model\.safetensors"):
        AUTO[family].from_pretrained(folder)
    loaded = AUTO[family].from_pretrained(folder, use_safetensors=False)
    assert loaded.state_dict().keys() == model.state_dict().keys()


def test_a_pickle_with_code_in_it_is_refused_even_when_asked_for(family, folder):
    class Trap:
        def __reduce__(self):
            return os.mkdir, (str(folder / "sprung"),)

    torch.save({"model.norm.weight": Trap()}, folder / "pytorch_model.bin")
    with pytest.raises(Exception, match=r"weights_only|Weights only"):
        AUTO[family].from_pretrained(folder, use_safetensors=False)
    assert not (folder / "sprung").exists()


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
