"""State transfer at a plan's start, peer to peer: from each piece's source to every member that needs and lacks the piece."""

from frostline_contract.plan import Plan, StateTag
from frostline_trainer.step.context import RunContext
from frostline_trainer.step.local_shards import drop_shards
from frostline_trainer.step.packing import pack, unpack
from frostline_trainer.step.unit_state import export_piece, import_piece, release_unit
from frostline_trainer.transport.collectives import Group, receive_bytes, send_bytes, wait_all


def move_pieces(context: RunContext, plan: Plan, worker_id: str, moving: Group, tag: StateTag) -> int:
    """Send and receive this worker's pieces as the plan says.

    A received piece is torn until it is complete, and at `tag` then. Pieces that were sent are kept (until `release_unneeded`).

    Args:
        context: the run's model, on this worker.
        plan: the plan to enter.
        worker_id: this worker.
        moving: the group of all participants.
        tag: the state at which the plan starts; each source must have it.

    Returns:
        Bytes received.

    Raises:
        RuntimeError: a participant is lost meanwhile.
    """
    table, places = plan.pieces, plan.places
    sent = []
    for piece, source in enumerate(plan.sources):
        receivers = receivers_of(plan, piece) if source == worker_id else []
        if not receivers:
            continue
        state = context.holdings.state(piece)
        assert state == tag, f"{worker_id} is the source of piece {piece} at {tag}, and has {state}"
        module = context.cut.units[table.unit_of(piece)]
        payload = pack(export_piece(table, piece, module, context.moments))
        for member in receivers:
            sent += send_bytes(moving, payload, places[member], piece)
    received = 0
    for piece in plan.needs(worker_id):
        if worker_id in receivers_of(plan, piece):
            context.holdings.tear([piece])
            payload = receive_bytes(moving, places[plan.sources[piece]], piece)
            module = context.cut.units[table.unit_of(piece)]
            import_piece(table, piece, module, context.moments, unpack(payload))
            context.holdings.settle([piece], tag)
            received += payload.numel()
    wait_all(sent)
    return received


def receivers_of(plan: Plan, piece: int) -> list[str]:
    """Members that need `piece` and do not have it at the plan's start, in global rank order."""
    holders = set(plan.holders_of(piece))
    return [member for member in plan.needed_by(piece) if member not in holders]


def release_unneeded(context: RunContext, plan: Plan, worker_id: str) -> None:
    """Release the pieces that the plan does not need on this worker, because other members hold them now.

    A unit without any needed piece frees all its memory, so that no worker holds the whole of a model that is cut over many.
    """
    needed = set(plan.needs(worker_id))
    context.holdings.drop(piece for piece in range(plan.pieces.count) if piece not in needed)
    units = set(plan.pieces.units_of(needed))
    for key in [key for key in context.moments if key[0] not in needed]:
        del context.moments[key]
    for unit, module in enumerate(context.cut.units):
        if unit in units:
            drop_shards(module, needed)
        else:
            release_unit(module)
