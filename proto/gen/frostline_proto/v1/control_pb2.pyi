from frostline_proto.v1 import plan_pb2 as _plan_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DescribeJobRequest(_message.Message):
    __slots__ = ("measured",)
    MEASURED_FIELD_NUMBER: _ClassVar[int]
    measured: _plan_pb2.SizeProfiles
    def __init__(self, measured: _Optional[_Union[_plan_pb2.SizeProfiles, _Mapping]] = ...) -> None: ...

class DescribeJobResponse(_message.Message):
    __slots__ = ("job", "profiles")
    JOB_FIELD_NUMBER: _ClassVar[int]
    PROFILES_FIELD_NUMBER: _ClassVar[int]
    job: str
    profiles: _containers.RepeatedCompositeFieldContainer[_plan_pb2.WorkerProfile]
    def __init__(self, job: _Optional[str] = ..., profiles: _Optional[_Iterable[_Union[_plan_pb2.WorkerProfile, _Mapping]]] = ...) -> None: ...

class RegisterRequest(_message.Message):
    __slots__ = ("worker_id", "pod_name", "failure_domain", "process_id", "store_host", "store_port", "probe_digest", "probe_detail", "job_digest", "profile", "num_units", "steps_per_epoch", "train_samples", "dataset_digest", "generation", "unit_names", "boundary_bytes_per_sample", "cacheable", "cache_refusal", "tied", "weights_digest", "place_dependence", "sample_tile_cost", "device", "leaving")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    POD_NAME_FIELD_NUMBER: _ClassVar[int]
    FAILURE_DOMAIN_FIELD_NUMBER: _ClassVar[int]
    PROCESS_ID_FIELD_NUMBER: _ClassVar[int]
    STORE_HOST_FIELD_NUMBER: _ClassVar[int]
    STORE_PORT_FIELD_NUMBER: _ClassVar[int]
    PROBE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    PROBE_DETAIL_FIELD_NUMBER: _ClassVar[int]
    JOB_DIGEST_FIELD_NUMBER: _ClassVar[int]
    PROFILE_FIELD_NUMBER: _ClassVar[int]
    NUM_UNITS_FIELD_NUMBER: _ClassVar[int]
    STEPS_PER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    TRAIN_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    DATASET_DIGEST_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    UNIT_NAMES_FIELD_NUMBER: _ClassVar[int]
    BOUNDARY_BYTES_PER_SAMPLE_FIELD_NUMBER: _ClassVar[int]
    CACHEABLE_FIELD_NUMBER: _ClassVar[int]
    CACHE_REFUSAL_FIELD_NUMBER: _ClassVar[int]
    TIED_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_DIGEST_FIELD_NUMBER: _ClassVar[int]
    PLACE_DEPENDENCE_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_TILE_COST_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    pod_name: str
    failure_domain: str
    process_id: int
    store_host: str
    store_port: int
    probe_digest: str
    probe_detail: str
    job_digest: str
    profile: _plan_pb2.WorkerProfile
    num_units: int
    steps_per_epoch: int
    train_samples: int
    dataset_digest: str
    generation: _plan_pb2.GenerationId
    unit_names: _containers.RepeatedScalarFieldContainer[str]
    boundary_bytes_per_sample: int
    cacheable: bool
    cache_refusal: str
    tied: bool
    weights_digest: str
    place_dependence: str
    sample_tile_cost: float
    device: _plan_pb2.DeviceFacts
    leaving: str
    def __init__(self, worker_id: _Optional[str] = ..., pod_name: _Optional[str] = ..., failure_domain: _Optional[str] = ..., process_id: _Optional[int] = ..., store_host: _Optional[str] = ..., store_port: _Optional[int] = ..., probe_digest: _Optional[str] = ..., probe_detail: _Optional[str] = ..., job_digest: _Optional[str] = ..., profile: _Optional[_Union[_plan_pb2.WorkerProfile, _Mapping]] = ..., num_units: _Optional[int] = ..., steps_per_epoch: _Optional[int] = ..., train_samples: _Optional[int] = ..., dataset_digest: _Optional[str] = ..., generation: _Optional[_Union[_plan_pb2.GenerationId, _Mapping]] = ..., unit_names: _Optional[_Iterable[str]] = ..., boundary_bytes_per_sample: _Optional[int] = ..., cacheable: bool = ..., cache_refusal: _Optional[str] = ..., tied: bool = ..., weights_digest: _Optional[str] = ..., place_dependence: _Optional[str] = ..., sample_tile_cost: _Optional[float] = ..., device: _Optional[_Union[_plan_pb2.DeviceFacts, _Mapping]] = ..., leaving: _Optional[str] = ...) -> None: ...

