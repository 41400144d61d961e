"""The runs of a comparison: the job changes of each arm, and each run as a process of its own."""

import math
import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from frostline_contract.job import Job, load_job
from frostline_contract.job.change import differences
from frostline_contract.jsonl import JsonlTail
from frostline_contract.run_directory import RunDirectory
from frostline_contract.run_status import RunStatus
from frostline_controller.local_run import exit_codes
from frostline_controller.local_run.errors import CommandError, UserMistake
from frostline_controller.local_run.requests import NewRun, in_a_process
from frostline_controller.local_run.run_folder import read_job
from frostline_controller.local_run.run_lock import owned
from frostline_controller.local_run.separate_process import RunError, mistakes
from frostline_controller.report.data import read_run
from frostline_controller.report.figures import RunFigures, read_figures

REPORT_SECONDS = 20.0
"""Seconds between reports of a long run's progress."""

FIELDS_SHOWN = 3
"""The most differing fields that a message names."""

PARTS = ("freeze", "pipeline", "replicas", "cache")
ARM_PARTS = {
    "static": (),
    "freezing": ("freeze",),
    "elastic": PARTS,
    "pipeline": ("freeze", "pipeline"),
    "replicas": ("freeze", "replicas"),
    "cache": ("freeze", "cache"),
}
"""The parts of `elastic` that each arm has on. All but the first act on frozen layers only, so they go with freezing."""


@dataclass(frozen=True)
class Trial:
    """One run to make.

    Attributes:
        arm: name of the arm.
        workers: number of worker processes.
        folder: the run directory.
        overrides: job fields beyond those of arm and seed, as `field=value`.
    """

    arm: str
    seed: int
    workers: int
    folder: Path
    overrides: tuple[str, ...] = ()

    def settings(self) -> list[str]:
        """Return the `--set` entries that turn the given job into the arm's."""
        parts = [f"elastic.{part}={'true' if part in ARM_PARTS[self.arm] else 'false'}" for part in PARTS]
        return [f"seed={self.seed}", f"name={self.arm}-{self.seed}", *parts, *self.overrides]

    def job(self, job_file: str, overrides: Sequence[str]) -> Job:
        """Return the job of this run.

        Args:
            job_file: path of the compared job's file.
            overrides: `field=value` beyond those of this run.

        Raises:
            JobMistake: the job is invalid.
        """
        with mistakes():
            return load_job(job_file, [*overrides, *self.settings(), f"placement.workers={self.workers}"])


@dataclass(frozen=True, kw_only=True)
class Outcome(RunFigures):
    """The figures of a finished run of an arm and seed."""

    arm: str
    seed: int
    workers: int


def name_of(arm: str) -> str:
    """Return the standard name of an arm; freeze is an alias of freezing."""
    return "freezing" if arm == "freeze" else arm


def check_trials(trials: Iterable[Trial], job_file: str, overrides: list[str]) -> None:
    """Check the jobs of runs before any of them is made.

    Args:
        trials: the runs.
        job_file: path of the compared job's file.
        overrides: `field=value` beyond those of each run.

    Raises:
        UserMistake: a folder holds a completed run of another job, or runs would share a folder of checkpoints.
        JobMistake: the job of a run is invalid.
    """
    roots: dict[str, Path] = {}
    for trial in trials:
        job = trial.job(job_file, overrides)
        if roots.setdefault(os.path.normpath(job.checkpoint_root(trial.folder)), trial.folder) != trial.folder:
            uri = job.checkpoint.uri
            raise UserMistake(f"checkpoint.uri is {uri!r}: several runs would write there; name one relative to the run")
        if _has_completed(trial):
            check_kept_job(trial.folder, read_job(trial.folder), job)


def check_kept_job(place: Path, kept: Job, asked: Job, *, but: Sequence[str] = ()) -> None:
    """Raise UserMistake where what is kept at a place belongs to another job than the one that is compared now.

    Args:
        place: where it is kept, for the message.
        kept: the job that it belongs to.
        asked: the job of this comparison.
        but: fields in which the two may differ.
    """
    found = [f"{one.path} {one.before!r}, not {one.after!r}" for one in differences(kept, asked) if one.path not in but]
    if found:
        more = f" and {len(found) - FIELDS_SHOWN} more" if len(found) > FIELDS_SHOWN else ""
        raise UserMistake(f"{place} is of another job ({'; '.join(found[:FIELDS_SHOWN])}{more}); give another --out")


