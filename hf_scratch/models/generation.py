# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""What our models add to transformers' `generate()`: checks, a sliding window, and a place for a faster loop."""

import functools
import inspect
import math
from contextvars import ContextVar

import torch
from transformers.generation import GenerationConfig, GenerationMixin

from .base import ScratchPreTrainedModel
from .on_cpu import ON_CPU

SLIDES = ContextVar("slides", default=False)  # whether the window slides in the running call of `generate()`
SIGNATURE = inspect.signature(GenerationMixin.generate)
MAX_LOG_LENGTH_FACTOR = math.log(torch.finfo(torch.float32).max)


class ScratchGenerationMixin(ScratchPreTrainedModel, GenerationMixin):
    """`generate()` with checks of its options and a sliding window.

    **On a CPU**, where the package is installed and the model is as its class made it, the loop of its folder
    `cpu` takes the place of transformers'. Tokens, scores, logits and the cache are the same, but for rounding.
    `cache_implementation="dynamic"` always chooses transformers' loop.

    **The window.** By default, a request that could pass `max_position_embeddings` is refused before the first token.
    With `slide_window=True`, as an argument or in a `GenerationConfig`, generation continues: each token is predicted
    from the last `max_position_embeddings` tokens, at positions that count from 0 (as gpt-playground's `generate`
    does). Every token's position changes at each step, so no cache applies, and each step is a full forward pass.

    Raises:
        ValueError: generation could pass the last position; `length_penalty` overflows;
            `slide_window=True` is combined with `inputs_embeds` or assisted generation, which need earlier tokens; or
            the model is an encoder, or a GPT with a prompt tuned by PEFT 0.21, which does not know `cache`.
    """

    @functools.wraps(GenerationMixin.generate)
    def generate(self, *args, **kwargs):
        given = SIGNATURE.bind(self, *args, **kwargs).arguments
        given = {name: value for name, value in (given | given.pop("kwargs", {})).items() if name != "self"}
        if given.get("slide_window", False) is None:
            del given["slide_window"]
        # as in transformers, arguments come before entries of a config, in which None means the default
        options = dict(given)
        for config in (given.get("generation_config"), self.generation_config):
            entries = {} if config is None else vars(config)
            options = {name: value for name, value in entries.items() if value is not None} | options
        self._check_call(options)
        given.pop("slide_window", None)
        if options.get("slide_window"):
            given["window"] = self.config.max_position_embeddings
        if loop := ON_CPU.get("decoding_loop", lambda *_: None)(self, options):
            given["custom_generate"] = loop
        slides = SLIDES.set(bool(options.get("slide_window")))
        try:
            return super().generate(**given)
        finally:
            SLIDES.reset(slides)

    @functools.wraps(GenerationMixin.generate_batch)
    def generate_batch(self, *args, **kwargs):
        self._refuse_encoder()
        return super().generate_batch(*args, **kwargs)

    def _refuse_encoder(self) -> None:
        if not getattr(self.config, "is_causal", True):
            raise ValueError(
                "This model is an encoder (`is_causal=False`): it fills in masked tokens, and has no next."
            )

    def _check_call(self, options: dict) -> None:
        self._refuse_encoder()
        # PEFT puts its own method here for the time of a call
        peft_model = getattr(vars(self).get("prepare_inputs_for_generation"), "__self__", None)
        is_tuned_prompt = getattr(getattr(peft_model, "active_peft_config", None), "is_prompt_learning", False)
        if is_tuned_prompt and not self.config.is_encoder_decoder:
            raise ValueError(
                "PEFT's prompt and prefix tuning cannot generate: PEFT 0.21 looks for the cache by its name before "
                "transformers 5.24, and would read the prompt again with each token. Use LoRA."
            )
        drafts = options.get("assistant_model") is not None or options.get("prompt_lookup_num_tokens") is not None
        if options.get("slide_window") and drafts:
            raise ValueError(
                "`slide_window=True` cannot be combined with assisted generation (`assistant_model` or "
                "`prompt_lookup_num_tokens`), which needs a cache of all tokens. Leave one of them out."
            )

    def _prepare_generated_length(
        self, generation_config: GenerationConfig, has_default_max_length: bool, **kwargs
    ) -> GenerationConfig:
        # a saved `max_length` is the window's length: it does not conflict with `max_new_tokens`
        has_default_max_length = has_default_max_length or generation_config.max_new_tokens is not None
        generation_config = super()._prepare_generated_length(
            generation_config, has_default_max_length=has_default_max_length, **kwargs
        )
        longest, length = self.config.max_position_embeddings, kwargs["input_ids_length"]
        penalty, max_new_tokens = generation_config.length_penalty, generation_config.max_length - length
        largest = abs(penalty or 1.0) * math.log(max(max_new_tokens, 1))
        if generation_config.num_beams > 1 and not largest <= MAX_LOG_LENGTH_FACTOR:  # nan too
            raise ValueError(
                f"`length_penalty` is {penalty!r}: beam search divides scores by length ** length_penalty, which "
                f"overflows float32 for {max_new_tokens} new tokens. Common values are 0.6 to 2."
            )
        # the last generated token is never read, so it needs no position
        if generation_config.max_length <= longest + 1:
            return generation_config
        if not SLIDES.get():
            shorten = f"Set `max_new_tokens` to {longest + 1 - length} or less" if length <= longest else "Shorten it"
            raise ValueError(
                f"Generation could reach {generation_config.max_length} tokens ({length} given, up to "
                f"{max_new_tokens} new), but `max_position_embeddings` of this model is {longest}. {shorten}, or set "
                f"`slide_window=True` to continue from the last {longest} tokens alone."
            )
        if kwargs["model_input_name"] == "inputs_embeds":
            raise ValueError(
                f"`slide_window=True` cannot go past the {longest} positions of this model with `inputs_embeds`: the "
                "window needs token ids. Give `input_ids`."
            )
        return generation_config

    def prepare_inputs_for_generation(
        self,
        input_ids: torch.Tensor,
        *args,
        inputs_embeds: torch.Tensor | None = None,  # `generate` looks for the name
        window: int | None = None,
        **kwargs,
    ) -> dict[str, torch.Tensor]:
        """The next step's inputs: those of transformers, unless the text is longer than the window that slides."""
        mask = kwargs.get("decoder_attention_mask")
        if mask is not None and mask.ndim == 2 and kwargs.get("decoder_position_ids") is None:
            # a static cache makes the mask 4-d, from which no positions can be counted
            kwargs["decoder_position_ids"] = ((mask != 0).cumsum(-1) - 1).clamp(min=0)
        if window is not None and input_ids.shape[1] > window:
            input_ids = input_ids[:, -window:]
            prefix = "decoder_" if self.config.is_encoder_decoder else ""
            mask, kwargs[f"{prefix}position_ids"] = kwargs.get(f"{prefix}attention_mask"), None
            if mask is not None:
                kwargs[f"{prefix}attention_mask"] = mask[:, -window:]
            kwargs.update(next_sequence_length=None, cache=None, use_cache=False)
        return super().prepare_inputs_for_generation(input_ids, *args, inputs_embeds=inputs_embeds, **kwargs)
