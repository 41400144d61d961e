"""A worker's client of the cache server, in one background thread: shard map, admission, leases, use counts.

No step waits for it. Without a cache server the known shards are still used, and no new boundary is admitted.
"""

import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import grpc

from frostline_contract.cache_counts import CACHE_COUNTS
from frostline_contract.cache_identity import CacheIdentity
from frostline_contract.run_directory import RunDirectory
from frostline_proto.v1 import cache_pb2, cache_pb2_grpc
from frostline_rpc.channel import error_text, open_channel
from frostline_trainer.cache.counts import CacheCounts, Meter
from frostline_trainer.cache.lane import Shard

CALL_SECONDS = 2.0
LEASE_SECONDS = 60.0
RENEW_SECONDS = 20.0
REPORT_SECONDS = 3.0
REFRESH_SECONDS = 5.0
RETRY_SECONDS = 1.0
PREVIOUS_IDLE_SECONDS = 600.0
"""Seconds without a read at the previous boundary after which its lease is no longer renewed."""

PASSWORD_VARIABLE = "FROSTLINE_REDIS_PASSWORD"
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Boundary:
    """The boundary for which the cache is used.

    Attributes:
        identity: of the boundary's values.
        previous: identity of the previous boundary's values; None: there is none.
        num_values: pairs of sample and variant.
        fraction: admitted share of these pairs; 0.0 before the admission.
    """

    identity: CacheIdentity
    previous: CacheIdentity | None
    num_values: int
    fraction: float = 0.0


