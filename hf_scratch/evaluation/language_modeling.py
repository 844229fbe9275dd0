# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""A language model's loss, perplexity and bits per byte, the accuracy of its answers, and an encoder's masked loss."""

import math
import time
from collections.abc import Sequence
from functools import partial
from itertools import chain

import torch
from datasets import Dataset
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from ..data.masking import MaskingCollator
from ..data.texts import TextPacker, encode_texts, end_id, padding_id
from ..training.main_process import on_main_process
from .processes import compute_batches


@torch.inference_mode()
def evaluate_language_model(
    model: PreTrainedModel,
    tokenizer,
    texts: Sequence[str],
    batch_size: int = 32,
    block_size: int | None = None,
) -> dict:
    """Compute the loss on each text by itself, as `<s> text </s>`. Every token but the first is counted once.

    A text longer than `block_size` is read in windows that advance by half of it. A window counts only the tokens that
    no earlier window has counted, so that each of them has at least half of `block_size` before it.

    Several processes share the batches. All of them must call this, and all get the result of one process.

    Args:
        model: a causal language model.
        tokenizer: encodes a text as `<s> text`.
        texts: the texts.
        batch_size: windows per batch.
        block_size: tokens per window. Default: the model's positions.

    A model of transformers computes all logits of a batch at once: lower `batch_size` if they need too much memory.

    Returns:
        "loss" (nats per token), "perplexity", "bits_per_byte" (bytes of the texts in UTF-8; the end tokens' cost is
        included), "tokens" (their number) and "seconds".

    Raises:
        ValueError: the model is an encoder, a window has one token or more than the model's positions, or the
            tokenizer has no token that ends a text.
    """
    from .metrics import BitsPerByte, combine_in_memory  # imports evaluate

    if not getattr(model.config, "is_causal", True):
        raise ValueError("The model is an encoder: it sees what it would predict. Evaluate it by `mlm_probability`.")
    longest = model.config.max_position_embeddings
    block_size = block_size or longest
    if not 1 < block_size <= longest:
        raise ValueError(f"`block_size` must be from 2 to the model's {longest} positions; it is {block_size}.")
    last = end_id(tokenizer)
    start = time.perf_counter()
    windows = []  # ids, and how many of the last ones are counted
    for ids in encode_texts(tokenizer, texts):
        ids = [*ids, last]
        counted = 1  # <s> is not predicted
        for begin in range(0, len(ids), block_size // 2):
            window = ids[begin : begin + block_size]
            end = begin + len(window)
            if end > counted:
                windows.append((window, end - counted))
                counted = end
    windows.sort(key=lambda window: len(window[0]))
    skip_logits = {"skip_logits": True} if hasattr(model.config, "skip_logits") else {}

    def compute(batch: Sequence[tuple[list[int], int]]) -> float:
        """The nats of all windows."""
        longest = max(len(ids) for ids, _ in batch)
        input_ids = torch.full((len(batch), longest), padding_id(tokenizer))
        labels = torch.full((len(batch), longest), -100)
        for row, (ids, count) in enumerate(batch):
            input_ids[row, : len(ids)] = torch.tensor(ids)
            labels[row, len(ids) - count : len(ids)] = torch.tensor(ids[-count:])
        # the padding is after the text, where a causal model does not see it
        inputs = {"input_ids": input_ids.to(model.device), "labels": labels.to(model.device)}
        return model(**inputs, use_cache=False, **skip_logits).loss.item() * sum(count for _, count in batch)

    model.eval()
    total = sum(compute_batches(windows, batch_size, compute, "evaluating"))
    tokens = sum(count for _, count in windows)
    size = sum(len(text.encode()) for text in texts)
    return {
        "loss": total / tokens,
        "perplexity": math.exp(total / tokens),
        **combine_in_memory(BitsPerByte).compute(predictions=[total], references=[size]),
        "tokens": tokens,
        "seconds": time.perf_counter() - start,
    }


@torch.inference_mode()
def evaluate_masked_language_model(
    model: PreTrainedModel,
    tokenizer,
    texts: Dataset,
    mlm_probability: float = 0.15,
    batch_size: int = 32,
    block_size: int | None = None,
) -> dict:
    """Compute an encoder's loss on masked tokens. The same texts always have the same masks.

    Several processes share the batches. All of them must call this, and all get the result of one process.

    Args:
        model: an encoder, such as a `ScratchGPTForMaskedLM`.
        tokenizer: has a mask token.
        texts: rows with the column "text".
        mlm_probability: share of the tokens that is masked.
        batch_size: rows per batch.
        block_size: tokens per row; longer texts become several rows. Default: the model's positions.

    Returns:
        "loss" (nats per masked token), "perplexity", "masked_accuracy" (the share of masked tokens whose likeliest
        prediction is right, 0 to 1), "tokens" (the masked ones) and "seconds".

    Raises:
        ValueError: the tokenizer has no mask token.
    """
    start = time.perf_counter()
    split = TextPacker(tokenizer, block_size or model.config.max_position_embeddings, packing=False, overlap=0)
    rows = split(texts[:]).to_pylist()
    collate = MaskingCollator(tokenizer, mlm_probability=mlm_probability)

    def compute(batch: Sequence[dict]) -> tuple[float, int, int]:
        """The batch's nats, right predictions and masked tokens."""
        inputs = {name: tensor.to(model.device) for name, tensor in collate(batch).items()}
        targets = inputs.pop("labels")
        is_masked = targets != -100
        logits, tokens = model(**inputs).logits[is_masked].float(), targets[is_masked]
        nats = cross_entropy(logits, tokens, reduction="sum").item()
        return nats, int((logits.argmax(-1) == tokens).sum()), len(tokens)

    model.eval()
    results = compute_batches(rows, batch_size, compute, "evaluating")
    nats, right, tokens = (sum(column) for column in zip(*results, strict=True))
    loss = nats / tokens
    figures = {"loss": loss, "perplexity": math.exp(loss), "masked_accuracy": right / tokens, "tokens": tokens}
    return figures | {"seconds": time.perf_counter() - start}


def count_answer_tokens(
    config, tokenizer, questions: Sequence[str], texts: Sequence[str], name: str = "the texts"
) -> int:
    """Count the tokens of the longest answer, with its end token, and check that answers fit the model.

    Args:
        config: the model's config.
        tokenizer: encodes a question as `<s> question`.
        questions: the beginnings of the texts.
        texts: each a question and its answer.
        name: what the error calls the texts.

    Raises:
        ValueError: the longest question and the longest answer together, which may meet in a batch, need more than the
            model's positions.
    """
    answers = [text[len(question) :] for question, text in zip(questions, texts, strict=True)]
    longest_question = max(map(len, encode_texts(tokenizer, questions)))
    encoded = tokenizer(answers, add_special_tokens=False, verbose=False)["input_ids"]
    longest_answer = max(map(len, encoded)) + 1
    positions = config.max_position_embeddings
    if longest_question + longest_answer > positions:
        raise ValueError(
            f"The longest question of {name} has {longest_question} tokens and the longest answer {longest_answer}, "
            f"but the model has {positions} positions. Raise `block_size`, or shorten or remove them."
        )
    return longest_answer


@torch.inference_mode()
def evaluate_answers(
    model: PreTrainedModel, tokenizer, texts: Sequence[str], prompts: Sequence[str], batch_size: int = 200
) -> dict:
    """Count how often greedy decoding gives exactly the text's answer to its question.

    Several processes share the batches. All of them must call this, and all get the result of one process.

    Args:
        model: a causal language model.
        tokenizer: encodes a text as `<s> text`.
        texts: each a question and its answer.
        prompts: the questions, with which the texts begin.
        batch_size: questions per batch.

    Returns:
        "accuracy" (the share of right answers, 0 to 1) and "answers" (their number).

    Raises:
        ValueError: see `count_answer_tokens`.
    """
    from .metrics import ExactMatch, combine_in_memory  # imports evaluate

    questions = list(prompts)
    max_new_tokens = count_answer_tokens(model.config, tokenizer, questions, texts)
    model.eval()

    def compute(batch: Sequence[str]) -> list[str]:
        """The questions with the model's answers."""
        rows = [torch.tensor(ids, dtype=torch.long) for ids in encode_texts(tokenizer, batch)]
        pad = partial(pad_sequence, batch_first=True, padding_side="left")
        input_ids = pad(rows, padding_value=padding_id(tokenizer)).to(model.device)
        mask = pad([torch.ones_like(row) for row in rows]).to(model.device)
        # models with a head have `generate`, which PreTrainedModel does not annotate
        output = model.generate(  # ty: ignore[not-callable]
            input_ids, attention_mask=mask, do_sample=False, max_new_tokens=max_new_tokens
        )
        return tokenizer.batch_decode(output, skip_special_tokens=True)

    answered = list(chain(*compute_batches(questions, batch_size, compute, "answering")))
    metric = combine_in_memory(ExactMatch)
    scores = on_main_process(lambda: metric.compute(predictions=answered, references=texts))
    return {"accuracy": scores["exact_match"], "answers": len(texts)}


def score_texts(
    model: PreTrainedModel,
    tokenizer,
    rows: Dataset,
    mlm_probability: float | None = None,
    batch_size: int = 32,
    block_size: int | None = None,
) -> dict:
    """Score a model on rows of `take_texts`: an encoder on masked tokens, others on texts, and on answers to prompts.

    See `evaluate_masked_language_model`, `evaluate_language_model` and `evaluate_answers`.
    """
    if mlm_probability is not None:
        return evaluate_masked_language_model(model, tokenizer, rows, mlm_probability, batch_size, block_size)
    scores = evaluate_language_model(model, tokenizer, rows["text"], batch_size, block_size)
    if "prompt" in rows.column_names:
        scores |= evaluate_answers(model, tokenizer, rows["text"], rows["prompt"])
    return scores


def sample_text(model: PreTrainedModel, tokenizer, prompt: str, max_new_tokens: int = 100, seed: int = 0) -> str:
    """Continue a prompt by tokens drawn from the whole vocabulary, at the generation config's temperature.

    Torch's random state is the same afterwards, so training can continue.

    Args:
        model: the language model; it is put into evaluation mode.
        tokenizer: its tokenizer.
        prompt: the text's beginning.
        max_new_tokens: tokens to draw; fewer if the model's positions or an end token end the text before.
        seed: decides which tokens are drawn.

    Returns:
        The prompt and its continuation, without special tokens.

    Raises:
        ValueError: by `generate()`, if the prompt leaves no position for a further token.
    """
    inputs = tokenizer(prompt, return_tensors="pt").to(model.device)
    length = inputs["input_ids"].shape[1]
    new_tokens = min(max_new_tokens, model.config.max_position_embeddings - length)
    with torch.random.fork_rng([model.device] if model.device.type == "cuda" else []):
        torch.manual_seed(seed)
        ids = model.eval().generate(
            inputs["input_ids"],
            attention_mask=inputs["attention_mask"],
            do_sample=True,
            top_k=0,
            max_length=length + new_tokens,
        )
    return tokenizer.decode(ids[0], skip_special_tokens=True)
