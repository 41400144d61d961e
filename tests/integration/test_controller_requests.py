"""Commands of people to a running controller, and mistakes that it finds before they cost a step."""

import json
from collections.abc import Callable

import pytest

from frostline_contract.plan import Decision
from frostline_proto.v1 import control_pb2 as pb
from frostline_rpc.convert import to_record
from frostline_trainer.control.mailbox import Mailbox
from tests.integration.scripted_worker import start_controller, statistics, stop, wait_for
from tests.integration.scripted_world import World, world

__all__ = ["world"]


def guarded(number: int, loss: float, **fields: int) -> object:
    """Return an interval's statistics with a guard reading of 16 samples of about equal loss."""
    message = statistics(number, **fields)
    message.guard.losses.extend([loss + 0.001 * sample for sample in range(16)])
    message.guard.metrics["loss"] = loss
    return message


def frozen_at_1(world: Callable[..., World]) -> World:
    """Return a guarded run whose decision 1 has frozen one unit, with the workers at step 17."""
    rails = {"warmup_fraction": 0.0, "off": ["cooldown", "patience", "min_active", "absolute", "rearm", "unfreeze"]}
    run = world(freeze={"policy": {"name": "manual", "points": {1: 1}}, "interval_steps": 8, "rails": rails})
    run.start()
    run.at(9)
    run.workers[0].report(guarded(1, 1.0))
    frozen = to_record(run.workers[1].next("decision"), Decision)
    assert (frozen.kind, frozen.freeze_point) == ("freeze", 1), frozen.reason
    run.at(17)
    return run


def test_a_rollback_after_a_void_one_is_decided_and_found_by_the_workers(world: Callable[..., World]) -> None:
    run = frozen_at_1(world)
    mailbox = Mailbox(run.workers[1].worker_id)
    run.workers[0].report(guarded(2, 9.0, freeze_point=1))
    mailbox.put_decision(first := to_record(run.workers[1].next("decision"), Decision))
    assert (first.kind, first.number, first.lineage, first.decided_in) == ("rollback", 2, 1, 0)
    late = pb.RunEvent(kind="decision_void", step=18, reason="did not come in time", detail={"number": "2"})
    run.workers[0].records(events=[late])

    def decided() -> list[tuple[int, int, str, bool]]:
        found = [line for line in run.lines("plans.jsonl") if line["kind"] == "decision"]
        return [(line["number"], line["lineage"], line["decision_kind"], line["void"]) for line in found]

    so_far = [(1, 0, "freeze", False), (2, 1, "rollback", False), (2, 1, "rollback", True)]
    wait_for(lambda: decided() == so_far, "the rollback is void")
    run.at(25)
    run.workers[0].report(guarded(3, 9.0, freeze_point=1))
    mailbox.put_decision(second := to_record(run.workers[1].next("decision"), Decision))
    assert (second.kind, second.number, second.lineage, second.decided_in) == ("rollback", 3, 2, 0), second.reason
    assert mailbox.decision(0, 3) == second, "the workers, in lineage 0 still, have what decision 3 is"
    run.workers[0].report(guarded(2, 1.0, lineage=2))
    following = to_record(run.workers[1].next("decision"), Decision)
    assert (following.number, following.lineage, following.decided_in) == (2, 2, 2)
    wait_for(lambda: len(decided()) == 5, "all is written")
    assert decided() == [*so_far, (3, 2, "rollback", False), (2, 2, "keep", False)], "each was decided once"


def test_a_request_outlives_the_rollback_that_comes_before_it(world: Callable[..., World]) -> None:
    run = frozen_at_1(world)
    assert run.operator.command("unfreeze") == "everything learns again from the next decision on"
    wait_for(lambda: run.events("command"), "the command is taken")
    run.workers[0].report(guarded(2, 9.0, freeze_point=1))
    back = to_record(run.workers[1].next("decision"), Decision)
    assert (back.kind, back.lineage, back.rollback_to_step) == ("rollback", 1, 10), back.reason
    run.workers[0].report(guarded(2, 1.0, lineage=1))
    answer = to_record(run.workers[1].next("decision"), Decision)
    assert (answer.number, answer.lineage, answer.freeze_point, answer.policy) == (2, 1, 0, "operator")
    run.workers[0].report(guarded(3, 1.0, lineage=1))
    assert to_record(run.workers[1].next("decision"), Decision).policy == "manual", "a request is taken once"


