"""Builds a member's stages, their gradient buffers and the pipeline that runs them, for one placement and freeze point."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from frostline_contract.plan import Placement
from frostline_contract.schedules import schedule_named
from frostline_trainer.prefix.noise import add_feature_noise
from frostline_trainer.replication.audits import Audit
from frostline_trainer.replication.buddies import on_device
from frostline_trainer.replication.evidence import ABSENT, Digest, Evidence
from frostline_trainer.step.cell_pipeline import CellPipeline
from frostline_trainer.step.context import RunContext
from frostline_trainer.step.feed import BatchFeed, StepBatch
from frostline_trainer.step.gathering import Gathering
from frostline_trainer.step.gathering_pipeline import GatheringPipeline
from frostline_trainer.step.gradients import GradientBuffers
from frostline_trainer.step.in_group import InGroup
from frostline_trainer.step.pipeline import EnterBoundary, Loss, Pipeline
from frostline_trainer.step.program_check import checked_gathers, checked_programs
from frostline_trainer.step.programs import Program, StepShape
from frostline_trainer.step.stage import Stage, StageSettings
from frostline_trainer.step.tied import learning, stop_frozen_tie, tie_learns
from frostline_trainer.transport.transport import Transport


def stage_settings(context: RunContext, one_sample_tiles: bool = False) -> StageSettings:
    """The numerics that all stages of a run share, without a lossy codec, which is added at each freeze point."""
    training = context.job.training
    return StageSettings(
        seed=context.job.seed,
        dropout=context.dropout,
        checkpointing=training.activation_checkpointing,
        precision=context.precision,
        num_units=context.num_units,
        device=context.device,
        one_sample_tiles=one_sample_tiles,
        chunk_tokens=training.loss_chunk_tokens,
        tiled_logits=context.job.tiled_ends[1],
        compiled=training.compile,
    )


class Builder:
    """Builds the stages and gradient buffers of a member for a placement.

    transport: carries the messages of the replica's members.
    """

    def __init__(
        self, context: RunContext, placement: Placement, transport: Transport, freeze_point: int, settings: StageSettings
    ) -> None:
        self._context, self._placement, self._transport = context, placement, transport
        self._freeze_point, self._settings = freeze_point, settings

    def stage(self, number: int) -> Stage:
        """Make the stage and set its units frozen or learning. After all stages are made, the caller calls `stop_frozen_tie`."""
        units = self._placement.units_of_stage(number)
        return Stage([self._context.cut.units[unit] for unit in units], units.start, self._freeze_point, self._settings)

    def buffers(self, stage: Stage) -> GradientBuffers:
        """Gradient buffers for the trainable parameters of a stage, sized for this placement's replicas."""
        context, degree = self._context, self._placement.dp_degree
        groups = [(unit, [p for _, p in learning(context, self._freeze_point, unit)]) for unit, _ in stage.trainable()]
        leaves = context.job.training.reduction_leaves
        return GradientBuffers(groups, context.num_microbatches(degree), leaves, context.exact, degree, bool(context.grid))

    def pipeline(self, stages: dict[int, Stage], buffers: dict[int, GradientBuffers],
                 gathering: Gathering | None = None) -> Pipeline:  # fmt: skip
        """The pipeline that runs these stages: over cells of tokens if the job sets `training.token_cells`.

        gathering: of units whose weights are gathered at each use; None: all units are whole.
        """
        context, last = self._context, self._placement.shape.num_stages - 1
        parts = (stages, buffers, last, self._transport, context.hidden_like(), self._boundary_noise(), context.plug)
        if gathering is not None:
            return GatheringPipeline(gathering, *parts)
        return CellPipeline(context.grid, self._placement.slices, *parts) if context.grid else Pipeline(*parts)

    def _boundary_noise(self) -> EnterBoundary | None:
        section = self._context.job.data.augmentation
        if section.mode != "pointwise-feature":
            return None
        seed, scale = self._context.job.seed, section.feature_noise
        return lambda hidden, samples, step: add_feature_noise(hidden, samples, step, seed, scale)

    def loss(self, batch: StepBatch) -> Loss:
        """The loss function of a micro-batch, as its share of the loss of the whole batch."""
        task = self._context.task
        return lambda logits, inputs: task.loss(logits, inputs, batch.counts)

    def programs(self, dp_rank: int, leaf_sizes: Sequence[tuple[int, ...]]) -> list[Program]:
        """A replica's checked programs of a step, by pipeline rank. Raises ValueError for a schedule that is not sound.

        leaf_sizes: by replica, the micro-batches of each leaf that it sums.
        """
        shape, bounds = self._placement.shape, self._placement.stage_bounds
        first_learning = sum(bound <= self._freeze_point for bound in bounds[1:])
        tied = tie_learns(self._context, self._freeze_point)
        slices = len(self._placement.slices) or 1
        own, schedule = leaf_sizes[dp_rank], schedule_named(self._placement.schedule)
        step = StepShape(
            shape.pp_degree, shape.virtual_stages, sum(own), first_learning, tied, slices=slices, folded=shape.folded
        )
        if self._placement.gathers_at_use:
            return checked_gathers(schedule, replace(step, num_microbatches=0), tuple(leaf_sizes))[dp_rank]
        return checked_programs(schedule, step, own)

    def evaluation(self) -> list[Program]:
        """The programs of one tile's forward, by pipeline rank."""
        shape = self._placement.shape
        step = StepShape(shape.pp_degree, shape.virtual_stages, num_microbatches=1, forward_only=True, folded=shape.folded)
        return checked_programs(schedule_named(self._placement.schedule if shape.folded else "gpipe"), step, ())

    def upstream_learns(self, stage_number: int) -> bool:
        """Whether any unit before this stage is trainable."""
        return stage_number > 0 and self._freeze_point < self._placement.stage_bounds[stage_number]

    def recompute(self, own: Pipeline, own_stages: dict[int, Stage], feed: BatchFeed, batch: StepBatch, needed: Collection[int],
                  in_group: InGroup, moved: Callable[[], None]) -> Callable[[Audit, Evidence], Digest]:  # fmt: skip
        """The audit function: recomputes a micro-batch through a stage that this member holds, as a replica or as a buddy.

        After a call the units of the stage may compute other tiles; the caller shares the tiles out again.

        Args:
            own, own_stages: This member's pipeline and stages; of other stages it keeps the units as their buddy.
            feed, batch: The step's samples.
            needed: The pieces whose state this member holds.
            in_group: Lets the units compute in the audited member's place.
            moved: Called when a part of the audit is done.
        """

        def compute(audit: Audit, evidence: Evidence) -> Digest:
            number, units = audit.stage, self._placement.units_of_stage(audit.stage)
            moved()
            held = [piece for piece in self._context.pieces.of_units(units) if piece in needed]
            is_torn = any(self._context.holdings.state(piece) is None for piece in held)
            if is_torn and not (self._placement.gathers_at_use or self._placement.divides_tiles):
                return ABSENT
            micro_batch = feed.micro_batch(batch, audit.micro_batch, samples=number == 0 and evidence.entry is None)
            micro_batch.boundary = evidence.entry if number == 0 else None
            arguments = (number, micro_batch, evidence, batch.step, self.loss(batch), self.upstream_learns(number))
            place, modules = self._placement.shape.tp_rank(audit.owner), [self._context.cut.units[unit] for unit in units]
            if number in own_stages:
                with in_group.in_place_of(place, modules):
                    digest = own.recompute(*arguments)  # also with torn pieces: others wait for this member's gathers and sums
                return ABSENT if is_torn else digest
            with on_device(self._context, list(units)), in_group.in_place_of(place, modules):
                stage = self.stage(number)
                stop_frozen_tie(self._context, self._freeze_point, units)
                buffers = {} if stage.is_frozen else {number: self.buffers(stage)}
                return self.pipeline({number: stage}, buffers).recompute(*arguments)

        return compute
