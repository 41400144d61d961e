"""Entering a generation: a worker gets its state as the plan says, then builds its stages over the prepared groups."""

import logging
from dataclasses import dataclass
from pathlib import Path

from frostline_contract.plan import CONTINUE, FRESH, SURVIVORS, Plan
from frostline_contract.usage import Way
from frostline_trainer.checkpoints.reading import read_manifest, refuse_other_data
from frostline_trainer.checkpoints.restoring import restore_pieces
from frostline_trainer.generations.groups import Groups
from frostline_trainer.generations.moves import move_pieces
from frostline_trainer.generations.recovering import Recovery
from frostline_trainer.model import build_cut_model
from frostline_trainer.prefix.cache_use import CacheUse
from frostline_trainer.process.device_facts import host_identity
from frostline_trainer.step.context import RunContext
from frostline_trainer.step.device_clock import quota_clock_of
from frostline_trainer.step.digests import weights_digest
from frostline_trainer.step.generation import Generation
from frostline_trainer.step.link import Endpoint, Links, measure_links
from frostline_trainer.step.phases import PhaseClock
from frostline_trainer.step.run_state import RunState
from frostline_trainer.step.unit_state import reset_unit
from frostline_trainer.transport.collectives import Group, broadcast_bytes

log = logging.getLogger(__name__)


@dataclass
class Entered:
    """A generation of which this worker is a member.

    Attributes:
        index: the worker's global rank.
        link: the worker's measured links.
    """

    plan: Plan
    index: int
    generation: Generation
    link: Links

    @property
    def is_sender(self) -> bool:
        """Whether this member sends the records and statistics to the controller; all members have the same ones."""
        return self.index == 0


class Entrance:
    """Prepares this worker's state and stages for one plan after the other."""

    def __init__(self, worker_id: str, context: RunContext, state: RunState, checkpoint_root: Path) -> None:
        self._worker_id, self._context, self._state, self._root = worker_id, context, state, checkpoint_root
        self._is_initial = True

    def enter(self, plan: Plan, groups: Groups, recovery: Recovery, clock: PhaseClock, caching: CacheUse) -> Entered | None:
        """Bring this worker's state to the plan's start, and build its generation. None for a leaver, which only sends state.

        Each piece has its correct state tag at any moment.

        Args:
            plan: the plan to enter.
            groups: the process groups that were formed for the plan.
            recovery: this worker's votes, with the step that it may still commit.
            clock: the phase clock.
            caching: connects the generation to the cache.

        Raises:
            RuntimeError: a participant is lost meanwhile.
        """
        self._drop_unnamed(plan)
        if plan.start in (CONTINUE, SURVIVORS):
            recovery.commit_late(plan)
            recovery.entering(plan)
            with groups.moving.tally.carrying(Way.MOVES):
                self._share_state(plan, groups.moving)
                move_pieces(self._context, plan, self._worker_id, groups.moving, self._state.tag)
            self._enter_lineage(plan)
        else:
            recovery.entering(plan)
            self._restart(plan)
        self._is_initial = False
        if groups.world is None:
            return None
        self.extend_chain(self._state.freeze_point)
        generation = Generation(
            self._context,
            plan,
            plan.placement.global_ranks[self._worker_id],
            groups,
            self._state.freeze_point,
            clock.enter,
            tuple(self._state.codec_chain),
            caching.round_trip,
            self._state.data_origin,
            clock.moved,
        )
        caching.connect(generation, self._state)
        fresh = plan.start not in (CONTINUE, SURVIVORS)
        return Entered(plan, groups.world.index, generation, self._links(plan, groups) if fresh else Links())

    def _links(self, plan: Plan, groups: Groups) -> Links:
        context = self._context
        clock = quota_clock_of(context.job, context.device) or context.device_clock
        here = Endpoint(host_identity(), context.device, clock)
        with context.traffic.aside():
            return measure_links(groups, plan.placement.shape.mesh, here)

    def extend_chain(self, freeze_point: int) -> None:
        """Append a freeze point to the chain of boundaries at which values pass through the codec (docs/protocols.md 1.6)."""
        state = self._state
        state.codec_chain = [point for point in state.codec_chain if point < freeze_point]
        if freeze_point > 0:
            state.codec_chain.append(freeze_point)

    def _drop_unnamed(self, plan: Plan) -> None:
        """Drop the pieces of which the plan does not name this worker as a holder (docs/protocols.md 4.4)."""
        holdings = self._context.holdings
        holdings.drop([piece for piece in holdings.all() if piece not in plan.held_by(self._worker_id)])

    def _share_state(self, plan: Plan, moving: Group) -> None:
        """Take the run state of the plan's `state_source`, a participant that is at the plan's start; it sends its own."""
        state, root = self._state, plan.places[plan.state_source]
        if moving.index == root:
            assert plan.start_tag in (None, state.tag), f"the plan starts from {plan.start_tag}, its state source has {state.tag}"
            broadcast_bytes(moving, state.to_json(), root)
        else:
            state.take(RunState.model_validate_json(broadcast_bytes(moving, b"", root)), keep_unacknowledged=False)

    def _enter_lineage(self, plan: Plan) -> None:
        """Enter the plan's lineage, if the plan begins a new one. State tags do not change."""
        if plan.lineage > self._state.lineage:
            self._state.enter_lineage(plan.lineage)

    def _restart(self, plan: Plan) -> None:
        """Initialize the weights, or load the pieces that this worker needs from the plan's checkpoint."""
        context, state = self._context, self._state
        context.holdings.drop(range(context.pieces.count))
        context.moments.clear()
        restored = self._initialize(plan) if plan.start == FRESH else self._load(plan)
        restored.mark_restored(plan.generation)
        state.take(restored, keep_unacknowledged=False)
        context.holdings.settle(plan.needs(self._worker_id), state.tag)

    def _initialize(self, plan: Plan) -> RunState:
        """Give the model its initial weights, unless it still has them."""
        if not self._is_initial:
            self._reset_weights()
        return RunState(lineage=plan.lineage, freeze_point=plan.freeze_point)

    def _reset_weights(self) -> None:
        """Give all weights their initial values, also those that never learn. Raises ValueError if their source has changed."""
        drawn = build_cut_model(self._context.job, self._context.data.sizes)
        for unit, fresh in zip(self._context.cut.units, drawn.units, strict=True):
            reset_unit(unit, fresh)
        now, before = weights_digest(self._context), self._context.weights_digest
        if now != before:
            raise ValueError(
                f"initial weights are {now[:12]!r} and were {before[:12]!r} when this worker started; "
                "put the files back that model.path named, or set model.revision to a commit"
            )

    def _load(self, plan: Plan) -> RunState:
        """Load the plan's checkpoint. Weights below adapters are in no checkpoint; they are read from their source again, in case
        they had wrong bits."""
        folder, context = self._root / plan.checkpoint_path, self._context
        if context.cut.adapted is not None and not self._is_initial:
            self._reset_weights()
        manifest = read_manifest(folder)
        refuse_other_data(folder, manifest, context.data.digest)
        restore_pieces(context, context.moments, folder, manifest, plan.needs(self._worker_id))
        restored = RunState.model_validate(manifest["state"])
        restored.enter_lineage(plan.lineage)
        if plan.decision_number > restored.decision_number:
            # The plan names the decision in force at its first step, for example a rollback to this very step.
            restored.adopt_by_plan(plan)
        return restored
