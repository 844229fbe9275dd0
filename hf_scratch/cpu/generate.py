# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""The decoding loop that `generate()` of our models runs on a CPU, as a `custom_generate` of transformers."""

from collections.abc import Callable
from typing import Any

import torch
from transformers.generation import BaseStreamer, GenerationConfig, LogitsProcessorList, StoppingCriteriaList
from transformers.utils.import_utils import is_torchdynamo_compiling

from ..models.scratch_base import ScratchGenerationMixin
from .beam_search import beam_search
from .decoder import IncrementalDecoder, beams_per_row
from .eligibility import can_decode, is_dynamic
from .greedy_and_sampling import sample

# The arguments of `generate()` and entries of a GenerationConfig that the loop obeys. Any other that is set falls back
# to transformers' loop: other modes, caches and outputs, a user's stopping criteria, what `generate()` does not hand
# to a `custom_generate`, and whatever a later transformers adds.
KNOWN = {
    # lengths and search
    "max_length", "max_new_tokens", "min_length", "min_new_tokens", "do_sample", "num_beams", "num_return_sequences",
    "length_penalty", "early_stopping", "slide_window", "use_cache",
    # processors of the scores
    "logits_processor", "prefix_allowed_tokens_fn", "temperature", "top_k", "top_p", "min_p", "top_h", "typical_p",
    "epsilon_cutoff", "eta_cutoff", "repetition_penalty", "encoder_repetition_penalty", "no_repeat_ngram_size",
    "encoder_no_repeat_ngram_size", "bad_words_ids", "renormalize_logits", "forced_bos_token_id",
    "forced_eos_token_id", "remove_invalid_values", "exponential_decay_length_penalty", "suppress_tokens",
    "begin_suppress_tokens", "sequence_bias", "guidance_scale", "negative_prompt_ids",
    "negative_prompt_attention_mask", "watermarking_config",
    # inputs and outputs
    "inputs", "input_ids", "attention_mask", "position_ids", "decoder_input_ids", "encoder_outputs", "labels",
    "logits_to_keep", "pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id", "streamer",
    # these change nothing here
    "generation_config", "disable_compile", "transformers_version",
}  # fmt: skip
# the prepared arguments of `forward` that the loop reads, and the labels, which no loop does
ARGUMENTS = {"attention_mask", "position_ids", "cache", "use_cache", "encoder_outputs", "logits_to_keep", "labels"}


def choose_loop(model: ScratchGenerationMixin, options: dict[str, Any]) -> Callable | None:
    """The loop for a call of `generate()` with these arguments and entries of its configs; None: transformers'."""
    given = {name for name, value in options.items() if not (value is None or value is False or name.startswith("_"))}
    streamer = options.get("streamer")
    if not given <= KNOWN or (streamer is not None and (options.get("num_beams") or 1) > 1) or not can_decode(model):
        return None

    def loop(
        model: Any,
        input_ids: torch.Tensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        **model_kwargs,
    ) -> torch.Tensor:
        sequences = decode(model, input_ids, logits_processor, generation_config, streamer, **model_kwargs)
        if sequences is not None:
            return sequences
        arguments = (input_ids, logits_processor, stopping_criteria, generation_config)
        if generation_config.num_beams > 1:
            return model._beam_search(*arguments, **model_kwargs)
        return model._sample(*arguments, streamer=streamer, **model_kwargs)

    return loop


def decode(
    model: ScratchGenerationMixin,
    input_ids: torch.Tensor,
    logits_processor: LogitsProcessorList,
    generation_config: GenerationConfig,
    streamer: BaseStreamer | None,
    **model_kwargs,
) -> torch.Tensor | None:
    """The token ids that transformers' loop returns for the same arguments; None: this call needs that loop."""
    num_beams = int(generation_config.num_beams)
    if not _serves(model, input_ids, generation_config, model_kwargs):
        return None
    started = start(model, input_ids, generation_config.max_length, num_beams, **model_kwargs)
    if started is None:
        return None
    decoder, logits = started
    if num_beams > 1:
        return beam_search(decoder, logits, input_ids[::num_beams], logits_processor, generation_config)
    return sample(decoder, logits, input_ids, logits_processor, generation_config, streamer)


def _serves(
    model: ScratchGenerationMixin, input_ids: torch.Tensor, config: GenerationConfig, model_kwargs: dict[str, Any]
) -> bool:
    known = set(ARGUMENTS)
    if config.max_length <= model.config.max_position_embeddings + 1:
        known.add("window")  # this length never reaches the window's edge
    return (
        known.issuperset(model_kwargs)
        and isinstance(model_kwargs.get("logits_to_keep", 1), int)
        and input_ids.device.type == "cpu"
        and input_ids.numel() > 0
        and config.use_cache
        and is_dynamic(model_kwargs.get("cache"))
        and not (torch.is_grad_enabled() or torch.is_autocast_enabled("cpu") or is_torchdynamo_compiling())
    )


def start(
    model: ScratchGenerationMixin, input_ids: torch.Tensor, max_length: int, num_beams: int, **model_kwargs
) -> tuple[IncrementalDecoder, torch.Tensor] | None:
    """A decoder that has read the prompts, and the next logits (batch, vocabulary); None: a mask of another shape."""
    width = beams_per_row(model.lm_head.weight.dtype, num_beams)
    mask, prompts = model_kwargs.get("attention_mask"), input_ids[::width]
    mask = None if mask is None else mask[::width]
    prompt_mask, source_mask, inputs = torch.ones_like(prompts), None, {"attention_mask": mask}
    if model.config.is_encoder_decoder:
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
    max_new_tokens = max_length - prompts.shape[1]
    if not has_known_shapes or int(position.max()) + max_new_tokens > model.config.max_position_embeddings + 1:
        return None
    outputs = model(**inputs, use_cache=True, logits_to_keep=1, return_dict=True)
    decoder = IncrementalDecoder(
        model, outputs.cache, position, prompt_mask, source_mask, num_beams, width, max_new_tokens
    )
    return decoder, outputs.logits[:: num_beams // width, -1]
