"""Records of the workers' measurements, which the controller reads. All fields but timings are the same on any placement."""

from typing import Literal

from pydantic import Field

from frostline_contract.lineage import Place
from frostline_contract.record import Degrees, Frozen, Shaped
from frostline_contract.usage import WorkerUsage

TRACED_OPERATIONS_MAX = 4096
"""The most computations of a traced step on one pipeline rank; a longer step is not traced."""


class GuardReading(Frozen):
    """The guard split, evaluated at an interval's last step: one loss a sample, in sample order, so that two readings pair."""

    losses: tuple[float, ...]
    metrics: dict[str, float] = {}


class IntervalStatistics(Frozen):
    """The input of a decision (docs/protocols.md 6.3). No value is measured by a clock or depends on the placement.

    Attributes:
        unit_gradient_norms: root mean square over the interval's accepted steps of each unit's gradient L2 norm, before
            clipping; 0.0 for frozen units (docs/design.md 6: Eq. (1)).
        unit_parameters: number of each unit's parameters that learn while the unit is not frozen.
        unit_forward_flops: forward FLOPs of one sample through each unit.
        learning_rate: at the last step.
        learning_rate_peak: the highest so far, so that a drop can be seen.
        accepted_steps: steps that were not refused as non-finite.
        unit_output_changes: how far each unit's outputs on the probe's samples have moved since the previous interval, 0 to 1
            (`frostline_trainer.step.probing`); 0.0 for frozen units and the head; empty where nothing was compared.
    """

    number: int
    lineage: int
    first_step: int
    last_step: int
    freeze_point: int
    unit_gradient_norms: tuple[float, ...]
    unit_parameters: tuple[int, ...]
    unit_forward_flops: tuple[int, ...] = ()
    learning_rate: float
    learning_rate_peak: float
    loss_mean: float
    accepted_steps: int
    guard: GuardReading | None = None
    unit_output_changes: tuple[float, ...] = ()


class UnitProfile(Frozen):
    """Measured cost of one unit at the job's micro-batch size (docs/design.md 7).

    Attributes:
        forward_seconds, backward_seconds: of one micro-batch.
        parameter_bytes: weights.
        optimizer_bytes: moments.
        activation_bytes: kept by one micro-batch for its backward.
        output_bytes: of the tensor that crosses to the next unit.
        working_bytes: peak of forward or backward beyond activation_bytes; 0: not measured.
        still_bytes: the part of the weights that never learns, below adapters.
        cell_forward_seconds, cell_backward_seconds: of each cell of the run's grid, at its place in the sequence; empty where the
            unit computes whole sequences.
        input_gradient_cost, weight_gradient_cost: of a backward in two parts, the seconds of each part divided by those of the
            whole backward; 0: not measured, or the unit has no input.
        split_bytes: kept by a split backward beyond activation_bytes until the gradients of weights are computed.
    """

    forward_seconds: float
    backward_seconds: float
    parameter_bytes: int
    optimizer_bytes: int
    activation_bytes: int
    output_bytes: int
    working_bytes: int = 0
    still_bytes: int = 0
    cell_forward_seconds: tuple[float, ...] = ()
    cell_backward_seconds: tuple[float, ...] = ()
    input_gradient_cost: float = 0.0
    weight_gradient_cost: float = 0.0
    split_bytes: int = 0

    @property
    def gradient_bytes(self) -> int:
        """Bytes of the gradients, which exist for the weights that can learn."""
        return self.parameter_bytes - self.still_bytes


class WorkerProfile(Frozen):
    """One worker's measurements at registration: its units' costs, and the machine on which they were taken.

    Attributes:
        optimizer_seconds_per_byte: seconds of an update (norms, clipping and optimizer) for each byte of weights that learn; 0:
            not measured.
        quota_period_seconds: period of the processor quota of the worker's control group; 0: there is no quota.
    """

    micro_batch_size: int
    units: tuple[UnitProfile, ...]
    device: str = "cpu"
    memory_bytes: int = 0
    optimizer_seconds_per_byte: float = 0.0
    quota_period_seconds: float = 0.0


