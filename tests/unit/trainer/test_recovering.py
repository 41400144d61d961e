"""A worker's reports of a failure: a report repeats the facts of those before, and which generations a later run epoch ends."""

from pathlib import Path

import pytest

from frostline_contract.phases import Phase
from frostline_contract.plan import GenerationId, Plan
from frostline_proto.v1 import control_pb2 as pb
from frostline_trainer.control.client import ControlClient
from frostline_trainer.control.mailbox import Fenced, Mailbox
from frostline_trainer.generations.plan_table import DueReport
from frostline_trainer.generations.recovering import Recovery
from frostline_trainer.generations.worker import Worker
from frostline_trainer.process.identity import Identity
from frostline_trainer.replication.wrong_bits import CacheDiffers
from frostline_trainer.step.run_state import RunState
from tests.exact_cases import Case, build_case, job_of
from tests.hand_made_plans import Layout
from tests.simulated_device import SimulatedDevice

CASE = Case("vit", freezing=(), steps=4)
FAILED, NEXT = GenerationId(incarnation=1, counter=1), GenerationId(incarnation=1, counter=2)


def plan_of(generation: GenerationId, run_epoch: int = 0) -> Plan:
    return Plan(
        generation=generation, lineage=0, start="fresh", freeze_point=0, placement=Layout(1, 1).placement(0), run_epoch=run_epoch
    )


@pytest.fixture
def recovery() -> Recovery:
    mailbox = Mailbox("w0")
    client = ControlClient("127.0.0.1:9", "any", pb.RegisterRequest(), mailbox, pb.HeartbeatRequest, lambda *durable: None)
    return Recovery("w0", build_case(CASE), RunState(step=20, cache_step=12), mailbox, client)


def reported(recovery: Recovery) -> pb.ReportRecoveryRequest:
    """Return the report that is sent next, if nothing was sent before."""
    request = recovery._client._recovery
    assert request is not None
    return request


def test_the_answer_to_a_fence_still_says_what_went_wrong(recovery: Recovery) -> None:
    recovery.report(CacheDiffers("cached activations differ"), FAILED)
    recovery.report(Fenced(DueReport("a member is gone", FAILED)), FAILED)
    request = reported(recovery)
    assert (request.distrusted_from, request.cache_distrusted, request.fenced) == (12, True, False)
    assert "cached activations differ" in request.error


def test_a_failure_of_the_answer_keeps_the_distrust_and_not_the_error(recovery: Recovery) -> None:
    recovery.report(CacheDiffers("cached activations differ"), FAILED)
    recovery.report(Fenced(DueReport("another is gone", NEXT)), NEXT)
    request = reported(recovery)
    assert (request.distrusted_from, request.cache_distrusted, request.fenced, request.error) == (12, True, True, "")


def test_a_plan_that_is_entered_has_answered(recovery: Recovery) -> None:
    recovery.report(CacheDiffers("cached activations differ"), FAILED)
    recovery.entering(plan_of(NEXT))
    recovery.report(RuntimeError("its peers are gone"), NEXT)
    request = reported(recovery)
    assert (request.distrusted_from, request.cache_distrusted) == (0, False)
    assert "its peers are gone" in request.error


def test_a_later_run_epoch_ends_the_older_generation_and_not_the_plan_that_began_it(tmp_path: Path) -> None:
    identity = Identity(
        run_dir=tmp_path, controller="127.0.0.1:9", token="any", pod_name="trainer-0", worker_id="w0", node="one",
        host="127.0.0.1",
    )  # fmt: skip
    reasons = []
    for plan in (plan_of(NEXT, run_epoch=1), plan_of(FAILED)):
        worker = Worker(identity, job_of(CASE))
        worker.context = build_case(CASE)
        worker.preparation = Preparing()
        worker.mailbox.put_plan(plan)
        worker.mailbox.plans.start_forming()
        worker.mailbox.plans.formed(plan.generation)
        worker._later_epoch(1)
        assert worker.mailbox.due_report() is None, "a worker that runs nothing has left the older world"
        worker.mailbox.plans.entering(plan.generation)
        worker._later_epoch(1)
        due = worker.mailbox.due_report()
        reasons.append(due.reason if due is not None else "")
    assert reasons == ["", "run epoch 1 has begun"]


def test_until_its_device_has_answered_a_worker_is_in_the_step_that_failed(tmp_path: Path, recovery: Recovery) -> None:
    """A plan that names it would wait for its device: the controller plans no worker whose phase is of an older generation."""
    identity = Identity(
        run_dir=tmp_path, controller="127.0.0.1:9", token="any", pod_name="trainer-0", worker_id="w0", node="one",
        host="127.0.0.1",
    )  # fmt: skip
    worker = Worker(identity, job_of(CASE))
    worker.context, worker.recovery = build_case(CASE), recovery
    worker.preparation, worker.caching, worker.saving = Preparing(), Idle(), Idle()
    worker.clock.enter(Phase.LOAD)
    phases: list[str] = []
    worker.context.device_clock = SimulatedDevice(at_look=lambda mark: phases.append(worker.clock.now().phase))
    worker._recover(RuntimeError("its peers are gone"))
    assert phases and set(phases) == {Phase.LOAD}
    assert worker.clock.now().phase == Phase.RECOVERY and reported(recovery).error


class Idle:
    """A worker's cache and checkpoints in a run that has used neither."""

    def take_counts(self) -> None:
        pass

    def abandon(self, step: int) -> None:
        pass


class Preparing:
    """A preparation without any groups formed."""

    def interrupt(self, until: GenerationId) -> None:
        pass

    def drop(self, newest_received: GenerationId) -> None:
        pass
