# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Every private name of another library that the package or the scripts read, call or override.

Private names may change without notice. A new version of a library is supported once test_private_names.py passes
with it: each name exists.
"""

GENERATION = "transformers.generation.GenerationMixin"
MODEL = "transformers.PreTrainedModel"
TRAINER = "transformers.Trainer"
PIPELINE = "transformers.Pipeline"

# the path of a module or class, its names, and what we do with them for want of a public way
PRIVATE_NAMES = [
    # generate()
    (GENERATION, "_sample _beam_search", "Called, where the loop on a CPU finds in a call that it cannot serve it."),
    (
        GENERATION,
        "_pad_token_tensor _eos_token_tensor",
        "Read: the special tokens as `generate()` has resolved them from arguments, both configs and the model.",
    ),
    # the tokenizer with two vocabularies
    (
        "transformers.PreTrainedTokenizerFast",
        "_decode _save_pretrained _tokenizer _auto_class",
        "Overridden and set to decode by the target's vocabulary, and to save it and this file: no public hook does.",
    ),
    (
        "transformers.NllbTokenizer",
        "_switch_to_target_mode",
        "Defined, as NllbTokenizer does: transformers calls it before it encodes `text_target`.",
    ),
    # the models
    (MODEL, "_init_weights", "Overridden for the initial weights, as each model of transformers does."),
    (
        MODEL,
        "_supports_sdpa _supports_flash_attn _supports_flex_attn _supports_attention_backend "
        "_can_compile_fullgraph _skip_keys_device_placement "
        "_can_record_outputs _no_split_modules _tp_plan _fsdp_plan _tied_weights_keys",
        "Set to say what the model supports, and which modules are recorded, sharded and tied, as each model of "
        "transformers does.",
    ),
    (
        MODEL,
        "_resize_token_embeddings _get_resized_lm_head",
        "Overridden to resize the source embedding alone where the target has its own, and called to resize the head "
        "with the target's, as Marian does.",
    ),
    (
        MODEL,
        "_get_files_timestamps",
        "Overridden: `save_pretrained(push_to_hub=True)` uploads files that are newer than these times.",
    ),
    (MODEL, "_auto_class", "Read: the Auto class that `register_for_auto_class` has noted on a user's subclass."),
    (
        "transformers.PreTrainedConfig",
        "_attn_implementation",
        "Read: which attention function a layer calls, as each model of transformers does.",
    ),
    (
        "torch.nn.Module",
        "_forward_hooks _forward_pre_hooks _backward_hooks _backward_pre_hooks",
        "Read: whether calling a module runs the code of its class and nothing else.",
    ),
    # Trainer
    (TRAINER, "_get_collator_with_removed_columns", "Called for the DataLoader, as in Trainer's own."),
    (
        MODEL,
        "_keys_to_ignore_on_save",
        "Set to the tied weights: Trainer warns, when it resumes, of all others that a checkpoint lacks.",
    ),
    (TRAINER, "_get_train_sampler", "Compared: a user's trainer that overrides it has an order of its own."),
    (TRAINER, "_train_batch_size", "Read: the batch size that `auto_find_batch_size` may have lowered."),
    ("accelerate.Accelerator", "_original_forward", "Read: the `forward` that accelerate has put autocast around."),
    # pipelines, metrics
    (
        PIPELINE,
        "_load_tokenizer _load_processor _load_image_processor _load_feature_extractor _sanitize_parameters _forward",
        "Set to say what a pipeline loads, and overridden, as transformers' guide to pipelines says.",
    ),
    (
        "transformers.NllbTokenizer",
        "_build_translation_inputs",
        "Called: the inputs for a language to translate to, which each multilingual tokenizer makes in its own way.",
    ),
    (PIPELINE, "_preprocess_params", "Read: the options given when the pipeline was made."),
    ("evaluate.Metric", "_info _compute", "Overridden as evaluate's guide to metrics says."),
]
