"""The choice of the best (pipeline, replicas, columns, depth, shard): `planner.search` over groups, for each way of sharing.

For each number of columns and depth a group is planned as one worker (`tensor.built`), so the search of pipelines, replicas and
cuts is the planner's own, with its exactness. Ways of sharing are tried in the order of their lower bounds until none can win. A
way is chosen where memory needs it, or where it saves more than `placement.hysteresis` of the best step without it.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby

from frostline_contract.sharding import NONE
from frostline_controller.planner.inputs import NothingFits, PlanInputs
from frostline_controller.planner.placing import PlannedPlacement
from frostline_controller.planner.search import least_seconds, make_plan
from frostline_controller.planner.tensor.built import as_groups
from frostline_controller.planner.tensor.groups import NoGroups
from frostline_controller.planner.tensor.member_costs import nodes_of
from frostline_controller.planner.tensor.sharing import SHARD_WAYS, Sharing
from frostline_controller.planner.tensor.traffic import powers_of_two

MOST_DEPTH = 8


@dataclass(frozen=True)
class SharedPlan:
    """The best placement with one way of sharing.

    Attributes:
        sharing: the way of sharing.
        planned: a placement of groups, each named by its first member.
        inputs: the inputs of that plan, with groups in place of workers.
    """

    sharing: Sharing
    planned: PlannedPlacement
    inputs: PlanInputs

    @property
    def degrees(self) -> dict[str, int]:
        """Degrees by axis name, those of tensors among them where they exceed 1."""
        tensors = {"tp_columns": self.sharing.columns, "tp_depth": self.sharing.depth}
        return self.planned.placement.degrees | {axis: degree for axis, degree in tensors.items() if degree > 1}

    @property
    def workers(self) -> int:
        """Number of workers of the plan."""
        return len(self.planned.placement.workers) * self.sharing.group_size

    @property
    def seconds_per_sample(self) -> float:
        """Predicted seconds a sample, by which plans are compared."""
        return self.planned.cost.seconds_per_sample


@dataclass(frozen=True)
class SharingChoice:
    """The best way of sharing, beside the plain plan.

    Attributes:
        plain: the best plan of pipeline and replicas alone; None: none fits.
        best: the best plan with more sharing that pays; None: none pays, or none fits.
        tried: number of ways of sharing that were planned; the others were ruled out by their bounds, or by groups that the
            members cannot form.
    """

    plain: SharedPlan | None
    best: SharedPlan | None
    tried: int


def ways_of_sharing(inputs: PlanInputs) -> Iterator[Sharing]:
    """Yield every way of sharing that the members and the numerics allow, the plain way first.

    Columns lie in one node; split rows are whole samples, and never beside a depth. Fast numerics and the paper's planner allow
    only the plain way, and adapters neither a depth nor split rows. For a job that shares state out, ways without that are left
    out.
    """
    plain = Sharing(shard=inputs.placement.shard)
    yield plain
    adapted, greedy = any(unit.still_bytes for unit in inputs.units), inputs.placement.planner != "optimal"
    if greedy or not inputs.exact_numerics:
        return
    ways = [way for way in SHARD_WAYS if inputs.placement.shard == NONE or way != NONE]
    for columns in powers_of_two(nodes_of(inputs).devices):
        for depth in [1] if adapted else powers_of_two(MOST_DEPTH):
            divides = columns > 1 and depth == 1 and inputs.micro_batch_size % columns == 0
            rows = [False, True] if divides and not adapted else [False]
            found = [Sharing(columns, depth, way, split) for split in rows for way in ways]
            yield from (one for one in found if one.group_size <= len(inputs.members) and one != plain)


def choose_sharing(inputs: PlanInputs) -> SharingChoice:
    """Return the best of all ways of sharing.

    They are tried in tiers: columns or shared state alone, then split rows, then with a depth. Each tier must save more than the
    hysteresis over the best of the tiers before.
    """
    plain_way, *others = ways_of_sharing(inputs)
    plain, best, tried = _planned(plain_way, inputs), None, 1
    least = plain.seconds_per_sample if plain is not None else float("inf")
    by_effort = groupby(sorted(others, key=_effort), key=_effort)
    for _, tier in by_effort:
        least *= 1 - inputs.placement.hysteresis
        for bound, sharing in _by_bound(inputs, tier):
            if bound >= least * (1 - 1e-9):
                break
            tried += 1
            found = _planned(sharing, inputs, least)
            if found is not None:
                least, best = found.seconds_per_sample, found
    return SharingChoice(plain, best, tried)


def _effort(sharing: Sharing) -> tuple[bool, bool]:
    return sharing.depth > 1, sharing.rows_split


def _by_bound(inputs: PlanInputs, ways: Iterable[Sharing]) -> list[tuple[float, Sharing]]:
    """Return (lower bound on the seconds a sample, way), ascending, for the ways whose groups the members can form.

    Sharing state out saves no time, so the bound of a group without shared state holds for the same group with it.
    """
    bounds: dict[Sharing, float] = {}
    bounded = []
    for sharing in ways:
        alone = replace(sharing, shard=NONE)
        if alone not in bounds:
            try:
                bounds[alone] = least_seconds(as_groups(inputs, alone))
            except NoGroups:
                bounds[alone] = float("inf")
        bounded.append((bounds[alone], sharing))
    return sorted((one for one in bounded if one[0] < float("inf")), key=lambda one: one[0])


def _planned(sharing: Sharing, inputs: PlanInputs, below: float = float("inf")) -> SharedPlan | None:
    """Return the best placement with this way of sharing; None where none fits with fewer seconds a sample than `below`."""
    groups = as_groups(inputs, sharing)
    known = below if inputs.token_cells == 1 else float("inf")  # in cells a simulated step may be quicker than its closed form
    try:
        found = SharedPlan(sharing, make_plan(groups, known), groups)
    except NothingFits:
        return None
    return found if found.seconds_per_sample < below else None
