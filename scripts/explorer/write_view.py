# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""The view Write: streamed text shaded by probability, and what temperature and top-p do to the distribution."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import gradio as gr
import torch
from page import LONGEST_INPUT, check_text, errors_as_messages, make_text, make_tokens, shade_tokens, show_figure

from hf_scratch.explaining import LoadedModel, Prediction, write_tokens
from hf_scratch.explaining.probabilities import make_prediction
from hf_scratch.reporting.drawings import draw_alternatives

LONGEST_OUTPUT = 120  # tokens


@dataclass
class Story:
    """What one user sees: the prompt's ids, and the tokens behind it. Each browser tab has its own."""

    ids: torch.Tensor
    written: list[Prediction] = field(default_factory=list)
    selected: int = 0  # the written token whose distribution is shown


def write(loaded: LoadedModel, text: str, max_new_tokens: int, seed: int, **shape) -> Iterator[Story]:
    """Yield the story after each token."""
    ids = loaded.encode(check_text(text), LONGEST_INPUT)
    story = Story(ids)
    for prediction in write_tokens(loaded, ids, int(max_new_tokens), seed=int(seed), **shape):
        story.written.append(prediction)
        yield story


@torch.no_grad()
def show_distribution(loaded: LoadedModel, story: Story, temperature: float, top_k: int, top_p: float) -> str:
    """The distribution of the selected token: the model's, and the one that these options draw from."""
    tokens = [each.token for each in story.written]
    before = torch.cat([story.ids, torch.tensor([tokens[: story.selected]], dtype=torch.long)], dim=1)
    logits = loaded.model(input_ids=before, logits_to_keep=1).logits[0, -1]
    shape = {"temperature": temperature or 1.0, "top_k": int(top_k), "top_p": top_p}
    prediction = make_prediction(loaded, logits, tokens[story.selected], **shape)
    if temperature == 0:  # only the likeliest token can come
        for i, each in enumerate(prediction.alternatives):
            each.shaped = float(i == 0)
    options = f"temperature {temperature:g}, top-k {int(top_k) or 'off'}, top-p {top_p:g}"
    title = f"token {story.selected + 1}, {prediction.text!r}: the model's probabilities, and after {options}"
    return show_figure(draw_alternatives(prediction, title), title)


def build_write_view(loaded: LoadedModel) -> None:
    """Add the view to a page.

    Args:
        loaded: a GPT.
    """
    gr.Markdown(
        f"**{loaded.name}** continues a text. Click a token for its ten likeliest alternatives, then move the "
        "sliders: the picture shows what they do to its distribution. The same seed writes the same text."
    )
    text = make_text("text to continue", "Once upon a time")
    with gr.Row():
        temperature = gr.Slider(0, 2, value=0.8, step=0.05, label="temperature")
        top_p = gr.Slider(0.05, 1, value=0.9, step=0.05, label="top-p")
        top_k = gr.Slider(0, 50, value=0, step=1, label="top-k (0: off)")
    with gr.Row():
        max_new_tokens = gr.Slider(1, LONGEST_OUTPUT, value=60, step=1, label="new tokens")
        seed = gr.Number(0, precision=0, minimum=0, maximum=2**31 - 1, label="seed")
    with gr.Row():
        button = gr.Button("Write", variant="primary")
        stop = gr.Button("Stop")
    story = gr.State()
    tokens = make_tokens("text: each token shaded by its probability")
    distribution = gr.HTML()

    def on_write(text, max_new_tokens, seed, temperature, top_k, top_p):
        with errors_as_messages():
            shape = {"temperature": temperature, "top_k": int(top_k), "top_p": top_p}
            given = None
            for current in write(loaded, text, max_new_tokens, seed, **shape):
                given = given or loaded.read(current.ids[0])
                yield current, shade_tokens(given, current.written), gr.skip()
            yield current, gr.skip(), show_distribution(loaded, current, **shape)

    def on_token(story, temperature, top_k, top_p, event: gr.SelectData):
        if event.index < story.ids.shape[1]:
            gr.Info("This token was given. Click one that the model wrote.")  # an error would cover the picture
            return story, gr.skip()
        story.selected = event.index - story.ids.shape[1]
        return story, show_distribution(loaded, story, temperature, top_k, top_p)

    def on_slider(story, temperature, top_k, top_p):
        return (
            "" if story is None or not story.written else show_distribution(loaded, story, temperature, top_k, top_p)
        )

    shape = [temperature, top_k, top_p]
    inputs, outputs = [text, max_new_tokens, seed, *shape], [story, tokens, distribution]
    events = [event(on_write, inputs, outputs, api_name=False) for event in (button.click, text.submit)]
    stop.click(None, cancels=events, api_name=False)
    tokens.select(on_token, [story, *shape], [story, distribution], api_name=False)
    for slider in shape:
        slider.release(on_slider, [story, *shape], distribution, show_progress="hidden", api_name=False)
