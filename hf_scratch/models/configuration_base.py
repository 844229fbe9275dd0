# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""The base of both configurations: checks of fields, and saving with the code."""

import inspect
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional, TypeVar

from transformers.configuration_utils import PreTrainedConfig
from transformers.dynamic_module_utils import get_relative_import_files
from transformers.utils.versions import require_version

# a saved folder brings this file along, but not the package's requirements
require_version("transformers>=5.24")

INITIALIZERS = ("normal", "xavier_uniform", "xavier_uniform_all", "torch")

LORA_TARGETS = ["q_proj", "v_proj"]  # where LoRA is put by default (Hu et al. 2021, section 7.1)

# the type of a field whose default, None, is replaced at construction: `@strict` accepts None, readers never see it
if TYPE_CHECKING:
    T = TypeVar("T")
    Derived = Annotated[T, "None until the configuration is constructed"]
else:
    Derived = Optional


class HubAttention(str):
    """An attention function on the Hub that a `config.json` names, and not the caller: remote code."""


class ScratchConfig(PreTrainedConfig):
    """A configuration that refuses fields from which no model can be built."""

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs):
        """Read what a file holds. Code on the Hub that it names is marked, for the model to refuse."""
        config_dict = dict(config_dict)
        named = config_dict.pop("_attn_implementation", None) or config_dict.get("attn_implementation")
        config_dict["attn_implementation"] = HubAttention(named) if "/" in str(named) else named
        return super().from_dict(config_dict, **kwargs)

    def to_dict(self) -> dict[str, Any]:
        """All fields. PEFT reads them before it looks up the modules to adapt, so it is told of ours here."""
        if (peft := sys.modules.get("peft.utils")) is not None:
            peft.TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING.setdefault(self.model_type, LORA_TARGETS)
        return super().to_dict()

    def to_diff_dict(self) -> dict[str, Any]:
        """What `config.json` holds: every field but `skip_logits`, which belongs to a run and not to a model."""
        return {name: value for name, value in super().to_diff_dict().items() if name != "skip_logits"}

    def save_pretrained(self, save_directory, *args, **kwargs):
        """Save `config.json` with the code beside it, for `trust_remote_code=True`."""
        if type(self).__module__ != "__main__":
            remove_old_code(Path(save_directory), code_files(type(self)))
        super().save_pretrained(save_directory, *args, **kwargs)

    def _check_aliases(self) -> None:
        """Check the fields with an alias in `attribute_map`: `@strict` does not check what an alias sets."""
        for name in self.attribute_map.values():
            setattr(self, name, getattr(self, name))

    def _check_derived(self, *names: str) -> None:
        """Raise ValueError for None in fields whose default is computed from other fields at construction."""
        for name in names:
            if getattr(self, name) is None:
                raise ValueError(
                    f"`{name}` is None. That means a default only when the config is constructed: set a value."
                )

    def _check_heads(self, name: str, width: str) -> None:
        """Raise ValueError unless the number of heads divides the width, or `head_dim` is set."""
        heads, shared = getattr(self, name), getattr(self, width)
        if self.head_dim is None and shared % heads:
            raise ValueError(
                f"`{name}` ({heads}) does not divide `{width}` ({shared}). Choose a divisor, or set `head_dim`."
            )

    def _check_choice(self, name: str, choices: tuple) -> None:
        """Raise ValueError unless the field is one of `choices`."""
        if getattr(self, name) not in choices:
            raise ValueError(f"`{name}` must be {' or '.join(map(repr, choices))}, got {getattr(self, name)!r}.")

    def _check_scale(self, *names: str) -> None:
        """Raise ValueError unless the fields are greater than 0 and at most 1; nan is refused too."""
        for name in names:
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"`{name}` must be greater than 0 and at most 1, got {getattr(self, name)}.")

    def _check_token_ids(self, names: tuple[str, ...], vocab_size: int) -> None:
        """Raise ValueError for a special token's id that is outside the vocabulary, and for an empty list of ids."""
        for name in names:
            ids = getattr(self, name)
            if ids == []:
                raise ValueError(f"`{name}` is an empty list: give at least one id, or None.")
            for token_id in ids if isinstance(ids, list) else [ids]:
                if token_id is not None and not 0 <= token_id < vocab_size:
                    raise ValueError(f"`{name}` is {token_id}, outside the vocabulary of {vocab_size} tokens.")


def code_files(defined: type) -> list[Path]:
    """The file that defines a class, and the files beside it that it imports, directly or not."""
    source = Path(inspect.getfile(defined))
    return [source, *(Path(path) for path in dict.fromkeys(get_relative_import_files(source)))]


def remove_old_code(folder: Path, files: list[Path]) -> None:
    """Remove the files of `folder` that `files` are about to be copied onto.

    A published folder of this repository holds links to the package's code. Copying onto a link would overwrite the
    package's file, and copying a file onto itself is an error. Once the links are gone, the folder gets copies, and
    can be moved anywhere.
    """
    for path in files:
        target = folder / path.name
        if target.is_symlink() or target.resolve() != path.resolve():
            target.unlink(missing_ok=True)


__all__ = ["ScratchConfig"]
