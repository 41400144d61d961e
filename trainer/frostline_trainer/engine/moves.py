"""Unit state moves peer to peer at a plan's start: from each unit's source to every member that needs and lacks it."""

from frostline_contract.plan import Plan, StateTag
from frostline_trainer.comm.collectives import Group, receive_bytes, send_bytes, wait_all
from frostline_trainer.engine.context import RunContext
from frostline_trainer.engine.unit_state import export_unit, import_unit, pack, unpack


def move_units(context: RunContext, plan: Plan, worker_id: str, moving: Group, tag: StateTag) -> int:
    """Send and receive what the plan asks of this worker. Returns the bytes received.

    tag: the state that the plan starts from; a source must have it. A unit that arrives is torn until it is whole, and at `tag`
    then. Nothing is given up here (`give_up`). Raises RuntimeError where a participant is lost on the way.
    """
    places = plan.places
    sent = []
    for unit, source in enumerate(plan.sources):
        receivers = receivers_of(plan, unit) if source == worker_id else []
        if not receivers:
            continue
        state = context.holdings.state(unit)
        assert state == tag, f"{worker_id} is the source of unit {unit} at {tag}, and has {state}"
        payload = pack(export_unit(unit, context.cut.units[unit], context.moments))
        for member in receivers:
            sent += send_bytes(moving, payload, places[member], unit)
    received = 0
    for unit in plan.needs(worker_id):
        if worker_id in receivers_of(plan, unit):
            context.holdings.tear([unit])
            payload = receive_bytes(moving, places[plan.sources[unit]], unit)
            import_unit(unit, context.cut.units[unit], context.moments, unpack(payload))
            context.holdings.settle([unit], tag)
            received += len(payload)
    wait_all(sent)
    return received


def receivers_of(plan: Plan, unit: int) -> list[str]:
    """Members that need `unit` and do not have it at the plan's start, in global rank order."""
    holders = set(plan.holders_of(unit))
    return [member for member in plan.needed_by(unit) if member not in holders]


def give_up(context: RunContext, plan: Plan, worker_id: str) -> None:
    """Forget the moments of what the plan does not need here: it is safe with others now, and nobody may ask for it here."""
    needed = set(plan.needs(worker_id))
    surplus = {unit for unit in range(context.num_units) if unit not in needed}
    context.holdings.drop(surplus)
    for key in [key for key in context.moments if key[0] in surplus]:
        del context.moments[key]
