"""Unit state moves peer to peer at a switch: from the plan's source of each unit to every member that lacks it."""

from collections.abc import Iterable

from frostline_contract.plan import Placement, Plan
from frostline_trainer.collectives import Group, receive_bytes, send_bytes
from frostline_trainer.engine.context import RunContext
from frostline_trainer.engine.unit_state import export_unit, import_unit, pack, unpack


def move_units(context: RunContext, plan: Plan, base: Placement | None, worker_id: str, moving: Group) -> int:
    """Send and receive what the plan asks of this worker. Returns the bytes received.

    base: the placement that ends, None for a joiner, which holds nothing and sends nothing.
    """
    held = set(base.units_of(worker_id)) if base is not None else set()
    sent = []
    for unit in sorted(unit for unit in held if plan.sources[unit] == worker_id):
        receivers = list(_lacking(plan, base, unit))
        payload = pack(export_unit(unit, context.cut.units[unit], context.moments)) if receivers else b""
        for member in receivers:
            sent += send_bytes(moving, payload, plan.participants.index(member), unit)
    received = 0
    for unit in plan.placement.units_of(worker_id):
        if unit not in held:
            payload = receive_bytes(moving, plan.participants.index(plan.sources[unit]), unit)
            import_unit(unit, context.cut.units[unit], context.moments, unpack(payload))
            received += len(payload)
    for message in sent:
        message.wait()
    _drop(context, held - set(plan.placement.units_of(worker_id)))
    return received


def _lacking(plan: Plan, base: Placement | None, unit: int) -> Iterable[str]:
    """Members of the new placement that need `unit` and did not hold it before, in global rank order."""
    for member in plan.placement.workers:
        before = base.units_of(member) if base is not None else []
        if unit in plan.placement.units_of(member) and unit not in before:
            yield member


def _drop(context: RunContext, units: set[int]) -> None:
    """Forget the moments of units that are somebody else's now."""
    for key in [key for key in context.moments if key[0] in units]:
        del context.moments[key]
