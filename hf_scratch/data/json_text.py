# Copyright 2026 The hf_scratch authors. Licensed under the Apache License, Version 2.0.
"""Parse JSON without passing over a key that is given twice."""

import json
from typing import Any


def parse_json(text: str) -> Any:
    """Parse JSON.

    Raises:
        ValueError: the text is not JSON, or has a key twice.
    """

    def refuse_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        mapping = dict(pairs)
        if len(mapping) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for i, name in enumerate(names) if name in names[:i])
            raise ValueError(f"{twice!r} is given twice")
        return mapping

    try:
        return json.loads(text, object_pairs_hook=refuse_twice)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
