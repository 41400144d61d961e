"""Functions that warm workers run to commit late: the vote has passed, the groups are gone, and the update is still missing."""

from typing import Any

from frostline_contract.learning_rate import learning_rate
from frostline_contract.plan import Plan, StateTag
from frostline_trainer.step.generation import Generation
from frostline_trainer.step.unit_state import export_unit, unit_digest
from frostline_trainer.step.vote import Ballot, hold_vote, read_vote
from tests.engine_member import Run, enter, store_port, train_step, units_needed
from tests.exact_cases import Case, build_case


def commit_late(case: Case, worker_id: str, plan: dict[str, Any], torn: tuple[int, ...] = ()) -> dict[str, Any]:
    """Train all but the case's last step; for the last step see the vote, drop the groups, and only then commit, twice.

    torn: pieces that this member has lost before it commits. Returns digests by unit after the ordinary steps ("before"), after
    the late commit and after the second commit; the pieces at the last step's tag ("whole"); and whether gradients are left.
    """
    store_port()
    context, run, entered = build_case(case), Run(), Plan.model_validate(plan)
    generation = enter(context, case, entered, worker_id, 0, run, "")
    assert generation is not None
    for step in range(1, case.steps):
        train_step(generation, case, step, run)
    before = digests(generation)
    gradients = generation.compute(case.steps)
    ballot = Ballot(gradients.piece_squares, gradients.losses, kept=generation.kept)
    slots = hold_vote(generation.world, ballot, context.pieces, generation.num_microbatches).slots
    generation.abandon(keep_prepared=True)
    context.holdings.tear(torn)
    result = read_vote(slots, context.pieces, generation.num_microbatches)
    training = context.job.training
    rate = learning_rate(training.optimizer, training.schedule, case.steps, case.steps)
    tag = StateTag(lineage=0, step=case.steps, generation=entered.generation)
    generation.commit(gradients, rate, result.gradient_norm, tag)
    once = digests(generation)
    generation.commit(gradients, rate, result.gradient_norm, tag)
    left = [unit for unit in once for p in context.cut.units[unit].parameters() if p.grad is not None]
    whole = sorted(piece for piece, state in context.holdings.all().items() if state == tag)
    return {"before": before, "once": once, "twice": digests(generation), "whole": whole, "left": left}


def digests(generation: Generation) -> dict[int, str]:
    """Return the digest of every unit that this member owns or keeps."""
    context = generation.context
    return {
        unit: unit_digest(export_unit(unit, context.cut.units[unit], context.moments)).hex() for unit in units_needed(generation)
    }


def drop_prepared(case: Case, worker_id: str, plan: dict[str, Any]) -> list[int]:
    """Compute a step and abandon it for good. Returns the units with a gradient left."""
    store_port()
    context = build_case(case)
    generation = enter(context, case, Plan.model_validate(plan), worker_id, 0, Run(), "")
    assert generation is not None
    generation.compute(1)
    generation.abandon(keep_prepared=False)
    return [unit for unit, module in enumerate(context.cut.units) for p in module.parameters() if p.grad is not None]
