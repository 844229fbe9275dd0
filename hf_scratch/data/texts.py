# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Texts for language modelling: take their column, and pack them into rows of one length."""

import math
from itertools import accumulate, chain

from datasets import Dataset

from .columns import check_texts, count_processes


def take_texts(rows: Dataset, text_column: str = "text", name: str = "the data") -> Dataset:
    """Take the column of texts out of `rows`.

    Args:
        rows: the rows.
        text_column: the column's name.
        name: what errors call the rows.

    Returns:
        Rows with the one column "text".

    Raises:
        ValueError: there is no such column, or a row has no text or something else in it.
    """
    if text_column not in rows.column_names:
        raise ValueError(
            f"`text_column` is {text_column!r}, but the columns of {name} are {', '.join(rows.column_names)}."
        )
    check_texts(rows, text_column, name)
    texts = rows.select_columns([text_column])
    return texts if text_column == "text" else texts.rename_column(text_column, "text")


def pack_texts(
    texts: Dataset,
    tokenizer,
    block_size: int,
    attend_across_texts: bool = False,
    name: str = "the data",
    num_proc: int | None = None,
) -> Dataset:
    """Pack texts, each as `<s> text </s>`, end to end into rows of `block_size` tokens. Nothing is dropped.

    A row begins with the last token of the row before, so that every token is predicted exactly once. The last row of
    each 1,000 texts is padded.

    Args:
        texts: rows with the column "text".
        tokenizer: encodes a text as `<s> text`.
        block_size: tokens per row.
        attend_across_texts: whether the texts in a row see each other. If not, `position_ids` start again at 0 with
            each text, from which transformers makes a mask that keeps texts apart, and a text's first token is not
            predicted.
        name: what the progress bar calls the texts.
        num_proc: processes; the result does not depend on them.

    Returns:
        Rows of `input_ids`, `labels` (-100 where nothing is predicted) and, unless `attend_across_texts`,
        `position_ids`; each a list of `block_size` ints.

    Raises:
        ValueError: `block_size` is below 2.
    """
    if block_size < 2:
        raise ValueError(f"`block_size` must be at least 2, got {block_size}.")

    def pack(batch: dict) -> dict:
        rows = tokenizer(batch["text"], verbose=False)["input_ids"]  # texts may be longer than a row: no warning
        ids = [[*row, tokenizer.eos_token_id] for row in rows]
        stream = list(chain.from_iterable(ids))
        first = set(accumulate((len(row) for row in ids[:-1]), initial=0))
        rows = {"input_ids": [], "labels": [], "position_ids": []}
        for begin in range(0, max(len(stream) - 1, 1), block_size - 1):
            row = stream[begin : begin + block_size]
            new_text = [begin + i in first for i in range(len(row))]
            position, positions = -1, []
            for is_new in new_text:
                position = 0 if is_new else position + 1
                positions.append(position)
            visible_labels = [
                -100 if is_new and not attend_across_texts else i for is_new, i in zip(new_text, row, strict=True)
            ]
            padding = block_size - len(row)
            rows["input_ids"].append(row + [tokenizer.pad_token_id] * padding)
            rows["labels"].append(visible_labels + [-100] * padding)
            rows["position_ids"].append(positions + [0] * padding)
        if attend_across_texts:
            del rows["position_ids"]
        return rows

    # The last row of each 1,000 texts is padded, so that a large set streams through memory.
    size, description = 1000, f"{name}: packing"
    processes = count_processes(num_proc, math.ceil(len(texts) / size))
    if processes is None:
        return texts.map(pack, batched=True, batch_size=size, remove_columns=texts.column_names, desc=description)
    # `map` would give each process an equal share of the texts, which is no multiple of 1,000: share the thousands.
    begins = Dataset.from_dict({"begin": range(0, len(texts), size)})
    return begins.map(
        lambda batch: pack(texts[batch["begin"][0] : batch["begin"][0] + size]),
        batched=True,
        batch_size=1,
        remove_columns=["begin"],
        num_proc=processes,
        desc=description,
    )