class RegisterResponse(_message.Message):
    __slots__ = ("incarnation", "heartbeat_seconds", "checkpoint_root", "cache_address")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_ROOT_FIELD_NUMBER: _ClassVar[int]
    CACHE_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    heartbeat_seconds: float
    checkpoint_root: str
    cache_address: str
    def __init__(self, incarnation: _Optional[int] = ..., heartbeat_seconds: _Optional[float] = ..., checkpoint_root: _Optional[str] = ..., cache_address: _Optional[str] = ...) -> None: ...

class HeartbeatRequest(_message.Message):
    __slots__ = ("worker_id", "generation", "step", "phase", "phase_seconds", "cache", "link", "resident_bytes", "step_parts", "phase_p99_seconds", "uncovered_pieces", "waiting_seconds", "busy_seconds", "device_phase", "device_seconds", "device_waiting", "near_link", "memory", "spending")
    class StepPartsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    class PhaseP99SecondsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    PHASE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    CACHE_FIELD_NUMBER: _ClassVar[int]
    LINK_FIELD_NUMBER: _ClassVar[int]
    RESIDENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    STEP_PARTS_FIELD_NUMBER: _ClassVar[int]
    PHASE_P99_SECONDS_FIELD_NUMBER: _ClassVar[int]
    UNCOVERED_PIECES_FIELD_NUMBER: _ClassVar[int]
    WAITING_SECONDS_FIELD_NUMBER: _ClassVar[int]
    BUSY_SECONDS_FIELD_NUMBER: _ClassVar[int]
    DEVICE_PHASE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    DEVICE_WAITING_FIELD_NUMBER: _ClassVar[int]
    NEAR_LINK_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    SPENDING_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    generation: _plan_pb2.GenerationId
    step: int
    phase: str
    phase_seconds: float
    cache: _plan_pb2.CacheProfile
    link: _plan_pb2.LinkProfile
    resident_bytes: int
    step_parts: _containers.ScalarMap[str, float]
    phase_p99_seconds: _containers.ScalarMap[str, float]
    uncovered_pieces: _containers.RepeatedScalarFieldContainer[int]
    waiting_seconds: float
    busy_seconds: float
    device_phase: str
    device_seconds: float
    device_waiting: bool
    near_link: _plan_pb2.LinkProfile
    memory: MemoryUse
    spending: Spending
    def __init__(self, worker_id: _Optional[str] = ..., generation: _Optional[_Union[_plan_pb2.GenerationId, _Mapping]] = ..., step: _Optional[int] = ..., phase: _Optional[str] = ..., phase_seconds: _Optional[float] = ..., cache: _Optional[_Union[_plan_pb2.CacheProfile, _Mapping]] = ..., link: _Optional[_Union[_plan_pb2.LinkProfile, _Mapping]] = ..., resident_bytes: _Optional[int] = ..., step_parts: _Optional[_Mapping[str, float]] = ..., phase_p99_seconds: _Optional[_Mapping[str, float]] = ..., uncovered_pieces: _Optional[_Iterable[int]] = ..., waiting_seconds: _Optional[float] = ..., busy_seconds: _Optional[float] = ..., device_phase: _Optional[str] = ..., device_seconds: _Optional[float] = ..., device_waiting: bool = ..., near_link: _Optional[_Union[_plan_pb2.LinkProfile, _Mapping]] = ..., memory: _Optional[_Union[MemoryUse, _Mapping]] = ..., spending: _Optional[_Union[Spending, _Mapping]] = ...) -> None: ...

