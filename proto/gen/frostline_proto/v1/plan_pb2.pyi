from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GenerationId(_message.Message):
    __slots__ = ("incarnation", "counter")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    COUNTER_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    counter: int
    def __init__(self, incarnation: _Optional[int] = ..., counter: _Optional[int] = ...) -> None: ...

class Decision(_message.Message):
    __slots__ = ("number", "interval", "effective_step", "freeze_point", "lineage", "kind", "reason", "policy", "rollback_to_step", "void", "decided_in")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    INTERVAL_FIELD_NUMBER: _ClassVar[int]
    EFFECTIVE_STEP_FIELD_NUMBER: _ClassVar[int]
    FREEZE_POINT_FIELD_NUMBER: _ClassVar[int]
    LINEAGE_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    ROLLBACK_TO_STEP_FIELD_NUMBER: _ClassVar[int]
    VOID_FIELD_NUMBER: _ClassVar[int]
    DECIDED_IN_FIELD_NUMBER: _ClassVar[int]
    number: int
    interval: int
    effective_step: int
    freeze_point: int
    lineage: int
    kind: str
    reason: str
    policy: str
    rollback_to_step: int
    void: bool
    decided_in: int
    def __init__(self, number: _Optional[int] = ..., interval: _Optional[int] = ..., effective_step: _Optional[int] = ..., freeze_point: _Optional[int] = ..., lineage: _Optional[int] = ..., kind: _Optional[str] = ..., reason: _Optional[str] = ..., policy: _Optional[str] = ..., rollback_to_step: _Optional[int] = ..., void: bool = ..., decided_in: _Optional[int] = ...) -> None: ...

class Placement(_message.Message):
    __slots__ = ("degrees", "pp_degree", "dp_degree", "virtual_stages", "stage_bounds", "leaf_bounds", "workers", "schedule", "use_cache", "predicted_step_seconds", "predicted_peak_bytes", "slices", "tensor_rows", "shard")
    class DegreesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    DEGREES_FIELD_NUMBER: _ClassVar[int]
    PP_DEGREE_FIELD_NUMBER: _ClassVar[int]
    DP_DEGREE_FIELD_NUMBER: _ClassVar[int]
    VIRTUAL_STAGES_FIELD_NUMBER: _ClassVar[int]
    STAGE_BOUNDS_FIELD_NUMBER: _ClassVar[int]
    LEAF_BOUNDS_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    SCHEDULE_FIELD_NUMBER: _ClassVar[int]
    USE_CACHE_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_STEP_SECONDS_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_PEAK_BYTES_FIELD_NUMBER: _ClassVar[int]
    SLICES_FIELD_NUMBER: _ClassVar[int]
    TENSOR_ROWS_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    degrees: _containers.ScalarMap[str, int]
    pp_degree: int
    dp_degree: int
    virtual_stages: int
    stage_bounds: _containers.RepeatedScalarFieldContainer[int]
    leaf_bounds: _containers.RepeatedScalarFieldContainer[int]
    workers: _containers.RepeatedScalarFieldContainer[str]
    schedule: str
    use_cache: bool
    predicted_step_seconds: float
    predicted_peak_bytes: int
    slices: _containers.RepeatedScalarFieldContainer[int]
    tensor_rows: str
    shard: str
    def __init__(self, degrees: _Optional[_Mapping[str, int]] = ..., pp_degree: _Optional[int] = ..., dp_degree: _Optional[int] = ..., virtual_stages: _Optional[int] = ..., stage_bounds: _Optional[_Iterable[int]] = ..., leaf_bounds: _Optional[_Iterable[int]] = ..., workers: _Optional[_Iterable[str]] = ..., schedule: _Optional[str] = ..., use_cache: bool = ..., predicted_step_seconds: _Optional[float] = ..., predicted_peak_bytes: _Optional[int] = ..., slices: _Optional[_Iterable[int]] = ..., tensor_rows: _Optional[str] = ..., shard: _Optional[str] = ...) -> None: ...

class StateTag(_message.Message):
    __slots__ = ("lineage", "step", "generation")
    LINEAGE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    lineage: int
    step: int
    generation: GenerationId
    def __init__(self, lineage: _Optional[int] = ..., step: _Optional[int] = ..., generation: _Optional[_Union[GenerationId, _Mapping]] = ...) -> None: ...

