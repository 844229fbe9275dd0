import pytest
import torch
from conftest import make_gpt, make_transformer
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from hf_scratch.errors import UserError
from hf_scratch.loading import load_checkpoint
from hf_scratch.manifest import write_manifest
from hf_scratch.training.averaging import average_checkpoints


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


def test_a_folder_without_a_model_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"config\.json"):
        load_checkpoint(AutoModelForCausalLM, str(tmp_path))
    with pytest.raises(UserError, match="is not a folder"):
        load_checkpoint(AutoModelForCausalLM, str(tmp_path / "nowhere"))


def test_a_generation_config_cut_short_is_named(tmp_path):
    make_gpt().save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").write_text('{"max_length": 4')
    with pytest.raises(UserError, match=r"generation_config\.json is not whole"):
        load_checkpoint(AutoModelForCausalLM, str(tmp_path))


def test_a_flipped_byte_of_a_saved_model_is_seen(tmp_path):
    make_gpt().save_pretrained(tmp_path)
    write_manifest(tmp_path, ["model.safetensors"])
    load_checkpoint(AutoModelForCausalLM, str(tmp_path))
    weights = tmp_path / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-100] ^= 1
    weights.write_bytes(content)
    with pytest.raises(UserError, match=r"model\.safetensors is not what was saved: its SHA-256 .* remove .*manifest"):
        load_checkpoint(AutoModelForCausalLM, str(tmp_path))