class LinkProfile(Frozen):
    """Measured communication: p2p and all-reduce, each as latency (seconds) and bandwidth (bytes a second)."""

    latency_seconds: float = 1e-4
    bandwidth_bytes_per_second: float = 1e9
    reduce_latency_seconds: float = 3e-4
    reduce_bandwidth_bytes_per_second: float = 5e8


class SizeProfiles(Frozen):
    """One worker's measurements at several micro-batch sizes, from which a run chooses its own size (`job.automatic`).

    Attributes:
        profiles: by ascending size.
        tied: whether the head uses the matrix of unit 0.
        boundary_bytes_per_sample: bytes of one sample's hidden activation.
        link: between workers that measured at the same time; None: this one measured alone.
    """

    profiles: tuple[WorkerProfile, ...]
    tied: bool = False
    boundary_bytes_per_sample: int = 0
    link: LinkProfile | None = None


class MemoryUse(Frozen):
    """A worker's memory use in one generation, in bytes.

    Attributes:
        peak_bytes: peak of all tensors; on a CPU the peak of the whole process since its start, with interpreter, libraries and
            data.
        limit_bytes: what the worker may use; 0: unknown.
        communicator_bytes: by how much the device's free memory shrank when the generation's NCCL communicators were connected.
        communicators: number of those communicators.
        tensor_bytes: peak of tensors within a step; on a CPU counted only where placement.worker_memory_bytes is set; 0: not
            counted.
    """

    peak_bytes: int = 0
    limit_bytes: int = 0
    communicator_bytes: int = 0
    communicators: int = 0
    tensor_bytes: int = 0


class CacheProfile(Frozen):
    """Measured cache traffic of one worker: seconds to fetch one sample's boundary activation, and hit fraction."""

    fetch_seconds_per_sample: float = 0.0
    fill_seconds_per_sample: float = 0.0
    hit_fraction: float = 0.0


class OperationTime(Frozen):
    """Start and end of one computation on its pipeline rank, in seconds since the rank received the previous vote's result.

    All members receive a vote's result at nearly the same moment, so this origin needs no synchronised clocks.

    Attributes:
        kind: a word of `operations.Kind`.
        start: the moment when the computation's inputs are there.
    """

    kind: Literal["forward", "backward", "input_gradient", "weight_gradient"]
    stage: int = Field(ge=0)
    micro_batch: int = Field(ge=0)
    slice: int = Field(ge=0)
    start: float = Field(ge=0, allow_inf_nan=False)
    end: float = Field(ge=0, allow_inf_nan=False)


class StepTrace(Frozen):
    """The computations of a committed step on one pipeline rank of the first replica: a line of traces.jsonl, unique by
    (generation, step, pp_rank).
    """

    lineage: int
    step: int
    generation: str
    freeze_point: int
    pp_rank: int = Field(ge=0)
    operations: tuple[OperationTime, ...] = Field(max_length=TRACED_OPERATIONS_MAX)


class StepRecord(Shaped):
    """One committed (or refused) step: a line of metrics.jsonl, unique by (lineage, step).

    step_seconds and its parts, samples_per_second, the shape, the cache counts and the usage depend on placement and clock;
    the other fields have the same bits on any placement.

    Attributes:
        numerics_hash: chained over the numerics of all steps up to this one.
        usage: of each member, by global rank, in the record of an interval's last step; empty in other records.
    """

    lineage: int
    step: int
    loss: float
    learning_rate: float
    gradient_norm: float
    unit_gradient_norms: tuple[float, ...] = ()
    freeze_point: int
    refused: bool = False
    degrees: Degrees
    generation: str
    step_seconds: float
    step_parts: dict[str, float] = {}
    samples_per_second: float = 0.0
    cache_hits: int = 0
    cache_misses: int = 0
    time_seconds: float = 0.0
    numerics_hash: str = ""
    evaluation: dict[str, float] = {}
    usage: tuple[WorkerUsage, ...] = ()

    @property
    def place(self) -> Place:
        """The step in its lineage, by which records are told apart and ordered."""
        return Place(self.lineage, self.step)
