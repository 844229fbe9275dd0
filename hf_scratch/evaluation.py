# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""What a trained model is worth: BLEU and chrF of translations, bits per byte of a language model."""

import time
from collections.abc import Sequence
from pathlib import Path

import torch
from tqdm.auto import tqdm
from transformers import PreTrainedModel

from .metrics import BitsPerByte, ChrF, SacreBleu
from .pipelines import TranslationPipeline


def evaluate_translation(
    model: PreTrainedModel,
    tokenizer,
    sources: Sequence[str],
    references: Sequence[str],
    batch_size: int = 64,
    target_lang: str | None = None,
    **generate_kwargs,
) -> tuple[dict, list[str]]:
    """Translate `sources` and compare with `references`.

    Args:
        target_lang: the references' language, for Moses' rules. Default: the config's `target_lang`; where it has
            none, there is no "bleu_moses".
        generate_kwargs: `num_beams`, `length_penalty` and whatever else `generate()` takes.

    Returns:
        What `score_translations` returns with "sentences" and "seconds", and the translations.
    """
    translator = TranslationPipeline(model=model, tokenizer=tokenizer, device=model.device)
    start = time.perf_counter()
    # batches of similar lengths waste less on padding
    order = sorted(range(len(sources)), key=lambda i: len(sources[i]))
    hypotheses = [""] * len(sources)
    with tqdm(total=len(sources), desc="translating", unit=" sentences") as progress:
        for begin in range(0, len(order), batch_size):
            rows = order[begin : begin + batch_size]
            records = translator([sources[i] for i in rows], batch_size=batch_size, **generate_kwargs)
            for i, record in zip(rows, records, strict=True):
                hypotheses[i] = record["translation_text"]
            progress.update(len(rows))
    seconds = time.perf_counter() - start
    target_lang = target_lang or getattr(model.config, "target_lang", None)
    scores = score_translations(hypotheses, references, target_lang)
    return {**scores, "sentences": len(hypotheses), "seconds": seconds}, hypotheses


def write_lines(path: Path, texts: Sequence[str]) -> None:
    """One text a line, so that line n answers line n of the source."""
    path.write_text("".join(" ".join(text.splitlines()) + "\n" for text in texts), encoding="utf-8")


def score_translations(hypotheses: Sequence[str], references: Sequence[str], language: str | None = None) -> dict:
    """BLEU and chrF, each with its signature.

    Returns:
        `{"bleu", "bleu_signature", "bleu_lc", "bleu_lc_signature", "chrf", "chrf_signature"}`: BLEU on plain text,
        cased and 13a; `_lc` lower-cased. With a `language` also "bleu_moses" and "bleu_moses_signature", lower-cased
        and cut by Moses' rules, as papers on Multi30k count.
    """
    wrapped = [[reference] for reference in references]
    bleu = SacreBleu().compute(predictions=hypotheses, references=wrapped)
    bleu_lc = SacreBleu().compute(predictions=hypotheses, references=wrapped, lowercase=True)
    chrf = ChrF().compute(predictions=hypotheses, references=wrapped)
    moses = {}
    if language is not None:
        options = {"tokenize": "moses", "lowercase": True, "language": language}
        result = SacreBleu().compute(predictions=hypotheses, references=wrapped, **options)
        moses = {"bleu_moses": result["score"], "bleu_moses_signature": result["signature"]}
    return {
        "bleu": bleu["score"],
        "bleu_signature": bleu["signature"],
        "bleu_lc": bleu_lc["score"],
        "bleu_lc_signature": bleu_lc["signature"],
        "chrf": chrf["score"],
        "chrf_signature": chrf["signature"],
        **moses,
    }


