# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""A batch as a model sees it: tokens, shifted labels, positions, and what each position attends to."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.masking_utils import create_bidirectional_mask, create_causal_mask

IGNORED = -100


def attention_masks(model: PreTrainedModel, batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The masks that transformers makes for a batch, as the model's `forward` asks for them.

    Args:
        model: a causal language model or an encoder-decoder. Its attention becomes "eager", since only then is a mask
            always a tensor.
        batch: what the model is called with.

    Returns:
        For each attention, "encoder", "decoder" and "cross", or "decoder" alone, the mask (batch, queries, keys), True
        where a query may attend to a key.
    """
    model.set_attn_implementation("eager")
    config, padding = model.config, batch.get("attention_mask")
    source = torch.zeros(*batch["input_ids"].shape, config.hidden_size)  # read for its shape alone
    if not config.is_encoder_decoder:
        positions = batch.get("position_ids")
        mask = create_causal_mask(
            config=config, inputs_embeds=source, attention_mask=padding, cache=None, position_ids=positions
        )
        return {"decoder": _allowed(mask, source, source)}
    target = torch.zeros(*batch["labels"].shape, config.hidden_size)
    target_padding = batch.get("decoder_attention_mask")
    encoder = create_bidirectional_mask(config=config, inputs_embeds=source, attention_mask=padding)
    decoder = create_causal_mask(config=config, inputs_embeds=target, attention_mask=target_padding, cache=None)
    cross = create_bidirectional_mask(
        config=config, inputs_embeds=target, attention_mask=padding, encoder_hidden_states=source
    )
    return {
        "encoder": _allowed(encoder, source, source),
        "decoder": _allowed(decoder, target, target),
        "cross": _allowed(cross, target, source),
    }


def format_batch(
    model: PreTrainedModel,
    batch: Mapping[str, torch.Tensor],
    read_source: Callable[[int], str],
    read_target: Callable[[int], str] | None = None,
    rows: Iterable[int] = (0,),
) -> str:
    """Tables of a batch's rows, one line per position, below the shapes of its tensors.

    Args:
        model: see `attention_masks`.
        batch: tensors on the CPU, with `input_ids` and `labels`.
        read_source: the text of a token's id.
        read_target: the same for the target of an encoder-decoder. Default: `read_source`.
        rows: the rows to show.
    """
    read_target = read_target or read_source
    masks = attention_masks(model, batch)
    shapes = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in batch.items())
    text = [f"The batch: {shapes}"]
    for row in rows:
        if model.config.is_encoder_decoder:
            text.append(_format_pair(model, batch, masks, row, read_source, read_target))
        else:
            text.append(_format_text(batch, masks["decoder"], row, read_source))
    return "\n\n".join(text)


def format_training_batch(trainer: Any) -> str:
    """The first row of a training batch, as `format_batch` shows it.

    Args:
        trainer: a Trainer with a tokenizer. Its own data loader makes the batch, and its model moves to the CPU.
    """
    model, tokenizer = trainer.model.cpu(), trainer.processing_class
    batch = next(iter(trainer.get_train_dataloader()))
    batch = {name: tensor.cpu() for name, tensor in batch.items() if torch.is_tensor(tensor)}
    return format_batch(model, batch, lambda token: tokenizer.decode([token]))


def _allowed(mask: Any, queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """An eager mask (batch or 1, 1, queries, keys) of 0 and large negative numbers as booleans; None allows all."""
    shape = (queries.shape[0], queries.shape[1], keys.shape[1])
    return torch.ones(shape, dtype=torch.bool) if mask is None else (mask[:, 0] == 0).expand(shape)


def _format_text(batch: Mapping, allowed: torch.Tensor, row: int, read: Callable[[int], str]) -> str:
    ids, labels = batch["input_ids"][row].tolist(), batch["labels"][row].tolist()
    positions = batch["position_ids"][row].tolist() if "position_ids" in batch else list(range(len(ids)))
    # the head compares the scores of a place with the label of the next place
    predicted = [*labels[1:], IGNORED]
    columns = zip(ids, positions, labels, predicted, allowed[row], strict=True)
    lines = [
        (i, repr(read(token)), token, position, label, _read_label(following, read), _ranges(seen))
        for i, (token, position, label, following, seen) in enumerate(columns)
    ]
    header = ("place", "token", "id", "position", "label", "predicts", "attends to")
    title = f"Row {row}. The model shifts the labels: it predicts the label of the next place."
    return f"{title}\n{_align(header, lines)}"


def _format_pair(model, batch: Mapping, masks: Mapping, row: int, read_source: Callable, read_target: Callable) -> str:
    ids, labels = batch["input_ids"][row].tolist(), batch["labels"][row].tolist()
    inputs = batch.get("decoder_input_ids")
    if inputs is None:
        inputs = model.prepare_decoder_input_ids_from_labels(batch["labels"])
    inputs = inputs[row].tolist()
    source = [
        (i, repr(read_source(token)), token, _ranges(seen))
        for i, (token, seen) in enumerate(zip(ids, masks["encoder"][row], strict=True))
    ]
    columns = zip(inputs, labels, masks["decoder"][row], masks["cross"][row], strict=True)
    target = [
        (i, repr(read_target(token)), token, label, _read_label(label, read_target), _ranges(before), _ranges(seen))
        for i, (token, label, before, seen) in enumerate(columns)
    ]
    source_header = ("position", "source", "id", "attends to")
    target_header = ("position", "decoder input", "id", "label", "predicts", "attends to", "in the source")
    return (
        f"Row {row}, the source:\n{_align(source_header, source)}\n\n"
        f"Row {row}, the target. The decoder's input is the labels shifted right:\n{_align(target_header, target)}"
    )


def _read_label(label: int, read: Callable[[int], str]) -> str:
    return "nothing" if label == IGNORED else repr(read(label))


def _ranges(allowed: torch.Tensor) -> str:
    """The indices of True as ranges: "0-3, 7"."""
    indices, parts = allowed.nonzero()[:, 0].tolist(), []
    for i in indices:
        if parts and parts[-1][1] == i - 1:
            parts[-1][1] = i
        else:
            parts.append([i, i])
    return ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in parts) or "nothing"


def _align(header: Sequence[str], lines: Iterable[Sequence]) -> str:
    """Lines of cells in columns: numbers to the right, texts to the left."""
    lines = list(lines)
    cells = [list(header), *([str(cell) for cell in line] for line in lines)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(header))]
    numeric = [all(isinstance(line[i], int) for line in lines) for i in range(len(header))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, numeric, strict=True)
        ).rstrip()
        for line in cells
    )
