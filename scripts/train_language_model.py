#!/usr/bin/env python
# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Train a GPT on texts.

python scripts/train_language_model.py scripts/recipes/tinystories_article.yaml \
    --dataset_name roneneldan/TinyStories --output_dir OUT
"""

import logging

from transformers import (
    AutoModelForCausalLM,
    GenerationConfig,
    TrainingArguments,
    default_data_collator,
    set_seed,
)

from hf_scratch import ScratchGPTConfig, ScratchGPTForCausalLM
from hf_scratch.data.loading import describe_split, load_from_arguments
from hf_scratch.data.texts import pack_texts, take_texts
from hf_scratch.errors import command, preparation
from hf_scratch.evaluation.language_modeling import check_answers, evaluate_answers, evaluate_language_model
from hf_scratch.loading import check_fits, check_json_files, load_first_model, load_first_tokenizer
from hf_scratch.reporting.cards import write_language_model_card
from hf_scratch.reporting.plots import plot_learning_curve
from hf_scratch.tokenization import report_unknown, train_tokenizer
from hf_scratch.training.arguments import (
    LanguageModelArguments,
    ModelArguments,
    check_validation_data,
    prepare_arguments,
)
from hf_scratch.training.averaging import check_average, evaluate_and_select_weights, save_final_model
from hf_scratch.training.callbacks import stopping_callbacks
from hf_scratch.training.checkpoints import check_same_weights
from hf_scratch.training.parsing import parse_arguments, parse_overrides
from hf_scratch.training.runs import on_main_process, open_run
from hf_scratch.training.trainers import LanguageModelTrainer

logger = logging.getLogger("train_language_model")


def prepare(model_args, data_args, args, config_overrides: dict, checkpoint: str | None):
    """The trainer, and the texts of each split."""
    if model_args.model_name_or_path is not None:
        check_json_files(model_args.model_name_or_path)
    model = load_first_model(AutoModelForCausalLM, model_args, config_overrides)
    with args.main_process_first(desc="data"):
        splits = load_from_arguments(data_args, model_args.cache_dir)
        texts = {
            name: take_texts(rows, data_args.text_column, describe_split(data_args, name))
            for name, rows in splits.items()
        }
    check_validation_data(args, splits)
    check_average(args, data_args.average_checkpoints)

    def make_tokenizer():
        if (tokenizer := load_first_tokenizer(model_args, checkpoint)) is not None:
            return tokenizer
        kind = model_args.tokenizer_kind or "bpe"
        return train_tokenizer(
            texts["train"]["text"], kind, model_args.vocab_size, data_args.block_size, add_eos=False
        )

    tokenizer = on_main_process(make_tokenizer)
    with args.main_process_first(desc="packing"):
        packed = {
            name: pack_texts(
                rows,
                tokenizer,
                data_args.block_size,
                data_args.attend_across_texts,
                name,
                data_args.preprocessing_num_workers,
            )
            for name, rows in texts.items()
            if name != "test"
        }
    for name, rows in texts.items():
        report_unknown(tokenizer, rows["text"], name)

    if model is None:
        config = ScratchGPTConfig(
            **{
                "vocab_size": len(tokenizer),
                "max_position_embeddings": data_args.block_size,
                "pad_token_id": tokenizer.pad_token_id,
                "bos_token_id": tokenizer.bos_token_id,
                "eos_token_id": tokenizer.eos_token_id,
                **config_overrides,
            },
            attn_implementation=model_args.attn_implementation,
        )
        model = ScratchGPTForCausalLM(config)
    check_fits(tokenizer, model.config)
    if checkpoint is not None:
        check_same_weights(model, checkpoint)
    for name in ("validation", "test"):
        if name in texts and data_args.answer_after is not None:
            check_answers(texts[name]["text"], data_args.answer_after, describe_split(data_args, name))
    longest = getattr(model.config, "max_position_embeddings", None)
    if longest is not None and data_args.block_size > longest:
        raise ValueError(
            f"`block_size` is {data_args.block_size}, but the model has {longest} positions "
            "(`max_position_embeddings`). Lower the one, or raise the other."
        )
    model.generation_config = GenerationConfig(
        pad_token_id=model.config.pad_token_id,
        bos_token_id=model.config.bos_token_id,
        eos_token_id=model.config.eos_token_id,
        max_length=model.config.max_position_embeddings,
        do_sample=True,
    )
    logger.info(f"{model.num_parameters():,} parameters, {len(tokenizer)} tokens, {len(packed['train'])} rows")

    trainer = LanguageModelTrainer(
        model=model,
        args=args,
        train_dataset=packed["train"],
        eval_dataset=packed.get("validation"),
        data_collator=default_data_collator,
        processing_class=tokenizer,
        decay_all_parameters=data_args.decay_all_parameters,
        r_drop_alpha=data_args.r_drop_alpha,
        callbacks=stopping_callbacks(data_args, args),
    )
    return trainer, texts


def train(trainer: LanguageModelTrainer, texts: dict, data_args, recipe: str, checkpoint: str | None):
    """Train, choose the weights, save and score them, and write the card."""
    args, tokenizer = trainer.args, trainer.processing_class
    result = trainer.train(resume_from_checkpoint=checkpoint)
    trainer.log_metrics("train", result.metrics)
    trainer.save_metrics("train", result.metrics)

    metrics = {}
    if "validation" in texts:
        metrics = evaluate_and_select_weights(trainer, data_args.average_checkpoints)
    save_final_model(trainer)
    if args.should_save:
        saved = AutoModelForCausalLM.from_pretrained(args.output_dir).to(args.device)  # without autocast
        results = {}
        plot_learning_curve(trainer.state.log_history, args.output_dir)
        weights = {"weights": metrics.get("weights", "trained")}
        write_language_model_card(trainer, data_args, recipe, weights, {})  # the evaluations may fail yet
        for name in ("validation", "test"):
            if name in texts:
                rows = texts[name]["text"]
                results[name] = evaluate_language_model(saved, tokenizer, rows)
                if data_args.answer_after is not None:
                    results[name] |= evaluate_answers(saved, tokenizer, rows, data_args.answer_after)
                trainer.log_metrics(name, results[name])
                trainer.save_metrics(name, results[name])
        validation = {**results.get("validation", {}), **weights}
        write_language_model_card(trainer, data_args, recipe, validation, results.get("test", {}))
        print(f"The model, its curve and its card are in {args.output_dir}")


@command
def main():
    with preparation():
        (model_args, data_args, args), recipe = parse_arguments(
            ModelArguments, LanguageModelArguments, TrainingArguments
        )
        prepare_arguments(args)
        set_seed(args.seed)
        config_overrides = parse_overrides(model_args.config_overrides, ScratchGPTConfig)
    with open_run(args) as checkpoint:
        with preparation():
            trainer, texts = prepare(model_args, data_args, args, config_overrides, checkpoint)
        train(trainer, texts, data_args, recipe, checkpoint)


if __name__ == "__main__":
    main()
