"""The traced steps, and a trace's contents; that a pipeline records every computation is tested end to end."""

from frostline_contract.operations import Kind
from frostline_contract.statistics import TRACED_OPERATIONS_MAX, StepTrace
from frostline_trainer.step.programs import Instruction
from frostline_trainer.step.tracing import NO_TRACE, Tracing
from tests.simulated_device import TimedDevice


def tracing(device: TimedDevice, sent: list[StepTrace], wanted: bool = True) -> Tracing:
    found = Tracing(lambda: device, "1.2", 3, wanted)
    found.send = sent.append
    found.freeze_to(2, 8)
    return found


def a_step(here: Tracing, number: int) -> None:
    here.begin()
    here.committed(0, number)
    here.voted()


def test_steps_are_traced_ever_more_seldom_and_anew_after_a_freeze() -> None:
    sent = list[StepTrace]()
    here = tracing(TimedDevice(), sent)
    for step in range(1, 70):
        a_step(here, step)
    assert [one.step for one in sent] == [4, 8, 16, 32, 64]
    here.freeze_to(4, 8)
    for step in range(70, 80):
        a_step(here, step)
    assert [(one.step, one.freeze_point) for one in sent[5:]] == [(73, 4), (77, 4)]


def test_votes_without_a_step_are_no_steps() -> None:
    sent = list[StepTrace]()
    here = tracing(TimedDevice(), sent)
    for step in range(1, 5):
        a_step(here, step)
        here.voted()
        here.voted()
    assert [one.step for one in sent] == [4]


def test_nobody_asks_and_other_replicas_and_long_steps_leave_no_trace() -> None:
    sent = list[StepTrace]()
    silent, other, long = (tracing(TimedDevice(), sent, wanted) for wanted in (True, False, True))
    silent.send = None
    long.freeze_to(0, TRACED_OPERATIONS_MAX + 1)
    for step in range(1, 9):
        for here in (silent, other, long):
            a_step(here, step)
            assert here.begin() is NO_TRACE
    assert sent == []


def test_a_trace_is_told_in_the_devices_seconds_since_the_vote_without_waiting() -> None:
    device, sent = TimedDevice(), list[StepTrace]()
    here = tracing(device, sent)
    for step in range(1, 4):
        a_step(here, step)
    device.compute(0.5)  # between the vote and the schedule
    trace = here.begin()
    trace.begins()
    device.wait_until(2.0)
    trace.begins()
    device.compute(1.0)
    trace.ends(Instruction(Kind.FORWARD, 1, 0, 2))
    trace.begins()
    device.compute(0.25)
    trace.ends(Instruction(Kind.INPUT_GRADIENT, 1, 0, 2))
    here.committed(7, 4)
    (one,) = sent
    assert (one.lineage, one.step, one.generation, one.freeze_point, one.pp_rank) == (7, 4, "1.2", 2, 3)
    assert [(o.kind, o.stage, o.micro_batch, o.slice, o.start, o.end) for o in one.operations] == [
        ("forward", 1, 0, 2, 2.0, 3.0),
        ("input_gradient", 1, 0, 2, 3.0, 3.25),
    ]
