"""One member's computation in a generation: stages, gradient memory, optimizer; rebuilt in place when the freeze point moves.

All of it is a function of (placement, the member's place in it, freeze point).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from frostline_contract.phases import Phase
from frostline_contract.plan import SAMPLE, Plan, StateTag
from frostline_contract.shape import leaf_micro_batches
from frostline_trainer.generations.groups import Groups
from frostline_trainer.memory import forget_peak
from frostline_trainer.prefix.prefix import PrefixReader
from frostline_trainer.replication.audited_step import Auditing
from frostline_trainer.replication.audits import Audit, audit_is_due, audits_of
from frostline_trainer.replication.buddies import UnitReplication, replicas_stay_on_device
from frostline_trainer.step.building import Builder, stage_settings
from frostline_trainer.step.context import RunContext
from frostline_trainer.step.feed import BatchFeed, StepFeed
from frostline_trainer.step.fence import wait_for_device
from frostline_trainer.step.gradients import GradientBuffers
from frostline_trainer.step.in_group import InGroup, Prefix
from frostline_trainer.step.norms import gradient_norms, host_figures, piece_squares
from frostline_trainer.step.optimizer import UnitOptimizer
from frostline_trainer.step.reduction import Reduction
from frostline_trainer.step.stage import Stage, StageSettings
from frostline_trainer.step.tied import stop_frozen_tie
from frostline_trainer.step.tracing import Tracing
from frostline_trainer.step.unit_state import HOST, place_unit
from frostline_trainer.step.weighing import Weighing
from frostline_trainer.step.weight_places import WeightPlaces
from frostline_trainer.tensor.messages import once_a_group

CacheOfScores = Callable[[Any], Any]
"""From a split to the BoundaryCache that its scores read, or to None if they compute the frozen prefix."""


def no_cache(split: Any) -> None:
    """The CacheOfScores by which the scores of every split compute the prefix."""


@dataclass
class StepGradients:
    """A computed, not yet committed step: reduced gradients of the stages that learn, and this member's figures for the vote.

    Attributes:
        totals: By stage, a flat buffer with the gradient, or one that begins with this member's share of the gradient.
        losses: By micro-batch number.
        piece_squares: Squared gradient norm by piece.
        audited: Whether members have recomputed a part of each other's work and got the same bits.
    """

    totals: dict[int, torch.Tensor]
    losses: dict[int, float]
    piece_squares: dict[int, float]
    audited: bool = False


class Generation:
    """A member's part of one plan.

    Args:
        index: Own global rank.
        phase: Called with each phase when it is entered (docs/protocols.md 7.1).
        codec_chain, round_trip: The lossy codec, as in `StageSettings`; () and None for none.
        origin: (step, epoch, offset) of the data at which this generation starts.
        moved: Called whenever a part of a long phase is done.
    """

    def __init__(self, context: RunContext, plan: Plan, index: int, groups: Groups, freeze_point: int,
                 phase: Callable[[Phase], None], codec_chain: tuple[int, ...] = (), round_trip: Any = None,
                 origin: tuple[int, int, int] = (0, 0, 0), moved: Callable[[], None] = lambda: None) -> None:  # fmt: skip
        assert groups.world is not None and groups.transport is not None, "a leaver computes nothing"
        self.context, self.plan, self.placement, self.groups = context, plan, plan.placement, groups
        assert plan.pieces == context.pieces, f"the plan has {plan.pieces}, the job {context.pieces}"
        self.worker_id = plan.placement.workers[index]
        self.shape = plan.placement.shape
        self.in_group = InGroup(context, plan, index, groups)
        self._places = WeightPlaces(context, plan, self.worker_id, self.in_group)
        self.pp_rank, self.dp_rank = self.shape.pp_rank(index), self.shape.dp_rank(index)
        self.world, self.transport = groups.world, once_a_group(groups.transport, groups.tensor)
        self.phase, self.moved = phase, moved
        self.num_microbatches = context.num_microbatches(self.shape.dp_degree)
        self.num_leaves = context.job.training.reduction_leaves
        self._settings = stage_settings(context, plan.prefix_tile == SAMPLE)
        self._index = index
        self._needed, self._speaks_for = plan.needs(self.worker_id), self._covers()
        here, kept_units = plan.placement.units_of(self.worker_id), plan.pieces.units_of(plan.replicas_kept_by(self.worker_id))
        here = [*here, *(kept_units if replicas_stay_on_device(context, plan, kept_units) else ())]
        for unit in sorted(range(context.num_units), key=here.__contains__):  # units that leave the device free memory first
            home = context.device if unit in here else HOST
            place_unit(context.pieces.of_unit(unit), context.cut.units[unit], context.moments, home)
        forget_peak(context.device)
        self.weighing = Weighing(context)
        self.buffers: dict[int, GradientBuffers] = {}
        self.prefix: Prefix | None = None
        self._cache_of_scores: CacheOfScores = no_cache
        self._scored: dict[str, PrefixReader | None] = {}
        self._previous_boundary: int | None = None
        is_traced = self.dp_rank == 0 and self.shape.pp_degree > 1 and self.in_group.speaks
        self.tracing = Tracing(lambda: context.device_clock, str(plan.generation), self.pp_rank, is_traced)
        self.freeze_to(freeze_point, codec_chain, round_trip)
        self.rewind(origin)

    # ---- building

    def freeze_to(self, freeze_point: int, codec_chain: tuple[int, ...] = (), round_trip: Any = None) -> None:
        """Rebuild stages, gradient memory and optimizer for another freeze point; weights and moments stay where they are."""
        context = self.context
        self.give_back()
        self.weighing.begin()
        self.freeze_point = freeze_point
        settings = StageSettings(**{**vars(self._settings), "codec_chain": codec_chain, "round_trip": round_trip})
        self._builder = Builder(context, self.placement, self.transport, freeze_point, settings)
        leaf_sizes = [self._leaf_sizes(replica) for replica in range(self.shape.dp_degree)]
        self._program = self._builder.programs(self.dp_rank, leaf_sizes)[self.pp_rank]
        self.tracing.freeze_to(freeze_point, len(self._program.compute))
        self.evaluation = self._builder.evaluation()[self.pp_rank].compute
        self.stages: dict[int, Stage] = {}
        for number in self.shape.stages_of(self.pp_rank):
            self.stages[number] = self._builder.stage(number)
        self._share_tiles()
        self.in_group.begin()
        self._places.settle(freeze_point, self._units())
        self.buffers = {number: self._builder.buffers(stage) for number, stage in self.stages.items() if not stage.is_frozen}
        self.replication = UnitReplication(context, self.plan, self._index, self.world, freeze_point)
        stop_frozen_tie(context, freeze_point, self.plan.placement.units_of(self.worker_id))
        trainable = [pair for stage in self.stages.values() for pair in stage.trainable()]
        own = self.plan.pieces_of(self.worker_id)
        self.optimizer = UnitOptimizer(context.job.training.optimizer, trainable, context.moments, context.pieces, own)
        self.reduction = Reduction(context, self.plan, self.groups, self.transport, self._index, self.stages, self.buffers,
                                   self._program, freeze_point)  # fmt: skip
        self.reduction.complete(self._units(), everything=True)
        self.pipeline = self._builder.pipeline(self.stages, self.buffers, self.reduction.gathering(trainable))
        self.prefix, self._cache_of_scores, self._scored = None, no_cache, {}

    def _share_tiles(self) -> None:
        self.in_group.share_tiles(unit for stage in self.stages.values() for _, unit in stage.trainable())

    def give_back(self) -> None:
        """Free the gradient memory, between steps, before the next user of the memory allocates its own."""
        for buffers in self.buffers.values():
            buffers.give_back()

    def rewind(self, origin: tuple[int, int, int]) -> None:
        """Start the data at (step, epoch, offset): in a new generation, and after a rollback."""
        self.feed = BatchFeed(self.context, self.shape.dp_degree, origin)
        self._step_feed = StepFeed(self.context, self.feed, self.own_micro_batches(), 0 in self.stages)

    def use_cache(self, cache: Any, previous_boundary: int | None, of_scores: CacheOfScores = no_cache) -> None:
        """Read the frozen prefix through the cache, and scores through theirs, if this member's stage 0 holds all of it."""
        if 0 in self.stages and 0 < self.freeze_point <= self.placement.stage_bounds[1]:
            self._previous_boundary, self._cache_of_scores, self._scored = previous_boundary, of_scores, {}
            self.prefix = self._prefix_of(self.context.data.train, cache)

    def scored_prefix(self, split: Any) -> PrefixReader | None:
        """A reader of the frozen prefix for the scores of a split; None if they compute it."""
        if split.name not in self._scored:
            cache = self._cache_of_scores(split)
            self._scored[split.name] = self._prefix_of(split, cache) if cache is not None else None
        return self._scored[split.name]

    def _prefix_of(self, split: Any, cache: Any) -> PrefixReader:
        return PrefixReader(self.context, self.stages[0], split, cache, self.freeze_point, self._previous_boundary)

    # ---- a step

    def compute(self, step: int) -> StepGradients:
        """Run the schedule and the exchange; the reduced gradients are complete on the device then (protocols.md 2.1, 2.2)."""
        batch = self.feed.batch(step)
        self.weighing.settle(self._units(), self.context.moments, self.context.pieces, self.pipeline.gathered_bytes)
        self.phase(Phase.LOAD)
        self.complete_weights()
        if self.freeze_point and 0 in self.stages:
            self.prefix = self.in_group.dealt(self.prefix, len(self.own_micro_batches()))
        self.replication.expect()
        micro_batches = self._step_feed.micro_batches(batch, self.prefix)
        self.phase(Phase.SCHEDULE)
        audits = self._audits(step)
        audited = next((audit.micro_batch for audit in audits if audit.replica == self.dp_rank), None)
        builder = self._builder
        with self.weighing.part():
            result = self.pipeline.run(
                self._program.compute, micro_batches, step, builder.loss(batch), builder.upstream_learns, audited,
                self.tracing.begin(),
            )  # fmt: skip
        if audits:
            self._fence()
            self.phase(Phase.AUDIT)
            again = builder.recompute(self.pipeline, self.stages, self.feed, batch, self._needed, self.in_group, self.moved)
            try:
                Auditing(self.context, self.plan, self._index, self.world, again).check(step, audits, result.evidence)
            finally:
                self._share_tiles()
        self.phase(Phase.EXCHANGE)
        with self.weighing.part():
            totals = self.reduction.exchange(self.replication.send)
        self.weighing.end()
        self.phase(Phase.NORMS)
        named = self.reduction.named(totals)
        on_host = host_figures([*gradient_norms(named), *(loss.double() for loss in result.losses.values())])
        self._fence()
        self.replication.post()
        figures = on_host.tolist()
        squares = piece_squares(named, figures[: len(named)])
        losses = dict(zip(result.losses, figures[len(named) :], strict=True)) if self.in_group.speaks else {}
        self.replication.collect()
        return StepGradients(totals, losses, squares, audited=bool(audits))

    def complete_weights(self) -> None:
        """Collect the weights that other replicas own, as of the last commit. Collective; before anything is computed."""
        self.reduction.complete(self._units())

    def _fence(self) -> None:
        """Wait until the device has done all its work, and check that no process group has failed."""
        wait_for_device(self.context.trail, self.groups)

    def _audits(self, step: int) -> list[Audit]:
        job = self.context.job
        if not audit_is_due(job.training, step):
            return []
        return audits_of(self.plan, job.seed, step, self.num_microbatches, self.num_leaves)

    def commit(self, gradients: StepGradients, learning_rate: float, gradient_norm: float, tag: StateTag) -> None:
        """Scale, clip, and update own units and unit replicas (unit replicas).

        Their pieces are torn meanwhile, and at `tag` once the device has finished. Pieces that are at `tag` already are not
        updated; pieces that were torn before stay torn. No process group is needed, so a late commit is the same call.
        """
        self.replication.finish_sending()
        whole = self._whole_pieces()
        if any(state == tag for state in whole.values()):
            assert all(state == tag for state in whole.values()), f"some pieces are at {tag} and some are not: {whole}"
            self._end_step(gradients)
            return
        self.context.holdings.tear(piece for piece in whole if self.plan.pieces.unit_of(piece) >= self.freeze_point)
        clip = self.context.job.training.clip_norm
        factor = min(1.0, clip / (gradient_norm + 1e-6)) if clip is not None else 1.0
        if factor < 1.0:
            self.reduction.scale(gradients.totals, factor)
        self.optimizer.step(learning_rate, self.reduction.gradients(gradients.totals))
        self.reduction.outdated()
        self.phase(Phase.UPDATE)
        self.replication.commit(learning_rate, factor)
        wait_for_device(self.context.trail)
        self.context.holdings.settle(whole, tag)
        self._end_step(gradients)

    def refuse(self, gradients: StepGradients, tag: StateTag) -> None:
        """Drop a step's gradients; the pieces stay unchanged and are now at `tag`. No process group is needed."""
        self.replication.finish_sending()
        self.context.holdings.settle(self._whole_pieces(), tag)
        self._end_step(gradients)

    def _whole_pieces(self) -> dict[int, StateTag]:
        """The state of each own piece and unit replica that is intact."""
        states = {piece: self.context.holdings.state(piece) for piece in self._needed}
        return {piece: state for piece, state in states.items() if state is not None}

    def _end_step(self, gradients: StepGradients) -> None:
        for number, total in gradients.totals.items():
            self.buffers[number].release(total)
        self.replication.drop()

    def abandon(self, keep_prepared: bool) -> None:
        """Drop all references to the process groups, so that their sockets close (docs/design.md 12.1).

        keep_prepared: whether to keep a prepared step's reduced gradients, for a late commit.
        """
        self.pipeline.abandon()
        self.context.trail.forget()
        self.replication.abandon(keep_prepared)
        if not keep_prepared:
            self.give_back()
        self.groups.close()

    @property
    def kept(self) -> frozenset[int]:
        """The covered pieces among those whose cover this member reports in the vote."""
        return frozenset(piece for piece in self._speaks_for if self.context.holdings.state(piece) is not None)

    def _covers(self) -> list[int]:
        """Pieces whose cover this member reports: its unit replicas, and as first owner those with owners in two failure domains.

        A plan without buddies says nothing about failure domains: no piece counts as covered.
        """
        plan = self.plan
        own = plan.speaks_for(self.worker_id) if plan.buddies else []
        twice = [piece for piece in own if not plan.buddies[piece] and piece not in plan.uncovered]
        return twice + plan.replicas_kept_by(self.worker_id)

    def close(self) -> None:
        """Close the process groups; stages, gradient memory and optimizer stay as they are."""
        self.groups.close()

    def _units(self) -> list[tuple[int, nn.Module]]:
        return [(stage.first_unit + place, unit) for stage in self.stages.values() for place, unit in enumerate(stage.units)]

    def own_micro_batches(self) -> list[int]:
        """Numbers of the micro-batches that this replica computes."""
        leaves = self.placement.leaves_of(self.dp_rank)
        return [m for leaf in leaves for m in leaf_micro_batches(leaf, self.num_microbatches, self.num_leaves)]

    def _leaf_sizes(self, dp_rank: int) -> tuple[int, ...]:
        """Number of micro-batches in each leaf that a replica sums; all 1 if sums are not exact."""
        leaves = self.placement.leaves_of(dp_rank)
        sizes = tuple(len(leaf_micro_batches(leaf, self.num_microbatches, self.num_leaves)) for leaf in leaves)
        return sizes if self.context.exact else (1,) * sum(sizes)

    def prefetch(self, steps: range) -> None:
        """Prefetch from the cache the samples that these steps will read."""
        for step in steps if self.prefix is not None else ():
            self._step_feed.prefetch(step, self.prefix)
