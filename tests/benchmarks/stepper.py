"""A generation run step by step as the training loop runs it: compute, vote, commit, with the phases' clock."""

import time

from frostline_contract.plan import GenerationId, Plan, StateTag
from frostline_trainer.generations.groups import Groups, lone_groups
from frostline_trainer.step.context import RunContext
from frostline_trainer.step.generation import Generation
from frostline_trainer.step.phases import PhaseClock
from frostline_trainer.step.vote import Ballot, hold_vote
from tests.benchmarks.subjects import placement_of

LEARNING_RATE = 1e-5
"""The learning rate, small and constant: the weights must stay finite over thousands of steps; their values change no time."""


class Stepper:
    """One member of a plan; without one, the only worker of its context's own. parts: seconds of the last step by phase."""

    def __init__(self, context: RunContext, plan: Plan | None = None, index: int = 0, groups: Groups | None = None,
                 freeze_point: int = 0) -> None:  # fmt: skip
        self.clock = PhaseClock()
        self.parts: dict[str, float] = {}
        plan = plan or Plan(
            generation=GenerationId(incarnation=1, counter=0),
            lineage=0,
            start="fresh",
            freeze_point=freeze_point,
            placement=placement_of(1, 1, context.num_units, int(context.job.training.reduction_leaves)),
            state_ranges=context.pieces.ranges,
            state_tiles=context.pieces.state_tiles,
            hidden_tiles=context.pieces.hidden,
        )
        if plan.start != "continue":
            fresh = StateTag(lineage=0, step=0, generation=plan.generation)
            context.holdings.settle(plan.needs(plan.placement.workers[index]), fresh)
        self.generation = Generation(context, plan, index, groups or lone_groups(), freeze_point, self.clock.enter)
        self.step_number = 0
        self.seconds = 0.0

    def step(self) -> float:
        """Take one step on the next batch. Returns its loss."""
        generation = self.generation
        self.step_number += 1
        started = time.perf_counter()
        gradients = generation.compute(self.step_number)
        self.clock.enter("vote")
        ballot = Ballot(gradients.piece_squares, gradients.losses, kept=generation.kept)
        result = hold_vote(generation.world, ballot, generation.context.pieces, generation.num_microbatches)
        self.clock.enter("commit")
        tag = StateTag(lineage=0, step=self.step_number, generation=generation.plan.generation)
        generation.commit(gradients, LEARNING_RATE, result.gradient_norm, tag)
        self.clock.enter("between")
        self.seconds = time.perf_counter() - started
        self.parts = self.clock.take_parts()
        self.parts.pop("between", None)
        return result.loss
