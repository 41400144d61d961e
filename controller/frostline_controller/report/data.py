"""The contents of a run directory, read into one immutable record (docs/run-directory.md has the schemas)."""

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from frostline_contract.jsonl import read_jsonl
from frostline_contract.lineage import Cuts
from frostline_contract.mesh import with_degrees
from frostline_contract.plan import Decision, Plan
from frostline_contract.reading import read_as
from frostline_contract.run_directory import RunDirectory, read_json
from frostline_contract.statistics import IntervalStatistics, StepRecord, StepTrace
from frostline_controller.decisions.surviving import key_of
from frostline_controller.ledger.sums import Ledger
from frostline_controller.planner.profile_file import MeasuredProfile
from frostline_controller.report.metrics import main_first, main_metric


@dataclass(frozen=True)
class Event:
    """A line of events.jsonl: a transition of the run. time_seconds counts from the run's start, seconds is its duration."""

    kind: str
    time_seconds: float = 0.0
    step: int = 0
    generation: str = ""
    freeze_point: int = 0
    degrees: dict[str, int] = field(default_factory=dict)
    num_microbatches: int = 0
    reason: str = ""
    seconds: float = 0.0

    @staticmethod
    def parse(values: dict[str, Any]) -> "Event":
        """Return the event of a line; fields of later versions are ignored, null means the default. Raises ValueError."""
        if not isinstance(values.get("kind"), str):
            raise ValueError(f"events.jsonl has an event without a kind: {str(values)[:100]}")
        known = {one.name for one in fields(Event)}
        return Event(**{key: value for key, value in with_degrees(values).items() if key in known and value is not None})


@dataclass(frozen=True)
class PlanSpan:
    """A generation of plans.jsonl and the steps that it computed.

    Attributes:
        last_step: None for the run's last generation, or where the generation's end is unknown.
    """

    plan: Plan
    first_step: int
    last_step: int | None


@dataclass(frozen=True)
class RunData:
    """The present contents of a run directory, of a finished run or not.

    Attributes:
        job: {} where the file does not exist; so is `result`.
        records: surviving steps by number, after the lineage cut.
        lost_records: steps that were computed and cut away.
        lineage_starts: (lineage, step) of each cut.
        ledger: the result's, else the last one kept; None where there is none yet, or an older version wrote the run.
        traces: of surviving steps, in their order.
        profile: None where nothing was measured.
    """

    run_dir: Path
    job: dict[str, Any]
    records: tuple[StepRecord, ...]
    lost_records: tuple[StepRecord, ...]
    lineage_starts: tuple[tuple[int, int], ...]
    statistics: tuple[IntervalStatistics, ...]
    plans: tuple[PlanSpan, ...]
    decisions: tuple[Decision, ...]
    events: tuple[Event, ...]
    result: dict[str, Any]
    ledger: Ledger | None = None
    traces: tuple[StepTrace, ...] = ()
    profile: MeasuredProfile | None = None

    @property
    def name(self) -> str:
        """The job's name; the folder's name where there is no job file."""
        return str(self.job.get("name") or self.run_dir.name)

    @property
    def num_units(self) -> int:
        """The number of the model's units, from plans or else from records; 0 where there are neither yet."""
        if self.plans:
            return self.plans[-1].plan.placement.stage_bounds[-1]
        return len(self.records[-1].unit_gradient_norms) if self.records else 0

    @property
    def final(self) -> dict[str, float]:
        """The test split's numbers, main metric first; {} where the run has not reached its end."""
        final = {name: float(value) for name, value in self.result.get("final", {}).items()}
        return main_first(final, self.main_metric)

    @property
    def main_metric(self) -> str:
        """The name of the metric by which the task is judged; "loss" where no other was measured."""
        names = [*self.result.get("final", {}), *(name for record in self.records for name in record.evaluation)]
        return main_metric(names, self.job, self.result)

    def plan_of(self, generation: str) -> Plan | None:
        """Return the newest plan with this generation id, or None where plans.jsonl does not have it."""
        return next((span.plan for span in reversed(self.plans) if str(span.plan.generation) == generation), None)

    def wall_seconds(self) -> float:
        """Return the duration of the run: the result's own, else the span of records and events."""
        if "wall_seconds" in self.result:
            return float(self.result["wall_seconds"])
        times = [record.time_seconds for record in (*self.records, *self.lost_records) if record.time_seconds]
        from_records = max(times) - min(times) if times else 0.0
        return max([from_records, *(event.time_seconds for event in self.events)], default=0.0)


