#!/usr/bin/env python
# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Write the benchmark's tables into the READMEs from `results/`, without measuring anything.

python scripts/benchmark/write_tables.py
"""

import argparse
from collections.abc import Sequence

from tables import update_readmes

from hf_scratch.errors import command


@command
def main(args: Sequence[str] | None = None):
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args(args)
    update_readmes(write=True)


if __name__ == "__main__":
    main()
