"""Compares the copies of each piece, at owners in all replicas and at the buddy, before checkpoints and at the end of a run."""

import torch
import xxhash

from frostline_trainer.replication.wrong_bits import WrongBits
from frostline_trainer.step.generation import Generation
from frostline_trainer.step.unit_state import export_piece, still_weights_of

DIGEST_BYTES = 16
ABSENT = bytes(DIGEST_BYTES)


class CopiesDiffer(WrongBits):
    """Copies of one piece differ in bits.

    workers: the one that differs from all others, if there is exactly one. Without such a worker, `holders` in the detail names
    all that hold a copy, one or more of which have a wrong one.
    """


def compare_copies(generation: Generation, step: int, agreed_step: int) -> int:
    """Compare weights and moments of every piece over all members that hold it, by XXH3 digests. Collective. Returns `step`.

    Only in exact numerics: with fast ones the library's all-reduce promises no bits. Raises CopiesDiffer, on all members alike.

    agreed_step: the step after which the copies were equal in the last comparison.
    """
    context, plan, degree = generation.context, generation.plan, generation.placement.owners_each
    if not context.exact or (degree == 1 and not any(plan.buddies)):
        return step
    digests = torch.zeros(context.pieces.count, degree + 1, DIGEST_BYTES, dtype=torch.int32)
    worker = generation.worker_id
    places = {piece: plan.owners(piece).index(worker) for piece in plan.pieces_of(worker)}
    places |= dict.fromkeys(plan.replicas_kept_by(worker), degree)
    for piece, place in places.items():
        if context.holdings.state(piece) is not None:
            generation.moved()
            digests[piece, place] = torch.tensor(list(_fast_digest(generation, piece)), dtype=torch.int32)
    generation.world.all_reduce_sum(digests)
    for piece in range(context.pieces.count):
        holders = dict(enumerate(plan.owners(piece))) | {degree: plan.buddies[piece] if plan.buddies else ""}
        rows = [bytes(row) for row in digests[piece].tolist()]
        held = {holder: rows[place] for place, holder in holders.items() if rows[place] != ABSENT}
        if len(set(held.values())) > 1:
            raise _differ(generation, context.pieces.unit_of(piece), held, step, agreed_step)
    return step


def _fast_digest(generation: Generation, piece: int) -> bytes:
    """The digest of a piece's whole state and, in a unit's first piece, of its weights that never learn.

    It is used within the run only, so it need not be the SHA-256 of checkpoints and results.
    """
    context, digest = generation.context, xxhash.xxh3_128()
    table = context.pieces
    unit = context.cut.units[table.unit_of(piece)]
    state = export_piece(table, piece, unit, context.moments)
    if table.place_of(piece) == 0:
        state |= still_weights_of(unit)
    for key in sorted(state):
        digest.update(key.encode())
        digest.update(state[key].cpu().contiguous().view(-1).view(torch.uint8).numpy())
    return digest.digest()


def _differ(generation: Generation, unit: int, held: dict[str, bytes], step: int, agreed_step: int) -> CopiesDiffer:
    digests = list(held.values())
    odd = [holder for holder, digest in held.items() if digests.count(digest) == 1]
    alone = tuple(odd) if len(odd) == 1 and len(held) > 2 else ()
    named = ", ".join(f"{holder} {digest.hex()[:8]}" for holder, digest in held.items())
    name = generation.context.cut.unit_names[unit]
    text = f"after step {step} the copies of unit {unit} ({name}) are not equal: {named}; they were after step {agreed_step}"
    return CopiesDiffer(text, agreed_step + 1, alone, {} if alone else {"holders": " ".join(held)})
