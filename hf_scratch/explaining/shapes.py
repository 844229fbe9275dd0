# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""The lines of the models' code that a forward pass runs, each with the shapes of the tensors that it makes.

No line and no shape is written here. torch reports each operation while the model runs, the call stack tells which
line of `hf_scratch/models` asked for it, and the line's text is read from its file.
"""

import ast
import inspect
import linecache
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
import transformers
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel

from .. import models

FOLDER = Path(models.__file__).parent
TRANSFORMERS = Path(transformers.__file__).parent


@dataclass
class CodeLine:
    """A statement of the models' code, as one forward pass ran it.

    Args:
        file: the name of its file in `hf_scratch/models`.
        function: the function that it stands in, e.g. "MultiHeadAttention.forward".
        module: the name of the module that ran it, e.g. "model.encoder.layers.0.self_attn"; "" for the model itself.
        code: the statement, on one line.
        operations: name and shape of each tensor that it made, in this order.
    """

    file: str
    function: str
    module: str
    code: str
    operations: list[tuple[str, tuple[int, ...]]] = field(default_factory=list)


def record_shapes(model: PreTrainedModel, run: Callable[[], Any]) -> list[CodeLine]:
    """Call `run` and record the lines of the models' code that make tensors. Of each stack, layer 0 alone is recorded.

    Args:
        model: one of our models. Only with `attn_implementation="eager"` does the attention show its steps.
        run: calls the model.

    Returns:
        The lines in the order in which they ran. A line that ran twice in a row is there once.
    """
    with _Recorder(model) as recorder:
        run()
    return recorder.lines


def format_lines(lines: list[CodeLine]) -> str:
    """Each line of code with its shapes below it, under a heading for each call of a function."""
    text, place = [], None
    for line in lines:
        if place != (place := (line.module, line.function)):
            text.append(f"\n{line.module or 'the model'}: {line.function} in {line.file}")
        text.append(f"  {line.code}")
        text.append("      " + ", ".join(f"{name} {shape}" for name, shape in line.operations))
    return "\n".join(text).strip("\n")


class _Recorder(TorchFunctionMode):
    """Torch calls `__torch_function__` in place of each operation."""

    def __init__(self, model: PreTrainedModel):
        super().__init__()
        self.lines: list[CodeLine] = []
        self.names = {id(module): name for name, module in model.named_modules()}
        stacks = [module for name, module in model.named_modules() if name.endswith("layers")]
        self.skipped = {id(layer) for stack in stacks for layer in list(stack.children())[1:]}
        self.place: tuple[str, ...] = ()  # of the last line
        self.by_transformers = False  # whether transformers called the last operation

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        # `to` and `contiguous` return the tensor itself where there is nothing to do
        if isinstance(result, torch.Tensor) and not any(result is x for x in args):
            self.record(func.__name__.strip("_"), tuple(result.shape))
        return result

    def record(self, operation: str, shape: tuple[int, ...]) -> None:
        """Add an operation to the innermost line of the models' code. Of what transformers does, keep the last."""
        frames = [frame for frame, _ in traceback.walk_stack(inspect.currentframe())]
        files = [Path(frame.f_code.co_filename) for frame in frames]
        i = next((i for i, file in enumerate(files) if file.parent == FOLDER), None)
        if i is None or any(id(frame.f_locals.get("self")) in self.skipped for frame in frames[i:]):
            return
        by_transformers = any(TRANSFORMERS in file.parents for file in files[:i])
        caller, file = frames[i], files[i]
        owner = caller.f_locals.get("self", caller.f_locals.get("module"))
        place = (
            file.name,
            caller.f_code.co_qualname,
            self.names.get(id(owner), ""),
            read_statement(file, caller.f_lineno),
        )
        if place != self.place:
            self.place = place
            self.lines.append(CodeLine(*place))
        elif by_transformers and self.by_transformers:
            self.lines[-1].operations.pop()
        self.by_transformers = by_transformers
        self.lines[-1].operations.append((operation, shape))


@cache
def read_statement(file: Path, number: int) -> str:
    """The statement that a line of a file belongs to, as `ast.unparse` writes it: on one line, without comments."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        is_simple = isinstance(node, ast.stmt) and not hasattr(node, "body")
        if is_simple and node.lineno <= number <= (node.end_lineno or node.lineno):
            return ast.unparse(node)
    return linecache.getline(str(file), number).strip()
