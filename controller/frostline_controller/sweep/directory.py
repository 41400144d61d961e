"""The directory of a sweep: the job of each run, its run directory, the shared cache, and the state of the sweep.

Its entries: sweep.json, the varied fields and every run with its values, state and figures (docs/run-directory.md); sweep.html,
the same as a page with pictures; jobs/<run>.yaml, the resolved job of each run, written before the first one starts; runs/<run>,
ordinary run directories; cache, the tokens, secrets and logs of the shared cache, whose values are gone once the sweep has ended.
"""

import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from frostline_contract.durable_files import replace_durably
from frostline_contract.run_directory import RunDirectory, read_json
from frostline_contract.run_status import RunStatus
from frostline_controller.sweep.grid import Axis

SCHEMA_VERSION = 1
OVER = frozenset((RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED))
"""The states of runs that a resumed sweep does not start again."""


@dataclass(frozen=True)
class SweptRun:
    """One run of a sweep.

    Attributes:
        number: from 1 on, in the order in which runs are started.
        name: name of the run's job, job file and folder.
        values: the varied fields, with the values that the job resolved them to.
        workers: number of the sweep's workers that the run uses.
        state: a RunStatus; waiting: not started yet.
        exit_code: exit status of the last process that carried the run out; None: none has ended yet.
        message: the reason of the run's failure.
        figures: the run's final figures (`report.figures`), once the run has completed.
    """

    number: int
    name: str
    values: dict[str, Any]
    workers: int
    state: str = RunStatus.WAITING
    exit_code: int | None = None
    message: str = ""
    figures: dict[str, Any] = field(default_factory=dict)

    @property
    def over(self) -> bool:
        """Whether the run has completed, failed or was cancelled."""
        return self.state in OVER


@dataclass(frozen=True)
class SweepState:
    """The state of a sweep, as in sweep.json.

    Attributes:
        workers: the most workers of all runs together; None: as many as the runs side by side have.
        side_by_side: the most runs at a time.
        shares_cache: whether any run uses the sweep's cache.
        metric: name of the task's metric; "" before a run has ended.
    """

    name: str
    axes: tuple[Axis, ...]
    runs: tuple[SweptRun, ...]
    workers: int | None
    side_by_side: int
    shares_cache: bool
    job_file: str = ""
    state: str = RunStatus.WAITING
    metric: str = ""
    wall_seconds: float = 0.0

    def with_run(self, run: SweptRun) -> "SweepState":
        """Return the same state with one run in its new state."""
        return replace(self, runs=tuple(run if one.number == run.number else one for one in self.runs))

    def count(self, *states: str) -> int:
        """Return the number of runs in one of these states."""
        return sum(run.state in states for run in self.runs)


class SweepDirectory:
    """The places of a sweep's files; none of them has to exist."""

    def __init__(self, path: str | Path) -> None:
        self.path = path = Path(path)
        self.state, self.page = path / "sweep.json", path / "sweep.html"
        self.jobs, self.runs, self.cache = path / "jobs", path / "runs", path / "cache"

    def holds_sweep(self) -> bool:
        """Whether a sweep was started here."""
        return self.state.exists()

    def job_of(self, run: SweptRun) -> Path:
        """Return the path of a run's resolved job file."""
        return self.jobs / f"{run.name}.yaml"

    def run_of(self, run: SweptRun) -> RunDirectory:
        """Return the run directory of a run."""
        return RunDirectory(self.runs / run.name)

    def write(self, state: SweepState) -> None:
        """Replace sweep.json by the given state. Raises OSError."""
        values = {**asdict(state), "version": SCHEMA_VERSION}
        values["vary"] = {axis.field: list(axis.values) for axis in state.axes}
        values["runs"] = [{**asdict(run), "directory": f"{self.runs.name}/{run.name}"} for run in state.runs]
        del values["axes"]
        replace_durably(self.state, json.dumps(values, indent=1) + "\n")

    def read(self) -> SweepState:
        """Return the state in sweep.json. Raises ValueError where the file is broken or missing."""
        values = read_json(self.state)
        try:
            axes = tuple(Axis(name, tuple(given)) for name, given in values["vary"].items())
            runs = tuple(SweptRun(**{name: run[name] for name in SweptRun.__annotations__}) for run in values["runs"])
            kept = {name: values[name] for name in SweepState.__annotations__ if name not in ("axes", "runs")}
            return SweepState(**kept, axes=axes, runs=runs)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{self.state}: is no sweep's ({error!r}); restore it, or start another sweep") from None


def sweep_in(given: str | None) -> SweepDirectory | None:
    """Return the sweep in the directory that a command names; None where it names no directory, or one without a sweep."""
    places = SweepDirectory(Path(given).resolve()) if given is not None else None
    return places if places is not None and places.holds_sweep() else None
