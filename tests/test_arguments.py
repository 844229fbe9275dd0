import pytest
from transformers import TrainingArguments

from hf_scratch import ScratchGPTConfig, ScratchTransformerConfig
from hf_scratch.arguments import LanguageModelArguments, ModelArguments, parse_arguments, parse_overrides

TYPES = (ModelArguments, LanguageModelArguments, TrainingArguments)


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "small.yaml"
    path.write_text("block_size: 32\nlearning_rate: 2.0e-3\nconfig_overrides:\n  hidden_size: 16\nuse_cpu: true\n")
    return path


def test_flags_override_the_recipe(recipe):
    (model_args, data_args, args), name = parse_arguments(*TYPES, args=[str(recipe), "--block_size", "64"])
    assert (data_args.block_size, args.learning_rate, model_args.config_overrides) == (64, 2e-3, {"hidden_size": 16})
    assert name == "small"


@pytest.mark.parametrize("flag", ["num_hidden_layers=2,hidden_size=8", '{"num_hidden_layers": 2, "hidden_size": 8}'])
def test_overrides_of_a_flag_change_some_of_the_recipes(recipe, flag):
    recipe.write_text("config_overrides:\n  hidden_size: 16\n  hidden_dropout: 0.1\n")
    (model_args, _, _), _ = parse_arguments(*TYPES, args=[str(recipe), "--config_overrides", flag])
    assert model_args.config_overrides == {"hidden_size": 8, "hidden_dropout": 0.1, "num_hidden_layers": 2}


def test_no_recipe_is_needed():
    (_, data_args, _), name = parse_arguments(*TYPES, args=["--dataset_name", "embedded:stories", "--use_cpu", "true"])
    assert (data_args.dataset_name, name) == ("embedded:stories", "")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["{folder}/smal.yaml"], "Did you mean small?"),
        (["{folder}/wrong.yaml"], "has the key 'blok_size', which no argument has. Did you mean block_size?"),
        (["{folder}/list.yaml"], "must be a mapping"),
        (["{folder}/broken.yaml"], "cannot be read"),
        (["recipe.txt"], "must be a .yaml or .json file"),
        (["--blok_siz", "3"], "there is no argument --blok_siz. Did you mean --block_size?"),
        (["--block_size", "many"], "--block_size"),
        (["{folder}/small.yaml", "stray"], "unexpected: stray"),
    ],
)
def test_bad_usage_is_one_line(args, message, recipe, tmp_path, capsys):
    (tmp_path / "wrong.yaml").write_text("blok_size: 32\n")
    (tmp_path / "list.yaml").write_text("- 1\n")
    (tmp_path / "broken.yaml").write_text("a: [\n")
    with pytest.raises(SystemExit):
        parse_arguments(*TYPES, args=[arg.format(folder=tmp_path) for arg in args])
    assert message in capsys.readouterr().err


def test_overrides_in_each_form():
    expected = {"hidden_size": 16, "norm_first": False, "hidden_dropout": 0.1}
    text = "hidden_size=16,norm_first=false,hidden_dropout=0.1"
    json = '{"hidden_size": 16, "norm_first": false, "hidden_dropout": 0.1}'
    for overrides in (expected, text, json):
        assert parse_overrides(overrides, ScratchGPTConfig) == expected
    assert parse_overrides(None, ScratchGPTConfig) == {}
    assert parse_overrides("hidden_size=8", ScratchTransformerConfig) == {"hidden_size": 8}  # by attribute_map


def test_a_wrong_override_is_named_with_the_nearest():
    with pytest.raises(ValueError, match=r"'hiden_size', which ScratchGPTConfig does not\. Did you mean hidden_size"):
        parse_overrides("hiden_size=16", ScratchGPTConfig)
    with pytest.raises(ValueError, match="must be JSON or a=1,b=2; got 'hidden_size'"):
        parse_overrides("hidden_size", ScratchGPTConfig)
