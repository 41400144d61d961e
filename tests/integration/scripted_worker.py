"""A worker of the protocol without torch: real gRPC over sockets, each step scripted by the test.

`start_controller` runs the real controller process; `ScriptedWorker` exchanges messages with it as a trainer does.
"""

import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import grpc
import yaml

from frostline_contract.device import DeviceFacts
from frostline_contract.job import dump_job, job_digest, load_job, parse_job
from frostline_contract.plan import Plan, SeenVote, StateTag
from frostline_contract.worker_id import make_nonce
from frostline_proto.v1 import control_pb2 as pb
from frostline_proto.v1 import control_pb2_grpc, plan_pb2
from frostline_rpc.auth import OPERATOR, WORKER, Tokens
from frostline_rpc.channel import open_channel
from frostline_rpc.convert import to_message, to_record

NUM_UNITS = 6
WAIT_SECONDS, CALL_SECONDS, BEAT_SECONDS = 180.0, 60.0, 5.0
"""Far above what is needed on a busy machine: so long until what hangs fails its test. A late beat is followed by the next."""


def job_values(**sections: dict[str, Any]) -> dict[str, Any]:
    """A small job: 2 workers, intervals of 8 steps, 64 steps, no freezing unless a test asks for it."""
    values: dict[str, Any] = {
        "name": "scripted",
        "model": {"family": "vit", "config": {"num_hidden_layers": NUM_UNITS - 2}},
        "task": {"kind": "image_classification"},
        "data": {"source": "digits"},
        "training": {"steps": 64, "batch_size": 32, "micro_batch_size": 4, "reduction_leaves": 8},
        "freeze": {"interval_steps": 8, "policy": {"name": "manual"}, "rails": {"off": ["guard"]}},
        "elastic": {"cache": False},
        "placement": {"workers": 2, "min_workers": 1},
        "controller": {"heartbeat_seconds": 0.2, "dead_after_seconds": 30.0, "start_timeout_seconds": 5.0},
    }
    for name, section in sections.items():
        values[name] = {**values.get(name, {}), **section} if isinstance(section, dict) else section
    return values


def make_run(folder: Path, **sections: dict[str, Any]) -> Path:
    """A run directory as `frostline run` makes it: job.yaml and tokens.json."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "job.yaml").write_text(dump_job(parse_job(yaml.safe_load(yaml.safe_dump(job_values(**sections))))))
    Tokens.create().write(folder / "tokens.json")
    return folder


def start_controller(run_dir: Path, *extra: str, env: dict[str, str] | None = None, module: str = "frostline_controller",
                     script: str = "") -> subprocess.Popen[bytes]:  # fmt: skip
    """Start the real controller; returns when it listens. module, or script (a file of this folder): another way to run it."""
    address = run_dir / "controller.address"
    address.unlink(missing_ok=True)
    program = [str(Path(__file__).with_name(script))] if script else ["-m", module]
    with open(run_dir / "controller.log", "ab") as log:
        words = [sys.executable, *program, "--run-dir", str(run_dir), *extra]
        process = subprocess.Popen(words, stdout=log, stderr=log, env={**os.environ, **(env or {})})
    try:
        wait_for(lambda: address.exists() or process.poll() is not None, "the controller listens")
    except AssertionError:
        process.kill()
        process.wait(60)
        raise
    assert process.poll() is None, (run_dir / "controller.log").read_text()
    return process


def stop(process: subprocess.Popen[bytes]) -> int:
    """Send SIGTERM, and SIGKILL if the process does not end. Returns the exit code."""
    process.terminate()
    try:
        return process.wait(60)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait(60)


def wait_for(condition: Callable[[], Any], what: str, seconds: float = WAIT_SECONDS) -> Any:
    """Return the first true value of `condition`; fail after `seconds`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.02)
    raise AssertionError(f"not within {seconds:g} s: {what}")


def record(step: int, lineage: int = 0, generation: str = "1.1", loss: float = 1.0, **fields: Any) -> pb.ReportRecordsRequest:
    values = {
        "lineage": lineage, "step": step, "loss": loss, "learning_rate": 0.1, "gradient_norm": 1.0, "pp_degree": 1,
        "dp_degree": 2, "generation": generation, "step_seconds": 0.05, "samples_per_second": 100.0, **fields,
    }  # fmt: skip
    return plan_pb2.StepRecord(**values)


def statistics(number: int, lineage: int = 0, freeze_point: int = 0, interval: int = 8) -> plan_pb2.IntervalStatistics:
    norms = [0.0] * freeze_point + [1.0 + unit for unit in range(freeze_point, NUM_UNITS)]
    return plan_pb2.IntervalStatistics(
        number=number, lineage=lineage, first_step=(number - 1) * interval + 1, last_step=number * interval,
        freeze_point=freeze_point, unit_gradient_norms=norms,
        unit_parameters=[1000] * NUM_UNITS, unit_forward_flops=[1000] * NUM_UNITS, learning_rate=0.1, learning_rate_peak=0.1,
        loss_mean=1.0, accepted_steps=interval,
    )  # fmt: skip


