# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""`pipeline("translation")` among transformers' tasks."""

from transformers import AutoModelForSeq2SeqLM, pipelines

from .models.translation_pipeline import TranslationPipeline


def register_translation_pipeline() -> None:
    """Make "translation" a task again. transformers 5 lists it among its removed tasks."""
    pipelines.REMOVED_TASKS.pop("translation", None)
    pipelines.PIPELINE_REGISTRY.register_pipeline(
        "translation", pipeline_class=TranslationPipeline, pt_model=AutoModelForSeq2SeqLM, type="text"
    )
