import re
from types import SimpleNamespace

import pytest
from transformers import Seq2SeqTrainingArguments, TrainingArguments

from hf_scratch import ScratchGPTConfig, ScratchTransformerConfig
from hf_scratch.errors import UserError
from hf_scratch.training.parsing import parse_arguments, parse_overrides
from hf_scratch.training.script_arguments import LanguageModelArguments, ModelArguments, TranslationArguments
from hf_scratch.training.training_arguments import check_training_arguments

TYPES = (ModelArguments, LanguageModelArguments, TrainingArguments)


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "small.yaml"
    path.write_text(
        "block_size: 32\nlearning_rate: 2.0e-3\nconfig_overrides:\n  hidden_size: 16\nuse_cpu: true\n",
        encoding="utf-8",
    )
    return path


def test_flags_override_the_recipe(recipe):
    (model_args, data_args, args), name = parse_arguments(*TYPES, args=[str(recipe), "--block_size", "64"])
    assert (data_args.block_size, args.learning_rate, model_args.config_overrides) == (64, 2e-3, {"hidden_size": 16})
    assert name == "small"


def test_data_on_the_command_line_replace_the_recipes(recipe):
    def sources(*flags):
        (_, args, _), _ = parse_arguments(*TYPES, args=[str(recipe), "--use_cpu", "true", *flags])
        return args.dataset_name, args.dataset_config_name, args.train_file, args.test_file

    recipe.write_text("dataset_name: a\ndataset_config_name: b\n", encoding="utf-8")
    assert sources("--train-file=c.csv") == (None, None, "c.csv", None)
    assert sources("--dataset_name", "d", "--train_file", "c") == ("d", None, "c", None)  # which is refused later
    recipe.write_text("train_file: a\ntest_file: b\n", encoding="utf-8")
    assert sources("--train_file", "c") == (None, None, "c", "b")
    assert sources("--dataset_name", "d") == ("d", None, None, None)


@pytest.mark.parametrize("flag", ["num_hidden_layers=2,hidden_size=8", '{"num_hidden_layers": 2, "hidden_size": 8}'])
def test_overrides_of_a_flag_change_some_of_the_recipes(recipe, flag):
    recipe.write_text("config_overrides:\n  hidden_size: 16\n  hidden_dropout: 0.1\n", encoding="utf-8")
    (model_args, _, _), _ = parse_arguments(*TYPES, args=[str(recipe), "--config_overrides", flag])
    assert model_args.config_overrides == {"hidden_size": 8, "hidden_dropout": 0.1, "num_hidden_layers": 2}


def test_no_recipe_is_needed():
    (_, data_args, _), name = parse_arguments(*TYPES, args=["--dataset_name", "embedded:stories", "--use_cpu", "true"])
    assert (data_args.dataset_name, name) == ("embedded:stories", "")


@pytest.mark.parametrize(
    ("recipe", "flags", "message"),
    [
        ("blok_size: 32", [], "unexpected in the recipe 'recipe': --blok_size=32. Did you mean `block_size`?"),
        ("learning_rate: fast", [], "invalid float value: 'fast'"),
        ("block_size: [1, 2]", [], "unexpected: 2"),
        ("eval_strategy: daily", [], "invalid choice: 'daily'"),
        ("seed: 1", ["stray"], "unexpected: stray"),
        ("seed: 1", ["--blok_siz", "3"], "unexpected: --blok_siz. Did you mean `block_size`?"),
        ("seed: 1", ["--block_size", "many"], "invalid int value: 'many'"),
    ],
)
def test_bad_usage_is_named(recipe, flags, message, tmp_path):
    (tmp_path / "recipe.yaml").write_text(recipe, encoding="utf-8")
    with pytest.raises(UserError, match=re.escape(message)):
        parse_arguments(*TYPES, args=[str(tmp_path / "recipe.yaml"), *flags])


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("list.yaml", b"- 1"),
        ("broken.yaml", b"a: ["),
        ("latin.yaml", "seed: ü".encode("latin-1")),
        ("twice.yaml", b"seed: 1\nseed: 2"),
        ("tag.yaml", b"run_name: !!python/object/apply:os.system [ls]"),
        ("broken.json", b'{"seed": 1'),
    ],
)
def test_a_recipe_that_cannot_be_read_is_named(name, content, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=f"The recipe '.*{name}' (must be a mapping|cannot be read)"):
        parse_arguments(*TYPES, args=[str(tmp_path / name)])
    with pytest.raises(FileNotFoundError):
        parse_arguments(*TYPES, args=[str(tmp_path / "missing.yaml")])


