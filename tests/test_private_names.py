# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""The private names of private_names.py are there with these versions of the libraries, and there are no others."""

import ast
import importlib
import inspect
import pkgutil

import pytest
from conftest import ROOT
from private_names import PRIVATE_NAMES

import hf_scratch

FILES = {str(path.relative_to(ROOT / "hf_scratch")): path for path in sorted((ROOT / "hf_scratch").rglob("*.py"))}
FILES |= {str(path.relative_to(ROOT)): path for path in sorted((ROOT / "scripts").rglob("*.py"))}
CASES = [(owner, name, why) for owner, names, why in PRIVATE_NAMES for name in names.split()]
LISTED = {name for _, name, _ in CASES}


def is_private(name: str) -> bool:
    return name.startswith("_") and name.strip("_") != "" and not (name.startswith("__") and name.endswith("__"))


@pytest.mark.parametrize(("owner", "name", "why"), CASES, ids=[name for _, name, _ in CASES])
def test_a_private_name_is_there_and_used(owner, name, why):
    value = pkgutil.resolve_name(owner)
    # attributes that `__init__` or a call sets stand in the source alone
    is_there = hasattr(value, name) or name in inspect.getsource(inspect.getmodule(value))
    assert is_there, f"{owner} has no {name} any more. We need it: {why}"
    assert any(name in path.read_text(encoding="utf-8") for path in FILES.values())


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


# set on a class by its metaclass, of Python's abc or torch's Function
MADE_BY_METACLASSES = {"_abc_impl", "_backward_cls"}


def test_no_other_private_name_is_overridden():
    modules = [importlib.import_module(m.name) for m in pkgutil.walk_packages(hf_scratch.__path__, "hf_scratch.")]
    for cls in {value for module in modules for value in vars(module).values() if isinstance(value, type)}:
        theirs = [base for base in cls.__mro__ if not base.__module__.startswith("hf_scratch") and base is not object]
        for base in set(cls.__mro__).difference(theirs):
            overridden = {name for name in vars(base) if is_private(name) and any(name in vars(b) for b in theirs)}
            unlisted = overridden - LISTED - MADE_BY_METACLASSES
            assert not unlisted, f"{base.__name__} overrides {sorted(unlisted)}: list them in private_names.py"