class SeenVote(_message.Message):
    __slots__ = ("lineage", "step", "generation", "slots")
    LINEAGE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    lineage: int
    step: int
    generation: GenerationId
    slots: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, lineage: _Optional[int] = ..., step: _Optional[int] = ..., generation: _Optional[_Union[GenerationId, _Mapping]] = ..., slots: _Optional[_Iterable[float]] = ...) -> None: ...

class PieceHolders(_message.Message):
    __slots__ = ("participants",)
    PARTICIPANTS_FIELD_NUMBER: _ClassVar[int]
    participants: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, participants: _Optional[_Iterable[int]] = ...) -> None: ...

class Plan(_message.Message):
    __slots__ = ("generation", "base", "lineage", "start", "start_step", "checkpoint_path", "freeze_point", "decision_number", "decisions", "placement", "switch_from", "switch_until", "source_indices", "sources", "leavers", "state_source", "store_host", "store_port", "reason", "buddy_indices", "buddies", "holders", "vote", "state_generation", "state_lineage", "uncovered", "run_epoch", "job_revision", "prefix_tile", "backend", "state_ranges", "state_tiles", "hidden_tiles")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    LINEAGE_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    START_STEP_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_PATH_FIELD_NUMBER: _ClassVar[int]
    FREEZE_POINT_FIELD_NUMBER: _ClassVar[int]
    DECISION_NUMBER_FIELD_NUMBER: _ClassVar[int]
    DECISIONS_FIELD_NUMBER: _ClassVar[int]
    PLACEMENT_FIELD_NUMBER: _ClassVar[int]
    SWITCH_FROM_FIELD_NUMBER: _ClassVar[int]
    SWITCH_UNTIL_FIELD_NUMBER: _ClassVar[int]
    SOURCE_INDICES_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    LEAVERS_FIELD_NUMBER: _ClassVar[int]
    STATE_SOURCE_FIELD_NUMBER: _ClassVar[int]
    STORE_HOST_FIELD_NUMBER: _ClassVar[int]
    STORE_PORT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    BUDDY_INDICES_FIELD_NUMBER: _ClassVar[int]
    BUDDIES_FIELD_NUMBER: _ClassVar[int]
    HOLDERS_FIELD_NUMBER: _ClassVar[int]
    VOTE_FIELD_NUMBER: _ClassVar[int]
    STATE_GENERATION_FIELD_NUMBER: _ClassVar[int]
    STATE_LINEAGE_FIELD_NUMBER: _ClassVar[int]
    UNCOVERED_FIELD_NUMBER: _ClassVar[int]
    RUN_EPOCH_FIELD_NUMBER: _ClassVar[int]
    JOB_REVISION_FIELD_NUMBER: _ClassVar[int]
    PREFIX_TILE_FIELD_NUMBER: _ClassVar[int]
    BACKEND_FIELD_NUMBER: _ClassVar[int]
    STATE_RANGES_FIELD_NUMBER: _ClassVar[int]
    STATE_TILES_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_TILES_FIELD_NUMBER: _ClassVar[int]
    generation: GenerationId
    base: GenerationId
    lineage: int
    start: str
    start_step: int
    checkpoint_path: str
    freeze_point: int
    decision_number: int
    decisions: _containers.RepeatedCompositeFieldContainer[Decision]
    placement: Placement
    switch_from: int
    switch_until: int
    source_indices: _containers.RepeatedScalarFieldContainer[int]
    sources: _containers.RepeatedScalarFieldContainer[str]
    leavers: _containers.RepeatedScalarFieldContainer[str]
    state_source: str
    store_host: str
    store_port: int
    reason: str
    buddy_indices: _containers.RepeatedScalarFieldContainer[int]
    buddies: _containers.RepeatedScalarFieldContainer[str]
    holders: _containers.RepeatedCompositeFieldContainer[PieceHolders]
    vote: SeenVote
    state_generation: GenerationId
    state_lineage: int
    uncovered: _containers.RepeatedScalarFieldContainer[int]
    run_epoch: int
    job_revision: str
    prefix_tile: str
    backend: str
    state_ranges: int
    state_tiles: int
    hidden_tiles: int
    def __init__(self, generation: _Optional[_Union[GenerationId, _Mapping]] = ..., base: _Optional[_Union[GenerationId, _Mapping]] = ..., lineage: _Optional[int] = ..., start: _Optional[str] = ..., start_step: _Optional[int] = ..., checkpoint_path: _Optional[str] = ..., freeze_point: _Optional[int] = ..., decision_number: _Optional[int] = ..., decisions: _Optional[_Iterable[_Union[Decision, _Mapping]]] = ..., placement: _Optional[_Union[Placement, _Mapping]] = ..., switch_from: _Optional[int] = ..., switch_until: _Optional[int] = ..., source_indices: _Optional[_Iterable[int]] = ..., sources: _Optional[_Iterable[str]] = ..., leavers: _Optional[_Iterable[str]] = ..., state_source: _Optional[str] = ..., store_host: _Optional[str] = ..., store_port: _Optional[int] = ..., reason: _Optional[str] = ..., buddy_indices: _Optional[_Iterable[int]] = ..., buddies: _Optional[_Iterable[str]] = ..., holders: _Optional[_Iterable[_Union[PieceHolders, _Mapping]]] = ..., vote: _Optional[_Union[SeenVote, _Mapping]] = ..., state_generation: _Optional[_Union[GenerationId, _Mapping]] = ..., state_lineage: _Optional[int] = ..., uncovered: _Optional[_Iterable[int]] = ..., run_epoch: _Optional[int] = ..., job_revision: _Optional[str] = ..., prefix_tile: _Optional[str] = ..., backend: _Optional[str] = ..., state_ranges: _Optional[int] = ..., state_tiles: _Optional[int] = ..., hidden_tiles: _Optional[int] = ...) -> None: ...

