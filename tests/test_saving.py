# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""`save_pretrained`: whose code is saved, and what the config names."""

import copy
import importlib
import json
import pickle
import sys
from pathlib import Path

import pytest
import torch
from conftest import AUTO, ROOT, make_gpt
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

from hf_scratch import ScratchGPTConfig, ScratchGPTForCausalLM


def files_and_auto_map(folder: Path) -> tuple[dict[str, str], dict[str, str]]:
    """The code in a saved folder, and the classes that its config names."""
    code = {path.name: path.read_text() for path in folder.glob("*.py")}
    return code, json.loads((folder / "config.json").read_text())["auto_map"]


def test_the_auto_map_names_classes_of_the_files_beside_it(model, family, tmp_path):
    model.save_pretrained(tmp_path)
    code, auto_map = files_and_auto_map(tmp_path)
    others = {"AutoModelForSequenceClassification", "AutoModelForTokenClassification"} if family == "gpt" else set()
    assert set(auto_map) == {"AutoConfig", "AutoModel", AUTO[family].__name__} | others
    for reference in auto_map.values():
        module, name = reference.split(".")
        assert f"\nclass {name}(" in code[f"{module}.py"]
    assert auto_map[AUTO[family].__name__].endswith(f".{type(model).__name__}")
    assert auto_map["AutoModel"].endswith(f".{type(model.model).__name__}")


# FSDP2 gives the model a class of torch's own


@pytest.mark.parametrize("is_remote", [False, True])
def test_a_model_wrapped_by_fsdp2_saves_the_code_of_its_own_class(
    family, model, inputs, one_process_group, is_remote, tmp_path, monkeypatch
):
    if is_remote:  # what AutoModel does with a class that it loaded by `trust_remote_code`
        monkeypatch.setattr(type(model), "_auto_class", AUTO[family].__name__)
    model.save_pretrained(tmp_path / "plain")
    expected = model(**inputs).logits
    mesh = init_device_mesh("cpu", (1,))
    for name, module in model.named_modules():
        if name.rpartition(".")[0].endswith("layers"):
            fully_shard(module, mesh=mesh)
    fully_shard(model, mesh=mesh)
    assert type(model).__module__.startswith("torch.")
    state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))  # as Trainer does
    model.save_pretrained(tmp_path / "wrapped", state_dict=state)
    assert files_and_auto_map(tmp_path / "wrapped") == files_and_auto_map(tmp_path / "plain")
    torch.testing.assert_close(AUTO[family].from_pretrained(tmp_path / "wrapped")(**inputs).logits, expected)


# a user's own class


class Odd:
    """What a notebook holds: an object that has every attribute."""

    def __getattr__(self, name):
        return Odd()


def test_a_subclass_of_a_script_saves_a_folder_that_loads_as_its_base(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules["__main__"], "odd", Odd(), raising=False)
    own_class = type("MyGPT", (ScratchGPTForCausalLM,), {"__module__": "__main__"})
    model = own_class(make_gpt().config)
    model.save_pretrained(tmp_path / "own")
    make_gpt().save_pretrained(tmp_path / "base")
    assert files_and_auto_map(tmp_path / "own") == files_and_auto_map(tmp_path / "base")
    ids = torch.tensor([[3, 4, 5]])
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "own")
    assert type(loaded) is ScratchGPTForCausalLM
    assert loaded(ids).logits.equal(model.eval()(ids).logits)
    assert type(own_class.from_pretrained(tmp_path / "own")) is own_class


def test_a_registered_subclass_is_saved_with_its_code_and_loads_as_itself(tmp_path, monkeypatch):
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
    my_gpt = importlib.import_module("my_gpt")
    fields = {name: value for name, value in make_gpt().config.to_diff_dict().items() if name != "model_type"}
    model = my_gpt.MyGPT(my_gpt.MyConfig(**fields)).eval()
    model.save_pretrained(tmp_path / "saved")
    code, auto_map = files_and_auto_map(tmp_path / "saved")
    assert {"my_gpt.py", "modeling_scratch_gpt.py"} < set(code)
    assert auto_map["AutoModelForCausalLM"] == "my_gpt.MyGPT"
    assert auto_map["AutoModel"] == "modeling_scratch_gpt.ScratchGPTModel"
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "saved", trust_remote_code=True)
    ids = torch.randint(3, 60, (2, 6))
    assert type(loaded).__name__ == "MyGPT"
    assert loaded(ids).logits.equal(model(ids).logits)


# copies


def test_models_and_configs_survive_copies_and_pickles(model, inputs):
    expected = model(**inputs).logits
    for again in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert again(**inputs).logits.equal(expected)
        assert again.config.to_dict() == model.config.to_dict()
    for again in (copy.deepcopy(model.config), pickle.loads(pickle.dumps(model.config))):
        assert type(again) is type(model.config)
        assert again.to_diff_dict() == model.config.to_diff_dict()


@pytest.mark.parametrize("name", ["scratch-gpt-tinystories", "scratch-transformer-multi30k-en-de"])
def test_a_config_saved_by_an_older_version_keeps_its_fields(name):
    folder = ROOT / "model_cards" / name
    saved, config = json.loads((folder / "config.json").read_text()), AutoConfig.from_pretrained(folder)
    loaded = {**config.to_dict(), **config.to_diff_dict()}
    for key in saved.keys() - {"transformers_version", "dtype"}:
        assert loaded[key] == saved[key]


@pytest.mark.parametrize("is_causal", [True, False])
def test_saving_a_base_model_names_the_classes_of_its_kind(is_causal, tmp_path):
    model = make_gpt(is_causal=is_causal)
    model.save_pretrained(tmp_path / "head")
    model.model.save_pretrained(tmp_path)
    assert type(AutoModel.from_pretrained(tmp_path)).__name__ == "ScratchGPTModel"
    auto_map = files_and_auto_map(tmp_path)[1]
    assert auto_map == files_and_auto_map(tmp_path / "head")[1]
    assert ("AutoModelForCausalLM" in auto_map, "AutoModelForMaskedLM" in auto_map) == (is_causal, not is_causal)
    assert ScratchGPTConfig.from_pretrained(tmp_path).architectures == ["ScratchGPTModel"]