def _has_completed(trial: Trial) -> bool:
    return RunDirectory(trial.folder).ended_as() == RunStatus.COMPLETED


def run_trial(trial: Trial, job_file: str, overrides: list[str], on_step: Callable[[int], None] | None = None) -> Outcome:
    """Make the run, or read it where it exists already. The run dies with this process, so that nothing trains unnoticed.

    Args:
        trial: the run.
        job_file: path of the job's file.
        overrides: `field=value` beyond those of the trial.
        on_step: called at intervals with the newest step, while the run trains.

    Raises:
        UserMistake: the folder holds a completed run of another job.
        CommandError: the run failed; with the run's exit status.
    """
    places = RunDirectory(trial.folder)
    if _has_completed(trial):
        check_kept_job(trial.folder, read_job(trial.folder), trial.job(job_file, overrides))
    else:
        if places.holds_run():
            # An unfinished run gives no time; it is made again from the start, unless somebody trains it right now.
            with owned(trial.folder):
                shutil.rmtree(trial.folder)
        try:
            job = trial.job(job_file, overrides)
            request = NewRun(job=job, job_file=Path(job_file).resolve(), out=str(trial.folder))
            process, metrics = in_a_process(request, keep_output=False, dies_with_us=True), JsonlTail(places.metrics)
            while not process.wait(REPORT_SECONDS):
                steps = [line["step"] for line in metrics.new() if "step" in line]
                if on_step is not None and steps:
                    on_step(steps[-1])
            process.end()
        except RunError as error:
            ended = CommandError(f"{trial.folder}: {error}; the same command goes on from here")
            ended.code = error.code if error.code in exit_codes.MEANING else exit_codes.FAILED
            raise ended from None
    return read_outcome(trial)


def read_outcome(trial: Trial) -> Outcome:
    """Return the outcome of a finished run directory."""
    figures = vars(read_figures(trial.folder))
    return Outcome(**figures, arm=trial.arm, seed=trial.seed, workers=trial.workers)


def best_static_micro_batch(
    job: Job, job_file: str, overrides: list[str], folder: Path, workers: int
) -> tuple[int, dict[int, float]]:
    """Return the fastest micro-batch size of the static arm with fast numerics, and median step seconds by size.

    Sizes are measured by runs of a few steps, since the elastic arm is compared with the measured time. The sizes double, while
    the batch has at least one micro-batch of the size, until a size is slower than the best by a fifth or cannot be run: it does
    not fit the memory, or gives too few micro-batches for what the job asks of replicas.

    Args:
        job: the job that is compared; the first size is its own.
        job_file: path of the job's file.
        overrides: `field=value` for every run.
        folder: the runs' folders are made in it.
        workers: worker processes of each run.
    """
    measured: dict[int, float] = {}
    size = job.training.micro_batch_size
    while size <= job.training.batch_size:
        trial = Trial("static", job.seed, workers, folder / f"micro-batch-{size}", static_overrides(job, size, steps=24))
        try:
            run_trial(trial, job_file, overrides)
        except CommandError as error:  # `run_trial` puts a run's failure into the words of the command
            if not measured or error.code not in (exit_codes.USER_MISTAKE, exit_codes.FAILED):
                raise
            break
        seconds = sorted(record.step_seconds for record in read_run(trial.folder).records[4:])
        measured[size] = seconds[len(seconds) // 2]
        if measured[size] > 1.2 * min(measured.values()):
            break
        size *= 2
    return min(measured, key=lambda candidate: measured[candidate]), measured


def static_overrides(job: Job, micro_batch_size: int, steps: int | None = None) -> tuple[str, ...]:
    """Return the job fields of the timed static arm: fast numerics at its own micro-batch size, with as few leaves as it
    needs."""
    micro_batches = math.ceil(job.training.batch_size / micro_batch_size)
    leaves = min(job.training.reduction_leaves, 2 ** int(math.log2(micro_batches)))
    chosen = [
        f"training.micro_batch_size={micro_batch_size}",
        f"training.reduction_leaves={leaves}",
        "training.numerics=fast",
        "placement.shard=none",
    ]
    if steps is not None:
        chosen += [
            f"training.steps={steps}",
            "training.epochs=null",
            "evaluation.every_intervals=0",
            "evaluation.test_at_end=false",
        ]
    return tuple(chosen)
