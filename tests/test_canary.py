# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""The published folders still write what they wrote, without this package."""

import subprocess
import sys

from conftest import ROOT


def test_the_published_folders_write_the_kept_texts():
    done = subprocess.run(
        [sys.executable, "tests/canary.py"], cwd=ROOT, capture_output=True, text=True, check=False, timeout=200
    )
    assert done.returncode == 0, done.stdout + done.stderr
