"""Collects the bytes that each member sent, received and holds, for the record of an interval's last step
(`frostline_contract.usage`)."""

import torch

from frostline_contract.usage import Held, Way, WorkerUsage
from frostline_trainer.memory import on_gpu, peak_of
from frostline_trainer.step.generation import Generation
from frostline_trainer.step.local_shards import weight_bytes

WAYS, KINDS = tuple(Way), tuple(Held)


def resident_bytes(generation: Generation) -> dict[Held, int]:
    """Bytes of each kind that this member holds between two steps, including buffers that are kept for the next step."""
    context, plan, replication = generation.context, generation.plan, generation.replication
    units, own = context.cut.units, frozenset(plan.pieces_of(generation.worker_id))
    computed = plan.placement.units_of(generation.worker_id)
    held = {
        Held.WEIGHTS: sum(weight_bytes(units[unit], own) for unit in computed),
        Held.GRADIENTS: sum(buffers.held_bytes for buffers in generation.buffers.values()),
        Held.MOMENTS: _moments(context.moments, own),
    }
    kept_pieces = frozenset(plan.replicas_kept_by(generation.worker_id))
    kept = sum(
        weight_bytes(units[unit], kept_pieces) - (weight_bytes(units[unit], ()) if unit in computed else 0)
        for unit in replication.kept_units
    )
    held[Held.BUDDIES] = kept + _moments(context.moments, kept_pieces) + replication.buffer_bytes
    peak = peak_of(context.device)[0] if on_gpu(context.device) else generation.weighing.tensor_bytes
    held[Held.ACTIVATIONS] = max(0, peak - held[Held.WEIGHTS] - held[Held.GRADIENTS] - held[Held.MOMENTS])
    return held


def gather_usage(generation: Generation) -> tuple[WorkerUsage, ...]:
    """Gather all members' usage, by global rank. Collective; the next call counts traffic from here on."""
    traffic, world = generation.context.traffic, generation.world
    sent, received = traffic.since_reported()
    held = resident_bytes(generation)
    table = torch.zeros(world.size, 2 * len(WAYS) + len(KINDS), dtype=torch.float64)
    own = [*(sent.get(way, 0) for way in WAYS), *(received.get(way, 0) for way in WAYS), *(held[kind] for kind in KINDS)]
    table[world.index] = torch.tensor(own, dtype=torch.float64)
    world.all_reduce_sum(table)
    traffic.mark_reported(sent, received)
    return tuple(_read(worker, row) for worker, row in zip(generation.placement.workers, table.tolist(), strict=True))


def _read(worker_id: str, row: list[float]) -> WorkerUsage:
    """One member's row of the table; zeros are left out."""
    figures = iter(row)
    parts = [{name: int(value) for name, value in zip(names, figures, strict=False) if value} for names in (WAYS, WAYS, KINDS)]
    return WorkerUsage(worker_id=worker_id, sent=parts[0], received=parts[1], resident=parts[2])


def _moments(moments: dict, pieces: frozenset[int]) -> int:
    """Bytes of these pieces' optimizer state."""
    kept = [state for (piece, _), state in moments.items() if piece in pieces]
    return sum(tensor.nbytes for state in kept for tensor in state.values() if isinstance(tensor, torch.Tensor))
