# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""`pipeline("translation", model=...)`, which transformers 5 removed."""

import contextlib

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

    Calling it takes one string or a list of them, and gives a list of `{"translation_text": ...}`. Keyword arguments
    are those of `generate()`, and `truncation=True` cuts inputs that are longer than the model's positions. A list is
    translated in the order of its lengths, longest first, so that a batch holds little padding.

    Raises:
        ValueError: an input that is not a string, or has no text in it.
    """

    _load_processor = False
    _load_image_processor = False
    _load_feature_extractor = False
    _load_tokenizer = True

    def __call__(self, inputs: str | list[str], **kwargs) -> list[dict[str, str]]:
        if not isinstance(inputs, list):
            outputs = super().__call__(inputs, **kwargs)
            return outputs if isinstance(outputs, list) else [outputs]
        order = sorted(range(len(inputs)), key=lambda i: -len(str(inputs[i])))
        outputs = super().__call__([inputs[i] for i in order], **kwargs)
        return [output for _, output in sorted(zip(order, outputs, strict=True), key=lambda pair: pair[0])]

    def _sanitize_parameters(self, truncation: bool | None = None, **generate_kwargs):
        preprocess = {} if truncation is None else {"truncation": truncation}
        return preprocess, generate_kwargs, {}

    def preprocess(self, inputs: str, truncation: bool = False):
        if not isinstance(inputs, str) or not inputs.strip():
            raise ValueError(f"There is nothing to translate: the input must be a non-empty string, got {inputs!r}.")
        return self.tokenizer(inputs, truncation=truncation, return_tensors="pt")

    def _forward(self, model_inputs, **generate_kwargs):
        # generate() returns (batch * num_return_sequences, length): one row an input, so that batches can be undone
        output_ids = self.model.generate(**model_inputs, **generate_kwargs)
        return {"output_ids": output_ids.view(model_inputs["input_ids"].shape[0], -1, output_ids.shape[-1])}

    def postprocess(self, model_outputs) -> dict[str, str] | list[dict[str, str]]:
        texts = self.tokenizer.batch_decode(model_outputs["output_ids"][0], skip_special_tokens=True)
        records = [{"translation_text": text} for text in texts]
        return records[0] if len(records) == 1 else records


def register_translation_pipeline() -> None:
    """Make "translation" a task again: transformers 5.23 keeps the name in a table of removed ones."""
    with contextlib.suppress(AttributeError, KeyError):
        del pipelines.REMOVED_TASKS["translation"]
    pipelines.PIPELINE_REGISTRY.register_pipeline(
        "translation", pipeline_class=TranslationPipeline, pt_model=AutoModelForSeq2SeqLM, type="text"
    )
