"""What a worker's time went to since it was admitted, by phase: its word for the run's ledger (docs/run-directory.md).

Sums over its life, so that the newest heartbeat says everything and none is counted twice. The seconds of a step that comes to
nothing are the recovery's: they bought nothing.
"""

from collections.abc import Mapping

from frostline_contract.phases import IN_STEP, Phase
from frostline_trainer.step.device_trail import Spent


class Spending:
    """Seconds by phase, and how much of them the worker was blocked on other members. The lock of its clock guards it.

    standing_by: whatever phase goes on, the worker is a spare one.
    """

    def __init__(self) -> None:
        self._settled: dict[str, Spent] = {}
        self._open: dict[str, Spent] = {}
        self._recovering = False
        self.standing_by = False

    def add(self, phase: str, seconds: float, waiting: float) -> None:
        """A phase is over. What is entered to answer a failure belongs to the recovery, up to the next step."""
        if self.standing_by or phase in IN_STEP:
            self._recovering = False
        if self.standing_by:
            phase = Phase.SPARE
        elif phase == Phase.RESHAPE and self._recovering:
            phase = Phase.RECOVERY
        _add(self._open, phase, seconds, waiting)

    def settle(self, device: Mapping[Phase, Spent]) -> None:
        """A step is committed. device: its own seconds since the last call, where it runs behind its thread: the thread's seconds
        in those phases are divided as the device says, so that the sum stays the time that has passed.
        """
        ours, theirs = (sum(one.seconds for one in where) for where in (
            [self._open[phase] for phase in device if phase in self._open], device.values()))  # fmt: skip
        if ours > 0 and theirs > 0:
            for phase in device:
                self._open.pop(phase, None)
            for phase, one in device.items():
                _add(self._open, phase, one.seconds * ours / theirs, one.waiting * ours / theirs)
        for phase, one in self._open.items():
            _add(self._settled, phase, one.seconds, one.waiting)
        self._open.clear()

    def lose(self) -> None:
        """The step under way comes to nothing."""
        lost = [self._open.pop(phase) for phase in IN_STEP & self._open.keys()]
        _add(self._open, Phase.RECOVERY, sum(one.seconds for one in lost), 0.0)
        self._recovering = True

    def so_far(self) -> dict[str, Spent]:
        """All of it by phase, without the phase that goes on."""
        sums: dict[str, Spent] = {}
        for where in (self._settled, self._open):
            for phase, one in where.items():
                _add(sums, phase, one.seconds, one.waiting)
        return sums


def _add(sums: dict[str, Spent], phase: str, seconds: float, waiting: float) -> None:
    known = sums.get(phase)
    if known is None:
        known = sums[phase] = Spent()
    known.seconds += seconds
    known.waiting += min(waiting, seconds)
