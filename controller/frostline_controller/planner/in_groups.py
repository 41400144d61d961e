"""Plans whose workers share the tiles of their stages (`placement.tp_degree`): a group is planned as one worker, then spread.

Groups are formed of near workers (`tensor.groups`), and a group is planned with the seconds and bytes of one of its members
(`tensor.built`). Where the job leaves the degree open, each degree is planned: a larger
group is taken where no smaller one fits the memory, or where it saves more than `placement.hysteresis` of the step.
"""

from collections.abc import Callable
from dataclasses import replace

from frostline_contract.tensor_rows import SPLIT
from frostline_controller.planner.inputs import NothingFits, PlanInputs
from frostline_controller.planner.placing import Alternative, PlannedPlacement
from frostline_controller.planner.shapes import asked_degrees
from frostline_controller.planner.tensor.built import in_groups_as_built, rows_of_group
from frostline_controller.planner.tensor.groups import Group, as_one, by_node, form_groups, lie_at_home

Planner = Callable[[PlanInputs], PlannedPlacement]


def plan_in_groups(inputs: PlanInputs, make_plan: Planner) -> PlannedPlacement:
    """Return the best placement in groups of `placement.tp_degree` workers; the degree is halved until the workers suffice.

    Args:
        inputs: workers and pins of the whole plan.
        make_plan: the planner for workers that compute whole stages.

    Raises:
        NothingFits: `make_plan` finds no placement.
    """
    if inputs.placement.tp_degree is None:
        return _best_degree(inputs, make_plan)
    degree, note = group_degree(inputs)
    return _in_groups_of(degree, note, inputs, make_plan)


def _in_groups_of(degree: int, note: str, inputs: PlanInputs, make_plan: Planner) -> PlannedPlacement:
    """Return the best placement in groups of `degree` workers.

    Args:
        degree: workers of a group; 1: each worker is alone.
        note: the reason for the degree, which is added to the plan's reason.
        inputs: the planner's inputs, with single workers as members.
        make_plan: the planner.
    """
    section = inputs.placement.model_copy(update={"tp_degree": 1})
    if degree == 1:
        planned = make_plan(replace(inputs, placement=section))
        return replace(planned, reason=f"{planned.reason}; {note}")
    groups = form_groups(inputs.members, degree)
    shared = in_groups_as_built(inputs, degree, lie_at_home(groups))
    section = section.model_copy(update={"min_workers": -(-section.min_workers // degree)})
    planned = make_plan(replace(shared, members=tuple(map(as_one, groups)), placement=section))
    by_first = {group[0].worker_id: group for group in groups}
    return _spread(planned, inputs, by_first, degree, note)


def _best_degree(inputs: PlanInputs, make_plan: Planner) -> PlannedPlacement:
    """Return the best placement of any degree that the tiles and the workers of one node allow; see the module's rule.

    Raises NothingFits, with the words for whole stages, where no degree fits.
    """
    best: PlannedPlacement | None = None
    refused: NothingFits | None = None
    least = float("inf")
    for degree in _degrees(inputs):
        try:
            found = _in_groups_of(degree, f"tp {degree} of placement.tp_degree null", inputs, make_plan)
        except NothingFits as error:
            refused = refused or error
            continue
        seconds = found.cost.seconds_per_sample
        if best is None and refused is not None:
            best, least = replace(found, reason=f"{found.reason}: smaller groups do not fit"), seconds
        elif best is None:
            best, least = found, seconds
        elif inputs.placement.objective == "throughput" and seconds < least * (1 - inputs.placement.hysteresis):
            words = f"{found.reason}: {least / seconds:.2f}x as fast as tp {best.placement.shape.tp_degree}"
            best, least = replace(found, reason=words), seconds
    if best is None:
        assert refused is not None
        raise refused
    return best


def _degrees(inputs: PlanInputs) -> list[int]:
    """Return the degrees that may be chosen, ascending: a group lies within a node, and the pinned degrees keep workers."""
    pp, dp = asked_degrees(inputs)
    tiles = inputs.row_tiles if inputs.placement.tensor_rows == SPLIT else inputs.tensor_tiles
    most = min(tiles, max(map(len, by_node(inputs.members))), len(inputs.members) // ((pp or 1) * (dp or 1)))
    if inputs.parallel_slots is not None:
        most = min(most, inputs.parallel_slots)
    return [1 << power for power in range(max(1, most).bit_length())]


def group_degree(inputs: PlanInputs) -> tuple[int, str]:
    """Return the number of workers that share a stage, and the reason for it.

    It is the number that the job asks for, halved until the workers suffice for the pipeline depth and replicas that are pinned.
    """
    wanted, (pp, dp) = inputs.placement.tp_degree or 1, asked_degrees(inputs)
    workers, lines = len(inputs.members), (pp or 1) * (dp or 1)
    degree = wanted
    while degree > 1 and degree * lines > workers:
        degree //= 2
    if degree == wanted:
        return degree, f"placement.tp_degree {wanted}"
    return degree, f"tp {wanted} -> {degree}: {workers} workers at pp {pp or 1} and dp {dp or 1} allow no more"


def _spread(
    planned: PlannedPlacement, inputs: PlanInputs, by_first: dict[str, Group], degree: int, note: str
) -> PlannedPlacement:
    """Return the plan of groups as a plan of their members.

    Args:
        planned: the plan, whose workers are groups, each with its first member's id.
        inputs: the planner's inputs, with single workers as members.
        by_first: each group by its first member's id.
        degree: workers of a group.
        note: the reason for the degree, which is added to the plan's reason.
    """
    placement = planned.placement
    workers = tuple(member.worker_id for first in placement.workers for member in by_first[first])
    taken = set(workers)
    spares = tuple(member.worker_id for member in inputs.members if member.worker_id not in taken)
    spread = placement.model_copy(update={
        "degrees": placement.degrees | {"tp_columns": degree}, "workers": workers, "tensor_rows": rows_of_group(inputs, degree),
    })  # fmt: skip
    return replace(
        planned,
        placement=type(placement).model_validate(spread.model_dump()),
        spares=spares,
        alternatives=tuple(_wider(option, degree) for option in planned.alternatives),
        reason=f"{planned.reason}; {note}",
        moved_bytes=planned.moved_bytes * degree,
    )


def _wider(option: Alternative, degree: int) -> Alternative:
    return replace(option, shape=replace(option.shape, tp_columns=degree))
