"""Events and step traces that a worker has to report, kept until a report with them is answered."""

import threading

from frostline_contract.statistics import StepTrace
from frostline_proto.v1 import control_pb2, plan_pb2
from frostline_rpc.convert import to_message


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
