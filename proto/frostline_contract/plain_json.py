"""JSON text for programs of others: numbers that JSON has no word for become null."""

import json
import math
from typing import Any


def plain_json(value: Any, indent: int | None = None) -> str:
    """The value as JSON text that every parser takes: NaN and infinities, which a refused step may have, are null.

    Files that Frostline itself reads again keep such numbers, as Python's `json` writes and reads them.
    """
    return json.dumps(_finite(value), allow_nan=False, indent=indent)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    return [_finite(one) for one in value] if isinstance(value, list | tuple) else value
