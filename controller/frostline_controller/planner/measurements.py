"""The measurements of a run's workers as one: the reference profile, the link, and the cache's traffic."""

from collections.abc import Sequence
from statistics import median

import numpy as np

from frostline_contract.statistics import CacheProfile, LinkProfile, SizeProfiles, WorkerProfile
from frostline_controller.members.membership import Worker
from frostline_controller.planner.kept_profile import KeptProfile
from frostline_proto.v1 import plan_pb2


def reference_profile(workers: tuple[Worker, ...], one_machine: bool) -> WorkerProfile:
    """Return the profile of the worker with the median total time of units, so that one outlier on a busy machine has no effect.

    Args:
        workers: the workers that have measured.
        one_machine: all workers share this machine. Their measurements then differ by noise alone (`_as_one`).
    """
    profiles = sorted((worker.profile for worker in workers), key=_total_seconds)
    if not one_machine:
        return profiles[(len(profiles) - 1) // 2].record()
    return _as_one(profiles[0].record(), [profile.seconds for profile in profiles])


def of_one_machine(found: Sequence[SizeProfiles]) -> SizeProfiles:
    """Return as one what workers have measured at several sizes, at the same time and on one machine. found: at least one."""
    profiles = [
        _as_one(same[0], [KeptProfile.of(one).seconds for one in same])
        for same in zip(*(one.profiles for one in found), strict=True)
    ]
    return found[0].model_copy(update={"profiles": tuple(profiles), "link": median_link([one.link for one in found])})


def _as_one(first: WorkerProfile, seconds: Sequence[np.ndarray]) -> WorkerProfile:
    """Return what the workers of one machine have measured as one profile.

    Each unit gets the least times that any of them measured, since other load only adds time, and they measure while all of them
    start. Workers with a share of a processor count their own processor time, which is longer only for what others do to the
    machine's caches, and that they do in steps as well: they get the median.

    Args:
        first: a worker's profile.
        seconds: as `KeptProfile.seconds`, of each worker.
    """
    one = np.median(seconds, axis=0) if first.quota_period_seconds else np.min(seconds, axis=0)
    units = [
        unit.model_copy(update={"forward_seconds": forward, "backward_seconds": backward})
        for unit, (forward, backward) in zip(first.units, one.T.tolist(), strict=True)
    ]
    return first.model_copy(update={"units": tuple(units)})


def _total_seconds(profile: KeptProfile) -> float:
    return profile.total_seconds


def measured_link(workers: tuple[Worker, ...]) -> LinkProfile | None:
    """Return the link measured between machines, or within the only machine; None before any worker has measured."""
    return median_link([worker.link for worker in workers]) or median_link([worker.near_link for worker in workers])


def median_link(links: Sequence[LinkProfile | plan_pb2.LinkProfile | None]) -> LinkProfile | None:
    """Return the median of the measured links, field by field; None where there are none.

    Figures of sums stand for unmeasured figures of messages, and the other way round.
    """
    found = [link for link in links if link is not None]
    values = {name: [value for link in found if (value := getattr(link, name)) > 0] for name in LinkProfile.model_fields}
    measured = {name: median(some) for name, some in values.items() if some}
    for name in set(LinkProfile.model_fields) - set(measured):
        other = name.removeprefix("reduce_") if name.startswith("reduce_") else f"reduce_{name}"
        if values[other]:
            measured[name] = median(values[other])
    return LinkProfile(**measured) if measured else None


def measured_cache(workers: tuple[Worker, ...], same_boundary: bool = True) -> CacheProfile | None:
    """Return the median of the workers' cache measurements, field by field; None before any worker has read from the cache.

    same_boundary: whether they are of the boundary to plan for; of another one the share of hits says nothing, and is 0.
    """
    found = [worker.cache for worker in workers if worker.cache is not None and worker.cache.fetch_seconds_per_sample > 0]
    if not found:
        return None
    medians = {name: median(getattr(cache, name) for cache in found) for name in CacheProfile.model_fields}
    return CacheProfile(**medians if same_boundary else {**medians, "hit_fraction": 0.0})
