"""Failures made by hand: a plan of named workers, and what each of them reports."""

from frostline_contract.plan import GenerationId, PieceHolders, Placement, Plan, SeenVote, StateTag
from frostline_controller.recovery.facts import Failure, HeldPiece, SurvivorReport

NUM_UNITS = 4


def generation(counter: int, incarnation: int = 1) -> GenerationId:
    return GenerationId(incarnation=incarnation, counter=counter)


def tag(step: int, counter: int, lineage: int = 0) -> StateTag:
    return StateTag(lineage=lineage, step=step, generation=generation(counter))


def vote(step: int, counter: int, lineage: int = 0) -> SeenVote:
    return SeenVote(lineage=lineage, step=step, generation=generation(counter), slots=(1.0, float(step)))


def placement(workers: str, pp_degree: int) -> Placement:
    """Return a placement of workers with names of one letter; the units are cut evenly."""
    names = tuple(workers)
    dp_degree = len(names) // pp_degree
    bounds = tuple(NUM_UNITS * stage // pp_degree for stage in range(pp_degree + 1))
    return Placement(
        pp_degree=pp_degree,
        dp_degree=dp_degree,
        stage_bounds=bounds,
        leaf_bounds=tuple(8 * replica // dp_degree for replica in range(dp_degree + 1)),
        workers=names,
    )


def plan(
    counter: int,
    workers: str,
    pp_degree: int = 1,
    base: int | None = None,
    start: str = "fresh",
    leavers: str = "",
    holders: dict[str, range] | None = None,
    start_tag: StateTag | None = None,
    lineage: int = 0,
    start_vote: SeenVote | None = None,
) -> Plan:
    """Return a plan. holders: for each worker, the units that it has the state of at the start."""
    made = placement(workers, pp_degree)
    participants = made.workers + tuple(leavers)
    named = tuple(
        PieceHolders(participants=tuple(i for i, worker in enumerate(participants) if unit in (holders or {}).get(worker, ())))
        for unit in range(NUM_UNITS)
    )
    return Plan(
        generation=generation(counter),
        base=generation(base) if base is not None else None,
        lineage=lineage,
        start=start,
        start_step=start_tag.step if start_tag else (-1 if start == "continue" else 0),
        state_generation=start_tag.generation if start_tag else None,
        state_lineage=start_tag.lineage if start_tag else 0,
        freeze_point=0,
        placement=made,
        leavers=tuple(leavers),
        holders=named if holders is not None else (),
        vote=start_vote,
    )


def report(
    worker: str,
    state: StateTag | None,
    units: range = range(NUM_UNITS),
    prepared: bool = False,
    newest_received: int = 1,
    ran: int | None = 1,
    seen: tuple[SeenVote, ...] = (),
    torn: tuple[int, ...] = (),
    switched: tuple[int, ...] = (),
    expired: tuple[int, ...] = (),
) -> SurvivorReport:
    held = tuple(HeldPiece(unit, None if unit in torn else state, prepared and unit not in torn) for unit in units)
    return SurvivorReport(
        worker_id=worker,
        newest_received=generation(newest_received),
        ran=generation(ran) if ran is not None else None,
        held=held,
        seen=seen,
        switched=frozenset(generation(counter) for counter in switched),
        expired=frozenset(generation(counter) for counter in expired),
    )


def failure(current: Plan, *reports: SurvivorReport, prepared: Plan | None = None, ended: str = "", silent: str = "") -> Failure:
    return Failure(
        current=current,
        prepared=prepared,
        reports={one.worker_id: one for one in reports},
        ended=frozenset(ended),
        silent=frozenset(silent),
    )
