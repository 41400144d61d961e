"""Copies for checkpoints beside the device's work: nobody waits for them, and nothing is written over or read too early."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from frostline_trainer.checkpoints.writing import CheckpointWriter
from frostline_trainer.step.side_copies import SideCopies
from frostline_trainer.step.unit_state import export_unit
from tests.checkpoint_cases import new_writer, snapshot, steps_found
from tests.counting_device import BLOCKING, COPY, DEVICE, READ
from tests.exact_cases import Case
from tests.simulated_device import SimulatedDevice, device_error
from tests.unit.trainer.counted_steps import STEPS, Counted
from tests.unit.trainer.test_checkpoints import wait_until


class Recorded:
    """Two streams of a device that record their calls, and the device's marks."""

    def __init__(self, device: SimulatedDevice) -> None:
        self.log = device.log

    @contextmanager
    def beside(self) -> Iterator[None]:
        self.log.append("beside")
        yield
        self.log.append("in order again")

    def join(self) -> None:
        self.log.append("joined")

    def keep(self, tensor: torch.Tensor) -> None:
        self.log.append("kept")


def test_a_share_is_copied_without_anybodys_waiting() -> None:
    bench = Counted(Case("gpt2_tied", freezing=(), steps=STEPS))
    context = bench.generation.context
    with bench.device.running():
        states = {unit: export_unit(unit, module, context.moments) for unit, module in enumerate(context.cut.units)}
        copies, _ = context.copies.of(states)
    assert bench.device.total(BLOCKING).times == bench.device.total(READ).times == 0
    assert bench.device.total(COPY).bytes == sum(
        t.numel() * t.element_size() for state in states.values() for t in state.values()
    )
    assert {tensor.device.type for state in copies.values() for tensor in state.values()} == {"cpu"}


def test_copies_come_after_what_wrote_the_tensors_and_before_what_writes_them_again() -> None:
    """A step's update is launched behind the copies; a second update has nothing to wait for."""
    bench = Counted(Case("vit", freezing=(), steps=STEPS))
    context, device = bench.generation.context, SimulatedDevice()
    context.copies = SideCopies(lambda: DEVICE, lambda: device, Recorded(device))
    context.holdings.before_writing = context.copies.join
    with bench.device.running():
        context.holdings.tear([0])
        assert device.log == [], "nothing is copied"
        context.copies.of({1: export_unit(1, context.cut.units[1], {})})
        tensors = len(context.cut.units[1].state_dict())
        assert device.log == ["beside", *["kept"] * tensors, "marked 1", "in order again"]
        context.holdings.tear([1])
        context.holdings.tear([2])
    assert device.log[-1:] == ["joined"] and device.log.count("joined") == 1


def test_what_lies_in_host_memory_is_copied_at_once() -> None:
    weight = torch.arange(6.0)
    copies, copied = SideCopies(lambda: torch.device("cpu"), SimulatedDevice).of({0: {"weight/a": weight}})
    weight.zero_()
    assert copied is not None and torch.equal(copies[0]["weight/a"], torch.arange(6.0))


@pytest.fixture
def writer() -> Iterator[CheckpointWriter]:
    made = new_writer()
    yield made
    made.close()


def test_a_share_is_written_when_its_copies_have_come(tmp_path: Path, writer: CheckpointWriter) -> None:
    device = SimulatedDevice(stuck={1})
    share = snapshot(tmp_path, 10)
    share.copied = device.mark()
    device.at_look = lambda number: looked.append(list(tmp_path.rglob("*.safetensors")))
    looked: list[list[Path]] = []
    writer.write(share)
    wait_until(lambda: len(looked) > 3)
    assert not any(looked) and not share.written.is_set()
    device.stuck.clear()
    writer.finish()
    assert steps_found(tmp_path) == [10]


def test_a_device_that_fails_costs_the_checkpoint(tmp_path: Path, writer: CheckpointWriter) -> None:
    share = snapshot(tmp_path, 10)
    share.copied = SimulatedDevice(errors={1: device_error()}).mark()
    writer.write(share)
    assert share.written.wait(60.0)
    assert "illegal memory access" in writer.not_written[share.folder]
    assert steps_found(tmp_path) == []
