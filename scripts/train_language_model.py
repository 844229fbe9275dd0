#!/usr/bin/env python
# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Train a GPT on texts.

python scripts/train_language_model.py scripts/recipes/tinystories_article.yaml \
    --dataset_name roneneldan/TinyStories --output_dir OUT
"""

import logging
import time
from contextlib import suppress
from functools import partial

import hf_scratch_launcher  # noqa: F401  before torch, whose OpenMP it sets
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, GenerationConfig, TrainingArguments

from hf_scratch import ScratchGPTConfig, ScratchGPTForCausalLM, ScratchGPTForMaskedLM
from hf_scratch.data.masking import MaskingCollator
from hf_scratch.data.splits import describe_split
from hf_scratch.data.texts import PackedTextsCollator
from hf_scratch.errors import command, preparation
from hf_scratch.evaluation.language_modeling import count_answer_tokens, sample_text, score_texts
from hf_scratch.loading import auto_class_of
from hf_scratch.reporting.cards import NUM_EXAMPLES, write_language_model_card
from hf_scratch.training.arguments import LanguageModelArguments, check_validation_data
from hf_scratch.training.averaging import check_average, evaluate_and_select_weights, save_final_model
from hf_scratch.training.budget import every_nth, fit_budget
from hf_scratch.training.callbacks import stopping_callbacks
from hf_scratch.training.command_line import TrainingCommand
from hf_scratch.training.model_loading import choose_model, choose_packed_attention, load_teachers
from hf_scratch.training.preparation import TextPreparation
from hf_scratch.training.runs import open_run
from hf_scratch.training.trainers import LanguageModelTrainer

logger = logging.getLogger("train_language_model")
FIRST_WORDS = 6  # of a text that the card's examples continue
FIRST_ROWS = 100  # among which they are looked for


def prepare(arguments: TrainingCommand, checkpoint: str | None):
    """Make the trainer.

    Returns:
        The trainer, and the texts of each split.
    """
    model_args, data_args, args = arguments.model_args, arguments.data_args, arguments.args
    callbacks = [*arguments.callbacks, *stopping_callbacks(data_args, args)]
    data = TextPreparation(model_args, data_args, checkpoint)
    data.run(partial(check_validation_data, args))
    tokenizer, texts, block_size = data.tokenizer, data.texts, data_args.block_size
    check_average(args, data_args.average_checkpoints, texts)

    is_masked = data_args.mlm_probability is not None
    auto_class = AutoModelForMaskedLM if is_masked else AutoModelForCausalLM
    model = choose_model(
        ScratchGPTForMaskedLM if is_masked else ScratchGPTForCausalLM,
        auto_class,
        model_args,
        arguments.model_fields,
        tokenizer,
        max_position_embeddings=block_size,
    )
    longest = getattr(model.config, "max_position_embeddings", None)
    if longest is not None and block_size > longest:
        raise ValueError(f"`block_size` is {block_size}, but the model has {longest} positions.")
    for name in {"validation", "test"} & texts.keys() if data_args.prompt_column is not None else ():
        rows = texts[name]
        count_answer_tokens(model.config, tokenizer, rows["prompt"], rows["text"], describe_split(data_args, name))
    model.generation_config = GenerationConfig(
        pad_token_id=model.config.pad_token_id,
        bos_token_id=model.config.bos_token_id,
        eos_token_id=model.config.eos_token_id,
        max_length=longest or block_size,
        do_sample=True,
        temperature=0.7,  # a small model's likelier tokens make better sentences
    )
    data.rows = data.rows.with_format("numpy")  # of which a batch is made faster than of lists
    rows = "a stream" if data.stream is not None else f"{len(data.rows['train']):,} rows"
    logger.info(f"{model.num_parameters():,} parameters, {len(tokenizer)} tokens, {rows}")

    collator = PackedTextsCollator(tokenizer, block_size, data_args.attend_across_texts)
    if not data_args.packing:
        collator = PackedTextsCollator(tokenizer, None, attend_across_texts=True)  # a row has one text
    args.remove_unused_columns = False  # the collator reads what the model does not
    if is_masked:
        collator = MaskingCollator(tokenizer, mlm_probability=data_args.mlm_probability)
    teachers = load_teachers(auto_class, data_args.teacher_models, model, model_args, tokenizer)
    trainer = LanguageModelTrainer(
        model=model,
        args=args,
        train_dataset=data.train_rows,
        eval_dataset=data.rows.get("validation"),
        data_collator=collator,
        processing_class=tokenizer,
        decay_all_parameters=data_args.decay_all_parameters,
        decay_embeddings=data_args.decay_embeddings,
        r_drop_alpha=data_args.r_drop_alpha,
        teacher_models=teachers,
        distillation_alpha=data_args.distillation_alpha,
        muon=data_args.muon,
        callbacks=callbacks,
    )
    trainer.get_train_dataloader()  # now, for its errors
    return trainer, texts


def train(trainer: LanguageModelTrainer, texts: dict, arguments: TrainingCommand, checkpoint: str | None):
    """Train, choose the weights, save and score them, and write the card."""
    data_args, recipe = arguments.data_args, arguments.name
    args, tokenizer = trainer.args, trainer.processing_class
    result = trainer.train(resume_from_checkpoint=checkpoint)
    trainer.log_metrics("train", result.metrics)
    trainer.save_metrics("train", result.metrics)

    metrics = {}
    if "validation" in texts:
        metrics = evaluate_and_select_weights(trainer, data_args.average_checkpoints)
    save_final_model(trainer)
    weights, results = {"weights": metrics.get("weights", "trained")}, {}
    if args.should_save:
        write_language_model_card(trainer, data_args, recipe, weights, {})  # now, since the evaluations may fail
    saved = auto_class_of(trainer.model.config).from_pretrained(args.output_dir).to(args.device)  # without autocast
    for name in ("validation", "test"):
        if name in texts:
            results[name] = score_texts(saved, tokenizer, texts[name], **masking(data_args))
            trainer.log_metrics(name, results[name])
            trainer.save_metrics(name, results[name])
    if args.should_save:
        validation = {**results.get("validation", {}), **weights}
        examples = [] if data_args.mlm_probability is not None else continue_texts(saved, tokenizer, texts)
        write_language_model_card(trainer, data_args, recipe, validation, results.get("test", {}), examples)
        if data_args.sample_prompt is not None:
            print(f"After training: {sample_text(saved, tokenizer, data_args.sample_prompt)}")
        print(f"The model, its curve and its card are in {args.output_dir}")


def masking(data_args: LanguageModelArguments) -> dict:
    """The arguments of `score_texts` that let it mask the rows of an encoder as its training does."""
    share, length = data_args.mlm_probability, data_args.block_size
    return {} if share is None else {"mlm_probability": share, "block_size": length}


def continue_texts(model, tokenizer, texts: dict) -> list[tuple[str, str]]:
    """Continue the first words, which all differ, of some texts of the test set, or else of the validation set."""
    rows = texts.get("test", texts.get("validation"))
    if rows is None:
        return []
    beginnings = dict.fromkeys(" ".join(text.split()[:FIRST_WORDS]) for text in rows[:FIRST_ROWS]["text"])
    examples = []
    for beginning in list(beginnings)[:NUM_EXAMPLES]:
        with suppress(ValueError):  # it takes all positions of a small model
            examples.append((beginning, sample_text(model, tokenizer, beginning, max_new_tokens=40)))
    return examples


def time_scoring(arguments: TrainingCommand, trainer: LanguageModelTrainer, texts: dict) -> tuple[float, float, float]:
    """Return 0.0, since an evaluation generates nothing, and the seconds to score a validation text, and all tests."""
    if trainer.model.config._attn_implementation == "flex_attention":  # chosen for packed rows
        trainer.model.set_attn_implementation("sdpa")
    seconds = {}
    for name, rows in texts.items():
        sample, start = every_nth(rows), time.monotonic()
        score_texts(trainer.model, trainer.processing_class, sample, **masking(arguments.data_args))
        seconds[name] = (time.monotonic() - start) / len(sample)
    return 0.0, seconds.get("validation", 0.0), seconds.get("test", 0.0) * len(texts.get("test", ()))


def set_packed_attention(trainer: LanguageModelTrainer, arguments: TrainingCommand) -> None:
    """Set the attention function that is best for rows of packed texts, unless one was given."""
    data_args = arguments.data_args
    is_packed = data_args.packing and data_args.mlm_probability is None and not data_args.attend_across_texts
    attention = choose_packed_attention(trainer.model.config, trainer.args) if is_packed else None
    if attention is not None and arguments.model_args.attn_implementation is None:
        trainer.model.set_attn_implementation(attention)


def prepare_to_train(arguments: TrainingCommand, checkpoint: str | None) -> tuple:
    """`prepare`, and set the attention function."""
    trainer, texts = prepare(arguments, checkpoint)
    set_packed_attention(trainer, arguments)
    return trainer, texts


@command
def main():
    begin = time.monotonic()
    with preparation():
        arguments = TrainingCommand(
            LanguageModelArguments, TrainingArguments, ScratchGPTConfig, own_recipe="own_texts"
        )
    with open_run(arguments.args) as checkpoint:
        with preparation():
            arguments = fit_budget(arguments, checkpoint, begin, prepare_to_train, time_scoring)
            trainer, texts = prepare(arguments, checkpoint)
        prompt = arguments.data_args.sample_prompt
        if prompt is not None and checkpoint is None and arguments.args.should_save:
            with preparation():
                sample = sample_text(trainer.model, trainer.processing_class, prompt)
            print(f"Before training: {sample}")
        set_packed_attention(trainer, arguments)  # after the sample, which has one text
        train(trainer, texts, arguments, checkpoint)


if __name__ == "__main__":
    main()
