#!/usr/bin/env python
# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Train an encoder-decoder to translate, or to summarise.

python scripts/train_translation.py scripts/recipes/multi30k_tiny.yaml \\
    --dataset_name bentrevett/multi30k --output_dir OUT
"""

import logging
import time
from pathlib import Path

import hf_scratch_launcher  # noqa: F401  before torch, whose OpenMP it sets
import numpy as np
from transformers import AutoModelForSeq2SeqLM, DataCollatorForSeq2Seq, GenerationConfig, Seq2SeqTrainingArguments

from hf_scratch import ScratchTransformerConfig, ScratchTransformerForConditionalGeneration
from hf_scratch.data.columns import read_numbers
from hf_scratch.data.pairs import check_lengths, count_cut, count_tokens
from hf_scratch.data.sampling import round_up
from hf_scratch.data.splits import describe_split
from hf_scratch.errors import command, preparation
from hf_scratch.evaluation.translation import evaluate_translation, has_short_texts, translate, write_lines
from hf_scratch.reporting.cards import NUM_EXAMPLES, write_translation_card
from hf_scratch.tokenization import target_size
from hf_scratch.training.arguments import TranslationArguments, check_validation_data
from hf_scratch.training.averaging import check_average, evaluate_and_select_weights, save_final_model
from hf_scratch.training.budget import every_nth, fit_budget
from hf_scratch.training.callbacks import stopping_callbacks
from hf_scratch.training.command_line import TrainingCommand
from hf_scratch.training.main_process import on_main_process
from hf_scratch.training.model_loading import choose_model, load_teachers
from hf_scratch.training.preparation import PairPreparation
from hf_scratch.training.runs import open_run
from hf_scratch.training.trainers import TranslationTrainer

logger = logging.getLogger("train_translation")


def prepare(arguments: TrainingCommand, checkpoint: str | None):
    """Make the trainer.

    Returns:
        The trainer, the pairs of each split, and for each split a phrase that says what was cut of it.
    """
    model_args, data_args, args = arguments.model_args, arguments.data_args, arguments.args
    is_summary = data_args.task == "summarization"
    metrics = ("rougeL" if is_summary else "bleu", "exact_match")
    metrics = metrics if args.predict_with_generate and not args.prediction_loss_only else ()
    callbacks = [*arguments.callbacks, *stopping_callbacks(data_args, args)]
    data = PairPreparation(model_args, data_args, checkpoint)
    data.run(lambda splits: check_validation_data(args, splits, metrics))
    tokenizer, pairs, encoded = data.tokenizer, data.texts, data.rows
    check_average(args, data_args.average_checkpoints, pairs)
    if "test" in pairs or (metrics and "validation" in pairs):
        from hf_scratch.evaluation.metrics import Bleu, ExactMatch, Rouge, combine_in_memory  # imports evaluate

        scorer = combine_in_memory(Rouge if is_summary else Bleu, ExactMatch)  # now: a package may be missing

    model = choose_model(
        ScratchTransformerForConditionalGeneration,
        AutoModelForSeq2SeqLM,
        model_args,
        arguments.model_fields,
        tokenizer,
        decoder_start_token_id=tokenizer.bos_token_id,
    )
    model.config.task = data_args.task
    languages = (None, None) if is_summary else (data_args.source_lang, data_args.target_lang)
    model.config.source_lang, model.config.target_lang = languages  # for the card, and Moses' rules in evaluations
    limits, multiple = (data_args.max_source_length, data_args.max_target_length), data_args.pad_to_multiple_of
    cut = {name: count_cut(rows, name, *limits) for name, rows in encoded.items()}
    longest = getattr(model.config, "max_position_embeddings", None)
    for name, rows in encoded.items():
        advice = "Lower `max_source_length` and `max_target_length`, or raise `max_position_embeddings`."
        lengths = round_up(read_numbers(rows, "length"), multiple)
        check_lengths(lengths, longest, f"pairs of {describe_split(data_args, name)}", advice)
    # a stream's lengths are unknown
    if data_args.streaming and longest is not None and round_up(max(limits), multiple) > longest:
        raise ValueError(
            f"`max_source_length` and `max_target_length` are {limits[0]} and {limits[1]}, but the model has "
            f"{longest} positions. Lower the former, or raise `max_position_embeddings`."
        )
    if "test" in pairs:
        lengths = count_tokens(pairs["test"]["source"], tokenizer)
        advice = "Shorten or remove them, or raise `max_position_embeddings`."
        check_lengths(lengths, longest, f"sources of {describe_split(data_args, 'test')}", advice)
    max_length = min(data_args.max_target_length, longest or data_args.max_target_length)
    model.generation_config = GenerationConfig(
        pad_token_id=model.config.pad_token_id,
        bos_token_id=model.config.bos_token_id,
        eos_token_id=model.config.eos_token_id,
        decoder_start_token_id=model.config.decoder_start_token_id,
        max_length=max_length,
        num_beams=data_args.num_beams,
        # transformers does not save a length penalty without beam search
        length_penalty=data_args.length_penalty if data_args.num_beams > 1 else None,
        early_stopping=data_args.num_beams > 1,
    )
    sizes = " and ".join(str(size) for size in dict.fromkeys((len(tokenizer), target_size(tokenizer))))
    rows = "a stream" if data.stream is not None else f"{len(encoded['train']):,} pairs"
    logger.info(f"{model.num_parameters():,} parameters, {sizes} tokens, {rows}")

    def compute_metrics(prediction) -> dict[str, float]:
        ids = np.where(prediction.predictions < 0, tokenizer.pad_token_id, prediction.predictions)
        hypotheses = tokenizer.batch_decode(ids, skip_special_tokens=True)
        references = pairs["validation"]["target"]
        scores = on_main_process(lambda: scorer.compute(predictions=hypotheses, references=references))
        return {name: scores[name] for name in metrics}

    teachers = load_teachers(AutoModelForSeq2SeqLM, data_args.teacher_models, model, model_args, tokenizer)
    trainer = TranslationTrainer(
        model=model,
        args=args,
        train_dataset=data.train_rows,
        eval_dataset=encoded.get("validation"),
        data_collator=DataCollatorForSeq2Seq(tokenizer, model=model, pad_to_multiple_of=multiple),
        processing_class=tokenizer,
        compute_metrics=compute_metrics if args.predict_with_generate else None,
        callbacks=callbacks,
        max_tokens_per_update=data_args.max_tokens_per_update,
        max_tokens_per_batch=data_args.max_tokens_per_batch,
        r_drop_alpha=data_args.r_drop_alpha,
        teacher_models=teachers,
        distillation_alpha=data_args.distillation_alpha,
        muon=data_args.muon,
    )
    trainer.get_train_dataloader()  # now, for its errors
    return trainer, pairs, cut


def train(trainer: TranslationTrainer, pairs: dict, cut: dict, arguments: TrainingCommand, checkpoint: str | None):
    """Train, choose the weights, save them, translate the test set, and write the card."""
    data_args, recipe = arguments.data_args, arguments.name
    args, tokenizer = trainer.args, trainer.processing_class
    result = trainer.train(resume_from_checkpoint=checkpoint)
    trainer.log_metrics("train", result.metrics)
    trainer.save_metrics("train", result.metrics)

    metrics = {}
    if "validation" in pairs:
        metrics = evaluate_and_select_weights(trainer, data_args.average_checkpoints)
        trainer.log_metrics("eval", metrics)
        trainer.save_metrics("eval", metrics)
    save_final_model(trainer)
    test = {}
    is_short = any(has_short_texts(pairs[split]["target"]) for split in ("validation", "test") if split in pairs)
    if args.should_save:  # now, since the test may fail
        write_translation_card(trainer, data_args, recipe, metrics, test, cut, has_short_answers=is_short)
    if "test" in pairs:
        rows = pairs["test"]
        saved = AutoModelForSeq2SeqLM.from_pretrained(args.output_dir).to(args.device)  # without autocast
        test, translations = evaluate_translation(
            saved, tokenizer, rows["source"], rows["target"], task=data_args.task
        )
        trainer.log_metrics("test", test)
        trainer.save_metrics("test", test)
        if args.should_save:
            write_lines(Path(args.output_dir, "test_translations.txt"), translations)
            examples = list(zip(rows["source"], translations, rows["target"], strict=True))[:NUM_EXAMPLES]
            write_translation_card(trainer, data_args, recipe, metrics, test, cut, examples, is_short)
    if args.should_save:
        print(f"The model, its curve and its card are in {args.output_dir}")


def time_scoring(
    arguments: TrainingCommand, trainer: TranslationTrainer, pairs: dict, cut: dict
) -> tuple[float, float, float]:
    """Return the seconds to translate a validation pair while training, 0.0, and those of the test set at the end."""
    data_args, args = arguments.data_args, arguments.args

    def seconds_per_text(split: str, num_beams: int, longer: float) -> float:
        sample = every_nth(pairs[split])
        lengths = count_tokens(sample["target"], trainer.processing_class)
        length = 1 + min(round(longer * float(np.mean(lengths))), data_args.max_target_length)  # with the start token
        options = {"min_length": length, "max_length": length, "num_beams": num_beams}
        start = time.monotonic()
        translate(trainer.model, trainer.processing_class, sample["source"], **options)
        return (time.monotonic() - start) / len(sample)

    validation = test = 0.0
    if args.predict_with_generate and "validation" in pairs:
        beams = args.generation_num_beams or data_args.num_beams
        validation = seconds_per_text("validation", beams, 2.0)  # at first, a model writes too much
    if "test" in pairs:
        test = seconds_per_text("test", data_args.num_beams, 1.25) * len(pairs["test"])
    return validation, 0.0, test


@command
def main():
    begin = time.monotonic()
    with preparation():
        arguments = TrainingCommand(
            TranslationArguments, Seq2SeqTrainingArguments, ScratchTransformerConfig, own_recipe="own_pairs"
        )
    with open_run(arguments.args) as checkpoint:
        with preparation():
            arguments = fit_budget(arguments, checkpoint, begin, prepare, time_scoring)
            trainer, pairs, cut = prepare(arguments, checkpoint)
        train(trainer, pairs, cut, arguments, checkpoint)


if __name__ == "__main__":
    main()
