"""The rails around every policy: limits with names, each a small function, applied in a fixed order.

A rail gets the inputs and the freeze point that is still wanted, and returns the freeze point that it allows, with a note for the
decision's reason where it clips. It may only move the wanted freeze point towards the one in force, never past it. So no rail
unfreezes by itself, and a cap that is already exceeded (for example by a command) keeps the freeze point in force. Accuracy comes
first (the papers show that freezing can cost accuracy), so all rails are on unless `freeze.rails.off` names them.
"""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

from frostline_contract.job.freezing import RailsSection
from frostline_contract.plan import Decision
from frostline_controller.decisions.guard import finite_reading, quarantined_from
from frostline_controller.decisions.inputs import ROUNDING, FreezeInputs, blocks_frozen, freeze_point_of, not_finite
from frostline_controller.decisions.registry import Policy
from frostline_controller.decisions.surviving import changes, last_rollback


class Clip(NamedTuple):
    """The freeze point that a rail allows, and why it differs from the wanted one ('' where it does not)."""

    freeze_point: int
    note: str = ""


def nan(inputs: FreezeInputs, wanted: int, policy: Policy) -> Clip:
    """Nothing changes on an interval that was not finite or had no accepted step."""
    unusable = not_finite(inputs.newest)
    return Clip(inputs.current, unusable) if unusable else Clip(wanted)


def warmup(inputs: FreezeInputs, wanted: int, policy: Policy) -> Clip:
    """Nothing freezes before a certain share of the run's steps."""
    floor = inputs.freeze.rails.warmup_fraction * inputs.calendar.total_steps
    if wanted > inputs.current and inputs.effective_step - 1 < floor:
        return Clip(inputs.current, f"step {inputs.effective_step} is within the first {floor:.0f} steps")
    return Clip(wanted)


def cooldown(inputs: FreezeInputs, wanted: int, policy: Policy) -> Clip:
    """After each change, a rollback included, a few intervals pass without another change."""
    moved = [change.number for change in changes(inputs.statistics, inputs.calendar)]
    last = max([*moved, last_rollback(inputs.decisions, inputs.calendar, inputs.newest.number)])
    wait = inputs.freeze.rails.cooldown_intervals
    if last and inputs.newest.number <= last + wait:
        return Clip(inputs.current, f"decision {last} changed the freeze point, {wait} interval(s) without a change follow")
    return Clip(wanted)


def min_active(inputs: FreezeInputs, wanted: int, policy: Policy) -> Clip:
    """A block freezes only when it has learnt long enough since the run's start or its last unfreezing."""
    steps = inputs.freeze.rails.min_active_steps
    needed = 2 * inputs.calendar.interval_steps if steps is None else steps
    learning_since = [1] * inputs.num_units
    for change in changes(inputs.statistics, inputs.calendar):
        for unit in range(change.after, change.before):
            learning_since[unit] = change.effective_step
    for unit in range(inputs.current, wanted):
        learnt = inputs.effective_step - learning_since[unit]
        if learnt < needed:
            return Clip(_through(inputs, unit - 1), f"unit {unit} has learnt for {learnt} steps of {needed}")
    return Clip(wanted)


def rearm(inputs: FreezeInputs, wanted: int, policy: Policy) -> Clip:
    """After a jump of the learning rate between two intervals, down or up (a warm restart), patience starts anew."""
    rails = inputs.freeze.rails
    for earlier, later in pairwise(inputs.statistics):
        low, high = sorted((earlier.learning_rate, later.learning_rate))
        jumped = low < (1.0 - rails.rearm_drop) * high
        waited = inputs.newest.number - later.number
        if jumped and waited < rails.patience and wanted > inputs.current:
            note = (
                f"the learning rate went from {earlier.learning_rate:.3g} to {later.learning_rate:.3g} in interval {later.number}"
            )
            return Clip(inputs.current, f"{note}, {waited} of {rails.patience} intervals have passed since")
    return Clip(wanted)


def patience(inputs: FreezeInputs, wanted: int, policy: Policy) -> Clip:
    """A freeze point is taken only when several consecutive intervals have each proposed at least that point."""
    if wanted <= inputs.current:
        return Clip(wanted)
    needed = inputs.freeze.rails.patience
    asked = _recent_proposals(inputs, policy, needed)
    if len(asked) < needed:
        return Clip(inputs.current, f"{len(asked)} of {needed} intervals have asked")
    agreed = max(inputs.current, min([wanted, *asked]))
    return Clip(agreed, f"the last {needed} intervals asked for {', '.join(map(str, asked))}" if agreed < wanted else "")


