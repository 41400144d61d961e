"""The fence: work that a device has not done, or did wrongly, reaches no read, no promise and no vote."""

import threading
import time
from collections import deque
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch._C._distributed_c10d import ErrorType

from frostline_contract.plan import SeenVote, StateTag
from frostline_trainer.generations.groups import Groups, Interrupted, lone_groups
from frostline_trainer.step.device_clock import clock_of
from frostline_trainer.step.device_trail import Trail
from frostline_trainer.step.fence import wait_for_device
from frostline_trainer.step.loop import TrainingLoop
from frostline_trainer.transport.collectives import Group
from frostline_trainer.transport.waiting import waits_of
from tests.exact_cases import NUM_UNITS
from tests.simulated_device import SimulatedDevice, device_error
from tests.unit.trainer.test_engine_loop import Bench, decision

COMPUTED, COMMITTED = 1, 2
"""Marks of a step: the device's place at the end of its computation, and at the end of its update."""


def mark_of(step: int, which: int) -> int:
    return 2 * (step - 1) + which


class OnDevice(Bench):
    """A lone worker's loop on a simulated device. The log gets "vote S" when the vote of step S has returned."""

    audit_every_steps = 0

    def begin(self, device: SimulatedDevice) -> TrainingLoop:
        self.device, context = device, self.generation.context
        context.device_clock = device
        # An audit reads as well, behind a fence of its own: counted in its own test.
        training = context.job.training.model_copy(update={"audit_every_steps": self.audit_every_steps})
        context.job = context.job.model_copy(update={"training": training})
        context.holdings.settle(range(NUM_UNITS), StateTag(lineage=0, step=0, generation=self.plan.generation))
        self.box.put_decision(decision(0, kind="keep"))
        self.seen = SeenVotes(self)
        self.stepping = self.loop()
        return self.stepping

    @property
    def votes(self) -> list[str]:
        return [line for line in self.device.log if line.startswith("vote")]


class SeenVotes(deque[SeenVote]):
    """Seen votes that are recorded in the device's log as they are added."""

    def __init__(self, bench: OnDevice) -> None:
        super().__init__()
        self._bench = bench

    def append(self, vote: SeenVote) -> None:
        prepared = self._bench.stepping.prepared
        assert prepared is not None and prepared.step == vote.step
        self._bench.device.log.append(f"vote {vote.step}")


def test_a_cpu_has_no_fence() -> None:
    clock = clock_of(torch.device("cpu"))
    assert not clock.runs_behind
    nothing_is_asked: Groups = object()  # type: ignore[assignment]
    wait_for_device(Trail(lambda: clock), nothing_is_asked)


def wait_for(device: SimulatedDevice, groups: Groups) -> None:
    wait_for_device(Trail(lambda: device), groups)


def test_a_vote_comes_after_the_devices_end_of_its_step_and_a_state_after_its_update() -> None:
    bench = OnDevice()
    bench.run(bench.begin(device := SimulatedDevice(looks=5)))
    step = [f"marked {COMPUTED}", f"done {COMPUTED}", "vote 1", f"marked {COMMITTED}", f"done {COMMITTED}"]
    assert device.log[:5] == step
    assert bench.votes == [f"vote {number}" for number in range(1, 10)]
    for number in range(1, 10):
        assert device.log.index(f"done {mark_of(number, COMPUTED)}") + 1 == device.log.index(f"vote {number}")


def test_what_an_audit_reads_is_behind_a_fence_too() -> None:
    bench = OnDevice()
    bench.audit_every_steps = 1
    bench.generation.phase = lambda name: device.log.append(name)
    bench.run(bench.begin(device := SimulatedDevice()))
    first = device.log[: device.log.index("vote 1")]
    assert first.index("done 1") < first.index("audit") < first.index("marked 2")