class Spending(_message.Message):
    __slots__ = ("seconds", "waiting_seconds")
    class SecondsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    class WaitingSecondsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    WAITING_SECONDS_FIELD_NUMBER: _ClassVar[int]
    seconds: _containers.ScalarMap[str, float]
    waiting_seconds: _containers.ScalarMap[str, float]
    def __init__(self, seconds: _Optional[_Mapping[str, float]] = ..., waiting_seconds: _Optional[_Mapping[str, float]] = ...) -> None: ...

class MemoryUse(_message.Message):
    __slots__ = ("peak_bytes", "limit_bytes", "communicator_bytes", "communicators", "tensor_bytes")
    PEAK_BYTES_FIELD_NUMBER: _ClassVar[int]
    LIMIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    COMMUNICATOR_BYTES_FIELD_NUMBER: _ClassVar[int]
    COMMUNICATORS_FIELD_NUMBER: _ClassVar[int]
    TENSOR_BYTES_FIELD_NUMBER: _ClassVar[int]
    peak_bytes: int
    limit_bytes: int
    communicator_bytes: int
    communicators: int
    tensor_bytes: int
    def __init__(self, peak_bytes: _Optional[int] = ..., limit_bytes: _Optional[int] = ..., communicator_bytes: _Optional[int] = ..., communicators: _Optional[int] = ..., tensor_bytes: _Optional[int] = ...) -> None: ...

class HeartbeatResponse(_message.Message):
    __slots__ = ("durable_step", "durable_lineage", "durable_interval", "known")
    DURABLE_STEP_FIELD_NUMBER: _ClassVar[int]
    DURABLE_LINEAGE_FIELD_NUMBER: _ClassVar[int]
    DURABLE_INTERVAL_FIELD_NUMBER: _ClassVar[int]
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    durable_step: int
    durable_lineage: int
    durable_interval: int
    known: bool
    def __init__(self, durable_step: _Optional[int] = ..., durable_lineage: _Optional[int] = ..., durable_interval: _Optional[int] = ..., known: bool = ...) -> None: ...

class HeartbeatsRequest(_message.Message):
    __slots__ = ("heartbeat", "quiet")
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    QUIET_FIELD_NUMBER: _ClassVar[int]
    heartbeat: HeartbeatRequest
    quiet: bool
    def __init__(self, heartbeat: _Optional[_Union[HeartbeatRequest, _Mapping]] = ..., quiet: bool = ...) -> None: ...

class HeartbeatsResponse(_message.Message):
    __slots__ = ("heartbeat",)
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    heartbeat: HeartbeatResponse
    def __init__(self, heartbeat: _Optional[_Union[HeartbeatResponse, _Mapping]] = ...) -> None: ...

class ReportStatisticsRequest(_message.Message):
    __slots__ = ("worker_id", "generation", "statistics")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STATISTICS_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    generation: _plan_pb2.GenerationId
    statistics: _containers.RepeatedCompositeFieldContainer[_plan_pb2.IntervalStatistics]
    def __init__(self, worker_id: _Optional[str] = ..., generation: _Optional[_Union[_plan_pb2.GenerationId, _Mapping]] = ..., statistics: _Optional[_Iterable[_Union[_plan_pb2.IntervalStatistics, _Mapping]]] = ...) -> None: ...

class ReportStatisticsResponse(_message.Message):
    __slots__ = ("durable_interval",)
    DURABLE_INTERVAL_FIELD_NUMBER: _ClassVar[int]
    durable_interval: int
    def __init__(self, durable_interval: _Optional[int] = ...) -> None: ...