def unfreeze(inputs: FreezeInputs, wanted: int, policy: Policy) -> Clip:
    """Unfreezing needs more consecutive intervals than freezing, so that a boundary does not oscillate."""
    if wanted >= inputs.current:
        return Clip(wanted)
    needed = inputs.freeze.rails.unfreeze_patience
    asked = _recent_proposals(inputs, policy, needed)
    if len(asked) < needed:
        return Clip(inputs.current, f"{len(asked)} of {needed} intervals have asked")
    agreed = min(inputs.current, max([wanted, *asked]))
    return Clip(agreed, f"the last {needed} intervals asked for {', '.join(map(str, asked))}" if agreed > wanted else "")


def absolute(inputs: FreezeInputs, wanted: int, policy: Policy) -> Clip:
    """A block freezes only when its norm has fallen to a share of its own peak, since a test by rank always names some block."""
    share = inputs.freeze.rails.absolute_change
    for unit in range(max(1, inputs.current), wanted):
        peak = max((entry.unit_gradient_norms[unit] for entry in inputs.statistics if not not_finite(entry)), default=0.0)
        norm = inputs.newest.unit_gradient_norms[unit]
        if norm > share * peak:
            return Clip(_through(inputs, unit - 1), f"block {unit} has norm {norm:.4g}, above {share:g} of its peak {peak:.4g}")
    return Clip(wanted)


def cap_interval(inputs: FreezeInputs, wanted: int, policy: Policy) -> Clip:
    """One decision freezes at most a certain number of blocks."""
    rails = inputs.freeze.rails
    most = max(rails.blocks_per_interval, rails.least_blocks)
    limit = freeze_point_of(blocks_frozen(inputs.current) + most)
    return Clip(limit, f"at most {most} block(s) by one decision") if wanted > limit else Clip(wanted)


def cap_total(inputs: FreezeInputs, wanted: int, policy: Policy) -> Clip:
    """At most a certain share of the blocks is ever frozen."""
    return _capped(inputs, wanted, *_cap_in_all(inputs.freeze.rails, inputs.num_blocks))


def _cap_in_all(section: RailsSection, num_blocks: int) -> tuple[int, str]:
    """Return how many blocks may be frozen, and why."""
    most = math.floor(section.total_fraction * num_blocks + ROUNDING)
    return most, f"at most {most} of {num_blocks} blocks ({section.total_fraction:.0%})"


def last_blocks(inputs: FreezeInputs, wanted: int, policy: Policy) -> Clip:
    """The last blocks never freeze."""
    return _capped(inputs, wanted, *_cap_before_last(inputs.freeze.rails, inputs.num_blocks))


def _cap_before_last(section: RailsSection, num_blocks: int) -> tuple[int, str]:
    """Return how many blocks may be frozen, and why."""
    kept = section.last_blocks
    return max(0, num_blocks - kept), f"the last {kept} of {num_blocks} blocks never freeze"


def baseline(inputs: FreezeInputs, wanted: int, policy: Policy) -> Clip:
    """Nothing freezes before the guard has a baseline reading; where there are no readings at all the reason says so."""
    if wanted <= inputs.current or any(finite_reading(entry) for entry in inputs.statistics):
        return Clip(wanted)
    if inputs.evaluation.every_intervals == 0:
        return Clip(wanted, "evaluation.every_intervals is 0, so no guard watches this freeze")
    return Clip(inputs.current, "there is no guard reading yet that the freeze could be held against")


def quarantine(inputs: FreezeInputs, wanted: int, policy: Policy) -> Clip:
    """A boundary that the guard rolled back, and any deeper one, is never taken again."""
    boundary = quarantined_from(inputs.decisions)
    if boundary is None or wanted < boundary:
        return Clip(wanted)
    most = blocks_frozen(boundary) - 1
    return _capped(inputs, wanted, most, _rolled_back(boundary))


def _rolled_back(boundary: int) -> str:
    return f"freeze point {boundary} was rolled back, nothing from there on freezes again"


def least_move(inputs: FreezeInputs, wanted: int, policy: Policy) -> Clip:
    """A freeze of fewer blocks than the job's minimum waits, unless it freezes all blocks that may ever freeze.

    Every change costs a checkpoint, rebuilt stages and a new fill of the cache, however few blocks it freezes: so changes should
    be few.
    """
    least, taken = inputs.freeze.rails.least_blocks, blocks_frozen(wanted) - blocks_frozen(inputs.current)
    if wanted <= inputs.current or taken >= least:
        return Clip(wanted)
    off, deepest = rails_off(inputs.freeze.rails) | policy.exempt, inputs.num_units - 1
    for limit in (cap_total, last_blocks, quarantine):
        if limit.__name__ not in off:
            deepest = limit(inputs, deepest, policy).freeze_point
    if wanted >= deepest:
        return Clip(wanted)
    return Clip(
        inputs.current, f"{taken} block(s) are fewer than {least}, and {blocks_frozen(deepest)} may freeze: it waits for more"
    )


