# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""`make gpu` on a machine that has torch, transformers, accelerate and pytest alone."""

import subprocess
import sys

import pytest
from conftest import ROOT

OTHERS = ("datasets", "pyarrow", "pandas", "scipy", "sklearn", "sacrebleu", "sacremoses", "matplotlib", "ruamel",
          "ruamel.yaml", "evaluate", "peft", "trl", "onnx", "onnxruntime", "hypothesis", "psutil")  # fmt: skip
WITHOUT = f"import sys; sys.modules.update(dict.fromkeys({OTHERS})); "
IMPORTS = {"scripts/benchmark": "gpu", "tests": "conftest, test_gpu, test_attention"}


@pytest.mark.slow
@pytest.mark.parametrize("folder", IMPORTS)
def test_make_gpu_needs_no_other_package(folder):
    code = f"{WITHOUT} sys.path.insert(0, {folder!r}); import {IMPORTS[folder]}"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-2000:]
