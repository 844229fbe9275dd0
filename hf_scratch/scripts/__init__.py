# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""The commands, as modules: `python -m hf_scratch.scripts.train_translation multi30k_tiny`.

The wheel has their files here. In a clone they are in its folder `scripts`.
"""

import sys
from pathlib import Path

if not Path(__file__).with_name("recipes").is_dir():
    __path__.append(str(Path(__file__).parents[2] / "scripts"))
    sys.path.append(__path__[-1])  # where they find hf_scratch_launcher