RAILS: dict[str, Callable[[FreezeInputs, int, Policy], Clip]] = {
    rail.__name__: rail
    for rail in (
        nan,
        warmup,
        cooldown,
        min_active,
        rearm,
        patience,
        unfreeze,
        absolute,
        cap_interval,
        cap_total,
        last_blocks,
        baseline,
        quarantine,
        least_move,
    )
}
"""All rails in the order in which they apply: whether to change at all, how far the evidence reaches, how far is allowed."""

RAIL_NAMES = (*RAILS, "guard")
"""All names that `freeze.rails.off` may hold. Without the guard there is no baseline to wait for and no quarantine."""


def rails_off(section: RailsSection) -> frozenset[str]:
    """The rails that a job switches off. Raises ValueError for an unknown name."""
    unknown = [name for name in section.off if name not in RAIL_NAMES]
    if unknown:
        raise ValueError(f"freeze.rails.off holds {', '.join(map(repr, unknown))}; the rails are {', '.join(RAIL_NAMES)}")
    off = frozenset(section.off)
    return off | {"baseline", "quarantine"} if "guard" in off else off


def deepest_freeze_point(section: RailsSection, num_units: int, policy: Policy) -> int:
    """The deepest freeze point that the policy can ever reach in a model of `num_units` units, by the rails' limits."""
    return cap_of(section, num_units, policy, ()).freeze_point


def cap_of(section: RailsSection, num_units: int, policy: Policy, decisions: Sequence[Decision]) -> Clip:
    """The deepest freeze point that the policy can reach from a shallower one, with the rail that says so ('' for none).

    Args:
        section: the job's rails.
        num_units: number of units of the model.
        policy: the policy.
        decisions: all decisions known, for what the guard has rolled back.
    """
    off, num_blocks, boundary = rails_off(section) | policy.exempt, num_units - 2, quarantined_from(decisions)
    caps = [Clip(num_units - 1)]
    for name, cap in (("cap_total", _cap_in_all), ("last_blocks", _cap_before_last)):
        if name not in off:
            most, note = cap(section, num_blocks)
            caps.append(Clip(freeze_point_of(most), f"{name}: {note}"))
    if boundary is not None and "quarantine" not in off:
        caps.append(Clip(boundary - 1, f"quarantine: {_rolled_back(boundary)}"))
    return min(caps, key=lambda one: one.freeze_point)


def apply_rails(inputs: FreezeInputs, wanted: int, policy: Policy) -> Clip:
    """Apply all rails that are on and not exempt for the policy. The result's note names each rail that clipped."""
    off = rails_off(inputs.freeze.rails) | policy.exempt
    lowest, deepest = inputs.lowest, inputs.num_units - 1
    point = min(max(lowest, wanted), deepest)
    notes = [f"bounds: {wanted} is outside {lowest} to {deepest}"] if point != wanted else []
    for name, rail in RAILS.items():
        if point == inputs.current:
            break
        if name in off:
            continue
        allowed, note = rail(inputs, point, policy)
        assert min(point, inputs.current) <= allowed <= max(point, inputs.current), f"rail {name} moved {point} to {allowed}"
        if note:
            notes.append(f"{name}: {note} ({point} -> {allowed})" if allowed != point else f"{name}: {note}")
        point = allowed
    return Clip(point, "; ".join(notes))


def _recent_proposals(inputs: FreezeInputs, policy: Policy, count: int) -> list[int]:
    """The policy's proposals for the newest `count` intervals since the last rollback, oldest first, computed again."""
    start = last_rollback(inputs.decisions, inputs.calendar, inputs.newest.number)
    numbers = [entry.number for entry in inputs.statistics if entry.number > start][-count:]
    return [policy.propose(inputs.up_to(number)).freeze_point for number in numbers]


def _through(inputs: FreezeInputs, block: int) -> int:
    """The freeze point that ends with `block`, but not below what is frozen."""
    return max(inputs.current, freeze_point_of(block))


def _capped(inputs: FreezeInputs, wanted: int, most_blocks: int, note: str) -> Clip:
    limit = _through(inputs, most_blocks)
    return Clip(limit, note) if wanted > limit else Clip(wanted)
