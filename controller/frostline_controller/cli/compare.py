"""`frostline compare`: arms side by side, interleaved, with tables and pictures of time, metric and loss."""

import argparse
import json
from collections.abc import Callable
from pathlib import Path

from frostline_contract.durable_files import make_folder_durably, replace_durably
from frostline_contract.job import Job, JobError, load_job, parse_job
from frostline_contract.job.automatic import Settled, with_settled
from frostline_contract.run_directory import read_json
from frostline_controller.cluster.local.measuring import settings_of, settled_here
from frostline_controller.comparison.report import Comparison, write_comparison
from frostline_controller.comparison.trials import (
    ARM_PARTS,
    Outcome,
    Trial,
    best_static_micro_batch,
    check_kept_job,
    check_trials,
    name_of,
    run_trial,
    static_overrides,
)
from frostline_controller.local_run import exit_codes
from frostline_controller.local_run.errors import UserMistake
from frostline_controller.local_run.run_folder import RUNS
from frostline_controller.local_run.run_lock import owned
from frostline_controller.local_run.terminal import open_terminal

SETTLED = "settled.json"
"""The file in a comparison's folder with the values for the job's `auto` fields."""


def compare(arguments: argparse.Namespace) -> int:
    """Make every missing run of the comparison, then write comparison.json, comparison.md and the pictures."""
    try:
        job = load_job(arguments.file, arguments.overrides)
    except JobError as error:
        raise UserMistake(str(error)) from None
    out = Path(arguments.out) if arguments.out else RUNS / f"compare-{job.name}"
    try:
        make_folder_durably(out)
    except OSError as error:
        raise UserMistake(f"{out}: cannot be made ({error.strerror}); give another --out") from None
    with owned(out, f"see the runs in {out}"):
        return _compare(arguments, job, out)


def _compare(arguments: argparse.Namespace, job: Job, out: Path) -> int:
    say = open_terminal(quiet=True).say  # goes on after its reader is gone
    job, settings = settled_for_all(job, out, say)
    arguments.overrides = [*arguments.overrides, *settings]
    arms = list(dict.fromkeys(name_of(arm) for arm in arguments.arms))
    trials = accuracy_trials(job, arms, arguments.seeds, arguments.accuracy_workers, out)
    check_trials([*trials, *_known_time_trials(job, arms, out, arguments)], arguments.file, arguments.overrides)
    accuracy = _run_all("accuracy", trials, arguments, say)
    times, micro_batch_seconds = _times(job, arms, out, arguments, say)
    comparison = Comparison(
        job_name=job.name,
        arms=tuple(arms),
        seeds=tuple(arguments.seeds),
        accuracy=tuple(share_equal_numerics(job, arms, accuracy)),
        times=tuple(times),
        micro_batch_seconds=micro_batch_seconds,
        placement_is_free=job.training.numerics == "exact" and job.training.batch == "global",
    )
    say(str(write_comparison(comparison, out)))
    return exit_codes.DONE


def settled_for_all(job: Job, out: Path, say: Callable[[str], None]) -> tuple[Job, list[str]]:
    """Settle the job's `auto` fields once for all arms and seeds; return the settled job, and the values as overrides for each
    run.

    The values are kept in `out` with the job they were measured for, for a later call of the same command.

    Raises:
        UserMistake: the values that are kept in `out` are of another job.
    """
    settled = _kept_settled(job, out / SETTLED) or settled_here(job)
    if settled is None:
        return job, []
    kept = {"job": job.model_dump(mode="json"), "settled": settled.model_dump(mode="json")}
    replace_durably(out / SETTLED, json.dumps(kept, indent=1) + "\n")
    say(settled.reason)
    return with_settled(job, settled), settings_of(job, settled)


def _kept_settled(job: Job, file: Path) -> Settled | None:
    """Return the values that an earlier call has kept for the `auto` fields of a job; None: there are none."""
    kept = read_json(file) if job.training.automatic else {}
    if not kept:
        return None
    if "job" in kept:  # an older version kept the values alone
        check_kept_job(file, parse_job(kept["job"], str(file)), job, but=("seed", "name"))
    return Settled.model_validate(kept.get("settled", kept))


