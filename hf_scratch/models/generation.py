# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""What our models add to transformers' `generate()`."""

from transformers.generation import GenerationConfig, GenerationMixin


class ScratchGenerationMixin(GenerationMixin):
    """`generate()` that refuses, before the first token, to go past the model's last position."""

    def _prepare_generated_length(
        self, generation_config: GenerationConfig, has_default_max_length: bool, **kwargs
    ) -> GenerationConfig:
        # a saved `max_length` is the window; asking for `max_new_tokens` does not contradict it
        has_default_max_length = has_default_max_length or generation_config.max_new_tokens is not None
        generation_config = super()._prepare_generated_length(
            generation_config, has_default_max_length=has_default_max_length, **kwargs
        )
        longest = self.config.max_position_embeddings
        # the last token that is generated is never read, so it needs no position
        if generation_config.max_length > longest + 1:
            length = kwargs["input_ids_length"]
            raise ValueError(
                f"Generation could reach {generation_config.max_length} tokens ({length} given, up to "
                f"{generation_config.max_length - length} new), but `max_position_embeddings` of this model is "
                f"{longest}. Set `max_new_tokens` to {max(longest - length, 0)} or less, or `max_length` to {longest}."
            )
        return generation_config
