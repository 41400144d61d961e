"""Measured cost of communication in a generation: what the planner needs to know of the links."""

import time

import torch

from frostline_contract.statistics import LinkProfile
from frostline_trainer.comm.collectives import Group
from frostline_trainer.engine.groups import Groups

SMALL, LARGE = 16, 262_144
"""float32 elements of a latency and of a bandwidth probe."""
REPETITIONS = 3


def measure_link(groups: Groups) -> LinkProfile | None:
    """All members call it together. None for a lone worker."""
    world = groups.world
    if world is None or world.size == 1:
        return None
    latency, slow = _pair(world, SMALL), _pair(world, LARGE)
    reduce_latency, reduce_slow = _reduce(world, SMALL), _reduce(world, LARGE)
    return LinkProfile(
        latency_seconds=latency,
        bandwidth_bytes_per_second=4 * LARGE / max(slow - latency, 1e-6),
        reduce_latency_seconds=reduce_latency,
        reduce_bandwidth_bytes_per_second=4 * LARGE / max(reduce_slow - reduce_latency, 1e-6),
    )


def _pair(world: Group, elements: int) -> float:
    """Seconds of one message between neighbours (0 and 1, 2 and 3, ...); the fastest of a few."""
    peer, best = world.index ^ 1, float("inf")
    if peer >= world.size:
        return 1e-4
    payload, landing = torch.zeros(elements), torch.zeros(elements)
    for _ in range(REPETITIONS):
        started = time.perf_counter()
        sent = world.send(payload, peer, elements)
        world.receive(landing, peer, elements)
        sent.wait()
        best = min(best, time.perf_counter() - started)
    return best


def _reduce(world: Group, elements: int) -> float:
    payload, best = torch.zeros(elements), float("inf")
    for _ in range(REPETITIONS):
        started = time.perf_counter()
        world.all_reduce_sum(payload)
        best = min(best, time.perf_counter() - started)
    return best
