"""Stragglers: members that compute more slowly than their peers would. Pure functions.

A member's *own* seconds are its step without the time in which it waited for others; the trainer measures them. The seconds that
a member should take follow from measured unit times and its number of micro-batches, so that members of different stages can be
compared.
"""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass

from frostline_contract.plan import Placement
from frostline_contract.statistics import UnitProfile
from frostline_controller.planner.leaves import micro_batch_counts

TOLERANCE = 1.3
"""A reading within this factor of a member's believed slowness changes nothing."""
LASTING_SECONDS = 60.0
"""How long all readings must be outside that factor before another slowness is believed."""
FORGET_SECONDS = 600.0
"""When a slow worker that no plan uses, and that is therefore not measured, counts as normal again."""
LITTLE_WORK = 0.25
"""The least work that a member is counted with, as a share of the mean: with less, overhead dominates its seconds."""


def work_of(placement: Placement, freeze_point: int, units: tuple[UnitProfile, ...], num_microbatches: int) -> dict[str, float]:
    """Own seconds that a step should take each member, by worker id, on a device of the profile's speed."""
    leaves = placement.leaf_bounds[-1]
    counts = micro_batch_counts(placement.leaf_bounds, num_microbatches, leaves)
    by_pp_rank = []
    for numbers in placement.units_by_pp_rank:
        seconds = 0.0
        for number in numbers:
            if number >= freeze_point:
                seconds += units[number].forward_seconds + units[number].backward_seconds
            elif not placement.use_cache:
                seconds += units[number].forward_seconds
        by_pp_rank.append(seconds)
    shape = placement.shape
    return {
        worker_id: counts[shape.dp_rank(global_rank)] * by_pp_rank[shape.pp_rank(global_rank)]
        for global_rank, worker_id in enumerate(placement.workers)
    }


def slowness(busy: Mapping[str, float], work: Mapping[str, float]) -> dict[str, float]:
    """By worker: its own seconds over what the median of its peers would take for its work; 1.0 is normal.

    Args:
        busy: measured own seconds of a step, by worker.
        work: own seconds that a step should take each worker (`work_of`).

    Returns:
        Empty where fewer than two workers have measured any.
    """
    known = {worker: seconds for worker, seconds in busy.items() if seconds > 0 and worker in work}
    if len(known) < 2:
        return {}
    least = LITTLE_WORK * sum(work[worker] for worker in known) / len(known)
    if least <= 0:
        return {}
    pace = {worker: seconds / max(work[worker], least) for worker, seconds in known.items()}
    ordered = sorted(pace.values())
    return {worker: own / _median_without(ordered, own) for worker, own in pace.items()}


def _median_without(ordered: list[float], value: float) -> float:
    """The median of all but one `value` of an ordered list, which holds it."""
    place, rest = bisect_left(ordered, value), len(ordered) - 1

    def at(index: int) -> float:
        return ordered[index if index < place else index + 1]

    return at(rest // 2) if rest % 2 else (at(rest // 2 - 1) + at(rest // 2)) / 2


@dataclass(frozen=True)
class Belief:
    """The believed slowness of one member.

    Attributes:
        level: how many times slower than its peers; 1.0: as fast.
        read_at: time of the newest reading, seconds by the run's clock.
        away_since: since when all readings have been outside the tolerance, on one side; None where they are not.
        nearest: of the readings since then, the one nearest to `level`.
    """

    level: float = 1.0
    read_at: float = 0.0
    away_since: float | None = None
    nearest: float = 0.0


def follow(belief: Belief, reading: float, now: float) -> Belief:
    """The belief after one more reading (0.0: none). Noise around the level never changes the level.

    A member that is faster than its peers counts as normal; where its peers are slow, their own readings show it.
    """
    if reading <= 0:
        return Belief() if belief.level > 1 and now - belief.read_at > FORGET_SECONDS else belief
    reading = max(1.0, reading)
    if belief.level / TOLERANCE <= reading <= belief.level * TOLERANCE:
        return Belief(belief.level, now)
    slower = reading > belief.level
    if belief.away_since is None or slower != (belief.nearest > belief.level):
        return Belief(belief.level, now, now, reading)
    nearest = (min if slower else max)(belief.nearest, reading)
    if now - belief.away_since < LASTING_SECONDS:
        return Belief(belief.level, now, belief.away_since, nearest)
    return Belief(round(nearest, 1) if nearest > TOLERANCE else 1.0, now)
