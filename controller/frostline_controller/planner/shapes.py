"""The allowed shapes: limits by the numbers of workers and units, the job's pins and the elasticity switches."""

from collections.abc import Sequence
from dataclasses import dataclass

from frostline_contract.schedules import is_folded, schedule_named
from frostline_controller.planner.cost import replica_micro_batches
from frostline_controller.planner.inputs import PlanInputs
from frostline_controller.planner.leaves import deal_evenly

ALL_DEGREES_UP_TO = 64
"""Most workers for which every dp_degree is tried; with more, only degrees that shorten the longest replica are."""


@dataclass(frozen=True)
class ShapeLimits:
    """The limits on the choice of a shape.

    Attributes:
        pp, dp: a degree that must be taken; None: the planner may choose.
        notes: explanations for the plan's reason.
    """

    pp: int | None
    dp: int | None
    notes: tuple[str, ...]


def asked_degrees(inputs: PlanInputs) -> tuple[int | None, int | None]:
    """Return (pp, dp) as job and switches demand, whether they fit or not; None: the planner's choice.

    placement.pp_degree and dp_degree come first. Without them initial_pp_degree sets the depth at the start; later
    elastic.pipeline off keeps the pipeline's depth of the start, and elastic.replicas off its number of replicas.
    """
    pp, dp, current = inputs.placement.pp_degree, inputs.placement.dp_degree, inputs.current
    if pp is None and _is_start(inputs):
        pp = inputs.placement.initial_pp_degree
    elif pp is None and not inputs.elastic.pipeline:
        pp = inputs.start_pp_degree or (current.pp_degree if current else None)
    if dp is None and not inputs.elastic.replicas:
        dp = inputs.start_dp_degree or (current.dp_degree if current else None)
    return pp, dp


def _is_start(inputs: PlanInputs) -> bool:
    """Whether the plan is the run's first one."""
    return inputs.current is None and inputs.start_pp_degree is None


def shape_limits(inputs: PlanInputs) -> ShapeLimits:
    """Return the asked degrees, lowered to what workers, units and leaves allow: any survivors have a plan."""
    notes, (pp, dp) = [], asked_degrees(inputs)
    if not _is_start(inputs) and pp != inputs.placement.pp_degree:
        notes.append(f"elastic.pipeline is off: pp {pp} of the start is kept")
    if not _is_start(inputs) and dp != inputs.placement.dp_degree:
        notes.append(f"elastic.replicas is off: dp {dp} of the start is kept")
    workers = len(inputs.members)
    if pp is not None and pp > min(workers, inputs.trainable_units):
        lowered = min(workers, inputs.trainable_units)
        notes.append(
            f"pp {pp} -> {lowered}: {workers} {inputs.members_are} and {inputs.trainable_units} trainable units allow no more"
        )
        pp = lowered
    if dp is not None and dp > min(workers // (pp or 1), inputs.most_replicas):
        lowered = min(workers // (pp or 1), inputs.most_replicas)
        ranges = f" and {inputs.state_ranges} ranges of shared state" if inputs.is_sharded else ""
        notes.append(
            f"dp {dp} -> {lowered}: {workers} {inputs.members_are} at pp {pp or 1} and {inputs.reduction_leaves} leaves{ranges} "
            "allow no more"
        )
        dp = lowered
    return ShapeLimits(pp, dp, tuple(notes))


def dp_choices(inputs: PlanInputs, limits: ShapeLimits) -> list[int]:
    """Return the replica counts to try, ascending.

    Of all counts whose longest replica has the same number of micro-batches, the least is with equal speeds at least as fast as
    the others (it exchanges less) and leaves more spares; so with more than ALL_DEGREES_UP_TO workers only those are tried. With
    batch "per_replica", where replicas add to the batch, the largest count for each depth is tried instead.
    """
    if limits.dp is not None:
        return [limits.dp]
    most = min(inputs.most_replicas, len(inputs.members) // (limits.pp or 1))
    if len(inputs.members) <= ALL_DEGREES_UP_TO:
        return list(range(1, most + 1))
    if inputs.batch == "per_replica":
        depths = range(1, min(len(inputs.members), inputs.trainable_units) + 1)
        return sorted({min(most, len(inputs.members) // depth) for depth in depths})
    longest: dict[int, int] = {}
    for dp in range(1, most + 1):
        longest.setdefault(-(-inputs.reduction_leaves // dp), dp)
    return sorted(longest.values())


def pp_choices(inputs: PlanInputs, limits: ShapeLimits, dp: int) -> list[int]:
    """Return the pipeline depths for which the workers suffice with `dp` replicas, ascending."""
    most = min(len(inputs.members) // dp, inputs.trainable_units)
    if limits.pp is not None:
        return [limits.pp] if limits.pp <= most else []
    return list(range(1, most + 1))


def has_whole_rounds(counts: Sequence[int], pp: int, slices: int) -> bool:
    """Whether replicas with these numbers of micro-batches, each in so many slices, can interleave stages over `pp` ranks."""
    return all(count * slices % pp == 0 or (count >= pp and count % (count // pp) == 0) for count in counts)


def schedules_for(inputs: PlanInputs, pp: int, dp: int, slices: int = 0) -> list[tuple[str, int]]:
    """Return the (schedule, virtual stages) that can run a shape.

    1F1B needs in every replica as many slices of micro-batches as stages. Interleaved needs trainable units for pp * v stages and
    rounds that cost what its closed form says: whole ones of pp slices, or near that (m a multiple of m // pp >= 1). Zero-bubble
    orders take any number of micro-batches, and those of a V need trainable units for two stages a rank. Where it can run, auto
    takes 1F1B, which is never slower than GPipe and holds less; with virtual_stages > 1 also interleaved. One stage needs no
    schedule. A pinned interleaved falls back to 1F1B where units or micro-batches do not suffice, and a pinned V to zb_h1.

    Args:
        inputs: the planner's inputs.
        pp, dp: the degrees.
        slices: token slices of each micro-batch; 0: as many as allowed.
    """
    pinned, virtual = inputs.placement.schedule, inputs.most_virtual_stages
    if pp == 1:
        return [("gpipe" if pinned == "gpipe" else "1f1b", 1)]
    counts = replica_micro_batches(inputs, deal_evenly(inputs.reduction_leaves, dp))
    name = "1f1b" if pinned in ("auto", "interleaved_1f1b") else pinned
    if slices > inputs.num_slices(pp, name):
        return []
    if pinned == "gpipe":
        return [(pinned, 1)]
    if is_folded(pinned):
        return [(pinned, 2) if pp * 2 <= inputs.trainable_units else ("zb_h1", 1)]
    travelling = slices or inputs.num_slices(pp, name)
    one_forward_one_backward = min(counts) * travelling >= pp
    interleaved = virtual > 1 and pp * virtual <= inputs.trainable_units and has_whole_rounds(counts, pp, travelling)
    if pinned == "auto":
        base = [("1f1b" if one_forward_one_backward else "gpipe", 1)]
        return [*base, ("interleaved_1f1b", virtual)] if interleaved else base
    if pinned == "interleaved_1f1b" and interleaved:
        return [(pinned, virtual)]
    return [(name, 1)] if one_forward_one_backward or schedule_named(name).splits else []
