"""A controller is killed and another takes over: the state survives, no decision is taken twice, no record is lost or doubled."""

import json
import subprocess
import sys
import time
from pathlib import Path

from frostline_contract.plan import Decision
from frostline_controller.cluster.local_backend import LocalBackend
from frostline_controller.state.durable import DurableStore
from frostline_proto.v1 import control_pb2 as pb
from frostline_rpc.convert import to_record
from tests.integration.scripted_worker import (
    Operator,
    ScriptedWorker,
    make_run,
    record,
    start_controller,
    statistics,
    stop,
    wait_for,
)

FREEZE_AT_1 = {"policy": {"name": "manual", "points": {1: 2}}, "interval_steps": 8, "rails": {"off": ["guard"]}}


def start_killed_controller(folder: Path, what: str) -> subprocess.Popen:
    """The real controller, which dies right after its first durable write of that kind."""
    script = Path(__file__).with_name("killed_controller.py")
    with open(folder / "controller.log", "ab") as log:
        process = subprocess.Popen([sys.executable, str(script), what, "--run-dir", str(folder)], stdout=log, stderr=log)
    wait_for(lambda: (folder / "controller.address").exists() or process.poll() is not None, "the controller listens")
    assert process.poll() is None
    return process


def lines(folder: Path, name: str) -> list[dict]:
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def decided(folder: Path) -> list[tuple[int, str, int, bool]]:
    found = [line for line in lines(folder, "plans.jsonl") if line["kind"] == "decision"]
    return [(line["number"], line["decision_kind"], line["freeze_point"], line["void"]) for line in found]


