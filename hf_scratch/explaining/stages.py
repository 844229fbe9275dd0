# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""One token's way through a stack: its vector after the embedding, the position, and each sub-layer.

The stages are recorded while `forward` runs. The line of code of each stage is read from the frame that ran it.
"""

import inspect
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn

from .. import models
from .models import LoadedModel, copy_to_observe
from .shapes import read_statement

FOLDER = Path(models.__file__).parent
SUBLAYERS = {
    "self_attn": ("self-attention", "section 3.2.2"),
    "cross_attn": ("cross-attention", "section 3.2.3"),
    "feed_forward": ("feed-forward", "section 3.3"),
}


@dataclass
class Stage:
    """A token's vector at one place of a stack.

    Args:
        name: e.g. "embedding" or "layer 0, self-attention".
        kind: "embedding", "position", "sum", "self-attention", "cross-attention", "feed-forward" or "norm".
        layer: the layer's index; None outside the layers.
        section: the paper's section.
        code: the statement that computed it.
        place: file and line of the statement, e.g. "layers.py:185".
        shape: of the tensor of all positions, (batch, length, width).
        norm: the vector's Euclidean norm.
        update_norm: the norm of what the sub-layer added to the vector; None where nothing was added.
        vector: (width).
        predictions: texts and probabilities, best first: what the head would predict here. Empty in an encoder whose
            vocabulary is not the head's.
    """

    name: str
    kind: str
    layer: int | None
    section: str
    code: str
    place: str
    shape: tuple[int, ...]
    norm: float
    update_norm: float | None
    vector: torch.Tensor
    predictions: list[tuple[str, float]]


@torch.no_grad()
def follow_token(
    loaded: LoadedModel,
    position: int,
    input_ids: torch.Tensor,
    decoder_input_ids: torch.Tensor | None = None,
    stack: str = "decoder",
    num_predictions: int = 3,
) -> list[Stage]:
    """Run the model once and follow the token at a position through a stack.

    At each stage of the decoder, the last LayerNorm and the head are applied to the vector (the logit lens). The last
    stage's predictions are the model's. An encoder's vectors get the same head behind the encoder's last LayerNorm;
    the model itself never does this, but it shows which tokens' embeddings are close.

    Args:
        loaded: the model.
        position: of the token, from 0.
        input_ids: (1, length).
        decoder_input_ids: (1, target length) for the encoder-decoder.
        stack: "decoder" or "encoder". The GPT has a decoder only.
        num_predictions: tokens kept per stage.

    Returns:
        The stages in their order.

    Raises:
        ValueError: there is no such stack or position.
    """
    if stack not in ("encoder", "decoder") or (stack == "encoder" and not loaded.is_translator):
        raise ValueError(f"`stack` is {stack!r}, which {loaded.name} does not have.")
    model = copy_to_observe(loaded.model)
    observed, own = (
        each.get_encoder() if stack == "encoder" else each.get_decoder() for each in (model, loaded.model)
    )
    ids = input_ids if stack == "encoder" or decoder_input_ids is None else decoder_input_ids
    if not 0 <= position < ids.shape[1]:
        raise ValueError(f"`position` is {position}, but the text has the positions 0 to {ids.shape[1] - 1}.")
    recorder = _Recorder(observed)
    inputs = {"input_ids": input_ids}
    if loaded.is_translator:
        inputs["decoder_input_ids"] = decoder_input_ids
    model(**inputs, use_cache=False)
    has_head = stack == "decoder" or loaded.model.config.share_encoder_decoder_embeddings
    return [
        _make_stage(loaded, own, position, num_predictions if has_head else 0, **record) for record in recorder.records
    ]


class _Recorder:
    """Records the stages of a stack. It changes the stack's modules: observe a copy."""

    def __init__(self, stack: Any):
        self.records: list[dict[str, Any]] = []
        scale = getattr(stack, "embed_scale", 1.0)
        times = "" if scale == 1.0 else f" times {scale:.4g}"
        stack.embed_tokens.register_forward_hook(
            lambda module, args, output: self.add(f"embedding{times}", "embedding", "section 3.4", output * scale)
        )
        stack.embed_positions.register_forward_hook(
            lambda module, args, output: self.add("position", "position", "section 3.5", output)
        )
        stack.layers[0].register_forward_pre_hook(lambda module, args: self.add_sum(args[0]))
        for i, layer in enumerate(stack.layers):
            self.wrap_residual(i, layer)
        if not isinstance(stack.norm, nn.Identity):
            stack.norm.register_forward_hook(
                lambda module, args, output: self.add("last LayerNorm", "norm", "section 3.1", output)
            )

    def wrap_residual(self, index: int, layer: Any) -> None:
        """Record each sub-layer's result and what it adds."""
        residual = layer.residual

        def observed(x, norm, sublayer):
            (name,) = [name for name in SUBLAYERS if getattr(layer, f"{name}_norm", None) is norm]
            title, section = SUBLAYERS[name]
            updates = []

            def kept(states):
                updates.append(sublayer(states))
                return updates[0]

            output = residual(x, norm, kept)
            self.add(f"layer {index}, {title}", title, section, output, index, updates[0])
            return output

        layer.residual = observed

    def add_sum(self, states: torch.Tensor) -> None:
        """Record the first layer's input. The statement that adds the position makes it."""
        self.add("embedding + position", "sum", "section 3.5", states)
        self.records[-1] |= {key: self.records[-2][key] for key in ("code", "place")}

    def add(self, name, kind, section, states, layer=None, update=None):
        code, place = _find_code(inspect.currentframe())
        self.records.append(
            {"name": name, "kind": kind, "section": section, "states": states, "layer": layer, "update": update,
             "code": code, "place": place}
        )  # fmt: skip


def _find_code(frame: FrameType | None) -> tuple[str, str]:
    """The innermost statement of the models' code that is running, and its file and line."""
    while frame is not None:
        file = Path(frame.f_code.co_filename)
        if file.parent == FOLDER:
            return read_statement(file, frame.f_lineno), f"{file.name}:{frame.f_lineno}"
        frame = frame.f_back
    return "", ""


def _make_stage(loaded, stack, position, num_predictions, *, states, update, kind, **record) -> Stage:
    vector = states[0, position]
    normed = vector if kind == "norm" else stack.norm(vector)
    best = loaded.model.lm_head(normed).float().softmax(-1).topk(num_predictions)
    return Stage(
        **record,
        kind=kind,
        shape=tuple(states.shape),
        norm=float(vector.norm()),
        update_norm=None if update is None else float(update[0, position].norm()),
        vector=vector,
        predictions=list(zip(loaded.read(best.indices), best.values.tolist(), strict=True)),
    )
