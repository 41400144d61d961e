"""A blocking Redis client for one purpose: large values are received into, and sent from, memory that the caller owns.

`get_many` receives straight into the caller's buffers and `set_many` sends straight from them, with a few requests in flight, so
that a value is copied once. With a client library, which copies each value several times, the library is the bottleneck.

A reply that does not fit the protocol raises ProtocolSurprise, and the caller drops the connection. Threads do not share a
connection.
"""

import socket
import struct
import time
from collections.abc import Callable, Sequence

from frostline_trainer.cache.outcomes import CallIsOver, ConnectionFault, Outcome, ProtocolSurprise
from frostline_trainer.cache.resolving import connected, resolve
from frostline_trainer.cache.value_run import ValueRun

WINDOW_BYTES = 3 * 512 * 1024
"""Limit of bytes sent and not yet acknowledged, for each connection."""
READ_WINDOW_BYTES = 256 * 1024
"""Limit of reply bytes requested and not yet received, for each connection; a larger value is requested alone. More only fills
socket buffers, thrashes the CPU's cache, and makes Redis exceed its time slice on a loaded machine."""

WINDOW_REQUESTS_MAX = 512
SMALL_VALUE_BYTES = 32 * 1024
"""Values up to this size are received many in one system call (`value_run`); each larger one has its own."""

BUFFER_BYTES = 64 * 1024
LARGE_REFILL_BYTES = 96
"""Bytes read for a reply line in front of a large value: the rest of the value then needs no copy."""

LINE_BYTES_MAX = 4096
DISCARD_BYTES_MAX = 4 * 1024 * 1024
"""A value of unexpected length up to this size is read and dropped; for a larger one, a new connection is cheaper."""

Buffer = bytes | bytearray | memoryview


