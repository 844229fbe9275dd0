# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Every private name of another library that the package or the scripts read, call or override.

Private names may change without notice. A new version of a library is supported once test_private_names.py passes
with it: each name exists.
"""

from typing import NamedTuple


class PrivateName(NamedTuple):
    """Names of one owner that we need for one reason. Lists are divided by spaces.

    Fields:
        owner: the dotted path of a module or class.
        names: the private names.
        why: what we do with them, and why there is no public way.
    """

    owner: str
    names: str
    why: str


GENERATION = "transformers.generation.GenerationMixin"
MODEL = "transformers.PreTrainedModel"
TRAINER = "transformers.Trainer"
MODULE = "torch.nn.Module"

PRIVATE_NAMES = [
    # generate()
    PrivateName(
        GENERATION, "_sample _beam_search",
        "Called, where the loop on a CPU finds in a call that it cannot serve it.",
    ),
    PrivateName(
        GENERATION, "_pad_token_tensor _eos_token_tensor",
        "Read: the special tokens as `generate()` has resolved them from arguments, both configs and the "
        "model.",
    ),
    # the tokenizer with two vocabularies
    PrivateName(
        "transformers.PreTrainedTokenizerFast", "_decode _save_pretrained _tokenizer _auto_class",
        "Overridden and set to decode by the target's vocabulary, and to save it and this file: no public "
        "hook does.",
    ),
    PrivateName(
        "transformers.NllbTokenizer", "_switch_to_target_mode",
        "Defined, as NllbTokenizer does: transformers calls it before it encodes `text_target`.",
    ),
    # the models
    PrivateName(
        MODEL, "_init_weights",
        "Overridden for the initial weights, as each model of transformers does.",
    ),
    PrivateName(
        MODEL,
        "_supports_sdpa _supports_flash_attn _supports_flex_attn _supports_attention_backend "
        "_can_compile_fullgraph _skip_keys_device_placement",
        "Set to say what the model supports, as each model of transformers does.",
    ),
    PrivateName(
        MODEL, "_can_record_outputs _no_split_modules _tp_plan _fsdp_plan _tied_weights_keys",
        "Set to say which modules are recorded, sharded and tied, as each model of transformers does.",
    ),
    PrivateName(
        MODEL, "_resize_token_embeddings",
        "Overridden to resize the source embedding alone where the target has its own, as Marian does.",
    ),
    PrivateName(
        MODEL, "_get_resized_lm_head",
        "Called to resize the head with the target embedding, as Marian does.",
    ),
    PrivateName(
        MODEL, "_get_files_timestamps",
        "Overridden: `save_pretrained(push_to_hub=True)` uploads files that are newer than these times.",
    ),
    PrivateName(
        MODEL, "_auto_class",
        "Read: the Auto class that `register_for_auto_class` has noted on a user's subclass.",
    ),
    PrivateName(
        "transformers.PreTrainedConfig", "_attn_implementation",
        "Read: which attention function a layer calls, as each model of transformers does.",
    ),
    # whether calling a module runs the code of its class and nothing else
    PrivateName(
        MODULE,
        "_forward_hooks _forward_pre_hooks _backward_hooks _backward_pre_hooks",
        "Read: whether a module has hooks. torch has no public way to ask for them.",
    ),
    # Trainer
    PrivateName(
        TRAINER, "_get_collator_with_removed_columns",
        "Called for the DataLoader, as in Trainer's own.",
    ),
    PrivateName(
        MODEL, "_keys_to_ignore_on_save",
        "Set to the tied weights: Trainer warns, when it resumes, of all others that a checkpoint lacks.",
    ),
    PrivateName(
        TRAINER, "_get_train_sampler",
        "Compared: a user's trainer that overrides it has an order of its own.",
    ),
    PrivateName(
        TRAINER, "_train_batch_size",
        "Read: the batch size that `auto_find_batch_size` may have lowered.",
    ),
    PrivateName(
        "accelerate.Accelerator", "_original_forward",
        "Read: the `forward` that accelerate has put autocast around.",
    ),
    # pipelines, metrics
    PrivateName(
        "transformers.Pipeline", "_load_tokenizer _load_processor _load_image_processor _load_feature_extractor",
        "Set to say what a pipeline loads, as transformers' guide to pipelines says.",
    ),
    PrivateName(
        "transformers.Pipeline", "_sanitize_parameters _forward",
        "Overridden as transformers' guide to pipelines says.",
    ),
    PrivateName(
        "transformers.NllbTokenizer", "_build_translation_inputs",
        "Called: the inputs for a language to translate to, which each multilingual tokenizer makes in its own way.",
    ),
    PrivateName(
        "transformers.Pipeline", "_preprocess_params",
        "Read: the options given when the pipeline was made.",
    ),
    PrivateName(
        "evaluate.Metric", "_info _compute",
        "Overridden as evaluate's guide to metrics says.",
    ),
]  # fmt: skip

# Asked for, and not there: a user may add these, and `generate()` then calls or reads them.
OPTIONAL = {}
