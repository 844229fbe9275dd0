# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""The Transformer of "Attention Is All You Need" and a GPT, as first-class Hugging Face models.

Importing the package registers both with the Auto classes and brings `pipeline("translation")` and
`pipeline("summarization")` back. Imported before torch, it chooses how OpenMP's threads wait, as the commands do.
"""

import importlib
from contextlib import suppress

with suppress(ModuleNotFoundError):  # in a clone that is not installed
    import hf_scratch_launcher  # noqa: F401  before torch, whose OpenMP it sets

from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
    PreTrainedTokenizerFast,
    pipelines,
)

from . import cpu  # noqa: F401  plugs itself into the models
from .models.configuration_scratch_gpt import ScratchGPTConfig
from .models.configuration_scratch_transformer import ScratchTransformerConfig
from .models.modeling_scratch_gpt import (
    ScratchGPTForCausalLM,
    ScratchGPTForMaskedLM,
    ScratchGPTForSequenceClassification,
    ScratchGPTForTokenClassification,
    ScratchGPTModel,
    ScratchGPTPreTrainedModel,
)
from .models.modeling_scratch_transformer import (
    ScratchTransformerForConditionalGeneration,
    ScratchTransformerModel,
    ScratchTransformerPreTrainedModel,
)
from .models.tokenization_source_target import SourceTargetTokenizer
from .models.translation_pipeline import SummarizationPipeline, TranslationPipeline

__version__ = "0.1.0"

AutoConfig.register("scratch_gpt", ScratchGPTConfig, exist_ok=True)
AutoModel.register(ScratchGPTConfig, ScratchGPTModel, exist_ok=True)
AutoModelForCausalLM.register(ScratchGPTConfig, ScratchGPTForCausalLM, exist_ok=True)
AutoModelForMaskedLM.register(ScratchGPTConfig, ScratchGPTForMaskedLM, exist_ok=True)
AutoModelForSequenceClassification.register(ScratchGPTConfig, ScratchGPTForSequenceClassification, exist_ok=True)
AutoModelForTokenClassification.register(ScratchGPTConfig, ScratchGPTForTokenClassification, exist_ok=True)
AutoConfig.register("scratch_transformer", ScratchTransformerConfig, exist_ok=True)
AutoModel.register(ScratchTransformerConfig, ScratchTransformerModel, exist_ok=True)
AutoModelForSeq2SeqLM.register(ScratchTransformerConfig, ScratchTransformerForConditionalGeneration, exist_ok=True)
# a folder whose tokenizer_config.json names no class holds a plain tokenizer; ours is found by its name
AutoTokenizer.register(
    ScratchTransformerConfig, PreTrainedTokenizerFast, fast_tokenizer_class=SourceTargetTokenizer, exist_ok=True
)
for task, pipeline_class in (("translation", TranslationPipeline), ("summarization", SummarizationPipeline)):
    pipelines.REMOVED_TASKS.pop(task, None)  # transformers 5 lists both
    pipelines.PIPELINE_REGISTRY.register_pipeline(
        task, pipeline_class=pipeline_class, pt_model=AutoModelForSeq2SeqLM, type="text"
    )


def __getattr__(name: str):
    if name == "convert":  # lazy: importing the converters also imports transformers' GPT-2 and Marian
        return importlib.import_module(".convert", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "ScratchGPTConfig",
    "ScratchGPTForCausalLM",
    "ScratchGPTForMaskedLM",
    "ScratchGPTForSequenceClassification",
    "ScratchGPTForTokenClassification",
    "ScratchGPTModel",
    "ScratchGPTPreTrainedModel",
    "ScratchTransformerConfig",
    "ScratchTransformerForConditionalGeneration",
    "ScratchTransformerModel",
    "ScratchTransformerPreTrainedModel",
    "SourceTargetTokenizer",
    "SummarizationPipeline",
    "TranslationPipeline",
]
