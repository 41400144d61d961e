"""What workers measure and the controller reads. Everything here but timings is the same on any placement."""

from typing import Literal

from pydantic import Field

from frostline_contract.record import Degrees, Frozen, Shaped
from frostline_contract.usage import WorkerUsage

TRACED_OPERATIONS_MAX = 4096
"""Computations of a traced step on one pipeline rank; of a longer step there is no trace."""


class GuardReading(Frozen):
    """The guard split, evaluated at an interval's last step: one loss a sample, in sample order, so that two readings pair."""

    losses: tuple[float, ...]
    metrics: dict[str, float] = {}


class IntervalStatistics(Frozen):
    """What decisions read (docs/protocols.md 6.3): nothing measured by a clock, nothing that depends on the placement.

    unit_gradient_norms: root mean square over the interval's accepted steps of each unit's gradient L2 norm, before
    clipping; 0.0 for frozen units (docs/design.md 6: Eq. (1)). unit_parameters: how many
    parameters of each unit learn where it does.
    unit_forward_flops: forward FLOPs of one sample through each unit. learning_rate: at the last step.
    learning_rate_peak: the highest so far, so that a drop shows. accepted_steps: steps not refused as non-finite.
    unit_output_changes: how far each unit's outputs on the probe's samples have moved since the interval before, 0 to 1
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

    forward_seconds, backward_seconds: a micro-batch. parameter_bytes: weights. optimizer_bytes: moments.
    activation_bytes: what one micro-batch keeps for its backward. output_bytes: what crosses to the next unit. working_bytes: the
    most that its forward or backward takes beyond that at any time; 0: not measured. still_bytes: of the weights those that never
    learn, below adapters. cell_forward_seconds, cell_backward_seconds: of each cell of the run's grid, at its place in the
    sequence; empty where the unit computes whole sequences. input_gradient_cost, weight_gradient_cost: of a backward in two
    parts, what each takes over the whole backward's seconds; 0: not measured, or the unit has no input. split_bytes: what a
    split backward keeps beyond activation_bytes until the gradients of weights are computed.
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
        """Of the weights that learn where the unit does."""
        return self.parameter_bytes - self.still_bytes


class WorkerProfile(Frozen):
    """One worker's measurements at registration: its units' costs, and the machine they were taken on.

    optimizer_seconds_per_byte: of an update, for a byte of weights that learn: norms, clipping and optimizer; 0: not measured.
    quota_period_seconds: of the processor quota that its control group has; 0: none.
    """

    micro_batch_size: int
    units: tuple[UnitProfile, ...]
    device: str = "cpu"
    memory_bytes: int = 0
    optimizer_seconds_per_byte: float = 0.0
    quota_period_seconds: float = 0.0


class SizeProfiles(Frozen):
    """What one worker measured at several micro-batch sizes, for the run to settle its own (`job.automatic`).

    profiles: by ascending size. tied: the head uses unit 0's matrix. boundary_bytes_per_sample: of one hidden activation.
    """

    profiles: tuple[WorkerProfile, ...]
    tied: bool = False
    boundary_bytes_per_sample: int = 0


class MemoryUse(Frozen):
    """What a worker's device holds in one generation, in bytes.

    peak_bytes: the most that tensors held; on a CPU the most that the process ever held, with interpreter, libraries and data.
    limit_bytes: what the worker may use; 0: unknown. communicator_bytes: what the device had less after the generation's NCCL
    communicators were connected. communicators: how many those are. tensor_bytes: the most that tensors held in a step, on a CPU
    counted where placement.worker_memory_bytes is set; 0: not counted.
    """

    peak_bytes: int = 0
    limit_bytes: int = 0
    communicator_bytes: int = 0
    communicators: int = 0
    tensor_bytes: int = 0


class LinkProfile(Frozen):
    """Measured communication: p2p and all-reduce, each as latency (seconds) and bandwidth (bytes a second)."""

    latency_seconds: float = 1e-4
    bandwidth_bytes_per_second: float = 1e9
    reduce_latency_seconds: float = 3e-4
    reduce_bandwidth_bytes_per_second: float = 5e8


class CacheProfile(Frozen):
    """Measured cache traffic of one worker: seconds to fetch one sample's boundary activation, and hit fraction."""

    fetch_seconds_per_sample: float = 0.0
    fill_seconds_per_sample: float = 0.0
    hit_fraction: float = 0.0


class OperationTime(Frozen):
    """When a computation of a step began and ended on its pipeline rank, in seconds since the vote before was known there.

    All members learn a vote's result at nearly the same moment, whatever their clocks say. kind: a word of `operations.Kind`.
    start: what it was waiting for is there.
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
    the other fields have the same bits on any placement. numerics_hash chains all numerics up to this step. usage: of each
    member, by global rank, with the last step of an interval; empty with others.
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
