"""Comparison of the built-in schedules on a plan's degrees: the step, bubble and memory of each."""

from dataclasses import dataclass, replace

from frostline_contract.schedules import BUILT_IN, is_folded
from frostline_controller.planner.inputs import PlanInputs
from frostline_controller.planner.placing import PlannedPlacement
from frostline_controller.planner.search import make_plan

MOST_OPERATIONS = 10_000
"""Most forwards of a step for which schedules are compared; the orders of longer steps are not simulated."""


@dataclass(frozen=True)
class ScheduleCost:
    """The cost of a step with a schedule on given degrees.

    Attributes:
        schedule: name of the schedule.
        virtual_stages: of each pipeline rank.
        step_seconds: the predicted step.
        bubble_seconds: part of the step in which the critical rank waits for other ranks.
        peak_bytes: memory of the fullest worker.
        refused: why the schedule has no plan; the figures are then 0.
    """

    schedule: str
    virtual_stages: int = 1
    step_seconds: float = 0.0
    bubble_seconds: float = 0.0
    peak_bytes: float = 0.0
    refused: str = ""

    @property
    def bubble_share(self) -> float:
        """The bubble as a share of the step; 0 where there is no plan."""
        return self.bubble_seconds / self.step_seconds if self.step_seconds else 0.0


def by_schedule(planned: PlannedPlacement, inputs: PlanInputs) -> tuple[ScheduleCost, ...]:
    """Return the costs of the built-in schedules and of the plan's own on the plan's degrees; none for a pipeline of one rank."""
    placement = planned.placement
    if placement.pp_degree == 1 or inputs.placement.planner != "optimal":
        return ()
    return tuple(_cost_of(name, planned, inputs) for name in dict.fromkeys((*BUILT_IN, placement.schedule)))


def _cost_of(name: str, planned: PlannedPlacement, inputs: PlanInputs) -> ScheduleCost:
    placement = planned.placement
    virtual = 2 if is_folded(name) else max(2, inputs.most_virtual_stages) if name == "interleaved_1f1b" else 1
    if placement.pp_degree * inputs.num_microbatches * inputs.num_slices(placement.pp_degree, name) > MOST_OPERATIONS:
        return ScheduleCost(name, virtual, refused="too many operations to be simulated")
    pins = {"pp_degree": placement.pp_degree, "dp_degree": placement.dp_degree, "schedule": name, "virtual_stages": virtual}
    whole = placement.stage_bounds[1] > inputs.freeze_point
    try:
        found = make_plan(replace(inputs, placement=inputs.placement.model_copy(update=pins), prefix_whole=whole))
    except ValueError:
        return ScheduleCost(name, virtual, refused="exceeds the memory, or has too few micro-batches")
    if found.placement.schedule != name:
        return ScheduleCost(name, virtual, refused="has too few units, or micro-batches that make no whole rounds")
    cost = found.cost
    return ScheduleCost(name, virtual, cost.total_seconds, cost.parts["bubble"], cost.peak_bytes)
