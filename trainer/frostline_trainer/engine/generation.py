"""What a member computes in one generation: stages, gradient memory, optimizer; rebuilt in place when the freeze point moves.

Everything here is a function of (placement, own place in it, freeze point); nothing asks "am I rank 0" in two places.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from frostline_contract.plan import Plan, StateTag
from frostline_contract.shape import leaf_micro_batches
from frostline_trainer.engine.context import RunContext
from frostline_trainer.engine.exchange import reduce_gradients
from frostline_trainer.engine.feed import BatchFeed, StepBatch
from frostline_trainer.engine.gradients import GradientBuffers
from frostline_trainer.engine.groups import Groups
from frostline_trainer.engine.noise import add_feature_noise
from frostline_trainer.engine.optimizer import UnitOptimizer
from frostline_trainer.engine.pipeline import EnterBoundary, MicroBatch, Pipeline
from frostline_trainer.engine.prefix import PrefixReader
from frostline_trainer.engine.schedules import SCHEDULES, check_schedule, schedule_named
from frostline_trainer.engine.stage import Stage, StageSettings


@dataclass
class StepGradients:
    """A computed, not yet committed step: the reduced gradient of each stage that learns, and what this member tells the vote."""

    totals: dict[int, torch.Tensor]
    losses: dict[int, float]
    unit_squares: dict[int, float]


class Generation:
    """A member's part of one plan.

    index: own global rank. phase: called with the name of each phase as it is entered (PROTOCOLS 7).
    codec_chain, round_trip: the lossy codec's part of the function, () and None where there is none.
    origin: (step, epoch, offset) of the data where this generation starts.
    """

    def __init__(self, context: RunContext, plan: Plan, index: int, groups: Groups, freeze_point: int,
                 phase: Callable[[str], None], codec_chain: tuple[int, ...] = (), round_trip: Any = None,
                 origin: tuple[int, int, int] = (0, 0, 0)) -> None:  # fmt: skip
        assert groups.world is not None and groups.row is not None and groups.column is not None
        self.context, self.plan, self.placement, self.groups = context, plan, plan.placement, groups
        self.worker_id = plan.placement.workers[index]
        self.shape = plan.placement.shape
        self.pp_rank, self.dp_rank = self.shape.pp_rank(index), self.shape.dp_rank(index)
        self.world, self.row, self.column = groups.world, groups.row, groups.column
        self.phase = phase
        self.num_microbatches = context.num_microbatches(self.shape.dp_degree)
        self.num_leaves = context.job.training.reduction_leaves
        self.feed = BatchFeed(context, self.shape.dp_degree, origin)
        self._schedule = schedule_named(self.placement.schedule)
        if self.placement.schedule not in SCHEDULES:
            # A user's own schedule that would wait for ever is refused here, not found out by waiting.
            check_schedule(self._schedule, self.shape.pp_degree, self.shape.virtual_stages, len(self.own_micro_batches()))
        self._settings = StageSettings(
            seed=context.job.seed,
            dropout=context.dropout,
            checkpointing=context.job.training.activation_checkpointing,
            autocast=context.job.training.precision == "mixed_bfloat16",
            device_type=context.device.type,
        )
        self._needed = plan.needs(self.worker_id)
        self._place_units()
        self.prefix: PrefixReader | None = None
        self.freeze_to(freeze_point, codec_chain, round_trip)

    # ---- building

    def freeze_to(self, freeze_point: int, codec_chain: tuple[int, ...] = (), round_trip: Any = None) -> None:
        """Rebuild stages, gradient memory and optimizer for another freeze point; weights and moments stay where they are."""
        context = self.context
        self.freeze_point = freeze_point
        settings = StageSettings(**{**vars(self._settings), "codec_chain": codec_chain, "round_trip": round_trip})
        self.stages: dict[int, Stage] = {}
        self.buffers: dict[int, GradientBuffers] = {}
        for number in self.shape.stages_of(self.pp_rank):
            units = self.placement.units_of_stage(number)
            stage = Stage([context.cut.units[unit] for unit in units], units.start, freeze_point, settings)
            self.stages[number] = stage
            if not stage.is_frozen:
                self.buffers[number] = self._gradient_buffers(stage)
        self._freeze_tied()
        trainable = [pair for stage in self.stages.values() for pair in stage.trainable()]
        self.optimizer = UnitOptimizer(context.job.training.optimizer, trainable, context.moments)
        self.pipeline = Pipeline(
            self.stages, self.buffers, self.shape.num_stages, self.row, context.hidden_like(), self._boundary_noise()
        )
        self.prefix = None

    def _boundary_noise(self) -> EnterBoundary | None:
        section = self.context.job.data.augmentation
        if section.mode != "pointwise-feature":
            return None
        seed, scale = self.context.job.seed, section.feature_noise
        return lambda hidden, samples, step: add_feature_noise(hidden, samples, step, seed, scale)

    def rewind(self, origin: tuple[int, int, int]) -> None:
        """After a rollback the data starts again at (step, epoch, offset)."""
        self.feed = BatchFeed(self.context, self.shape.dp_degree, origin)

    def use_cache(self, cache: Any, previous_boundary: int | None) -> None:
        """Read the frozen prefix through the cache: only where stage 0 holds all of it."""
        stage = self.stages.get(0)
        if stage is not None and 0 < self.freeze_point <= self.placement.stage_bounds[1]:
            data = self.context.data
            self.prefix = PrefixReader(self.context, stage, data.train, cache, self.freeze_point, previous_boundary)

    def _place_units(self) -> None:
        """Own units on the device, the others in host memory."""
        own = {unit for number in self.shape.stages_of(self.pp_rank) for unit in self.placement.units_of_stage(number)}
        if self.context.device.type != "cpu":
            for index, unit in enumerate(self.context.cut.units):
                unit.to(self.context.device if index in own else "cpu")

    def _gradient_buffers(self, stage: Stage) -> GradientBuffers:
        groups = [(unit, [p for _, p in self._learning(unit, module)]) for unit, module in stage.trainable()]
        return GradientBuffers(groups, self.num_microbatches, self.num_leaves, self.context.exact)

    def _learning(self, unit: int, module: torch.nn.Module) -> list[tuple[str, torch.nn.Parameter]]:
        return [(name, p) for name, p in module.named_parameters() if p.requires_grad and not self._is_frozen_tie(unit, name)]

    # ---- tied embeddings

    @property
    def _tie_learns(self) -> bool:
        return self.context.cut.tied is not None and self.freeze_point == 0

    def _is_frozen_tie(self, unit: int, name: str) -> bool:
        """The head's copy of a tied matrix stops with the embedding (unless untied when it freezes)."""
        tied = self.context.cut.tied
        last = self.context.num_units - 1
        frozen = self.freeze_point > 0 and not self.context.job.model.untie_on_freeze
        return tied is not None and unit == last and name == tied[1] and frozen

    def _freeze_tied(self) -> None:
        last_stage = self.stages.get(self.shape.num_stages - 1)
        if last_stage is None or last_stage.is_frozen:
            return
        for name, parameter in last_stage.units[-1].named_parameters():
            if self._is_frozen_tie(self.context.num_units - 1, name):
                parameter.requires_grad_(False)

    def _exchange_tied(self) -> None:
        """Each use of a tied matrix was summed over its own tree; now both copies get the sum of the two."""
        tied = self.context.cut.tied
        first, last = self.stages.get(0), self.stages.get(self.shape.num_stages - 1)
        if not self._tie_learns or tied is None or (first is None and last is None):
            return
        mine = [dict(first.units[0].named_parameters())[tied[0]].grad] if first is not None else []
        mine += [dict(last.units[-1].named_parameters())[tied[1]].grad] if last is not None else []
        if first is not None and last is not None:
            total = mine[0] + mine[1]
        else:
            peer = (self.shape.num_stages - 1) % self.shape.pp_degree if first is not None else 0
            total = torch.empty_like(mine[0])
            tag = 2 * self.shape.num_stages * self.num_microbatches + 1
            sent = self.row.send(mine[0], peer, tag)
            self.row.receive(total, peer, tag)
            sent.wait()
            total += mine[0]
        for gradient in mine:
            gradient.copy_(total)

    # ---- a step

    def compute(self, step: int) -> StepGradients:
        """Schedule and exchange: afterwards the reduced gradients are complete on the device (PROTOCOLS 2, 1.)."""
        batch = self.feed.batch(step)
        self.phase("load")
        micro_batches = self._micro_batches(batch)
        self.phase("schedule")
        actions = self._schedule(self.pp_rank, self.shape.pp_degree, self.shape.virtual_stages, len(micro_batches))
        task, counts = self.context.task, batch.counts
        result = self.pipeline.run(
            actions, micro_batches, step, lambda logits, inputs: task.loss(logits, inputs, counts), self._upstream_learns
        )
        self.phase("exchange")
        totals = {number: self._reduce(buffers) for number, buffers in self.buffers.items()}
        self._exchange_tied()
        self.phase("norms")
        losses = {number: float(loss.double()) for number, loss in result.losses.items()}
        return StepGradients(totals, losses, self._unit_squares() if self.dp_rank == 0 else {})

    def commit(self, gradients: StepGradients, learning_rate: float, gradient_norm: float, tag: StateTag) -> None:
        """Scale, clip, update own units and wards; they are torn meanwhile, and at `tag` once the device has finished.

        It needs no group: a late commit, after a failure, is the same call.
        """
        holdings = self.context.holdings
        holdings.tear(unit for unit in self._needed if unit >= self.freeze_point)
        clip = self.context.job.training.clip_norm
        factor = min(1.0, clip / (gradient_norm + 1e-6)) if clip is not None else 1.0
        if factor < 1.0:
            for total in gradients.totals.values():
                total.mul_(factor)
        self.optimizer.step(learning_rate)
        if self.context.device.type == "cuda":
            torch.cuda.synchronize(self.context.device)
        self.refuse(gradients, tag)

    def refuse(self, gradients: StepGradients, tag: StateTag) -> None:
        """Drop a step's gradients; the units go on unchanged, at `tag`."""
        for number, total in gradients.totals.items():
            self.buffers[number].release(total)
        self.context.holdings.settle(self._needed, tag)

    def abandon(self, keep_prepared: bool) -> None:
        """Drop everything that refers to the groups, so that their sockets close (facts/torch.md, Failure).

        keep_prepared: the reduced gradients of a prepared step stay, for a late commit.
        """
        self.pipeline.abandon()
        if not keep_prepared:
            for buffers in self.buffers.values():
                buffers.abandon()
        self.groups.close()

    @property
    def kept(self) -> frozenset[int]:
        """For the vote: units for whose cover this member speaks, and which are covered.

        Its wards, and units with owners in two failure domains where it is the owner in replica 0.
        """
        plan, holdings = self.plan, self.context.holdings
        if not plan.buddies:
            return frozenset()
        own = plan.placement.units_of(self.worker_id) if self.dp_rank == 0 else []
        twice = [unit for unit in own if not plan.buddies[unit] and unit not in plan.uncovered]
        return frozenset(unit for unit in (*twice, *plan.wards_of(self.worker_id)) if holdings.state(unit) is not None)

    def close(self) -> None:
        self.groups.close()

    def _reduce(self, buffers: GradientBuffers) -> torch.Tensor:
        total = reduce_gradients(buffers, self.column, self.placement.leaf_bounds, self.num_leaves, self.context.exact)
        buffers.adopt(total)
        return total

    def _unit_squares(self) -> dict[int, float]:
        """Squared L2 norm of each unit's reduced gradient: one foreach pass, squares added in parameter order in float64."""
        named = [
            (unit, parameter.grad)
            for stage in self.stages.values()
            for unit, module in stage.trainable()
            for name, parameter in self._learning(unit, module)
            if not (self._tie_learns and unit == self.context.num_units - 1 and name == self.context.cut.tied[1])
        ]
        if not named:
            return {}
        norms = torch.stack(torch._foreach_norm([gradient for _, gradient in named], 2, torch.float64)).tolist()
        squares: dict[int, float] = {}
        for (unit, _), norm in zip(named, norms, strict=True):
            squares[unit] = squares.get(unit, 0.0) + norm * norm
        return {unit: square if math.isfinite(square) else math.inf for unit, square in squares.items()}

    def _upstream_learns(self, stage_number: int) -> bool:
        return stage_number > 0 and self.freeze_point < self.placement.stage_bounds[stage_number]

    def own_micro_batches(self) -> list[int]:
        """Numbers of the micro-batches that this replica computes."""
        leaves = self.placement.leaves_of(self.dp_rank)
        return [m for leaf in leaves for m in leaf_micro_batches(leaf, self.num_microbatches, self.num_leaves)]

    def _micro_batches(self, batch: StepBatch) -> list[MicroBatch]:
        numbers = self.own_micro_batches()
        cached = self.prefix is not None and not self.prefix.audit_failed
        micro_batches = [self.feed.micro_batch(batch, number, 0 in self.stages and not cached) for number in numbers]
        if cached:
            assert self.prefix is not None
            rows = slice(self.feed.rows_of(numbers[0]).start, self.feed.rows_of(numbers[-1]).stop)
            samples, variants = batch.indices[rows], batch.variants[rows]
            boundary = self.prefix.rows(samples, variants)
            self.prefix.audit(samples, variants, boundary, batch.step)
            size = self.context.micro_batch_size
            for place, micro_batch in enumerate(micro_batches):
                micro_batch.boundary = boundary[place * size : (place + 1) * size]
        return micro_batches

    def prefetch(self, steps: range) -> None:
        """Tell the cache which samples coming steps will read."""
        if self.prefix is None:
            return
        numbers = self.own_micro_batches()
        for step in steps:
            batch = self.feed.batch(step)
            rows = slice(self.feed.rows_of(numbers[0]).start, self.feed.rows_of(numbers[-1]).stop)
            self.prefix.prefetch(batch.indices[rows], batch.variants[rows])
