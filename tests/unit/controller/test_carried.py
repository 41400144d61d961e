"""The bytes that workers sent and hold, from records to the status, the metrics and the report."""

from collections import Counter

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from frostline_contract.statistics import StepRecord
from frostline_contract.usage import WorkerUsage
from frostline_controller.ledger.carried import Carried, usage_lines
from frostline_controller.serving.metrics import RunMetrics
from frostline_proto.v1 import control_pb2, plan_pb2
from frostline_rpc.convert import to_message, to_record


def record(step: int, lineage: int, *usage: WorkerUsage) -> StepRecord:
    return StepRecord(
        lineage=lineage, step=step, loss=0.5, learning_rate=0.1, gradient_norm=1.0, freeze_point=0, degrees={"dp": 2, "pp": 1},
        generation="1.1", step_seconds=0.5, usage=usage,
    )  # fmt: skip


def word(worker: str, sent: int, weights: int) -> WorkerUsage:
    return WorkerUsage(worker_id=worker, sent={"pp": sent}, received={"pp": 2 * sent}, resident={"weights": weights})


RECORDS = (
    record(8, 0, word("a", 100, 1000), word("b", 10, 2000)),
    record(9, 0),
    record(16, 1, word("c", 1000, 3500), word("b", 5, 2000)),
    record(12, 0, word("a", 7, 900)),
)
"""The last one came late: its lineage was taken back, but what it carried was carried."""


def test_records_add_up_and_the_newest_says_who_holds_what() -> None:
    carried = Carried(RECORDS)
    assert (carried.sent, carried.received) == ({"pp": 1122}, {"pp": 2244})
    assert list(carried.newest) == ["c", "b"]
    assert carried.most_resident()["weights"] == 3500
    assert carried.as_json()["last_interval"]["b"] == {"sent": {"pp": 5}, "received": {"pp": 10}, "resident": {"weights": 2000}}
    assert usage_lines(carried.sent, carried.most_resident()) == [
        "sent by all workers: between stages 1.1 kB", "held by a worker at most: weights 3.5 kB",
    ]  # fmt: skip
    assert usage_lines({}, {}) == []


def test_a_records_usage_survives_the_wire() -> None:
    wire = to_message(RECORDS[2], plan_pb2.StepRecord).SerializeToString()
    assert to_record(plan_pb2.StepRecord.FromString(wire), StepRecord) == RECORDS[2]


def test_prometheus_is_told_by_way_and_kind() -> None:
    registry = CollectorRegistry()
    registry.register(RunMetrics(control_pb2.StatusResponse(), Counter(), 0.5, Counter(), Carried(RECORDS)))
    text = generate_latest(registry).decode()
    assert 'frostline_traffic_bytes_total{direction="received",way="pp"} 2244.0' in text
    assert 'frostline_resident_bytes{kind="weights"} 3500.0' in text


@pytest.mark.parametrize(
    ("state", "members", "waiting"),
    [
        ("waiting", 0, 1),
        ("waiting", 2, 1),
        ("running", 2, 0),
        ("running", 0, 1),
        ("draining", 0, 1),
        ("suspended", 0, 0),
        ("failed", 0, 0),
    ],
)
def test_prometheus_is_told_whether_the_run_waits(state: str, members: int, waiting: int) -> None:
    """A paused run has state waiting; after a failure whose answer waits for workers it is running without a member."""
    registry = CollectorRegistry()
    workers = Counter({"member": members})
    registry.register(RunMetrics(control_pb2.StatusResponse(state=state), workers, 0.5, Counter(), Carried(RECORDS)))
    assert f"frostline_waiting {waiting}.0\n" in generate_latest(registry).decode()
