"""Units measured at several micro-batch sizes, and a worker that waits until its run has settled its sizes by them."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from frostline_contract.job import Job, dump_job, job_to_json, parse_job
from frostline_contract.job.automatic import Settled, with_settled
from frostline_contract.statistics import SizeProfiles
from frostline_controller.planner.numerics import measured_inputs
from frostline_controller.planner.search import make_plan
from frostline_proto.v1 import control_pb2 as pb
from frostline_proto.v1 import control_pb2_grpc
from frostline_rpc.convert import to_record
from frostline_trainer.process.identity import Identity
from frostline_trainer.process.sizes import main, measure_sizes
from frostline_trainer.process.worker import ask_for_job
from tests.e2e.runs import TINY_DIGITS, merged

SETTLED = Settled(micro_batch_size=8, reduction_leaves=2, reason="planted")


def job(**training: Any) -> Job:
    return parse_job(merged(TINY_DIGITS, {"training": {"micro_batch_size": "auto", "reduction_leaves": "auto", **training}}))


def test_each_size_is_measured_on_real_samples_from_the_smallest():
    measured = measure_sizes(job())
    sizes = [one.micro_batch_size for one in measured.profiles]
    assert sizes[:2] == [4, 8]
    assert set(sizes) <= {4, 8, 16, 32}
    assert {len(one.units) for one in measured.profiles} == {7}
    block = [one.units[1] for one in measured.profiles]
    assert [unit.output_bytes // size for unit, size in zip(block, sizes, strict=True)] == [5 * 32 * 4] * len(sizes)
    assert all(small.activation_bytes < large.activation_bytes for small, large in zip(block, block[1:], strict=False))
    assert (measured.tied, measured.boundary_bytes_per_sample) == (False, 5 * 32 * 4)
    assert measured.link is None, "it has measured alone"


def test_only_the_jobs_own_size_is_measured_where_it_says_one():
    assert [one.micro_batch_size for one in measure_sizes(job(micro_batch_size=6)).profiles] == [6]


def test_what_settles_a_run_on_shares_of_processors_takes_as_long_as_a_worker_with_its_share():
    """Measured on a free core: a tenth of it takes ten times as long; three times is far above what a busy machine adds."""
    free = job(micro_batch_size=4)
    slow = free.model_copy(update={"placement": free.placement.model_copy(update={"worker_cpus": 0.1})})
    whole, shared = measure_sizes(free), measure_sizes(slow)
    [[free_units], [slow_units]] = (
        [sum(unit.forward_seconds + unit.backward_seconds for unit in one.units) for one in measured.profiles]
        for measured in (whole, shared)
    )
    assert slow_units > 3 * free_units
    free_plan, slow_plan = (
        make_plan(measured_inputs(asked, found, None)).cost.total_seconds for asked, found in ((free, whole), (slow, shared))
    )
    assert slow_plan < 3 * free_plan * slow_units / free_units, "the share counts once: not in the measurement and the plan"


def test_a_mistake_in_the_data_is_told_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file = tmp_path / "job.yaml"
    wrong = merged(TINY_DIGITS, {"training": {"micro_batch_size": "auto"}, "data": {"source": "image-folder", "path": "nowhere"}})
    file.write_text(dump_job(parse_job(wrong)))
    assert main(str(file), str(tmp_path / "out.json"), "1") == 2
    assert "nowhere" in capsys.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "out.json").exists()


class Settles(control_pb2_grpc.ControlServicer):
    """A controller that settles one call after it has received a measurement."""

    def __init__(self) -> None:
        self.received: list[SizeProfiles] = []

    def DescribeJob(self, request: pb.DescribeJobRequest, context: Any) -> pb.DescribeJobResponse:
        if request.HasField("measured"):
            self.received.append(to_record(request.measured, SizeProfiles))
        described = job() if len(self.received) < 2 else with_settled(job(), SETTLED)
        return pb.DescribeJobResponse(job=job_to_json(described))


@pytest.fixture
def service() -> Iterator[tuple[Settles, str]]:
    one, server = Settles(), grpc.server(ThreadPoolExecutor(2))
    control_pb2_grpc.add_ControlServicer_to_server(one, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield one, f"127.0.0.1:{port}"
    server.stop(None).wait()


def test_a_worker_measures_once_and_waits_until_its_run_has_settled(service: tuple[Settles, str], tmp_path: Path):
    one, address = service
    found, profiles = ask_for_job(Identity(tmp_path, address, "any", "trainer-0", "uid/1", "node", "127.0.0.1"))
    assert (found.training.micro_batch_size, found.training.reduction_leaves) == (8, 2)
    assert profiles == []
    assert len(one.received) == 2
    assert one.received[0] == one.received[1]
