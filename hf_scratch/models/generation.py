# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""What our models add to transformers' `generate()`: what happens at the last position, and a faster way there."""

import math

import torch
from torch import nn
from transformers.generation import (
    EosTokenCriteria,
    GenerationConfig,
    GenerationMixin,
    GenerationMode,
    LogitsProcessorList,
    MaxLengthCriteria,
    StoppingCriteriaList,
)

from .decoding import IncrementalDecoder, beam_search, is_plain


class ScratchGenerationMixin(GenerationMixin):
    """`generate()` that knows the model's last position, and on a CPU runs an `IncrementalDecoder` after the prompt.

    The latter gives the same tokens. It leaves to transformers what it does not know: when more than the tokens is
    asked for (`return_dict_in_generate`), a cache is given or chosen (`cache_implementation="dynamic"` is always
    transformers' way), beams are sampled or their scores processed, or the model has hooks, adapters, shards or
    quantised weights.

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

    def _prepare_cache_for_generation(self, generation_config: GenerationConfig, model_kwargs: dict, *args, **kwargs):
        generation_config.cache_is_own = model_kwargs.get("past_key_values") is None
        return super()._prepare_cache_for_generation(generation_config, model_kwargs, *args, **kwargs)

    def _start_decoder(
        self, input_ids: torch.LongTensor, generation_config: GenerationConfig, num_beams: int, **model_kwargs
    ) -> tuple[IncrementalDecoder, torch.Tensor] | None:
        """A decoder that has read the prompts (batch, length), and the next logits (batch, vocabulary); or None."""
        known = {"attention_mask", "position_ids", "past_key_values", "use_cache", "encoder_outputs", "logits_to_keep"}
        if generation_config.max_length <= self.config.max_position_embeddings + 1:
            known.add("slide_window")  # it will not come to that
        mask = model_kwargs.get("attention_mask")
        if not (
            generation_config.use_cache
            and generation_config.cache_implementation is None
            and generation_config.cache_is_own
            and generation_config.prefill_chunk_size is None
            and not generation_config.return_dict_in_generate
            and not generation_config.is_assistant
            and known.issuperset(model_kwargs)
            and input_ids.shape[1] > 0
            and (mask is None or mask.dim() == 2)
            and is_plain(self)
        ):
            return None
        prompts, mask = input_ids[::num_beams], None if mask is None else mask[::num_beams]
        prompt_mask, source_mask, inputs = torch.ones_like(prompts), None, {"attention_mask": mask}
        if self.config.is_encoder_decoder:
            states = model_kwargs["encoder_outputs"][0][::num_beams]
            inputs |= {"decoder_input_ids": prompts, "encoder_outputs": (states,)}
            source_mask = torch.ones(states.shape[:2]) if mask is None else mask
            position = prompt_mask.sum(-1)
        else:
            prompt_mask = prompt_mask if mask is None else mask
            positions = model_kwargs.get("position_ids")
            if positions is None:
                positions = (prompt_mask.long().cumsum(-1) - 1).clamp(min=0)
            positions = positions.expand(len(input_ids), -1)[::num_beams]
            inputs |= {"input_ids": prompts, "position_ids": positions}
            position = positions[:, -1] + 1
        outputs = self(**inputs, use_cache=True, logits_to_keep=1)
        max_new_tokens = generation_config.max_length - prompts.shape[1]
        decoder = IncrementalDecoder(
            self, outputs.past_key_values, position, prompt_mask, source_mask, num_beams, max_new_tokens
        )
        return decoder, outputs.logits[:, -1]

    def _sample(
        self,
        input_ids: torch.LongTensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        synced_gpus: bool = False,
        streamer=None,
        **model_kwargs,
    ):
        started = None if synced_gpus else self._start_decoder(input_ids, generation_config, 1, **model_kwargs)
        if started is None:
            return super()._sample(
                input_ids,
                logits_processor,
                stopping_criteria,
                generation_config,
                synced_gpus,
                streamer,
                **model_kwargs,
            )
        decoder, logits = started
        pad_token_id = generation_config._pad_token_tensor
        ends = [criterion.eos_token_id for criterion in stopping_criteria if hasattr(criterion, "eos_token_id")]
        limits = [criterion.max_length for criterion in stopping_criteria if isinstance(criterion, MaxLengthCriteria)]
        others = any(not isinstance(c, (MaxLengthCriteria, EosTokenCriteria)) for c in stopping_criteria)
        unfinished = torch.ones(len(input_ids), dtype=torch.long)
        rows = torch.arange(len(input_ids))  # those that the decoder still holds
        while True:
            scores = logits_processor(input_ids, logits.to(copy=True, dtype=torch.float32))
            if generation_config.do_sample:
                tokens = torch.multinomial(nn.functional.softmax(scores, dim=-1), num_samples=1).squeeze(1)
            else:
                tokens = torch.from_numpy(scores.numpy().argmax(-1))  # a tenth of torch's time for one row
            if ends:
                tokens = tokens * unfinished + pad_token_id * (1 - unfinished)
            input_ids = torch.cat([input_ids, tokens[:, None]], dim=-1)
            if streamer is not None:
                streamer.put(tokens)
            if others:
                unfinished = unfinished & ~stopping_criteria(input_ids, None)
            for end in ends:
                unfinished = unfinished & ~torch.isin(tokens, end)
            if input_ids.shape[1] >= min(limits, default=math.inf) or not unfinished.any():
                break
            if ends and 4 * unfinished.sum() < 3 * len(rows):  # a quarter has ended: worth a copy of the others
                kept = unfinished[rows].nonzero()[:, 0]
                decoder.keep(kept)
                rows = rows[kept]
            if len(rows) == len(tokens):
                logits = decoder.step(tokens[:, None])[:, 0]
            else:
                logits = logits.clone()  # those of finished rows do not matter
                logits[rows] = decoder.step(tokens[rows, None])[:, 0]
        if streamer is not None:
            streamer.end()
        return input_ids

    def _beam_search(
        self,
        input_ids: torch.LongTensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        synced_gpus: bool = False,
        **model_kwargs,
    ):
        num_beams = generation_config.num_beams
        is_usual = not (synced_gpus or generation_config.do_sample or len(logits_processor)) and all(
            (isinstance(criterion, MaxLengthCriteria) and criterion.max_length == generation_config.max_length)
            or (
                isinstance(criterion, EosTokenCriteria)
                and torch.equal(criterion.eos_token_id, generation_config._eos_token_tensor)
            )
            for criterion in stopping_criteria
        )
        started = self._start_decoder(input_ids, generation_config, num_beams, **model_kwargs) if is_usual else None
        if started is None:
            return super()._beam_search(
                input_ids, logits_processor, stopping_criteria, generation_config, synced_gpus, **model_kwargs
            )
        num_return_sequences = generation_config.num_return_sequences or 1
        return beam_search(*started, input_ids[::num_beams], num_return_sequences, generation_config)

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