def choose_windows(config, block_size: int | None, stride: int | None) -> tuple[int, int]:
    """`block_size` and `stride` of `evaluate_language_model`, with their defaults.

    Raises:
        ValueError: windows longer than the model's positions, or a stride that leaves gaps.
    """
    longest = config.max_position_embeddings
    block_size = block_size or longest
    if block_size > longest:
        raise ValueError(f"`block_size` is {block_size}, but the model has {longest} positions.")
    stride = stride or max(block_size // 2, 1)
    if not 0 < stride < block_size:
        raise ValueError(f"`stride` must be between 1 and `block_size` - 1 ({block_size - 1}), got {stride}.")
    return block_size, stride


@torch.inference_mode()
def evaluate_language_model(
    model: PreTrainedModel,
    tokenizer,
    texts: Sequence[str],
    batch_size: int = 32,
    block_size: int | None = None,
    stride: int | None = None,
) -> dict:
    """The loss of each text by itself, `<s> text </s>`, every token once.

    Args:
        block_size: tokens the model sees at a time. Default: its `max_position_embeddings`.
        stride: a text longer than `block_size` is read in windows that move on by this; only tokens not yet counted
            count, so that they have at least `block_size - stride` tokens before them. Default: half of `block_size`.

    Returns:
        `{"loss": nats a token, "perplexity", "bits_per_byte", "tokens", "seconds"}`. The end token's cost is counted
        in; bytes are those of the texts in UTF-8.
    """
    block_size, stride = choose_windows(model.config, block_size, stride)
    start = time.perf_counter()
    windows = []  # text, its window's ids, how many of the last ones are counted
    for text, ids in enumerate(tokenizer(list(texts), verbose=False)["input_ids"]):
        ids = [*ids, tokenizer.eos_token_id]
        counted = 1  # <s> is given
        for begin in range(0, len(ids), stride):
            window = ids[begin : begin + block_size]
            end = begin + len(window)
            if end > counted:
                windows.append((text, window, end - counted))
                counted = end
    windows.sort(key=lambda window: len(window[1]))

    model.eval()
    nats, tokens = [0.0] * len(texts), 0
    for begin in tqdm(range(0, len(windows), batch_size), desc="evaluating", unit=" batches"):
        batch = windows[begin : begin + batch_size]
        longest = max(len(ids) for _, ids, _ in batch)
        input_ids = torch.full((len(batch), longest), tokenizer.pad_token_id)
        labels = torch.full((len(batch), longest), -100)
        for row, (_, ids, count) in enumerate(batch):
            input_ids[row, : len(ids)] = torch.tensor(ids)
            labels[row, len(ids) - count : len(ids)] = torch.tensor(ids[-count:])
        # padding stands after the text, where a causal model does not see it
        logits = model(input_ids=input_ids.to(model.device), use_cache=False).logits[:, :-1].float()
        targets = labels[:, 1:].to(logits.device)
        losses = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
        for (text, _, count), row in zip(batch, losses.view(targets.shape).double().sum(-1).tolist(), strict=True):
            nats[text] += row
            tokens += count
    result = BitsPerByte().compute(predictions=nats, references=list(texts), tokens=tokens)
    seconds = time.perf_counter() - start
    return {key: result[key] for key in ("loss", "perplexity", "bits_per_byte")} | {
        "tokens": tokens,
        "seconds": seconds,
    }


def check_answers(texts: Sequence[str], separator: str, name: str = "the texts") -> None:
    """Raise ValueError for a text without the separator of question and answer; `name` is what the texts are."""
    without = next((i for i, text in enumerate(texts) if separator not in text), None)
    if without is not None:
        raise ValueError(
            f"`answer_after` is {separator!r}, which is not in row {without}, counted from 0, of {name}: "
            f"{texts[without][:80]!r}."
        )


@torch.inference_mode()
def evaluate_answers(
    model: PreTrainedModel, tokenizer, texts: Sequence[str], separator: str, batch_size: int = 200
) -> dict:
    """How often greedy decoding goes on after `separator` exactly as the text does.

    Args:
        texts: question, separator, answer; the first separator counts.

    Returns:
        `{"accuracy": the fraction that is right to the last character, "answers": how many}`.

    Raises:
        ValueError: a text without the separator.
    """
    check_answers(texts, separator)
    model.eval()
    questions = [text[: text.index(separator) + len(separator)] for text in texts]
    right = 0
    for begin in tqdm(range(0, len(texts), batch_size), desc="answering", unit=" batches"):
        rows = slice(begin, begin + batch_size)
        inputs = tokenizer(questions[rows], padding=True, padding_side="left", return_tensors="pt").to(model.device)
        longest = max(len(ids) for ids in tokenizer(list(texts[rows]))["input_ids"])
        output = model.generate(**inputs, do_sample=False, max_new_tokens=longest - inputs["input_ids"].shape[1] + 1)
        decoded = tokenizer.batch_decode(output, skip_special_tokens=True)
        right += sum(answer == text for answer, text in zip(decoded, texts[rows], strict=True))
    return {"accuracy": right / len(texts), "answers": len(texts)}
