"""A training that is fitted into a time."""

import math
import shlex
import shutil
import signal
import time
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from test_faults import assert_same_weights
from test_scripts import PAIRS, STORIES, TINY_GPT, TINY_TRANSFORMER, flags, read_json, write
from test_training import make_trainer  # noqa: F401  a fixture
from transformers import Seq2SeqTrainingArguments, TrainingArguments

from hf_scratch import ScratchGPTConfig, ScratchTransformerConfig, ScratchTransformerForConditionalGeneration
from hf_scratch.errors import UserError
from hf_scratch.recipes import recipe_to_flags
from hf_scratch.training import LanguageModelTrainer, budget
from hf_scratch.training.arguments import LanguageModelArguments, TranslationArguments
from hf_scratch.training.budget import PLAN, Replanner, Speed, choose_model_and_batch, choose_options, fit_budget
from hf_scratch.training.command_line import TrainingCommand

SPEED = Speed(step=1.0, epochs=0.01, row=0.01, rows=1000, scored_row=0.01, test=10.0)


def words(folder, rows, minutes, **others) -> list[str]:
    """The options of a tiny training on these rows, which lasts `minutes`."""
    options = {f"{split}_file": write(folder / f"{split}.jsonl", rows) for split in ("train", "validation")}
    options |= {"vocab_size": 300, "use_cpu": "true", "output_dir": folder / "out", "budget_minutes": minutes}
    options |= {"config_overrides": TINY_GPT, "block_size": 32}
    if rows is PAIRS:
        options |= {"config_overrides": TINY_TRANSFORMER, "block_size": None, "source_lang": "en", "target_lang": "de"}
    return flags(options | others)


def test_steps_evaluations_and_scores_fill_the_time():
    chosen = choose_options(SPEED, 1000)  # of which 30 s are kept free, and 100 s evaluate 10 times 1,000 rows
    assert chosen["max_steps"] == 850
    assert chosen["eval_steps"] == chosen["save_steps"] == 85
    assert chosen["warmup_steps"] == 107
    assert chosen["load_best_model_at_end"]
    assert "max_eval_samples" not in chosen

    slow = choose_options(replace(SPEED, row=0.02), 1000)  # 20 s for each of 5 evaluations
    assert (slow["max_steps"], slow["eval_steps"]) == (850, 170)

    sampled = choose_options(replace(SPEED, row=0.1), 1000)  # 4 of 25 s
    assert (sampled["max_eval_samples"], sampled["max_steps"], sampled["eval_steps"]) == (250, 856, 214)

    alone = choose_options(replace(SPEED, row=0.0, rows=0, scored_row=0.0, test=0.0), 1000)
    assert alone["max_steps"] == 970
    assert "eval_steps" not in alone
    with pytest.raises(UserError, match="budget_minutes"):
        choose_options(SPEED, 20)


def test_small_data_are_evaluated_before_they_are_learnt_by_heart():
    speed = Speed(step=0.1, epochs=0.1, row=0.001, rows=100, scored_row=0.0, test=0.0)
    options = choose_options(speed, 300)
    assert options["eval_steps"] * speed.epochs <= 4
    slow = choose_options(replace(speed, row=0.02), 300)  # 15 of 2 s are a tenth of the time
    assert slow["max_steps"] == 15 * slow["eval_steps"]
    tiny = choose_options(replace(speed, epochs=1.0), 60)
    assert tiny["eval_steps"] >= 9  # ten, less the time of evaluations
    long = choose_options(speed, 30000)
    assert long["max_steps"] == 100 * long["eval_steps"]


def test_validation_data_are_asked_for_before_anything_is_measured(run_here, tmp_path):
    command = words(tmp_path, PAIRS, 0.1, validation_file=None)
    done = run_here("train_translation", "own_pairs", *command, check=False)
    assert done.returncode == 2
    assert "--validation_file" in done.stderr


def test_a_signal_while_measuring_ends_the_command_and_leaves_no_checkpoint(run_here, monkeypatch, tmp_path):
    def interrupt(number, frame):
        raise KeyboardInterrupt

    def send(*args, **kwargs):
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr("hf_scratch.training.budget._StepClock.on_step_end", send)
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        done = run_here("train_language_model", "own_texts", *words(tmp_path, STORIES, 1), check=False)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert done.returncode == 130
    assert not list((tmp_path / "out").glob("checkpoint-*"))


def test_a_run_that_was_begun_without_a_budget_is_not_resumed_with_one(tmp_path):
    arguments = Mock()
    arguments.data_args.budget_minutes = 1
    arguments.args.output_dir = str(tmp_path / "out")
    with pytest.raises(UserError, match="was begun without a budget"):
        fit_budget(arguments, str(tmp_path / "checkpoint-3"), 0.0, None, None)


RECIPE = """
budget_minutes: 1
lr_scheduler_type: cosine_with_min_lr
lr_scheduler_kwargs: {min_lr: 0.001}
bf16: false
"""


