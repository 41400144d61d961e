"""Seeds of random numbers. Each seed is derived from a name and never from a generator's shared state.

A seed is the first 8 bytes of the SHA-256 of its name (docs/protocols.md 1.4). So it depends on what is computed, and never on
which worker computes it or in which order.
"""

import hashlib


def seed_of(*name: int | str) -> int:
    """The seed that belongs to `name`, e.g. `seed_of("dropout", seed, step, micro_batch, unit)`.

    Returns an integer in [0, 2**63): torch's CPU and CUDA generators accept the whole range.
    """
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in name)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
