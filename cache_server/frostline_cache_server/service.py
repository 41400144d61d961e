"""The gRPC methods of the cache server."""

import logging
import time
from typing import Any

from frostline_cache_server.admission import usable_bytes
from frostline_cache_server.boundaries import Boundaries
from frostline_cache_server.shards import ShardMap
from frostline_contract.cache_counts import CACHE_COUNTS
from frostline_contract.cache_identity import CacheIdentity
from frostline_proto.v1 import cache_pb2, cache_pb2_grpc
from frostline_rpc.errors import InvalidRequest

LEASE_SECONDS_MAX = 3600.0
HOLDER_CHARACTERS_MAX = 200
log = logging.getLogger(__name__)


class CacheControl(cache_pb2_grpc.CacheControlServicer):
    """Shard map, admission, boundaries, leases and totals. The state is small; after a restart the workers' renewals rebuild it.

    Args:
        shards: the shard map.
        boundaries: the identities that runs use.
        memory_bytes: limit of all shards together; None: the shards' own maxmemory.
    """

    def __init__(self, shards: ShardMap, boundaries: Boundaries, memory_bytes: int | None) -> None:
        self._shards, self._boundaries, self._memory_bytes = shards, boundaries, memory_bytes
        self.totals: dict[str, float] = dict.fromkeys(CACHE_COUNTS, 0)

    def limit_bytes(self) -> int:
        """The memory limit of all shards together, in bytes; 0: none is known."""
        limits = [limit for limit in (self._memory_bytes, self._shards.memory_limit) if limit]
        return min(limits, default=0)

    def usable_bytes(self) -> int:
        """Bytes of `limit_bytes` that values may take; the rest is for Redis itself."""
        return usable_bytes(self.limit_bytes(), len(self._shards.shards))

    async def DescribeShards(self, request: cache_pb2.DescribeShardsRequest, context: Any) -> cache_pb2.DescribeShardsResponse:
        """Return the shards in the order that hashing uses, and the map's version."""
        shards = [
            cache_pb2.Shard(host=shard.host, port=shard.port, up=shard.up, run_id=shard.run_id) for shard in self._shards.shards
        ]
        return cache_pb2.DescribeShardsResponse(shards=shards, map_version=self._shards.version)

    async def Admit(self, request: cache_pb2.AdmitRequest, context: Any) -> cache_pb2.AdmitResponse:
        """Return the share of a boundary's values that may be stored, and why. Raises InvalidRequest."""
        identity = _identity(request.identity)
        if request.samples < 0 or request.value_bytes < 1:
            raise InvalidRequest(f"samples is {request.samples}, value_bytes {request.value_bytes}; must be >= 0 and >= 1")
        before = self._boundaries.known(identity)
        old = before.admission.fraction if before else None
        admission = self._boundaries.admit(identity, request.samples, request.value_bytes, self.usable_bytes(), time.monotonic())
        if admission.fraction != old:
            fields = {"boundary": identity.boundary, "split": identity.split, "fraction": admission.fraction}
            log.info("admitted", extra=fields | {"reason": admission.reason})
        return cache_pb2.AdmitResponse(fraction=admission.fraction, reason=admission.reason)

    async def AdvanceBoundary(self, request: cache_pb2.AdvanceBoundaryRequest, context: Any) -> cache_pb2.AdvanceBoundaryResponse:
        """Admit a new boundary whose values gradually replace an old one's. Raises InvalidRequest where both are the same."""
        old, new = _identity(request.old_identity), _identity(request.new_identity)
        if old == new:
            raise InvalidRequest(f"old_identity and new_identity are the same (boundary {old.boundary})")
        fresh = self._boundaries.known(new) is None
        old_known, admission = self._boundaries.advance(old, new, self.usable_bytes(), time.monotonic())
        if fresh:
            fields = {"from_boundary": old.boundary, "to_boundary": new.boundary, "split": new.split}
            log.info("boundary advanced", extra=fields | {"old_known": old_known, "fraction": admission.fraction})
        return cache_pb2.AdvanceBoundaryResponse(old_known=old_known, fraction=admission.fraction)

    async def Lease(self, request: cache_pb2.LeaseRequest, context: Any) -> cache_pb2.LeaseResponse:
        """Lease a boundary to a holder, for at most LEASE_SECONDS_MAX; return for how long. Raises InvalidRequest."""
        if not 0 < len(request.holder) <= HOLDER_CHARACTERS_MAX:
            raise InvalidRequest(f"holder has {len(request.holder)} characters; must be 1 to {HOLDER_CHARACTERS_MAX}")
        if not request.seconds >= 0.0:
            raise InvalidRequest(f"seconds is {request.seconds}; must be >= 0")
        seconds = min(request.seconds, LEASE_SECONDS_MAX)
        self._boundaries.lease(_identity(request.identity), request.holder, seconds, time.monotonic())
        return cache_pb2.LeaseResponse(seconds=seconds)

    async def ReportUse(self, request: cache_pb2.ReportUseRequest, context: Any) -> cache_pb2.ReportUseResponse:
        """Add a worker's counts to the totals, and log failed audits. Raises InvalidRequest."""
        amounts = {name: getattr(request, name) for name in CACHE_COUNTS}
        negative = [name for name, amount in amounts.items() if not amount >= 0]
        if negative:
            raise InvalidRequest(f"{negative[0]} is {amounts[negative[0]]}; must be >= 0")
        for name, amount in amounts.items():
            self.totals[name] += amount
        if request.audit_failures:
            fields = {"worker_id": request.worker_id, "samples": request.audit_failures, "boundary": request.identity.boundary}
            log.error("audit failed: cached values differ from computed ones", extra=fields)
        return cache_pb2.ReportUseResponse()

    async def Statistics(self, request: cache_pb2.CacheStatisticsRequest, context: Any) -> cache_pb2.CacheStatisticsResponse:
        """Return the totals since this server started, and the memory use of the shards."""
        return cache_pb2.CacheStatisticsResponse(
            **self.totals,
            memory_used_bytes=self._shards.memory_used,
            memory_limit_bytes=self.limit_bytes(),
            values=self._shards.values,
        )


def _identity(message: cache_pb2.Identity) -> CacheIdentity:
    """The checked identity of a message. Raises InvalidRequest that names the field."""
    for name in ("prefix_revision", "dataset_digest", "split"):
        value = getattr(message, name)
        if not 0 < len(value) <= 256:
            raise InvalidRequest(f"identity.{name} has {len(value)} characters; must be 1 to 256")
    if message.boundary < 1:
        raise InvalidRequest(f"identity.boundary is {message.boundary}; must be >= 1")
    return CacheIdentity(message.prefix_revision, message.dataset_digest, message.split, message.boundary)
