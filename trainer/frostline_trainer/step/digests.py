"""SHA-256 digests of the model's units: of the initial weights, and of the final state of a run (docs/protocols.md 1.10)."""

from concurrent.futures import ThreadPoolExecutor

import torch

from frostline_trainer.step.context import RunContext
from frostline_trainer.step.generation import Generation
from frostline_trainer.step.unit_state import (
    digest_of_pieces,
    export_piece,
    export_unit,
    run_digest,
    still_weights_of,
    unit_digest,
)


def tied_names(context: RunContext) -> dict[int, frozenset[str]]:
    """By unit, names of parameters that its digest leaves out: a tied matrix counts once, in unit 0."""
    tied = context.cut.tied
    return {context.num_units - 1: frozenset({tied[1]})} if tied is not None else {}


def weights_digest(context: RunContext) -> str:
    """SHA-256 of the units' current weights, without moments; before the first step it identifies the run's initial weights.

    It covers whole units, with the weights that never learn, so it does not depend on the number of pieces. Units are hashed in
    parallel, on the threads that the job gives a worker.
    """

    def digest_of(unit: int) -> bytes:
        module = context.cut.units[unit]
        weights = export_unit(unit, module, {}) | still_weights_of(module)
        return unit_digest(weights, tied_names(context).get(unit, frozenset()))

    with ThreadPoolExecutor(max_workers=context.job.training.threads) as threads:
        return run_digest(list(threads.map(digest_of, range(context.num_units))))


def world_digest(generation: Generation) -> str:
    """The run's digest, agreed by all members: each piece's first owner contributes its SHA-256."""
    context, table, plan = generation.context, generation.context.pieces, generation.plan
    digests = torch.zeros(table.count, 32, dtype=torch.int32)
    for piece in plan.speaks_for(generation.worker_id):
        generation.moved()
        unit = table.unit_of(piece)
        state = export_piece(table, piece, context.cut.units[unit], context.moments)
        raw = unit_digest(state, tied_names(context).get(unit, frozenset()))
        digests[piece] = torch.tensor(list(raw), dtype=torch.int32)
    generation.world.all_reduce_sum(digests)
    return digest_of_pieces(table, [bytes(row) for row in digests.tolist()])
