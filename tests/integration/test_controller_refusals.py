"""The controller's refusals: their status codes and messages."""

from pathlib import Path

import grpc
import pytest

from frostline_contract.plan import GenerationId
from frostline_proto.v1 import control_pb2 as pb
from frostline_proto.v1 import plan_pb2
from tests.integration.scripted_worker import Operator, ScriptedWorker, make_run, record, start_controller, stop


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory):
    folder = make_run(tmp_path_factory.mktemp("refusals") / "run")
    controller = start_controller(folder)
    workers = [ScriptedWorker(folder, ordinal).join() for ordinal in range(2)]
    for worker in workers:
        worker.enter(worker.next_plan("fresh"), 0)
    yield folder, workers
    for worker in workers:
        worker.close()
    assert stop(controller) == 0


def code_of(call) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return caught.value.code(), caught.value.details()


@pytest.mark.parametrize("generation", [GenerationId(incarnation=1, counter=9), GenerationId(incarnation=0, counter=1)])
def test_reports_of_another_generation_are_aborted(run, generation: GenerationId) -> None:
    _, workers = run
    message = plan_pb2.GenerationId(incarnation=generation.incarnation, counter=generation.counter)
    code, text = code_of(lambda: workers[0].records(record(1), generation=message))
    assert code == grpc.StatusCode.ABORTED
    assert str(generation) in text
    assert "1.1" in text


def test_wrong_token_and_wrong_role(run) -> None:
    folder, workers = run
    stranger = ScriptedWorker(folder, 7, token="wrong")
    assert code_of(stranger.register)[0] == grpc.StatusCode.UNAUTHENTICATED
    stranger.channel.close()
    code, text = code_of(lambda: workers[0].stub.Command(pb.CommandRequest(kind="cancel"), timeout=60))
    assert code == grpc.StatusCode.PERMISSION_DENIED
    assert "operator" in text


def test_oversized_message_is_refused_before_it_is_read(run) -> None:
    folder, workers = run
    huge = pb.LeaveRequest(worker_id=workers[0].worker_id, reason="x" * (33 * 1024 * 1024))
    with grpc.insecure_channel((folder / "controller.address").read_text().strip()) as channel:
        call = channel.unary_unary("/frostline.v1.Control/Leave", request_serializer=pb.LeaveRequest.SerializeToString)
        metadata = [("authorization", f"Bearer {workers[0].token}")]
        assert code_of(lambda: call(huge, metadata=metadata, timeout=60))[0] == grpc.StatusCode.RESOURCE_EXHAUSTED


def test_garbage_bytes_are_refused(run) -> None:
    folder, workers = run
    with grpc.insecure_channel((folder / "controller.address").read_text().strip()) as channel:
        call = channel.unary_unary("/frostline.v1.Control/Register")
        metadata = [("authorization", f"Bearer {workers[0].token}")]
        code, _ = code_of(lambda: call(b"\xff\xfe garbage", metadata=metadata, timeout=60))
        assert code in (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.INVALID_ARGUMENT)


def test_other_probe_job_and_data_are_refused_by_name(run) -> None:
    folder, _ = run
    other = ScriptedWorker(folder, 8, probe="another probe")
    code, text = code_of(other.register)
    assert code == grpc.StatusCode.FAILED_PRECONDITION
    assert "probe digest is another prob" in text
    other.probe, other.job_digest = "probe", "f" * 64
    code, text = code_of(other.register)
    assert code == grpc.StatusCode.FAILED_PRECONDITION
    assert "job digest" in text
    other.channel.close()


def test_other_initial_weights_are_refused_with_both_digests_and_a_remedy(run) -> None:
    folder, _ = run
    other = ScriptedWorker(folder, 8)
    other.weights = "of another model"
    code, text = code_of(other.register)
    assert code == grpc.StatusCode.FAILED_PRECONDITION
    assert "initial weights are 'of another m', this run's are 'weights'" in text
    assert "install the same versions" in text
    other.channel.close()


def test_another_precision_is_refused_whatever_the_numerics(run) -> None:
    """auto means other types on a GPU than on a CPU, so that their boundary activations have other bytes."""
    folder, _ = run
    other = ScriptedWorker(folder, 8)
    other.boundary_bytes = 50
    code, text = code_of(other.register)
    assert code == grpc.StatusCode.FAILED_PRECONDITION
    assert "a sample's boundary has 50 bytes, this run's have 100; training.precision auto means another type there" in text
    other.channel.close()


def test_calls_of_an_unregistered_worker(run) -> None:
    folder, _ = run
    unknown = ScriptedWorker(folder, 9)
    assert unknown.heartbeat(0).known is False
    assert code_of(lambda: unknown.records(record(1)))[0] == grpc.StatusCode.FAILED_PRECONDITION
    unknown.channel.close()


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ({"kind": "dance"}, "kind is 'dance'; known are freeze"),
        (
            {"kind": "freeze", "freeze_point": 6},
            "freeze_point is 6; it must be 0 to 3 (units before it freeze; the rail cap_total",
        ),
        ({"kind": "reshape", "pp_degree": 3, "dp_degree": 1}, "needs 3 workers, and the run may have 2; raise placement.workers"),
        ({"kind": "resize", "workers": 0}, "workers is 0"),
    ],
)
def test_bad_commands(run, command: dict, words: str) -> None:
    folder, _ = run
    operator = Operator(folder)
    code, text = code_of(lambda: operator.command(**command))
    operator.close()
    assert code == grpc.StatusCode.INVALID_ARGUMENT
    assert words in text


def test_occupied_port_is_said_in_one_line(run, tmp_path: Path) -> None:
    folder, _ = run
    port = (folder / "controller.address").read_text().strip().rpartition(":")[2]
    other = make_run(tmp_path / "other")
    from frostline_controller.__main__ import main

    assert main(["--run-dir", str(other), "--port", port]) == 2


def test_only_rank_0_of_the_running_generation_tells_how_the_run_ended(run) -> None:
    folder, workers = run
    spare = ScriptedWorker(folder, 10).join()
    outcome = pb.RunOutcome(status="completed", digest="f" * 64, steps=64)
    for reporter in (spare, workers[1]):
        code, text = code_of(lambda reporter=reporter: reporter.records(generation=workers[0].generation, outcome=outcome))
        assert code == grpc.StatusCode.FAILED_PRECONDITION
        assert text == f"worker {reporter.worker_id!r} told the end of generation 1.1, which its rank 0 tells while it runs"
    spare.close()
    assert Operator(folder).status().state == "running"
    assert not (folder / "result.json").exists()
