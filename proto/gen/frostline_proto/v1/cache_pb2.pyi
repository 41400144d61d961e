from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Identity(_message.Message):
    __slots__ = ("prefix_revision", "dataset_digest", "split", "boundary")
    PREFIX_REVISION_FIELD_NUMBER: _ClassVar[int]
    DATASET_DIGEST_FIELD_NUMBER: _ClassVar[int]
    SPLIT_FIELD_NUMBER: _ClassVar[int]
    BOUNDARY_FIELD_NUMBER: _ClassVar[int]
    prefix_revision: str
    dataset_digest: str
    split: str
    boundary: int
    def __init__(self, prefix_revision: _Optional[str] = ..., dataset_digest: _Optional[str] = ..., split: _Optional[str] = ..., boundary: _Optional[int] = ...) -> None: ...

class DescribeShardsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Shard(_message.Message):
    __slots__ = ("host", "port", "database", "up", "run_id")
    HOST_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    DATABASE_FIELD_NUMBER: _ClassVar[int]
    UP_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    host: str
    port: int
    database: int
    up: bool
    run_id: str
    def __init__(self, host: _Optional[str] = ..., port: _Optional[int] = ..., database: _Optional[int] = ..., up: bool = ..., run_id: _Optional[str] = ...) -> None: ...

class DescribeShardsResponse(_message.Message):
    __slots__ = ("shards", "map_version")
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    MAP_VERSION_FIELD_NUMBER: _ClassVar[int]
    shards: _containers.RepeatedCompositeFieldContainer[Shard]
    map_version: int
    def __init__(self, shards: _Optional[_Iterable[_Union[Shard, _Mapping]]] = ..., map_version: _Optional[int] = ...) -> None: ...

class AdmitRequest(_message.Message):
    __slots__ = ("identity", "samples", "value_bytes")
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    VALUE_BYTES_FIELD_NUMBER: _ClassVar[int]
    identity: Identity
    samples: int
    value_bytes: int
    def __init__(self, identity: _Optional[_Union[Identity, _Mapping]] = ..., samples: _Optional[int] = ..., value_bytes: _Optional[int] = ...) -> None: ...

class AdmitResponse(_message.Message):
    __slots__ = ("fraction", "reason")
    FRACTION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    fraction: float
    reason: str
    def __init__(self, fraction: _Optional[float] = ..., reason: _Optional[str] = ...) -> None: ...

class AdvanceBoundaryRequest(_message.Message):
    __slots__ = ("old_identity", "new_identity")
    OLD_IDENTITY_FIELD_NUMBER: _ClassVar[int]
    NEW_IDENTITY_FIELD_NUMBER: _ClassVar[int]
    old_identity: Identity
    new_identity: Identity
    def __init__(self, old_identity: _Optional[_Union[Identity, _Mapping]] = ..., new_identity: _Optional[_Union[Identity, _Mapping]] = ...) -> None: ...

class AdvanceBoundaryResponse(_message.Message):
    __slots__ = ("old_known", "fraction")
    OLD_KNOWN_FIELD_NUMBER: _ClassVar[int]
    FRACTION_FIELD_NUMBER: _ClassVar[int]
    old_known: bool
    fraction: float
    def __init__(self, old_known: bool = ..., fraction: _Optional[float] = ...) -> None: ...

class LeaseRequest(_message.Message):
    __slots__ = ("identity", "holder", "seconds")
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    identity: Identity
    holder: str
    seconds: float
    def __init__(self, identity: _Optional[_Union[Identity, _Mapping]] = ..., holder: _Optional[str] = ..., seconds: _Optional[float] = ...) -> None: ...

class LeaseResponse(_message.Message):
    __slots__ = ("seconds",)
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    seconds: float
    def __init__(self, seconds: _Optional[float] = ...) -> None: ...

class ReportUseRequest(_message.Message):
    __slots__ = ("worker_id", "identity", "hits", "misses", "fills", "dropped_fills", "refused_fills", "corrupt", "bytes_read", "bytes_written", "read_seconds", "write_seconds", "audited", "audit_failures")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    HITS_FIELD_NUMBER: _ClassVar[int]
    MISSES_FIELD_NUMBER: _ClassVar[int]
    FILLS_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FILLS_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FILLS_FIELD_NUMBER: _ClassVar[int]
    CORRUPT_FIELD_NUMBER: _ClassVar[int]
    BYTES_READ_FIELD_NUMBER: _ClassVar[int]
    BYTES_WRITTEN_FIELD_NUMBER: _ClassVar[int]
    READ_SECONDS_FIELD_NUMBER: _ClassVar[int]
    WRITE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    AUDITED_FIELD_NUMBER: _ClassVar[int]
    AUDIT_FAILURES_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    identity: Identity
    hits: int
    misses: int
    fills: int
    dropped_fills: int
    refused_fills: int
    corrupt: int
    bytes_read: int
    bytes_written: int
    read_seconds: float
    write_seconds: float
    audited: int
    audit_failures: int
    def __init__(self, worker_id: _Optional[str] = ..., identity: _Optional[_Union[Identity, _Mapping]] = ..., hits: _Optional[int] = ..., misses: _Optional[int] = ..., fills: _Optional[int] = ..., dropped_fills: _Optional[int] = ..., refused_fills: _Optional[int] = ..., corrupt: _Optional[int] = ..., bytes_read: _Optional[int] = ..., bytes_written: _Optional[int] = ..., read_seconds: _Optional[float] = ..., write_seconds: _Optional[float] = ..., audited: _Optional[int] = ..., audit_failures: _Optional[int] = ...) -> None: ...

class ReportUseResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CacheStatisticsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CacheStatisticsResponse(_message.Message):
    __slots__ = ("hits", "misses", "fills", "dropped_fills", "refused_fills", "corrupt", "bytes_read", "bytes_written", "read_seconds", "write_seconds", "memory_used_bytes", "memory_limit_bytes", "values", "audited", "audit_failures")
    HITS_FIELD_NUMBER: _ClassVar[int]
    MISSES_FIELD_NUMBER: _ClassVar[int]
    FILLS_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FILLS_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FILLS_FIELD_NUMBER: _ClassVar[int]
    CORRUPT_FIELD_NUMBER: _ClassVar[int]
    BYTES_READ_FIELD_NUMBER: _ClassVar[int]
    BYTES_WRITTEN_FIELD_NUMBER: _ClassVar[int]
    READ_SECONDS_FIELD_NUMBER: _ClassVar[int]
    WRITE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_LIMIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    AUDITED_FIELD_NUMBER: _ClassVar[int]
    AUDIT_FAILURES_FIELD_NUMBER: _ClassVar[int]
    hits: int
    misses: int
    fills: int
    dropped_fills: int
    refused_fills: int
    corrupt: int
    bytes_read: int
    bytes_written: int
    read_seconds: float
    write_seconds: float
    memory_used_bytes: int
    memory_limit_bytes: int
    values: int
    audited: int
    audit_failures: int
    def __init__(self, hits: _Optional[int] = ..., misses: _Optional[int] = ..., fills: _Optional[int] = ..., dropped_fills: _Optional[int] = ..., refused_fills: _Optional[int] = ..., corrupt: _Optional[int] = ..., bytes_read: _Optional[int] = ..., bytes_written: _Optional[int] = ..., read_seconds: _Optional[float] = ..., write_seconds: _Optional[float] = ..., memory_used_bytes: _Optional[int] = ..., memory_limit_bytes: _Optional[int] = ..., values: _Optional[int] = ..., audited: _Optional[int] = ..., audit_failures: _Optional[int] = ...) -> None: ...
