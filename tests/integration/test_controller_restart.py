"""A killed controller's successor: the state survives, no decision is taken twice, no record is lost or doubled."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from frostline_contract.annotations import COMMAND
from frostline_contract.plan import Decision
from frostline_controller.cluster.local.backend import LocalBackend
from frostline_controller.run.durable import DurableStore
from frostline_proto.v1 import control_pb2 as pb
from frostline_rpc.convert import to_record
from tests.integration.recovery_world import SOON_GONE
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
from tests.integration.scripted_world import events_of
from tests.older_runs import rewrite_as_before

FREEZE_AT_1 = {"policy": {"name": "manual", "points": {1: 2}}, "interval_steps": 8, "rails": {"off": ["guard"]}}


class Pair:
    """Two scripted workers in the run's first plan, at `step`, and its controller, which a test replaces.

    dies_after: the kind of durable write after which the first controller dies by itself.
    """

    def __init__(self, folder: Path, dies_after: str = "", step: int = 0, **sections: object) -> None:
        self.folder = make_run(folder, **sections)
        self.controller = start_killed_controller(self.folder, dies_after) if dies_after else start_controller(self.folder)
        self.workers = [ScriptedWorker(self.folder, ordinal).join() for ordinal in range(2)]
        for worker in self.workers:
            self.plan = worker.next_plan("fresh")
            worker.enter(self.plan, 0)
            if step:
                worker.heartbeat(step)

    def kill_controller(self) -> None:
        self.controller.kill()
        self.controller.wait(60)

    def replace_controller(self) -> None:
        """Start another controller; workers have a connection to it, and are not registered yet."""
        self.controller = start_controller(self.folder)
        for worker in self.workers:
            worker.connect()

    def return_workers(self) -> None:
        for worker in self.workers:
            worker.register()
            worker.watch()

    def lines(self, name: str) -> list[dict]:
        return [json.loads(line) for line in (self.folder / name).read_text().splitlines()]

    def decided(self) -> list[tuple[int, str, int, bool]]:
        found = [line for line in self.lines("plans.jsonl") if line["kind"] == "decision"]
        return [(line["number"], line["decision_kind"], line["freeze_point"], line["void"]) for line in found]

    def close(self) -> None:
        stop(self.controller)
        for worker in self.workers:
            worker.close()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Callable[..., Pair]]:
    """Return a function that makes the test's run."""
    made: list[Pair] = []

    def make(**arguments: object) -> Pair:
        made.append(Pair(tmp_path / "run", **arguments))
        return made[-1]

    yield make
    for one in made:
        one.close()


def start_killed_controller(folder: Path, what: str) -> subprocess.Popen:
    """Start the real controller; it dies right after its first durable write of that kind."""
    script = Path(__file__).with_name("killed_controller.py")
    with open(folder / "controller.log", "ab") as log:
        process = subprocess.Popen([sys.executable, str(script), what, "--run-dir", str(folder)], stdout=log, stderr=log)
    wait_for(lambda: (folder / "controller.address").exists() or process.poll() is not None, "the controller listens")
    assert process.poll() is None
    return process


def test_killed_between_writing_a_plan_and_announcing_it(pair: Callable[..., Pair]) -> None:
    run = pair(dies_after="prepared", step=3)
    operator = Operator(run.folder)
    operator.command("reshape", pp_degree=2, dp_degree=1)
    operator.close()
    assert run.controller.wait(60) == -9
    run.replace_controller()
    run.return_workers()
    plan = run.workers[0].next_plan("continue")
    assert str(plan.generation) == "1.2"  # made by the first controller, announced by the second
    operator = Operator(run.folder)
    assert operator.status().incarnation == 2
    for worker in run.workers:
        worker.ready(plan)
    run.workers[1].next("ready")
    for worker in run.workers:
        worker.enter(plan, 5)
    wait_for(lambda: operator.status().generation.counter == 2, "the switch is known")
    operator.close()


def test_killed_between_writing_a_switch_and_telling_it(pair: Callable[..., Pair]) -> None:
    run = pair(dies_after="switched", step=3)
    operator = Operator(run.folder)
    operator.command("reshape", pp_degree=2, dp_degree=1)
    operator.close()
    plan = run.workers[0].next_plan("continue")
    for worker in run.workers:
        worker.ready(plan)
    run.workers[1].next("ready")
    run.workers[0].enter(plan, 5)
    assert run.controller.wait(60) == -9
    run.replace_controller()
    run.kill_controller()
    run.replace_controller()
    (switch,) = events_of(run.folder, "reshape")
    assert (switch["step"], switch["generation"], switch["reason"]) == (5, str(plan.generation), plan.reason)