def read_run(run_dir: str | Path) -> RunData:
    """Read a run directory. Raises ValueError where it is none, or where a line in it is broken (with file and line)."""
    places = RunDirectory(run_dir)
    if not places.holds_run():
        raise ValueError(f"{places.path} is no run directory: it has neither job.yaml nor metrics.jsonl")
    records = places.read_records()
    plans, decisions = _read_plans(places.plans)
    return RunData(
        run_dir=places.path,
        job=places.read_job_values(),
        records=tuple(read_as(StepRecord, line, places.metrics.name) for line in records.surviving),
        lost_records=tuple(read_as(StepRecord, line, places.metrics.name) for line in records.undone),
        lineage_starts=tuple((start.lineage, start.starts_at_step) for start in records.cuts.starts),
        statistics=_surviving_statistics(places.statistics, records.cuts),
        plans=plans,
        decisions=decisions,
        events=tuple(Event.parse(line) for line in read_jsonl(places.events)),
        result=places.read_result(),
        ledger=read_ledger(places),
        traces=_surviving_traces(places.traces, records.cuts),
        profile=read_as(MeasuredProfile, read_json(places.profile), places.profile.name) if places.profile.exists() else None,
    )


def read_ledger(places: RunDirectory) -> Ledger | None:
    """Return the ledger in a run directory. Raises ValueError for a broken one."""
    result = places.read_result()
    recorded = result.get("ledger") if "status" in result else None
    recorded = recorded or read_json(places.ledger).get("ledger")
    try:
        return Ledger.of_json(recorded) if recorded else None
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{places.path}: its ledger is broken ({error!r}); delete {places.ledger.name}") from None


def _surviving_statistics(path: Path, cuts: Cuts) -> tuple[IntervalStatistics, ...]:
    found = [read_as(IntervalStatistics, line, path.name) for line in read_jsonl(path)]
    kept = {one.number: one for one in found if cuts.survives(one.lineage, one.last_step)}
    return tuple(kept[number] for number in sorted(kept))


def _surviving_traces(path: Path, cuts: Cuts) -> tuple[StepTrace, ...]:
    found = [read_as(StepTrace, line, path.name) for line in read_jsonl(path)]
    return tuple(sorted((one for one in found if cuts.survives(one.lineage, one.step)), key=lambda one: (one.step, one.pp_rank)))


def _read_plans(path: Path) -> tuple[tuple[PlanSpan, ...], tuple[Decision, ...]]:
    """Return the generations that started, ordered by id, and the decisions in the order in which they were made."""
    spans: dict[tuple[int, int], PlanSpan] = {}
    ends: dict[str, int] = {}
    decisions: dict[tuple[int, int], Decision] = {}
    for line in read_jsonl(path):
        kind = line.get("kind")
        if kind == "plan_end":
            ends[str(line.get("generation"))] = int(line.get("last_step") or 0)
        elif kind == "plan":
            plan = read_as(Plan, line, path.name)
            first_step = int(line.get("first_step") or plan.start_step + 1)
            spans[plan.generation.incarnation, plan.generation.counter] = PlanSpan(plan, first_step, line.get("last_step"))
        elif kind == "decision":
            # `kind` is the kind of the line, so a decision's own kind has another name here.
            decision = read_as(Decision, {**line, "kind": line.get("decision_kind")}, path.name)
            decisions[key_of(decision)] = decision  # a void one was written again
    ended = [
        PlanSpan(span.plan, span.first_step, ends.get(str(span.plan.generation), span.last_step))
        for _, span in sorted(spans.items(), key=lambda item: item[0])
    ]
    return tuple(ended), tuple(decisions.values())
