"""Devices of one speed, for benchmarks: four workers that share one processor of this machine by control groups' quotas.

Why one: two of a machine's processors may be threads of one core, and a virtual machine need not say so. Then a processor that
computes slows its neighbour, and workers on both have no speed of their own: each is quicker while the others wait, which no plan
can know. Seen on a virtual machine of two processors: products of matrices took 0.050 s on one processor beside an idle one, and
0.050 to 0.097 s beside a busy one, changing from minute to minute. On one processor all have their shares of the same speed.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

WORKERS, SHARE = 4, 0.2
"""Devices, and each one's share of the processor: together four fifths; the controller and the cache have the rest."""


@contextmanager
def one_processor() -> Iterator[int]:
    """Keep this thread, and all processes that it starts, to one processor. Yields the processor's number."""
    before = os.sched_getaffinity(0)
    chosen = max(before)
    os.sched_setaffinity(0, {chosen})
    try:
        yield chosen
    finally:
        os.sched_setaffinity(0, before)
