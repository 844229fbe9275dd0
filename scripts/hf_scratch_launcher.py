# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""`hf-scratch COMMAND ...`. Each file of scripts/ is a command: train_translation.py is `train-translation`.

A module outside the package that imports only the standard library. The package's import loads torch, which takes
seconds, and OpenMP reads the environment then. Importing this module chooses how OpenMP's threads wait for each other,
unless `OMP_WAIT_POLICY` or `GOMP_SPINCOUNT` is set.
"""

import argparse
import ast
import difflib
import importlib
import os
import sys
from importlib.metadata import version
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

PROGRAM = "hf-scratch"
TRAIN = ("sacrebleu", "sacremoses", "matplotlib", "ruamel")  # the packages of the extra `train`
FILES = ("train_file", "validation_file", "test_file")

# A thread that has done its share of a computation spins until the others have done theirs. By default it spins for
# longer than the scheduler's time slice: beside other processes, it holds the core that the others wait for. To sleep
# instead costs about a tenth on an idle machine. To spin for a shorter time costs nothing there, and helps less.
if not os.environ.keys() & {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} and hasattr(os, "getloadavg"):
    if os.getloadavg()[0] > (os.cpu_count() or 1) / 4:  # processes that ran or waited for a core in the last minute
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
    else:
        os.environ["GOMP_SPINCOUNT"] = "20000"


def find_scripts() -> Path:
    """The folder of the commands and recipes: in the installed package, or in the clone."""
    (package,) = map(Path, find_spec("hf_scratch").submodule_search_locations)
    scripts = package / "scripts"
    return scripts if (scripts / "recipes").is_dir() else package.parent / "scripts"


def find_mistake(words: list[str], recipes: list[str] | None) -> str | None:
    """Return what is wrong with a command's recipe or files, as far as their names tell.

    Args:
        words: what follows the command's name.
        recipes: the names of the package's recipes; None for a command whose first word is something else.
    """
    path = words[0] if words and not words[0].startswith("-") else None
    if path and recipes and not exists(path):
        name = Path(path).stem
        if Path(path).name != path or name not in recipes:
            close = difflib.get_close_matches(name, recipes, n=1)
            return f"There is no recipe {path!r}" + "".join(f". Did you mean `{each}`?" for each in close)
    for word, following in pairwise([*words, "."]):
        flag, sign, value = word.partition("=")
        option, file = flag.removeprefix("--").replace("-", "_"), value if sign else following
        if flag.startswith("--") and option in FILES and not exists(file):
            return f"`{option}`: there is no file {file!r}"
    return None


def exists(path: str) -> bool:
    """Whether there is a file or folder of this name, in which ~ stands for the home folder."""
    return os.path.exists(os.path.expanduser(path))


def main():
    """Run the command that the first word names with the words after it. `--help` lists the commands and recipes."""
    scripts = find_scripts()
    recipes = sorted(file.stem for file in (scripts / "recipes").glob("*.yaml"))
    parser = argparse.ArgumentParser(
        PROGRAM,
        description="`hf-scratch COMMAND --help` lists a command's options.",
        epilog=f"Recipes of the trainings, a training's first argument: {', '.join(recipes)}.",
    )
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {version(PROGRAM)}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for file in sorted(scripts.glob("[!_]*.py")):
        if file.name != Path(__file__).name:
            first, _, _ = str(ast.get_docstring(ast.parse(file.read_text(encoding="utf-8")))).partition("\n\n")
            commands.add_parser(file.stem.replace("_", "-"), help=first, add_help=False)
    command = parser.parse_args(sys.argv[1:2]).command
    mistake = find_mistake(sys.argv[2:], recipes if command.startswith(("train-", "prepare-")) else None)
    if missing := [name for name in TRAIN if find_spec(name) is None]:
        mistake = f"{', '.join(missing)} not installed: pip install '{PROGRAM}[train]'"
    if mistake:
        parser.exit(2, f"{PROGRAM} {command}: error: {mistake}\n")
    sys.argv[:2] = [f"{PROGRAM} {command}"]  # the name in its usage and errors
    importlib.import_module(f"hf_scratch.scripts.{command.replace('-', '_')}").main()