class UnitProfile(_message.Message):
    __slots__ = ("forward_seconds", "backward_seconds", "parameter_bytes", "optimizer_bytes", "activation_bytes", "output_bytes", "working_bytes", "still_bytes", "cell_forward_seconds", "cell_backward_seconds", "input_gradient_cost", "weight_gradient_cost", "split_bytes")
    FORWARD_SECONDS_FIELD_NUMBER: _ClassVar[int]
    BACKWARD_SECONDS_FIELD_NUMBER: _ClassVar[int]
    PARAMETER_BYTES_FIELD_NUMBER: _ClassVar[int]
    OPTIMIZER_BYTES_FIELD_NUMBER: _ClassVar[int]
    ACTIVATION_BYTES_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_BYTES_FIELD_NUMBER: _ClassVar[int]
    WORKING_BYTES_FIELD_NUMBER: _ClassVar[int]
    STILL_BYTES_FIELD_NUMBER: _ClassVar[int]
    CELL_FORWARD_SECONDS_FIELD_NUMBER: _ClassVar[int]
    CELL_BACKWARD_SECONDS_FIELD_NUMBER: _ClassVar[int]
    INPUT_GRADIENT_COST_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_GRADIENT_COST_FIELD_NUMBER: _ClassVar[int]
    SPLIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    forward_seconds: float
    backward_seconds: float
    parameter_bytes: int
    optimizer_bytes: int
    activation_bytes: int
    output_bytes: int
    working_bytes: int
    still_bytes: int
    cell_forward_seconds: _containers.RepeatedScalarFieldContainer[float]
    cell_backward_seconds: _containers.RepeatedScalarFieldContainer[float]
    input_gradient_cost: float
    weight_gradient_cost: float
    split_bytes: int
    def __init__(self, forward_seconds: _Optional[float] = ..., backward_seconds: _Optional[float] = ..., parameter_bytes: _Optional[int] = ..., optimizer_bytes: _Optional[int] = ..., activation_bytes: _Optional[int] = ..., output_bytes: _Optional[int] = ..., working_bytes: _Optional[int] = ..., still_bytes: _Optional[int] = ..., cell_forward_seconds: _Optional[_Iterable[float]] = ..., cell_backward_seconds: _Optional[_Iterable[float]] = ..., input_gradient_cost: _Optional[float] = ..., weight_gradient_cost: _Optional[float] = ..., split_bytes: _Optional[int] = ...) -> None: ...

