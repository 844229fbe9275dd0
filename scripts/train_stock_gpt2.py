#!/usr/bin/env python
# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Train transformers' GPT-2 with the stock Trainer, the baseline of our language models.

python scripts/train_stock_gpt2.py scripts/recipes/stock_gpt2.yaml \
    --dataset_name roneneldan/TinyStories --tokenizer_name DIR --max_minutes 30 --output_dir OUT

Texts are packed end to end and attend to each other, as in transformers' run_clm.py. It takes the arguments of
train_language_model.py; `config_overrides` sets fields of GPT2Config.
"""

from functools import partial

import hf_scratch_launcher  # noqa: F401  before torch, whose OpenMP it sets
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from hf_scratch.data.texts import PackedTextsCollator
from hf_scratch.errors import command, preparation
from hf_scratch.evaluation.language_modeling import evaluate_language_model
from hf_scratch.reporting.cards import write_language_model_card
from hf_scratch.training.arguments import LanguageModelArguments, check_validation_data
from hf_scratch.training.averaging import save_final_model
from hf_scratch.training.callbacks import TrainingTime, stopping_callbacks
from hf_scratch.training.command_line import TrainingCommand
from hf_scratch.training.model_loading import choose_model
from hf_scratch.training.preparation import TextPreparation
from hf_scratch.training.resuming import CheckpointKeeper
from hf_scratch.training.runs import open_run

# options of LanguageModelArguments that the stock Trainer and model do not have
NOT_OF_STOCK = (
    "average_checkpoints",
    "budget_minutes",
    "decay_all_parameters",
    "decay_embeddings",
    "distillation_alpha",
    "max_predict_samples",
    "mlm_probability",
    "muon",
    "prompt_column",
    "r_drop_alpha",
    "sample_prompt",
    "shuffle_buffer_size",
    "streaming",
    "teacher_models",
)


@command
def main():
    with preparation():
        arguments = TrainingCommand(LanguageModelArguments, TrainingArguments, GPT2Config, unsupported=NOT_OF_STOCK)
        model_args, data_args, args = arguments.model_args, arguments.data_args, arguments.args
        if model_args.tokenizer_name is None:
            raise ValueError("`tokenizer_name` must be given: the folder of the model that is to be compared.")
    with open_run(args) as checkpoint:
        with preparation():
            data = TextPreparation(model_args, data_args, checkpoint)
            data.run(partial(check_validation_data, args))
            tokenizer = data.tokenizer
            args.include_num_input_tokens_seen = "non_padding"  # our own trainers count by themselves
            callbacks = [TrainingTime(), *stopping_callbacks(data_args, args)]
            row_length = data_args.block_size if data_args.packing else None
            model = choose_model(
                GPT2LMHeadModel,
                AutoModelForCausalLM,
                model_args,
                arguments.model_fields,
                tokenizer,
                n_positions=data_args.block_size,
            )
        trainer = Trainer(
            model=model,
            args=args,
            train_dataset=data.rows["train"],
            eval_dataset=data.rows.get("validation"),
            data_collator=PackedTextsCollator(tokenizer, row_length, attend_across_texts=True),
            processing_class=tokenizer,
            callbacks=callbacks,
        )
        with CheckpointKeeper(trainer).begin(checkpoint) as folder:
            trainer.train(resume_from_checkpoint=folder)
        save_final_model(trainer)
        validation = {}
        if "validation" in data.texts:
            saved = AutoModelForCausalLM.from_pretrained(args.output_dir).to(args.device)  # without autocast
            validation = evaluate_language_model(saved, tokenizer, data.texts["validation"]["text"])
            trainer.log_metrics("validation", validation)
        if args.should_save:
            write_language_model_card(trainer, data_args, arguments.name, validation, {})


if __name__ == "__main__":
    main()
