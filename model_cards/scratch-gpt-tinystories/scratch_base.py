# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""What both models promise transformers: initial values, saving with the code, the loss, and `generate()`."""

import functools
import inspect
import os
from typing import Any

import torch
from torch import nn
from transformers import initialization as init
from transformers.dynamic_module_utils import custom_object_save
from transformers.generation import GenerationMixin
from transformers.loss.loss_utils import ForCausalLMLoss, ForMaskedLMLoss
from transformers.modeling_utils import PreTrainedModel

from .scratch_layers import ON_CPU, SinusoidalPositionalEmbedding, is_2d
from .scratch_loss import LOSS_KWARGS, ScratchKwargs, linear_cross_entropy


class ScratchPreTrainedModel(PreTrainedModel):
    """The base of both models: what transformers may do with them, initial values, saving and the loss."""

    # for each Auto class, the "file.Class" that loads a saved folder without this package; each family sets its own
    auto_map: dict[str, str] = {}
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _skip_keys_device_placement = ["cache"]
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _can_compile_fullgraph = True

    @torch.no_grad()
    def _init_weights(self, module: nn.Module):
        initializer = self.config.initializer
        if isinstance(module, nn.Linear | nn.Embedding) and initializer in ("torch", "xavier_uniform_all"):
            module.reset_parameters()  # torch's own; while a checkpoint is loaded, transformers guards what it calls
        else:
            super()._init_weights(module)  # normal weights, zero biases and padding rows, unit LayerNorms
        if isinstance(module, nn.Linear) and initializer in ("xavier_uniform", "xavier_uniform_all"):
            init.xavier_uniform_(module.weight)
        if isinstance(module, nn.Embedding) and initializer == "xavier_uniform_all":
            init.xavier_uniform_(module.weight)
        if isinstance(module, SinusoidalPositionalEmbedding):
            init.copy_(module.weight, module.make_table())

    @classmethod
    def is_remote_code(cls) -> bool:
        """False, so that transformers copies no code: under FSDP2, it would copy torch's file of the wrapped class."""
        return False

    def save_pretrained(self, save_directory: str | os.PathLike, is_main_process: bool = True, *args, **kwargs):
        """Save like any transformers model, with the code beside the weights, for `trust_remote_code=True`.

        A user's subclass is saved with its code after `register_for_auto_class`. Give its configuration a `model_type`
        of its own: where this package is imported, the Auto classes load a registered class, not the folder's code.
        """
        if self.should_save_on_this_rank(is_main_process) and not os.path.isfile(save_directory):
            os.makedirs(save_directory, exist_ok=True)
            other = "AutoModelForMaskedLM" if getattr(self.config, "is_causal", True) else "AutoModelForCausalLM"
            auto_map = {**(getattr(self.config, "auto_map", None) or {}), **self.auto_map}
            self.config.auto_map = {name: path for name, path in auto_map.items() if name != other}
            bases: Any = type(self).__mro__[::-1]  # first the family's base, at last a user's subclass
            config: Any = self.config
            for base in bases:
                is_registered = vars(base).get("_auto_class") and base.__module__ != "__main__"
                if is_registered or vars(base).get("auto_map"):
                    custom_object_save(base.__new__(base), save_directory, config if is_registered else None)
        head = self.get_output_embeddings()
        if head is not None and head.weight is self.get_decoder().get_input_embeddings().weight:
            self.config.tie_word_embeddings = True  # PEFT unties the config, but not the weights, of a merged model
        super().save_pretrained(save_directory, is_main_process, *args, **kwargs)

    def _get_files_timestamps(self, working_dir: str | os.PathLike) -> dict[str, float]:
        # `push_to_hub=True` uploads what is newer: the code, which is copied before this is asked, counts as such
        times = super()._get_files_timestamps(working_dir)
        return {name: time for name, time in times.items() if not name.endswith(".py")}

    def take_loss_kwargs(self, skip_logits: bool | None, kwargs: ScratchKwargs) -> tuple[bool, dict]:
        """Remove the arguments of `linear_cross_entropy` from `kwargs`, and decide whether to skip the logits.

        A loss function of the user's own (`model.loss_function = ...`) or an `ignore_index` needs the logits.

        Args:
            skip_logits: the caller's choice. None: the configuration's in training mode, else False.
            kwargs: the keyword arguments of `forward`.

        Returns:
            Whether to skip the logits, and the removed arguments.

        Raises:
            ValueError: one of the two is combined with label smoothing, R-Drop or teachers.
        """
        if skip_logits is None:
            skip_logits = self.training and self.config.skip_logits
        loss_kwargs = {name: kwargs.pop(name) for name in LOSS_KWARGS if name in kwargs}
        if self.loss_function not in (ForCausalLMLoss, ForMaskedLMLoss) or kwargs.get("ignore_index", -100) != -100:
            if used := [name for name, value in loss_kwargs.items() if value]:
                raise ValueError(f"`{used[0]}` cannot be combined with a loss function or `ignore_index` of your own.")
            skip_logits = False
        return skip_logits, loss_kwargs

    def compute_loss(
        self,
        hidden_states: torch.Tensor,
        logits: torch.Tensor | None,
        labels: torch.Tensor,
        targets: torch.Tensor,
        loss_kwargs: dict,
        **kwargs,
    ) -> torch.Tensor:
        """The loss of the language models' heads, in nats per token.

        Args:
            hidden_states: (batch, length, width), the head's input.
            logits: (batch, length, vocabulary); None computes the loss without them.
            labels: (batch, length), those of the caller, for a `loss_function` of the user's own.
            targets: (batch, length), the token that each position predicts; -100 is ignored. A GPT's are shifted.
            loss_kwargs: what `take_loss_kwargs` removed.
            kwargs: passed to `loss_function`. The loss is divided by `num_items_in_batch`, by default the number of
                targets that are not ignored.

        Returns:
            A scalar.
        """
        if logits is None or any(loss_kwargs.values()):
            num_items = kwargs.get("num_items_in_batch")
            return linear_cross_entropy(
                hidden_states, self.lm_head, targets, num_items_in_batch=num_items, **loss_kwargs
            )
        vocab_size = getattr(self.config, "decoder_vocab_size", self.config.vocab_size)
        # in int64, which torch's loss asks for
        labels, targets = labels.contiguous().long(), targets.long()
        return self.loss_function(logits=logits, labels=labels, shift_labels=targets, vocab_size=vocab_size, **kwargs)


