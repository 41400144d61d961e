"""Assignment of workers to places: replicas of a stage in different failure domains, with as little state moved as possible."""

from collections import Counter
from dataclasses import dataclass

from frostline_contract.shape import ParallelShape
from frostline_controller.planner.inputs import MemberInfo, PlanInputs

SWAP_SEARCH_UP_TO = 128
"""Largest number of workers for which every pair is tried for a swap that moves less state."""


@dataclass(frozen=True)
class Assignment:
    """The assignment of workers to the global ranks of a shape.

    Attributes:
        workers: ids by global rank.
        spares: ids outside the shape.
        moved_bytes: weights and moments that must be sent.
        uncovered_stages: pipeline ranks whose owners share one failure domain although there are two or more.
    """

    workers: tuple[str, ...]
    spares: tuple[str, ...]
    moved_bytes: int
    uncovered_stages: int


def assign_workers(inputs: PlanInputs, shape: ParallelShape, stage_bounds: tuple[int, ...]) -> Assignment:
    """Assign members to the places of the shape, faster ones and those that hold state first; the rest are spares."""
    chosen = _choose(inputs.members, shape, inputs.placement.buddies)
    lacks = _missing_bytes(inputs, shape, stage_bounds, chosen)
    columns = _columns_by_state(chosen, lacks, shape)
    _swap_towards_state(columns, lacks)
    _spread_domains(columns, lacks)
    for column in columns:  # a replica is one row: sorted alike, its members are near each other, in their present order
        column.sort(key=lambda m: (-m.speed, m.failure_domain, m.global_rank < 0, m.global_rank, m.worker_id))
    places = ((shape.pp_rank(global_rank), shape.dp_rank(global_rank)) for global_rank in range(shape.world_size))
    workers = tuple(columns[pp_rank][dp_rank].worker_id for pp_rank, dp_rank in places)
    moved = sum(lacks[member.worker_id][pp_rank] for pp_rank, column in enumerate(columns) for member in column)
    taken, several = set(workers), len({member.failure_domain for member in inputs.members}) > 1
    spares = tuple(member.worker_id for member in inputs.members if member.worker_id not in taken)
    uncovered = sum(len({m.failure_domain for m in column}) < 2 for column in columns) if several else 0
    return Assignment(workers, spares, moved, uncovered)


def _choose(members: tuple[MemberInfo, ...], shape: ParallelShape, buddies: bool) -> list[MemberInfo]:
    """Return the members to use, in domain order; faster members are chosen first, then those that have a place now.

    If all of these would lie in one failure domain, or nearly all, members of other domains that are no slower take the places of
    some: with several owners a stage until each stage can have one such member; with one owner a stage and buddies until there is
    one, so that the loss of one node does not lose owner and buddy.
    """
    count = shape.world_size
    ordered = sorted(members, key=lambda m: (-m.speed, m.global_rank < 0, m.global_rank, m.failure_domain, m.worker_id))
    chosen, rest = ordered[:count], ordered[count:]
    needed = shape.pp_degree if shape.dp_degree > 1 else int(buddies and count > 1)
    if needed:
        domain, held = Counter(member.failure_domain for member in chosen).most_common(1)[0]
        strangers = [member for member in rest if member.failure_domain != domain][: max(0, needed - (count - held))]
        leaving = [place for place in reversed(range(count)) if chosen[place].failure_domain == domain]
        for place, stranger in zip(leaving, strangers, strict=False):
            if stranger.speed >= chosen[place].speed:
                chosen[place] = stranger
    return sorted(chosen, key=lambda m: (m.failure_domain, m.global_rank < 0, m.global_rank, m.worker_id))