@pytest.mark.parametrize(
    ("script", "rows", "batch"),
    [
        ("train_translation", PAIRS, {"max_tokens_per_update": 4096}),
        ("train_language_model", STORIES, {"global_batch_size": 4}),
    ],
    ids=["pairs", "texts"],
)
def test_the_flags_in_the_record_repeat_the_training(script, rows, batch, run_here, monkeypatch, tmp_path):
    time_steps = budget.time_steps
    monkeypatch.setattr(budget, "time_steps", lambda *args: max(2.0, time_steps(*args)))  # few are planned
    monkeypatch.setattr(budget, "DELAY_FRACTION", math.inf)  # else the plan would change
    monkeypatch.setattr(budget, "choose_precision", lambda args: {"bf16": True, "use_cpu": True})
    out, again = tmp_path / "out", tmp_path / "again"
    recipe, minutes = "own_pairs", 1
    if rows is STORIES:
        recipe, minutes = tmp_path / "recipe.yaml", None
        recipe.write_text(RECIPE, encoding="utf-8")
    command = [recipe, *words(tmp_path, rows, minutes, **batch)]
    done = run_here(script, *command)
    assert "done at" in done.stdout

    chosen, record = read_json(out / PLAN), read_json(out / "run.json")
    plain = [f"--{name}={value}" for name, value in chosen.items()]
    assert shlex.split(record["command"])[-len(plain) :] == plain
    assert "budget_minutes" not in record["command"]
    assert record["updates"] == chosen["max_steps"]
    assert ("bf16" in chosen) == (rows is PAIRS)
    assert "eval_steps" in chosen  # the recipe of the texts has no eval_strategy

    run_here(script, recipe, *words(tmp_path, rows, None, output_dir=again, **batch), *plain)
    assert_same_weights(out, again)
    resumed = run_here(script, *command, "--resume_from_checkpoint=last")
    assert "done at" not in resumed.stdout  # nothing is measured again
    assert_same_weights(out, again)


@pytest.fixture
def choose(monkeypatch, tmp_path):
    """Choose for `data` tokens in some seconds, where a step takes 0.1 s and 0.1 ns for each parameter and token."""

    def make(seconds, sizes="own_pairs", data=1e12, **others):
        given = {"vocab_size": None, "config_overrides": None, "eval_strategy": "no"} | others
        options = [sizes, *words(tmp_path, PAIRS, None, **given)]
        command = TrainingCommand(TranslationArguments, Seq2SeqTrainingArguments, ScratchTransformerConfig, options)

        def prepare(arguments, checkpoint):
            config = ScratchTransformerConfig(vocab_size=8000, **arguments.model_fields)
            with torch.device("meta"):
                model = ScratchTransformerForConditionalGeneration(config)
            tokens = arguments.data_args.max_tokens_per_update
            state = SimpleNamespace(global_step=10, epoch=10 * tokens / data)
            return Mock(model=model, tokens=tokens, state=state), None

        monkeypatch.setattr(
            "hf_scratch.training.budget.time_steps",
            lambda trainer, arguments: 0.1 + trainer.model.num_parameters() * trainer.tokens / 1e10,
        )
        return command, choose_model_and_batch(command, {}, time.monotonic() + seconds, prepare)

    return make


def test_more_time_is_for_larger_batches_and_models(choose):
    chosen = [choose(seconds, config_overrides="dropout=0.1")[1] for seconds in (60, 600, 6000, 60000)]
    batches = [options.get("max_tokens_per_update", 4096) for options in chosen]
    assert batches == sorted(batches)
    assert batches[0] < batches[-1]
    assert "config_overrides" in choose(60)[1]
    assert "config_overrides" not in choose(60000)[1]
    assert "config_overrides" in choose(150)[1]
    assert "config_overrides" not in choose(150, data=1e4)[1]  # a small model would see many epochs


@pytest.mark.parametrize(
    ("epochs", "flags", "expected"),
    [
        (0.01, {}, 0.0),
        (1.0, {}, 0.1),
        (0.01, {"config_overrides": "hidden_dropout=0.2"}, 0.2),
        (0.01, {"r_drop_alpha": 1}, 0.1),
        (0.01, {"streaming": True}, 0.1),
    ],
)
def test_few_epochs_have_no_dropout_unless_a_flag_needs_it(epochs, flags, expected, monkeypatch, tmp_path):
    options = ["own_texts", *words(tmp_path, STORIES, 1, **{"config_overrides": None} | flags)]
    command = TrainingCommand(LanguageModelArguments, TrainingArguments, ScratchGPTConfig, options)
    Path(command.args.output_dir).mkdir()
    speed = Speed(step=1.0, epochs=epochs, row=0.01, rows=10, scored_row=0.0, test=0.0)
    monkeypatch.setattr(budget, "choose_model_and_batch", lambda *args: {})
    monkeypatch.setattr(budget, "measure_speed", lambda *args: speed)
    planned = fit_budget(command, None, time.monotonic(), None, None)
    assert planned.model_fields["hidden_dropout"] == expected
    assert planned.model_fields["norm_first"]


