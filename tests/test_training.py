import json
import math
import signal
import traceback

import pytest
import torch
from conftest import TRANSFORMER, make_gpt, make_transformer
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from torch.nn.utils.rnn import pad_sequence
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import (
    AutoModelForSeq2SeqLM,
    DataCollatorForSeq2Seq,
    GPT2Config,
    GPT2LMHeadModel,
    MarianConfig,
    MarianMTModel,
    Seq2SeqTrainingArguments,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from hf_scratch import ScratchGPTForSequenceClassification, ScratchTransformerForConditionalGeneration
from hf_scratch.data.pairs import tokenize_pairs
from hf_scratch.flops import count_flops
from hf_scratch.manifest import write_manifest
from hf_scratch.training.arguments import DataArguments, ModelArguments
from hf_scratch.training.averaging import evaluate_and_select_weights
from hf_scratch.training.callbacks import StopCallback, stopping_callbacks
from hf_scratch.training.checkpoints import whole_checkpoints
from hf_scratch.training.command_line import OUR_DEFAULTS
from hf_scratch.training.model_loading import choose_model, load_teachers
from hf_scratch.training.trainers import LanguageModelTrainer, TranslationTrainer

OWN = ("callbacks", "r_drop_alpha", "teacher_models", "distillation_alpha", "muon")  # arguments of our trainers


@pytest.fixture
def make_trainer(tmp_path, joint_tokenizer):
    sources = ["A man sleeps.", "two dogs", "dogs run", "two dogs run"]
    targets = ["Ein Mann schläft.", "zwei Hunde", "Hunde laufen", "zwei Hunde laufen"]
    pairs = Dataset.from_dict({"source": sources, "target": targets})
    rows = tokenize_pairs(pairs, joint_tokenizer, 40, 40, "train")

    def make(budget=None, dropout=0.0, padding=None, **kwargs):
        own = {name: kwargs.pop(name) for name in OWN if name in kwargs}
        model = make_transformer(vocab_size=len(joint_tokenizer), dropout=dropout)
        args = Seq2SeqTrainingArguments(
            output_dir=str(tmp_path / "run"), use_cpu=True, disable_tqdm=True, dataloader_pin_memory=False,
            logging_steps=1, **kwargs,
        )  # fmt: skip
        return TranslationTrainer(
            model=model, args=args, train_dataset=rows, eval_dataset=rows, processing_class=joint_tokenizer,
            data_collator=DataCollatorForSeq2Seq(joint_tokenizer, model=model, pad_to_multiple_of=padding),
            max_tokens_per_batch=budget, **own,
        )  # fmt: skip

    return make


def test_an_evaluation_in_bfloat16_training_is_that_of_the_weights(make_trainer):
    trainer = make_trainer(max_steps=2, learning_rate=1e-2, bf16=True, predict_with_generate=True, save_strategy="no")
    trainer.train()
    found = trainer.predict(trainer.eval_dataset)
    plain = make_trainer(predict_with_generate=True)
    plain.model.load_state_dict(trainer.model.state_dict())
    generation = plain.model.generation_config.to_dict()
    expected = plain.predict(plain.eval_dataset)
    assert plain.model.generation_config.to_dict() == generation  # Seq2SeqTrainer's fills in every default
    assert found.metrics["test_loss"] == expected.metrics["test_loss"]
    assert (found.predictions == expected.predictions).all()

    batch = next(iter(trainer.get_train_dataloader()))  # and training goes on in bfloat16
    trainer.model.eval()
    loss, exact = (each.compute_loss(each.model, dict(batch)).item() for each in (trainer, plain))
    assert loss != exact
    assert loss == pytest.approx(exact, rel=1e-2)


@pytest.mark.parametrize(("budget", "padding"), [(12, None), (16, 8)])
def test_a_token_budget_bounds_each_batch(make_trainer, budget, padding):
    trainer = make_trainer(budget=budget, max_steps=6, padding=padding, save_strategy="no")
    batches = list(trainer.get_train_dataloader())
    sides = [batch[name] for batch in batches for name in ("input_ids", "labels")]
    assert len(batches) > 1
    assert sum(len(batch["input_ids"]) for batch in batches) == 4
    assert all(side.numel() <= budget and side.shape[1] % (padding or 1) == 0 for side in sides)
    assert trainer.evaluate()["eval_loss"] == pytest.approx(make_trainer().evaluate()["eval_loss"], rel=1e-5)
    metrics = trainer.train().metrics
    rows_per_step = metrics["train_samples_per_second"] / metrics["train_steps_per_second"]
    assert rows_per_step == pytest.approx(round(4 / len(batches)), rel=1e-3)


def test_evaluation_reports_the_plain_loss_while_training_smooths(make_trainer):
    smoothed = make_trainer(label_smoothing_factor=0.3)
    assert smoothed.evaluate()["eval_loss"] == pytest.approx(make_trainer().evaluate()["eval_loss"], rel=1e-6)
    smoothed.train()
    plain = make_trainer()
    plain.train()
    assert smoothed.state.log_history[0]["loss"] > 1.01 * plain.state.log_history[0]["loss"]


def test_r_drop_without_dropout_is_a_plain_step(make_trainer):
    weights = []
    for alpha in (0.0, 5.0):
        trainer = make_trainer(
            r_drop_alpha=alpha, max_steps=1, per_device_train_batch_size=2, gradient_accumulation_steps=2, optim="sgd",
            learning_rate=1.0, max_grad_norm=0.0, save_strategy="no",
        )  # fmt: skip
        trainer.train()
        weights.append(trainer.model.state_dict())
    torch.testing.assert_close(*weights, atol=2e-6, rtol=1e-4)


def first_step(trainer):
    """The model, its first batch, which labels it predicts, and its loss."""
    model, batch = trainer.model.train(), next(iter(trainer.get_train_dataloader()))
    kept = batch["labels"] != -100
    torch.manual_seed(0)
    return model, batch, kept, trainer.compute_loss(model, dict(batch), num_items_in_batch=kept.sum())


def test_r_drop_sees_each_row_under_two_dropouts(make_trainer):
    model, batch, kept, loss = first_step(make_trainer(r_drop_alpha=5.0, dropout=0.3))
    torch.manual_seed(0)
    twice = {name: torch.cat([rows, rows]) for name, rows in batch.items()}
    log_p, log_q = model(**twice).logits.log_softmax(-1).chunk(2)
    assert not torch.allclose(log_p, log_q)
    labels = batch["labels"].clamp(min=0)[..., None]
    nll = -(log_p.gather(-1, labels) + log_q.gather(-1, labels))[..., 0]
    divergence = ((log_p.exp() - log_q.exp()) * (log_p - log_q)).sum(-1) / 2
    torch.testing.assert_close(loss, (nll + 5.0 * divergence)[kept].sum() / (2 * kept.sum()))


@pytest.mark.parametrize("r_drop_alpha", [0.0, 2.0])
def test_a_student_learns_the_mean_of_its_teachers(make_trainer, joint_tokenizer, r_drop_alpha):
    torch.manual_seed(1)
    teachers = [make_transformer(vocab_size=len(joint_tokenizer), d_model=width) for width in (8, 16)]
    trainer = make_trainer(teacher_models=teachers, distillation_alpha=0.75, r_drop_alpha=r_drop_alpha)
    model, batch, kept, loss = first_step(trainer)
    log_p = model(**batch).logits.log_softmax(-1)
    predicted = torch.stack([teacher(**batch).logits.softmax(-1) for teacher in teachers]).mean(0)
    nll = -log_p.gather(-1, batch["labels"].clamp(min=0)[..., None])[..., 0]
    expected = 0.25 * nll - 0.75 * (predicted * log_p).sum(-1)
    torch.testing.assert_close(loss, expected[kept].mean())
    loss.backward()
    assert all(p.grad is None for teacher in teachers for p in teacher.parameters())
    assert not any(teacher.training for teacher in teachers)


def test_a_teacher_of_another_library_teaches_its_own_logits(make_trainer, joint_tokenizer):
    """Marian adds a bias to its logits, behind the head."""
    size = len(joint_tokenizer)
    config = MarianConfig(
        vocab_size=size, d_model=8, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=8, decoder_ffn_dim=8, pad_token_id=0, eos_token_id=2,
        decoder_start_token_id=0, max_position_embeddings=40,
    )  # fmt: skip
    teacher = MarianMTModel(config).eval()
    teacher.final_logits_bias.normal_()
    model, batch, kept, loss = first_step(make_trainer(teacher_models=[teacher], distillation_alpha=1.0))
    expected = -(teacher(**batch).logits.softmax(-1) * model(**batch).logits.log_softmax(-1)).sum(-1)
    torch.testing.assert_close(loss, expected[kept].mean())


@pytest.mark.parametrize("option", ["label_smoothing_factor", "r_drop_alpha", "teacher_models"])
def test_what_another_librarys_model_or_a_loss_of_ones_own_would_ignore_is_refused(tmp_path, option):
    gpt2 = GPT2LMHeadModel(GPT2Config(vocab_size=9, n_embd=8, n_layer=1, n_head=1, n_positions=8))
    own = {"r_drop_alpha": 1.0, "teacher_models": [make_gpt()]}
    args = TrainingArguments(tmp_path, use_cpu=True, label_smoothing_factor=0.0 if option in own else 0.1)

    def make(model, loss=None):
        given = {option: own[option]} if option in own else {}
        LanguageModelTrainer(model=model, args=args, compute_loss_func=loss, **given)

    def own_loss(outputs, labels, **kwargs):
        return outputs.logits.sum()

    for other in (gpt2, ScratchGPTForSequenceClassification(make_gpt().config)):
        name = type(other).__name__
        with pytest.raises(ValueError, match=f"`{option}` is set, but {name} is no language model of hf_scratch"):
            make(other)
    with pytest.raises(ValueError, match=f"`{option}` is set, but `compute_loss_func`"):
        make(make_gpt(), own_loss)
    make(get_peft_model(make_gpt(), LoraConfig(target_modules=["q_proj"])))
    args.label_smoothing_factor = 0.0
    LanguageModelTrainer(model=make_gpt(), args=args, compute_loss_func=own_loss)


IDS = [[1, 5, 6, 2], [1, 7, 8, 9, 2], [1, 9, 2], [1, 6, 5, 7, 2], [1, 8, 2]]


def collate(rows: list[dict]) -> dict[str, torch.Tensor]:
    """A collator of a user's own."""
    ids = pad_sequence([torch.tensor(row["input_ids"]) for row in rows], batch_first=True)
    return {"input_ids": ids, "attention_mask": (ids != 0).long(), "labels": torch.tensor([r["labels"] for r in rows])}


def train_gpt(model, rows, folder, trainer_class=LanguageModelTrainer, **options) -> LanguageModelTrainer:
    args = {"num_train_epochs": 1, "per_device_train_batch_size": 2, "save_strategy": "no", "logging_steps": 1}
    args = TrainingArguments(folder, use_cpu=True, disable_tqdm=True, report_to=[], seed=3, **args | options)
    trainer = trainer_class(model=model, args=args, train_dataset=rows, data_collator=collate)
    trainer.train()
    return trainer


@pytest.mark.parametrize("labels", [[0, 1, 2, 0, 1], [0.5, 1.0, 0.0, 2.0, 1.5]], ids=["classes", "numbers"])
@pytest.mark.parametrize("accumulation", [1, 4])
def test_a_classifier_learns_in_our_trainer_what_it_does_in_the_stock_one(tmp_path, labels, accumulation):
    """In particular, from the last update of an epoch, which has fewer rows than steps of gradient accumulation."""
    rows = [{"input_ids": ids, "labels": label} for ids, label in zip(IDS, labels, strict=True)]
    weights = []
    for trainer_class in (Trainer, LanguageModelTrainer):
        config = make_gpt(num_labels=1 if isinstance(labels[0], float) else 3).config
        torch.manual_seed(0)
        model = ScratchGPTForSequenceClassification(config)
        options = {"per_device_train_batch_size": 1, "optim": "sgd", "gradient_accumulation_steps": accumulation}
        trainer = train_gpt(model, rows, tmp_path, trainer_class, **options)
        assert trainer.state.global_step == math.ceil(len(rows) / accumulation)
        weights.append(model.state_dict())
    torch.testing.assert_close(*weights)


ROWS = [{"input_ids": [1, *range(i, i + 3)], "labels": [1, *range(i, i + 3)]} for i in range(5, 10)]


class RowsInOrder(torch.utils.data.IterableDataset):
    def __len__(self):
        return len(ROWS)

    def __iter__(self):
        return iter(ROWS)


@pytest.mark.parametrize("strategy", ["random", "group_by_length"])
@pytest.mark.parametrize("rows", [ROWS, RowsInOrder()], ids=["list", "iterable with a length"])
def test_rows_need_not_be_a_dataset_of_datasets(tmp_path, rows, strategy):
    assert train_gpt(make_gpt(), rows, tmp_path, train_sampling_strategy=strategy).state.global_step == 3


@pytest.mark.parametrize("option", [{"train_sampling_strategy": "group_by_length"}, {"dataloader_drop_last": True}])
def test_predictions_and_evaluations_are_of_all_rows(tmp_path, option):
    rows = [{"input_ids": ids, "labels": i % 2} for i, ids in enumerate(IDS)]
    args = TrainingArguments(tmp_path, use_cpu=True, disable_tqdm=True, per_device_eval_batch_size=2, **option)
    model = ScratchGPTForSequenceClassification(make_gpt().config)
    trainer = LanguageModelTrainer(model=model, args=args, data_collator=collate, eval_dataset=rows)
    assert trainer.predict(rows).label_ids.tolist() == [0, 1, 0, 1, 0]
    assert sum(len(batch["labels"]) for batch in trainer.get_eval_dataloader()) == 5
    assert {name: getattr(args, name) for name in option} == option  # as before


def test_a_checkpoint_without_a_manifest_is_not_begun(tmp_path):
    handler = signal.getsignal(signal.SIGTERM)
    args = TrainingArguments(tmp_path, use_cpu=True, enable_jit_checkpoint=True)
    with pytest.raises(ValueError, match="`enable_jit_checkpoint` leaves a checkpoint without a manifest"):
        LanguageModelTrainer(model=make_gpt(), args=args)
    assert signal.getsignal(signal.SIGTERM) is handler


def test_a_users_own_sampler_gives_the_rows(tmp_path):
    class Mine(LanguageModelTrainer):
        def _get_train_sampler(self, *args):
            return torch.utils.data.SubsetRandomSampler([1, 3, 1, 3])

        def compute_loss(self, model, inputs, *args, **kwargs):
            seen.extend(inputs["input_ids"][:, 1].tolist())
            return super().compute_loss(model, inputs, *args, **kwargs)

    seen = []
    train_gpt(make_gpt(), ROWS, tmp_path, Mine)
    assert sorted(seen) == [6, 6, 8, 8]


def test_a_teacher_that_begins_with_another_token_is_refused(tmp_path, joint_tokenizer):
    model = make_transformer(vocab_size=len(joint_tokenizer), decoder_start_token_id=1)
    make_transformer(vocab_size=len(joint_tokenizer), decoder_start_token_id=0).save_pretrained(tmp_path)
    joint_tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"has `decoder_start_token_id` 0, and .* learns has 1\."):
        load_teachers(AutoModelForSeq2SeqLM, [str(tmp_path)], model, ModelArguments(), joint_tokenizer)


