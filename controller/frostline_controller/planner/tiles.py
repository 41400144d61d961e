"""The choice of the prefix tile: the frozen prefix computes a micro-batch at once, or one sample where the kernels need that.

On some machines a sample's bits depend on its place in a tile. There a cached activation and one computed with its micro-batch
would differ, so the prefix is computed one sample at a time, or nothing is cached. The choice belongs to the numerics; it is made
once, when the first worker has measured both ways, and recorded with the run.
"""

from typing import Literal, NamedTuple

from frostline_contract.plan import MICRO_BATCH, SAMPLE, PrefixTile
from frostline_contract.statistics import WorkerProfile
from frostline_controller.planner.cache_costs import predicted_cache_seconds


class TileChoice(NamedTuple):
    """The prefix tile that a run was given, and why.

    Attributes:
        tile: samples computed together.
        reason: in words; empty where there was no choice.
    """

    tile: PrefixTile
    reason: str


def choose_prefix_tile(
    wanted: Literal["auto", "micro_batch", "sample"],
    dependence: str,
    sample_tile_cost: float,
    profile: WorkerProfile,
    boundary_bytes: int,
    passes: float,
) -> TileChoice:
    """Return the prefix tile, by comparing a cache filled one sample at a time with whole micro-batches without a cache.

    The times are those of a prefix of half the units.

    Args:
        wanted: the job's cache.prefix_tile.
        dependence: a worker's finding, in words, that kernels' bits depend on a sample's place; empty: they do not.
        sample_tile_cost: seconds of one sample at a time over seconds in micro-batches.
        profile: a worker's measurements.
        boundary_bytes: of one sample's activation.
        passes: over the training split, in the whole run.
    """
    if wanted == SAMPLE:
        return TileChoice(SAMPLE, f"{dependence}; cache.prefix_tile is sample" if dependence else "cache.prefix_tile is sample")
    if not dependence:
        return TileChoice(MICRO_BATCH, "")
    if wanted == MICRO_BATCH:
        return TileChoice(MICRO_BATCH, f"{dependence}; cache.prefix_tile is micro_batch, so nothing is cached")
    units = profile.units[: len(profile.units) // 2]
    whole = sum(unit.forward_seconds for unit in units) / profile.micro_batch_size
    move = predicted_cache_seconds(boundary_bytes)
    cached = sample_tile_cost * whole + move + max(0.0, passes - 1) * move
    computed = max(1.0, passes) * whole
    figures = (
        f"one sample at a time costs {sample_tile_cost:.2f} x; over {passes:.3g} passes {cached:.3g} s a sample with the cache, "
        f"{computed:.3g} s without"
    )
    if cached < computed:
        return TileChoice(SAMPLE, f"{dependence}; frozen layers are computed one sample at a time ({figures})")
    return TileChoice(MICRO_BATCH, f"{dependence}; nothing is cached ({figures})")
