#!/usr/bin/env python
# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Walk one batch through a model: every shape beside its line of code, the masks, the positions, and the loss by hand.

python scripts/walkthrough.py
python scripts/walkthrough.py --model DIR --text "A dog runs through the snow."

Without a model, it is the small example of the article paper-seq2seq: 2 sentences, 4 tokens, width 8, 2 heads.
"""

import inspect
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, PreTrainedModel

from hf_scratch import ScratchTransformerForConditionalGeneration
from hf_scratch.convert import make_preset
from hf_scratch.errors import command, preparation
from hf_scratch.explaining.shapes import format_lines, record_shapes
from hf_scratch.loading import check_fits, find_model, load_checkpoint, load_tokenizer
from hf_scratch.models.scratch_layers import SinusoidalPositionalEmbedding
from hf_scratch.reporting.batches import attention_masks, format_batch
from hf_scratch.reporting.plots import plot_masks, plot_sine_curves
from hf_scratch.training.parsing import parse_arguments

# The ids of a word are its places in these lists. Id 1 is padding, as in the article.
ENGLISH = ["<s>", "<pad>", "</s>", "dogs", "birds", "cannot", "fly", "sing", "cats", "swim"]
GERMAN = ["<s>", "<pad>", "</s>", "Hunde", "Vögel", "können", "nicht", "fliegen", "singen", "Katzen"]
SOURCES = ["dogs cannot fly </s>", "birds sing </s> <pad>"]
TARGETS = ["Hunde können nicht fliegen </s>", "Vögel singen </s> <pad> <pad>"]
POSITIONS = 50
MARKDOWN = """# Walk-through of one batch

Written by `python scripts/walkthrough.py --markdown scripts/walkthrough.md`.

```
{text}
```
"""


@dataclass
class WalkthroughArguments:
    """The options of walkthrough.py."""

    model: str | None = field(
        default=None, metadata={"help": "A folder or Hub id of one of our models. Default: the small example."}
    )
    text: str | None = field(default=None, metadata={"help": "What the model reads."})
    output_dir: str = field(default="runs/walkthrough", metadata={"help": "Folder for the pictures."})
    markdown: str | None = field(default=None, metadata={"help": "Also write the output into this Markdown file."})

    def __post_init__(self):
        if (self.model is None) != (self.text is None):
            raise ValueError("Give `model` and `text` together, or neither of them.")


@dataclass
class Example:
    """A model, a batch for it, and the texts of its tokens.

    Args:
        model: in evaluation mode, with eager attention.
        batch: `input_ids`, `attention_mask` and `labels`, each (batch, length).
        read_source: the text of an id in `input_ids`.
        read_target: the text of an id in `labels`.
    """

    model: PreTrainedModel
    batch: dict[str, torch.Tensor]
    read_source: Callable[[int], str]
    read_target: Callable[[int], str]


def make_example() -> Example:
    """The sizes of the article paper-seq2seq, with one layer in each stack and random weights."""
    torch.manual_seed(0)
    config = make_preset(
        "paper-seq2seq", vocab_size=10, d_model=8, n_head=2, hidden_dim=16, num_layers=1, max_len=POSITIONS
    )
    config.decoder_start_token_id = ENGLISH.index("<s>")
    model = ScratchTransformerForConditionalGeneration(config).eval()
    model.set_attn_implementation("eager")
    ids = torch.tensor([[ENGLISH.index(word) for word in source.split()] for source in SOURCES])
    labels = torch.tensor([[GERMAN.index(word) for word in target.split()] for target in TARGETS])
    pad = config.pad_token_id
    batch = {
        "input_ids": ids,
        "attention_mask": (ids != pad).long(),
        "labels": labels.masked_fill(labels == pad, -100),
    }
    return Example(model, batch, ENGLISH.__getitem__, GERMAN.__getitem__)


def load_example(path: str, text: str) -> Example:
    """A saved model that reads `text`. An encoder-decoder's labels are its own greedy translation.

    Raises:
        ValueError: see `load_checkpoint`, `load_tokenizer` and `check_fits`; or the model is not one of ours, or the
            text is no token or too long.
    """
    config = AutoConfig.from_pretrained(find_model(path))
    if config.model_type not in ("scratch_gpt", "scratch_transformer"):
        raise ValueError(f"`model` is {path!r}, a {config.model_type!r} model; the walk-through shows our code alone.")
    auto_class = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    model = load_checkpoint(auto_class, path, dtype="float32", attn_implementation="eager").eval()
    tokenizer = load_tokenizer(path)
    check_fits(tokenizer, config)
    encoded = tokenizer(text, return_tensors="pt")
    ids, mask = encoded["input_ids"], encoded["attention_mask"]
    if ids.shape[1] < 2 or not text:
        raise ValueError(f"`text` is {text!r}, which leaves nothing to predict.")
    labels = ids
    if config.is_encoder_decoder:
        labels = model.generate(ids, attention_mask=mask, do_sample=False, num_beams=1)[:, 1:]
    batch = {"input_ids": ids, "attention_mask": mask, "labels": labels}
    return Example(model, batch, *[lambda token: tokenizer.decode([token])] * 2)


def padding_mask(attention_mask: torch.Tensor) -> torch.Tensor:
    """(batch, length), 0 on padding -> (batch, 1, length): no query attends to padding."""
    return attention_mask[:, None, :] == 1


def no_peek_mask(length: int) -> torch.Tensor:
    """(length, length): a query attends to itself and to what stands before it."""
    return torch.ones(length, length).tril() == 1


def cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """-log softmax(logits)[label] of each label that is not -100: (batch, length, tokens) -> (labels)."""
    scores, labels = logits[labels != -100].double(), labels[labels != -100]
    return scores.exp().sum(-1).log() - scores[torch.arange(len(labels)), labels]


def code_of(function: Callable) -> str:
    """The body of a function, without its docstring."""
    body = inspect.getsource(function).split('"""\n')[-1]
    return textwrap.indent(textwrap.dedent(body).rstrip(), "  ")