class ScriptedWorker:
    """One worker process's side of the protocol. `messages` holds the messages of its WatchPlan stream, in order."""

    def __init__(self, run_dir: Path, ordinal: int, uid: str | None = None, token: str | None = None, probe: str = "probe",
                 node: str | None = None, local_rank: int = 0) -> None:  # fmt: skip
        self.run_dir, self.ordinal, self.probe = run_dir, ordinal, probe
        self.worker_id = f"{uid or f'uid-{ordinal}'}/{make_nonce(local_rank)}"
        self.token = token or Tokens.read(run_dir / "tokens.json").by_role[WORKER]
        self.job_digest, self.weights, self.boundary_bytes = job_digest(load_job(run_dir / "job.yaml")), "weights", 100
        self.messages: queue.Queue[pb.WatchPlanResponse] = queue.Queue()
        self.node, self.store_port = node or f"node-{ordinal}", 10000 + ordinal
        self.generation: plan_pb2.GenerationId | None = None
        self.device, self.step = DeviceFacts(), 0
        self.phase, self.leaving, self.silent = "forward", "", False
        self._beating = threading.Event()
        self._threads: list[threading.Thread] = []
        self.connect()

    def connect(self) -> None:
        """Read the controller's address again, as workers do at each reconnect."""
        self.channel = open_channel((self.run_dir / "controller.address").read_text().strip(), self.token)
        self.stub = control_pb2_grpc.ControlStub(self.channel)

    def join(self) -> "ScriptedWorker":
        """Register, watch, and send heartbeats from now on."""
        self.register()
        self.watch()
        self.beat()
        return self

    def register(self) -> pb.RegisterResponse:
        unit = plan_pb2.UnitProfile(
            forward_seconds=0.002, backward_seconds=0.004, parameter_bytes=4000, optimizer_bytes=8000,
            activation_bytes=1000, output_bytes=1000,
        )  # fmt: skip
        return self.stub.Register(
            pb.RegisterRequest(
                worker_id=self.worker_id, pod_name=f"trainer-{self.ordinal}", failure_domain=self.node,
                process_id=os.getpid(), store_host="127.0.0.1", store_port=self.store_port, probe_digest=self.probe,
                probe_detail="scripted", job_digest=self.job_digest, num_units=NUM_UNITS, steps_per_epoch=16, train_samples=512,
                dataset_digest="data", weights_digest=self.weights, generation=self.generation, leaving=self.leaving,
                profile=plan_pb2.WorkerProfile(micro_batch_size=4, units=[unit] * NUM_UNITS, device="cpu"),
                boundary_bytes_per_sample=self.boundary_bytes, device=to_message(self.device, plan_pb2.DeviceFacts),
            ),
            timeout=CALL_SECONDS,
        )  # fmt: skip

    def watch(self) -> None:
        stream = self.stub.WatchPlan(pb.WatchPlanRequest(worker_id=self.worker_id))

        def read() -> None:
            try:
                for message in stream:
                    self.messages.put(message)
            except grpc.RpcError as error:
                self.stream_error = error

        self._stream = stream
        thread = threading.Thread(target=read, daemon=True)
        thread.start()
        self._threads.append(thread)

    def beat(self) -> None:
        """Send heartbeats every 0.1 s from a thread, through controller restarts, until `silence`."""

        def run() -> None:
            while not self._beating.wait(0.1):
                try:
                    self.heartbeat(timeout=BEAT_SECONDS)
                except (grpc.RpcError, ValueError) as error:
                    self.beat_error = error

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        self._threads.append(thread)

    def heartbeat(self, step: int | None = None, timeout: float = CALL_SECONDS) -> pb.HeartbeatResponse:
        self.step = self.step if step is None else step
        request = pb.HeartbeatRequest(worker_id=self.worker_id, generation=self.generation, step=self.step, phase=self.phase)
        return self.stub.Heartbeat(request, timeout=timeout)

    def next(self, kind: str, seconds: float = WAIT_SECONDS) -> Any:
        """Return the next message of a kind; earlier messages of other kinds are dropped."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            try:
                message = self.messages.get(timeout=left)
            except queue.Empty:
                break
            if message.WhichOneof("message") == kind:
                return getattr(message, kind)
        log = (self.run_dir / "controller.log").read_text()
        raise AssertionError(f"worker {self.ordinal}: no {kind} within {seconds:g} s; the log ends:\n{log[-6000:]}")

    def next_plan(self, start: str | None = None) -> Plan:
        """Return the next plan; with `start`, the next plan of that kind of start."""
        while True:
            plan = to_record(self.next("plan"), Plan)
            if start is None or plan.start == start:
                return plan

    def ready(self, plan: Plan, ready: bool = True) -> None:
        request = pb.ReadyRequest(worker_id=self.worker_id, generation=wire(plan), ready=ready, seconds=0.1)
        self.stub.Ready(request, timeout=CALL_SECONDS)

    def enter(self, plan: Plan, step: int) -> None:
        """Run the plan's generation from now on."""
        self.generation, self.step = wire(plan), step
        request = pb.ReadyRequest(
            worker_id=self.worker_id, generation=wire(plan), ready=True, entered=True, step=step, seconds=0.2
        )
        self.stub.Ready(request, timeout=CALL_SECONDS)

    def report(self, *numbers: plan_pb2.IntervalStatistics) -> int:
        request = pb.ReportStatisticsRequest(worker_id=self.worker_id, generation=self.generation, statistics=numbers)
        return self.stub.ReportStatistics(request, timeout=CALL_SECONDS).durable_interval

    def records(self, *records: plan_pb2.StepRecord, **fields: Any) -> pb.ReportRecordsResponse:
        generation = fields.pop("generation", self.generation)
        request = pb.ReportRecordsRequest(worker_id=self.worker_id, generation=generation, records=records, **fields)
        return self.stub.ReportRecords(request, timeout=CALL_SECONDS)

    def recover(
        self,
        plan: Plan,
        step: int,
        units: Iterable[int] = (),
        newest_received: Plan | None = None,
        tag: StateTag | None = None,
        prepared: bool = False,
        seen: Iterable[SeenVote] = (),
        switched: Plan | None = None,
        error: str = "peer gone",
        fenced: bool = False,
    ) -> None:
        """Report a failure of `plan`, which this worker ran.

        units: its units, at `step` of that plan, or at `tag`. newest_received: by this worker; `plan` by default. prepared:
        whether it has the next step's gradients. switched: a plan whose switching vote it saw.
        """
        state = to_message(tag or at(plan, step), plan_pb2.StateTag)
        fates = [pb.PlanFate(generation=wire(switched), switched=True)] if switched else []
        self.stub.ReportRecovery(
            pb.ReportRecoveryRequest(
                worker_id=self.worker_id, incarnation=1, generation=wire(newest_received or plan), ran=wire(plan), error=error,
                pieces=[pb.PieceReport(piece=unit, intact=True, state=state, prepared=prepared) for unit in units],
                seen=[to_message(vote, plan_pb2.SeenVote) for vote in seen], fates=fates, fenced=fenced,
            ),
            timeout=CALL_SECONDS,
        )  # fmt: skip

    def reported_end_of(self, other: "ScriptedWorker", reason: str = "exit -9", error: str = "") -> None:
        """Send the report of the parent of `other`'s process after that process's death."""
        self.stub.Leave(pb.LeaveRequest(worker_id=other.worker_id, reason=reason, ended=True, error=error), timeout=CALL_SECONDS)

    def connect_again(self) -> None:
        """Find the new controller, register and watch, as every worker does when its controller is gone."""
        self.connect()
        self.register()
        self.watch()

    def silence(self) -> None:
        """Stop heartbeats and stream, as if the process were killed."""
        self.silent = True
        self._beating.set()
        self._stream.cancel()

    def close(self) -> None:
        """Close the channel last: gRPC may crash if a thread begins a call on a closed channel."""
        self.silence()
        for thread in self._threads:
            thread.join(5)
        self.channel.close()


