from types import SimpleNamespace

import pytest
from transformers import Seq2SeqTrainingArguments, TrainingArguments

from hf_scratch import ScratchGPTConfig, ScratchTransformerConfig
from hf_scratch.recipes import parse_yaml
from hf_scratch.training.parsing import parse_arguments, parse_overrides
from hf_scratch.training.script_arguments import LanguageModelArguments, ModelArguments, TranslationArguments
from hf_scratch.training.training_arguments import check_processes

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


@pytest.mark.parametrize("flag", ["num_hidden_layers=2,hidden_size=8", '{"num_hidden_layers": 2, "hidden_size": 8}'])
def test_overrides_of_a_flag_change_some_of_the_recipes(recipe, flag):
    recipe.write_text("config_overrides:\n  hidden_size: 16\n  hidden_dropout: 0.1\n", encoding="utf-8")
    (model_args, _, _), _ = parse_arguments(*TYPES, args=[str(recipe), "--config_overrides", flag])
    assert model_args.config_overrides == {"hidden_size": 8, "hidden_dropout": 0.1, "num_hidden_layers": 2}


def test_no_recipe_is_needed():
    (_, data_args, _), name = parse_arguments(*TYPES, args=["--dataset_name", "embedded:stories", "--use_cpu", "true"])
    assert (data_args.dataset_name, name) == ("embedded:stories", "")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["{folder}/smal.yaml"], "Did you mean small?"),
        (["{folder}/wrong.yaml"], "has. Did you mean block_size?"),
        (["{folder}/list.yaml"], "must be a mapping"),
        (["{folder}/broken.yaml"], "cannot be read"),
        (["recipe.txt"], "must be a .yaml or .json file"),
        (["{folder}"], "is a folder"),
        (["{folder}/latin.yaml"], "is not UTF-8 text (byte 6)"),
        (["{folder}/word.yaml"], "`learning_rate` must be a number, got 'fast'"),
        (["{folder}/values.yaml"], "`block_size` takes one value, not this list"),
        (["{folder}/nothing.yaml"], "`block_size` has no value"),
        (["{folder}/fraction.yaml"], "`block_size` must be a whole number, got 32.5"),
        (["{folder}/choice.yaml"], "`eval_strategy` must be one of no, steps, epoch; got 'daily'"),
        (["{folder}/twice.yaml"], "line 2: 'seed' is given twice"),
        (["{folder}/twice.json"], "'seed' is given twice"),
        (["{folder}/tag.yaml"], "line 1: the tag !!python/object/apply:os.system is not allowed"),
        (["--blok_siz", "3"], "unexpected: --blok_siz. Did you mean --block_size?"),
        (["--block_size", "many"], "--block_size"),
        (["{folder}/small.yaml", "stray"], "unexpected: stray"),
    ],
)
def test_bad_usage_is_one_line(args, message, recipe, tmp_path, capsys):
    (tmp_path / "wrong.yaml").write_text("blok_size: 32\n", encoding="utf-8")
    (tmp_path / "list.yaml").write_text("- 1\n", encoding="utf-8")
    (tmp_path / "broken.yaml").write_text("a: [\n", encoding="utf-8")
    (tmp_path / "latin.yaml").write_bytes("seed: ü".encode("latin-1"))
    (tmp_path / "word.yaml").write_text("learning_rate: fast\n", encoding="utf-8")
    (tmp_path / "values.yaml").write_text("block_size: [1, 2]\n", encoding="utf-8")
    (tmp_path / "nothing.yaml").write_text("block_size:\n", encoding="utf-8")
    (tmp_path / "fraction.yaml").write_text("block_size: 32.5\n", encoding="utf-8")
    (tmp_path / "choice.yaml").write_text("eval_strategy: daily\n", encoding="utf-8")
    (tmp_path / "twice.yaml").write_text("seed: 1\nseed: 2\n", encoding="utf-8")
    (tmp_path / "twice.json").write_text('{"seed": 1, "seed": 2}', encoding="utf-8")
    (tmp_path / "tag.yaml").write_text("run_name: !!python/object/apply:os.system [ls]\n", encoding="utf-8")
    with pytest.raises(SystemExit):
        parse_arguments(*TYPES, args=[arg.format(folder=tmp_path) for arg in args])
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 2  # the usage stands before it