class Connection:
    """One authenticated connection. After a failure of the peer every method raises ConnectionFault; then close and reopen.

    The timeout for the next bytes, in both directions, and for connecting is `silence_seconds`. Close it once `has_late` is true:
    replies that no call waits for are still under way.
    """

    def __init__(self, host: str, port: int, password: str | None, database: int, silence_seconds: float) -> None:
        self._silence_seconds = silence_seconds
        self._buffer = bytearray(BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._start = self._end = 0
        self.has_late = False
        self._refill_bytes = BUFFER_BYTES
        self._deadline = time.monotonic() + 2 * silence_seconds
        try:
            self._socket = connected(resolve(host, port, silence_seconds), port, silence_seconds)
        except (OSError, UnicodeError) as error:
            raise ConnectionFault(f"{host}:{port}: {error}") from error
        try:
            self._configure(silence_seconds)
            if password:
                self._expect_ok(b"AUTH", password.encode())
            if database:
                self._expect_ok(b"SELECT", b"%d" % database)
        except ConnectionFault:
            self.close()
            raise

    def _configure(self, silence_seconds: float) -> None:
        """Make the socket blocking with kernel timeouts: MSG_WAITALL then returns whole values in one call, and still ends."""
        self._socket.settimeout(None)
        limit = struct.pack("@ll", int(silence_seconds), int(silence_seconds % 1 * 1e6))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def close(self) -> None:
        """Close the socket; replies under way are lost."""
        self._socket.close()

    # Commands ---------------------------------------------------------------------------------------------------------

    def get_many(self, keys: Sequence[bytes], targets: Sequence[Sequence[memoryview]], deadline: float) -> list[Outcome]:
        """Fetch keys[i] into the buffers targets[i], which together have the value's exact length.

        At `deadline`, a time by time.monotonic(), or silence_seconds later at most, keys without a reply are LATE, and `has_late`
        is true; ConnectionFault is raised if none has one. A target is undefined after any outcome but DONE.
        """
        self._deadline = deadline
        lengths = [sum(len(part) for part in target) for target in targets]
        largest = max(lengths, default=1)
        self._refill_bytes = BUFFER_BYTES if largest <= SMALL_VALUE_BYTES else LARGE_REFILL_BYTES
        window = min(WINDOW_REQUESTS_MAX, max(1, READ_WINDOW_BYTES // max(largest, 1)))
        in_a_row = largest <= SMALL_VALUE_BYTES and min(lengths, default=0) > 0 and len({len(target) for target in targets}) == 1
        outcomes: list[Outcome] = []
        try:
            self._get_into(outcomes, keys, targets, lengths, window, in_a_row)
        except CallIsOver:
            if not outcomes:
                raise
            self.has_late = True
        return outcomes + [Outcome.LATE] * (len(keys) - len(outcomes))

    def _get_into(self, outcomes: list[Outcome], keys: Sequence[bytes], targets: Sequence[Sequence[memoryview]],
                  lengths: list[int], window: int, in_a_row: bool) -> None:  # fmt: skip
        """Append each key's outcome, in order, with `window` requests in flight at most; small values are received in runs."""
        sent = 0
        while len(outcomes) < len(keys):
            in_flight = sent - len(outcomes)
            if sent < len(keys) and in_flight <= window // 2:
                group = keys[sent : sent + window - in_flight]
                self._send([b"".join(_request_head(b"GET", key) for key in group)])
                sent += len(group)
            done = len(outcomes)
            if in_a_row and self._start == self._end:
                last = sent if sent == len(keys) else max(done + 1, sent - window // 2)
                outcomes.extend(self._receive_run(targets[done:last], lengths[done:last]))
            else:
                outcomes.append(self._receive_bulk(targets[done], lengths[done]))

    def set_many(self, items: Sequence[tuple[bytes, Sequence[Buffer]]], deadline: float) -> list[Outcome]:
        """Store each (key, value parts), sent from the parts' memory. DONE, or REFUSED if Redis has no memory left."""
        self._deadline = deadline
        self._refill_bytes = BUFFER_BYTES
        outcomes: list[Outcome] = []
        in_flight_bytes: list[int] = []
        for key, parts in items:
            length = sum(len(part) for part in parts)
            while in_flight_bytes and (sum(in_flight_bytes) + length > WINDOW_BYTES or len(in_flight_bytes) >= 64):
                outcomes.append(self._receive_stored())
                in_flight_bytes.pop(0)
            head = b"*3\r\n$3\r\nSET\r\n$%d\r\n%b\r\n$%d\r\n" % (len(key), key, length)
            self._send([head, *parts, b"\r\n"])
            in_flight_bytes.append(length)
        outcomes.extend(self._receive_stored() for _ in in_flight_bytes)
        return outcomes

    def unlink(self, keys: Sequence[bytes], deadline: float) -> int:
        """Remove keys; Redis frees them in the background. Returns how many existed."""
        reply = self._command(deadline, b"UNLINK", *keys)
        if not reply.startswith(b":") or not reply[1:].isdigit():
            raise ProtocolSurprise(f"UNLINK answered {reply[:80]!r}")
        return int(reply[1:])

    def ping(self, deadline: float) -> None:
        """Ping the peer. Raises ConnectionFault unless it answers like a Redis that is ready to serve."""
        reply = self._command(deadline, b"PING")
        if reply != b"+PONG":
            raise ProtocolSurprise(f"PING answered {reply[:80]!r}")

    def run_id(self, deadline: float) -> str:
        """Redis' run id, which changes with each restart."""
        reply = self._command(deadline, b"INFO", b"server")
        length = _bulk_length(reply)
        if length is None or length > LINE_BYTES_MAX * 4:
            raise ProtocolSurprise(f"INFO answered {reply[:80]!r}")
        body = bytearray(length)
        self._receive_exactly([memoryview(body)])
        self._receive_end_of_bulk()
        for line in bytes(body).splitlines():
            if line.startswith(b"run_id:"):
                return line[7:].decode("ascii", "replace")
        raise ProtocolSurprise("INFO server has no run_id")

    # Replies ----------------------------------------------------------------------------------------------------------

    def _expect_ok(self, *parts: bytes) -> None:
        reply = self._command(self._deadline, *parts)
        if reply != b"+OK":
            raise ConnectionFault(f"{parts[0].decode()} was answered {reply[:80]!r}")

    def _command(self, deadline: float, *parts: bytes) -> bytes:
        self._deadline = deadline
        self._refill_bytes = BUFFER_BYTES
        self._send([_request_head(*parts)])
        return self._receive_line()

    def _receive_bulk(self, target: Sequence[memoryview], expected: int) -> Outcome:
        line = self._receive_line()
        if line == b"$-1":
            return Outcome.ABSENT
        length = _bulk_length(line)
        if length == expected:
            self._receive_exactly(target)
            self._receive_end_of_bulk()
            return Outcome.DONE
        if length is not None and length <= DISCARD_BYTES_MAX:
            self._receive_exactly([memoryview(bytearray(length))])
            self._receive_end_of_bulk()
            return Outcome.UNUSABLE
        if line.startswith(b"-WRONGTYPE"):
            return Outcome.UNUSABLE
        raise ProtocolSurprise(f"GET answered {line[:80]!r}")

    def _receive_run(self, targets: Sequence[Sequence[memoryview]], lengths: Sequence[int]) -> list[Outcome]:
        """Receive the next replies in one run; outcomes of the leading replies that were as expected, or of one other reply."""
        run = ValueRun(targets)
        while run.missing:
            self._check_deadline()
            if not run.note(self._receive(lambda: self._socket.recvmsg_into(run.room())[0])):
                self._take_back(run.given_back())
                whole = run.differs_at or 0
                return [*[Outcome.DONE] * whole, self._receive_bulk(targets[whole], lengths[whole])]
        return [Outcome.DONE] * len(targets)

    def _take_back(self, data: bytes) -> None:
        """Put received bytes back, to be read again first. The buffer must be empty."""
        if len(data) + BUFFER_BYTES > len(self._buffer):
            self._buffer = bytearray(len(data) + BUFFER_BYTES)
            self._view = memoryview(self._buffer)
        self._view[: len(data)] = data
        self._start, self._end = 0, len(data)

    def _receive_stored(self) -> Outcome:
        line = self._receive_line()
        if line == b"+OK":
            return Outcome.DONE
        if line.startswith(b"-OOM"):
            return Outcome.REFUSED
        raise ProtocolSurprise(f"SET answered {line[:80]!r}")

    # Bytes ------------------------------------------------------------------------------------------------------------

    def _send(self, parts: Sequence[Buffer]) -> None:
        views = [memoryview(part).cast("B") for part in parts if len(part)]
        while views:
            self._check_deadline()
            try:
                sent = self._socket.sendmsg(views)
            except OSError as error:
                raise ConnectionFault(f"sending: {error or 'timed out'}") from error
            views = _advance(views, sent)

    def _receive_line(self) -> bytes:
        """The next line without its end."""
        while True:
            end = self._buffer.find(b"\r\n", self._start, self._end)
            if end >= 0:
                line = bytes(self._view[self._start : end])
                self._start = end + 2
                return line
            if self._end - self._start >= LINE_BYTES_MAX:
                raise ProtocolSurprise(f"a line of more than {LINE_BYTES_MAX} bytes: {bytes(self._view[self._start :][:40])!r}")
            self._refill()

    def _receive_exactly(self, target: Sequence[memoryview]) -> None:
        """Fill the target's parts: first from what the buffer holds, the rest straight from the socket when it is large."""
        views = self._drain_buffer(list(target))
        while views:
            if sum(len(view) for view in views) < SMALL_VALUE_BYTES:
                self._refill()
                views = self._drain_buffer(views)
            else:
                self._check_deadline()
                views = _advance(
                    views, self._receive(lambda wanted=views: self._socket.recvmsg_into(wanted, 0, socket.MSG_WAITALL)[0])
                )

    def _drain_buffer(self, views: list[memoryview]) -> list[memoryview]:
        while views and self._start < self._end:
            count = min(len(views[0]), self._end - self._start)
            views[0][:count] = self._view[self._start : self._start + count]
            self._start += count
            views = _advance(views, count)
        return [view for view in views if len(view)]

    def _receive_end_of_bulk(self) -> None:
        while self._end - self._start < 2:
            self._refill()
        if self._buffer[self._start : self._start + 2] != b"\r\n":
            raise ProtocolSurprise("a value did not end where its length said")
        self._start += 2

    def _refill(self) -> None:
        """Receive once, behind the bytes in the buffer."""
        self._check_deadline()
        held = self._end - self._start
        if self._start:
            self._buffer[:held] = self._buffer[self._start : self._end]
            self._start, self._end = 0, held
        space = self._view[held : held + self._refill_bytes]
        self._end += self._receive(lambda: self._socket.recv_into(space))

    def _receive(self, receive: Callable[[], int]) -> int:
        try:
            count = receive()
        except BlockingIOError as error:
            raise ConnectionFault(f"silent for {self._silence_seconds} s") from error
        except OSError as error:
            raise ConnectionFault(f"receiving: {error}") from error
        if count == 0:
            raise ConnectionFault("closed by the peer")
        return count

    def _check_deadline(self) -> None:
        if time.monotonic() > self._deadline:
            raise CallIsOver("the call's time is over")


def _request_head(*parts: bytes) -> bytes:
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts)


def _bulk_length(line: bytes) -> int | None:
    return int(line[1:]) if line[:1] == b"$" and line[1:].isdigit() and len(line) < 20 else None


def _advance(views: list[memoryview], count: int) -> list[memoryview]:
    """The rest of `views` after `count` bytes."""
    while views and count >= len(views[0]):
        count -= len(views[0])
        views = views[1:]
    if views and count:
        views = [views[0][count:], *views[1:]]
    return views