class ScratchGenerationMixin(ScratchPreTrainedModel, GenerationMixin):
    """`generate()` with a window that slides, and a place for a faster loop."""

    @functools.wraps(GenerationMixin.generate, assigned=())  # its signature
    def generate(self, *args, **kwargs):
        """As `GenerationMixin.generate`, with a window that slides and a faster loop on CPUs.

        If the package is imported and the model on a CPU has no changed modules or hooks, `hf_scratch.cpu` replaces
        transformers' decoding loop. Scores and logits agree with it up to rounding.
        `cache_implementation="dynamic"` always chooses transformers' loop.

        Args:
            slide_window: also an entry of a `GenerationConfig`. If True, generation continues beyond
                `max_position_embeddings`: each token is predicted from as many last tokens, at positions that count
                from 0 (as gpt-playground's `generate` does). Every token's position changes at each step, so no cache
                applies, and each step is a full forward pass. It needs `input_ids`, and no assisted generation, whose
                drafts need a cache of all tokens. Default: False.
            args, kwargs: those of `GenerationMixin.generate`.

        Returns:
            As `GenerationMixin.generate`.

        Raises:
            ValueError: generation could pass the last position; or the model is a GPT with a prompt tuned by PEFT
                0.21.
        """
        given = inspect.signature(super().generate).bind(*args, **kwargs).arguments
        kwargs = given.pop("kwargs", {}) | given
        # as in transformers, arguments come before entries of a config, in which None means the default
        options: dict[str, Any] = {}
        for config in filter(None, (self.generation_config, kwargs.get("generation_config"))):
            options |= {name: value for name, value in vars(config).items() if value is not None}
        options |= kwargs
        self._check_length(options)
        # PEFT puts its own method here for the time of a call
        peft_model = getattr(vars(self).get("prepare_inputs_for_generation"), "__self__", None)
        is_tuned_prompt = getattr(getattr(peft_model, "active_peft_config", None), "is_prompt_learning", False)
        if is_tuned_prompt and not self.config.is_encoder_decoder:
            raise ValueError(
                "PEFT 0.21 does not know `cache`, and would read a tuned prompt again and again: use LoRA."
            )
        kwargs.pop("slide_window", None)
        if options.get("slide_window"):
            kwargs["window"] = self.config.max_position_embeddings
        if loop := ON_CPU.get("decoding_loop", lambda *_: None)(self, options):
            kwargs["custom_generate"] = loop
        return super().generate(**kwargs)

    def _check_length(self, options: dict[str, Any]) -> None:
        """Raise ValueError where the prompt and `max_length` or `max_new_tokens` need more positions than there are.

        The last generated token is never read, so it needs no position.
        """
        embeds, mask, longest = options.get("inputs_embeds"), None, self.config.max_position_embeddings
        can_slide = embeds is None and not any(map(options.get, ("assistant_model", "prompt_lookup_num_tokens")))
        if self.config.is_encoder_decoder:
            ids, embeds = options.get("decoder_input_ids"), None
        else:
            ids, mask = options.get("inputs"), options.get("attention_mask")
            ids = options.get("input_ids") if ids is None else ids
        given = ids if embeds is None else embeds
        length = 1 if given is None else given.shape[1]
        start = options.get("decoder_start_token_id")
        if self.config.is_encoder_decoder and ids is not None and start is not None:
            missing = ids[:, 0] != torch.as_tensor(start, device=ids.device)
            length += int(missing.all())  # transformers prepends a start token that is missing
        # transformers' default is 20 new tokens, and with `input_ids` no more than positions
        default = 20 if embeds is not None else max(min(20, longest - length), 1)
        new = options.get("max_new_tokens") or (options.get("max_length") or length + default) - length
        if is_2d(mask):  # padding takes no position; with a cache, the ids may be the new ones alone
            length = int(torch.as_tensor(mask).count_nonzero(-1).max())
        if length + new > longest + 1 and not (options.get("slide_window") and can_slide):
            raise ValueError(
                f"Generation could reach {length + new} tokens, {length} of them given, but `max_position_embeddings` "
                f"of this model is {longest}. Set a lower `max_new_tokens` or `max_length`, or `slide_window=True` "
                "with `input_ids` and without assisted generation."
            )

    def prepare_inputs_for_generation(
        self,
        input_ids: torch.Tensor,
        *args,
        inputs_embeds: torch.Tensor | None = None,  # `generate` looks for the name
        window: int | None = None,
        **kwargs,
    ) -> dict[str, torch.Tensor]:
        """The next step's inputs: transformers' own, unless the text is longer than the sliding window."""
        mask: Any = kwargs.get("decoder_attention_mask")
        if is_2d(mask) and kwargs.get("decoder_position_ids") is None:
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
