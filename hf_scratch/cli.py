# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""`hf-scratch COMMAND ...`. Each file of scripts/ is a command: train_translation.py is `train-translation`."""

import argparse
import ast
import importlib
import sys
from pathlib import Path

from .errors import PROGRAM


def main():
    """Run the command that the first word names with the words after it. `--help` lists the commands and recipes."""
    from . import scripts  # which ends the process if the extra `train` is missing
    from .training.parsing import list_recipes

    files = sorted(file for folder in scripts.__path__ for file in Path(folder).glob("[!_]*.py"))
    parser = argparse.ArgumentParser(
        PROGRAM,
        description="`hf-scratch COMMAND --help` lists a command's options.",
        epilog=f"Recipes of the trainings, a training's first argument: {', '.join(list_recipes())}.",
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for file in files:
        first, _, _ = str(ast.get_docstring(ast.parse(file.read_text(encoding="utf-8")))).partition("\n\n")
        commands.add_parser(file.stem.replace("_", "-"), help=first, add_help=False)
    command = parser.parse_args(sys.argv[1:2]).command
    sys.argv[:2] = [f"{PROGRAM} {command}"]  # the name in its usage and errors
    importlib.import_module(f"{scripts.__name__}.{command.replace('-', '_')}").main()
