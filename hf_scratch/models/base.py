# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""What both models promise transformers: how they are built, loaded and saved."""

import functools
import os
import shutil
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn
from transformers import initialization as init
from transformers.integrations import hub_kernels
from transformers.loss.loss_utils import ForCausalLMLoss, ForMaskedLMLoss
from transformers.modeling_utils import PreTrainedModel
from transformers.utils import logging

from .configuration_base import HubAttention, ScratchConfig, code_files, remove_old_code
from .layers import SinusoidalPositionalEmbedding
from .loss import LOSS_KWARGS, ScratchKwargs, linear_cross_entropy

logger = logging.get_logger(__name__)


class ScratchPreTrainedModel(PreTrainedModel):
    """The base of both models: what transformers may do with them, initial values, loading and saving."""

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

    def __init__(self, config: ScratchConfig, *args, **kwargs):
        if getattr(config, "share_encoder_decoder_embeddings", False):
            config.decoder_vocab_size = config.vocab_size  # users assign `config.vocab_size = len(tokenizer)`
        config.validate_architecture()  # fields may have been assigned after construction
        attention = config._attn_implementation
        if isinstance(attention, HubAttention) and not hub_kernels.ALLOW_ALL_KERNELS:
            raise ValueError(
                f"The config of {config.name_or_path!r} names an attention function on the Hub, {str(attention)!r}. "
                "Pass `trust_remote_code=True` to run its code, or another `attn_implementation`."
            )
        super().__init__(config, *args, **kwargs)

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
    @functools.wraps(PreTrainedModel.from_pretrained.__func__, assigned=())  # shows transformers' signature
    def from_pretrained(cls, pretrained_model_name_or_path, *args, output_loading_info: bool = False, **kwargs):
        """Load like any transformers model, but refuse the weights of another model. Adapters are not checked.

        transformers only reports missing and unexpected weights, and leaves missing ones random. Pass
        `output_loading_info=True` or `ignore_mismatched_sizes=True` to get that behaviour.

        Raises:
            ValueError: the weights have other names than this model's, or are damaged.
        """
        path = pretrained_model_name_or_path
        if kwargs.get("trust_remote_code"):
            kwargs.setdefault("allow_all_kernels", True)
        try:
            loaded: Any = super().from_pretrained(path, *args, output_loading_info=True, **kwargs)
        except SafetensorError as error:  # it names no file
            raise ValueError(f"The weights in {str(path)!r} are cut short or damaged: {error}.") from error
        model, info = loaded  # a pair, unlike transformers' annotation
        if output_loading_info:
            return model, info
        is_asked_for = kwargs.get("ignore_mismatched_sizes") or kwargs.get("gguf_file")
        # quantised weights have other names, and with an adapter the loading info covers only the adapter
        is_other = getattr(model, "hf_quantizer", None) is not None or hasattr(model, "peft_config")
        if path is not None and not (is_asked_for or is_other) and (problems := _misfits(model, info)):
            raise ValueError(
                f"{str(path)!r} does not hold the weights of a {cls.__name__}: {'; '.join(problems)}. Load it with "
                f"the class that saved it ({', '.join(model.config.architectures or ['unknown'])}), or pass "
                "`output_loading_info=True` to accept random values for missing weights."
            )
        return model

    @classmethod
    def is_remote_code(cls) -> bool:
        """False: `save_pretrained` copies the code itself.

        transformers would copy the file of `type(self)`, which is torch's for a model wrapped by FSDP2.
        """
        return False

    def take_loss_kwargs(self, skip_logits: bool | None, kwargs: ScratchKwargs) -> tuple[bool, dict]:
        """Remove the arguments of `linear_cross_entropy` from `kwargs`, and decide whether to skip the logits.

        A loss function of the user's own (`model.loss_function = ...`) and an `ignore_index` need the logits.

        Args:
            skip_logits: the caller's choice. None: the configuration's in training mode, else False.
            kwargs: those of `forward`.

        Returns:
            Whether to skip the logits, and the removed arguments.

        Raises:
            ValueError: such a loss with an argument that only `linear_cross_entropy` takes.
        """
        if skip_logits is None:
            skip_logits = self.training and self.config.skip_logits
        loss_kwargs = {name: kwargs.pop(name) for name in LOSS_KWARGS if name in kwargs}
        if self.loss_function not in (ForCausalLMLoss, ForMaskedLMLoss) or kwargs.get("ignore_index", -100) != -100:
            if used := [name for name, value in loss_kwargs.items() if value]:
                raise ValueError(
                    f"`{'`, `'.join(used)}` cannot be combined with a loss function or an `ignore_index` of "
                    "your own. Leave one of them out."
                )
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
        """The loss of both heads, in nats per token.

        Args:
            hidden_states: (batch, length, width), the head's input.
            logits: (batch, length, vocabulary); None computes the loss without them.
            labels: (batch, length), as `loss_function` takes them.
            targets: (batch, length), the token that each position predicts; -100 is ignored.
            loss_kwargs: what `take_loss_kwargs` removed.
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

    def save_pretrained(self, save_directory: str | os.PathLike, is_main_process: bool = True, *args, **kwargs):
        """Save like any transformers model, with the code beside the weights, for `trust_remote_code=True`."""
        is_saving = self.should_save_on_this_rank(is_main_process) and not os.path.isfile(save_directory)
        if is_saving:
            os.makedirs(save_directory, exist_ok=True)
            self._save_code(Path(save_directory))
        weights, source = dict(self.named_parameters(remove_duplicate=False)), self._tied_weights_keys or {}
        head = weights.get("lm_head.weight")
        if head is not None and head is weights.get(source.get("lm_head.weight", "")):
            self.config.tie_word_embeddings = True  # PEFT unties the config, but not the weights, of a merged model
        super().save_pretrained(save_directory, is_main_process, *args, **kwargs)
        if is_saving:
            copy_config_permissions(Path(save_directory))

    def _save_code(self, folder: Path) -> None:
        """Copy the model's code into `folder`, and name its classes in the config's `auto_map`.

        A user's subclass is named only after `register_for_auto_class`. Otherwise `auto_map` names our class that it
        derives from: the Auto classes load that one where this package is installed, and the code of a script or a
        notebook cannot be copied.
        """
        bases = type(self).__mro__
        family = next(base for base in bases if "auto_map" in vars(base))
        own = next(base for base in bases if not base.__module__.startswith("torch."))  # FSDP2 makes a subclass
        registered = next((base for base in bases if vars(base).get("_auto_class")), None)
        self.config.auto_map = dict(self.auto_map)
        files = code_files(family)
        if registered is not None and registered.__module__ != "__main__":
            name = f"{registered.__module__.split('.')[-1]}.{registered.__name__}"
            self.config.auto_map[vars(registered)["_auto_class"]] = name
            files += [path for path in code_files(registered) if path not in files]
        elif own.__module__ != family.__module__:
            logger.warning_once(
                f"The saved folder's `auto_map` does not name {own.__name__}: the Auto classes load a class of "
                f"{family.__module__} instead. Load it with {own.__name__}.from_pretrained, or move the class into a "
                "module and call `register_for_auto_class` on it."
            )
        remove_old_code(folder, files)
        for path in files:
            target = folder / path.name
            if not (target.is_file() and target.samefile(path)):
                shutil.copyfile(path, target)


def _misfits(model: ScratchPreTrainedModel, info: dict) -> list[str]:
    """How a model differs from the weights it was loaded from; an empty list means that all is right.

    Two differences are allowed: the head is missing when a base model was saved, and it is left over when a base
    model is loaded from a model with a head.

    Args:
        model: the loaded model.
        info: transformers' loading info, with `missing_keys` and `unexpected_keys`.
    """
    missing, unexpected, base = info["missing_keys"], info["unexpected_keys"], model.base_model_prefix
    if not hasattr(model, base):
        inside = {base, *(name for name, _ in model.named_children())}
        unexpected = [name for name in unexpected if name.split(".")[0] in inside]
    elif type(model).__name__ not in (model.config.architectures or []):
        missing = [name for name in missing if name.startswith(f"{base}.")]
    problems = []
    for kind, names in (("missing", sorted(missing)), ("unexpected", sorted(unexpected))):
        if names:
            more = f" and {len(names) - 2} more" if len(names) > 2 else ""
            problems.append(f"{kind}: {', '.join(names[:2])}{more}")
    return problems


def copy_config_permissions(folder: Path) -> None:
    """Give weight files the permissions of the config file: safetensors makes them readable by the owner alone."""
    config = next(folder.glob("*config.json"), None)
    if config is None:
        return
    for path in folder.glob("*.safetensors"):
        with suppress(PermissionError):  # a file of another user
            path.chmod(stat.S_IMODE(config.stat().st_mode))