@pytest.mark.parametrize(
    ("freeze", "words"),
    [
        ({"rails": {"off": ["gard"]}}, "gard"),
        ({"policy": {"name": "manuel"}}, "manuel"),
        ({"policy": {"name": "manual", "points": {1: 9}}}, "freeze.policy.points has 9 at decision 1"),
    ],
)
def test_a_mistake_in_the_freeze_section_ends_the_run_at_the_first_registration(
    world: Callable[..., World], freeze: dict, words: str
) -> None:
    run = world(freeze=freeze)
    run.join(1)
    assert words in run.workers[0].next("end").reason
    result = json.loads((run.folder / "result.json").read_text())
    assert (result["status"], result["user_mistake"], result["steps"]) == ("failed", True, 0)
    assert words in result["message"]


def test_resume_takes_up_a_run_that_was_stopped_while_it_drained(world: Callable[..., World]) -> None:
    run = world()
    run.start()
    run.at(10)
    run.operator.command("suspend")
    for worker in run.workers:
        worker.next("drain")
    manifest = run.folder / "checkpoints" / "0" / "1.1" / "8" / "manifest.json"
    manifest.parent.mkdir(parents=True)
    manifest.write_text(json.dumps({"lineage": 0, "step": 8}))
    for worker in run.workers:
        worker.close()
    run.operator.close()
    stop(run.controller)
    run.controller = start_controller(run.folder, "--resume")
    run.operator = type(run.operator)(run.folder)
    assert run.operator.status().state == "waiting"
    run.workers = []
    again = run.join(2)
    plan = again[0].next_plan("checkpoint")
    assert (plan.start_step, plan.lineage) == (8, 1)
    for worker in again:
        worker.enter(plan, 8)
    wait_for(lambda: run.operator.status().state == "running", "running")
    reported = list(again[0].messages.queue)
    assert not any(message.WhichOneof("message") == "drain" for message in reported)


def test_a_resume_after_a_crash_lifts_the_limit_of_an_earlier_resize_where_it_is_told_to(world: Callable[..., World]) -> None:
    """There is no end to resume from: the run goes on as it was, but for the number of workers."""
    run = world(placement={"workers": 3})
    run.operator.command("resize", workers=2)
    run.operator.close()
    for words, reasons in ((("--resume",), []), (("--resume", "--limit=-1"), ["resume: no limit on the workers, answered by 3"])):
        run.controller.kill()
        run.controller.wait(60)
        run.controller = start_controller(run.folder, *words)
        run.operator = type(run.operator)(run.folder)
        assert run.operator.status().state == "waiting"
        assert [event["reason"] for event in run.events("command")][1:] == reasons


def test_a_resume_whose_checkpoints_are_gone_waits_for_them_and_says_so(world: Callable[..., World]) -> None:
    """A volume is not mounted, or lost: training must not silently begin at step 0. Only the controller can notice it."""
    run = world()

    run.start()
    run.at(10)
    run.workers[0].records(events=[pb.RunEvent(kind="checkpoint", step=8, reason="step 8")])
    run.operator.command("suspend")
    for worker in run.workers:
        worker.close()
    run.operator.close()
    stop(run.controller)
    run.workers = []
    run.controller = start_controller(run.folder, "--resume")
    run.operator = type(run.operator)(run.folder)
    root = run.folder / "checkpoints"
    assert not root.exists()
    again = run.join(2)
    wait_for(lambda: f"{root} holds no checkpoint" in run.operator.status().message, "the status says so")
    wait_for(lambda: run.events("cannot_start"), "an event says so too")
    assert run.operator.status().state == "waiting"
    (root / "0" / "1.1" / "8").mkdir(parents=True)
    (root / "0" / "1.1" / "8" / "manifest.json").write_text(json.dumps({"lineage": 0, "step": 8}))
    assert again[0].next_plan("checkpoint").start_step == 8, "and it goes on when they are there"
    assert len(run.events("cannot_start")) == 1, "which was said once"


def test_training_anew_where_checkpoints_are_gone_is_asked_for(world: Callable[..., World]) -> None:
    run = world()
    run.start()
    run.at(10)
    run.workers[0].records(events=[pb.RunEvent(kind="checkpoint", step=8, reason="step 8")])
    run.operator.command("suspend")
    for worker in run.workers:
        worker.close()
    run.operator.close()
    stop(run.controller)
    (run.folder / "checkpoints" / "epochs").mkdir(parents=True)
    run.controller = start_controller(run.folder, "--resume")
    run.operator = type(run.operator)(run.folder)
    run.workers = []
    assert run.join(2)[0].next_plan("fresh").start_step == 0
