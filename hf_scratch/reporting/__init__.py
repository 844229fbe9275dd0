# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""What a run leaves for people: model cards and pictures."""
