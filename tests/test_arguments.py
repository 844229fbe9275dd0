import re
from types import SimpleNamespace

import pytest
from transformers import Seq2SeqTrainingArguments, TrainingArguments

from hf_scratch import ScratchGPTConfig, ScratchTransformerConfig
from hf_scratch.errors import UserError
from hf_scratch.training.arguments import LanguageModelArguments, ModelArguments, TranslationArguments
from hf_scratch.training.command_line import (
    CommandLine,
    TrainingCommand,
    check_options,
    parse_arguments,
    read_model_fields,
)

OUT = ["--output_dir", "x", "--use_cpu", "true"]
TYPES = (ModelArguments, LanguageModelArguments, TrainingArguments)
PAIRS_OF_TWO = (TranslationArguments, Seq2SeqTrainingArguments, ScratchTransformerConfig)


def parse(*words):
    """The model's, the data's and the training's arguments of a language model's command line."""
    return parse_arguments(*TYPES, args=[*map(str, words), *OUT])[0]


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "small.yaml"
    path.write_text("block_size: 32\nlearning_rate: 2.0e-3\nconfig_overrides:\n  hidden_size: 16\n", encoding="utf-8")
    return path


def test_flags_override_the_recipe(recipe):
    (model_args, data_args, args), name = parse_arguments(*TYPES, args=[str(recipe), "--block-size", "64", *OUT])
    assert (data_args.block_size, args.learning_rate, model_args.config_overrides) == (64, 2e-3, {"hidden_size": 16})
    assert name == "small"


@pytest.mark.parametrize(
    ("content", "flags", "kept"),
    [
        ("dataset_name: a\ndataset_config_name: b", ["--train_file=c.csv"], set()),
        ("dataset_name: a\ntrain_file: b", ["--dataset_name", "d", "--train_file", "c"], set()),  # refused later
        ("train_file: a\ntest_file: b", ["--train_file", "c"], {"train_file", "test_file"}),
        ("train_file: a\ntest_file: b", ["--dataset_name", "d"], set()),
        ("budget_minutes: 1\nseed: 2", ["--max-steps=7"], {"seed"}),
        ("max_steps: 1\nnum_train_epochs: 2", ["--budget_minutes", "3"], set()),
        ("max_steps: 1\nnum_train_epochs: 2", ["--num_train_epochs", "3"], {"num_train_epochs"}),
        ("max_steps: 1\nnum_train_epochs: 2", ["--max_steps", "3"], {"max_steps", "num_train_epochs"}),
        ("max_tokens_per_update: 1", ["--global_batch_size", "3"], set()),
    ],
)
def test_flags_replace_what_a_recipe_says_otherwise(content, flags, kept, recipe):
    recipe.write_text(content, encoding="utf-8")
    assert CommandLine([str(recipe), *flags]).recipe.keys() == kept


@pytest.mark.parametrize("flag", ["num_hidden_layers=2,hidden_size=8", '{"num_hidden_layers": 2, "hidden_size": 8}'])
def test_overrides_of_a_flag_change_some_of_the_recipes(recipe, flag):
    recipe.write_text("config_overrides:\n  hidden_size: 16\n  hidden_dropout: 0.1\n", encoding="utf-8")
    model_args, _, _ = parse(recipe, "--config_overrides", flag)
    assert model_args.config_overrides == {"hidden_size": 8, "hidden_dropout": 0.1, "num_hidden_layers": 2}


SIZES = """
vocab_size: 300
config_overrides: {norm_first: true, d_model: 8}
sizes:
  small:
    megabytes: 0.0001
    learning_rate: 1.0
  large:
    learning_rate: 2.0e-3
    vocab_size: 400
    seed: 7
    config_overrides: {d_model: 16, encoder_layers: 1}
"""


def test_a_size_overrides_the_recipe_and_flags_override_the_size(recipe, tmp_path):
    recipe.write_text(SIZES, encoding="utf-8")
    (tmp_path / "pairs.jsonl").write_text('{"en": "a dog", "de": "ein Hund"}\n' * 20, encoding="utf-8")
    flags = [f"--train_file={tmp_path / 'pairs.jsonl'}", "--seed=2", "--config_overrides=encoder_layers=2", *OUT]
    arguments = TrainingCommand(*PAIRS_OF_TWO, [str(recipe), *flags])
    assert (arguments.args.learning_rate, arguments.model_args.vocab_size, arguments.args.seed) == (2e-3, 400, 2)
    assert arguments.model_fields == {"norm_first": True, "d_model": 16, "encoder_layers": 2}
    trained = TrainingCommand(*PAIRS_OF_TWO, [str(recipe), *flags, "--model_name_or_path=m"])
    assert (trained.model_fields, trained.args.learning_rate) == ({"encoder_layers": 2}, 5e-5)


@pytest.mark.parametrize(
    ("flags", "recipe", "minutes"),
    [
        (["--train_file={file}"], "own_pairs", 20),
        (["--train_file={file}", "--max_steps=3"], "own_pairs", None),
        (["--train_file={file}", "--streaming", "--num_train_epochs=3"], "", None),
        (["--train_file={file}", "--model_name_or_path=m", "--budget_minutes=3"], "", 3),
        (["multi30k_tiny", "--train_file={file}"], "multi30k_tiny", None),
        (["multi30k_tiny", "--train_file={file}", "--budget_minutes=3"], "multi30k_tiny", 3),
        (["--dataset_name=d"], "", 20),
    ],
)
def test_own_files_have_a_recipe_and_each_training_a_length(flags, recipe, minutes, tmp_path, capsys):
    file = tmp_path / "pairs.jsonl"
    file.write_text('{"en": "a dog", "de": "ein Hund"}\n', encoding="utf-8")
    words = [*(flag.format(file=file) for flag in flags), *OUT]
    arguments = TrainingCommand(*PAIRS_OF_TWO, words, own_recipe="own_pairs")
    assert (arguments.name, arguments.data_args.budget_minutes) == (recipe, minutes)
    added = ["own_pairs", "--eval_strategy=no"] if recipe == "own_pairs" else []
    assert arguments.args.words == added + words
    assert capsys.readouterr().out.startswith("Training for 20 minutes") == (minutes == 20)


