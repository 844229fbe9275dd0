# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""`pipeline("translation", model=...)`, which transformers 5 removed."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from torch.utils.data import Dataset, IterableDataset
from transformers import AutoModelForSeq2SeqLM, Pipeline, pipelines


class TranslationPipeline(Pipeline):
    """Translate with an encoder-decoder.

    ```python
    import hf_scratch
    from transformers import pipeline

    translator = pipeline("translation", model="model_cards/scratch-transformer-multi30k-en-de")
    translator("A man sleeps.")                       # [{"translation_text": "Ein Mann schläft."}]
    translator(["A man.", "A dog."], batch_size=2, num_beams=5)
    ```

    Calling it takes one string or a list of them, and gives a list of `{"translation_text": ...}`. A list is
    translated in the order of its lengths, longest first, so that a batch holds little padding. A generator, another
    iterator or a torch Dataset of strings (`KeyDataset(rows, "en")`) is translated as it comes, and gives an iterator.

    Keyword arguments are those of `generate()`, and `truncation=True` cuts inputs that are longer than the model's
    positions or the tokenizer's `model_max_length`.

    Raises:
        ValueError: an input that is not a string, has no text in it or, without truncation, is too long. Of several
            inputs it is named by its index, counted from 0; of a list before any is translated.
    """

    _load_processor = False
    _load_image_processor = False
    _load_feature_extractor = False
    _load_tokenizer = True

    def __call__(self, inputs: str | Iterable[str], **kwargs) -> list[dict[str, str]] | Iterator[dict[str, str]]:
        truncation = _truncates(kwargs.get("truncation", self._preprocess_params.get("truncation", False)))

        def check(text: Any, index: int | None = None) -> str:
            self._check_text(text, index)
            self._check_lengths([text], truncation, index)
            return text

        if isinstance(inputs, Iterator | IterableDataset):
            return super().__call__((check(text, i) for i, text in enumerate(inputs)), **kwargs)
        if isinstance(inputs, Dataset):
            return super().__call__(_CheckedDataset(inputs, check), **kwargs)
        if isinstance(inputs, str | bytes | Mapping) or not isinstance(inputs, Iterable):
            outputs = super().__call__(check(inputs), **kwargs)
            return outputs if isinstance(outputs, list) else [outputs]
        inputs = list(inputs)
        for i, text in enumerate(inputs):
            self._check_text(text, i)
        if not inputs:
            return []
        self._check_lengths(inputs, truncation, 0)
        order = sorted(range(len(inputs)), key=lambda i: -len(inputs[i]))
        outputs = super().__call__([inputs[i] for i in order], **kwargs)
        return [output for _, output in sorted(zip(order, outputs, strict=True), key=lambda pair: pair[0])]

    @staticmethod
    def _check_text(text: Any, index: int | None = None) -> None:
        name = "the input" if index is None else f"input {index}"
        if not isinstance(text, str) or not text.strip():
            raise ValueError(
                f"There is nothing to translate: {name} must be a non-empty string, got {_shorten(text)}."
            )
        if any("\ud800" <= char <= "\udfff" for char in text):
            raise ValueError(f"There is half of a surrogate pair, which is no character, in {name}: {_shorten(text)}.")

    def _longest(self) -> int | None:
        return getattr(self.model.config, "max_position_embeddings", None)

    def _check_lengths(self, texts: list[str], truncation: Any, first: int | None) -> None:
        """Refuse texts that need more positions than the model has; `first` is the index of the first."""
        longest = self._longest()
        if longest is None or truncation:
            return
        for i, ids in enumerate(self.tokenizer(texts, verbose=False)["input_ids"]):
            if len(ids) > longest:
                name = "The input" if first is None else f"Input {first + i}"
                raise ValueError(
                    f"{name} has {len(ids)} tokens, but `max_position_embeddings` of this model is {longest}: "
                    f"{_shorten(texts[i])}. Shorten it, or cut it by `truncation=True`."
                )

    def _sanitize_parameters(self, truncation: bool | None = None, **generate_kwargs):
        preprocess = {} if truncation is None else {"truncation": truncation}
        return preprocess, generate_kwargs, {}

    def preprocess(self, inputs: str, truncation: bool = False):
        self._check_text(inputs)
        options, truncation = {}, _truncates(truncation)
        if truncation and (longest := self._longest()) is not None:
            options["max_length"] = min(longest, self.tokenizer.model_max_length)
        return self.tokenizer(inputs, truncation=truncation, return_tensors="pt", **options)

    def _forward(self, model_inputs, **generate_kwargs):
        # generate() returns (batch * num_return_sequences, length): one row an input, so that batches can be undone
        output_ids = self.model.generate(**model_inputs, **generate_kwargs)
        output_ids = getattr(output_ids, "sequences", output_ids)  # with `return_dict_in_generate`
        return {"output_ids": output_ids.view(model_inputs["input_ids"].shape[0], -1, output_ids.shape[-1])}

    def postprocess(self, model_outputs) -> dict[str, str] | list[dict[str, str]]:
        texts = self.tokenizer.batch_decode(model_outputs["output_ids"][0], skip_special_tokens=True)
        records = [{"translation_text": text} for text in texts]
        return records[0] if len(records) == 1 else records


class _CheckedDataset(Dataset):
    """A dataset whose texts are checked as they are read, so that an error names the row."""

    def __init__(self, rows: Dataset, check: Callable[[Any, int], str]):
        self.rows, self.check = rows, check

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> str:
        return self.check(self.rows[index], index)


def _truncates(truncation: Any) -> bool:
    """Whether too long inputs are cut; there is one text per input, so that all of transformers' ways are the same."""
    if truncation in (None, False, "do_not_truncate"):
        return False
    if truncation in (True, "longest_first", "only_first"):
        return True
    raise ValueError(f"`truncation` is {truncation!r}, but must be True or False.")


def _shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:56]} ..."


def register_translation_pipeline() -> None:
    """Make "translation" a task again: transformers 5.23 keeps the name in a table of removed ones."""
    with contextlib.suppress(AttributeError, KeyError):
        del pipelines.REMOVED_TASKS["translation"]
    pipelines.PIPELINE_REGISTRY.register_pipeline(
        "translation", pipeline_class=TranslationPipeline, pt_model=AutoModelForSeq2SeqLM, type="text"
    )
