#!/usr/bin/env python
# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Serve a GPT over an HTTP API like OpenAI's. It takes the options of `transformers serve`, which does the work.

python scripts/serve.py model_cards/scratch-gpt-tinystories --port 8000
curl -N localhost:8000/v1/completions -H "Content-Type: application/json" \\
    -d '{"model": "model_cards/scratch-gpt-tinystories", "prompt": "One day,", "max_tokens": 60, "stream": true}'
"""

import importlib.util
import sys

import hf_scratch_launcher  # noqa: F401  before torch, whose OpenMP it sets
import typer

from hf_scratch import ScratchGPTForCausalLM
from hf_scratch.errors import UserError, command

PACKAGES = ("fastapi", "uvicorn", "openai", "pydantic")


@command
def main():
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing and "--help" not in sys.argv:
        raise UserError(f"Serving needs {', '.join(missing)}: pip install 'hf-scratch[serve]'.")
    from transformers.cli.serve import Serve
    from transformers.cli.serving import model_manager

    # `transformers serve` looks up the class that config.json names in the module `transformers` itself. Unlike the
    # Auto classes, it has no table for plugins. The name is set in the module that the server sees, because importing
    # transformers can run its `__init__` twice, and make two of them.
    model_manager.transformers.ScratchGPTForCausalLM = ScratchGPTForCausalLM
    app = typer.Typer(add_completion=False)
    app.command()(Serve)
    app()


if __name__ == "__main__":
    main()
