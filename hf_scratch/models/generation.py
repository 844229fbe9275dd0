# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""What our models add to transformers' `generate()`: what happens at the last position."""

import torch
from transformers.generation import GenerationConfig, GenerationMixin, GenerationMode


class ScratchGenerationMixin(GenerationMixin):
    """`generate()` that knows the model's last position.

    By default it refuses, before the first token, to go past `max_position_embeddings`. With `slide_window=True`, as
    an argument or an entry of a `GenerationConfig`, it goes on: the next token is then predicted from the last
    `max_position_embeddings` tokens alone, whose positions count from 0 again (gpt-playground's own `generate`). They
    all have other positions than before, so that no cache holds: a step costs a whole forward pass from there on.

    Raises:
        ValueError: generation could pass the last position; or `slide_window=True` meets `inputs_embeds` or assisted
            generation, which need the earlier tokens' cache.
    """

    def _prepare_generation_config(self, generation_config: GenerationConfig | None, **kwargs):
        slide_window = kwargs.pop("slide_window", None)
        generation_config, model_kwargs = super()._prepare_generation_config(generation_config, **kwargs)
        if slide_window is None:
            slide_window = getattr(generation_config, "slide_window", False)
        generation_config.slide_window = slide_window
        if slide_window:
            model_kwargs["slide_window"] = True
        return generation_config, model_kwargs

    def _validate_generation_mode(self, generation_mode, generation_config: GenerationConfig, *args, **kwargs):
        super()._validate_generation_mode(generation_mode, generation_config, *args, **kwargs)
        if generation_config.slide_window and generation_mode == GenerationMode.ASSISTED_GENERATION:
            raise ValueError(
                "`slide_window=True` does not go with assisted generation (`assistant_model` or "
                "`prompt_lookup_num_tokens`), which needs a cache of all tokens. Leave one of them out."
            )

    def _prepare_generated_length(
        self, generation_config: GenerationConfig, has_default_max_length: bool, **kwargs
    ) -> GenerationConfig:
        # a saved `max_length` is the window; asking for `max_new_tokens` does not contradict it
        has_default_max_length = has_default_max_length or generation_config.max_new_tokens is not None
        generation_config = super()._prepare_generated_length(
            generation_config, has_default_max_length=has_default_max_length, **kwargs
        )
        longest, length = self.config.max_position_embeddings, kwargs["input_ids_length"]
        # the last token that is generated is never read, so it needs no position
        if generation_config.max_length <= longest + 1:
            return generation_config
        if not generation_config.slide_window:
            raise ValueError(
                f"Generation could reach {generation_config.max_length} tokens ({length} given, up to "
                f"{generation_config.max_length - length} new), but `max_position_embeddings` of this model is "
                f"{longest}. Set `max_new_tokens` to {max(longest - length, 0)} or less, or `max_length` to "
                f"{longest}; or `slide_window=True` to go on from the last {longest} tokens alone."
            )
        if kwargs["model_input_name"] == "inputs_embeds":
            raise ValueError(
                f"`slide_window=True` cannot go past the {longest} positions of this model from `inputs_embeds`: the "
                "tokens that stay in the window have to be known. Give `input_ids`."
            )
        return generation_config

    def prepare_inputs_for_generation(
        self,
        input_ids: torch.LongTensor,
        *args,
        inputs_embeds: torch.FloatTensor | None = None,  # `generate` looks for the name
        slide_window: bool = False,
        **kwargs,
    ) -> dict[str, torch.Tensor]:
        """The next step's inputs: transformers' own, until the window slides."""
        longest = self.config.max_position_embeddings
        if slide_window and input_ids.shape[1] > longest:
            input_ids = input_ids[:, -longest:]
            prefix = "decoder_" if self.config.is_encoder_decoder else ""
            mask, kwargs[f"{prefix}position_ids"] = kwargs.get(f"{prefix}attention_mask"), None
            if mask is not None:
                kwargs[f"{prefix}attention_mask"] = mask = mask[:, -longest:]
                kwargs[f"{prefix}position_ids"] = (mask.long().cumsum(-1) - 1).clamp(min=0)
            kwargs.update(next_sequence_length=None, past_key_values=None, use_cache=False)
        return super().prepare_inputs_for_generation(input_ids, *args, inputs_embeds=inputs_embeds, **kwargs)
