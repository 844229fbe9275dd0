# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""What our models add to transformers' `generate()`: checks, a sliding window, and a faster decoder on CPUs.

The mixin overrides five private methods of transformers, since the public hooks are not enough. A callable
`custom_generate=` replaces the decoding loop of every mode, gets no streamer, and would still have to call `_sample`
and `_beam_search` for whatever it does not handle. `prepare_inputs_for_generation` sees neither the length that is
asked for nor the mode.
"""

import math
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.cache_utils import Cache
from transformers.generation import (
    GenerateBeamDecoderOnlyOutput,
    GenerateBeamEncoderDecoderOutput,
    GenerateDecoderOnlyOutput,
    GenerateEncoderDecoderOutput,
    GenerationConfig,
    GenerationMixin,
    GenerationMode,
    LogitsProcessorList,
    StoppingCriteriaList,
)
from transformers.utils import ModelOutput
from transformers.utils.import_utils import is_torchdynamo_compiling

from .assisted import can_verify, verify
from .base import ScratchPreTrainedModel
from .beam_search import beam_search
from .decoding import IncrementalDecoder, beams_per_row
from .inputs import check_options
from .known_modules import can_decode_incrementally
from .sampling import longest_length, sample
from .unmodified import is_original, remember

MAX_LOG_LENGTH_FACTOR = math.log(torch.finfo(torch.float32).max)
LISTS = (StoppingCriteriaList, LogitsProcessorList)  # which our loops do not call where they are empty or known
remember(*LISTS, also={"__call__"})
OUTPUTS = {  # (is it an encoder-decoder, has it beams): the class of the output
    (False, False): GenerateDecoderOnlyOutput,
    (False, True): GenerateBeamDecoderOnlyOutput,
    (True, False): GenerateEncoderDecoderOutput,
    (True, True): GenerateBeamEncoderDecoderOutput,
}


class ScratchGenerationMixin(ScratchPreTrainedModel, GenerationMixin):
    """`generate()` with checks of its options, a sliding window, and on CPUs an `IncrementalDecoder` after the prompt.

    **The decoder** gives the same tokens, scores, logits and cache as transformers' own loop, with any processor of
    logits and any stopping criterion. The loop runs instead when

    - attentions or hidden states are asked for;
    - tokens are drafted by a smaller model in sampling, by another vocabulary, or by the model's own first layers;
    - a cache is given or chosen: `cache_implementation="dynamic"` always selects transformers' loop;
    - the model is not as its class made it: a subclass, hooks, adapters, patches, shards, quantised weights.

    A class that uses this mixin sets `decoded_classes`: its base model, the stack inside it that decodes (if there is
    one), and the stack's layer. The decoder computes what the code of these classes does. A subclass sets it again.

    **The window.** By default, a request that could pass `max_position_embeddings` is refused before the first token.
    With `slide_window=True`, as an argument or in a `GenerationConfig`, generation continues: each token is predicted
    from the last `max_position_embeddings` tokens, at positions that count from 0 (as gpt-playground's `generate`
    does). Every token's position changes at each step, so no cache applies, and each step is a full forward pass.

    Raises:
        ValueError: an option is wrong (see `check_options`); generation could pass the last position; or
            `slide_window=True` is combined with `inputs_embeds` or assisted generation, which need earlier tokens.
    """

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        if classes := vars(cls).get("decoded_classes"):
            remember(cls, *classes)

    def _prepare_generation_config(self, generation_config: GenerationConfig | None, **kwargs):
        # as in transformers, arguments come before entries of a config, in which None means the default
        options = dict(kwargs)
        for config in (generation_config, self.generation_config):
            entries = {} if config is None else vars(config)
            options = {name: value for name, value in entries.items() if value is not None} | options
        if not getattr(self.config, "is_causal", True):
            raise ValueError(
                "This model is an encoder (`is_causal=False`): it fills in masked tokens, and cannot generate."
            )
        # PEFT puts its own method here for the time of a call
        peft_model = getattr(vars(self).get("prepare_inputs_for_generation"), "__self__", None)
        is_tuned_prompt = getattr(getattr(peft_model, "active_peft_config", None), "is_prompt_learning", False)
        if is_tuned_prompt and not self.config.is_encoder_decoder:
            raise ValueError(
                "PEFT's prompt and prefix tuning cannot generate: PEFT 0.21 looks for the cache by its name before "
                "transformers 5.24, and would read the prompt again with each token. Use LoRA."
            )
        check_options(options, getattr(self.config, "decoder_vocab_size", self.config.vocab_size))
        slide_window = kwargs.pop("slide_window", None)
        generation_config, model_kwargs = super()._prepare_generation_config(generation_config, **kwargs)
        if slide_window is None:
            slide_window = getattr(generation_config, "slide_window", False)
        vars(generation_config)["slide_window"] = slide_window
        if slide_window:
            model_kwargs["slide_window"] = True
        return generation_config, model_kwargs

    def _validate_generation_mode(self, generation_mode, generation_config: GenerationConfig, *args, **kwargs):
        super()._validate_generation_mode(generation_mode, generation_config, *args, **kwargs)
        if getattr(generation_config, "slide_window", False) and generation_mode == GenerationMode.ASSISTED_GENERATION:
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
        if generation_config.num_beams > 1 and abs(penalty) * math.log(max(max_new_tokens, 1)) > MAX_LOG_LENGTH_FACTOR:
            raise ValueError(
                f"`length_penalty` is {penalty!r}: beam search divides scores by length ** length_penalty, which "
                f"overflows float32 for {max_new_tokens} new tokens. Common values are 0.6 to 2."
            )
        # the last generated token is never read, so it needs no position
        if generation_config.max_length <= longest + 1:
            return generation_config
        if not getattr(generation_config, "slide_window", False):
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

    def _start_decoder(
        self,
        input_ids: torch.Tensor,
        lists: tuple[LogitsProcessorList, StoppingCriteriaList],
        generation_config: GenerationConfig,
        synced_gpus: bool,
        num_beams: int = 1,
        **model_kwargs,
    ) -> tuple[IncrementalDecoder, torch.Tensor] | None:
        """A decoder that has read the prompts, with the next logits (batch, vocabulary); None: it cannot be used."""
        known = {"attention_mask", "position_ids", "cache", "use_cache", "encoder_outputs", "logits_to_keep"}
        longest = self.config.max_position_embeddings
        if generation_config.max_length <= longest + 1:
            known.add("slide_window")  # this length never reaches the window's edge
        mask, cache = model_kwargs.get("attention_mask"), model_kwargs.get("cache")
        if not (
            not synced_gpus
            and all(type(each) in LISTS and is_original(type(each)) for each in lists)
            and longest_length(lists[1]) <= generation_config.max_length
            and generation_config.use_cache
            and generation_config.cache_implementation is None
            and generation_config.prefill_chunk_size is None
            and not (generation_config.return_dict_in_generate and generation_config.output_attentions)
            and not (generation_config.return_dict_in_generate and generation_config.output_hidden_states)
            and not generation_config.is_assistant
            and not getattr(cache, "_is_user_defined", False)
            and known.issuperset(model_kwargs)
            and input_ids.device.type == "cpu"
            and input_ids.numel() > 0
            and not (torch.is_grad_enabled() or torch.is_autocast_enabled("cpu") or is_torchdynamo_compiling())
            and can_decode_incrementally(self, cache)
        ):
            return None
        width = beams_per_row(self.lm_head.weight.dtype, num_beams)
        prompts, mask = input_ids[::width], None if mask is None else mask[::width]
        prompt_mask, source_mask, inputs = torch.ones_like(prompts), None, {"attention_mask": mask}
        if self.config.is_encoder_decoder:
            states = model_kwargs["encoder_outputs"][0][::width]
            inputs |= {"decoder_input_ids": prompts, "encoder_outputs": (states,)}
            source_mask = states.new_ones(states.shape[:2]) if mask is None else mask
            position = prompt_mask.sum(-1)
            has_known_shapes = len(states) == len(prompts) and source_mask.shape == states.shape[:2]
        else:
            prompt_mask = prompt_mask if mask is None else mask
            positions = model_kwargs.get("position_ids")
            if positions is None:
                positions = (prompt_mask.long().cumsum(-1) - 1).clamp(min=0)
            elif positions.shape != input_ids.shape:
                return None
            else:
                positions = positions[::width]
            inputs |= {"input_ids": prompts, "position_ids": positions}
            position = positions[:, -1] + 1
            has_known_shapes = prompt_mask.shape == prompts.shape
        max_new_tokens = generation_config.max_length - prompts.shape[1]
        if not has_known_shapes or int(position.max()) + max_new_tokens > longest + 1:
            return None
        outputs = self(**inputs, use_cache=True, logits_to_keep=1, return_dict=True)
        decoder = IncrementalDecoder(
            self, outputs.cache, position, prompt_mask, source_mask, num_beams, width, max_new_tokens
        )
        return decoder, outputs.logits[:: num_beams // width, -1]

    def _sample(
        self,
        input_ids: torch.Tensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        synced_gpus: bool = False,
        streamer=None,
        **model_kwargs,
    ):
        lists = (logits_processor, stopping_criteria)
        started = self._start_decoder(input_ids, lists, generation_config, synced_gpus, **model_kwargs)
        if started is None:
            return super()._sample(input_ids, *lists, generation_config, synced_gpus, streamer, **model_kwargs)
        with started[0].threads:
            outputs = sample(*started, input_ids, *lists, generation_config, streamer)
        return self._finish(started[0], outputs, generation_config, model_kwargs["cache"])

    def _assisted_decoding(
        self,
        input_ids: torch.Tensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        synced_gpus: bool = False,
        streamer=None,
        inputs_tensor: torch.Tensor | None = None,
        assistant_model: PreTrainedModel | None = None,
        assistant_tokenizer=None,
        tokenizer=None,
        **model_kwargs,
    ):
        started, lists = None, (logits_processor, stopping_criteria)
        drafts = {"inputs_tensor": inputs_tensor, "assistant_model": assistant_model}
        if assistant_tokenizer is None and len(input_ids) == 1:
            generator = self._get_candidate_generator(
                generation_config, input_ids, logits_processor=logits_processor, model_kwargs=model_kwargs, **drafts
            )
            if can_verify(generator, generation_config):
                started = self._start_decoder(input_ids, lists, generation_config, synced_gpus, **model_kwargs)
        if started is None:
            drafts |= {"assistant_tokenizer": assistant_tokenizer, "tokenizer": tokenizer, **model_kwargs}
            return super()._assisted_decoding(input_ids, *lists, generation_config, synced_gpus, streamer, **drafts)
        with started[0].threads:
            outputs = verify(*started, input_ids, generator, *lists, generation_config, streamer)
        return self._finish(started[0], outputs, generation_config, model_kwargs["cache"])

    def _beam_search(
        self,
        input_ids: torch.Tensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        synced_gpus: bool = False,
        **model_kwargs,
    ):
        num_beams, outputs, lists = int(generation_config.num_beams), None, (logits_processor, stopping_criteria)
        started = None
        if not generation_config.low_memory:
            started = self._start_decoder(input_ids, lists, generation_config, synced_gpus, num_beams, **model_kwargs)
        if started is not None:
            with started[0].threads:
                outputs = beam_search(*started, input_ids[::num_beams], *lists, generation_config)
        if started is None or outputs is None:
            return super()._beam_search(input_ids, *lists, generation_config, synced_gpus, **model_kwargs)
        return self._finish(started[0], outputs, generation_config, model_kwargs["cache"])

    def _finish(
        self, decoder: IncrementalDecoder, outputs: dict[str, Any], generation_config: GenerationConfig, cache: Cache
    ) -> torch.Tensor | ModelOutput:
        """The tokens, or with `return_dict_in_generate` all outputs and the filled cache."""
        if not generation_config.return_dict_in_generate:
            return outputs["sequences"]
        decoder.fill(cache)
        cls = OUTPUTS[self.config.is_encoder_decoder, decoder.num_beams > 1]
        return cls(**outputs, cache=cache)

    def prepare_inputs_for_generation(
        self,
        input_ids: torch.Tensor,
        *args,
        inputs_embeds: torch.Tensor | None = None,  # `generate` looks for the name
        slide_window: bool = False,
        **kwargs,
    ) -> dict[str, torch.Tensor]:
        """The next step's inputs: those of transformers, unless the window slides."""
        longest = self.config.max_position_embeddings
        if slide_window and input_ids.shape[1] > longest:
            input_ids = input_ids[:, -longest:]
            prefix = "decoder_" if self.config.is_encoder_decoder else ""
            mask, kwargs[f"{prefix}position_ids"] = kwargs.get(f"{prefix}attention_mask"), None
            if mask is not None:
                kwargs[f"{prefix}attention_mask"] = mask = mask[:, -longest:]
                kwargs[f"{prefix}position_ids"] = (mask.long().cumsum(-1) - 1).clamp(min=0)
            kwargs.update(next_sequence_length=None, cache=None, use_cache=False)
        return super().prepare_inputs_for_generation(input_ids, *args, inputs_embeds=inputs_embeds, **kwargs)
