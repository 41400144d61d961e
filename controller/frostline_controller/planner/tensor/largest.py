"""The largest model that fits: the most blocks, of the job's width, for which each family of shapes has memory on the workers.

Bytes are those of the cost model (`planner.cost`), with nothing frozen. Blocks are equal, so the number of blocks that fit a
stage is its free memory over the bytes of one block, and no search of cuts is needed. Groups have the bytes of a member in a run
(`tensor.built`).
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from math import isinf

import numpy as np

from frostline_contract.schedules import schedule_named
from frostline_contract.sharding import NONE, STEP
from frostline_controller.planner.cost import CostModel, replica_micro_batches
from frostline_controller.planner.inputs import PlanInputs
from frostline_controller.planner.leaves import deal_evenly
from frostline_controller.planner.shapes import ALL_DEGREES_UP_TO
from frostline_controller.planner.tensor.built import as_groups
from frostline_controller.planner.tensor.choice import ways_of_sharing
from frostline_controller.planner.tensor.groups import NoGroups
from frostline_controller.planner.tensor.sharing import USE, Sharing
from frostline_controller.planner.tensor.traffic import powers_of_two

EMBEDDING, BLOCK, HEAD, END = 0, 1, 2, 3
"""Indices of the units of a model with one block, which stands for all blocks, and the model's end."""


@dataclass(frozen=True)
class Family:
    """A family of shapes.

    Attributes:
        name: for people.
        has_pipeline, has_replicas: whether the family has degrees above 1 of that axis.
        allows: whether a way of sharing belongs to the family.
    """

    name: str
    has_pipeline: bool
    has_replicas: bool
    allows: Callable[[Sharing], bool]


FAMILIES = (
    Family("data parallel", False, True, lambda way: way == Sharing()),
    Family("data parallel, shard step (ZeRO-1/2)", False, True, lambda way: way == Sharing(shard=STEP)),
    Family("data parallel, shard use (ZeRO-3)", False, True, lambda way: way == Sharing(shard=USE)),
    Family("pipeline", True, False, lambda way: way == Sharing()),
    Family("tensor columns", False, True, lambda way: way == Sharing(columns=way.columns)),
    Family("tensor columns and depth", False, True, lambda way: way == Sharing(way.columns, way.depth)),
    Family("all together", True, True, lambda way: True),
)


@dataclass(frozen=True)
class Room:
    """The largest model of a family.

    Attributes:
        family: its name.
        blocks: the most blocks that fit; 0: not one.
        parameter_bytes: of the model with so many blocks.
        sharing: of the shape in which they fit.
        degrees: of that shape, by axis name, without tensor axes.
    """

    family: str
    blocks: int
    parameter_bytes: int
    sharing: Sharing
    degrees: dict[str, int]


def largest_models(inputs: PlanInputs) -> tuple[Room, ...]:
    """Return the largest model of each family; none where the workers' memory is not known."""
    if isinf(inputs.memory_cap):
        return ()
    free = replace(inputs, placement=inputs.placement.model_copy(update={"shard": NONE}))
    groups = dict[Sharing, Groups]()
    for way in sorted(ways_of_sharing(free), key=lambda one: (one.group_size, one.depth, one.rows_split)):
        try:
            groups[way] = Groups(as_groups(free, way))
        except NoGroups:
            continue
    return tuple(_room(free, family, groups) for family in FAMILIES)


def _room(inputs: PlanInputs, family: Family, groups: Mapping[Sharing, "Groups"]) -> Room:
    """Return the shape of the family with the most blocks; of equal ones the smallest group, then the fewest replicas."""
    best = Room(family.name, 0, 0, Sharing(), {})
    for way, one in groups.items():
        for dp, pp in _degrees(one.inputs, family) if family.allows(way) else []:
            blocks = one.blocks(pp, dp)
            if blocks > best.blocks:
                best = Room(family.name, blocks, _parameter_bytes(inputs, blocks), way, {"dp": dp, "pp": pp})
    return best


def _parameter_bytes(inputs: PlanInputs, blocks: int) -> int:
    units = inputs.units
    return units[0].parameter_bytes + blocks * units[1].parameter_bytes + units[-1].parameter_bytes


def _degrees(groups: PlanInputs, family: Family) -> Iterator[tuple[int, int]]:
    """Yield the (dp, pp) to try, ascending: all; with more than ALL_DEGREES_UP_TO groups the powers of two and the most."""
    workers = len(groups.members)
    for dp in _counts(min(workers, groups.most_replicas)) if family.has_replicas else [1]:
        for pp in _counts(workers // dp) if family.has_pipeline else [1]:
            yield dp, pp


def _counts(most: int) -> list[int]:
    if most <= ALL_DEGREES_UP_TO:
        return list(range(1, most + 1))
    return [*powers_of_two(most), most]


class Groups:
    """Groups of one way of sharing, with the most blocks that fit them.

    inputs: the planner's inputs with a group in place of each worker.
    """

    def __init__(self, inputs: PlanInputs) -> None:
        self.inputs = inputs
        three = (inputs.units[0], inputs.units[1], inputs.units[-1])
        self._model = CostModel(replace(inputs, units=three, freeze_point=0, never_learnt=0))
        self._known: dict[tuple[int, int], int] = {}

    def blocks(self, pp_degree: int, dp_degree: int) -> int:
        """Return the most blocks that fit the memory of a pipeline of this depth with so many replicas; 0: not one."""
        if (pp_degree, dp_degree) not in self._known:
            self._known[pp_degree, dp_degree] = self._count(pp_degree, dp_degree)
        return self._known[pp_degree, dp_degree]

    def _count(self, pp_degree: int, dp_degree: int) -> int:
        """Return the most blocks; with 1F1B where each replica has as many micro-batches as stages, else GPipe, as in plans."""
        inputs, model = self.inputs, self._model.of_shape(pp_degree, dp_degree)
        leaf_bounds = deal_evenly(inputs.reduction_leaves, dp_degree)
        counts = replica_micro_batches(inputs, leaf_bounds)
        in_flight = _in_flight("1f1b" if min(counts) >= pp_degree else "gpipe", pp_degree, max(counts))

        def held(low: int, high: int, micro_batches: np.ndarray) -> np.ndarray:
            """Return the bytes of the units [low, high) by pipeline rank."""
            return np.asarray(model.stage_bytes(low, high, micro_batches, leaf_bounds))

        entering = in_flight * model.entry_bytes[BLOCK]
        one = held(BLOCK, HEAD, in_flight) - model.working_bytes[BLOCK, HEAD] - entering
        beside = model.working_bytes[BLOCK, HEAD] + entering
        ends = {0: (EMBEDDING, HEAD), pp_degree - 1: (BLOCK, END)} if pp_degree > 1 else {0: (EMBEDDING, END)}
        for pp_rank, (low, high) in ends.items():
            beside[pp_rank] = held(low, high, in_flight)[pp_rank] - one[pp_rank]
        stages = np.floor((inputs.memory_cap - inputs.base_bytes - beside) / one)
        least = np.ones(pp_degree)  # a stage between the ends has no other unit
        least[list(ends)] = 0
        return int(stages.sum()) if (stages >= least).all() else 0


@lru_cache(maxsize=4096)
def _in_flight(schedule: str, pp_degree: int, micro_batches: int) -> np.ndarray:
    """Return the most micro-batches in flight of each pipeline rank."""
    program = schedule_named(schedule)
    return np.array([program.in_flight(pp_rank, pp_degree, 1, micro_batches, 1) for pp_rank in range(pp_degree)])