def test_killed_between_writing_a_decision_and_announcing_it(pair: Callable[..., Pair]) -> None:
    run = pair(dies_after="decision", step=9, freeze=FREEZE_AT_1)
    first, second = run.workers
    first.report(statistics(1))
    assert run.controller.wait(60) == -9
    run.replace_controller()
    run.return_workers()
    decision = to_record(second.next("decision"), Decision)
    assert (decision.number, decision.kind, decision.freeze_point, decision.effective_step) == (1, "freeze", 2, 11)
    first.report(statistics(1))  # sent again, since it was never acknowledged
    first.report(statistics(2, freeze_point=2))
    following = to_record(first.next("decision"), Decision)
    while following.number == 1:
        following = to_record(first.next("decision"), Decision)
    assert (following.number, following.freeze_point) == (2, 2)
    wait_for(lambda: len(run.decided()) > 1, "decision 2 is written")
    assert run.decided() == [(1, "freeze", 2, False), (2, "keep", 2, False)]
    assert [line["number"] for line in run.lines("statistics.jsonl")] == [1, 2]


def test_members_that_are_not_back_yet_are_not_left_out_of_the_shape(pair: Callable[..., Pair]) -> None:
    run = pair(step=9, freeze=FREEZE_AT_1, controller={"dead_after_seconds": 60.0})  # so that `late` is no lost member
    early, late = run.workers
    run.kill_controller()
    run.replace_controller()
    early.register()
    early.watch()
    early.report(statistics(1))
    assert to_record(early.next("decision"), Decision).number == 1  # the planner is asked again with each decision
    time.sleep(0.5)  # several rounds of the controller
    late.register()
    late.watch()
    for worker in run.workers:
        worker.heartbeat(9)
    wait_for(lambda: "no reshape" in (run.folder / "controller.log").read_text(), "the planner was asked when all were back")
    received = [message.plan for message in list(early.messages.queue) if message.HasField("plan")]
    assert not [plan for plan in received if plan.start == "continue"], "who has not come back yet has not gone"


def test_who_is_asked_to_stop_before_the_members_are_back_waits_for_them(pair: Callable[..., Pair]) -> None:
    """The members hold steps that no checkpoint has: a new leader once ended the run without them (chaos, seed 7005)."""
    run = pair(step=5, controller={"dead_after_seconds": 60.0})
    run.kill_controller()
    run.replace_controller()
    operator = Operator(run.folder)
    operator.command("suspend")
    wait_for(lambda: operator.status().state != "running", "the command is taken")
    time.sleep(0.5)
    assert operator.status().state == "draining"
    run.return_workers()
    assert [worker.next("drain").reason for worker in run.workers] == ["suspend by command"] * 2
    operator.close()


def test_members_that_do_not_come_back_keep_nobody_from_stopping(pair: Callable[..., Pair]) -> None:
    run = pair(step=5, controller=SOON_GONE)
    run.kill_controller()
    run.replace_controller()
    operator = Operator(run.folder)
    operator.command("suspend")
    wait_for(lambda: operator.status().state != "draining", "stopped without them")
    assert operator.status().state == "suspended"
    operator.close()


def test_a_decision_that_the_workers_gave_up_before_it_was_taken_is_void(pair: Callable[..., Pair]) -> None:
    """Also where one controller received the event and its successor takes the decision."""
    run = pair(step=12, freeze=FREEZE_AT_1)
    late = pb.RunEvent(kind="decision_void", step=10, lineage=0, reason="did not come in time", detail={"number": "1"})
    run.workers[1].records(events=[late])
    wait_for(lambda: "decision_void" in (run.folder / "events.jsonl").read_text(), "the event is written")
    run.kill_controller()
    run.replace_controller()
    run.return_workers()
    run.workers[0].report(statistics(1), statistics(2))
    wait_for(lambda: len(run.decided()) > 2, "decision 2 is written")
    assert run.decided() == [(1, "freeze", 2, False), (1, "freeze", 2, True), (2, "freeze", 2, False)]
    (event,) = events_of(run.folder, "decision_void")
    assert event["reason"] == "did not come in time"
    assert not [line for line in run.lines("events.jsonl") if line["kind"] == "freeze" and line["step"] == 11]