def test_a_recipes_numbers_and_words_are_those_of_yaml_1_2(recipe):
    recipe.write_text(
        "learning_rate: 1e-3\nblock_size:\nsave_strategy: no\nrun_name: 7\n"
        "config_overrides:\n  layer_norm_eps: 1e-6\nlr_scheduler_kwargs: {}\nuse_cpu: true\n"
        "hub_model_id: 2024-01-01\nteacher_models: [a, b]\n"
    )
    (model_args, data_args, args), _ = parse_arguments(*TYPES, args=[str(recipe)])
    assert (args.learning_rate, data_args.block_size, args.save_strategy, args.run_name) == (1e-3, 256, "no", "7")
    assert (model_args.config_overrides, args.lr_scheduler_kwargs) == ({"layer_norm_eps": 1e-6}, {})
    assert (args.hub_model_id, data_args.teacher_models) == ("2024-01-01", ["a", "b"])


def test_overrides_in_each_form():
    expected = {"hidden_size": 16, "norm_first": False, "hidden_dropout": 0.1}
    text = "hidden_size=16,norm_first=false,hidden_dropout=0.1"
    json = '{"hidden_size": 16, "norm_first": false, "hidden_dropout": 0.1}'
    for overrides in (expected, text, json):
        assert parse_overrides(overrides, ScratchGPTConfig) == expected
    assert parse_overrides(None, ScratchGPTConfig) == {}
    assert parse_overrides("hidden_size=8", ScratchTransformerConfig) == {"d_model": 8}  # by attribute_map


def test_a_wrong_override_is_named_with_the_nearest():
    with pytest.raises(
        ValueError, match=r"'hiden_size', which ScratchGPTConfig does not\. Did you mean `hidden_size`"
    ):
        parse_overrides("hiden_size=16", ScratchGPTConfig)
    for pairs in ("hidden_size=1,hidden_size=2", "hidden_act=!!python/name:os.system x", "hidden_size=[1"):
        with pytest.raises(ValueError, match="must be JSON or a=1,b=2; got '"):
            parse_overrides(pairs, ScratchGPTConfig)


def test_several_gpus_need_several_processes():
    with pytest.raises(ValueError, match=r"2 GPUs are visible to one process.*accelerate launch.*CUDA_VISIBLE"):
        check_training_arguments(SimpleNamespace(n_gpu=2))
    check_training_arguments(SimpleNamespace(n_gpu=1, save_on_each_node=False))


@pytest.mark.parametrize("name", ["demo_numbers", "demo_numbers.yaml"])
def test_a_recipe_of_the_package_is_found_by_its_name(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    types = (ModelArguments, TranslationArguments, Seq2SeqTrainingArguments)
    flags = ["--output_dir", "x", "--use_cpu", "true"]
    (_, data_args, _), recipe = parse_arguments(*types, args=[name, *flags])
    assert (data_args.dataset_name, recipe) == ("embedded:numbers", "demo_numbers")
    (tmp_path / "demo_numbers.yaml").write_text("dataset_name: embedded:summaries\n", encoding="utf-8")
    (_, data_args, _), _ = parse_arguments(
        *types, args=["demo_numbers.yaml", "--output_dir", "x", "--use_cpu", "true"]
    )
    assert data_args.dataset_name == "embedded:summaries"  # a file of the user's comes first
