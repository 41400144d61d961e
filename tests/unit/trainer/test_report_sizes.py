"""A worker's reports after a long time without a controller: each fits what the controller takes in one request."""

from typing import Any

import pytest

from frostline_contract.plan import GenerationId
from frostline_contract.statistics import GuardReading
from frostline_proto.v1 import control_pb2 as pb
from frostline_rpc.server import REQUEST_BYTES_MAX
from frostline_trainer.control.client import ControlClient
from frostline_trainer.control.mailbox import Mailbox
from tests.unit.trainer.test_engine_notices import record, statistics

LINEAGE = 0


class Connection:
    """A controller that takes requests as the server does, up to its limit of bytes."""

    def __init__(self) -> None:
        self.intervals, self.steps, self.requests = list[int](), list[int](), 0

    def call(self, name: str, request: Any, patience_seconds: float) -> Any:
        assert request.ByteSize() <= REQUEST_BYTES_MAX, f"{name} with {request.ByteSize()} bytes"
        self.requests += 1
        self.intervals += [item.number for item in getattr(request, "statistics", ())]
        self.steps += [item.step for item in getattr(request, "records", ())]
        return pb.ReportRecordsResponse(durable_lineage=LINEAGE, durable_step=max(self.steps, default=0))


@pytest.fixture
def client() -> ControlClient:
    return ControlClient("nowhere", "token", pb.RegisterRequest(worker_id="a/1"), Mailbox("a/1"), pb.HeartbeatRequest,
                         lambda *durable: None)  # fmt: skip


@pytest.mark.parametrize(("samples", "count", "requests"), [(30_000, 60, 4), (600_000, 2, 2), (1, 450, 3)])
def test_statistics_are_sent_in_requests_that_the_controller_takes(
    samples: int, count: int, requests: int, client: ControlClient
) -> None:
    reading = GuardReading(losses=(0.5,) * samples)
    waiting = [statistics(number + 1, LINEAGE).model_copy(update={"guard": reading}) for number in range(count)]
    acknowledged: list[tuple[int, int | None, int | None]] = []
    client._connection = connection = Connection()  # type: ignore[assignment]
    client._acknowledge = lambda *durable: acknowledged.append(durable)
    client._send_statistics(waiting, 1.0, GenerationId(incarnation=1, counter=1))
    assert connection.intervals == list(range(1, count + 1))
    assert connection.requests == len(acknowledged) == requests
    assert acknowledged[-1] == (LINEAGE, None, count)


def test_the_outcome_comes_with_the_last_records_however_large_they_are(client: ControlClient) -> None:
    parts = {f"part {number}": 0.5 for number in range(20_000)}
    records = [record(step).model_copy(update={"step_parts": parts}) for step in range(1, 31)]
    client._connection = connection = Connection()  # type: ignore[assignment]
    client._outgoing = lambda: ([item for item in records if item.step > max(connection.steps, default=0)], [])
    handed_in = [client._hand_in(pb.RunOutcome(status="completed"), GenerationId(incarnation=1, counter=1)) for _ in range(4)]
    assert handed_in == [False, False, False, True]
    assert connection.steps == list(range(1, 31))