def test_killed_between_writing_a_plan_and_announcing_it(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    first = start_killed_controller(folder, "prepared")
    workers = [ScriptedWorker(folder, ordinal).join() for ordinal in range(2)]
    for worker in workers:
        worker.enter(worker.next_plan("fresh"), 0)
        worker.heartbeat(3)
    operator = Operator(folder)
    operator.command("reshape", pp_degree=2, dp_degree=1)
    operator.close()
    assert first.wait(10) == -9
    second = start_controller(folder)
    try:
        for worker in workers:
            worker.connect()
            worker.register()
            worker.watch()
        plan = workers[0].next_plan("continue")
        assert str(plan.generation) == "1.2"  # made by the first, announced by the second
        operator = Operator(folder)
        assert operator.status().incarnation == 2
        for worker in workers:
            worker.ready(plan)
        workers[1].next("ready")
        for worker in workers:
            worker.enter(plan, 5)
        wait_for(lambda: operator.status().generation.counter == 2, "the switch is known")
        operator.close()
    finally:
        stop(second)
        for worker in workers:
            worker.close()


def test_killed_between_writing_a_decision_and_announcing_it(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", freeze=FREEZE_AT_1)
    first = start_killed_controller(folder, "decision")
    workers = [ScriptedWorker(folder, ordinal).join() for ordinal in range(2)]
    for worker in workers:
        worker.enter(worker.next_plan("fresh"), 0)
        worker.heartbeat(9)
    workers[0].report(statistics(1))
    assert first.wait(10) == -9
    second = start_controller(folder)
    try:
        for worker in workers:
            worker.connect()
            worker.register()
            worker.watch()
        decision = to_record(workers[1].next("decision"), Decision)
        assert (decision.number, decision.kind, decision.freeze_point, decision.effective_step) == (1, "freeze", 2, 11)
        workers[0].report(statistics(1))  # sent again, since it was never acknowledged
        workers[0].report(statistics(2, freeze_point=2))
        following = to_record(workers[0].next("decision"), Decision)
        while following.number == 1:
            following = to_record(workers[0].next("decision"), Decision)
        assert (following.number, following.freeze_point) == (2, 2)
        found = wait_for(
            lambda: (d := [x for x in lines(folder, "plans.jsonl") if x["kind"] == "decision"])[1:] and d, "decision 2"
        )
        assert [(line["number"], line["decision_kind"]) for line in found] == [(1, "freeze"), (2, "keep")]
        assert [line["number"] for line in lines(folder, "statistics.jsonl")] == [1, 2]
    finally:
        stop(second)
        for worker in workers:
            worker.close()


def test_members_that_are_not_back_yet_are_not_left_out_of_the_shape(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", freeze=FREEZE_AT_1)
    controller = start_controller(folder)
    workers = [ScriptedWorker(folder, ordinal).join() for ordinal in range(2)]
    for worker in workers:
        worker.enter(worker.next_plan("fresh"), 0)
        worker.heartbeat(9)
    controller.kill()
    controller.wait(10)
    controller = start_controller(folder)
    try:
        early, late = workers
        for worker in workers:
            worker.connect()
        early.register()
        early.watch()
        early.report(statistics(1))
        assert to_record(early.next("decision"), Decision).number == 1  # the planner is asked again with each decision
        time.sleep(0.5)  # several rounds of the controller
        late.register()
        late.watch()
        for worker in workers:
            worker.heartbeat(9)
        wait_for(lambda: "no reshape" in (folder / "controller.log").read_text(), "the planner was asked when all were back")
        heard = [message.plan for message in list(early.messages.queue) if message.HasField("plan")]
        assert not [plan for plan in heard if plan.start == "continue"], "who has not come back yet has not gone"
    finally:
        stop(controller)
        for worker in workers:
            worker.close()


def test_a_decision_that_the_workers_gave_up_before_it_was_taken_is_void(tmp_path: Path) -> None:
    """Also where the controller that heard of it is another one than that which takes the decision."""
    folder = make_run(tmp_path / "run", freeze=FREEZE_AT_1)
    controller = start_controller(folder)
    workers = [ScriptedWorker(folder, ordinal).join() for ordinal in range(2)]
    for worker in workers:
        worker.enter(worker.next_plan("fresh"), 0)
        worker.heartbeat(12)
    late = pb.RunEvent(kind="decision_void", step=10, lineage=0, reason="did not come in time", detail={"number": "1"})
    workers[1].records(events=[late])
    wait_for(lambda: "decision_void" in (folder / "events.jsonl").read_text(), "the event is written")
    controller.kill()
    controller.wait(10)
    controller = start_controller(folder)
    try:
        for worker in workers:
            worker.connect()
            worker.register()
            worker.watch()
        workers[0].report(statistics(1), statistics(2))
        found = wait_for(lambda: (d := decided(folder))[2:] and d, "decision 2")
        assert found == [(1, "freeze", 2, False), (1, "freeze", 2, True), (2, "freeze", 2, False)]
        (event,) = [line for line in lines(folder, "events.jsonl") if line["kind"] == "decision_void"]
        assert event["reason"] == "did not come in time"
        assert not [line for line in lines(folder, "events.jsonl") if line["kind"] == "freeze" and line["step"] == 11]
    finally:
        stop(controller)
        for worker in workers:
            worker.close()


def test_records_are_acknowledged_once_durable_and_written_once(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    controller = start_controller(folder)
    workers = [ScriptedWorker(folder, ordinal).join() for ordinal in range(2)]
    for worker in workers:
        worker.enter(worker.next_plan("fresh"), 0)
    assert workers[0].records(record(1), record(2)).durable_step == 2
    assert workers[1].records(record(2), record(3)).durable_step == 3
    assert workers[0].records(record(5)).durable_step == 3, "a gap is kept open until its record comes"
    controller.kill()
    controller.wait(10)
    with open(folder / "metrics.jsonl", "ab") as file:
        file.write(b'{"lineage": 0, "step": 6, "lo')  # what a crash in the middle of a write leaves
    controller = start_controller(folder)
    try:
        for worker in workers:
            worker.connect()
            worker.register()
        assert workers[0].heartbeat(5).durable_step == 3
        assert workers[0].records(record(3), record(4), record(5), record(6)).durable_step == 6
        assert sorted(line["step"] for line in lines(folder, "metrics.jsonl")) == [1, 2, 3, 4, 5, 6]
    finally:
        stop(controller)
        for worker in workers:
            worker.close()


def test_superseded_controller_writes_nothing_and_leaves(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    controller = start_controller(folder)
    worker, other = (ScriptedWorker(folder, ordinal).join() for ordinal in range(2))
    worker.enter(plan := worker.next_plan("fresh"), 0)
    other.enter(plan, 0)
    raised, _ = DurableStore(LocalBackend(folder / "cluster")).take_over()
    assert raised.incarnation == 2
    assert raised.current is not None
    worker.report(statistics(1))
    assert controller.wait(10) == 4
    after, _ = DurableStore(LocalBackend(folder / "cluster")).take_over()
    assert after.decisions == ()
    worker.close()
    other.close()


def test_redone_step_with_another_loss_stops_the_run(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    controller = start_controller(folder)
    try:
        workers = [ScriptedWorker(folder, ordinal).join() for ordinal in range(2)]
        plan = workers[0].next_plan("fresh")
        for worker in workers:
            worker.enter(plan, 0)
        workers[0].records(record(1, loss=2.0, numerics_hash="h"))
        workers[1].silence()
        workers[0].recover(plan, 1)
        again = workers[0].next_plan("fresh")
        assert again.lineage == 1
        workers[0].enter(again, 0)
        workers[0].records(record(1, lineage=1, loss=2.5, numerics_hash="h"))
        assert "has loss 2.5; it had 2.0" in workers[0].next("end").reason
        assert json.loads((folder / "result.json").read_text())["status"] == "failed"
    finally:
        stop(controller)
        for worker in workers:
            worker.close()


def test_other_numerics_are_taken_only_where_the_user_says_so_and_are_recorded(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    first = start_controller(folder)
    workers = [ScriptedWorker(folder, ordinal).join() for ordinal in range(2)]
    for worker in workers:
        worker.enter(worker.next_plan("fresh"), 0)
        worker.close()
    stop(first)
    second = start_controller(folder, "--resume", "--accept-numerics")
    try:
        newcomer = ScriptedWorker(folder, 8, probe="another probe")
        newcomer.register()
        wait_for(lambda: any("numerics changed" in line["reason"] for line in lines(folder, "events.jsonl")), "it is recorded")
        told = [line for line in lines(folder, "events.jsonl") if "numerics changed" in line["reason"]]
        assert len(told) == 1
        assert "probe probe (scripted) -> another prob (scripted)" in told[0]["reason"]
        newcomer.channel.close()
    finally:
        stop(second)
