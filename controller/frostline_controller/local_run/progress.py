"""The progress of a run, gathered from its files and its controller: the terminal's input."""

import logging
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from frostline_contract.jsonl import JsonlTail
from frostline_contract.mesh import with_degrees
from frostline_contract.run_directory import RunDirectory
from frostline_controller.local_run.control import OperatorClient
from frostline_controller.local_run.errors import CommandError
from frostline_controller.local_run.status import from_response
from frostline_controller.report.data import Event
from frostline_controller.report.metrics import main_metric

log = logging.getLogger(__name__)

RECENT_STEPS = 20
"""The number of steps over which rates are averaged: enough to be steady, few enough to follow a reshape."""


@dataclass
class Progress:
    """The newest numbers of a run. Fractions are 0 to 1, None is unknown; `new_events` are those since the last poll."""

    name: str = ""
    state: str = "starting"
    step: int = 0
    total_steps: int = 0
    generation: str = ""
    freeze_point: int = 0
    num_units: int = 0
    degrees: dict[str, int] = field(default_factory=dict)
    loss: float | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    samples_per_second: float = 0.0
    cache_hit_fraction: float | None = None
    seconds_left: float | None = None
    message: str = ""
    workers: list[dict[str, Any]] = field(default_factory=list)
    new_events: list[Event] = field(default_factory=list)
    intervals: int = 0


class ProgressReader:
    """Follows a run directory: each `poll` reads the new lines and calls the controller once.

    Args:
        folder: the run directory.
        client: the connection to the controller.
        skip_events: leave out the events that exist already, from before the run was resumed.
    """

    def __init__(self, folder: Path, client: OperatorClient, skip_events: bool = False) -> None:
        self._places = RunDirectory(folder)
        self._client = client
        self._metrics = JsonlTail(self._places.metrics)
        self._events = JsonlTail(self._places.events)
        if skip_events:
            self._events.new()
        self._statistics = JsonlTail(self._places.statistics)
        self._job = self._places.read_job_values()
        self._recent: list[dict[str, Any]] = []
        self._progress = Progress(name=folder.name)
        self.last_status: dict[str, Any] | None = None

    def poll(self) -> Progress:
        """Return the newest progress. If the controller is unreachable, the workers stay as they were; the rest comes from
        files."""
        progress = self._progress
        self._ask_controller(progress)
        records = [line for line in self._metrics.new() if "starts_at_step" not in line]
        self._recent = [*self._recent, *records][-RECENT_STEPS:]
        for record in records:
            self._take_metrics(progress, record.get("evaluation", {}), {})
        if self._recent:
            self._take_records(progress)
        progress.intervals += len(self._statistics.new())
        progress.new_events = [Event.parse(line) for line in self._events.new()]
        result = self._places.read_result()
        if result:
            progress.state = str(result.get("status", "ended"))
            progress.message = str(result.get("message", ""))
            self._take_metrics(progress, result.get("final", {}), result)
        return progress

    def _ask_controller(self, progress: Progress) -> None:
        try:
            status = from_response(self._client.status(deadline_seconds=1.0))
        except CommandError as error:
            # A restart of the controller is not reported: training goes on, and the files have its progress.
            log.debug("status not read error=%s", error)
            return
        self.last_status = status
        progress.name, progress.state, progress.message = status["name"], status["state"], status["message"]
        progress.step, progress.total_steps = max(progress.step, status["step"]), status["total_steps"]
        progress.generation, progress.workers = status["generation"], status["workers"]
        progress.freeze_point, progress.num_units = status["freeze_point"], status["num_units"]
        progress.degrees = status["shape"]["degrees"]
        progress.seconds_left = status["seconds_left"]

    def _take_metrics(self, progress: Progress, values: dict[str, float], result: dict[str, Any]) -> None:
        main = main_metric(values, self._job, result)
        if main != "loss":
            progress.metrics = {main: values[main]}

    def _take_records(self, progress: Progress) -> None:
        last = self._recent[-1]
        progress.step, progress.loss, progress.generation = last["step"], last["loss"], last["generation"]
        progress.freeze_point = last["freeze_point"]
        progress.degrees = with_degrees(last)["degrees"]
        progress.num_units = progress.num_units or len(last.get("unit_gradient_norms", ()))
        progress.samples_per_second = median(record.get("samples_per_second", 0.0) for record in self._recent)
        hits = sum(record.get("cache_hits", 0) for record in self._recent)
        asked = hits + sum(record.get("cache_misses", 0) for record in self._recent)
        progress.cache_hit_fraction = hits / asked if asked else None
        if progress.seconds_left is None and progress.total_steps:
            step_seconds = median(record["step_seconds"] for record in self._recent)
            progress.seconds_left = max(0, progress.total_steps - progress.step) * step_seconds