def test_the_fence_changes_no_bit() -> None:
    with_fence, without = OnDevice(), Bench()
    with_fence.run(with_fence.begin(SimulatedDevice()))
    without.box.put_decision(decision(0, kind="keep"))
    without.run()
    numerics = [
        [(record.numerics_hash, record.loss, record.unit_gradient_norms) for record in bench.state.records]
        for bench in (with_fence, without)
    ]
    assert len(numerics[0]) == 9 and numerics[0] == numerics[1]


def test_a_late_error_of_the_device_reaches_no_vote_and_prepares_nothing() -> None:
    bench, error = OnDevice(), device_error()
    loop = bench.begin(SimulatedDevice(errors={mark_of(3, COMPUTED): error}))
    with pytest.raises(torch.AcceleratorError, match="illegal memory access"):
        bench.run(loop)
    assert bench.votes == ["vote 1", "vote 2"]
    assert loop.prepared is None and bench.state.step == 2


def test_an_error_in_the_update_leaves_its_units_torn() -> None:
    bench = OnDevice()
    loop = bench.begin(SimulatedDevice(errors={mark_of(2, COMMITTED): device_error()}))
    with pytest.raises(torch.AcceleratorError):
        bench.run(loop)
    assert bench.votes == ["vote 1", "vote 2"]
    assert bench.generation.context.holdings.all() == {}


def test_an_interruption_ends_the_wait_for_a_device_that_is_stuck() -> None:
    bench = OnDevice()
    loop = bench.begin(device := SimulatedDevice(stuck={mark_of(2, COMPUTED)}))
    looked = threading.Event()
    device.at_look = lambda number: looked.set() if number == mark_of(2, COMPUTED) else None

    def interrupt() -> None:
        looked.wait(60)
        bench.generation.groups.interrupt()

    threading.Thread(target=interrupt).start()
    started = time.monotonic()
    with pytest.raises(Interrupted):
        bench.run(loop)
    assert time.monotonic() - started < 60
    assert bench.votes == ["vote 1"] and loop.prepared is None


def test_work_that_an_abort_has_ended_is_not_read() -> None:
    """NCCL's kernels end when their communicator is aborted: the device reaches the mark, and nothing has raised."""
    bench = OnDevice()
    loop = bench.begin(device := SimulatedDevice(looks=1))
    groups = bench.generation.groups
    device.at_look = lambda number: groups.interrupt() if number == mark_of(2, COMPUTED) else None
    with pytest.raises(Interrupted):
        bench.run(loop)
    assert bench.votes == ["vote 1"]


@pytest.fixture
def broken_communicator() -> Groups:
    """Return groups with an NCCL communicator that has lost a peer, although its works have ended."""
    groups = lone_groups()
    column = Group(None, "dp0", 0, 1, "nccl")
    column.size = 2
    column._group = SimpleNamespace(get_error=lambda: ErrorType.REMOTE_ERROR, abort=lambda: None)
    return replace(groups, lines={**groups.lines, "dp": column})


def test_a_communicators_error_is_an_error_of_the_step(broken_communicator: Groups) -> None:
    with pytest.raises(RuntimeError, match="an NCCL communicator of this generation has failed: REMOTE_ERROR"):
        wait_for(SimulatedDevice(looks=0), broken_communicator)


def test_a_sound_communicator_is_none(broken_communicator: Groups) -> None:
    column = broken_communicator.along("dp")
    asked: list[bool] = []
    column._group = SimpleNamespace(get_error=lambda: asked.append(True) or ErrorType(0), abort=lambda: None)
    wait_for(SimulatedDevice(looks=0), broken_communicator)
    assert asked


def test_only_where_the_device_waits_for_others_the_member_does(broken_communicator: Groups) -> None:
    waiting: list[bool] = []
    device = SimulatedDevice(looks=1, at_look=lambda number: waiting.append(waits_of(threading.get_ident()).since > 0))
    wait_for(device, lone_groups())
    with pytest.raises(RuntimeError):
        wait_for(device, broken_communicator)
    assert waiting[0] is False and waiting[-1] is True