def test_chosen_options_are_flags_in_place_of_the_budget():
    words = ["--dataset_name=d", "--budget-minutes", "9", "--learning_rate=1", *OUT]
    arguments = TrainingCommand(*PAIRS_OF_TWO, words)
    plain = arguments.change({"max_steps": 7, "lr_scheduler_kwargs": {}})
    flags = ["--max_steps=7", "--lr_scheduler_kwargs={}"]
    assert plain.args.words == ["--dataset_name=d", "--learning_rate=1", *OUT, *flags]
    again = TrainingCommand(*PAIRS_OF_TWO, plain.args.words)
    assert again.args.to_dict() == plain.args.to_dict()
    assert arguments.args.max_steps == -1


@pytest.mark.parametrize(
    ("recipe", "flags", "message"),
    [
        ("blok_size: 32", [], "unexpected in the recipe 'recipe': --blok_size=32. Did you mean `block_size`?"),
        ("sizes: {a: {megabytes: 1, blok_size: 32}}", [], "unexpected in the recipe 'recipe': blok_size."),
        ("block_size: [1, 2]", [], "unexpected: 2"),
        ("eval_strategy: daily", [], "invalid choice: 'daily'"),
        ("accelerator_config: {a: 1}", [], "unexpected keyword argument 'a'"),
        ("seed: 1", ["stray"], "unexpected: stray"),
        ("config_overrides: 'a=1,a=2'", [], "must be JSON or a=1,b=2; got 'a=1,a=2'"),
        ("seed: 1", ["--config_overrides", "a=!!python/name:os.system x"], "must be JSON or a=1,b=2"),
        ("seed: 1", ["--config_overrides", "a=[1"], "must be JSON or a=1,b=2"),
    ],
)
def test_bad_usage_is_named(recipe, flags, message, tmp_path):
    (tmp_path / "recipe.yaml").write_text(recipe, encoding="utf-8")
    with pytest.raises(ValueError, match=re.escape(message)):
        parse(tmp_path / "recipe.yaml", *flags)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--source_lang=fr", "--target_lang=fr"], "`source_lang` and `target_lang` are both 'fr'"),
        (["--budget_minutes=0"], "`budget_minutes` is 0. Leave it out"),
        (["--budget_minutes=3", "--max_steps=3"], "`budget_minutes` and `max_steps` do not go together"),
        (["--config_overrides=d_modell=16"], "'d_modell', which ScratchTransformerConfig does not. Did you mean"),
        (["--global_batch_size=8", "--gradient_accumulation_steps=1"], "`gradient_accumulation_steps` follows"),
        (["--num_beams=2"], "`num_beams` is not an option of this script"),
    ],
)
def test_options_that_do_not_go_together_are_named(flags, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        TrainingCommand(*PAIRS_OF_TWO, [*flags, *OUT], unsupported=["num_beams"])


def test_an_output_folder_is_needed():
    with pytest.raises(UserError, match="--output_dir"):
        parse_arguments(*TYPES, args=["--use_cpu=true"])


def test_a_recipes_numbers_and_words_are_those_of_yaml_1_2(recipe):
    recipe.write_text(
        "learning_rate: 1e-3\nblock_size:\nsave_strategy: no\nrun_name: 7\n"
        "config_overrides:\n  layer_norm_eps: 1e-6\nlr_scheduler_kwargs: {}\nuse_cpu: true\n"
        "hub_model_id: 2024-01-01\nteacher_models: [a, b]\n"
    )
    model_args, data_args, args = parse(recipe)
    assert (args.learning_rate, data_args.block_size, args.save_strategy, args.run_name) == (1e-3, 256, "no", "7")
    assert (model_args.config_overrides, args.lr_scheduler_kwargs) == ({"layer_norm_eps": 1e-6}, {})
    assert (args.hub_model_id, data_args.teacher_models) == ("2024-01-01", ["a", "b"])


def test_overrides_have_the_types_of_json_and_may_have_common_names():
    overrides = ModelArguments(config_overrides="hidden_size=16,norm_first=false,hidden_dropout=0.1")
    expected = {"hidden_size": 16, "norm_first": False, "hidden_dropout": 0.1}
    assert read_model_fields(overrides, ScratchGPTConfig) == expected
    assert read_model_fields(ModelArguments(), ScratchGPTConfig) == {}
    overrides = ModelArguments(config_overrides="hidden_size=8")
    assert read_model_fields(overrides, ScratchTransformerConfig) == {"d_model": 8}  # by attribute_map


def test_several_gpus_need_several_processes():
    with pytest.raises(ValueError, match=r"2 GPUs are visible to one process.*accelerate launch.*CUDA_VISIBLE"):
        check_options(None, SimpleNamespace(n_gpu=2))


@pytest.mark.parametrize("name", ["demo_numbers", "demo_numbers.yaml"])
def test_a_recipe_of_the_package_is_found_by_its_name(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    line = CommandLine([name])
    assert (line.recipe["dataset_name"], line.name) == ("embedded:numbers", "demo_numbers")
    (tmp_path / "demo_numbers.yaml").write_text("dataset_name: embedded:summaries\n", encoding="utf-8")
    line = CommandLine(["demo_numbers.yaml"])
    assert line.recipe["dataset_name"] == "embedded:summaries"  # a file of the user's comes first
