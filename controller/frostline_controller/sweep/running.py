"""The runs of a sweep side by side: each in a process of its own, within the given workers, over one cache."""

import time
from collections.abc import Callable
from dataclasses import replace

from frostline_contract.job import load_job
from frostline_contract.run_directory import RunDirectory
from frostline_contract.run_status import RunStatus
from frostline_controller.local_run import exit_codes
from frostline_controller.local_run.control import OperatorClient
from frostline_controller.local_run.interrupts import Interrupts
from frostline_controller.local_run.progress import ProgressReader
from frostline_controller.local_run.requests import NewRun, ResumedRun, RunRequest, in_a_process
from frostline_controller.local_run.separate_process import RunError
from frostline_controller.local_run.terminal import PLAIN_SECONDS, progress_line
from frostline_controller.report.data import read_run
from frostline_controller.report.figures import read_figures
from frostline_controller.report.tables import duration
from frostline_controller.sweep.directory import SweepDirectory, SweepState, SweptRun
from frostline_controller.sweep.services import SweepServices
from frostline_controller.sweep.wording import final_words, values_in_words

LOOK_SECONDS = 0.1
STOPPED = (None, exit_codes.DRAINED, exit_codes.INTERRUPTED)
"""The exit codes of a run that can go on; None: the process was killed with the sweep."""


class RunningRun:
    """One run and the process that owns it. The process dies with the sweep, so that nothing trains unnoticed.

    Args:
        run: the run.
        places: of the sweep.
        report: draw the run's report.html at its end.
        services: shared by the runs.
    """

    def __init__(self, run: SweptRun, places: SweepDirectory, report: bool, services: SweepServices) -> None:
        self.run, self._places = run, places.run_of(run)
        folder, cache = self._places.path, services.shared_cache
        request: RunRequest
        if self._places.holds_run():  # goes on also from a run without a checkpoint
            request = ResumedRun(folder=folder, from_scratch=True, shared_cache=cache, report=report)
        else:
            file = places.job_of(run)
            request = NewRun(job=load_job(file), job_file=file, out=str(folder), shared_cache=cache, report=report)
        self.process = in_a_process(request, dies_with_us=True, environment=services.environment)
        self._client = OperatorClient(self._places.path)
        self._reader: ProgressReader | None = None
        self._logged_at, self._logged_step = time.monotonic(), -1

    def news(self) -> str:
        """Return a line on the run's progress, at intervals; "" where there is nothing new. Of files that cannot be read the line
        says why: the run itself may go on, and other runs do."""
        if time.monotonic() - self._logged_at < PLAIN_SECONDS or not self._places.job.exists():
            return ""
        self._logged_at = time.monotonic()
        try:
            self._reader = self._reader or ProgressReader(self._places.path, self._client, skip_events=True)
            progress = self._reader.poll()
        except (ValueError, OSError) as error:
            return f"progress unknown: {error}"
        if progress.step == self._logged_step:
            return ""
        self._logged_step = progress.step
        return progress_line(progress)

    def ended(self) -> SweptRun:
        """Return the final state of the run; wait for the end of its process if needed."""
        self._client.close()
        try:
            self.process.end()
            code, message = exit_codes.DONE, ""
        except RunError as error:
            code, message = error.code, str(error).partition("\nlogs: ")[0]
        return as_it_stands(replace(self.run, exit_code=code, message=message), self._places)


def as_it_stands(run: SweptRun, places: RunDirectory) -> SweptRun:
    """Return the run with the state, message and figures from its directory, whatever sweep.json has."""
    try:
        state, result = places.ended_as(), places.read_result()
        figures = read_figures(places.path).as_json() if state == RunStatus.COMPLETED else {}
    except ValueError as error:
        return replace(run, state=RunStatus.FAILED, message=str(error))
    if not state and run.exit_code in STOPPED:
        return replace(run, state=RunStatus.SUSPENDED if places.holds_run() else RunStatus.WAITING, message="")
    message = "" if state in (RunStatus.COMPLETED, RunStatus.SUSPENDED) else str(result.get("message") or run.message)
    return replace(run, state=state or RunStatus.FAILED, message=message, figures=figures)