class ReportRecordsRequest(_message.Message):
    __slots__ = ("worker_id", "generation", "records", "outcome", "events", "traces")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    TRACES_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    generation: _plan_pb2.GenerationId
    records: _containers.RepeatedCompositeFieldContainer[_plan_pb2.StepRecord]
    outcome: RunOutcome
    events: _containers.RepeatedCompositeFieldContainer[RunEvent]
    traces: _containers.RepeatedCompositeFieldContainer[_plan_pb2.StepTrace]
    def __init__(self, worker_id: _Optional[str] = ..., generation: _Optional[_Union[_plan_pb2.GenerationId, _Mapping]] = ..., records: _Optional[_Iterable[_Union[_plan_pb2.StepRecord, _Mapping]]] = ..., outcome: _Optional[_Union[RunOutcome, _Mapping]] = ..., events: _Optional[_Iterable[_Union[RunEvent, _Mapping]]] = ..., traces: _Optional[_Iterable[_Union[_plan_pb2.StepTrace, _Mapping]]] = ...) -> None: ...

class ReportRecordsResponse(_message.Message):
    __slots__ = ("durable_step", "durable_lineage")
    DURABLE_STEP_FIELD_NUMBER: _ClassVar[int]
    DURABLE_LINEAGE_FIELD_NUMBER: _ClassVar[int]
    durable_step: int
    durable_lineage: int
    def __init__(self, durable_step: _Optional[int] = ..., durable_lineage: _Optional[int] = ...) -> None: ...

class RunEvent(_message.Message):
    __slots__ = ("kind", "step", "lineage", "reason", "seconds", "detail")
    class DetailEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    KIND_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    LINEAGE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    kind: str
    step: int
    lineage: int
    reason: str
    seconds: float
    detail: _containers.ScalarMap[str, str]
    def __init__(self, kind: _Optional[str] = ..., step: _Optional[int] = ..., lineage: _Optional[int] = ..., reason: _Optional[str] = ..., seconds: _Optional[float] = ..., detail: _Optional[_Mapping[str, str]] = ...) -> None: ...

class RunOutcome(_message.Message):
    __slots__ = ("status", "digest", "final", "steps", "message", "checkpoint_path", "settings")
    class FinalEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    class SettingsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    STATUS_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    FINAL_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_PATH_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    status: str
    digest: str
    final: _containers.ScalarMap[str, float]
    steps: int
    message: str
    checkpoint_path: str
    settings: _containers.ScalarMap[str, str]
    def __init__(self, status: _Optional[str] = ..., digest: _Optional[str] = ..., final: _Optional[_Mapping[str, float]] = ..., steps: _Optional[int] = ..., message: _Optional[str] = ..., checkpoint_path: _Optional[str] = ..., settings: _Optional[_Mapping[str, str]] = ...) -> None: ...

class WatchPlanRequest(_message.Message):
    __slots__ = ("worker_id",)
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    def __init__(self, worker_id: _Optional[str] = ...) -> None: ...

class WatchPlanResponse(_message.Message):
    __slots__ = ("plan", "decision", "ready", "withdraw", "drain", "end", "checkpoint", "fence", "stack")
    PLAN_FIELD_NUMBER: _ClassVar[int]
    DECISION_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    WITHDRAW_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    FENCE_FIELD_NUMBER: _ClassVar[int]
    STACK_FIELD_NUMBER: _ClassVar[int]
    plan: _plan_pb2.Plan
    decision: _plan_pb2.Decision
    ready: ReadyNotice
    withdraw: WithdrawNotice
    drain: DrainNotice
    end: EndNotice
    checkpoint: CheckpointNotice
    fence: FenceNotice
    stack: StackNotice
    def __init__(self, plan: _Optional[_Union[_plan_pb2.Plan, _Mapping]] = ..., decision: _Optional[_Union[_plan_pb2.Decision, _Mapping]] = ..., ready: _Optional[_Union[ReadyNotice, _Mapping]] = ..., withdraw: _Optional[_Union[WithdrawNotice, _Mapping]] = ..., drain: _Optional[_Union[DrainNotice, _Mapping]] = ..., end: _Optional[_Union[EndNotice, _Mapping]] = ..., checkpoint: _Optional[_Union[CheckpointNotice, _Mapping]] = ..., fence: _Optional[_Union[FenceNotice, _Mapping]] = ..., stack: _Optional[_Union[StackNotice, _Mapping]] = ...) -> None: ...

