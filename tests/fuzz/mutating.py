"""Mutations of bytes and of JSON-like values, drawn from a seeded generator: an input is named by its seed and number."""

import json
import random
from typing import Any

SPLICES = (
    b"9" * 18, b"-1", b"\r\n", b"\xff\xff\xff\xff", b"\0\0\0\0", b"NaN", b"1e999", b"\x7f" * 8, b"null", b"[]", b"{}", b'"x"',
    b"\xc2\xb2", b"\xed\xa0\x80", b"[" * 40,
)  # fmt: skip
"""What parsers trip over: long numbers, signs, ends of lines, infinities, a digit that is none, a lone surrogate, depth."""
VALUES: tuple[Any, ...] = (
    None, -1, 0, "x", "", [], {}, 1e308, float("inf"), float("nan"), "../../../../etc/passwd", 10**30, True, "²", ["x"], {"x": 1},
)  # fmt: skip


def mutated(data: bytes, rng: random.Random) -> bytes:
    """Return `data` with a few edits."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4, 8))):
        changed = changed or bytearray(b"x")
        place, kind = rng.randrange(len(changed)), rng.randrange(6)
        if kind == 0:
            changed[place] = rng.randrange(256)
        elif kind == 1:
            changed[place] ^= 1 << rng.randrange(8)
        elif kind == 2:
            del changed[place : place + rng.randrange(1, 9)]
        elif kind == 3:
            changed[place:place] = rng.randbytes(rng.randrange(1, 6))
        elif kind == 4:
            start = rng.randrange(len(changed))
            changed[place:place] = changed[start : start + rng.randrange(1, 30)]
        else:
            changed[place:place] = rng.choice(SPLICES)
    return bytes(changed)


def with_another_value(value: Any, rng: random.Random) -> Any:
    """Return a copy in which one entry is missing or has another value."""
    copy = json.loads(json.dumps(value))
    inner = copy
    while True:
        if not isinstance(inner, (dict, list)) or not inner:
            return copy
        key = rng.choice(list(inner)) if isinstance(inner, dict) else rng.randrange(len(inner))
        if isinstance(inner[key], (dict, list)) and inner[key] and rng.random() < 0.7:
            inner = inner[key]
        elif isinstance(inner, dict) and rng.random() < 0.3:
            del inner[key]
            return copy
        else:
            inner[key] = rng.choice(VALUES)
            return copy
