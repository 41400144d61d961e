"""Advice on the micro-batch size, the one number of the numerics that is chosen for speed (docs/design.md 7)."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from frostline_contract.statistics import UnitProfile
from frostline_controller.planner.inputs import PlanInputs
from frostline_controller.planner.placing import PlannedPlacement
from frostline_controller.planner.search import make_plan


@dataclass(frozen=True)
class Candidate:
    """One micro-batch size: its samples, its number of micro-batches M, and either its best plan or the reason against it."""

    micro_batch_size: int
    num_microbatches: int
    planned: PlannedPlacement | None
    refusal: str = ""


@dataclass(frozen=True)
class Advice:
    """The micro-batch size that the planner advises, with the sizes from which it was chosen.

    Attributes:
        best: the size with the least predicted step.
        candidates: all sizes, ascending.
        reason: for people.
    """

    best: int
    candidates: tuple[Candidate, ...]
    reason: str


def advise(
    inputs: PlanInputs, batch_size: int, profiles: Mapping[int, tuple[UnitProfile, ...]], sizes: tuple[int, ...] = ()
) -> Advice:
    """Return the micro-batch size whose best placement has the least predicted step; reduction_leaves stays as it is.

    A size with fewer micro-batches than leaves is refused, since a job with it would be.

    Args:
        inputs: the planner's inputs for the job as it is.
        batch_size: samples of a step.
        profiles: unit costs by measured size. The costs of other sizes are predicted by a line through these (a fixed part and
            a part for each sample; with one measured size the fixed part is 0, so measure two).
        sizes: candidates; default: powers of two up to batch_size, the measured sizes and the job's own.

    Raises:
        ValueError: no size works, or `profiles` is empty.
    """
    if not profiles:
        raise ValueError("advice needs the unit profile of at least one micro-batch size, got 0")
    wanted = sorted(sizes) or sizes_of(inputs, batch_size, profiles)
    candidates = [_candidate(inputs, batch_size, size, profiles) for size in wanted]
    usable = [candidate for candidate in candidates if candidate.planned is not None]
    if not usable:
        raise ValueError(f"no micro-batch size of {wanted} works for a batch of {batch_size}: {candidates[-1].refusal}")
    best = min(usable, key=lambda c: (c.planned.cost.seconds_per_sample, -c.micro_batch_size))
    text = f"micro_batch_size {best.micro_batch_size}: predicted step {best.planned.cost.total_seconds:.4g} s"
    now = next((c for c in usable if c.micro_batch_size == inputs.micro_batch_size), None)
    if now is not None and now is not best:
        ratio = now.planned.cost.seconds_per_sample / best.planned.cost.seconds_per_sample
        text += f", {ratio:.2f}x faster than {now.micro_batch_size}"
    return Advice(best.micro_batch_size, tuple(candidates), text)


def sizes_of(inputs: PlanInputs, batch_size: int, profiles: Mapping[int, tuple[UnitProfile, ...]]) -> list[int]:
    """Return the sizes to try, ascending: powers of two up to batch_size, the measured ones and the job's, in whole row tiles."""
    powers = {1 << power for power in range(batch_size.bit_length())}
    wanted = powers | set(profiles) | {inputs.micro_batch_size}
    return sorted(size for size in wanted if size <= batch_size and size % inputs.row_tiles == 0)


def inputs_at(inputs: PlanInputs, batch_size: int, size: int, profiles: Mapping[int, tuple[UnitProfile, ...]]) -> PlanInputs:
    """Return the planner's inputs as if the job had micro-batches of `size`. Arguments as in `advise`."""
    return replace(
        inputs,
        micro_batch_size=size,
        num_microbatches=-(-batch_size // size),
        units=units_at(profiles, size),
        samples_per_step=batch_size,
    )


def at_other_sizes(
    inputs: PlanInputs, batch_size: int, profiles: Mapping[int, tuple[UnitProfile, ...]]
) -> tuple[PlanInputs, ...]:
    """Return the planner's inputs at each other size that gives enough micro-batches. Arguments as in `advise`."""
    sizes = [size for size in sizes_of(inputs, batch_size, profiles) if size != inputs.micro_batch_size]
    return tuple(
        inputs_at(inputs, batch_size, size, profiles) for size in sizes if -(-batch_size // size) >= inputs.reduction_leaves
    )


def _candidate(inputs: PlanInputs, batch_size: int, size: int, profiles: Mapping[int, tuple[UnitProfile, ...]]) -> Candidate:
    count = -(-batch_size // size)
    if count < inputs.reduction_leaves:
        return Candidate(size, count, None, f"{count} micro-batches are fewer than reduction_leaves {inputs.reduction_leaves}")
    try:
        return Candidate(size, count, make_plan(inputs_at(inputs, batch_size, size, profiles)))
    except ValueError as error:  # no placement of this size fits: the refusal is the candidate's result
        return Candidate(size, count, None, str(error))


def units_at(profiles: Mapping[int, tuple[UnitProfile, ...]], size: int) -> tuple[UnitProfile, ...]:
    """Return the unit costs at `size` samples: measured, or on the least-squares line through the measured sizes (at least 0)."""
    if size in profiles:
        return profiles[size]
    measured = sorted(profiles)
    columns = zip(*(profiles[at] for at in measured), strict=True)
    return tuple(_unit_at(measured, unit, size) for unit in columns)


def _unit_at(measured: list[int], unit: tuple[UnitProfile, ...], size: int) -> UnitProfile:
    def line(name: str) -> float:
        values = [getattr(profile, name) for profile in unit]
        if len(measured) == 1:
            return values[0] * size / measured[0]
        mean_x, mean_y = sum(measured) / len(measured), sum(values) / len(values)
        spread = sum((x - mean_x) ** 2 for x in measured)
        slope = sum((x - mean_x) * (y - mean_y) for x, y in zip(measured, values, strict=True)) / spread
        return max(0.0, mean_y + slope * (size - mean_x))

    scaled = {name: line(name) for name in ("forward_seconds", "backward_seconds")}
    first = unit[0]
    scaled |= {
        f"cell_{name}": tuple(scaled[name] / getattr(first, name) * one for one in getattr(first, f"cell_{name}"))
        for name in ("forward_seconds", "backward_seconds")
        if getattr(first, name) > 0
    }
    scaled |= {name: round(line(name)) for name in ("activation_bytes", "output_bytes", "working_bytes", "split_bytes")}
    return first.model_copy(update=scaled)
