# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""`pipeline("translation")` and `pipeline("summarization")` among transformers' tasks."""

from transformers import AutoModelForSeq2SeqLM, pipelines

from .models.translation_pipeline import SummarizationPipeline, TranslationPipeline


def register_pipelines() -> None:
    """Make "translation" and "summarization" tasks again. transformers 5 lists them among its removed tasks."""
    for task, pipeline_class in (("translation", TranslationPipeline), ("summarization", SummarizationPipeline)):
        pipelines.REMOVED_TASKS.pop(task, None)
        pipelines.PIPELINE_REGISTRY.register_pipeline(
            task, pipeline_class=pipeline_class, pt_model=AutoModelForSeq2SeqLM, type="text"
        )
