# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""The view Inside: one token's way through a stack, beside figure 1 and the lines of code, and self-attention."""

from dataclasses import dataclass

import gradio as gr
import torch
from page import (
    LONGEST_INPUT,
    NO_PROBABILITY,
    Code,
    check_text,
    errors_as_messages,
    make_text,
    make_tokens,
    show_figure,
    show_table,
)

from hf_scratch.explaining import LoadedModel, compute_attention, follow_token
from hf_scratch.reporting.attention_maps import draw_layer
from hf_scratch.reporting.drawings import draw_stages

LONGEST_OUTPUT = 80  # tokens


@dataclass
class Reading:
    """What one user sees: the text that a model has read. Each browser tab has its own.

    Args:
        name: the model's name.
        text: the text.
        ids: (1, length), of the text.
        target_inputs: (1, target length), start token and translation, of the encoder-decoder.
        stack: "encoder" or "decoder".
        position: of the token that is followed.
    """

    name: str
    text: str
    ids: torch.Tensor
    target_inputs: torch.Tensor | None
    stack: str
    position: int = 0

    @property
    def stack_ids(self) -> torch.Tensor:
        """(1, length), what the stack reads."""
        return self.target_inputs if self.stack == "decoder" and self.target_inputs is not None else self.ids


def read(name: str, loaded: LoadedModel, text: str, stack: str) -> Reading:
    """Let a model read a text; the encoder-decoder translates it, greedily."""
    ids = loaded.encode(check_text(text), LONGEST_INPUT)
    target_inputs = None
    if loaded.is_translator:
        output_ids = loaded.model.generate(ids, do_sample=False, num_beams=1, max_new_tokens=LONGEST_OUTPUT)
        target_inputs = output_ids[:, :-1]  # nothing reads the last token
    reading = Reading(name, text, ids, target_inputs, stack if loaded.is_translator else "decoder")
    reading.position = reading.stack_ids.shape[1] // 2
    return reading


def show_stages(loaded: LoadedModel, reading: Reading) -> tuple[str, str]:
    """The selected token's way, as a picture and as a table."""
    stages = follow_token(loaded, reading.position, reading.ids, reading.target_inputs, reading.stack)
    token = loaded.read(reading.stack_ids[0], from_source=reading.stack == "encoder")[reading.position]
    title = f"{reading.stack}, token {token!r} at position {reading.position}: {reading.text}"
    header = ("stage", "paper", "shape", "norm", "norm of what was added", "line", "code")
    rows = [
        (stage.name, stage.section, str(stage.shape), f"{stage.norm:.2f}",
         "" if stage.update_norm is None else f"{stage.update_norm:.2f}", stage.place, Code(stage.code))
        for stage in reversed(stages)
    ]  # fmt: skip
    return show_figure(draw_stages(stages, title), title), show_table(header, rows)


def show_self_attention(loaded: LoadedModel, reading: Reading, layer: int) -> str:
    """The self-attention of a layer, one map per head."""
    kind = f"{reading.stack} self-attention" if loaded.is_translator else "self-attention"
    weights = compute_attention(loaded, reading.ids, reading.target_inputs)[kind]
    figure = draw_layer(loaded, kind, weights, layer, reading.text, reading.ids, reading.target_inputs)
    return show_figure(figure, f"{kind}, layer {layer}: {reading.text}")


def build_inside_view(models: dict[str, LoadedModel], tab: gr.Tab) -> None:
    """Add the view to a page.

    Args:
        models: of both families, by name.
        tab: its first text is read when it is opened.
    """
    gr.Markdown(
        "One token's way from its embedding to the head. Click another token to follow it. Beside each block stand "
        "the vector's norm and what the head would predict there (the logit lens). An encoder-decoder reads its own "
        "greedy translation in the decoder. It never applies the head in its encoder: there, the words show whose "
        "embeddings are near."
    )
    names = list(models)
    first = models[names[0]]
    with gr.Row():
        name = gr.Dropdown(names, value=names[0], label="model", min_width=280)
        stack = gr.Radio(["decoder", "encoder"], value="decoder", label="stack", visible=first.is_translator)
    text = make_text("text", "A dog runs through the snow.")
    button = gr.Button("Read", variant="primary")
    reading = gr.State()
    tokens = make_tokens("tokens: click one to follow it", show_legend=False)
    stages = gr.HTML()
    gr.Markdown("### Shapes and lines of code")
    table = gr.HTML()
    gr.Markdown("### Self-attention by head")
    layer = gr.Dropdown(_layers(first, "decoder"), value=0, label="layer")
    attention = gr.HTML()

    def on_name(name):
        return gr.Radio(value="decoder", visible=models[name].is_translator)

    def on_read(name, text, stack):
        with errors_as_messages():
            loaded = models[name]
            new = read(name, loaded, text, stack)
            shown = loaded.read(new.stack_ids[0], from_source=new.stack == "encoder")
            picture, rows = show_stages(loaded, new)
            return (
                new,
                [(token, NO_PROBABILITY) for token in shown],
                picture,
                rows,
                gr.Dropdown(_layers(loaded, new.stack), value=0),
                show_self_attention(loaded, new, 0),
            )

    def on_token(reading, event: gr.SelectData):
        with errors_as_messages():
            reading.position = event.index
            return reading, *show_stages(models[reading.name], reading)

    def on_layer(reading, layer):
        with errors_as_messages():
            return "" if reading is None else show_self_attention(models[reading.name], reading, int(layer))

    outputs = [reading, tokens, stages, table, layer, attention]
    for event in (button.click, text.submit, stack.input, tab.select):
        event(on_read, [name, text, stack], outputs, api_name=False)
    name.input(on_name, name, stack, api_name=False).then(on_read, [name, text, stack], outputs, api_name=False)
    tokens.select(on_token, reading, [reading, stages, table], api_name=False)
    layer.input(on_layer, [reading, layer], attention, api_name=False)


def _layers(loaded: LoadedModel, stack: str) -> list[int]:
    config = loaded.model.config
    if not loaded.is_translator:
        return list(range(config.num_hidden_layers))
    return list(range(config.encoder_layers if stack == "encoder" else config.decoder_layers))
