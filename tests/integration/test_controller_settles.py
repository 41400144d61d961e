"""A job that leaves its numerics to the run: settled once from the first measurement, and kept by every later leader."""

import json
from pathlib import Path

import grpc
import pytest
import yaml

from frostline_contract.job import job_from_json, load_job
from frostline_contract.job.automatic import sizes_to_try
from frostline_proto.v1 import control_pb2 as pb
from frostline_proto.v1 import control_pb2_grpc, plan_pb2
from frostline_rpc.auth import WORKER, Tokens
from frostline_rpc.channel import open_channel
from tests.integration.scripted_worker import NUM_UNITS, ScriptedWorker, wait_for
from tests.integration.scripted_world import world

__all__ = ["world"]

AUTO = {"training": {"micro_batch_size": "auto", "reduction_leaves": "auto"}}


def measured(folder: Path, call_seconds: float) -> plan_pb2.SizeProfiles:
    """Return a worker's simulated measurement: `call_seconds` for each call, and a millisecond a sample."""
    job = load_job(folder / "job.yaml")
    profiles = []
    for size in sizes_to_try(job.training, job.placement.workers):
        forward = call_seconds + 1e-3 * size
        unit = plan_pb2.UnitProfile(
            forward_seconds=forward, backward_seconds=2 * forward, parameter_bytes=4000, optimizer_bytes=8000,
            activation_bytes=1000, output_bytes=1000,
        )  # fmt: skip
        profiles.append(plan_pb2.WorkerProfile(micro_batch_size=size, units=[unit] * NUM_UNITS, device="cpu"))
    return plan_pb2.SizeProfiles(profiles=profiles, boundary_bytes_per_sample=100)


class Asker:
    """A worker that has not registered yet, and requests the run's job."""

    def __init__(self, folder: Path) -> None:
        self._channel = open_channel((folder / "controller.address").read_text().strip(), token(folder))
        self._stub = control_pb2_grpc.ControlStub(self._channel)

    def training(self, offered: plan_pb2.SizeProfiles | None = None):
        answer = self._stub.DescribeJob(pb.DescribeJobRequest(measured=offered), timeout=60)
        return job_from_json(answer.job, "the answer").training

    def close(self) -> None:
        self._channel.close()


def token(folder: Path) -> str:
    return Tokens.read(folder / "tokens.json").by_role[WORKER]


def test_the_first_measurement_settles_and_no_later_leader_chooses_again(world):
    run = world(**AUTO)
    offered = measured(run.folder, call_seconds=1.0)
    unsettled = (run.folder / "job.yaml").read_text()
    asker = Asker(run.folder)
    assert asker.training().automatic == ("micro_batch_size", "reduction_leaves")
    asker.training(offered)
    wait_for(lambda: not asker.training().automatic, "the run settles")
    settled = asker.training()
    assert load_job(run.folder / "job.yaml").training == settled
    reason = run.operator.status().numerics_reason
    assert reason.startswith(
        f"micro_batch_size {settled.micro_batch_size} and reduction_leaves {settled.reduction_leaves} (auto): "
    )
    plan = run.start()
    assert plan.placement.leaf_bounds[-1] == settled.reduction_leaves
    asker.training(measured_later(offered))
    asker.close()

    run.controller.kill()
    run.controller.wait(60)
    (run.folder / "job.yaml").write_text(unsettled)  # as if the controller had died between durable state and file
    run.restart_controller()
    asker = Asker(run.folder)
    assert asker.training() == settled == load_job(run.folder / "job.yaml").training
    assert run.operator.status().numerics_reason == reason
    asker.close()
    assert [event["reason"] for event in run.events("numerics")] == [reason]


def measured_later(offered: plan_pb2.SizeProfiles) -> plan_pb2.SizeProfiles:
    """Change the offer to another worker's measurement, in which large micro-batches are slow; it comes too late."""
    for number, profile in enumerate(offered.profiles):
        for unit in profile.units:
            unit.forward_seconds = float(1 + number) ** 2
    return offered


def test_what_was_not_measured_for_this_job_is_refused(world):
    run = world(**AUTO)
    asker = Asker(run.folder)
    foreign = plan_pb2.SizeProfiles(profiles=[plan_pb2.WorkerProfile(micro_batch_size=7, units=[plan_pb2.UnitProfile()])])
    for wrong in (foreign, plan_pb2.SizeProfiles()):
        with pytest.raises(grpc.RpcError) as refused:
            asker.training(wrong)
        assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert asker.training().automatic
    asker.close()


def test_a_worker_that_has_not_heard_what_was_settled_is_refused(world):
    run = world(**AUTO)
    stale, asker = ScriptedWorker(run.folder, 0), Asker(run.folder)
    asker.training(measured(run.folder, call_seconds=0.0))
    wait_for(lambda: not asker.training().automatic, "the run settles")
    asker.close()
    with pytest.raises(grpc.RpcError, match="job digest is"):
        stale.register()
    stale.channel.close()


def test_frostline_run_has_settled_before_and_leaves_the_reason(world, tmp_path):
    reported = {"micro_batch_size": 4, "reduction_leaves": 8, "reason": "because of what was measured"}
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "run.json").write_text(json.dumps({"version": 1, "settled": reported}))
    run = world()
    wait_for(lambda: run.operator.status().numerics_reason == reported["reason"], "the status says why")
    assert yaml.safe_load((folder / "job.yaml").read_text())["training"]["micro_batch_size"] == 4
