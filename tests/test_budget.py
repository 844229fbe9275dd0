"""A training that is fitted into a time."""

import json
import math
import shlex
import shutil
import signal
import time
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from safetensors.torch import load_file
from test_scripts import PAIRS, STORIES, TINY_GPT, TINY_TRANSFORMER, write
from transformers import Seq2SeqTrainingArguments

from hf_scratch import ScratchTransformerConfig, ScratchTransformerForConditionalGeneration
from hf_scratch.errors import UserError
from hf_scratch.training import budget
from hf_scratch.training.arguments import TranslationArguments
from hf_scratch.training.budget import PLAN, Replanner, Speed, choose_model_and_batch, choose_options, fit_budget
from hf_scratch.training.command_line import TrainingCommand

SPEED = Speed(step=1.0, epochs=0.01, row=0.01, rows=1000, scoring=20.0)


def test_steps_evaluations_and_scores_fill_the_time():
    flags = choose_options(SPEED, 1000)  # of which 30 s are kept free, and 100 s evaluate 10 times 1,000 rows
    assert flags["max_steps"] == 850
    assert flags["eval_steps"] == flags["save_steps"] == 85
    assert flags["warmup_steps"] == 107
    assert "max_eval_samples" not in flags

    slow = choose_options(Speed(1.0, 0.01, row=0.02, rows=1000, scoring=20.0), 1000)  # 20 s for each of 5 evaluations
    assert (slow["max_steps"], slow["eval_steps"]) == (850, 170)

    sampled = choose_options(Speed(1.0, 0.01, row=0.1, rows=1000, scoring=20.0), 1000)  # 4 of 25 s
    assert (sampled["max_eval_samples"], sampled["max_steps"], sampled["eval_steps"]) == (250, 848, 212)

    alone = choose_options(Speed(1.0, 0.01, row=0.0, rows=0, scoring=0.0), 1000)
    assert alone["max_steps"] == 970
    assert "eval_steps" not in alone


def test_too_short_a_time_is_refused():
    with pytest.raises(UserError, match="budget_minutes"):
        choose_options(SPEED, 30)


def test_validation_data_are_asked_for_before_anything_is_measured(run_here, tmp_path):
    file = write(tmp_path / "train.jsonl", PAIRS)
    words = ["--source_lang=en", "--target_lang=de", "--vocab_size=300", f"--config_overrides={TINY_TRANSFORMER}"]
    options = ["--use_cpu=true", "--budget_minutes=0.1", f"--output_dir={tmp_path / 'out'}"]
    done = run_here("train_translation", "own_pairs", f"--train_file={file}", *words, *options, check=False)
    assert done.returncode == 2
    assert "--validation_file" in done.stderr


def test_a_signal_while_measuring_ends_the_command_and_leaves_no_checkpoint(run_here, monkeypatch, tmp_path):
    def interrupt(number, frame):
        raise KeyboardInterrupt

    def send(*args, **kwargs):
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr("hf_scratch.training.budget._StepClock.on_step_end", send)
    files = [f"--{split}_file={write(tmp_path / f'{split}.jsonl', STORIES)}" for split in ("train", "validation")]
    options = ["--use_cpu=true", "--budget_minutes=1", f"--output_dir={tmp_path / 'out'}"]
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        words = ["own_texts", *files, *options, "--vocab_size=300", f"--config_overrides={TINY_GPT}"]
        done = run_here("train_language_model", *words, check=False)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert done.returncode == 130
    assert not list((tmp_path / "out").glob("checkpoint-*"))


def test_a_run_that_was_begun_without_a_budget_is_not_resumed_with_one(tmp_path):
    arguments = Mock()
    arguments.data_args.budget_minutes = 1
    with pytest.raises(UserError, match="was begun without a budget"):
        fit_budget(arguments, str(tmp_path / "checkpoint-3"), 0.0, None, None)


RECIPE = """
budget_minutes: 0.1
lr_scheduler_type: reduce_lr_on_plateau
lr_scheduler_kwargs: {factor: 0.5}
eval_strategy: steps
bf16: false
"""


@pytest.mark.parametrize("kind", ["pairs", "texts"])
def test_the_flags_in_the_record_repeat_the_training(kind, run_here, monkeypatch, tmp_path):
    monkeypatch.setattr(budget, "LATE_FRACTION", math.inf)  # slower steps would change the plan
    files = [f"--{split}_file={write(tmp_path / f'{split}.jsonl', rows)}" for split, rows in (
        ("train", PAIRS if kind == "pairs" else STORIES),
        ("validation", PAIRS if kind == "pairs" else STORIES),
    )]  # fmt: skip
    script, config, *flags = {
        "pairs": (
            "train_translation",
            TINY_TRANSFORMER,
            "--source_lang=en",
            "--target_lang=de",
            "--max_tokens_per_update=4096",
        ),
        "texts": ("train_language_model", TINY_GPT, "--block_size=32", "--global_batch_size=4"),
    }[kind]
    out, again = tmp_path / "out", tmp_path / "again"
    recipe, minutes = "own_pairs", ["--budget_minutes=0.1"]
    if kind == "texts":
        recipe, minutes = tmp_path / "recipe.yaml", []
        recipe.write_text(RECIPE, encoding="utf-8")
    command = [recipe, *files, *flags, "--vocab_size=300", f"--config_overrides={config}", "--use_cpu=true"]
    done = run_here(script, *command, *minutes, f"--output_dir={out}")
    assert "done at" in done.stdout

    chosen = json.loads((out / PLAN).read_text(encoding="utf-8"))
    record = json.loads((out / "run.json").read_text(encoding="utf-8"))
    plain = [f"--{name}={value}" for name, value in chosen.items()]
    assert shlex.split(record["command"])[-len(plain) :] == plain
    assert "budget_minutes" not in record["command"]
    assert record["updates"] == chosen["max_steps"]
    assert "bf16" not in chosen or kind == "pairs"

    run_here(script, *command, *plain, f"--output_dir={again}")
    before, after = (load_file(folder / "model.safetensors") for folder in (out, again))
    assert all(torch.equal(before[name], after[name]) for name in before)

    resumed = run_here(script, *command, *minutes, f"--output_dir={out}", "--resume_from_checkpoint=last")
    assert "done at" not in resumed.stdout  # nothing is measured again
    assert all(torch.equal(tensor, after[name]) for name, tensor in load_file(out / "model.safetensors").items())


