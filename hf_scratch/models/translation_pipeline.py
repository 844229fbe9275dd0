# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""`pipeline("translation", model=...)`, which transformers 5 removed."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from torch.utils.data import Dataset, IterableDataset, Subset
from transformers import Pipeline, PreTrainedTokenizerBase

# in the saved `config.json`, beside `auto_map`: this file is all that `pipeline(..., trust_remote_code=True)` needs
CUSTOM_PIPELINES = {
    "translation": {
        "impl": "translation_pipeline.TranslationPipeline",
        "pt": ["AutoModelForSeq2SeqLM"],
        "type": "text",
        "default": {},
    }
}


class TranslationPipeline(Pipeline):
    """Translate with an encoder-decoder.

    ```python
    from transformers import pipeline

    translator = pipeline("translation", model="model_cards/scratch-transformer-multi30k-en-de")
    translator("A man sleeps.")                       # [{"translation_text": "Ein Mann schläft."}]
    translator(["A man.", "A dog."], batch_size=2, num_beams=5)
    ```

    Called with a string or a list of strings, it returns a list of `{"translation_text": ...}`. It translates a list
    from its shortest to its longest string, so that a batch has little padding (see `translate_by_length`). Called
    with a generator, another iterator or a torch Dataset of strings (`KeyDataset(rows, "en")`), it returns an
    iterator, and translates in the given order.

    Args:
        inputs: what to translate.
        truncation: whether to cut an input that is longer than the model's positions or the tokenizer's
            `model_max_length`. Default: False.
        src_lang: the source language, for code that names it: a model has one pair of languages.
        tgt_lang: likewise the target language.
        batch_size: inputs per batch. Default: 1.
        kwargs: passed to `generate()`.

    Raises:
        ValueError: an input is not a string, has no text in it, or is too long and `truncation` is False. The message
            names the input by its index, counted from 0. A list is checked before any of it is translated. Or a
            language is not the model's own.
    """

    _load_processor = False
    _load_image_processor = False
    _load_feature_extractor = False
    _load_tokenizer = True
    tokenizer: PreTrainedTokenizerBase

    def __call__(self, inputs: str | Iterable[str], **kwargs) -> list[dict[str, str]] | Iterator[dict[str, str]]:
        if isinstance(inputs, Iterator | IterableDataset):
            truncation = self._truncation(kwargs)
            return super().__call__((self._check(text, truncation, i) for i, text in enumerate(inputs)), **kwargs)
        if isinstance(inputs, Dataset):
            return super().__call__(_CheckedDataset(inputs, self, self._truncation(kwargs)), **kwargs)
        if isinstance(inputs, str | bytes | Mapping) or not isinstance(inputs, Iterable):
            outputs = super().__call__(self._check(inputs, self._truncation(kwargs)), **kwargs)
            return outputs if isinstance(outputs, list) else [outputs]
        return [output for _, output in sorted(self.translate_by_length(inputs, **kwargs), key=lambda pair: pair[0])]

    def translate_by_length(
        self, inputs: Iterable[str], batches: slice = slice(None), **kwargs
    ) -> Iterator[tuple[int, dict[str, str]]]:
        """Translate strings from the shortest to the longest, and yield each translation when its batch is ready.

        Args:
            inputs: what to translate.
            batches: which batches of `batch_size` inputs to translate. Default: all. `slice(1, None, 2)` is the share
                of the second of two processes.
            kwargs: as for a call of the pipeline.

        Yields:
            An input's index, counted from 0, and what a call of the pipeline returns for this input.

        Raises:
            ValueError: as for a call of the pipeline.
        """
        inputs, truncation = list(inputs), self._truncation(kwargs)
        for i, text in enumerate(inputs):
            self._check_text(text, i)
        if inputs:
            self._check_lengths(inputs, truncation, 0)
            order = sorted(range(len(inputs)), key=lambda i: len(inputs[i]))
            size = kwargs.get("batch_size") or 1
            order = [i for begin in range(0, len(order), size)[batches] for i in order[begin : begin + size]]
            shortest_first = Subset(inputs, order)  # ty: ignore[invalid-argument-type]  # a list serves as a Dataset
            yield from zip(order, super().__call__(shortest_first, **kwargs), strict=True)

    def _truncation(self, kwargs: dict[str, Any]) -> bool:
        return _truncates(kwargs.get("truncation", self._preprocess_params.get("truncation", False)))

    def _check(self, text: Any, truncation: bool, index: int | None = None) -> str:
        """Return `text` if it can be translated; `index` is its place among several inputs."""
        self._check_text(text, index)
        self._check_lengths([text], truncation, index)
        return text

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

    def _check_lengths(self, texts: list[str], truncation: bool, first: int | None) -> None:
        """Refuse texts that need more positions than the model has; `first` is the index of the first text."""
        longest = self._longest()
        if longest is None or truncation:
            return
        for i, ids in enumerate(self.tokenizer(texts, verbose=False)["input_ids"]):
            if len(ids) > longest:
                name = "The input" if first is None else f"Input {first + i}"
                raise ValueError(
                    f"{name} has {len(ids)} tokens, but `max_position_embeddings` of this model is {longest}: "
                    f"{_shorten(texts[i])}. Shorten it, or set `truncation=True`."
                )

    def _sanitize_parameters(
        self,
        truncation: bool | None = None,
        src_lang: str | None = None,
        tgt_lang: str | None = None,
        **generate_kwargs,
    ):
        pair = [getattr(self.model.config, name, None) for name in ("source_lang", "target_lang")]
        if not all(lang in (None, own) for lang, own in zip((src_lang, tgt_lang), pair, strict=True)):
            own = " to ".join(filter(None, pair)) or "that of its training"
            raise ValueError(f"This model has one pair of languages, {own}: leave `src_lang` and `tgt_lang` out.")
        preprocess = {} if truncation is None else {"truncation": truncation}
        return preprocess, generate_kwargs, {}

    def preprocess(self, inputs: str, truncation: bool = False):
        self._check_text(inputs)
        options, truncation = {}, _truncates(truncation)
        if truncation and (longest := self._longest()) is not None:
            options["max_length"] = min(longest, self.tokenizer.model_max_length)
        return self.tokenizer(inputs, truncation=truncation, return_tensors="pt", **options)

    def _forward(self, model_inputs, **generate_kwargs):
        # generate() returns (batch * num_return_sequences, length); transformers takes a batch apart by its first axis
        # models with a head have `generate`, which PreTrainedModel does not annotate
        output_ids = self.model.generate(**model_inputs, **generate_kwargs)  # ty: ignore[not-callable]
        output_ids = getattr(output_ids, "sequences", output_ids)  # with `return_dict_in_generate`
        return {"output_ids": output_ids.view(model_inputs["input_ids"].shape[0], -1, output_ids.shape[-1])}

    def postprocess(self, model_outputs) -> dict[str, str] | list[dict[str, str]]:
        texts = self.tokenizer.batch_decode(model_outputs["output_ids"][0], skip_special_tokens=True)
        records = [{"translation_text": text} for text in texts]
        return records[0] if len(records) == 1 else records


class _CheckedDataset(Dataset):
    """A dataset whose texts are checked when they are read, so that an error names the row.

    Args:
        rows: a torch Dataset of strings with a length.
        pipeline: checks them.
        truncation: whether long texts will be cut.
    """

    def __init__(self, rows: Any, pipeline: TranslationPipeline, truncation: bool):
        self.rows, self.pipeline, self.truncation = rows, pipeline, truncation

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> str:
        return self.pipeline._check(self.rows[index], self.truncation, index)


def _truncates(truncation: Any) -> bool:
    """Whether to cut long inputs. An input is one text, so all of transformers' ways to cut are the same.

    Raises:
        ValueError: another value than transformers takes for one text.
    """
    if truncation in (None, False, "do_not_truncate"):
        return False
    if truncation in (True, "longest_first", "only_first"):
        return True
    raise ValueError(f"`truncation` is {truncation!r}, but must be True or False.")


def _shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:56]} ..."
