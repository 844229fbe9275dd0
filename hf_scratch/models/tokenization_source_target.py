# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""One tokenizer object with two vocabularies, for a translator whose source and target share none.

Its interface is Marian's: `tokenizer(texts)` encodes sources, `tokenizer(text_target=texts)` encodes targets, and
`decode` reads target ids. So transformers' collators, Trainer and pipelines use it like any other tokenizer.
"""

import copy
import os

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

TARGET_FILE = "target_tokenizer.json"


class SourceTargetTokenizer(PreTrainedTokenizerFast):
    """A source tokenizer that holds a target tokenizer.

    A saved folder has the source in `tokenizer.json`, the target in `target_tokenizer.json`, and this file, so that
    `AutoTokenizer` also loads it with `trust_remote_code=True`. The special tokens have the same ids in both.

    The vocabulary, `len()`, `tokenize`, `add_tokens` and `convert_...` are the source's. With
    `use_source_tokenizer=True`, `decode` reads source ids.

    Args:
        target_tokenizer_object: the target tokenizer; it is copied.
        target_tokenizer_file: a file of the target tokenizer, in place of the object.
        kwargs: passed to `PreTrainedTokenizerFast`, for the source.

    Raises:
        ValueError: there is no target tokenizer, or a special token has another id in it.
    """

    vocab_files_names = {"tokenizer_file": "tokenizer.json", "target_tokenizer_file": TARGET_FILE}
    _auto_class = "AutoTokenizer"  # `save_pretrained` copies this file

    def __init__(
        self,
        *args,
        target_tokenizer_object: Tokenizer | None = None,
        target_tokenizer_file: str | None = None,
        **kwargs,
    ):
        super().__init__(*args, **kwargs)
        if target_tokenizer_object is not None:
            self.target_tokenizer = copy.deepcopy(target_tokenizer_object)
        elif target_tokenizer_file is not None:
            self.target_tokenizer = Tokenizer.from_file(target_tokenizer_file)
        else:
            raise ValueError(f"There is no target tokenizer: the folder has no {TARGET_FILE}.")
        for token, token_id in zip(self.all_special_tokens, self.all_special_ids, strict=True):
            if self.target_tokenizer.token_to_id(token) != token_id:
                raise ValueError(f"The special token {token!r} is {token_id} in the source, but not in the target.")

    @classmethod
    def convert_to_native_format(cls, trust_remote_code=False, **kwargs):
        """Leave the arguments as they are: transformers would take the source's file apart and lose its rules."""
        return kwargs

    def _switch_to_target_mode(self):
        self._tokenizer = self.target_tokenizer

    def __call__(self, *args, **kwargs):
        """As transformers'. It switches the vocabulary of a copy: another thread may be encoding with `self`."""
        return super(SourceTargetTokenizer, copy.copy(self)).__call__(*args, **kwargs)

    def _decode(self, *args, use_source_tokenizer: bool = False, **kwargs) -> str:
        if use_source_tokenizer:
            return super()._decode(*args, **kwargs)
        reader = copy.copy(self)  # another thread may be encoding with `self`
        reader._switch_to_target_mode()
        return super(SourceTargetTokenizer, reader)._decode(*args, **kwargs)

    def add_special_tokens(self, special_tokens_dict: dict, *args, **kwargs) -> int:
        """As transformers', for tokens that both vocabularies have with the same id.

        Raises:
            ValueError: naming a token that they do not have.
        """
        values = [value if isinstance(value, list | tuple) else [value] for value in special_tokens_dict.values()]
        tokens = [token for each in values for token in each]
        for token in map(str, tokens):
            token_id = self.backend_tokenizer.token_to_id(token)
            if token_id is None or token_id != self.target_tokenizer.token_to_id(token):
                raise ValueError(
                    f"The special token {token!r} must have the same id in both vocabularies. Train them with it, "
                    "or add it to the source alone: `add_tokens(..., special_tokens=True)`."
                )
        self.target_tokenizer.add_special_tokens(tokens)
        return super().add_special_tokens(special_tokens_dict, *args, **kwargs)

    def _save_pretrained(self, save_directory, file_names, legacy_format=None, filename_prefix=None):
        names = super()._save_pretrained(save_directory, file_names, legacy_format, filename_prefix)
        target = os.path.join(save_directory, f"{filename_prefix}-{TARGET_FILE}" if filename_prefix else TARGET_FILE)
        self.target_tokenizer.save(target)
        return (*names, target)


__all__ = ["SourceTargetTokenizer"]
