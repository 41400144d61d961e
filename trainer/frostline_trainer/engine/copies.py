"""All copies of a unit hold the same bits, owners' in all replicas and a buddy's: compared before each checkpoint and the end."""

import torch
import xxhash

from frostline_trainer.engine.generation import Generation
from frostline_trainer.engine.unit_state import export_unit
from frostline_trainer.engine.wrong_bits import WrongBits

DIGEST_BYTES = 16
ABSENT = bytes(DIGEST_BYTES)


class CopiesDiffer(WrongBits):
    """Copies of one unit are not the same bit for bit. workers: the one that differs from all others, where there is one."""


def compare_copies(generation: Generation, step: int, agreed_step: int) -> int:
    """Compare weights and moments of every unit over all who hold it, by XXH3 digests. Collective. Returns `step`.

    agreed_step: after which step they were equal the last time. Raises CopiesDiffer, on all members alike. Exact numerics only:
    with fast ones the library's all-reduce promises no bits.
    """
    context, plan, degree = generation.context, generation.plan, generation.shape.dp_degree
    if not context.exact or (degree == 1 and not any(plan.buddies)):
        return step
    digests = torch.zeros(context.num_units, degree + 1, DIGEST_BYTES, dtype=torch.int32)
    places = dict.fromkeys(plan.placement.units_of(generation.worker_id), generation.dp_rank)
    places |= dict.fromkeys(plan.wards_of(generation.worker_id), degree)
    for unit, place in places.items():
        if context.holdings.state(unit) is not None:
            generation.moved()
            digests[unit, place] = torch.tensor(list(_fast_digest(generation, unit)), dtype=torch.int32)
    generation.world.all_reduce_sum(digests)
    for unit in range(context.num_units):
        holders = (*plan.placement.owners(unit), plan.buddies[unit] if plan.buddies else "")
        rows = [bytes(row) for row in digests[unit].tolist()]
        held = {holder: digest for holder, digest in zip(holders, rows, strict=True) if digest != ABSENT}
        if len(set(held.values())) > 1:
            raise _differ(generation, unit, held, step, agreed_step)
    return step


def _fast_digest(generation: Generation, unit: int) -> bytes:
    """Of a unit's whole state. It never leaves the run, so it need not be the SHA-256 that checkpoints and results have."""
    context, digest = generation.context, xxhash.xxh3_128()
    state = export_unit(unit, context.cut.units[unit], context.moments)
    for key in sorted(state):
        digest.update(key.encode())
        digest.update(state[key].cpu().contiguous().view(-1).view(torch.uint8).numpy())
    return digest.digest()


def _differ(generation: Generation, unit: int, held: dict[str, bytes], step: int, agreed_step: int) -> CopiesDiffer:
    digests = list(held.values())
    odd = [holder for holder, digest in held.items() if digests.count(digest) == 1]
    alone = tuple(odd) if len(odd) == 1 and len(held) > 2 else ()
    told = ", ".join(f"{holder} {digest.hex()[:8]}" for holder, digest in held.items())
    name = generation.context.cut.unit_names[unit]
    text = f"after step {step} the copies of unit {unit} ({name}) are not equal: {told}; they were after step {agreed_step}"
    return CopiesDiffer(text, agreed_step + 1, alone)