class SweepRunner:
    """Starts the runs that fit, reports their progress, and keeps sweep.json up to date.

    Args:
        places: of the sweep.
        state: the runs; those that are over are not started.
        say: shows a line.
        report: draw each run's report.html.
    """

    def __init__(self, places: SweepDirectory, state: SweepState, say: Callable[[str], None], report: bool) -> None:
        self._places, self.state, self._say, self._report = places, state, say, report
        self._active: dict[int, RunningRun] = {}
        self._begun = time.monotonic() - state.wall_seconds

    def run(self, asked: Interrupts) -> SweepState:
        """Go on until every run is over, or the user wants to stop; return the final state."""
        services, passed_on = SweepServices(self._places, self.state), 0
        try:
            services.start()
            while self._active or (not asked.count and self._next() is not None):
                services.advance()
                while not asked.count and (chosen := self._next()) is not None:
                    self._start(chosen, services)
                for one in list(self._active.values()):
                    self._look(one)
                if asked.count > passed_on:
                    passed_on += 1  # one at a time: of two signals at once a process receives one
                    self._stop(passed_on)
                time.sleep(LOOK_SECONDS)
        finally:
            for one in self._active.values():
                one.process.kill()
            services.stop()
        return self._keep(self.state)

    def _next(self) -> SweptRun | None:
        """Return the first waiting run, if there are workers for it beside the active runs."""
        untouched = (run for run in self.state.runs if not run.over and run.exit_code is None)
        waiting = next((run for run in untouched if run.number not in self._active), None)
        if waiting is None or len(self._active) >= self.state.side_by_side:
            return None
        wanted = waiting.workers + sum(one.run.workers for one in self._active.values())
        fits = self.state.workers is None or wanted <= self.state.workers
        return waiting if fits or not self._active else None

    def _start(self, run: SweptRun, services: SweepServices) -> None:
        again = self._places.run_of(run).holds_run()
        run = replace(run, state=RunStatus.RUNNING, message="")
        self._active[run.number] = RunningRun(run, self._places, self._report, services)
        self._keep(self.state.with_run(run))
        self._log(run, "goes on" if again else "starts")

    def _look(self, one: RunningRun) -> None:
        if one.process.running:
            if news := one.news():
                self._log(one.run, news)
            return
        run = one.ended()
        del self._active[run.number]
        self._keep(self.state.with_run(run))
        self._log(run, final_words(run))

    def _stop(self, times: int) -> None:
        for one in self._active.values():
            one.process.interrupt()
        if times == 1 and self._active:
            self._say(f"stopping {len(self._active)} run(s) at checkpoints; press Ctrl-C again to stop at once")

    def _keep(self, state: SweepState) -> SweepState:
        """Write sweep.json."""
        metric = state.metric or next((self._metric(run) for run in state.runs if run.figures), "")
        over = state.count(RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED)
        if self._active:
            word = RunStatus.RUNNING
        elif over < len(state.runs):
            word = RunStatus.SUSPENDED
        else:
            word = RunStatus.COMPLETED if state.count(RunStatus.COMPLETED) == over else RunStatus.FAILED
        self.state = replace(state, metric=metric, state=word, wall_seconds=time.monotonic() - self._begun)
        try:
            self._places.write(self.state)
        except OSError as error:  # e.g. a full disk: a resumed sweep reads its state from the runs' directories
            self._say(f"{self._places.state}: cannot be written ({error.strerror}); the runs go on")
        return self.state

    def _metric(self, run: SweptRun) -> str:
        return read_run(self._places.run_of(run).path).main_metric

    def _log(self, run: SweptRun, news: str) -> None:
        at = duration(time.monotonic() - self._begun)
        self._say(f"{run.number}/{len(self.state.runs)}  {values_in_words(run)}  {at}: {news}")
