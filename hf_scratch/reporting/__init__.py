# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""What a run leaves behind for readers: its record, model card and pictures."""
