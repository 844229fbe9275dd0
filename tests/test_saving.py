# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""`save_pretrained`: whose code is saved, over which files, and who may read them."""

import copy
import importlib
import json
import os
import pickle
import shutil
import stat
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from conftest import ROOT, make_gpt
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForSeq2SeqLM

import hf_scratch
from hf_scratch import ScratchGPTConfig, ScratchGPTForCausalLM
from hf_scratch.models.configuration_base import code_files

AUTO = {"gpt": AutoModelForCausalLM, "transformer": AutoModelForSeq2SeqLM}
MODELS = Path(hf_scratch.__file__).parent / "models"


def files_and_auto_map(folder: Path) -> tuple[dict[str, str], dict[str, str]]:
    """The code in a saved folder, and the classes that its config names."""
    code = {path.name: path.read_text() for path in folder.glob("*.py")}
    return code, json.loads((folder / "config.json").read_text())["auto_map"]


def test_the_auto_map_names_classes_of_the_files_beside_it(model, family, tmp_path):
    model.save_pretrained(tmp_path)
    code, auto_map = files_and_auto_map(tmp_path)
    assert set(auto_map) == {"AutoConfig", "AutoModel", AUTO[family].__name__}
    for reference in auto_map.values():
        module, name = reference.split(".")
        assert f"\nclass {name}(" in code[f"{module}.py"]
    assert auto_map[AUTO[family].__name__].endswith(f".{type(model).__name__}")
    assert auto_map["AutoModel"].endswith(f".{type(model.model).__name__}")


# FSDP2 gives the model a class of torch's own


@pytest.fixture
def mesh():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


@pytest.mark.parametrize("is_remote", [False, True])
def test_a_model_wrapped_by_fsdp2_saves_the_code_of_its_own_class(
    family, model, inputs, mesh, is_remote, tmp_path, monkeypatch
):
    if is_remote:  # what AutoModel does with a class that it loaded by `trust_remote_code`
        monkeypatch.setattr(type(model), "_auto_class", AUTO[family].__name__)
    model.save_pretrained(tmp_path / "plain")
    expected = model(**inputs).logits
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


def test_a_registered_subclass_in_a_module_is_saved_with_its_code(tmp_path, monkeypatch):
    (tmp_path / "my_models.py").write_text(
        "from hf_scratch import ScratchGPTForCausalLM\n\n\nclass MyGPT(ScratchGPTForCausalLM):\n    pass\n\n\n"
        'MyGPT.register_for_auto_class("AutoModelForCausalLM")\n'
    )
    monkeypatch.syspath_prepend(tmp_path)
    model = importlib.import_module("my_models").MyGPT(make_gpt().config)
    model.save_pretrained(tmp_path / "saved")
    code, auto_map = files_and_auto_map(tmp_path / "saved")
    assert {"my_models.py", "modeling_scratch_gpt.py"} < set(code)
    assert auto_map["AutoModelForCausalLM"] == "my_models.MyGPT"
    assert auto_map["AutoModel"] == "modeling_scratch_gpt.ScratchGPTModel"


# published folders link to the package's code


@pytest.mark.parametrize("link", [os.symlink, os.link])
@pytest.mark.parametrize("part", ["model", "config"])
def test_saving_over_links_replaces_them(model, part, link, tmp_path):
    """Over links to the code itself, and over links to other files, which must not be written through."""
    files = code_files(type(model))
    sources = tmp_path / "sources"
    shutil.copytree(MODELS, sources)
    for kind, source in (("own", None), ("other", sources)):
        folder = tmp_path / kind
        folder.mkdir()
        for path in files:
            target = path if source is None else source / path.name
            if source is not None:
                target.write_text(f"# another version of {path.name}\n")
            link(target, folder / path.name)
        (model if part == "model" else model.config).save_pretrained(folder)
        written = files if part == "model" else code_files(type(model.config))
        for path in written:
            assert (folder / path.name).read_text() == path.read_text()
            assert not (folder / path.name).is_symlink()
            assert not (folder / path.name).samefile(path)
            if source is not None:
                assert (source / path.name).read_text() == f"# another version of {path.name}\n"


@pytest.mark.parametrize("name", ["scratch-gpt-tinystories", "scratch-transformer-multi30k-en-de"])
def test_a_published_folder_can_be_saved_over(name, tmp_path):
    """As in a clone: the links are relative, and lead to this package's files."""
    before = {path: path.read_bytes() for path in MODELS.glob("*.py")}
    folder = tmp_path / "model_cards" / name
    shutil.copytree(ROOT / "model_cards" / name, folder, symlinks=True)
    (tmp_path / "hf_scratch").symlink_to(MODELS.parent)
    assert AutoConfig.from_pretrained(folder).use_cache is True
    auto_class = AutoModelForCausalLM if "gpt" in name else AutoModelForSeq2SeqLM
    model = auto_class.from_pretrained(folder)
    model.save_pretrained(folder)
    assert {path: path.read_bytes() for path in MODELS.glob("*.py")} == before
    assert not [path.name for path in folder.glob("*.py") if path.is_symlink()]
    assert auto_class.from_pretrained(folder).lm_head.weight.equal(model.lm_head.weight)


# permissions


@pytest.mark.parametrize("umask", [0o022, 0o027, 0o077])
@pytest.mark.parametrize("shard_size", ["50GB", "20KB"])
def test_the_umask_decides_who_may_read_the_weights(model, umask, shard_size, tmp_path):
    before = os.umask(umask)
    try:
        model.save_pretrained(tmp_path / "model", max_shard_size=shard_size)
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "model").iterdir()}
    assert sum(name.endswith(".safetensors") for name in modes) > (3 if shard_size == "20KB" else 0)
    assert set(modes.values()) == {0o666 & ~umask}


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
    saved = json.loads((folder / "config.json").read_text())
    config = AutoConfig.from_pretrained(folder)
    loaded = {**config.to_dict(), **config.to_diff_dict()}
    assert {key: loaded[key] for key in saved if key not in ("transformers_version", "dtype")} == {
        key: value for key, value in saved.items() if key not in ("transformers_version", "dtype")
    }


def test_saving_a_base_model_names_the_same_classes(tmp_path):
    make_gpt().model.save_pretrained(tmp_path)
    assert type(AutoModel.from_pretrained(tmp_path)).__name__ == "ScratchGPTModel"
    assert set(files_and_auto_map(tmp_path)[1]) == {"AutoConfig", "AutoModel", "AutoModelForCausalLM"}
    assert ScratchGPTConfig.from_pretrained(tmp_path).architectures == ["ScratchGPTModel"]
