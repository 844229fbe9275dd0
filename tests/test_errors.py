"""How the commands end on a user's mistake."""

import sys

import pytest

from hf_scratch import ScratchTransformerConfig
from hf_scratch.errors import UserError, command, describe, preparation


@pytest.fixture(autouse=True)
def called(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["scripts/some_command.py"])


def run(error: BaseException, in_preparation: bool):
    @command
    def main():
        if in_preparation:
            with preparation():
                raise error
        raise error

    main()


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (UserError("`seed` is red."), "`seed` is red."),
        (ValueError("two\n  lines"), "two lines"),
        (FileNotFoundError(2, "No such file or directory", "a.txt"), "No such file or directory: a.txt"),
        (ImportError("pip install x"), "pip install x"),
        (ValueError("\ud800"), "\\ud800"),
    ],
)
def test_a_users_mistake_is_one_line(error, message, capsys):
    with pytest.raises(SystemExit) as exit:
        run(error, in_preparation=True)
    assert exit.value.code == 2
    assert capsys.readouterr().err == f"some_command.py: error: {message}\n"


def test_only_some_errors_are_the_users_after_the_preparation(capsys):
    for error in (UserError("a"), PermissionError(13, "Permission denied", "b")):
        with pytest.raises(SystemExit):
            run(error, in_preparation=False)
    assert len(capsys.readouterr().err.splitlines()) == 2
    for error in (ValueError("a bug"), OSError("of no file"), KeyError("bug")):
        with pytest.raises(type(error)):
            run(error, in_preparation=False)


def test_one_of_several_processes_speaks_first(monkeypatch, capsys):
    monkeypatch.setenv("LOCAL_RANK", "1")
    printed_before = []
    monkeypatch.setattr("time.sleep", lambda seconds: printed_before.append((seconds, capsys.readouterr().err)))
    with pytest.raises(SystemExit) as exit:
        run(UserError("no"), in_preparation=True)
    assert exit.value.code == 2
    assert printed_before == [(10.0, "")]  # the launcher ends it meanwhile if the first process has failed
    assert capsys.readouterr().err == "some_command.py: error of process 1: no\n"


def test_a_trace_can_be_had(monkeypatch):
    monkeypatch.setenv("HF_SCRATCH_TRACE", "1")
    with pytest.raises(UserError) as raised:
        run(ValueError("no"), in_preparation=True)
    assert isinstance(raised.value.__cause__, ValueError)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"d_model": 15}, "`encoder_attention_heads` (8) does not divide `d_model` (15)"),
        ({"d_model": "wide"}, "Field 'd_model' expected int, got str (value: 'wide')"),
        ({"dropout": 2.0}, "`dropout`: Value must be a probability between 0.0 and 1.0, got 2.0."),
    ],
)
def test_a_configs_error_is_what_its_check_said(fields, message):
    with pytest.raises(Exception) as raised:  # noqa: PT011  huggingface_hub's own class
        ScratchTransformerConfig(**fields)
    assert describe(raised.value).startswith(message)


def test_a_long_message_of_a_library_is_cut():
    assert len(describe(ValueError("x " * 2000))) <= 600


def test_a_file_in_the_place_of_a_folder_is_named(tmp_path):
    path = tmp_path / "README.md"
    path.touch()
    with pytest.raises(FileExistsError) as raised:
        path.mkdir(exist_ok=True)
    assert describe(raised.value) == f"{path} is a file, where a folder is needed. Choose another folder."
