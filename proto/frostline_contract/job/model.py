"""The whole job file."""

from pathlib import Path

from pydantic import model_validator

from frostline_contract.intervals import check_lag
from frostline_contract.job.adapters import blocks_with_adapters
from frostline_contract.job.cluster import (
    FAULTS_OF_A_SERVICE,
    CacheSection,
    ClusterSection,
    ControllerSection,
    Fault,
    PlacementSection,
    ScheduledReshape,
)
from frostline_contract.job.data import DataSection, ModelSection, TaskSection
from frostline_contract.job.freezing import DecisionsSection, ElasticSection, FreezeSection
from frostline_contract.job.kubernetes import KubernetesSection
from frostline_contract.job.section import AUTO, Section, fixed, live
from frostline_contract.job.training import LEAVES_MAX, CheckpointSection, EvaluationSection, TrainingSection
from frostline_contract.shape import ParallelShape, tiles_problem
from frostline_contract.sharding import NONE, USE, shard_problem
from frostline_contract.tensor_rows import rows_problem


class Job(Section):
    """A training run. The same file runs locally (`frostline run -f`) and on a cluster (`helm install -f`)."""

    name: str = fixed("run", pattern=r"^[a-z0-9]([-a-z0-9]{0,51}[a-z0-9])?$", doc="Name of the run: lower case, digits, dashes.")
    seed: int = fixed(0, ge=0, lt=2**63, doc="Every random number of the run follows from it.")
    model: ModelSection = fixed(doc="Which transformer.")
    task: TaskSection = fixed(doc="What is learnt.")
    data: DataSection = fixed(doc="From which samples.")
    training: TrainingSection = fixed(doc="How.")
    evaluation: EvaluationSection = fixed(EvaluationSection(), doc="When the guard and test splits are scored.")
    freeze: FreezeSection = fixed(FreezeSection(), doc="When layers freeze.")
    decisions: DecisionsSection = fixed(DecisionsSection(), doc="How decisions meet steps.")
    elastic: ElasticSection = fixed(ElasticSection(), doc="Which parts of the elasticity are on.")
    placement: PlacementSection = fixed(PlacementSection(), doc="Who computes.")
    cluster: ClusterSection = fixed(ClusterSection(), later=True, doc="What the machines are like.")
    cache: CacheSection = fixed(CacheSection(), doc="The activation cache.")
    checkpoint: CheckpointSection = fixed(CheckpointSection(), doc="What is kept.")
    controller: ControllerSection = fixed(ControllerSection(), doc="Clocks of the control plane.")
    reshapes: tuple[ScheduledReshape, ...] = live((), doc="Reshapes by command at given steps.")
    faults: tuple[Fault, ...] = live((), doc="Planned faults.")
    kubernetes: KubernetesSection = live(KubernetesSection(), doc="What only a cluster has; a local run uses none of it.")

    @model_validator(mode="after")
    def _consistent(self) -> "Job":
        pinned = self.placement.dp_degree or 1
        leaves = self.training.reduction_leaves if self.training.reduction_leaves != AUTO else LEAVES_MAX
        if pinned > leaves:
            raise ValueError(
                f"placement.dp_degree {pinned} exceeds training.reduction_leaves {leaves}; "
                "raise reduction_leaves (and, where needed, lower micro_batch_size)"
            )
        if self.training.loss_chunk_tokens and self.task.kind != "language_modeling":
            raise ValueError(
                f"training.loss_chunk_tokens is {self.training.loss_chunk_tokens} and task.kind is {self.task.kind}, which has no loss "
                "a token; set it to 0"
            )
        if self.training.has_cells and self.task.kind != "language_modeling":
            raise ValueError(
                f"training.token_cells is {self.training.token_cells} and task.kind is {self.task.kind}, which is not per token; "
                "set it to 1"
            )
        if self.training.has_cells and self.model.adapters is not None:
            raise ValueError(
                f"training.token_cells is {self.training.token_cells} and model.adapters is given; adapters compute whole sequences: "
                "set token_cells to 1"
            )
        if self.training.tensor_tiles.rows > 1 and self.model.adapters is not None:
            raise ValueError(
                f"training.tensor_tiles.rows is {self.training.tensor_tiles.rows} and model.adapters is given; adapters compute all "
                "samples of a micro-batch: set rows to 1"
            )
        if self.training.tensor_tiles.hidden > 1 and self.model.adapters is not None:
            raise ValueError(
                f"training.tensor_tiles.hidden is {self.training.tensor_tiles.hidden} and model.adapters is given; adapters read the "
                "whole hidden width: set hidden to 1"
            )
        wanted = self.placement
        shape = ParallelShape(1, wanted.dp_degree or 1, tp_columns=wanted.tp_degree or 1, tp_depth=wanted.tp_depth or 1)
        self._check_shape("placement.", shape, wanted.slices, wanted.shard, wanted.tensor_rows)
        if self.placement.backend == "nccl" and self.training.device == "cpu":
            raise ValueError("placement.backend is nccl and training.device is cpu; NCCL needs GPUs: use auto or gloo")
        if self.freeze.interval_steps is not None:
            check_lag(self.freeze.interval_steps, self.decisions.lag_steps)
        pods = self.placement.pods
        for index, fault in enumerate(self.faults):
            if fault.worker >= pods and fault.kind not in FAULTS_OF_A_SERVICE:
                raise ValueError(f"faults.{index}.worker is {fault.worker}; the job's pods are 0 to {pods - 1}")
        for index, reshape in enumerate(self.reshapes):
            self.check_reshape(reshape, f"reshapes.{index}.")
        return self

    def check_reshape(self, asked: ScheduledReshape, place: str = "") -> None:
        """Check a shape that a command or `reshapes` asks for, whatever is frozen.

        Args:
            asked: the shape.
            place: what the text puts before the names of its fields.

        Raises:
            ValueError: the job allows no such shape; the message has field, value and remedy.
        """
        leaves = self.training.reduction_leaves if self.training.reduction_leaves != AUTO else LEAVES_MAX
        if asked.dp_degree > leaves:
            raise ValueError(
                f"{place}dp_degree {asked.dp_degree} exceeds training.reduction_leaves "
                f"{leaves}; raise reduction_leaves or lower dp_degree"
            )
        wanted = self.placement
        shard, tensor_rows = asked.shard or wanted.shard, asked.tensor_rows or wanted.tensor_rows
        self._check_shape(place, ParallelShape.of(asked.degrees), asked.slices, shard, tensor_rows)

    def _check_shape(self, place: str, shape: ParallelShape, slices: int | None, shard: str, tensor_rows: str) -> None:
        """Raise ValueError where no run of this job can have such a shape. place: as in `check_reshape`."""
        if (slices or 1) > self.training.num_cells:
            raise ValueError(
                f"{place}slices is {slices} and training.token_cells makes {self.training.num_cells} cells, of which a slice holds at "
                "least one; lower it or raise token_cells"
            )
        self._check_sharding(place, shard, shape.dp_degree)
        tiles = self.training.tensor_tiles
        if problem := tiles_problem(shape, tiles.grid, f"{place}tp_degree", f"{place}tp_depth"):
            raise ValueError(problem)
        if problem := rows_problem(tensor_rows, shape.tp_columns, shape.tp_depth, tiles.rows, place):
            raise ValueError(problem)

    def _check_sharding(self, place: str, shard: str, dp_degree: int) -> None:
        """Raise ValueError where state is to be shared out and cannot be."""
        if shard in (NONE, AUTO):
            return
        ranges = self.training.state_ranges
        if self.training.numerics != "exact":
            raise ValueError(
                f"{place}shard is {shard} and training.numerics is fast; only exact sums are shared out: set one back"
            )
        if ranges == 1:
            raise ValueError(
                f"{place}shard is {shard} and training.state_ranges is 1, so that one replica would own everything; set "
                "state_ranges in a new run to the largest dp_degree that is to share state out, or a multiple of it"
            )
        if shard == USE and self.training.compile:
            raise ValueError(
                f"{place}shard is use and training.compile is true; compiled units are not gathered at each use: set shard to "
                "step, or compile in a new run to false"
            )
        if shard == USE and self.training.has_cells:
            raise ValueError(
                f"{place}shard is use and training.token_cells is {self.training.token_cells}; cells are not gathered for: set "
                "shard to step, or token_cells in a new run to 1"
            )
        if problem := shard_problem(shard, ranges, dp_degree, f"{place}dp_degree"):
            raise ValueError(problem)

    def interval_steps(self, steps_per_epoch: int) -> int:
        """Steps an interval: the job's number, or one epoch, but always longer than the decision lag."""
        return self.freeze.interval_steps or max(steps_per_epoch, self.decisions.lag_steps + 1)

    @property
    def most_tp_degree(self) -> int:
        """The most workers that may share a stage: placement.tp_degree x tp_depth, where the planner chooses one for each tile."""
        wanted, inner = self.placement.tp_degree, self.training.tensor_tiles.inner
        return (inner if wanted is None else wanted) * self.most_tp_depth

    @property
    def most_tp_depth(self) -> int:
        """The most levels of these workers: placement.tp_depth; one for each hidden tile where that is the planner's choice."""
        wanted = self.placement.tp_depth
        return self.training.tensor_tiles.hidden if wanted is None else wanted

    @property
    def tiled_ends(self) -> tuple[bool, bool]:
        """Whether tiles cut the embedding's vocabulary, and the logits of a head over the vocabulary."""
        cut = self.training.tensor_tiles.vocabulary
        return cut, cut and self.task.kind == "language_modeling"

    @property
    def initial_units(self) -> int:
        """Units that the freeze section freezes from step 1; with adapters it may be more (`initial_freeze_point`)."""
        return self.freeze.initial_units if self.elastic.freeze else 0

    def lowest_freeze_point(self, num_units: int) -> int:
        """The freeze point below which no decision goes: with adapters the first unit that has any; nothing before it can learn.

        num_units: embedding, blocks and head.
        """
        adapters = self.model.adapters
        return 1 + blocks_with_adapters(adapters, num_units - 2)[0] if adapters is not None else 0

    def initial_freeze_point(self, num_units: int) -> int:
        """The freeze point from step 1 on, until a decision names another one: the index of the first unit that learns.

        num_units: embedding, blocks and head.
        """
        return max(self.initial_units, self.lowest_freeze_point(num_units))

    def checkpoint_root(self, run_dir: Path) -> Path:
        """The folder of the run's checkpoints: the same wherever the commands are typed."""
        return Path(run_dir).absolute() / (self.checkpoint.uri or "checkpoints")

    def total_steps(self, steps_per_epoch: int) -> int:
        """The run's length in steps."""
        return self.training.steps or max(1, round((self.training.epochs or 0) * steps_per_epoch))
