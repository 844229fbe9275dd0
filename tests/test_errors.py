"""How the commands end on a user's mistake."""

import sys

import pytest
from datasets import enable_progress_bars
from datasets.utils import are_progress_bars_disabled

from hf_scratch.errors import UserError, command, preparation, without_option


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
    ("error", "in_preparation", "code", "message"),
    [
        (UserError("`seed` is red."), True, 2, "`seed` is red."),
        (ValueError("two\n  lines"), True, 2, "two lines"),
        (FileNotFoundError(2, "No such file or directory", "a.txt"), True, 2, "No such file or directory: a.txt"),
        (ImportError("pip install x"), True, 2, "pip install x"),
        (FloatingPointError("The loss is nan"), False, 1, "The loss is nan"),  # the training diverged
    ],
)
def test_a_users_mistake_is_one_line_and_a_status(error, in_preparation, code, message, capsys):
    with pytest.raises(SystemExit) as exit:
        run(error, in_preparation)
    assert exit.value.code == code
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


def test_progress_bars_are_for_the_first_processs_terminal(monkeypatch):
    for is_terminal, rank in ((True, "0"), (True, "1"), (False, "0")):
        enable_progress_bars()
        monkeypatch.setattr(sys.stderr, "isatty", lambda is_terminal=is_terminal: is_terminal)
        monkeypatch.setenv("LOCAL_RANK", rank)
        command(lambda: None)()
        assert are_progress_bars_disabled() == (not is_terminal or rank == "1")


def test_a_trace_can_be_had(monkeypatch):
    monkeypatch.setenv("HF_SCRATCH_TRACE", "1")
    with pytest.raises(UserError) as raised:
        run(ValueError("no"), in_preparation=True)
    assert isinstance(raised.value.__cause__, ValueError)


def test_an_option_is_left_out_in_either_spelling():
    words = ["recipe", "--max-steps", "3", "--max_steps=4", "--max_steps_more", "5"]
    assert without_option(words, "max_steps") == ["recipe", "--max_steps_more", "5"]
