# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Texts for language modelling: take their column, and pack them into rows of one length."""

import math
from collections.abc import Sequence
from itertools import accumulate, chain

from datasets import Dataset

from .columns import check_texts, count_processes


def take_texts(
    rows: Dataset, text_column: str = "text", name: str = "the data", prompt_column: str | None = None
) -> Dataset:
    """Take the column of texts out of `rows`, and with `prompt_column` the prompts that the texts answer.

    Args:
        rows: the rows.
        text_column: the column's name.
        name: what errors call the rows.
        prompt_column: the name of the column with the prompts.

    Returns:
        Rows with the column "text". With prompts, "text" is the prompt followed by its answer, and there are two more
        columns, "prompt" and "answer".

    Raises:
        ValueError: there is no such column, or a row has no text or something else in it.
    """
    for option, column in (("text_column", text_column), ("prompt_column", prompt_column)):
        if column is not None and column not in rows.column_names:
            raise ValueError(
                f"`{option}` is {column!r}, but the columns of {name} are {', '.join(rows.column_names)}."
            )
        if column is not None:
            check_texts(rows, column, name)
    if prompt_column is not None:
        prompts, answers = list(rows[prompt_column]), list(rows[text_column])
        texts = [prompt + answer for prompt, answer in zip(prompts, answers, strict=True)]
        return Dataset.from_dict({"text": texts, "prompt": prompts, "answer": answers})
    texts = rows.select_columns([text_column])
    return texts if text_column == "text" else texts.rename_column(text_column, "text")


def end_id(tokenizer) -> int:
    """The id that ends a text: the tokenizer's end token, or BERT's separator in a tokenizer without one.

    Raises:
        ValueError: the tokenizer has neither.
    """
    for token_id in (tokenizer.eos_token_id, tokenizer.sep_token_id):
        if token_id is not None:
            return token_id
    raise ValueError("The tokenizer has no token that ends a text. Set its `eos_token`.")


def encode_texts(tokenizer, texts: Sequence[str]) -> list[list[int]]:
    """Encode each text as `<s> text`, without an end token: the caller decides where texts end.

    BERT's tokenizers append their separator; it is removed.
    """
    encoded = tokenizer(list(texts), verbose=False)["input_ids"]
    if tokenizer.eos_token_id is None and tokenizer.sep_token_id is not None:
        return [ids[:-1] if ids[-1:] == [tokenizer.sep_token_id] else ids for ids in encoded]
    return encoded


def check_padding(tokenizer) -> None:
    """Raise ValueError for a tokenizer without a padding token."""
    if tokenizer.pad_token_id is None:
        raise ValueError("The tokenizer has no padding token, which fills rows up. Set its `pad_token`.")


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
        texts: rows as `take_texts` returns them. Prompts are not predicted.
        tokenizer: encodes a text as `<s> text`. A prompt and its answer are encoded apart. `</s>` is the tokenizer's
            end token, or BERT's `[SEP]` in a tokenizer without one.
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
        ValueError: `block_size` is below 2, or the tokenizer has no padding token or none that ends a text.
    """
    if block_size < 2:
        raise ValueError(f"`block_size` must be at least 2, got {block_size}.")
    check_padding(tokenizer)
    last = end_id(tokenizer)

    def pack(batch: dict) -> dict:
        # texts may be longer than a row: no warning
        prompts = encode_texts(tokenizer, batch.get("prompt", batch["text"]))
        answers = [[]] * len(prompts)
        if "prompt" in batch:
            answers = tokenizer(batch["answer"], add_special_tokens=False, verbose=False)["input_ids"]
        ids = [[*row, *answer, last] for row, answer in zip(prompts, answers, strict=True)]
        stream = list(chain.from_iterable(ids))
        starts = list(accumulate((len(row) for row in ids[:-1]), initial=0))
        first, unpredicted = set(starts), set() if attend_across_texts else set(starts)
        if "prompt" in batch:
            for start, prompt in zip(starts, prompts, strict=True):
                unpredicted.update(range(start, start + len(prompt)))
        rows = {"input_ids": [], "labels": [], "position_ids": []}
        for begin in range(0, max(len(stream) - 1, 1), block_size - 1):
            row = stream[begin : begin + block_size]
            position, positions = -1, []
            for i in range(begin, begin + len(row)):
                position = 0 if i in first else position + 1
                positions.append(position)
            visible_labels = [-100 if i in unpredicted else token for i, token in enumerate(row, begin)]
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