def negate(model):
    """Spoil the weights: those of any checkpoint are better."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.neg_()


def test_the_weights_of_the_lowest_loss_are_kept(make_trainer):
    trainer = make_trainer(max_steps=4, save_strategy="steps", save_steps=1, learning_rate=1e-3)
    trainer.train()
    trained = [weight.clone() for weight in trainer.model.parameters()]
    trainer.args.bf16_full_eval = True  # would round the weights
    for checkpoints in (0, 3):
        assert evaluate_and_select_weights(trainer, checkpoints)["weights"] == "trained"  # the loss still falls
    assert trainer.args.bf16_full_eval
    assert all(map(torch.equal, trained, trainer.model.parameters()))
    assert {weight.dtype for weight in trainer.model.parameters()} == {torch.float32}
    trainer.args.bf16_full_eval = False
    negate(trainer.model)
    worse = trainer.evaluate()["eval_loss"]
    for _ in range(2):
        kept = evaluate_and_select_weights(trainer, 3)  # the mean of checkpoints weighs the last update least
        assert kept["weights"] == "averaged over 3 checkpoints"
        assert trainer.evaluate()["eval_loss"] == kept["eval_loss"] < worse
        torch.nn.init.constant_(next(trainer.model.parameters()), math.nan)


class Spoil(TrainerCallback):
    """Set a weight to nan before step 4."""

    def on_step_begin(self, args, state, control, model, **kwargs):
        if state.global_step == 3:
            torch.nn.init.constant_(model.get_output_embeddings().weight, math.nan)


@pytest.mark.parametrize(
    ("logging_steps", "max_steps", "save_strategy", "seen_at"),
    [(1, 8, "steps", 4), (2, 8, "steps", 4), (9, 8, "steps", 5), (3, 5, "no", 5)],
)
def test_a_loss_that_is_nan_ends_the_run_at_the_next_log_entry(
    make_trainer, logging_steps, max_steps, save_strategy, seen_at
):
    options = {"save_strategy": save_strategy, "save_steps": 5, "logging_nan_inf_filter": False}
    trainer = make_trainer(callbacks=[StopCallback(), Spoil()], max_steps=max_steps, **options)
    trainer.args.logging_steps = logging_steps
    with pytest.raises(FloatingPointError, match=f"nan at step {seen_at}; the last finite one was"):
        trainer.train()
    assert not whole_checkpoints(trainer.args.output_dir)
    finite = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry and math.isfinite(entry["loss"])]
    assert len(finite) == 3 // logging_steps


def test_early_stopping_needs_evaluations_and_the_best_model(tmp_path):
    data_args = DataArguments(max_minutes=1.0, early_stopping_patience=2)
    evaluations = {"eval_strategy": "epoch", "save_strategy": "epoch", "load_best_model_at_end": True}
    args = TrainingArguments(tmp_path, use_cpu=True, **evaluations)
    stop, early_stopping = stopping_callbacks(data_args, args)
    assert stop.minutes == 1
    assert early_stopping.early_stopping_patience == 2
    with pytest.raises(ValueError, match="`early_stopping_patience` is 2, which needs `load_best_model_at_end`"):
        stopping_callbacks(data_args, TrainingArguments(tmp_path, use_cpu=True))
    (stop,) = stopping_callbacks(DataArguments(), args)
    assert stop.minutes == float("inf")


def test_a_resumed_run_counts_minutes_and_tokens_on(make_trainer):
    trainer = make_trainer(max_steps=4, save_strategy="steps", save_steps=1, per_device_train_batch_size=2)
    trainer.train()
    tokens = sum(len(row["input_ids"]) for row in trainer.train_dataset)  # without padding
    assert [e["num_input_tokens_seen"] for e in trainer.state.log_history if "loss" in e][1::2] == [tokens, 2 * tokens]
    assert trainer.state.num_input_tokens_seen == 2 * tokens
    folder = whole_checkpoints(trainer.args.output_dir)[1]
    state = json.loads((folder / "trainer_state.json").read_text(encoding="utf-8"))
    state["log_history"][-1]["minutes"] = 60.0
    (folder / "trainer_state.json").write_text(json.dumps(state), encoding="utf-8")
    write_manifest(folder)
    trainer.train(resume_from_checkpoint=str(folder))
    assert trainer.state.num_input_tokens_seen == 2 * tokens
    *_, before, third, fourth, _ = [entry["minutes"] for entry in trainer.state.log_history]
    assert before == 60.0 < third <= fourth < 61.0


@pytest.mark.parametrize(("overrides", "dtype"), [({}, torch.float32), ({"dtype": "bfloat16"}, torch.bfloat16)])
def test_a_training_is_in_float32_unless_config_overrides_say_otherwise(overrides, dtype, tmp_path, joint_tokenizer):
    stored = make_transformer(vocab_size=len(joint_tokenizer)).bfloat16()
    stored.save_pretrained(tmp_path)
    classes = ScratchTransformerForConditionalGeneration, AutoModelForSeq2SeqLM
    loaded = ModelArguments(model_name_or_path=str(tmp_path))
    for arguments, fields in ((loaded, {}), (ModelArguments(), {**TRANSFORMER, "vocab_size": 300})):
        model = choose_model(*classes, arguments, {**fields, **overrides}, joint_tokenizer)
        assert {parameter.dtype for parameter in model.parameters()} == {dtype}


class Waits(TorchDispatchMode):
    """Keep where a number is read from a tensor: a GPU would be waited for.

    Not in the models, whose checks of inputs run on a CPU alone, nor in the data loader, which works on the CPU.
    """

    def __init__(self):
        super().__init__()
        self.traces = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default):
            trace = "".join(traceback.format_stack())
            if not any(place in trace for place in ("hf_scratch/models", "torch/utils/data", "on_train_end")):
                self.traces.append(trace)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("option", ["plain", "label_smoothing_factor", "r_drop_alpha", "teacher_models", "budget"])
def test_an_update_does_not_wait_for_the_device(make_trainer, joint_tokenizer, option):
    values = {"label_smoothing_factor": 0.1, "r_drop_alpha": 1.0, "budget": 24}
    values |= {"teacher_models": [make_transformer(vocab_size=len(joint_tokenizer))]}
    options = {option: values[option]} if option != "plain" else {}
    trainer = make_trainer(
        callbacks=[StopCallback(1000)], max_steps=3, save_strategy="no", gradient_accumulation_steps=2, **options
    )
    vars(trainer.args).update(OUR_DEFAULTS)
    trainer.args.logging_strategy = "no"
    counts = []

    class Count(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            counts.append(len(waits.traces))

    trainer.add_callback(Count())
    with Waits() as waits:
        trainer.train()
    assert counts == [0] * 3, waits.traces[0]


def test_a_user_may_log_a_loss_before_the_training(make_trainer):
    trainer = make_trainer()
    trainer.log({"loss": 1.0})
    assert trainer.state.log_history[0]["loss"] == 1.0


def test_a_head_that_is_untied_after_the_training_is_saved(make_trainer, tmp_path):
    trainer = make_trainer(max_steps=1)
    trainer.train()
    model = trainer.model
    head = torch.nn.Parameter(torch.randn_like(model.lm_head.weight))
    model.lm_head.weight, model.config.tie_word_embeddings = head, False
    model.save_pretrained(tmp_path / "untied")
    loaded = type(model).from_pretrained(tmp_path / "untied")
    assert torch.equal(loaded.lm_head.weight, head)


def test_mfu_is_logged_where_the_peak_is_known(make_trainer, monkeypatch, caplog):
    caplog.set_level("INFO")
    monkeypatch.setattr("hf_scratch.training.callbacks.find_peak", lambda device: 1e12)
    trainer = make_trainer(max_steps=3, per_device_train_batch_size=4, r_drop_alpha=1.0, save_strategy="no")
    trainer.train()
    batch = next(iter(trainer.get_train_dataloader()))
    assert trainer.state.total_flos == 3 * 2 * count_flops(trainer.model, batch)  # R-Drop sees each row twice
    entries = [entry for entry in trainer.state.log_history if "loss" in entry]
    updates_per_second = [entry["mfu"] * 1e12 / (trainer.state.total_flos / 3) for entry in entries]
    rates = [entry["train_tokens_per_second"] / batch["attention_mask"].sum().item() for entry in entries]
    assert updates_per_second == pytest.approx(rates)
    assert "`mfu` is a share of 1 TFLOP/s" in caplog.text
