# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""`pipeline("translation", model=...)` and `pipeline("summarization", model=...)`, which transformers 5 removed."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from torch.utils.data import Dataset, Subset
from transformers import Pipeline, PreTrainedTokenizerBase


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
        src_lang: the source language. A multilingual model (M2M100, NLLB, mBART) needs it; the one pair of another
            model need not be named.
        tgt_lang: the target language, likewise.
        batch_size: inputs per batch. Default: the pipeline's, else 1.
        kwargs: passed to `generate()`.

    Raises:
        ValueError: an input is not a string, or a language is not the model's own. Or an input of a list is too long
            and `truncation` is False: before any of it is translated, with the long input's index, counted from 0.
        IndexError: a string by itself, or an input of an iterator or Dataset, is too long: torch's error.
    """

    return_name = "translation"
    _load_processor = False
    _load_image_processor = False
    _load_feature_extractor = False
    _load_tokenizer = True
    tokenizer: PreTrainedTokenizerBase

    def __call__(self, inputs: Any, **kwargs) -> list[dict[str, str]] | Iterator[dict[str, str]]:
        if isinstance(inputs, Iterable) and not isinstance(inputs, str | Mapping | Iterator | Dataset):
            outputs = dict(self.translate_by_length(inputs, **kwargs))
            return [outputs[i] for i in range(len(outputs))]
        if isinstance(inputs, Iterator):
            inputs = (text for text in inputs)  # transformers takes no other iterator
        outputs = super().__call__(inputs, **kwargs)
        return [outputs] if isinstance(outputs, dict) else outputs

    def translate_by_length(
        self, inputs: Iterable[str], batches: slice = slice(None), **kwargs
    ) -> Iterator[tuple[int, dict[str, str]]]:
        """Translate strings from the shortest to the longest, and yield each translation when its batch is ready.

        Args:
            inputs: what to translate.
            batches: which batches of the `batch_size` in `kwargs` to translate. Default: all. `slice(1, None, 2)` is
                the share of the second of two processes.
            kwargs: as for a call of the pipeline.

        Yields:
            An input's index, counted from 0, and what a call of the pipeline returns for this input.
        """
        inputs, longest = list(inputs), getattr(self.model.config, "max_position_embeddings", None)
        if not inputs:
            return
        # the longest comes last: its error must not wait for the others' translations
        if longest is not None and not kwargs.get("truncation", self._preprocess_params.get("truncation")):
            for i, ids in enumerate(self.tokenizer(inputs, verbose=False)["input_ids"]):
                if len(ids) > longest:
                    raise ValueError(
                        f"Input {i} has {len(ids)} tokens, but `max_position_embeddings` of this model is {longest}: "
                        f"{inputs[i]!r:.60}. Shorten it, or set `truncation=True`."
                    )
        order = sorted(range(len(inputs)), key=lambda i: len(inputs[i]))
        size = kwargs.get("batch_size") or 1
        order = [i for begin in range(0, len(order), size)[batches] for i in order[begin : begin + size]]
        shortest_first = Subset(inputs, order)  # ty: ignore[invalid-argument-type]  # a list serves as a Dataset
        yield from zip(order, super().__call__(shortest_first, **kwargs), strict=True)

    def _sanitize_parameters(self, truncation=None, src_lang=None, tgt_lang=None, **generate_kwargs):
        options = {"truncation": truncation, "src_lang": src_lang, "tgt_lang": tgt_lang}
        return {name: value for name, value in options.items() if value is not None}, generate_kwargs, {}

    def preprocess(self, inputs: str, truncation: bool | str = False, src_lang=None, tgt_lang=None):
        if not isinstance(inputs, str):  # the tokenizer would take a list for several texts
            raise ValueError(f"An input must be a string, got {inputs!r:.60}.")
        longest, most = getattr(self.model.config, "max_position_embeddings", None), self.tokenizer.model_max_length
        options = {"truncation": truncation, "max_length": longest and min(longest, most), "return_tensors": "pt"}
        if build := getattr(self.tokenizer, "_build_translation_inputs", None):  # of a multilingual model
            return build(inputs, src_lang=src_lang, tgt_lang=tgt_lang, **options)
        pair = [getattr(self.model.config, name, None) for name in ("source_lang", "target_lang")]
        if not all(lang in (None, own) for lang, own in zip((src_lang, tgt_lang), pair, strict=True)):
            own = " to ".join(filter(None, pair)) or "that of its training"
            raise ValueError(f"This model has one pair of languages, {own}: leave `src_lang` and `tgt_lang` out.")
        return self.tokenizer(inputs, **options)

    def _forward(self, model_inputs, **generate_kwargs):
        # generate() returns (batch * num_return_sequences, length); transformers takes a batch apart by its first axis
        # models with a head have `generate`, which PreTrainedModel does not annotate
        output_ids = self.model.generate(**model_inputs, **generate_kwargs)  # ty: ignore[not-callable]
        output_ids = getattr(output_ids, "sequences", output_ids)  # with `return_dict_in_generate`
        return {"output_ids": output_ids.view(model_inputs["input_ids"].shape[0], -1, output_ids.shape[-1])}

    def postprocess(self, model_outputs) -> dict[str, str] | list[dict[str, str]]:
        texts = self.tokenizer.batch_decode(model_outputs["output_ids"][0], skip_special_tokens=True)
        records = [{f"{self.return_name}_text": text} for text in texts]
        return records[0] if len(records) == 1 else records


class SummarizationPipeline(TranslationPipeline):
    """Summarise with an encoder-decoder: a `TranslationPipeline` that returns `{"summary_text": ...}`."""

    return_name = "summary"


def custom_pipelines(task: str) -> dict[str, dict[str, Any]]:
    """What `config.json` says of the task "translation" or "summarization", for `trust_remote_code=True`.

    One task: for a folder with two, `pipeline(model=...)` needs the task's name.
    """
    name = f"translation_pipeline.{task.title()}Pipeline"
    return {task: {"impl": name, "pt": ["AutoModelForSeq2SeqLM"], "type": "text", "default": {}}}
