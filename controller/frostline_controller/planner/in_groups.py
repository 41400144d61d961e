"""Plans whose workers share their stages tile by tile (`placement.tp_degree`, `tp_depth`): a group is planned as one worker.

Groups are formed of near workers (`tensor.groups`), and a group is planned with the seconds and bytes of one of its members
(`tensor.built`); the plan is then spread over all members. Where the job leaves columns or depth open, each group that the tiles
allow is planned, the smallest first and of equal ones those of less depth: a further one is taken where none before fits the
memory, or where it saves more than `placement.hysteresis` of the step. Columns are at most as many as a node has workers; a group
may span nodes with a depth, or if it is of workers left over on several.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

from frostline_contract.job.cluster import PlacementSection
from frostline_contract.mesh import check_degrees
from frostline_controller.planner.inputs import NothingFits, PlanInputs
from frostline_controller.planner.placing import PlannedPlacement
from frostline_controller.planner.shapes import asked_degrees
from frostline_controller.planner.tensor.built import in_groups_as_built, rows_of_group
from frostline_controller.planner.tensor.groups import Group, as_one, by_node, form_groups, ranks_at_home
from frostline_controller.planner.tensor.traffic import Axes, powers_of_two

Planner = Callable[[PlanInputs], PlannedPlacement]


def plan_in_groups(inputs: PlanInputs, make_plan: Planner) -> PlannedPlacement:
    """Return the best placement in groups of `placement.tp_degree` x `tp_depth` workers, fewer where there are not so many.

    Args:
        inputs: workers and pins of the whole plan.
        make_plan: the planner for workers that compute whole stages.

    Raises:
        NothingFits: `make_plan` finds no placement.
    """
    if _open_fields(inputs):
        return _best_axes(inputs, make_plan)
    axes, note = group_axes(inputs)
    return _in_groups_of(axes, note, inputs, make_plan)


def _in_groups_of(axes: Axes, note: str, inputs: PlanInputs, make_plan: Planner) -> PlannedPlacement:
    """Return the best placement in groups of these columns and depth.

    Args:
        axes: columns and depth of a group; of one worker: each is alone.
        note: the reason for the axes, which is added to the plan's reason.
        inputs: the planner's inputs, with single workers as members.
        make_plan: the planner.
    """
    if axes.size == 1:
        planned = make_plan(replace(inputs, group_size=1))
        return replace(planned, reason=f"{planned.reason}; {note}")
    groups = form_groups(inputs.members, axes.size)
    shared = in_groups_as_built(inputs, axes, ranks_at_home(groups))
    section = inputs.placement.model_copy(update={"min_workers": -(-inputs.placement.min_workers // axes.size)})
    planned = make_plan(replace(shared, members=tuple(map(as_one, groups)), placement=section, group_size=axes.size))
    by_first = {group[0].worker_id: group for group in groups}
    return _spread(planned, inputs, by_first, axes, note)


def _open_fields(inputs: PlanInputs) -> list[str]:
    """Return which of the two degrees the job leaves to the planner, by their names in `placement`."""
    return [name for name in ("tp_degree", "tp_depth") if getattr(inputs.placement, name) is None]


def _best_axes(inputs: PlanInputs, make_plan: Planner) -> PlannedPlacement:
    """Return the best placement of all groups that may be chosen; see the module's rule.

    Raises NothingFits, with the words for the smallest groups, where none fits.
    """
    refused = list[NothingFits]()
    planned = _plan_each(inputs, make_plan, refused)
    first = next(planned, None)
    if first is None:
        raise refused[0]
    axes, best = first
    if refused:
        others = "groups of fewer columns or less depth" if axes.depth > 1 else "smaller groups"
        best = replace(best, reason=f"{best.reason}: {others} do not fit")
    for larger, found in planned:
        if _is_worth(found, best, inputs.placement):
            ratio = best.cost.seconds_per_sample / found.cost.seconds_per_sample
            best = replace(found, reason=f"{found.reason}: {ratio:.2f}x as fast as tp {axes.words}")
            axes = larger
    return best


def _plan_each(inputs: PlanInputs, make_plan: Planner, refused: list[NothingFits]) -> Iterator[tuple[Axes, PlannedPlacement]]:
    """Yield each choice of axes that fits, with its plan, in the order of the choices.

    refused: gets the refusals of the others.
    """
    asked = " and ".join(_open_fields(inputs))
    for axes in _choices(inputs):
        try:
            planned = _in_groups_of(axes, f"tp {axes.words} of placement.{asked} null", inputs, make_plan)
        except NothingFits as error:
            refused.append(error)
        else:
            yield axes, planned


def _is_worth(found: PlannedPlacement, best: PlannedPlacement, section: PlacementSection) -> bool:
    """Whether a plan of larger groups is taken in the place of the best one of smaller groups."""
    least = best.cost.seconds_per_sample
    return section.objective == "throughput" and found.cost.seconds_per_sample < least * (1 - section.hysteresis)


def _choices(inputs: PlanInputs) -> list[Axes]:
    """Return the axes that may be chosen, the smallest groups first, of equal ones those of less depth.

    The pinned degrees keep workers; a pinned one of the two axes is as it is without the other one.
    """
    section, pinned, (pp, dp) = inputs.placement, group_axes(inputs)[0], asked_degrees(inputs)
    most = len(inputs.members) // ((pp or 1) * (dp or 1))
    if inputs.parallel_slots is not None:
        most = min(most, inputs.parallel_slots)
    allowed = inputs.most_in_group
    columns, depths = [pinned.columns], [pinned.depth]
    if section.tp_degree is None:
        columns = powers_of_two(min(allowed.inner, max(map(len, by_node(inputs.members)))))
    if section.tp_depth is None:
        depths = powers_of_two(allowed.hidden)
    every = (Axes(one, other) for one in columns for other in depths)
    return sorted((one for one in every if one.size <= most or one == pinned), key=lambda one: (one.size, one.depth))


def group_axes(inputs: PlanInputs) -> tuple[Axes, str]:
    """Return the columns and depth of the workers that share a stage, and the reason for them.

    They are those that the job asks for, one where it leaves them open. The depth, then the columns, are halved until the workers
    suffice for the pipeline depth and replicas that are pinned.
    """
    wanted, (pp, dp) = Axes(inputs.placement.tp_degree or 1, inputs.placement.tp_depth or 1), asked_degrees(inputs)
    workers, lines, found = len(inputs.members), (pp or 1) * (dp or 1), wanted
    while found.size > 1 and found.size * lines > workers:
        found = replace(found, depth=found.depth // 2) if found.depth > 1 else replace(found, columns=found.columns // 2)
    if found == wanted:
        deep = f" and tp_depth {wanted.depth}" if wanted.depth > 1 else ""
        return found, f"placement.tp_degree {wanted.columns}{deep}"
    return found, f"tp {wanted.words} -> {found.words}: {workers} workers at pp {pp or 1} and dp {dp or 1} allow no more"


def _spread(planned: PlannedPlacement, inputs: PlanInputs, by_first: dict[str, Group], axes: Axes, note: str) -> PlannedPlacement:
    """Return the plan of groups as a plan of their members.

    Args:
        planned: the plan, whose workers are groups, each with its first member's id.
        inputs: the planner's inputs, with single workers as members.
        by_first: each group by its first member's id.
        axes: columns and depth of a group.
        note: the reason for the axes, which is added to the plan's reason.
    """
    placement = planned.placement
    workers = tuple(member.worker_id for first in placement.workers for member in by_first[first])
    taken = set(workers)
    spares = tuple(member.worker_id for member in inputs.members if member.worker_id not in taken)
    tensor = {"tp_columns": axes.columns, "tp_depth": axes.depth}
    spread = placement.model_copy(update={
        "degrees": check_degrees(placement.degrees | tensor), "workers": workers, "tensor_rows": rows_of_group(inputs, axes),
    })  # fmt: skip
    return replace(
        planned,
        placement=type(placement).model_validate(spread.model_dump()),
        spares=spares,
        alternatives=tuple(replace(option, shape=replace(option.shape, **tensor)) for option in planned.alternatives),
        reason=f"{planned.reason}; {note}",
        moved_bytes=planned.moved_bytes * axes.size,
    )