class WorkerProfile(_message.Message):
    __slots__ = ("micro_batch_size", "units", "device", "memory_bytes", "optimizer_seconds_per_byte", "quota_period_seconds")
    MICRO_BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    UNITS_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    OPTIMIZER_SECONDS_PER_BYTE_FIELD_NUMBER: _ClassVar[int]
    QUOTA_PERIOD_SECONDS_FIELD_NUMBER: _ClassVar[int]
    micro_batch_size: int
    units: _containers.RepeatedCompositeFieldContainer[UnitProfile]
    device: str
    memory_bytes: int
    optimizer_seconds_per_byte: float
    quota_period_seconds: float
    def __init__(self, micro_batch_size: _Optional[int] = ..., units: _Optional[_Iterable[_Union[UnitProfile, _Mapping]]] = ..., device: _Optional[str] = ..., memory_bytes: _Optional[int] = ..., optimizer_seconds_per_byte: _Optional[float] = ..., quota_period_seconds: _Optional[float] = ...) -> None: ...

class SizeProfiles(_message.Message):
    __slots__ = ("profiles", "tied", "boundary_bytes_per_sample", "link")
    PROFILES_FIELD_NUMBER: _ClassVar[int]
    TIED_FIELD_NUMBER: _ClassVar[int]
    BOUNDARY_BYTES_PER_SAMPLE_FIELD_NUMBER: _ClassVar[int]
    LINK_FIELD_NUMBER: _ClassVar[int]
    profiles: _containers.RepeatedCompositeFieldContainer[WorkerProfile]
    tied: bool
    boundary_bytes_per_sample: int
    link: LinkProfile
    def __init__(self, profiles: _Optional[_Iterable[_Union[WorkerProfile, _Mapping]]] = ..., tied: bool = ..., boundary_bytes_per_sample: _Optional[int] = ..., link: _Optional[_Union[LinkProfile, _Mapping]] = ...) -> None: ...

class DeviceFacts(_message.Message):
    __slots__ = ("host", "name", "uuid", "multiprocessors", "memory_bytes", "driver", "cuda", "cublas", "cudnn", "nccl")
    HOST_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    UUID_FIELD_NUMBER: _ClassVar[int]
    MULTIPROCESSORS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    DRIVER_FIELD_NUMBER: _ClassVar[int]
    CUDA_FIELD_NUMBER: _ClassVar[int]
    CUBLAS_FIELD_NUMBER: _ClassVar[int]
    CUDNN_FIELD_NUMBER: _ClassVar[int]
    NCCL_FIELD_NUMBER: _ClassVar[int]
    host: str
    name: str
    uuid: str
    multiprocessors: int
    memory_bytes: int
    driver: str
    cuda: str
    cublas: str
    cudnn: str
    nccl: str
    def __init__(self, host: _Optional[str] = ..., name: _Optional[str] = ..., uuid: _Optional[str] = ..., multiprocessors: _Optional[int] = ..., memory_bytes: _Optional[int] = ..., driver: _Optional[str] = ..., cuda: _Optional[str] = ..., cublas: _Optional[str] = ..., cudnn: _Optional[str] = ..., nccl: _Optional[str] = ...) -> None: ...

class LinkProfile(_message.Message):
    __slots__ = ("latency_seconds", "bandwidth_bytes_per_second", "reduce_latency_seconds", "reduce_bandwidth_bytes_per_second")
    LATENCY_SECONDS_FIELD_NUMBER: _ClassVar[int]
    BANDWIDTH_BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    REDUCE_LATENCY_SECONDS_FIELD_NUMBER: _ClassVar[int]
    REDUCE_BANDWIDTH_BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    latency_seconds: float
    bandwidth_bytes_per_second: float
    reduce_latency_seconds: float
    reduce_bandwidth_bytes_per_second: float
    def __init__(self, latency_seconds: _Optional[float] = ..., bandwidth_bytes_per_second: _Optional[float] = ..., reduce_latency_seconds: _Optional[float] = ..., reduce_bandwidth_bytes_per_second: _Optional[float] = ...) -> None: ...

