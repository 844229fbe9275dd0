# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""The view Translate: the best translations, the tree of beams, attention, and a token's alternatives."""

from dataclasses import dataclass

import gradio as gr
import torch
from page import (
    LONGEST_INPUT,
    check_text,
    errors_as_messages,
    make_text,
    make_tokens,
    shade_tokens,
    show_figure,
    show_table,
)

from hf_scratch.explaining import LoadedModel, Prediction, compute_attention, predict_tokens, search_beams
from hf_scratch.reporting.attention_maps import draw_layer
from hf_scratch.reporting.drawings import draw_alternatives, draw_beam_tree

LONGEST_OUTPUT = 80  # tokens
KINDS = ["cross-attention", "decoder self-attention", "encoder self-attention"]
ALL_HEADS = "all"


@dataclass
class Translation:
    """What one user sees: enough to draw it again. Each browser tab has its own."""

    text: str
    ids: torch.Tensor
    target_ids: torch.Tensor
    predictions: list[Prediction]


def translate(loaded: LoadedModel, text: str, num_beams: int) -> tuple[Translation, str, list, str]:
    """A translation, its n best as a table, its shaded tokens, and its tree."""
    ids = loaded.encode(check_text(text), LONGEST_INPUT)
    tree = search_beams(loaded, ids, int(num_beams), LONGEST_OUTPUT)
    translation = Translation(text, ids, tree.sequences[0][None], predict_tokens(loaded, ids, tree.sequences[0][None]))
    best = enumerate(zip(tree.texts, tree.scores, strict=True), 1)
    rows = [(place, words or "(no words)", f"{score:.4f}") for place, (words, score) in best]
    table = show_table(("#", "translation", "score [nats per token]"), rows)
    picture = show_figure(draw_beam_tree(tree, f"tree of beams: {text}"), f"The tree of beams of: {text}")
    return translation, table, shade_tokens([], translation.predictions), picture


def show_attention(loaded: LoadedModel, translation: Translation, kind: str, layer: int, head: str) -> str:
    """The attention of a layer, of all heads or one."""
    target_inputs = translation.target_ids[:, :-1]  # nothing reads the last token
    weights = compute_attention(loaded, translation.ids, target_inputs)[kind]
    heads = None if head == ALL_HEADS else [int(head)]
    figure = draw_layer(loaded, kind, weights, int(layer), translation.text, translation.ids, target_inputs, heads)
    return show_figure(figure, f"{kind}, layer {layer}, head {head}: {translation.text}")


def show_alternatives(translation: Translation, index: int) -> str:
    """The alternatives of a token of the best translation."""
    prediction = translation.predictions[index]
    before = "".join(each.text for each in translation.predictions[:index]).replace("·", " ").strip()
    title = f"alternatives of {prediction.text!r}, after {before!r}"
    return show_figure(draw_alternatives(prediction, title), title)


def build_translate_view(loaded: LoadedModel, page: gr.Blocks) -> None:
    """Add the view to a page.

    Args:
        loaded: an encoder-decoder.
        page: translates its first sentence when it is opened.
    """
    config = loaded.model.config
    gr.Markdown(
        f"**{loaded.name}** translates with beam search. Click a token of the translation for its alternatives."
    )
    text = make_text("source", "Two women are talking on a bench in the park.")
    num_beams = gr.Slider(1, 8, value=min(loaded.model.generation_config.num_beams or 4, 8), step=1, label="beams")
    button = gr.Button("Translate", variant="primary")
    translation = gr.State()
    best = gr.HTML()
    tokens = make_tokens("best translation: each token shaded by its probability")
    alternatives = gr.HTML()
    gr.Markdown("### Tree of beams")
    tree = gr.HTML()
    gr.Markdown("### Attention")
    with gr.Row():
        kind = gr.Dropdown(KINDS, value=KINDS[0], label="attention")
        layer = gr.Dropdown(list(range(config.decoder_layers)), value=config.decoder_layers - 1, label="layer")
        head = gr.Dropdown(
            [ALL_HEADS, *map(str, range(config.decoder_attention_heads))], value=ALL_HEADS, label="head"
        )
    attention = gr.HTML()

    def on_translate(text, num_beams, kind, layer, head):
        with errors_as_messages():
            new, table, shaded, picture = translate(loaded, text, num_beams)
            return new, table, shaded, "", picture, show_attention(loaded, new, kind, layer, head)

    def on_kind(kind):
        is_encoder = kind == "encoder self-attention"
        layers = config.encoder_layers if is_encoder else config.decoder_layers
        heads = config.encoder_attention_heads if is_encoder else config.decoder_attention_heads
        return (
            gr.Dropdown(list(range(layers)), value=layers - 1),
            gr.Dropdown([ALL_HEADS, *map(str, range(heads))], value=ALL_HEADS),
        )

    def on_attention(translation, kind, layer, head):
        with errors_as_messages():
            return "" if translation is None else show_attention(loaded, translation, kind, layer, head)

    def on_token(translation, event: gr.SelectData):
        return show_alternatives(translation, event.index)

    inputs = [text, num_beams, kind, layer, head]
    outputs = [translation, best, tokens, alternatives, tree, attention]
    for event in (button.click, text.submit, page.load):
        event(on_translate, inputs, outputs, api_name=False)
    kind.input(on_kind, kind, [layer, head], api_name=False).then(
        on_attention, [translation, kind, layer, head], attention, api_name=False
    )
    for choice in (layer, head):
        choice.input(on_attention, [translation, kind, layer, head], attention, api_name=False)
    tokens.select(on_token, translation, alternatives, api_name=False)