class Operator:
    """The calls of `frostline status` and of commands."""

    def __init__(self, run_dir: Path) -> None:
        token = Tokens.read(run_dir / "tokens.json").by_role[OPERATOR]
        self.channel = open_channel((run_dir / "controller.address").read_text().strip(), token)
        self.stub = control_pb2_grpc.ControlStub(self.channel)

    def status(self) -> pb.StatusResponse:
        return self.stub.Status(pb.StatusRequest(), timeout=CALL_SECONDS)

    def command(self, kind: str, **fields: int) -> str:
        return self.stub.Command(pb.CommandRequest(kind=kind, **fields), timeout=CALL_SECONDS).answer

    def close(self) -> None:
        self.channel.close()


def at(plan: Plan, step: int, lineage: int | None = None) -> StateTag:
    """Return the tag of the state that follows the vote of `step` in the plan's generation."""
    return StateTag(lineage=plan.lineage if lineage is None else lineage, step=step, generation=plan.generation)


def vote_of(plan: Plan, step: int) -> SeenVote:
    return SeenVote(lineage=plan.lineage, step=step, generation=plan.generation, slots=(0.5, float(step)))


def wire(plan: Plan) -> plan_pb2.GenerationId:
    return plan_pb2.GenerationId(incarnation=plan.generation.incarnation, counter=plan.generation.counter)