class ReadyNotice(_message.Message):
    __slots__ = ("generation",)
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    generation: _plan_pb2.GenerationId
    def __init__(self, generation: _Optional[_Union[_plan_pb2.GenerationId, _Mapping]] = ...) -> None: ...

class WithdrawNotice(_message.Message):
    __slots__ = ("generation", "reason")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    generation: _plan_pb2.GenerationId
    reason: str
    def __init__(self, generation: _Optional[_Union[_plan_pb2.GenerationId, _Mapping]] = ..., reason: _Optional[str] = ...) -> None: ...

class DrainNotice(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class EndNotice(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class CheckpointNotice(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class FenceNotice(_message.Message):
    __slots__ = ("generation", "reason")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    generation: _plan_pb2.GenerationId
    reason: str
    def __init__(self, generation: _Optional[_Union[_plan_pb2.GenerationId, _Mapping]] = ..., reason: _Optional[str] = ...) -> None: ...

class StackNotice(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class ReadyRequest(_message.Message):
    __slots__ = ("worker_id", "generation", "ready", "seconds", "reason", "entered", "step")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ENTERED_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    generation: _plan_pb2.GenerationId
    ready: bool
    seconds: float
    reason: str
    entered: bool
    step: int
    def __init__(self, worker_id: _Optional[str] = ..., generation: _Optional[_Union[_plan_pb2.GenerationId, _Mapping]] = ..., ready: bool = ..., seconds: _Optional[float] = ..., reason: _Optional[str] = ..., entered: bool = ..., step: _Optional[int] = ...) -> None: ...

class ReadyResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PieceReport(_message.Message):
    __slots__ = ("piece", "intact", "state", "prepared")
    PIECE_FIELD_NUMBER: _ClassVar[int]
    INTACT_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    PREPARED_FIELD_NUMBER: _ClassVar[int]
    piece: int
    intact: bool
    state: _plan_pb2.StateTag
    prepared: bool
    def __init__(self, piece: _Optional[int] = ..., intact: bool = ..., state: _Optional[_Union[_plan_pb2.StateTag, _Mapping]] = ..., prepared: bool = ...) -> None: ...

class PlanFate(_message.Message):
    __slots__ = ("generation", "switched")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    SWITCHED_FIELD_NUMBER: _ClassVar[int]
    generation: _plan_pb2.GenerationId
    switched: bool
    def __init__(self, generation: _Optional[_Union[_plan_pb2.GenerationId, _Mapping]] = ..., switched: bool = ...) -> None: ...

class ReportRecoveryRequest(_message.Message):
    __slots__ = ("worker_id", "incarnation", "generation", "ran", "pieces", "seen", "fates", "error", "fenced", "distrusted_from", "cache_distrusted", "distrusted_workers", "distrusted_detail", "memory_shortage")
    class DistrustedDetailEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    RAN_FIELD_NUMBER: _ClassVar[int]
    PIECES_FIELD_NUMBER: _ClassVar[int]
    SEEN_FIELD_NUMBER: _ClassVar[int]
    FATES_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    FENCED_FIELD_NUMBER: _ClassVar[int]
    DISTRUSTED_FROM_FIELD_NUMBER: _ClassVar[int]
    CACHE_DISTRUSTED_FIELD_NUMBER: _ClassVar[int]
    DISTRUSTED_WORKERS_FIELD_NUMBER: _ClassVar[int]
    DISTRUSTED_DETAIL_FIELD_NUMBER: _ClassVar[int]
    MEMORY_SHORTAGE_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    incarnation: int
    generation: _plan_pb2.GenerationId
    ran: _plan_pb2.GenerationId
    pieces: _containers.RepeatedCompositeFieldContainer[PieceReport]
    seen: _containers.RepeatedCompositeFieldContainer[_plan_pb2.SeenVote]
    fates: _containers.RepeatedCompositeFieldContainer[PlanFate]
    error: str
    fenced: bool
    distrusted_from: int
    cache_distrusted: bool
    distrusted_workers: _containers.RepeatedScalarFieldContainer[str]
    distrusted_detail: _containers.ScalarMap[str, str]
    memory_shortage: MemoryShortage
    def __init__(self, worker_id: _Optional[str] = ..., incarnation: _Optional[int] = ..., generation: _Optional[_Union[_plan_pb2.GenerationId, _Mapping]] = ..., ran: _Optional[_Union[_plan_pb2.GenerationId, _Mapping]] = ..., pieces: _Optional[_Iterable[_Union[PieceReport, _Mapping]]] = ..., seen: _Optional[_Iterable[_Union[_plan_pb2.SeenVote, _Mapping]]] = ..., fates: _Optional[_Iterable[_Union[PlanFate, _Mapping]]] = ..., error: _Optional[str] = ..., fenced: bool = ..., distrusted_from: _Optional[int] = ..., cache_distrusted: bool = ..., distrusted_workers: _Optional[_Iterable[str]] = ..., distrusted_detail: _Optional[_Mapping[str, str]] = ..., memory_shortage: _Optional[_Union[MemoryShortage, _Mapping]] = ...) -> None: ...

class MemoryShortage(_message.Message):
    __slots__ = ("peak_bytes", "limit_bytes")
    PEAK_BYTES_FIELD_NUMBER: _ClassVar[int]
    LIMIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    peak_bytes: int
    limit_bytes: int
    def __init__(self, peak_bytes: _Optional[int] = ..., limit_bytes: _Optional[int] = ...) -> None: ...

class ReportRecoveryResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class LeaveRequest(_message.Message):
    __slots__ = ("worker_id", "reason", "ended", "error", "user_mistake", "exit_code", "node", "device_uuid")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    USER_MISTAKE_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_UUID_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    reason: str
    ended: bool
    error: str
    user_mistake: bool
    exit_code: int
    node: str
    device_uuid: str
    def __init__(self, worker_id: _Optional[str] = ..., reason: _Optional[str] = ..., ended: bool = ..., error: _Optional[str] = ..., user_mistake: bool = ..., exit_code: _Optional[int] = ..., node: _Optional[str] = ..., device_uuid: _Optional[str] = ...) -> None: ...

class LeaveResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CommandRequest(_message.Message):
    __slots__ = ("kind", "freeze_point", "workers", "degrees", "schedule", "virtual_stages", "slices", "shard", "tensor_rows", "pp_degree", "dp_degree")
    class DegreesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    KIND_FIELD_NUMBER: _ClassVar[int]
    FREEZE_POINT_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    DEGREES_FIELD_NUMBER: _ClassVar[int]
    SCHEDULE_FIELD_NUMBER: _ClassVar[int]
    VIRTUAL_STAGES_FIELD_NUMBER: _ClassVar[int]
    SLICES_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    TENSOR_ROWS_FIELD_NUMBER: _ClassVar[int]
    PP_DEGREE_FIELD_NUMBER: _ClassVar[int]
    DP_DEGREE_FIELD_NUMBER: _ClassVar[int]
    kind: str
    freeze_point: int
    workers: int
    degrees: _containers.ScalarMap[str, int]
    schedule: str
    virtual_stages: int
    slices: int
    shard: str
    tensor_rows: str
    pp_degree: int
    dp_degree: int
    def __init__(self, kind: _Optional[str] = ..., freeze_point: _Optional[int] = ..., workers: _Optional[int] = ..., degrees: _Optional[_Mapping[str, int]] = ..., schedule: _Optional[str] = ..., virtual_stages: _Optional[int] = ..., slices: _Optional[int] = ..., shard: _Optional[str] = ..., tensor_rows: _Optional[str] = ..., pp_degree: _Optional[int] = ..., dp_degree: _Optional[int] = ...) -> None: ...

class CommandResponse(_message.Message):
    __slots__ = ("answer",)
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    answer: str
    def __init__(self, answer: _Optional[str] = ...) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WorkerStatus(_message.Message):
    __slots__ = ("worker_id", "pod_name", "process_id", "state", "pp_rank", "dp_rank", "stages", "heartbeat_age_seconds", "step", "phase", "global_rank", "units", "resident_bytes", "step_parts", "slowness", "keeps", "device", "memory", "usage")
    class StepPartsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    POD_NAME_FIELD_NUMBER: _ClassVar[int]
    PROCESS_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    PP_RANK_FIELD_NUMBER: _ClassVar[int]
    DP_RANK_FIELD_NUMBER: _ClassVar[int]
    STAGES_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_AGE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    GLOBAL_RANK_FIELD_NUMBER: _ClassVar[int]
    UNITS_FIELD_NUMBER: _ClassVar[int]
    RESIDENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    STEP_PARTS_FIELD_NUMBER: _ClassVar[int]
    SLOWNESS_FIELD_NUMBER: _ClassVar[int]
    KEEPS_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    pod_name: str
    process_id: int
    state: str
    pp_rank: int
    dp_rank: int
    stages: _containers.RepeatedScalarFieldContainer[int]
    heartbeat_age_seconds: float
    step: int
    phase: str
    global_rank: int
    units: _containers.RepeatedScalarFieldContainer[int]
    resident_bytes: int
    step_parts: _containers.ScalarMap[str, float]
    slowness: float
    keeps: _containers.RepeatedScalarFieldContainer[int]
    device: _plan_pb2.DeviceFacts
    memory: MemoryUse
    usage: _plan_pb2.WorkerUsage
    def __init__(self, worker_id: _Optional[str] = ..., pod_name: _Optional[str] = ..., process_id: _Optional[int] = ..., state: _Optional[str] = ..., pp_rank: _Optional[int] = ..., dp_rank: _Optional[int] = ..., stages: _Optional[_Iterable[int]] = ..., heartbeat_age_seconds: _Optional[float] = ..., step: _Optional[int] = ..., phase: _Optional[str] = ..., global_rank: _Optional[int] = ..., units: _Optional[_Iterable[int]] = ..., resident_bytes: _Optional[int] = ..., step_parts: _Optional[_Mapping[str, float]] = ..., slowness: _Optional[float] = ..., keeps: _Optional[_Iterable[int]] = ..., device: _Optional[_Union[_plan_pb2.DeviceFacts, _Mapping]] = ..., memory: _Optional[_Union[MemoryUse, _Mapping]] = ..., usage: _Optional[_Union[_plan_pb2.WorkerUsage, _Mapping]] = ...) -> None: ...

class QuarantinedDevice(_message.Message):
    __slots__ = ("node", "uuid", "failures")
    NODE_FIELD_NUMBER: _ClassVar[int]
    UUID_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    node: str
    uuid: str
    failures: int
    def __init__(self, node: _Optional[str] = ..., uuid: _Optional[str] = ..., failures: _Optional[int] = ...) -> None: ...

class StatusResponse(_message.Message):
    __slots__ = ("name", "state", "step", "total_steps", "generation", "freeze_point", "num_units", "placement", "workers", "loss", "metrics", "samples_per_second", "cache_hit_fraction", "seconds_left", "message", "lineage", "epoch", "incarnation", "resident_bytes", "uncovered_units", "run_epoch", "prefix_tile", "prefix_tile_reason", "backend", "quarantined", "ledger", "memory_over_cap", "carried_bytes", "numerics_reason")
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    class CarriedBytesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    TOTAL_STEPS_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    FREEZE_POINT_FIELD_NUMBER: _ClassVar[int]
    NUM_UNITS_FIELD_NUMBER: _ClassVar[int]
    PLACEMENT_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    CACHE_HIT_FRACTION_FIELD_NUMBER: _ClassVar[int]
    SECONDS_LEFT_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    LINEAGE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    RESIDENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    UNCOVERED_UNITS_FIELD_NUMBER: _ClassVar[int]
    RUN_EPOCH_FIELD_NUMBER: _ClassVar[int]
    PREFIX_TILE_FIELD_NUMBER: _ClassVar[int]
    PREFIX_TILE_REASON_FIELD_NUMBER: _ClassVar[int]
    BACKEND_FIELD_NUMBER: _ClassVar[int]
    QUARANTINED_FIELD_NUMBER: _ClassVar[int]
    LEDGER_FIELD_NUMBER: _ClassVar[int]
    MEMORY_OVER_CAP_FIELD_NUMBER: _ClassVar[int]
    CARRIED_BYTES_FIELD_NUMBER: _ClassVar[int]
    NUMERICS_REASON_FIELD_NUMBER: _ClassVar[int]
    name: str
    state: str
    step: int
    total_steps: int
    generation: _plan_pb2.GenerationId
    freeze_point: int
    num_units: int
    placement: _plan_pb2.Placement
    workers: _containers.RepeatedCompositeFieldContainer[WorkerStatus]
    loss: float
    metrics: _containers.ScalarMap[str, float]
    samples_per_second: float
    cache_hit_fraction: float
    seconds_left: float
    message: str
    lineage: int
    epoch: float
    incarnation: int
    resident_bytes: int
    uncovered_units: _containers.RepeatedScalarFieldContainer[int]
    run_epoch: int
    prefix_tile: str
    prefix_tile_reason: str
    backend: str
    quarantined: _containers.RepeatedCompositeFieldContainer[QuarantinedDevice]
    ledger: Ledger
    memory_over_cap: str
    carried_bytes: _containers.ScalarMap[str, int]
    numerics_reason: str
    def __init__(self, name: _Optional[str] = ..., state: _Optional[str] = ..., step: _Optional[int] = ..., total_steps: _Optional[int] = ..., generation: _Optional[_Union[_plan_pb2.GenerationId, _Mapping]] = ..., freeze_point: _Optional[int] = ..., num_units: _Optional[int] = ..., placement: _Optional[_Union[_plan_pb2.Placement, _Mapping]] = ..., workers: _Optional[_Iterable[_Union[WorkerStatus, _Mapping]]] = ..., loss: _Optional[float] = ..., metrics: _Optional[_Mapping[str, float]] = ..., samples_per_second: _Optional[float] = ..., cache_hit_fraction: _Optional[float] = ..., seconds_left: _Optional[float] = ..., message: _Optional[str] = ..., lineage: _Optional[int] = ..., epoch: _Optional[float] = ..., incarnation: _Optional[int] = ..., resident_bytes: _Optional[int] = ..., uncovered_units: _Optional[_Iterable[int]] = ..., run_epoch: _Optional[int] = ..., prefix_tile: _Optional[str] = ..., prefix_tile_reason: _Optional[str] = ..., backend: _Optional[str] = ..., quarantined: _Optional[_Iterable[_Union[QuarantinedDevice, _Mapping]]] = ..., ledger: _Optional[_Union[Ledger, _Mapping]] = ..., memory_over_cap: _Optional[str] = ..., carried_bytes: _Optional[_Mapping[str, int]] = ..., numerics_reason: _Optional[str] = ...) -> None: ...

class Ledger(_message.Message):
    __slots__ = ("used_seconds", "saved_seconds", "price_per_worker_hour")
    class UsedSecondsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    class SavedSecondsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    USED_SECONDS_FIELD_NUMBER: _ClassVar[int]
    SAVED_SECONDS_FIELD_NUMBER: _ClassVar[int]
    PRICE_PER_WORKER_HOUR_FIELD_NUMBER: _ClassVar[int]
    used_seconds: _containers.ScalarMap[str, float]
    saved_seconds: _containers.ScalarMap[str, float]
    price_per_worker_hour: float
    def __init__(self, used_seconds: _Optional[_Mapping[str, float]] = ..., saved_seconds: _Optional[_Mapping[str, float]] = ..., price_per_worker_hour: _Optional[float] = ...) -> None: ...
