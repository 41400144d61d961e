"""The planner's adapter: from what the controller knows to a placement, and whether a change to it pays."""

from dataclasses import dataclass

from frostline_contract.job import Job
from frostline_contract.plan import Placement
from frostline_contract.shape import deal_leaves, even_bounds
from frostline_controller.membership import Worker
from frostline_controller.state.durable import PinnedShape


@dataclass(frozen=True)
class Situation:
    """What a placement is chosen for.

    workers: those that a plan may name, members of the current placement first. start: (pp, dp) that the run began with,
    zeros before. pinned: a shape by command. steps_left: of the run. reshape_seconds: measured, of the last reshape.
    """

    num_units: int
    freeze_point: int
    workers: tuple[Worker, ...]
    current: Placement | None
    start: tuple[int, int]
    pinned: PinnedShape | None
    steps_left: int
    reshape_seconds: float
    boundary_bytes_per_sample: int
    cacheable: bool
    train_samples: int


@dataclass(frozen=True)
class Choice:
    """A placement, whether it is worth a reshape from the current one, and why."""

    placement: Placement
    pays: bool
    reason: str


def choose_placement(job: Job, situation: Situation) -> Choice:
    """The planner's best placement for the situation. Raises ValueError where nothing fits, with the numbers."""
    pinned = situation.pinned
    pp_degree = pinned.pp_degree if pinned else 1
    dp_degree = pinned.dp_degree if pinned else min(len(situation.workers), job.training.reduction_leaves)
    placement = Placement(
        pp_degree=pp_degree,
        dp_degree=dp_degree,
        stage_bounds=even_bounds(situation.num_units, situation.freeze_point, pp_degree),
        leaf_bounds=(0, *(high for _, high in deal_leaves(job.training.reduction_leaves, dp_degree))),
        workers=tuple(worker.worker_id for worker in situation.workers[: pp_degree * dp_degree]),
    )
    return Choice(placement, placement != situation.current, "even")
