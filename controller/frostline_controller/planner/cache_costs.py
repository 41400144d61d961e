"""Seconds of the activation cache's reads and writes: measured, or predicted from the bytes of a boundary activation."""

from frostline_contract.statistics import LinkProfile
from frostline_controller.planner.inputs import PlanInputs

NO_HIT = 1e-12
"""The hit fraction in place of 0, which stands for an unmeasured one."""


def predicted_cache_seconds(boundary_bytes: int, link: LinkProfile = LinkProfile()) -> float:  # noqa: B008  immutable
    """Return the predicted seconds to move one sample's activation to or from the cache, before any was measured."""
    return link.latency_seconds / 8 + boundary_bytes / min(1e9, link.bandwidth_bytes_per_second)


def cache_seconds(inputs: PlanInputs) -> tuple[float, float, float]:
    """Return the planned (fetch seconds, fill seconds, hit fraction), a sample, of a step with a warm cache.

    Unmeasured traffic is predicted from the boundary's bytes: a direct read moves about 1 GB/s with its share of the
    computing cores, and never more than the link. A cache that has not been filled yet is judged by its warm state, in which
    it holds `cache_coverage` of the values.
    """
    predicted = predicted_cache_seconds(inputs.boundary_bytes_per_sample, inputs.link)
    measured = inputs.cache
    fetch = measured.fetch_seconds_per_sample if measured and measured.fetch_seconds_per_sample > 0 else predicted
    fill = measured.fill_seconds_per_sample if measured and measured.fill_seconds_per_sample > 0 else predicted
    hit = measured.hit_fraction if measured and measured.hit_fraction > 0 else inputs.cache_coverage
    return fetch, fill, min(1.0, hit)
