"""Plans made by hand for tests of the engine, and their run on warm workers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from frostline_contract.pieces import Pieces
from frostline_contract.plan import GLOO, NOBODY, Backend, GenerationId, PieceHolders, Placement, Plan
from frostline_contract.schedules import is_folded
from frostline_contract.shape import ParallelShape, deal_leaves
from tests.engine_member import Run
from tests.even_bounds import even_bounds
from tests.exact_cases import LEAVES, NUM_UNITS, Case
from tests.warm_workers import CALL_SECONDS, Call, WarmWorkers

_counters = iter(range(1, 10**9))
"""A generation's number is part of its groups' names in a store that outlives it, so none is used twice in a session."""


def next_generation() -> GenerationId:
    """Return a generation that no plan of this session has."""
    return GenerationId(incarnation=1, counter=next(_counters))


@dataclass(frozen=True)
class Layout:
    """A shape with its schedule, and optionally the workers that take part (by number, in global rank order), the number of token
    cells of each slice, whether the replicas share out the state, how many workers share the tiles of each stage along either
    width, and whether they divide samples."""

    pp_degree: int
    dp_degree: int
    virtual_stages: int = 1
    schedule: str = "1f1b"
    workers: tuple[int, ...] | None = None
    slices: tuple[int, ...] = ()
    shard: str = "none"
    tp_columns: int = 1
    tensor_rows: str = "whole"
    tp_depth: int = 1

    @property
    def shape(self) -> ParallelShape:
        folded = is_folded(self.schedule)
        return ParallelShape(self.pp_degree, self.dp_degree, self.virtual_stages, self.tp_columns, self.tp_depth, folded)

    @property
    def numbers(self) -> tuple[int, ...]:
        return self.workers or tuple(range(self.shape.world_size))

    def placement(self, freeze_point: int, bounds: tuple[int, ...] | None = None) -> Placement:
        """Return a placement with stages cut evenly over the units from `freeze_point` on, and the frozen prefix in stage 0."""
        dealt = deal_leaves(LEAVES, self.dp_degree)
        return Placement(
            degrees=self.shape.degrees,
            virtual_stages=self.virtual_stages,
            stage_bounds=bounds or even_bounds(NUM_UNITS, freeze_point, self.shape.num_stages),
            leaf_bounds=(0, *(high for _, high in dealt)),
            workers=tuple(f"w{number}" for number in self.numbers),
            schedule=self.schedule,
            slices=self.slices,
            shard=self.shard,
            tensor_rows=self.tensor_rows,
        )

    def __str__(self) -> str:
        chunks = f" x{self.virtual_stages}" if self.virtual_stages > 1 else ""
        parts = f" in {'+'.join(map(str, self.slices))}" if self.slices else ""
        sharded = f" shard {self.shard}" if self.shard != "none" else ""
        depth = f" x {self.tp_depth}" if self.tp_depth > 1 else ""
        rows = " rows" if self.tensor_rows == "split" else ""
        tiles = f" tp {self.tp_columns}{depth}{rows}" if self.shape.tp_degree > 1 else ""
        return f"({self.pp_degree}, {self.dp_degree}){tiles}{chunks} {self.schedule}{parts}{sharded}"


def grouped(
    pp_degree: int, dp_degree: int, tp_columns: int, *rest: object, workers: tuple[int, ...] | None = None, shard: str = "none",
    slices: tuple[int, ...] = (), tensor_rows: str = "whole", depth: int = 1,
) -> Layout:  # fmt: skip
    """Return a layout with groups. rest: virtual stages and schedule, as of `Layout`."""
    tensor = {"tp_columns": tp_columns, "tp_depth": depth, "tensor_rows": tensor_rows}
    named = {"workers": workers, "shard": shard, "slices": slices, **tensor}
    return Layout(pp_degree, dp_degree, *rest, **named)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Segment:
    """A layout that is planned for `freeze_point` and holds until step `last` has been committed.

    domains: each member's failure domain, by global rank; empty: the plan has no buddies.
    """

    layout: Layout
    last: int
    freeze_point: int = 0
    bounds: tuple[int, ...] | None = None
    domains: tuple[int, ...] = ()


def lone_plan(placement: Placement) -> Plan:
    """Return the plan of a single worker."""
    return Plan(generation=next_generation(), lineage=0, start="fresh", freeze_point=0,
                placement=placement)  # fmt: skip


def run_series(workers: WarmWorkers, case: Case, segments: Sequence[Segment], checkpoint_root: str = "",
               checkpoint_step: int = 0, resume: tuple[str, int] | None = None, score: bool = True,
               refused: tuple[int, ...] = (), backend: Backend = GLOO, digest_steps: bool = False,
               seconds: float = CALL_SECONDS) -> list[Run]:  # fmt: skip
    """Run a case through a series of layouts. Returns each worker's report, by worker number.

    Args:
        resume: (checkpoint folder relative to the root, its step): the first plan starts from it.
        digest_steps: reports have the world's digest after each step.
        seconds: that it may take.
    """
    count = 1 + max(number for segment in segments for number in segment.layout.numbers)
    ports = workers.call([Call("tests.engine_member:store_port", {})] * count)
    plans: list[Plan] = []
    for segment in segments:
        plans.append(make_plan(segment, plans[-1] if plans else None, ports, resume, case, backend))
    fields = [(plan.model_dump(mode="json"), segment.last) for plan, segment in zip(plans, segments, strict=True)]
    arguments: dict[str, Any] = {
        "case": case, "segments": fields, "checkpoint_root": checkpoint_root, "checkpoint_step": checkpoint_step, "score": score,
        "refused": refused, "digest_steps": digest_steps,
    }  # fmt: skip
    calls = [Call("tests.engine_member:run_member", arguments | {"worker_id": f"w{number}"}) for number in range(count)]
    return workers.call(calls, seconds)


def make_plan(segment: Segment, before: Plan | None, ports: list[int], resume: tuple[str, int] | None = None,
              case: Case | None = None, backend: Backend = GLOO) -> Plan:  # fmt: skip
    """Return the plan of a segment that follows `before`, or that starts: from the seed, or from the checkpoint `resume`.

    case: says how state is cut; None: a piece a unit.
    """
    cut = case.cut if case is not None else (1, 1, 1)
    placement = segment.layout.placement(segment.freeze_point, segment.bounds)
    sources: tuple[str, ...] = ()
    if before is not None:
        # The last owner of each piece, so that sources differ from unit to unit and from global rank 0.
        sources = tuple(before.owners(piece)[-1] for piece in range(before.pieces.count))
    leavers = tuple(sorted(set(before.placement.workers) - set(placement.workers))) if before is not None else ()
    buddies, uncovered = buddies_in(placement, segment.domains, *cut)
    start = "continue" if before is not None else "checkpoint" if resume else "fresh"
    return Plan(
        generation=next_generation(),
        base=before.generation if before is not None else None,
        lineage=0,
        start=start,
        start_step=resume[1] if start == "checkpoint" and resume else -1,
        checkpoint_path=resume[0] if start == "checkpoint" and resume else "",
        freeze_point=segment.freeze_point,
        placement=placement,
        sources=sources,
        leavers=leavers,
        buddies=buddies,
        uncovered=uncovered,
        holders=holders_of(before, placement.workers + leavers) if before is not None else (),
        state_source=sources[0] if sources else "",
        backend=backend,
        store_host="127.0.0.1",
        store_port=ports[segment.layout.numbers[0]],
        state_ranges=cut[0],
        state_tiles=cut[1],
        hidden_tiles=cut[2],
    )


def buddies_in(
    placement: Placement, domains: tuple[int, ...], state_ranges: int = 1, state_tiles: int = 1, hidden_tiles: int = 1
) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Return (buddies, uncovered) by piece.

    A piece whose owners share a domain is kept by the next member, by global rank, in another domain.
    """
    table = Pieces.cut(placement.stage_bounds[-1], state_ranges, state_tiles, hidden_tiles)
    domain = dict(zip(placement.workers, domains, strict=bool(domains)))
    buddies, uncovered = [], []
    for piece in range(table.count if domains else 0):
        owners = placement.owners_of(table, piece)
        first = placement.workers.index(owners[0])
        others = placement.workers[first:] + placement.workers[:first]
        away = [member for member in others if domain[member] != domain[owners[0]]]
        kept_by_owners = len({domain[owner] for owner in owners}) > 1
        buddies.append(away[0] if away and not kept_by_owners else "")
        uncovered += [piece] if not away else []
    return tuple(buddies), tuple(uncovered)


def with_buddies(plan: Plan, buddies: Sequence[str], uncovered: Sequence[int] = ()) -> Plan:
    """Return the plan with these buddies, by piece; "" for none."""
    indices = tuple(plan.places[buddy] if buddy else NOBODY for buddy in buddies)
    return plan.model_copy(update={"buddy_indices": indices, "uncovered": tuple(uncovered)})


def holders_of(before: Plan, participants: tuple[str, ...]) -> tuple[PieceHolders, ...]:
    """Return the holders of each piece at the switch from `before`: its owners there and its buddy."""
    needs = [set(before.needs(worker)) for worker in participants]
    return tuple(
        PieceHolders(participants=tuple(index for index, pieces in enumerate(needs) if piece in pieces))
        for piece in range(before.pieces.count)
    )