def test_a_recipes_numbers_and_words_are_those_of_yaml_1_2(recipe):
    recipe.write_text(
        "learning_rate: 1e-3\nblock_size: 64.0\nsave_strategy: no\nrun_name: 7\n"
        "config_overrides:\n  layer_norm_eps: 1e-6\nlr_scheduler_kwargs: {}\nuse_cpu: true\n"
        "hub_model_id: 2024-01-01\n"
    )
    (model_args, data_args, args), _ = parse_arguments(*TYPES, args=[str(recipe)])
    assert (args.learning_rate, data_args.block_size, args.save_strategy, args.run_name) == (1e-3, 64, "no", "7")
    assert model_args.config_overrides == {"layer_norm_eps": 1e-6}
    assert args.hub_model_id == "2024-01-01"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: !!set {b}", "line 1: the tag !!set is not allowed"),
        ("a: 1\nb: !!int c", "invalid literal for int"),
        ("a: !!bool b", "'b' does not fit its tag"),
        ("a: \x00", "the character at position 3"),
        ("[" * 5000, "nested too deeply"),
        ("a: 1\n---\na: 2", "line 2: but found another document"),
        ("{a: 1}: 2", "line 1: found unhashable key"),
    ],
)
def test_what_a_recipe_cannot_hold_is_named(text, message):
    with pytest.raises(ValueError, match=message):
        parse_yaml(text)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--learning_rate", "nan"], "`learning_rate` must be 0 or more, got nan"),
        (["--max_train_samples", "0"], "`max_train_samples` must be 1 or more, got 0"),
        (["--tokenizer_sample_mb", "inf"], "`tokenizer_sample_mb` must be 0.001 or more, got inf"),
        (["--label_smoothing_factor", "1"], "`label_smoothing_factor` must be from 0 to below 1, got 1.0"),
        (["--save_on_each_node", "true"], "`save_on_each_node` is not supported"),
    ],
)
def test_a_number_out_of_its_range_is_named(flags, message, recipe):
    with pytest.raises(ValueError, match=message):
        parse_arguments(*TYPES, args=[str(recipe), *flags])


def test_a_path_begins_at_the_home_folder(recipe, monkeypatch):
    monkeypatch.setenv("HOME", "/home/someone")
    (_, data_args, args), _ = parse_arguments(*TYPES, args=[str(recipe), "--train_file=~/a", "--output_dir=~/b"])
    assert (data_args.train_file, args.output_dir) == ("/home/someone/a", "/home/someone/b")


def test_overrides_in_each_form():
    expected = {"hidden_size": 16, "norm_first": False, "hidden_dropout": 0.1}
    text = "hidden_size=16,norm_first=false,hidden_dropout=0.1"
    json = '{"hidden_size": 16, "norm_first": false, "hidden_dropout": 0.1}'
    for overrides in (expected, text, json):
        assert parse_overrides(overrides, ScratchGPTConfig) == expected
    assert parse_overrides(None, ScratchGPTConfig) == {}
    assert parse_overrides("hidden_size=8", ScratchTransformerConfig) == {"d_model": 8}  # by attribute_map


def test_a_wrong_override_is_named_with_the_nearest():
    with pytest.raises(ValueError, match=r"'hiden_size', which ScratchGPTConfig does not\. Did you mean hidden_size"):
        parse_overrides("hiden_size=16", ScratchGPTConfig)
    with pytest.raises(ValueError, match="must be JSON or a=1,b=2; got 'hidden_size'"):
        parse_overrides("hidden_size", ScratchGPTConfig)
    with pytest.raises(ValueError, match="'architectures', which is not for the user to set"):
        parse_overrides("architectures=[1]", ScratchGPTConfig)
    with pytest.raises(ValueError, match=r"the tag !!python/name:os\.system is not allowed"):
        parse_overrides("hidden_act=!!python/name:os.system x", ScratchGPTConfig)
    with pytest.raises(ValueError, match="'hidden_size' is given twice"):
        parse_overrides("hidden_size=1,hidden_size=2", ScratchGPTConfig)


def test_several_gpus_need_several_processes():
    with pytest.raises(ValueError, match=r"2 GPUs are visible to one process.*accelerate launch.*CUDA_VISIBLE"):
        check_processes(SimpleNamespace(n_gpu=2))
    check_processes(SimpleNamespace(n_gpu=1))


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
