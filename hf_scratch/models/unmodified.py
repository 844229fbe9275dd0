# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Whether a call of a module runs the code of its class and nothing else: no hook, patch, adapter or shard.

The incremental decoder and the loss without logits read weights instead of calling modules. Both check here first,
and call the modules if anything is unknown.
"""

import sys
from collections.abc import Callable, Collection, Iterable
from types import FunctionType, ModuleType, WrapperDescriptorType
from typing import NamedTuple

import torch
from torch import nn
from torch.nn.modules import module as torch_module
from transformers import modeling_utils
from transformers.generation import GenerationMixin
from transformers.utils import output_capturing

# what runs when a module is called; `generate` also looks for `_reorder_cache`, which none of our classes has
_CALL = {
    "forward",
    "__call__",
    "_wrapped_call_impl",
    "_call_impl",
    "__getattr__",
    "__getattribute__",
    "_reorder_cache",
}

_NOT_COMPUTING = {"generate", "__init__"}  # wrapping these does not change what is computed


class _Original(NamedTuple):
    functions: dict[str, object]  # the functions that run, by name, as imported
    owners: tuple[ModuleType | type, ...]  # its base classes, and the files of this package that define them
    reserved: frozenset[str]  # names of methods and weights: an instance attribute of that name would replace them


_ORIGINALS: dict[type, _Original] = {}
# the functions that each file uses and each base class defines, as imported
_OWNED: dict[ModuleType | type, dict[str, object]] = {}


def remember(*classes: type, also: Collection[str] = ()) -> None:
    """Record the functions of classes as they are now. A function that differs later is a patch.

    Of classes of this package and of `generate()`'s loop, all methods are recorded, and all functions that their files
    use. Of other classes, only what a call runs, and the methods named in `also`.
    """
    package = __name__.rpartition(".")[0]  # with `trust_remote_code`: the package of the copied files
    for cls in classes:
        own_bases = [base for base in cls.__mro__ if base.__module__.rpartition(".")[0] == package]
        names = _CALL.union(also) if issubclass(cls, nn.Module) else set(also)
        if not own_bases and not all(_is_defined_by(cls, name) for name in names):
            continue  # it was patched before this package was imported
        bases = [*own_bases, GenerationMixin] if issubclass(cls, GenerationMixin) else own_bases
        owners = (*bases, *{sys.modules[base.__module__] for base in own_bases})
        for owner in owners:
            used = {name: getattr(owner, name) for name in vars(owner) if callable(getattr(owner, name))}
            if isinstance(owner, type):
                used = {name: value for name, value in used.items() if name not in _NOT_COMPUTING}
                names |= used.keys()
            _OWNED[owner] = used | _OWNED.get(owner, {})
        functions = {name: getattr(cls, name, None) for name in names}
        methods = {name for name in dir(cls) if callable(getattr(cls, name, None))}
        _ORIGINALS[cls] = _Original(functions, owners, frozenset(names | methods | {"weight", "bias"}))


def are_unmodified(modules: Collection[nn.Module]) -> bool:
    """Whether each module has a recorded class, and neither the module nor its class has a patch or a hook.

    Two kinds of hooks stay on a model after transformers has used them once. They are allowed while idle: those that
    record hidden states and attentions, and those of gradient checkpointing.
    """
    return (
        not _has_global_hooks()
        and all(is_original(cls) for cls in {type(module) for module in modules})
        and all(_has_no_patch(module) for module in modules)
    )


def is_sharded(module: nn.Module, cls: type) -> bool:
    """Whether `module` is a `cls` that FSDP2 shards (`fully_shard`), and otherwise unmodified.

    FSDP2 gives it a class of its own, and hooks that gather its weights before a call.
    """
    fsdp, bases = "torch.distributed.fsdp", type(module).__mro__
    hooks = (*module._forward_pre_hooks.values(), *module._forward_hooks.values())
    return (
        bases[1].__module__.startswith(fsdp)
        and bases[2:] == cls.__mro__
        and is_original(cls)
        and all((getattr(hook, "__module__", None) or "").startswith(fsdp) for hook in hooks)
        and not (module._backward_hooks or module._backward_pre_hooks)
        and _ORIGINALS[cls].reserved.isdisjoint(vars(module))
        and module._compiled_call_impl is None
        and not _has_global_hooks()
    )


def _has_global_hooks() -> bool:
    return bool(
        torch_module._global_forward_hooks
        or torch_module._global_forward_pre_hooks
        or torch_module._global_backward_hooks
        or torch_module._global_backward_pre_hooks
    )


def is_original(cls: type) -> bool:
    """Whether the class was recorded and still has the same functions."""
    original = _ORIGINALS.get(cls)
    return (
        original is not None
        and _has(cls, original.functions)
        and all(_has(owner, _OWNED[owner]) for owner in original.owners)
    )


def are_dense(modules: Iterable[nn.Module], device: torch.device, dtype: torch.dtype | None = None) -> bool:
    """Whether the modules' own weights are dense tensors, not shards, quantised or sparse.

    Args:
        modules: their children are not included.
        device: the device that all weights must be on.
        dtype: the dtype that all weights must have. Default: any floating-point dtype.
    """
    return all(
        type(tensor) in (nn.Parameter, torch.Tensor)
        and tensor.layout == torch.strided
        and tensor.device == device
        and tensor.is_floating_point()
        and dtype in (None, tensor.dtype)
        for module in modules
        for tensor in (*module._parameters.values(), *module._buffers.values())
        if tensor is not None
    )


def _has(owner: object, functions: dict[str, object]) -> bool:
    return all(getattr(owner, name, None) == function for name, function in functions.items())


def _is_defined_by(cls: type, name: str) -> bool:
    function = getattr(cls, name, None)
    if isinstance(function, FunctionType):
        return function.__globals__["__name__"] in {base.__module__ for base in cls.__mro__}
    return function is None or isinstance(function, WrapperDescriptorType)


def _has_no_patch(module: nn.Module) -> bool:
    return (
        _ORIGINALS[type(module)].reserved.isdisjoint(vars(module))
        and module._compiled_call_impl is None
        and not (module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks)
        and (not module._forward_hooks or all(map(_changes_nothing, module._forward_hooks.values())))
    )


def _changes_nothing(hook: Callable) -> bool:
    """Whether a hook is one of the two kinds that transformers leaves on a model, and idle."""
    file = getattr(hook, "__globals__", None)
    if file is vars(modeling_utils):  # left by gradient checkpointing; it only sets `requires_grad`
        return getattr(hook, "__name__", None) == "make_inputs_require_grads" and not torch.is_grad_enabled()
    collector = getattr(output_capturing, "_active_collector", None)  # None while no outputs are recorded
    return file is vars(output_capturing) and collector is not None and collector.get() is None
