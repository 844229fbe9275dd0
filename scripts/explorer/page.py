# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""What the three views share: pictures and tables as HTML, shaded tokens, errors as messages."""

import base64
import html
import io
import re
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager

import gradio as gr
from matplotlib.figure import Figure

from hf_scratch.explaining import Prediction

LONGEST_TEXT = 400  # characters
LONGEST_INPUT = 64  # tokens: more do not fit into one picture
PICTURE_DPI = 160  # dots per inch, shown at 96
NO_PROBABILITY = "given"
SHADES = {"over 90%": "#2171b5", "50 to 90%": "#6baed6", "10 to 50%": "#e6b800", "1 to 10%": "#f08030",
          "under 1%": "#d03050", NO_PROBABILITY: "#9a9a9a"}  # fmt: skip
LOWER_BOUNDS = dict(zip((0.9, 0.5, 0.1, 0.01, 0.0), SHADES, strict=False))

CSS = """
.picture { overflow-x: auto; padding: 4px 0 10px }
.picture img { height: auto; margin: 0 }
.dark .picture img { filter: invert(1) hue-rotate(180deg) }
.table { overflow-x: auto; padding-bottom: 10px }
.table table { border-collapse: collapse; font-size: 14px; width: auto; border: none !important }
.table :is(th, td) { border: none !important; padding: 5px 18px 5px 0;
    text-align: left; vertical-align: top; white-space: nowrap }
.table tr { border: none !important; border-bottom: 1px solid var(--border-color-primary) !important }
.table td.words { white-space: normal; min-width: 9em; overflow-wrap: anywhere }
.table code { white-space: pre; font-size: 12px }
.table td.number { text-align: right; font-variant-numeric: tabular-nums }
.dark .tokens :is(.token, .legend-item) { color: white !important }
.tokens .legend-item { font-weight: normal }
"""


class Code(str):
    """A table's cell that is a line of code."""


@contextmanager
def errors_as_messages() -> Generator[None]:
    """Show a wrong input as a message in the page. Other errors are bugs, and keep their traceback."""
    try:
        yield
    except ValueError as error:
        raise gr.Error(str(error), print_exception=False) from error


def check_text(text: str) -> str:
    """Return the text, unless it is too long.

    Raises:
        ValueError: it is longer than LONGEST_TEXT. The text box stops there, but other clients may not.
    """
    if len(text) > LONGEST_TEXT:
        raise ValueError(f"The text has {len(text)} characters, but at most {LONGEST_TEXT} are taken. Shorten it.")
    return text


def show_figure(figure: Figure, description: str) -> str:
    """A figure as HTML. It shrinks a little to fit the page. On a narrow page it scrolls."""
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=PICTURE_DPI, transparent=True)
    data = base64.b64encode(file.getvalue()).decode()
    width = round(figure.get_size_inches()[0] * 96)
    style = f"width: {width}px; max-width: 100%; min-width: {0.75 * width:.0f}px"  # smaller letters are illegible
    image = f'<img alt="{html.escape(description)}" style="{style}" src="data:image/png;base64,{data}">'
    return f'<div class="picture" tabindex="0">{image}</div>'


def show_table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table as HTML: numbers to the right, code in the font of code."""

    def show_cell(cell: object) -> str:
        text = html.escape(str(cell))
        if isinstance(cell, Code):
            return f"<td><code>{text}</code></td>"
        if re.fullmatch(r"-?[\d.]+", text):
            return f'<td class="number">{text}</td>'
        # short names stay on one line, sentences do not
        return f'<td class="words">{text}</td>' if len(text) > 40 else f"<td>{text}</td>"

    head = "".join(f"<th>{html.escape(name)}</th>" for name in header)
    body = "".join(f"<tr>{''.join(map(show_cell, row))}</tr>" for row in rows)
    return f'<div class="table" tabindex="0"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def shade_tokens(given: Sequence[str], predictions: Sequence[Prediction]) -> list[tuple[str, str | None]]:
    """Tokens for `make_tokens`: those that were given, then predicted ones with the range of their probability."""
    shades = [
        next(shade for bound, shade in LOWER_BOUNDS.items() if each.probability >= bound) for each in predictions
    ]
    return [(text, NO_PROBABILITY) for text in given] + [
        (each.text, shade) for each, shade in zip(predictions, shades, strict=True)
    ]


def make_tokens(label: str, show_legend: bool = True) -> gr.HighlightedText:
    """Tokens that can be clicked, shaded by their probability."""
    return gr.HighlightedText(
        label=label,
        color_map=SHADES,
        show_legend=show_legend,
        show_inline_category=False,
        combine_adjacent=False,
        elem_classes="tokens",
    )


def make_text(label: str, value: str) -> gr.Textbox:
    """A text box of limited length."""
    return gr.Textbox(value, label=label, lines=2, max_lines=4, max_length=LONGEST_TEXT)
