"""From the controller's state to the next numbered decision: gathers the inputs of `decide`. Pure but for reading a replay."""

import dataclasses
import json
from pathlib import Path

from frostline_contract.intervals import DecisionCalendar
from frostline_contract.job import Job, load_job
from frostline_contract.job.automatic import with_numbers
from frostline_contract.plan import Decision
from frostline_contract.run_directory import RunDirectory
from frostline_contract.statistics import IntervalStatistics
from frostline_controller.decisions.decide import check_freezing, decide
from frostline_controller.decisions.inputs import FreezeInputs
from frostline_controller.decisions.surviving import (
    key_of,
    next_number,
    remembered_decisions,
    surviving_decisions,
    surviving_statistics,
)
from frostline_controller.run.durable import DurableState, RunIdentity


def due_statistics(
    statistics: list[IntervalStatistics], state: DurableState, calendar: DecisionCalendar
) -> list[IntervalStatistics] | None:
    """The surviving statistics up to the interval whose decision comes next; None where that one is not there yet."""
    number = next_number(surviving_decisions(state.decisions, state.lineages, calendar))
    kept = [one for one in surviving_statistics(statistics, state.lineages) if one.number <= number]
    return kept if kept and kept[-1].number == number else None


def next_decision(
    job: Job,
    identity: RunIdentity,
    statistics: list[IntervalStatistics],
    state: DurableState,
    calendar: DecisionCalendar,
    replayed: tuple[Decision, ...] | None,
) -> Decision:
    """The decision on the newest interval whose statistics are complete.

    Args:
        job: the run's job.
        identity: the run's identity, for the model's units.
        statistics: those from `due_statistics`. The decision is on the last of them.
        state: the durable state: decisions, lineages, and a freeze point that an operator has requested.
        calendar: the steps of the intervals.
        replayed: decisions of another run that replace the job's policy; None: the policy decides.

    Raises:
        ValueError: the job's freeze section has a mistake.
    """
    remembered = remembered_decisions(state.decisions, state.lineages, calendar)
    requested = state.forced_freeze_point if state.forced_freeze_point >= 0 else None
    inputs = _inputs(job, identity, calendar, statistics, remembered, replayed)
    return decide(dataclasses.replace(inputs, requested=requested, highest_lineage=state.max_lineage, lineage=state.lineage))


def check_job(job: Job, identity: RunIdentity, calendar: DecisionCalendar, replayed: tuple[Decision, ...] | None) -> None:
    """Raise ValueError for mistakes in the job's freeze section, as soon as the model's units are known."""
    check_freezing(_inputs(job, identity, calendar, [], [], replayed))


def _inputs(
    job: Job,
    identity: RunIdentity,
    calendar: DecisionCalendar,
    statistics: list[IntervalStatistics],
    decisions: list[Decision],
    replayed: tuple[Decision, ...] | None,
) -> FreezeInputs:
    """The inputs with the job's own policy, or with the policy that follows another run's decisions.

    Args:
        job, identity, calendar, statistics, replayed: as in `next_decision`.
        decisions: all decisions known, oldest first.
    """
    inputs = FreezeInputs.of_job(job, identity.num_units, calendar, statistics, decisions, tied=identity.tied)
    if replayed is None:
        return inputs
    policy = job.freeze.policy.model_copy(update={"name": "replay"})
    return dataclasses.replace(inputs, freeze=job.freeze.model_copy(update={"policy": policy}), replayed=replayed)


def followed_run(job: Job, given: Path | None) -> Path | None:
    """The run directory that this run follows: that of --replay, else that of policy `replay`; None: it follows none.

    Raises ValueError where the policy is `replay` and no run is named.
    """
    policy = job.freeze.policy
    if given is not None or policy.name != "replay" or not job.elastic.freeze:
        return given
    if policy.replay_of is None:
        raise ValueError("freeze.policy.name is replay and freeze.policy.replay_of is null; name the run directory to follow")
    return Path(policy.replay_of)


def replayed_decisions(job: Job, given: Path | None) -> tuple[Decision, ...] | None:
    """The decisions of the run that this run follows; None: it follows none.

    Raises ValueError where the policy is `replay` and no run is named, or the other run's decisions cannot be read.
    """
    followed = followed_run(job, given)
    if followed is None:
        return None
    return read_replay(followed, "--replay" if given is not None else "freeze.policy.replay_of:")


def read_replay(run_dir: Path, named_by: str = "--replay") -> tuple[Decision, ...]:
    """The decisions of another run's plans.jsonl, oldest first. Raises ValueError where the file has no readable decision.

    named_by: what has named the folder, for the error.
    """
    path = RunDirectory(run_dir).plans
    try:
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        found = [decision_of_line(line) for line in lines if "decision_kind" in line]
    except (OSError, ValueError) as error:
        raise ValueError(f"{named_by} {run_dir}: {path} cannot be read ({error}); give the folder of a run") from error
    newest = {key_of(one): one for one in found}  # a void one was written again
    return tuple(newest.values())


def with_recorded_start(job: Job, run_dir: Path) -> Job:
    """The job with another run's prefix tile and initial units, and with its numbers where the job says `auto`.

    A replay follows these numerics as well as the decisions. Raises ValueError where the other run's job cannot be read.
    """
    places = RunDirectory(run_dir)
    tile = places.recorded_prefix_tile() or job.cache.prefix_tile
    recorded = load_job(places.job)
    job = job.model_copy(update={
        "cache": job.cache.model_copy(update={"prefix_tile": tile}),
        "freeze": job.freeze.model_copy(update={"initial_units": recorded.initial_units}),
    })  # fmt: skip
    return with_numbers(job, {name: getattr(recorded.training, name) for name in job.training.automatic})


def decision_line(decision: Decision) -> dict[str, object]:
    """A decision as a line of plans.jsonl; its own kind is `decision_kind`, since `kind` says what the line is."""
    values = decision.model_dump(mode="json")
    return {"kind": "decision", "decision_kind": values.pop("kind"), **values}


def decision_of_line(line: dict[str, object]) -> Decision:
    """A decision from its line of plans.jsonl. Raises KeyError or ValidationError for another kind of line."""
    values = {key: value for key, value in line.items() if key != "decision_kind"}
    return Decision.model_validate({**values, "kind": line["decision_kind"]})