def test_records_are_acknowledged_once_durable_and_written_once(pair: Callable[..., Pair]) -> None:
    run = pair()
    first, second = run.workers
    assert first.records(record(1), record(2)).durable_step == 2
    assert second.records(record(2), record(3)).durable_step == 3
    assert first.records(record(5)).durable_step == 3, "a gap is kept open until its record comes"
    run.kill_controller()
    with open(run.folder / "metrics.jsonl", "ab") as file:
        file.write(b'{"lineage": 0, "step": 6, "lo')  # as after a crash in the middle of a write
    run.replace_controller()
    for worker in run.workers:
        worker.register()
    assert first.heartbeat(5).durable_step == 3
    assert first.records(record(3), record(4), record(5), record(6)).durable_step == 6
    assert sorted(line["step"] for line in run.lines("metrics.jsonl")) == [1, 2, 3, 4, 5, 6]


def test_a_run_of_before_shapes_had_named_degrees_goes_on(pair: Callable[..., Pair]) -> None:
    """The run's records, events, plans, pinned shape and start were written with `pp_degree` and `dp_degree`."""
    run = pair(step=3)
    first, second = run.workers
    operator = Operator(run.folder)
    assert "reshape to pp 2 x dp 1" in operator.command("reshape", degrees={"pp": 2, "dp": 1})
    operator.close()
    first.next_plan("continue")
    assert first.records(record(1), record(2)).durable_step == 2
    run.kill_controller()
    assert rewrite_as_before(run.folder) > 0
    run.replace_controller()
    run.return_workers()
    plan = first.next_plan("continue")
    assert (dict(plan.placement.degrees), plan.placement.pp_degree) == ({"dp": 1, "pp": 2}, 2)
    assert second.records(record(2), record(3)).durable_step == 3, "a record that is there in its older form is the same one"
    lines = run.lines("metrics.jsonl")
    assert [line["step"] for line in lines] == [1, 2, 3]
    assert (lines[0]["pp_degree"], lines[0]["dp_degree"], lines[2]["degrees"]) == (1, 2, {"dp": 2, "pp": 1})


def test_superseded_controller_writes_nothing_and_leaves(pair: Callable[..., Pair]) -> None:
    run = pair()
    raised, _ = DurableStore(LocalBackend(run.folder / "cluster")).take_over()
    assert raised.incarnation == 2
    assert raised.current is not None
    run.workers[0].report(statistics(1))
    assert run.controller.wait(60) == 4
    after, _ = DurableStore(LocalBackend(run.folder / "cluster")).take_over()
    assert after.decisions == ()


def test_redone_step_with_another_loss_stops_the_run(pair: Callable[..., Pair]) -> None:
    run = pair(controller=SOON_GONE)
    first, second = run.workers
    first.records(record(1, loss=2.0, numerics_hash="h"))
    second.silence()
    first.recover(run.plan, 1)
    again = first.next_plan("fresh")
    assert again.lineage == 1
    first.enter(again, 0)
    first.records(record(1, lineage=1, loss=2.5, numerics_hash="h"))
    assert "has loss 2.5; it had 2.0" in first.next("end").reason
    assert json.loads((run.folder / "result.json").read_text())["status"] == "failed"


def test_other_numerics_are_taken_only_where_the_user_says_so_and_are_recorded(pair: Callable[..., Pair]) -> None:
    run = pair()
    for worker in run.workers:
        worker.close()
    stop(run.controller)
    run.controller = start_controller(run.folder, "--resume", "--accept-numerics")
    newcomer = ScriptedWorker(run.folder, 8, probe="another probe")
    newcomer.weights = "other weights"
    newcomer.register()

    words = "numerics changed"
    (reported,) = wait_for(lambda: [line for line in run.lines("events.jsonl") if words in line["reason"]], "it is recorded")
    assert "probe probe (scripted) -> another prob (scripted), initial weights weights -> other weight" in reported["reason"]
    newcomer.channel.close()


@pytest.mark.parametrize("dies_after", ["unforced", "forced"])
def test_an_annotated_command_is_carried_out_once_whoever_dies_of_it(pair: Callable[..., Pair], dies_after: str) -> None:
    run = pair(dies_after=dies_after, step=3)
    backend = LocalBackend(run.folder / "cluster")
    backend.patch_annotations({COMMAND: "freeze 2"}, {})
    assert run.controller.wait(60) == -9
    assert (COMMAND in backend.read().annotations) == (dies_after == "unforced"), "it goes with the patch that makes it durable"
    run.replace_controller()
    run.return_workers()
    run.workers[0].report(statistics(1))
    decided = to_record(run.workers[1].next("decision"), Decision)
    assert (decided.kind, decided.freeze_point) == ("freeze", 2)
    assert COMMAND not in backend.read().annotations
    run.workers[0].report(statistics(2, freeze_point=2))
    wait_for(lambda: len(run.decided()) == 2, "decision 2 is written")
    deciders = [line["policy"] for line in run.lines("plans.jsonl") if line["kind"] == "decision"]
    assert deciders == ["operator", "manual"], "it was carried out once"
