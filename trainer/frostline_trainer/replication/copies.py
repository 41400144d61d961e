"""Compares the copies of each piece, at its owners and at the buddy, before checkpoints and at the end of a run."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
import xxhash
from torch import nn

from frostline_trainer.families.base import still_names
from frostline_trainer.replication.wrong_bits import WrongBits
from frostline_trainer.step.context import RunContext
from frostline_trainer.step.generation import Generation
from frostline_trainer.step.unit_state import UnitState, export_piece, still_weights_of

DIGEST_BYTES = 16
ABSENT = bytes(DIGEST_BYTES)


class CopiesDiffer(WrongBits):
    """Copies of one piece differ in bits.

    workers: the one that differs from all others, if there is exactly one. Without such a worker, `holders` in the detail names
    all that hold a copy, one or more of which have a wrong one.
    """


@dataclass(frozen=True)
class _Copies:
    """The copies of one thing that all its holders have with the same bits.

    Args:
        unit: whose it is.
        holders: worker ids.
        digest: returns the digest of this member's copy; None if it has none now.
    """

    unit: int
    holders: tuple[str, ...]
    digest: Callable[[], bytes | None]


def compare_copies(generation: Generation, step: int, agreed_step: int) -> int:
    """Compare weights and moments of every piece, and weights below adapters, over all members that hold them, by XXH3 digests.
    Collective. Returns `step`.

    Only in exact numerics: with fast ones the library's all-reduce promises no bits. Raises CopiesDiffer, on all members alike.

    agreed_step: the step after which the copies were equal in the last comparison.
    """
    every = [*_of_pieces(generation), *_of_what_never_learns(generation)] if generation.context.exact else []
    most = max((len(one.holders) for one in every), default=0)
    if most < 2:
        return step
    digests, worker = torch.zeros(len(every), most, DIGEST_BYTES, dtype=torch.int32), generation.worker_id
    for row, one in enumerate(every):
        if worker in one.holders and (digest := one.digest()) is not None:
            generation.moved()
            digests[row, one.holders.index(worker)] = torch.tensor(list(digest), dtype=torch.int32)
    generation.world.all_reduce_sum(digests)
    for one, rows in zip(every, digests.tolist(), strict=True):
        held = {holder: bytes(row) for holder, row in zip(one.holders, rows, strict=False) if bytes(row) != ABSENT}
        if len(set(held.values())) > 1:
            raise _differ(generation, one.unit, held, step, agreed_step)
    return step


def _of_pieces(generation: Generation) -> Iterator[_Copies]:
    """Of each piece, at its owners and at its buddy."""
    context, plan, table = generation.context, generation.plan, generation.context.pieces
    for piece in range(table.count):
        buddy = plan.buddies[piece] if plan.buddies else ""
        holders = (*plan.owners(piece), *((buddy,) if buddy else ()))
        yield _Copies(table.unit_of(piece), holders, partial(_digest_of_piece, context, piece))


def _of_what_never_learns(generation: Generation) -> Iterator[_Copies]:
    """Of each unit's weights below adapters, at all members that compute it: they have no owner, and nobody sends them."""
    for number, unit in enumerate(generation.context.cut.units):
        if still_names(unit):
            holders = tuple(generation.placement.owners(number))
            yield _Copies(number, holders, partial(_digest_of_still, unit))


def _digest_of_piece(context: RunContext, piece: int) -> bytes | None:
    if context.holdings.state(piece) is None:
        return None
    table = context.pieces
    return _fast_digest(export_piece(table, piece, context.cut.units[table.unit_of(piece)], context.moments))


def _digest_of_still(unit: nn.Module) -> bytes:
    return _fast_digest(still_weights_of(unit))


def _fast_digest(state: UnitState) -> bytes:
    """The digest of a state. It is used within the run only, so it need not be the SHA-256 of checkpoints and results."""
    digest = xxhash.xxh3_128()
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
