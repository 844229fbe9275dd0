# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""What the benchmarks are measured on."""

import os
import platform
import re
import time
from pathlib import Path
from typing import Any

import torch
import transformers

# how /proc/cpuinfo calls the instructions that decide the speed of matrix products
CPU_FEATURES = {"avx512f": "AVX-512", "amx_tile": "AMX"}


def read_machine(threads: int, data: str) -> dict[str, Any]:
    """Read the machine's CPU and the libraries' versions.

    Args:
        threads: the threads that are used.
        data: what is measured with, in a few words.
    """
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    name = re.search(r"model name\s*: (.+)", text)
    cpu = re.sub(r"\((?:R|TM)\)| CPU| Processor| @.*", "", name[1]).strip() if name else platform.machine()
    return {
        "cpu": cpu,
        "features": [label for flag, label in CPU_FEATURES.items() if re.search(rf"\b{flag}\b", text)],
        "cores": os.cpu_count(),
        "threads": threads,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "date": time.strftime("%Y-%m-%d"),
        "data": data,
    }
