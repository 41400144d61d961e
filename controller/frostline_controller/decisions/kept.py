"""Compact storage of decisions in the durable state: consecutive decisions that change nothing are stored as one.

A run makes one decision an interval, and few of them change anything; without compaction the durable state would grow with the
run's length. All fields that later decisions and restores read are restored exactly. The reasons of the oldest decisions are left
out; plans.jsonl has them.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from frostline_contract.plan import Decision

WORDED = 8
"""How many of the newest decisions keep their reasons."""


def pack_decisions(decisions: Sequence[Decision]) -> list[dict[str, Any]]:
    """The decisions in order; a run of equal ones as its first with `until` (number of the last) and `stride` (in steps)."""
    packed: list[dict[str, Any]] = []
    last: Decision | None = None
    for index, decision in enumerate(decisions):
        worded = index >= len(decisions) - WORDED
        if last is not None and not worded and _follows(last, decision, packed[-1].get("stride")):
            packed[-1] |= {"until": decision.number, "stride": decision.effective_step - last.effective_step}
        else:
            packed.append(decision.model_dump(mode="json", exclude_defaults=True))
            if _is_plain(decision) and not worded:
                packed[-1].pop("reason", None)
        last = decision
    return packed


def unpack_decisions(packed: Iterable[dict[str, Any]]) -> tuple[Decision, ...]:
    """Every decision one by one, from the lines of the durable state; the inverse of `pack_decisions`."""
    found: list[Decision] = []
    for values in packed:
        until, stride = values.pop("until", values["number"]), values.pop("stride", 0)
        first = Decision.model_validate(values)
        found += [
            first.model_copy(
                update={
                    "number": first.number + place,
                    "interval": first.interval + place,
                    "effective_step": first.effective_step + place * stride,
                }
            )
            for place in range(until - first.number + 1)
        ]
    return tuple(found)


def _is_plain(decision: Decision) -> bool:
    return decision.kind == "keep" and not decision.void


def _follows(last: Decision, decision: Decision, stride: int | None) -> bool:
    """Whether a decision equals the one before it but for its place one interval later."""
    step = decision.effective_step - last.effective_step
    moved = {"number": decision.number, "interval": last.interval + 1, "effective_step": decision.effective_step}
    expected = last.model_copy(update={**moved, "reason": decision.reason})
    return _is_plain(last) and decision.number == last.number + 1 and decision == expected and stride in (None, step)
