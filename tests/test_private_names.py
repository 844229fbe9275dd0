# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""The private names of private_names.py are there with these versions of the libraries, and there are no others."""

import ast
import importlib
import pkgutil

import pytest
from conftest import ROOT, make_gpt, make_transformer
from private_names import OPTIONAL, PRIVATE_NAMES, UNDOCUMENTED
from tokenizers import Tokenizer, models
from torch import nn
from transformers import PreTrainedConfig, PreTrainedTokenizerFast, Trainer, TrainingArguments

import hf_scratch
from hf_scratch import TranslationPipeline

FILES = {str(path.relative_to(ROOT / "hf_scratch")): path for path in sorted((ROOT / "hf_scratch").rglob("*.py"))}
FILES |= {str(path.relative_to(ROOT)): path for path in sorted((ROOT / "scripts").rglob("*.py"))}
LISTED = {name for entry in PRIVATE_NAMES for name in entry.names.split()} | OPTIONAL.keys()
CASES = [(entry, name) for entry in PRIVATE_NAMES for name in entry.names.split()]


def is_private(name: str) -> bool:
    return name.startswith("_") and name.strip("_") != "" and not (name.startswith("__") and name.endswith("__"))


def resolve(path: str) -> object:
    """What a dotted path names: a module, or something in one."""
    module, _, rest = path, "", []
    while True:
        try:
            found = importlib.import_module(module)
            break
        except ModuleNotFoundError:
            module, _, name = module.rpartition(".")
            if not module:
                raise
            rest.insert(0, name)
    for name in rest:
        found = getattr(found, name)
    return found


def prepared_generation_config():
    model = make_gpt()
    config, _ = model._prepare_generation_config(None)
    model._prepare_special_tokens(config, device="cpu")
    return config


def model_with_a_loss():
    model = make_gpt()
    model.loss_function = lambda *args, **kwargs: None
    return model


def make_pipeline():
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"a": 0}, unk_token="a")))
    return TranslationPipeline(model=make_transformer(), tokenizer=tokenizer)


# attributes that `__init__` or a call sets: an object that has them
INSTANCES = {
    "torch.nn.Module": lambda: nn.Linear(1, 1),
    "transformers.GenerationConfig": prepared_generation_config,
    "transformers.PreTrainedModel": model_with_a_loss,
    "transformers.Pipeline": make_pipeline,
    "transformers.Trainer": lambda: Trainer(make_gpt(), TrainingArguments(use_cpu=True)),
    "transformers.PreTrainedConfig": PreTrainedConfig,
    "argparse.ArgumentParser": lambda: resolve("argparse.ArgumentParser")(),
}


@pytest.mark.parametrize(("entry", "name"), CASES, ids=lambda value: value if isinstance(value, str) else "")
def test_a_private_name_is_there_and_used(entry, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a Trainer makes its output folder
    owner = resolve(entry.owner)
    if not hasattr(owner, name):
        owner = INSTANCES[entry.owner]()
    assert hasattr(owner, name), f"{entry.owner} has no {name} any more. We need it: {entry.why}"
    assert any(name in path.read_text(encoding="utf-8") for path in FILES.values())


@pytest.mark.parametrize("path", UNDOCUMENTED)
def test_an_undocumented_name_is_there(path):
    assert resolve(path) is not None
    assert any(path.rpartition(".")[2] in file.read_text(encoding="utf-8") for file in FILES.values())


def names_defined(tree: ast.AST) -> set[str]:
    """Functions, methods, classes, variables, and attributes that are assigned to `self`."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self":
            names.add(node.attr)
    return names


def names_used(tree: ast.AST) -> set[str]:
    """Private names of attributes, of imports, and in `getattr(x, "_name")`, `hasattr` and `vars(x).get("_name")`."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            names.add(node.attr)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            parts = node.module.split(".")
            names |= {alias.name for alias in node.names if any(map(is_private, [*parts, alias.name]))}
        elif isinstance(node, ast.Import):
            names |= {part for alias in node.names for part in alias.name.split(".")}
        elif isinstance(node, ast.Call):
            function = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            if function in ("getattr", "hasattr", "setattr", "delattr", "get", "pop", "attrgetter", "methodcaller"):
                constants = [each.value for each in node.args if isinstance(each, ast.Constant)]
                names |= {each for each in constants if isinstance(each, str) and each.isidentifier()}
    return names


def test_no_other_private_name_is_used():
    trees = {file: ast.parse(path.read_text(encoding="utf-8")) for file, path in FILES.items()}
    ours = set().union(*map(names_defined, trees.values()))
    for file, tree in trees.items():
        used = {name for name in names_used(tree) if is_private(name)} - {"_C"}  # the module of a listed name
        unlisted = used - ours - LISTED
        assert not unlisted, f"{file} uses {sorted(unlisted)}: list them in private_names.py, or do without"


def our_classes() -> list[type]:
    """The classes of the package."""
    classes = {}
    for module in pkgutil.walk_packages(hf_scratch.__path__, "hf_scratch."):
        for value in vars(importlib.import_module(module.name)).values():
            if isinstance(value, type) and value.__module__.startswith("hf_scratch"):
                classes[value] = None
    return list(classes)


# set on a class by its metaclass, of Python's abc or torch's Function
MADE_BY_METACLASSES = {"_abc_impl", "_backward_cls"}


def test_no_other_private_name_is_overridden():
    for cls in our_classes():
        theirs = [base for base in cls.__mro__ if not base.__module__.startswith("hf_scratch") and base is not object]
        for base in set(cls.__mro__).difference(theirs):
            overridden = {name for name in vars(base) if is_private(name) and any(name in vars(b) for b in theirs)}
            unlisted = overridden - LISTED - MADE_BY_METACLASSES
            assert not unlisted, f"{base.__name__} overrides {sorted(unlisted)}: list them in private_names.py"


def test_the_check_finds_each_way_to_use_a_private_name():
    code = """
from torch.overrides import _one
from torch._device import Two
import torch._three
x._four(getattr(y, "_five"), vars(z).get("_six"))
del self._seven
"""
    found = {name for name in names_used(ast.parse(code)) if is_private(name)}
    assert found == {"_one", "_three", "_four", "_five", "_six", "_seven"}
    assert "Two" in names_used(ast.parse(code))