def _missing_bytes(
    inputs: PlanInputs, shape: ParallelShape, stage_bounds: tuple[int, ...], chosen: list[MemberInfo]
) -> dict[str, list[int]]:
    """Return by chosen worker, for each pipeline rank, the bytes of weights and moments that the worker would have to receive."""
    state = inputs.unit_state_bytes
    wanted = [
        {unit for stage in shape.stages_of(pp_rank) for unit in range(stage_bounds[stage], stage_bounds[stage + 1])}
        for pp_rank in range(shape.pp_degree)
    ]
    nothing = [sum(state[unit] for unit in units) for units in wanted]
    lacks: dict[str, list[int]] = {}
    current = inputs.current
    by_column: dict[int, list[int]] = {}
    place = {worker: global_rank for global_rank, worker in enumerate(current.workers)} if current else {}
    for member in chosen:
        if member.worker_id not in place:
            lacks[member.worker_id] = nothing
            continue
        column = current.shape.pp_rank(place[member.worker_id])
        if column not in by_column:
            held = set(current.units_of(member.worker_id))
            by_column[column] = [sum(state[unit] for unit in units - held) for units in wanted]
        lacks[member.worker_id] = by_column[column]
    return lacks


def _columns_by_state(chosen: list[MemberInfo], lacks: dict[str, list[int]], shape: ParallelShape) -> list[list[MemberInfo]]:
    """Return one list of members a pipeline rank: members that save the most traffic first, then row by row in domain order."""
    columns: list[list[MemberInfo]] = [[] for _ in range(shape.pp_degree)]
    nothing = [max(row) for row in zip(*lacks.values(), strict=True)]
    gains = [
        (nothing[i] - lacks[member.worker_id][i], -order, -i, member)
        for order, member in enumerate(chosen)
        for i in range(shape.pp_degree)
        if lacks[member.worker_id][i] < nothing[i]
    ]
    placed: set[str] = set()
    for _, _, minus_i, member in sorted(gains, key=lambda gain: gain[:3], reverse=True):
        if member.worker_id not in placed and len(columns[-minus_i]) < shape.dp_degree:
            columns[-minus_i].append(member)
            placed.add(member.worker_id)
    free = (column for row in range(shape.dp_degree) for column in columns if len(column) == row)
    for member in (member for member in chosen if member.worker_id not in placed):
        next(free).append(member)
    return columns


def _swap_towards_state(columns: list[list[MemberInfo]], lacks: dict[str, list[int]]) -> None:
    """Swap members of two columns as long as that moves fewer bytes."""
    if len(columns) * len(columns[0]) > SWAP_SEARCH_UP_TO:
        return
    places = [(i, r) for i in range(len(columns)) for r in range(len(columns[0]))]
    improved = True
    while improved:  # ends: every swap lowers the bytes to move, an integer >= 0
        improved = False
        for i, r in places:
            for j, s in places:
                a, b = lacks[columns[i][r].worker_id], lacks[columns[j][s].worker_id]
                if a[j] + b[i] < a[i] + b[j]:
                    columns[i][r], columns[j][s] = columns[j][s], columns[i][r]
                    improved = True


def _spread_domains(columns: list[list[MemberInfo]], lacks: dict[str, list[int]]) -> None:
    """Give each column whose members share one failure domain a member of another domain, by the cheapest swap.

    A swap must not leave the other column in one domain.
    """
    if len(columns[0]) < 2:
        return
    for i, column in enumerate(columns):
        if len({member.failure_domain for member in column}) > 1:
            continue
        best: tuple[int, int, int, int] | None = None
        for j, other in enumerate(columns):
            cheapest = min(range(len(column)), key=lambda r: lacks[column[r].worker_id][j] - lacks[column[r].worker_id][i])
            a = lacks[column[cheapest].worker_id]
            for s, stranger in enumerate(other):
                if stranger.failure_domain == column[0].failure_domain:
                    continue
                left = {member.failure_domain for k, member in enumerate(other) if k != s} | {column[0].failure_domain}
                if len(left) < 2:
                    continue
                b = lacks[stranger.worker_id]
                swap = (a[j] + b[i] - a[i] - b[j], cheapest, j, s)
                best = swap if best is None else min(best, swap)
        if best is not None:
            _, r, j, s = best
            column[r], columns[j][s] = columns[j][s], column[r]
