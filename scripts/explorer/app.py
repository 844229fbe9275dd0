#!/usr/bin/env python
# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Show in a browser what a model does with one sentence: beams, attention, probabilities, a token's way.

python scripts/explorer/app.py [--model DIR [DIR ...]]

Without --model it shows two published models. The page is served on 127.0.0.1, and asks no other machine.
"""

from dataclasses import dataclass, field
from pathlib import Path

import gradio as gr
from inside_view import build_inside_view
from page import CSS
from transformers import HfArgumentParser
from translate_view import build_translate_view
from write_view import build_write_view

from hf_scratch.errors import command, preparation
from hf_scratch.explaining import LoadedModel, load_model

HERE = Path(__file__).resolve().parent
PUBLISHED = ("scratch-transformer-multi30k-en-de", "scratch-gpt-tinystories")
USERS = 8  # who are answered at once; others wait
# fonts of the reader's machine: the page works without network
THEME = gr.themes.Default(font=["system-ui", "sans-serif"], font_mono=["ui-monospace", "monospace"])


@dataclass
class ExplorerArguments:
    """The options of app.py."""

    model: list[str] = field(
        default_factory=list,
        metadata={"help": "Folders or Hub ids of our models, of either family. Default: two published models."},
    )
    port: int | None = field(
        default=None, metadata={"help": "The page's port. Default: the first free one from 7860."}
    )


def find_published() -> list[Path]:
    """The published models: beside this file in a Space, in `model_cards` in the repository.

    Raises:
        ValueError: they are in neither place.
    """
    for folder in (HERE / "model_cards", HERE.parent.parent / "model_cards"):
        if all((folder / name / "config.json").is_file() for name in PUBLISHED):
            return [folder / name for name in PUBLISHED]
    raise ValueError("The published models are not here. Name a model's folder: --model DIR.")


def name_models(models: list[LoadedModel]) -> dict[str, LoadedModel]:
    """The models by name; of two with one name, the second is "name (2)"."""
    names = [loaded.name for loaded in models]
    counts = [names[: i + 1].count(name) for i, name in enumerate(names)]
    return {
        name if count == 1 else f"{name} ({count})": loaded
        for name, count, loaded in zip(names, counts, models, strict=True)
    }


def build_page(models: list[LoadedModel]) -> gr.Blocks:
    """The page, with the views that these models have.

    Args:
        models: the first of each family translates or writes; Inside shows all.
    """
    translator = next((loaded for loaded in models if loaded.is_translator), None)
    writer = next((loaded for loaded in models if not loaded.is_translator), None)
    with gr.Blocks(title="hf_scratch explorer", analytics_enabled=False) as page:
        gr.Markdown(
            "# hf_scratch explorer\nWhat a Transformer does with one sentence. In a token, · stands for a space."
        )
        if translator is not None:
            with gr.Tab("Translate"):
                build_translate_view(translator, page)
        if writer is not None:
            with gr.Tab("Write"):
                build_write_view(writer)
        with gr.Tab("Inside") as tab:
            build_inside_view(name_models(models), tab)
    return page.queue(default_concurrency_limit=USERS, max_size=8 * USERS)


@command
def main():
    with preparation():
        (args,) = HfArgumentParser(ExplorerArguments).parse_args_into_dataclasses()
        page = build_page([load_model(path) for path in args.model or find_published()])
    # server_name is 127.0.0.1 unless GRADIO_SERVER_NAME, which a Space sets, says otherwise
    page.launch(server_port=args.port, share=False, ssr_mode=False, theme=THEME, css=CSS, footer_links=["settings"])


if __name__ == "__main__":
    main()
