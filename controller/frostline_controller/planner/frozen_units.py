"""The choice of how a step gets the values of frozen units: read from the cache, computed in stage 0, or computed in all stages.

The cache has the values at one boundary, so stage 0 holds all frozen units there; and until it is filled that stage computes them
for each sample that is missed. Where they are computed in any case, they may be divided over stages.
"""

from collections.abc import Callable
from dataclasses import replace

from frostline_contract.statistics import CacheProfile
from frostline_controller.planner.cache_costs import NO_HIT, cache_seconds
from frostline_controller.planner.caching import is_filled, passes_left
from frostline_controller.planner.inputs import NothingFits, PlanInputs
from frostline_controller.planner.placing import PlannedPlacement
from frostline_controller.planner.simulated_step import placement_cost

DIVIDED = "frozen units are divided over stages"

BoundedPlanner = Callable[[PlanInputs, float], PlannedPlacement]
"""Returns the best placement that takes less than some seconds per sample, with stage 0 and the cache as the inputs say."""


def plan_frozen_units(inputs: PlanInputs, below: float, plan: BoundedPlanner) -> PlannedPlacement:
    """Return the best placement of a model with frozen units.

    With objective "cost" frozen units are divided only where nothing fits otherwise.

    Args:
        inputs: the planner's inputs.
        below: seconds per sample that a plan must beat.
        plan: the planner for inputs with `prefix_whole` set.

    Raises:
        NothingFits: no shape fits, or no plan takes less than `below`.
    """
    try:
        whole = plan(replace(inputs, prefix_whole=True), below)
    except NothingFits:
        found, bound = plan(replace(inputs, prefix_whole=False), below), "" if below == float("inf") else " in that time"
        return replace(found, reason=f"{found.reason}; {DIVIDED}, since nothing fits{bound} otherwise")
    if inputs.placement.objective == "cost":
        return whole
    if not whole.placement.use_cache:
        return _divided_if_quicker(inputs, whole, plan)
    if inputs.cache_use == "always" or is_filled(inputs):
        return whole
    try:
        computed = plan_frozen_units(replace(inputs, cache_use="never"), below, plan)
    except NothingFits:
        return whole
    why = _why_not_to_fill(inputs, whole, computed)
    return replace(computed, cache_reason=why) if why else whole


def _divided_if_quicker(inputs: PlanInputs, whole: PlannedPlacement, plan: BoundedPlanner) -> PlannedPlacement:
    """Return the best placement with frozen units divided over stages, or the given one, where that is as quick."""
    least = whole.cost.seconds_per_sample
    try:
        found = plan(replace(inputs, prefix_whole=False), least)
    except NothingFits:
        return whole
    gain = least / found.cost.seconds_per_sample
    if gain <= 1 + 1e-9:
        return whole
    words = f"{DIVIDED}, {gain:.2f}x as fast as with all in stage 0"
    return replace(found, reason=f"{found.reason}; {words}", cache_reason=whole.cache_reason)


def _why_not_to_fill(inputs: PlanInputs, cached: PlannedPlacement, computed: PlannedPlacement) -> str:
    """Return why the samples left take longer with a cache that must be filled first than with units computed each time.

    Args:
        inputs: the planner's inputs.
        cached: the best plan that uses the cache.
        computed: the best plan that does not.

    Returns:
        The figures in words; '' where the cache is worth it.
    """
    first_pass, later = passes_left(inputs)
    fetch, fill, _ = cache_seconds(inputs)
    missed = CacheProfile(fetch_seconds_per_sample=fetch, fill_seconds_per_sample=fill, hit_fraction=NO_HIT)
    filling = placement_cost(cached.placement, replace(inputs, cache=missed)).seconds_per_sample
    warm, each = cached.cost.seconds_per_sample, computed.cost.seconds_per_sample
    if each <= warm:
        return f"no cache: with all hits a sample takes {warm:.3g} s, and {each:.3g} s where the frozen units are computed"
    lost, saved = first_pass * (filling - each), later * (each - warm)
    if saved > lost:
        return ""
    return (
        f"no cache: {first_pass:.0f} samples would fill it, in {filling:.3g} s each, and {later:.0f} later ones read it, in "
        f"{warm:.3g} s; where the frozen units are computed all take {each:.3g} s"
    )