def test_half_the_width_has_twice_the_learning_rate_and_flags_are_kept(choose):
    assert choose(60)[1]["learning_rate"] == 1.6e-2
    assert "learning_rate" not in choose(60, learning_rate=1e-4)[1]
    _, options = choose(60, max_tokens_per_update=4096, config_overrides="d_model=32")
    assert options == {}
    assert choose(60, sizes="multi30k_tiny")[1] == {}


def test_slower_steps_shorten_the_rest_of_a_run_which_resumes_to_the_same_weights(run_here, monkeypatch, tmp_path):
    measure_speed, training_step = budget.measure_speed, LanguageModelTrainer.training_step

    def slow_step(*args, **kwargs):
        time.sleep(0.1)
        return training_step(*args, **kwargs)

    def measure(*args):
        speed = measure_speed(*args)
        monkeypatch.setattr(LanguageModelTrainer, "training_step", slow_step)
        return replace(speed, step=0.02, scored_row=0.0, test=0.0)

    replan, plans = Replanner.on_step_end, []

    def replan_once(self, args, state, *others, **kwargs):  # a second plan might come after the last checkpoint
        plans.append(state.max_steps)
        if plans[0] == state.max_steps:
            replan(self, args, state, *others, **kwargs)

    monkeypatch.setattr(budget, "measure_speed", measure)
    monkeypatch.setattr(Replanner, "on_step_end", replan_once)
    out, before = tmp_path / "out", tmp_path / "before"
    command = ["own_texts", *words(tmp_path, STORIES, 0.2, global_batch_size=64, save_total_limit=99)]
    done = run_here("train_language_model", *command)
    assert "A new plan" in done.stdout
    record, plan = read_json(out / "run.json"), read_json(out / PLAN)
    first, *_, last = record["command"].splitlines()
    assert f"--max_steps={record['updates']} " in last
    assert record["updates"] == plan["max_steps"]
    assert first != last

    before.mkdir()
    shutil.copy(out / "model.safetensors", before)
    shutil.rmtree(out / f"checkpoint-{record['updates']}")
    run_here("train_language_model", *command, "--resume_from_checkpoint=last")
    assert_same_weights(before, out)


def test_faster_steps_lengthen_the_rest_of_a_run(make_trainer, tmp_path, monkeypatch):  # noqa: F811
    speed = Speed(step=0.15, epochs=1.0, row=0.0, rows=0, scored_row=0.0, test=0.0)
    clock = count(step=0.05)  # a reading a step
    monkeypatch.setattr(budget, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    options = choose_options(speed, 2)
    replanner = Replanner(tmp_path / "plan", dict(options), speed, 0, 2)
    others = {name: value for name, value in options.items() if name not in ("logging_steps", "save_strategy")}
    trainer = make_trainer(callbacks=[replanner], save_strategy="no", **others)
    trainer.args.words = recipe_to_flags(options)
    trainer.train()
    assert trainer.state.global_step == read_json(tmp_path / "plan")["max_steps"] > options["max_steps"]


@pytest.mark.parametrize(("seconds", "end"), [(0.3, -3), (0.3, 4), (0.03, 12)])  # of a step; from now
@pytest.mark.parametrize("step", range(10, 140, 2))
def test_a_late_run_has_fewer_steps_and_an_early_one_more(step, seconds, end, tmp_path):
    speed = Speed(step=0.1, epochs=0.01, row=0.0, rows=0, scored_row=0.0, test=0.0)
    options, now = choose_options(speed, 15), time.monotonic()
    planned, interval = options["max_steps"], options["save_steps"]
    replanner = Replanner(tmp_path / "plan", dict(options), speed, now + end - 15, now + end)
    replanner.last, replanner.times = now - seconds, 9 * [seconds]
    replanner.progress = [SimpleNamespace(training_bar=SimpleNamespace(total=planned))]
    args = SimpleNamespace(logging_steps=1, save_steps=interval, should_save=True, words=[])
    state = SimpleNamespace(global_step=step, max_steps=planned, save_steps=interval)
    ahead = planned // interval - step // interval
    replanner.on_step_end(args, state, None, lr_scheduler=Mock(lr_lambdas=[None]))
    assert replanner.progress[0].training_bar.total == state.max_steps
    if end < 0:
        assert state.max_steps == step + 1
    else:
        possible = int((end - 0.03 * 15) / (0.1 + seconds) * 2)  # the planned time of a step counts, too
        assert 0.7 * possible <= state.max_steps - step or state.max_steps == planned
        assert state.max_steps <= max(planned, step + possible)
        assert state.max_steps % state.save_steps == 0
        assert state.max_steps > planned or end < 12
        assert 0 < state.max_steps // state.save_steps - step // state.save_steps <= ahead + 1  # evaluations