class CacheProfile(_message.Message):
    __slots__ = ("fetch_seconds_per_sample", "fill_seconds_per_sample", "hit_fraction")
    FETCH_SECONDS_PER_SAMPLE_FIELD_NUMBER: _ClassVar[int]
    FILL_SECONDS_PER_SAMPLE_FIELD_NUMBER: _ClassVar[int]
    HIT_FRACTION_FIELD_NUMBER: _ClassVar[int]
    fetch_seconds_per_sample: float
    fill_seconds_per_sample: float
    hit_fraction: float
    def __init__(self, fetch_seconds_per_sample: _Optional[float] = ..., fill_seconds_per_sample: _Optional[float] = ..., hit_fraction: _Optional[float] = ...) -> None: ...

class GuardReading(_message.Message):
    __slots__ = ("losses", "metrics")
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    LOSSES_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    losses: _containers.RepeatedScalarFieldContainer[float]
    metrics: _containers.ScalarMap[str, float]
    def __init__(self, losses: _Optional[_Iterable[float]] = ..., metrics: _Optional[_Mapping[str, float]] = ...) -> None: ...

class IntervalStatistics(_message.Message):
    __slots__ = ("number", "lineage", "first_step", "last_step", "freeze_point", "unit_gradient_norms", "unit_parameters", "unit_forward_flops", "learning_rate", "learning_rate_peak", "loss_mean", "accepted_steps", "guard", "unit_output_changes")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    LINEAGE_FIELD_NUMBER: _ClassVar[int]
    FIRST_STEP_FIELD_NUMBER: _ClassVar[int]
    LAST_STEP_FIELD_NUMBER: _ClassVar[int]
    FREEZE_POINT_FIELD_NUMBER: _ClassVar[int]
    UNIT_GRADIENT_NORMS_FIELD_NUMBER: _ClassVar[int]
    UNIT_PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    UNIT_FORWARD_FLOPS_FIELD_NUMBER: _ClassVar[int]
    LEARNING_RATE_FIELD_NUMBER: _ClassVar[int]
    LEARNING_RATE_PEAK_FIELD_NUMBER: _ClassVar[int]
    LOSS_MEAN_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_STEPS_FIELD_NUMBER: _ClassVar[int]
    GUARD_FIELD_NUMBER: _ClassVar[int]
    UNIT_OUTPUT_CHANGES_FIELD_NUMBER: _ClassVar[int]
    number: int
    lineage: int
    first_step: int
    last_step: int
    freeze_point: int
    unit_gradient_norms: _containers.RepeatedScalarFieldContainer[float]
    unit_parameters: _containers.RepeatedScalarFieldContainer[int]
    unit_forward_flops: _containers.RepeatedScalarFieldContainer[int]
    learning_rate: float
    learning_rate_peak: float
    loss_mean: float
    accepted_steps: int
    guard: GuardReading
    unit_output_changes: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, number: _Optional[int] = ..., lineage: _Optional[int] = ..., first_step: _Optional[int] = ..., last_step: _Optional[int] = ..., freeze_point: _Optional[int] = ..., unit_gradient_norms: _Optional[_Iterable[float]] = ..., unit_parameters: _Optional[_Iterable[int]] = ..., unit_forward_flops: _Optional[_Iterable[int]] = ..., learning_rate: _Optional[float] = ..., learning_rate_peak: _Optional[float] = ..., loss_mean: _Optional[float] = ..., accepted_steps: _Optional[int] = ..., guard: _Optional[_Union[GuardReading, _Mapping]] = ..., unit_output_changes: _Optional[_Iterable[float]] = ...) -> None: ...

