"""The result of a sweep for Python: a view of its directory."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from frostline_contract.run_status import RunStatus
from frostline_controller.run_result import RunResult
from frostline_controller.sweep.directory import SweepDirectory, SweepState, SweptRun


@dataclass(frozen=True)
class SweepResult:
    """A view of a sweep's directory as it was at the first access."""

    directory: Path

    @cached_property
    def _state(self) -> SweepState:
        return SweepDirectory(self.directory).read()

    @property
    def state(self) -> str:
        """waiting or running while the sweep goes on; then completed, failed (a run has failed) or suspended (runs are left)."""
        return self._state.state

    @property
    def runs(self) -> tuple[SweptRun, ...]:
        """Every run: `number`, `values` by field, `state`, `message`, and `figures` where it has completed."""
        return self._state.runs

    @property
    def failed(self) -> tuple[SweptRun, ...]:
        """The runs that failed or were cancelled."""
        return tuple(run for run in self.runs if run.over and run.state != RunStatus.COMPLETED)

    def result(self, run: SweptRun) -> RunResult:
        """Return the run's own directory, which is an ordinary one."""
        return RunResult(SweepDirectory(self.directory).run_of(run).path)