class Control:
    """The client: it owns the shard list and the current boundary's admission; other threads only read them.

    Args:
        address: host:port of the cache server; `<run_dir>/cache.address` is preferred if it exists.
        token: the token for the cache server, or the path of a file that holds it.
        worker_id: the worker for which the cache server counts the use.
        run_dir: the run directory.
        value_bytes: mean size of a value with its headers.
        meter: counts the use of the cache.

    Attributes:
        asked: set when the cache server has been asked for its shards once, with or without an answer.
        asked_to_admit: set when it has been asked to admit the newest boundary's values, with or without an answer.
    """

    def __init__(self, address: str, token: str, worker_id: str, run_dir: Path, value_bytes: int, meter: Meter) -> None:
        self._address, self._token, self._worker_id, self._run_dir = address, token, worker_id, run_dir
        self._value_bytes, self._meter = value_bytes, meter
        self.shards: tuple[Shard, ...] = ()
        self.boundary: Boundary | None = None
        self.previous_used_at = 0.0
        self.asked, self.asked_to_admit = threading.Event(), threading.Event()
        self._lock = threading.Lock()
        self._unused: list[CacheIdentity] = []
        self._wake = threading.Event()
        self._closed = False
        self._channel: grpc.Channel | None = None
        self._channel_address = ""
        self._reachable: bool | None = None
        self._due = {"refresh": 0.0, "renew": 0.0, "report": time.monotonic() + REPORT_SECONDS}
        self._thread = threading.Thread(target=self._run, name="cache-control", daemon=True)
        self._thread.start()

    def set_boundary(self, identity: CacheIdentity, previous: CacheIdentity | None, num_values: int) -> None:
        """Ask the cache server for admission of another boundary, at once and in the background.

        Args:
            identity: of the new boundary's values.
            previous: identity of the previous boundary, whose values are advanced; None: there is none.
            num_values: pairs of sample and variant.
        """
        with self._lock:
            self._replace(Boundary(identity, previous, num_values))
            self.previous_used_at = time.monotonic()
            self._due["renew"] = 0.0
            self.asked_to_admit.clear()
        self._wake.set()

    def clear_boundary(self) -> None:
        """Stop caching, and release the leases."""
        with self._lock:
            self._replace(None)
        self._wake.set()

    def _replace(self, boundary: Boundary | None) -> None:
        """Replace the boundary, and note the leases of unused identities for release. The caller holds the lock."""
        kept = {boundary.identity, boundary.previous} if boundary else set()
        before = {self.boundary.identity, self.boundary.previous} if self.boundary else set()
        self._unused = [identity for identity in {*self._unused, *before} if identity is not None and identity not in kept]
        self.boundary = boundary

    def wake(self) -> None:
        """Let the background thread check now for due tasks, which it does periodically anyway."""
        self._wake.set()

    def close(self) -> None:
        """Stop, after a last report of use if the cache server answers within CALL_SECONDS.

        Leases are left to expire: a worker that closes for a reshape comes back for the same values.
        """
        self._closed = True
        self._wake.set()
        self._thread.join()

    # The thread -------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closed:
            now = time.monotonic()
            for name, period, task in (
                ("refresh", REFRESH_SECONDS, self._refresh_shards),
                ("renew", RENEW_SECONDS, self._renew),
                ("report", REPORT_SECONDS, self._report),
            ):
                if self._due[name] <= now and not self._closed:
                    self._due[name] = now + period
                    boundary = self.boundary
                    if not self._attempt(task):
                        self._due[name] = now + RETRY_SECONDS
                    self.asked.set()
                    if name == "renew":
                        self._note_asked(boundary)
            if self._unused:
                self._attempt(self._give_back)
            for shard in self.shards:
                shard.probe()
            self._wake.wait(self._idle_seconds())
            self._wake.clear()
        if self._attempt(self._report) and self._unused:
            self._attempt(self._give_back)
        self._close_channel()

    def _note_asked(self, boundary: Boundary | None) -> None:
        """Note that the cache server was asked to admit a boundary, if that is still the newest one."""
        with self._lock:
            if boundary is not None and self.boundary is not None and boundary.identity == self.boundary.identity:
                self.asked_to_admit.set()

    def _idle_seconds(self) -> float:
        moments = [*self._due.values(), *(shard.retry_at for shard in self.shards if not shard.up)]
        return min(REFRESH_SECONDS, max(0.02, min(moments) - time.monotonic()))

    def _attempt(self, task: Callable[[cache_pb2_grpc.CacheControlStub], None]) -> bool:
        """Run one task; a cache server that does not answer is logged once and asked again later."""
        address = self._current_address()
        if not address:
            return False
        if address != self._channel_address or self._channel is None:
            self._close_channel()
            self._channel, self._channel_address = open_channel(address, self._token), address
        try:
            task(cache_pb2_grpc.CacheControlStub(self._channel))
        except (grpc.RpcError, OSError) as error:
            if self._reachable is not False:
                said = error_text(error) if isinstance(error, grpc.RpcError) else str(error)
                log.warning("cache server %s: %s; training goes on without its answers", address, said)
            self._reachable = False
            return False
        if self._reachable is not True:
            log.info("cache server %s answers", address)
        self._reachable = True
        return True

    def _current_address(self) -> str:
        """The cache server's address: from the file that it writes at its start, else the one given."""
        file = RunDirectory(self._run_dir).cache_address
        try:
            return file.read_text().strip() or self._address
        except OSError:
            return self._address

    def _close_channel(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def _refresh_shards(self, stub: cache_pb2_grpc.CacheControlStub) -> None:
        response = stub.DescribeShards(cache_pb2.DescribeShardsRequest(), timeout=CALL_SECONDS)
        password = self._password()
        known = list(self.shards)
        shards = []
        for entry in response.shards:
            same = [s for s in known if s.describes(entry.host, entry.port, entry.database, password)]
            shard = same[0] if same else Shard(entry.host, entry.port, entry.database, password, self._wake.set)
            shard.run_id = shard.run_id or entry.run_id
            shards.append(shard)
        self.shards = tuple(shards)

    def _password(self) -> str | None:
        if PASSWORD_VARIABLE in os.environ:
            return os.environ[PASSWORD_VARIABLE]
        file = RunDirectory(self._run_dir).redis_password
        return file.read_text().strip() if file.exists() else None

    def _renew(self, stub: cache_pb2_grpc.CacheControlStub) -> None:
        """Announce the boundary's move, ask for admission, lease. All is repeated, so that a restarted cache server learns it."""
        boundary = self.boundary
        if boundary is None:
            return
        identity = _message(boundary.identity)
        request = cache_pb2.AdmitRequest(identity=identity, samples=boundary.num_values, value_bytes=self._value_bytes)
        if boundary.previous is not None:
            move = cache_pb2.AdvanceBoundaryRequest(old_identity=_message(boundary.previous), new_identity=identity)
            stub.AdvanceBoundary(move, timeout=CALL_SECONDS)
        admitted = stub.Admit(request, timeout=CALL_SECONDS)
        self._lease(stub, identity)
        if boundary.previous is not None and time.monotonic() - self.previous_used_at < PREVIOUS_IDLE_SECONDS:
            self._lease(stub, _message(boundary.previous))
        with self._lock:
            current = self.boundary
            if current is None or current.identity != boundary.identity:
                return
            if current.fraction != admitted.fraction:
                log.info(
                    "boundary %d admits %.3f of its values: %s", boundary.identity.boundary, admitted.fraction, admitted.reason
                )
            self.boundary = Boundary(current.identity, current.previous, current.num_values, admitted.fraction)

    def _lease(self, stub: cache_pb2_grpc.CacheControlStub, identity: cache_pb2.Identity, seconds: float = LEASE_SECONDS) -> None:
        request = cache_pb2.LeaseRequest(identity=identity, holder=self._worker_id, seconds=seconds)
        stub.Lease(request, timeout=CALL_SECONDS)

    def _give_back(self, stub: cache_pb2_grpc.CacheControlStub) -> None:
        with self._lock:
            unused, self._unused = self._unused, []
        for identity in unused:
            self._lease(stub, _message(identity), seconds=0.0)

    def _report(self, stub: cache_pb2_grpc.CacheControlStub) -> None:
        boundary = self.boundary
        counts = self._meter.since_last("report")
        if counts == CacheCounts():
            return
        request = cache_pb2.ReportUseRequest(
            worker_id=self._worker_id,
            identity=_message(boundary.identity) if boundary else None,
            **{name: getattr(counts, name) for name in CACHE_COUNTS},
        )
        try:
            stub.ReportUse(request, timeout=CALL_SECONDS)
        except grpc.RpcError:
            self._meter.give_back("report", counts)
            raise


def _message(identity: CacheIdentity) -> cache_pb2.Identity:
    return cache_pb2.Identity(
        prefix_revision=identity.prefix_revision,
        dataset_digest=identity.dataset_digest,
        split=identity.split,
        boundary=identity.boundary,
    )