def show_grid(mask: torch.Tensor) -> str:
    """A mask (queries, keys) as lines of 1 and 0."""
    return "\n".join("  " + " ".join(str(int(allowed)) for allowed in row) for row in mask)


def show_masks(example: Example, output_dir: str) -> str:
    """Our masks beside the library's, and their picture."""
    model, batch = example.model, example.batch
    library = attention_masks(model, batch)
    keys = batch["attention_mask"]
    length = batch["labels"].shape[1]
    row = len(keys) - 1  # the last row: in the example it has padding
    if model.config.is_encoder_decoder:
        ours = {"encoder": padding_mask(keys), "decoder": no_peek_mask(length), "cross": padding_mask(keys)}
    else:
        is_causal = model.config.is_causal
        ours = {"decoder": padding_mask(keys) & no_peek_mask(length) if is_causal else padding_mask(keys)}
    made = {
        "encoder": "create_bidirectional_mask",
        "decoder": "create_causal_mask",
        "cross": "create_bidirectional_mask",
    }
    parts = [
        f"padding_mask(attention_mask), {tuple(padding_mask(keys).shape)}; row {row}, 1 where a query may attend:",
        f"{code_of(padding_mask)}\n",
        show_grid(padding_mask(keys)[row]),
        f"\nno_peek_mask({length}), {tuple(no_peek_mask(length).shape)}; queries down, keys across:",
        f"{code_of(no_peek_mask)}\n",
        show_grid(no_peek_mask(length)) + "\n",
    ]
    for name, mask in ours.items():
        is_equal = bool((mask == library[name]).all())
        parts.append(f"The {name} mask {tuple(library[name].shape)} equals {made[name]}'s: {is_equal}")
    inputs = model.prepare_decoder_input_ids_from_labels(batch["labels"]) if "cross" in ours else batch["input_ids"]
    targets = [example.read_target(token) for token in inputs[row].tolist()]
    sources = [example.read_source(token) for token in batch["input_ids"][row].tolist()]
    sides = {"encoder": (sources, sources), "decoder": (targets, targets), "cross": (targets, sources)}
    picture = plot_masks({name: (library[name][row], *sides[name]) for name in ours}, output_dir)
    return "\n".join([*parts, f"Picture: {picture}"])


def show_positions(model: PreTrainedModel, output_dir: str) -> str:
    """The first rows of the table of positions, and its curves."""
    stack = model.get_decoder()
    positions = stack.embed_positions
    if not isinstance(positions, SinusoidalPositionalEmbedding):
        return f"This model has learned its positions: {tuple(positions.weight.shape)}, positions by width."
    table = positions.make_table()
    rows = "\n".join("  " + " ".join(f"{value:6.3f}" for value in row[:8]) for row in table[:4])
    body = code_of(SinusoidalPositionalEmbedding.make_table)
    head = f"make_table in layers.py, {tuple(table.shape)}: the first {min(8, table.shape[1])} columns of 4 positions"
    return f"{head}\n{body}\n\n{rows}\n\nPicture: {plot_sine_curves(table[:POSITIONS], output_dir)}"


def show_loss(example: Example, outputs) -> str:
    """Each label's cross-entropy by hand, and their mean beside the model's loss."""
    logits, labels = outputs.logits, example.batch["labels"]
    if not example.model.config.is_encoder_decoder:
        logits, labels = logits[:, :-1], labels[:, 1:]  # a place predicts the next one
    losses = cross_entropy(logits, labels)
    lines = [
        f"  {example.read_target(label)!r:12} probability {(-loss).exp():.4f}, -log is {loss:.4f}"
        for label, loss in zip(labels[labels != -100].tolist(), losses, strict=True)
    ]
    is_equal = torch.allclose(losses.mean(), outputs.loss.double(), atol=1e-5)
    mean = (
        f"The mean of {len(losses)} labels: {losses.mean():.4f} nats per token. The model's loss: {outputs.loss:.4f}."
    )
    return "\n".join([code_of(cross_entropy), "", *lines, "", f"{mean} Equal: {is_equal}"])


@torch.no_grad()
def walk(example: Example, output_dir: str) -> str:
    """All steps, as text; draws the pictures into `output_dir`."""
    model, batch = example.model, example.batch
    outputs = []
    lines = record_shapes(model, lambda: outputs.append(model(**batch, use_cache=False, output_attentions=True)))
    parts = {
        "The batch": format_batch(model, batch, example.read_source, example.read_target, range(len(batch["labels"]))),
        "Every shape, beside the line of code that makes it": format_lines(lines),
        "The masks": show_masks(example, output_dir),
        "The positions": show_positions(model, output_dir),
        "The loss by hand": show_loss(example, outputs[0]),
    }
    return "\n\n".join(f"{i}. {title}\n\n{text}" for i, (title, text) in enumerate(parts.items(), 1))


@command
def main():
    with preparation():
        (args,), _ = parse_arguments(WalkthroughArguments)
        Path(args.output_dir).mkdir(parents=True, exist_ok=True)
        example = make_example() if args.model is None else load_example(args.model, args.text)
        text = walk(example, args.output_dir)
    print(text)
    if args.markdown is not None:
        Path(args.markdown).write_text(MARKDOWN.format(text=text), encoding="utf-8")


if __name__ == "__main__":
    main()
