"""What a worker has to report: events and step traces, kept until a report with them is answered, and a report's limits."""

import threading
from collections.abc import Iterable, Iterator
from typing import TypeVar

from google.protobuf.message import Message

from frostline_contract.statistics import StepTrace
from frostline_proto.v1 import control_pb2, plan_pb2
from frostline_rpc.convert import to_message

RECORDS_A_REPORT = 200
BYTES_A_REPORT = 4 << 20
"""Bytes of a report's records or statistics: the controller takes twice as much in one request."""

M = TypeVar("M", bound=Message)


class Unsent:
    """The queue of events and traces. Any thread adds; one thread at a time sends."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._events: list[control_pb2.RunEvent] = []
        self._traces: list[plan_pb2.StepTrace] = []

    def __bool__(self) -> bool:
        return bool(self._events or self._traces)

    def add(self, news: control_pb2.RunEvent | StepTrace) -> None:
        """Add an event or a trace to the next report."""
        with self._lock:
            if isinstance(news, StepTrace):
                self._traces.append(to_message(news, plan_pb2.StepTrace))
            else:
                self._events.append(news)

    def fill(self, request: control_pb2.ReportRecordsRequest) -> control_pb2.ReportRecordsRequest:
        """The request, with all unsent events and traces."""
        with self._lock:
            request.events.extend(self._events)
            request.traces.extend(self._traces)
        return request

    def drop(self, request: control_pb2.ReportRecordsRequest) -> None:
        """Drop the events and traces of a request that was answered."""
        with self._lock:
            del self._events[: len(request.events)], self._traces[: len(request.traces)]


def portions(messages: Iterable[M]) -> Iterator[list[M]]:
    """The messages in lists that fit a report by number and by bytes, in order; one that is too large goes alone."""
    some, size = list[M](), 0
    for message in messages:
        more = message.ByteSize()
        if some and (len(some) == RECORDS_A_REPORT or size + more > BYTES_A_REPORT):
            yield some
            some, size = [], 0
        some.append(message)
        size += more
    if some:
        yield some
