"""The verdict whether a better placement is worth its reshape."""

from typing import Literal

from frostline_contract.plan import Placement
from frostline_controller.planner.cost import StepCost


def differ(one: Placement, other: Placement) -> bool:
    """Whether two placements differ in anything but their predictions."""
    predictions = {"predicted_step_seconds", "predicted_peak_bytes"}
    return one.model_dump(exclude=predictions) != other.model_dump(exclude=predictions)


def should_reshape(
    current_cost: StepCost,
    new_cost: StepCost,
    steps_left: int,
    reshape_seconds: float,
    hysteresis: float,
    objective: Literal["throughput", "cost"] = "throughput",
    current_workers: int = 1,
    new_workers: int = 1,
) -> tuple[bool, str]:
    """Return (whether to reshape, why): the time saved in the steps left must exceed the reshape and a share of the time left.

    Where the batch grows with the replicas, steps are compared at the current batch (seconds per sample).

    Args:
        current_cost, new_cost: predicted steps of the two placements.
        steps_left: steps until the end of the run.
        reshape_seconds: how long a reshape stops training.
        hysteresis: the share of the time left (placement.hysteresis), 0.0 to 1.0.
        objective: with "cost" time is multiplied by the workers that spend it, so that handing workers back pays although no step
            becomes faster.
        current_workers, new_workers: number of workers of the two placements.
    """
    if steps_left <= 0:
        return False, f"no reshape: {steps_left} steps left"
    before, after = current_cost.total_seconds, new_cost.seconds_per_sample * current_cost.samples
    unit, reshape = "s", reshape_seconds
    if objective == "cost":
        before, after, unit = before * current_workers, after * new_workers, "worker-s"
        reshape = reshape_seconds * max(current_workers, new_workers)
    saved, needed = (before - after) * steps_left, reshape + hysteresis * before * steps_left
    figures = (
        f"{before:.4g} -> {after:.4g} {unit} a step saves {saved:.4g} {unit} in {steps_left} steps; "
        f"needed {needed:.4g} (reshape {reshape:.3g} + {hysteresis:.0%} of what remains)"
    )
    return (True, f"reshape: {figures}") if saved > needed else (False, f"no reshape: {figures}")
