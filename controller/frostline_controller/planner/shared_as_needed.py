"""The parts that workers share beside pipeline and replicas: stages in groups (`planner.in_groups`), and the state of replicas.

With `placement.shard: auto` the planner chooses whether replicas share their state out. Sharing state out sends as many bytes as
exchanging whole sums of gradients, so that it saves memory and no time by itself. It is taken where no placement fits without it,
or where a placement that fits only with it saves more than `placement.hysteresis`. Gathering weights at each use (`use`) sends
more bytes, so it is taken only where nothing else fits.
"""

from dataclasses import replace

from frostline_contract.job.section import AUTO
from frostline_contract.sharding import NONE, STEP, USE
from frostline_controller.planner.in_groups import Planner, plan_in_groups
from frostline_controller.planner.inputs import NothingFits, PlanInputs
from frostline_controller.planner.placing import PlannedPlacement


def plan_shared_as_needed(inputs: PlanInputs, make_plan: Planner) -> PlannedPlacement:
    """Return the best placement with groups and shared state as the job asks for them, or as the module's rule chooses.

    Args:
        make_plan: plans for workers that compute whole stages, and calls this function for others.

    Raises:
        NothingFits: in the words of the way that needs least memory.
    """
    if inputs.placement.shard != AUTO:
        return plan_in_groups(inputs, make_plan)
    if not may_share(inputs):
        return make_plan(with_shard(inputs, NONE))
    try:
        whole = make_plan(with_shard(inputs, NONE))
    except NothingFits:
        whole = None
    if whole is not None and inputs.memory_cap == float("inf"):
        return whole
    try:
        shared = make_plan(with_shard(inputs, STEP))
    except NothingFits:
        if whole is not None:
            return whole
        if not inputs.may_gather:
            raise
        gathered = make_plan(with_shard(inputs, USE))
        return replace(gathered, reason=f"{gathered.reason}; weights are gathered at each use, since nothing else fits")
    if whole is None:
        return replace(shared, reason=f"{shared.reason}; state is shared out, since nothing fits without")
    least, seconds = whole.cost.seconds_per_sample, shared.cost.seconds_per_sample
    if seconds < least * (1 - inputs.placement.hysteresis):
        return replace(shared, reason=f"{shared.reason}; with state shared out {least / seconds:.2f}x as fast as without")
    return whole


def may_share(inputs: PlanInputs) -> bool:
    """Whether a run of these numerics can share state out: several ranges, exact sums, our own planner."""
    return inputs.state_ranges > 1 and inputs.exact_numerics and inputs.placement.planner == "optimal"


def with_shard(inputs: PlanInputs, shard: str) -> PlanInputs:
    """Return the inputs with `shard` as the job's request."""
    return replace(inputs, placement=inputs.placement.model_copy(update={"shard": shard}))


def settled(inputs: PlanInputs) -> PlanInputs:
    """Return the inputs with nothing left open: without groups, and without shared state, where the job leaves these open."""
    section = inputs.placement
    closed = {
        "shard": NONE if section.shard == AUTO else section.shard,
        "tp_degree": section.tp_degree or 1,
        "tp_depth": section.tp_depth or 1,
    }
    if all(getattr(section, name) == value for name, value in closed.items()):
        return inputs
    return replace(inputs, placement=section.model_copy(update=closed))