def accuracy_trials(job: Job, arms: list[str], seeds: list[int], workers: int, out: Path) -> list[Trial]:
    """Return the runs for metric and loss. With exact numerics placement changes no bit, so arms with equal numerics share a run.

    Args:
        job: the job that is compared.
        arms: names of the arms.
        seeds: each arm runs once with each seed.
        workers: worker processes of each run.
        out: the comparison's folder; each run has a folder below it.
    """
    needed = list(dict.fromkeys(_numerics_arm(job, arm) for arm in arms))
    return [Trial(arm, seed, workers, out / "accuracy" / f"{arm}-{seed}") for seed in seeds for arm in needed]


def time_trials(job: Job, arms: list[str], seeds: list[int], out: Path, micro_batch_size: int) -> list[Trial]:
    """Return the timed runs on all workers, seed by seed; each seed starts with another arm, so that no arm is always first.

    Args:
        job: the job that is compared; its number of workers is that of each run.
        arms: names of the arms.
        seeds: each arm runs once with each seed.
        out: the comparison's folder; each run has a folder below it.
        micro_batch_size: samples in a micro-batch of the static arm.
    """
    trials = []
    for place, seed in enumerate(seeds):
        turned = arms[place % len(arms) :] + arms[: place % len(arms)]
        for arm in turned:
            overrides = static_overrides(job, micro_batch_size) if arm == "static" else ()
            trials.append(Trial(arm, seed, job.placement.workers, out / "time" / f"{arm}-{seed}", overrides))
    return trials


def share_equal_numerics(job: Job, arms: list[str], outcomes: list[Outcome]) -> list[Outcome]:
    """Return one outcome for each arm and seed: arms that shared a run get copies of its outcome under their own names."""
    shared = []
    for arm in arms:
        source = _numerics_arm(job, arm)
        shared += [Outcome(**{**outcome.__dict__, "arm": arm}) for outcome in outcomes if outcome.arm == source]
    return shared


def _numerics_arm(job: Job, arm: str) -> str:
    """Return the arm whose run gives the metric and loss of `arm`: the arm with the same numerics and the fewest parts switched
    on."""
    if job.training.numerics != "exact" or job.training.batch != "global":
        return arm
    # A lossy codec is part of the function, but it is a field of the job and applies with the cache on or off.
    return "freezing" if "freeze" in ARM_PARTS[arm] else "static"


def _known_time_trials(job: Job, arms: list[str], out: Path, arguments: argparse.Namespace) -> list[Trial]:
    """Return the timed runs whose jobs are known before anything has run: the static arm's micro-batch size may be measured."""
    known = [arm for arm in arms if arm != "static" or arguments.static_micro_batch is not None]
    size = arguments.static_micro_batch or job.training.micro_batch_size
    return time_trials(job, known, arguments.seeds[: arguments.time_seeds], out, size) if known else []


def _times(
    job: Job, arms: list[str], out: Path, arguments: argparse.Namespace, say: Callable[[str], None]
) -> tuple[list[Outcome], dict[int, float]]:
    """Return the outcomes of the timed runs, and the median step seconds of the static arm by the micro-batch sizes tried.

    Args:
        job: the job that is compared.
        arms: names of the arms.
        out: the comparison's folder.
        arguments: those of the command.
        say: receives the messages for the user.
    """
    seeds = arguments.seeds[: arguments.time_seeds]
    if not seeds:
        return [], {}
    size, measured = arguments.static_micro_batch or job.training.micro_batch_size, {}
    if "static" in arms and arguments.static_micro_batch is None:
        say("measuring the static arm's best micro-batch size")
        size, measured = best_static_micro_batch(
            job, arguments.file, arguments.overrides, out / "calibration", job.placement.workers
        )
    trials = time_trials(job, arms, seeds, out, size)
    return _run_all("time", trials, arguments, say), measured


def _run_all(purpose: str, trials: list[Trial], arguments: argparse.Namespace, say: Callable[[str], None]) -> list[Outcome]:
    outcomes = []
    for number, trial in enumerate(trials, start=1):
        place = f"{purpose} {number}/{len(trials)}  {trial.arm}-{trial.seed}"
        say(f"{place}  in {trial.folder}")

        def on_step(step: int, place: str = place) -> None:
            say(f"{place}  step {step}")

        outcome = run_trial(trial, arguments.file, arguments.overrides, on_step)
        outcomes.append(outcome)
        final = "  ".join(f"{name} {value:.4f}" for name, value in outcome.final.items())
        say(f"{place}  {outcome.wall_seconds:.1f} s  {final}")
    return outcomes