class StepRecord(_message.Message):
    __slots__ = ("lineage", "step", "loss", "learning_rate", "gradient_norm", "unit_gradient_norms", "freeze_point", "refused", "degrees", "pp_degree", "dp_degree", "generation", "step_seconds", "step_parts", "samples_per_second", "cache_hits", "cache_misses", "time_seconds", "numerics_hash", "evaluation", "usage")
    class DegreesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class StepPartsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    class EvaluationEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    LINEAGE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    LEARNING_RATE_FIELD_NUMBER: _ClassVar[int]
    GRADIENT_NORM_FIELD_NUMBER: _ClassVar[int]
    UNIT_GRADIENT_NORMS_FIELD_NUMBER: _ClassVar[int]
    FREEZE_POINT_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    DEGREES_FIELD_NUMBER: _ClassVar[int]
    PP_DEGREE_FIELD_NUMBER: _ClassVar[int]
    DP_DEGREE_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STEP_SECONDS_FIELD_NUMBER: _ClassVar[int]
    STEP_PARTS_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    CACHE_HITS_FIELD_NUMBER: _ClassVar[int]
    CACHE_MISSES_FIELD_NUMBER: _ClassVar[int]
    TIME_SECONDS_FIELD_NUMBER: _ClassVar[int]
    NUMERICS_HASH_FIELD_NUMBER: _ClassVar[int]
    EVALUATION_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    lineage: int
    step: int
    loss: float
    learning_rate: float
    gradient_norm: float
    unit_gradient_norms: _containers.RepeatedScalarFieldContainer[float]
    freeze_point: int
    refused: bool
    degrees: _containers.ScalarMap[str, int]
    pp_degree: int
    dp_degree: int
    generation: str
    step_seconds: float
    step_parts: _containers.ScalarMap[str, float]
    samples_per_second: float
    cache_hits: int
    cache_misses: int
    time_seconds: float
    numerics_hash: str
    evaluation: _containers.ScalarMap[str, float]
    usage: _containers.RepeatedCompositeFieldContainer[WorkerUsage]
    def __init__(self, lineage: _Optional[int] = ..., step: _Optional[int] = ..., loss: _Optional[float] = ..., learning_rate: _Optional[float] = ..., gradient_norm: _Optional[float] = ..., unit_gradient_norms: _Optional[_Iterable[float]] = ..., freeze_point: _Optional[int] = ..., refused: bool = ..., degrees: _Optional[_Mapping[str, int]] = ..., pp_degree: _Optional[int] = ..., dp_degree: _Optional[int] = ..., generation: _Optional[str] = ..., step_seconds: _Optional[float] = ..., step_parts: _Optional[_Mapping[str, float]] = ..., samples_per_second: _Optional[float] = ..., cache_hits: _Optional[int] = ..., cache_misses: _Optional[int] = ..., time_seconds: _Optional[float] = ..., numerics_hash: _Optional[str] = ..., evaluation: _Optional[_Mapping[str, float]] = ..., usage: _Optional[_Iterable[_Union[WorkerUsage, _Mapping]]] = ...) -> None: ...

class WorkerUsage(_message.Message):
    __slots__ = ("worker_id", "sent", "received", "resident")
    class SentEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class ReceivedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class ResidentEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    SENT_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    RESIDENT_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    sent: _containers.ScalarMap[str, int]
    received: _containers.ScalarMap[str, int]
    resident: _containers.ScalarMap[str, int]
    def __init__(self, worker_id: _Optional[str] = ..., sent: _Optional[_Mapping[str, int]] = ..., received: _Optional[_Mapping[str, int]] = ..., resident: _Optional[_Mapping[str, int]] = ...) -> None: ...

class OperationTime(_message.Message):
    __slots__ = ("kind", "stage", "micro_batch", "slice", "start", "end")
    KIND_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    MICRO_BATCH_FIELD_NUMBER: _ClassVar[int]
    SLICE_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    kind: str
    stage: int
    micro_batch: int
    slice: int
    start: float
    end: float
    def __init__(self, kind: _Optional[str] = ..., stage: _Optional[int] = ..., micro_batch: _Optional[int] = ..., slice: _Optional[int] = ..., start: _Optional[float] = ..., end: _Optional[float] = ...) -> None: ...

class StepTrace(_message.Message):
    __slots__ = ("lineage", "step", "generation", "freeze_point", "pp_rank", "operations")
    LINEAGE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    FREEZE_POINT_FIELD_NUMBER: _ClassVar[int]
    PP_RANK_FIELD_NUMBER: _ClassVar[int]
    OPERATIONS_FIELD_NUMBER: _ClassVar[int]
    lineage: int
    step: int
    generation: str
    freeze_point: int
    pp_rank: int
    operations: _containers.RepeatedCompositeFieldContainer[OperationTime]
    def __init__(self, lineage: _Optional[int] = ..., step: _Optional[int] = ..., generation: _Optional[str] = ..., freeze_point: _Optional[int] = ..., pp_rank: _Optional[int] = ..., operations: _Optional[_Iterable[_Union[OperationTime, _Mapping]]] = ...) -> None: ...
