import pytest
import torch
from conftest import make_gpt, make_transformer
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

from hf_scratch.checkpoints import average_checkpoints, check_output_dir, load_checkpoint


def test_the_average_of_three(tmp_path):
    for i, value in enumerate((1.0, 2.0, 6.0)):
        (tmp_path / str(i)).mkdir()
        save_file({"w": torch.full((2, 2), value)}, tmp_path / str(i) / "model.safetensors")
    folders = [str(tmp_path / str(i)) for i in range(3)]
    assert torch.equal(average_checkpoints(folders)["w"], torch.full((2, 2), 3.0))


def test_the_average_of_equals_is_each_of_them(tmp_path):
    make_transformer().save_pretrained(tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    average = average_checkpoints([str(tmp_path)] * 3)
    assert all(torch.equal(average[name], tensor) for name, tensor in state.items())


def test_checkpoints_of_different_models_are_not_averaged(tmp_path):
    make_transformer().save_pretrained(tmp_path / "a")
    make_gpt().save_pretrained(tmp_path / "b")
    with pytest.raises(ValueError, match="do not hold the same weights"):
        average_checkpoints([str(tmp_path / "a"), str(tmp_path / "b")])
    with pytest.raises(ValueError, match="no checkpoints"):
        average_checkpoints([])


def test_a_truncated_checkpoint_is_named(tmp_path):
    make_gpt().save_pretrained(tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    with pytest.raises(ValueError, match=r"model\.safetensors is cut short or damaged"):
        load_checkpoint(AutoModelForCausalLM, str(tmp_path))
    (tmp_path / "config.json").write_text("{", encoding="utf-8")
    with pytest.raises(ValueError, match=r"config\.json is not whole"):
        load_checkpoint(AutoModelForCausalLM, str(tmp_path))


def test_the_other_family_is_named(tmp_path):
    make_gpt().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="holds a 'scratch_gpt' model, which AutoModelForSeq2SeqLM does not load"):
        load_checkpoint(AutoModelForSeq2SeqLM, str(tmp_path))
    assert load_checkpoint(AutoModelForCausalLM, str(tmp_path)).config.model_type == "scratch_gpt"


def test_a_folder_without_a_model_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no config\.json"):
        load_checkpoint(AutoModelForCausalLM, str(tmp_path))
    with pytest.raises(FileNotFoundError, match="is not a folder"):
        load_checkpoint(AutoModelForCausalLM, str(tmp_path / "nowhere"))


def test_runs_are_kept_apart(tmp_path):
    assert check_output_dir(str(tmp_path / "new"), None) is None
    with pytest.raises(ValueError, match="no checkpoint in `output_dir`"):
        check_output_dir(str(tmp_path), "last")
    for step in (20, 100):
        (tmp_path / f"checkpoint-{step}").mkdir()
    with pytest.raises(ValueError, match="is not empty: another run may be in it"):
        check_output_dir(str(tmp_path), None)
    for word in ("last", "true", "True"):
        assert check_output_dir(str(tmp_path), word) == str(tmp_path / "checkpoint-100")
    assert check_output_dir(str(tmp_path), str(tmp_path / "checkpoint-20")) == str(tmp_path / "checkpoint-20")
    with pytest.raises(FileNotFoundError, match="nowhere"):
        check_output_dir(str(tmp_path), "nowhere")