@pytest.fixture
def choose(monkeypatch, tmp_path):
    """Choose for pairs in some seconds, where a step takes 0.1 s and 0.1 ns for each parameter and token."""

    def make(seconds, *flags, sizes="own_pairs"):
        file = write(tmp_path / "train.jsonl", PAIRS)
        words = [sizes, f"--train_file={file}", "--source_lang=en", "--target_lang=de", "--eval_strategy=no"]
        out = f"--output_dir={tmp_path / 'out'}"
        command = TrainingCommand(
            TranslationArguments, Seq2SeqTrainingArguments, ScratchTransformerConfig, [*words, *flags, out]
        )

        def prepare(arguments, checkpoint):
            config = ScratchTransformerConfig(vocab_size=8000, **arguments.model_fields)
            with torch.device("meta"):
                model = ScratchTransformerForConditionalGeneration(config)
            return Mock(model=model, tokens=arguments.data_args.max_tokens_per_update), None

        monkeypatch.setattr(
            "hf_scratch.training.budget.time_steps",
            lambda trainer, arguments: 0.1 + trainer.model.num_parameters() * trainer.tokens / 1e10,
        )
        return command, choose_model_and_batch(command, {}, time.monotonic() + seconds, prepare)

    return make


def test_more_time_is_for_larger_batches_and_models(choose):
    chosen = [choose(seconds, "--config_overrides=dropout=0.1")[1] for seconds in (60, 600, 6000, 60000)]
    batches = [options.get("max_tokens_per_update", 4096) for options in chosen]
    assert batches == sorted(batches)
    assert batches[0] < batches[-1]
    assert "config_overrides" in choose(60)[1]
    assert "config_overrides" not in choose(60000)[1]


def test_the_learning_rate_follows_the_batch_and_flags_are_kept(choose):
    command, options = choose(60)
    rate = command.args.learning_rate * (options["max_tokens_per_update"] / 4096) ** 0.5
    assert options["learning_rate"] == pytest.approx(rate, rel=0.05)
    _, options = choose(60, "--learning_rate=1e-4")
    assert options["learning_rate"] == 1e-4
    _, options = choose(60, "--max_tokens_per_update=4096", "--config_overrides=d_model=32")
    assert options == {}
    assert choose(60, sizes="multi30k_tiny")[1] == {}


def test_slower_steps_shorten_the_rest_of_a_run_which_resumes_to_the_same_weights(run_here, monkeypatch, tmp_path):
    time_steps = budget.time_steps
    monkeypatch.setattr(budget, "time_steps", lambda *args: time_steps(*args) / 10)
    files = [f"--{split}_file={write(tmp_path / f'{split}.jsonl', STORIES)}" for split in ("train", "validation")]
    out = tmp_path / "out"
    words = ["own_texts", *files, "--vocab_size=300", f"--config_overrides={TINY_GPT}", "--block_size=32"]
    words += ["--use_cpu=true", "--global_batch_size=64", "--budget_minutes=0.1", f"--output_dir={out}"]
    done = run_here("train_language_model", *words)
    assert "It would end late" in done.stdout
    record = json.loads((out / "run.json").read_text(encoding="utf-8"))
    first, *_, last = record["command"].splitlines()
    plan = json.loads((out / PLAN).read_text(encoding="utf-8"))
    assert f"--max_steps={record['updates']} " in last
    assert record["updates"] == plan["max_steps"]
    assert first != last

    before = load_file(out / "model.safetensors")
    shutil.rmtree(out / f"checkpoint-{record['updates']}")
    run_here("train_language_model", *words, "--resume_from_checkpoint=last")
    after = load_file(out / "model.safetensors")
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("step", range(10, 140, 2))
def test_a_late_run_is_shortened_and_goes_on_to_a_later_step(step, tmp_path):
    options = choose_options(Speed(step=0.1, epochs=0.01, row=0.0, rows=0, scoring=0.0), 15)
    steps, now = options["max_steps"], time.monotonic()
    replanner = Replanner(tmp_path / "plan", dict(options), Speed(0.1, 0.01, 0.0, 0, 0.0), now - 18, now - 3)
    replanner.last, replanner.seconds, replanner.steps = now - 0.5, 2.5, 9  # 0.3 s a step
    args = SimpleNamespace(logging_steps=2, save_steps=options["save_steps"], should_save=True, words=[])
    state = SimpleNamespace(global_step=step, max_steps=steps, save_steps=options["save_steps"])
    replanner.on_step_end(args, state, None, lr_scheduler=Mock(lr_lambdas=[None]))
    assert step < state.max_steps < steps
    assert state.max_steps % state.save_steps == 0
