"""Accounts for a worker's time by phase since its admission, for the run's ledger (docs/run-directory.md).

The sums cover the worker's whole life, so the newest heartbeat contains all of them and no time is counted twice. The seconds of
a step that is lost to a failure are counted as recovery.
"""

from collections.abc import Mapping

from frostline_contract.phases import IN_STEP, Phase
from frostline_trainer.step.device_trail import Spent


class Spending:
    """Seconds by phase, and how much of them the worker was blocked on other members. The owning clock's lock guards it.

    standing_by: whether the worker is a spare one: then all time counts as the phase SPARE.
    """

    def __init__(self) -> None:
        self._settled: dict[str, Spent] = {}
        self._open: dict[str, Spent] = {}
        self._recovering = False
        self.standing_by = False

    def add(self, phase: str, seconds: float, waiting: float) -> None:
        """Add a phase that has ended. After a failure, the reshape up to the next step counts as recovery."""
        if self.standing_by or phase in IN_STEP:
            self._recovering = False
        if self.standing_by:
            phase = Phase.SPARE
        elif phase == Phase.RESHAPE and self._recovering:
            phase = Phase.RECOVERY
        _add(self._open, phase, seconds, waiting)

    def settle(self, device: Mapping[Phase, Spent]) -> None:
        """Settle a committed step's seconds.

        device: the device's seconds by phase since the last call, if it runs behind its thread. The thread's seconds in these
        phases are divided in proportion to the device's, so that the sum stays the time that has passed.
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
        """Count the seconds of the step under way as recovery: a failure has ended the step."""
        lost = [self._open.pop(phase) for phase in IN_STEP & self._open.keys()]
        _add(self._open, Phase.RECOVERY, sum(one.seconds for one in lost), 0.0)
        self._recovering = True

    def so_far(self) -> dict[str, Spent]:
        """The sums by phase, without the current phase."""
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
